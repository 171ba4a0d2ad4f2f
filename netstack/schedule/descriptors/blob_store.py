"""The blob store for parts of descriptors that many tasks share, and the cache of shuffle descriptor lists.

Rules:
- A key is the SHA-1 of the content and a part that is never used twice within a job: a new attempt has a new key, so
  readers need no invalidation. Nothing here waits: a caller whose store touches a disk may call it in a thread.
- A list is made, compressed and offloaded once. It is dropped, and its blob deleted, when the group's partitions are
  released or one of their producers is reset; the next consumer makes a new one. Partitions that become known later are
  appended as a further list, which overrides.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from ...base.config import MIB
from ...base.errors import ConfigError, LocalProtocolError, NetstackError
from .descriptors import BlobKey, MaybeOffloaded
from .shuffle import ShuffleDescriptors, compress

LOGGER: Final = logging.getLogger("netstack")


CODE_KEY: Final = "code-"
"""Prefix of the keys of packages that were sent with jobs; the SHA-256 follows."""


class BlobError(NetstackError):
    """A blob could not be stored or is missing; the message names it and the reason."""


class BlobKind(enum.Enum):
    """The content of a blob."""

    JOB_INFORMATION = "job"
    TASK_INFORMATION = "task"
    SHUFFLE_DESCRIPTORS = "shuffle"


class BlobStore(ABC):
    """Keeps blobs of jobs until they are deleted."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def new_key(self, kind: BlobKind, data: bytes, owner: str) -> BlobKey:
        """A new key for this content.

        Args:
            kind: of content.
            data: the content.
            owner: unique among the writers of the job's blobs, in all of its runs.
        """
        digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        return BlobKey(f"{kind.value}-{digest}-{owner}-{next(self._numbers)}")

    @abstractmethod
    def put(self, job: str, key: BlobKey, data: bytes) -> None:
        """Stores a blob. Raises BlobError if it cannot be stored."""

    @abstractmethod
    def get(self, job: str, key: BlobKey) -> bytes:
        """Reads a blob. Raises BlobError if it is missing."""

    @abstractmethod
    def delete(self, job: str, key: BlobKey) -> None:
        """Deletes a blob; a missing one is ignored."""

    @abstractmethod
    def keys(self, job: str) -> list[BlobKey]:
        """The keys of a job's blobs."""


@final
class MemoryBlobStore(BlobStore):
    """A blob store in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._blobs: dict[str, dict[BlobKey, bytes]] = {}

    def put(self, job: str, key: BlobKey, data: bytes) -> None:
        """Implements `BlobStore.put`."""
        self._blobs.setdefault(job, {})[key] = data

    def get(self, job: str, key: BlobKey) -> bytes:
        """Implements `BlobStore.get`."""
        try:
            return self._blobs[job][key]
        except KeyError:
            raise _missing(job, key) from None

    def delete(self, job: str, key: BlobKey) -> None:
        """Implements `BlobStore.delete`."""
        self._blobs.get(job, {}).pop(key, None)

    def keys(self, job: str) -> list[BlobKey]:
        """Implements `BlobStore.keys`."""
        return [*self._blobs.get(job, {})]


@final
@dataclass(frozen=True, slots=True)
class OffloadRule:
    """When a part of a descriptor becomes a blob.

    Attributes:
        min_size_bytes: job and task information of at least this size are offloaded.
        min_products: a list is offloaded when its descriptors times its consumers are at least this many; a failed
            upload is then an error. None: lists follow `min_size_bytes` too, as in Flink up to 1.16, and are sent
            inline when the upload fails.

    Raises:
        ConfigError: a negative threshold.
    """

    min_size_bytes: int = MIB
    min_products: int | None = 2048 * 2048

    def __post_init__(self) -> None:
        for name in ("min_size_bytes", "min_products"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name}={value}; give at least 0")


@final
class Offloader:
    """Puts large parts of descriptors into a store.

    Args:
        job: owner of the blobs.
        owner: unique among the schedulers of the job, in all of its runs; a part of every key.
        rule: what is large.
    """

    def __init__(self, store: BlobStore, job: str, owner: str, rule: OffloadRule = OffloadRule()) -> None:
        self._store = store
        self._job = job
        self._owner = owner
        self._rule = rule

    def information(self, kind: BlobKind, data: bytes) -> MaybeOffloaded:
        """Job or task information: inline if it is small or the store fails."""
        if len(data) < self._rule.min_size_bytes:
            return data
        return self._put_or_inline(kind, data)

    def shuffle_descriptors(self, data: bytes, descriptors: int, consumers: int) -> MaybeOffloaded:
        """A compressed list of this many descriptors for this many consumers.

        Raises:
            BlobError: the store fails, and the rule has `min_products`.
        """
        if self._rule.min_products is None:
            return self.information(BlobKind.SHUFFLE_DESCRIPTORS, data)
        if descriptors * consumers < self._rule.min_products:
            return data
        return self._put(BlobKind.SHUFFLE_DESCRIPTORS, data)

    def discard(self, part: MaybeOffloaded) -> None:
        """Deletes the part's blob, if it has one."""
        if isinstance(part, str):
            self._store.delete(self._job, part)

    def _put(self, kind: BlobKind, data: bytes) -> BlobKey:
        key = self._store.new_key(kind, data, self._owner)
        self._store.put(self._job, key, data)
        return key

    def _put_or_inline(self, kind: BlobKind, data: bytes) -> MaybeOffloaded:
        try:
            return self._put(kind, data)
        except BlobError as error:
            LOGGER.warning("%s is sent inline, %d bytes in every descriptor: %s", kind.value, len(data), error)
            return data


def _missing(job: str, key: BlobKey) -> BlobError:
    return BlobError(f"job {job!r} has no blob {key}: it was deleted, or never stored")


@final
@dataclass(frozen=True, slots=True)
class DescriptorCacheStatistics:
    """A snapshot of a descriptor cache.

    Attributes:
        groups: entries.
        lists: in all entries.
        blobs: lists that were offloaded.
        plain_bytes: of all lists before compression.
        misses: entries made.
    """

    groups: int
    lists: int
    blobs: int
    plain_bytes: int
    compressed_bytes: int
    misses: int


@final
class _Entry:
    __slots__ = ("compressed_bytes", "consumers", "lists", "plain_bytes")

    def __init__(self, consumers: int) -> None:
        self.consumers = consumers
        self.lists: tuple[MaybeOffloaded, ...] = ()
        self.plain_bytes = 0
        self.compressed_bytes = 0


@final
class DescriptorCache:
    """The shuffle descriptor lists of partition groups, one entry per group; large lists go into the blob store."""

    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader
        self._entries: dict[int, _Entry] = {}
        self._misses = 0

    def lists(self, group: int) -> tuple[MaybeOffloaded, ...] | None:
        """The lists for a consumer of the group; None if its entry has to be made first."""
        entry = self._entries.get(group)
        return None if entry is None else entry.lists

    def put(self, group: int, descriptors: ShuffleDescriptors, consumers: int) -> tuple[MaybeOffloaded, ...]:
        """Makes an entry for all partitions of a group.

        Raises:
            LocalProtocolError: it has an entry.
            BlobError: the store fails; see `Offloader.shuffle_descriptors`. There is no entry then.
        """
        if group in self._entries:
            raise LocalProtocolError(f"group {group} already has descriptors; invalidate them first, or add to them")
        entry = _Entry(consumers)
        self._append(entry, descriptors)
        self._entries[group] = entry
        self._misses += 1
        return entry.lists

    def add(self, group: int, descriptors: ShuffleDescriptors) -> tuple[MaybeOffloaded, ...]:
        """Appends descriptors of partitions that became known; `descriptors.index` has their positions.

        Raises:
            LocalProtocolError: the group has no entry.
            BlobError: as for `put`; the entry is unchanged.
        """
        entry = self._entries.get(group)
        if entry is None:
            raise LocalProtocolError(f"group {group} has no descriptors to add to; put them first")
        self._append(entry, descriptors)
        return entry.lists

    def invalidate(self, groups: Iterable[int]) -> None:
        """Drops entries and their blobs; a group without an entry is skipped."""
        for group in groups:
            entry = self._entries.pop(group, None)
            if entry is not None:
                for part in entry.lists:
                    self._offloader.discard(part)

    def clear(self) -> None:
        """Drops all entries."""
        self.invalidate([*self._entries])

    def blobs(self) -> list[BlobKey]:
        """The keys of all lists that were offloaded."""
        return [BlobKey(part) for entry in self._entries.values() for part in entry.lists if isinstance(part, str)]

    def statistics(self) -> DescriptorCacheStatistics:
        """A snapshot."""
        entries = self._entries.values()
        return DescriptorCacheStatistics(
            len(entries),
            sum(len(entry.lists) for entry in entries),
            len(self.blobs()),
            sum(entry.plain_bytes for entry in entries),
            sum(entry.compressed_bytes for entry in entries),
            self._misses,
        )

    def _append(self, entry: _Entry, descriptors: ShuffleDescriptors) -> None:
        plain = descriptors.serialised()
        compressed = compress(plain)
        part = self._offloader.shuffle_descriptors(compressed, len(descriptors), entry.consumers)
        entry.lists = (*entry.lists, part)
        entry.plain_bytes += len(plain)
        entry.compressed_bytes += len(compressed)
