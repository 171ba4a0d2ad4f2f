"""The lists of shuffle descriptors that consumers share: one entry for every ConsumedPartitionGroup.

Takes: a group's descriptors, when its first consumer is deployed. Gives: the compressed lists, inline or as keys of
blobs, to every consumer of the group.

Rules: a list is made, compressed and offloaded once. It is dropped, and its blob deleted, when the group's partitions
are released or when a producer of one of them is reset for a new attempt; the next consumer makes a new one. What was
told to be unknown and is known now is added as a further list, which overrides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from ...errors import LocalProtocolError
from .blob_store import Offloader
from .descriptors import BlobKey, MaybeOffloaded
from .shuffle import ShuffleDescriptors, compress


@final
@dataclass(frozen=True, slots=True)
class DescriptorCacheStatistics:
    """What a cache holds, and how it was used.

    Attributes:
        groups: entries.
        lists: in all entries.
        blobs: lists that were offloaded.
        plain_bytes: of all lists before compression.
        compressed_bytes: of all lists.
        hits: consumers served from an entry.
        misses: entries made.
        invalidated: entries dropped.
    """

    groups: int
    lists: int
    blobs: int
    plain_bytes: int
    compressed_bytes: int
    hits: int
    misses: int
    invalidated: int


@final
class _Entry:
    """The lists of one group."""

    __slots__ = ("compressed_bytes", "consumers", "lists", "plain_bytes")

    def __init__(self, consumers: int) -> None:
        self.consumers = consumers
        self.lists: tuple[MaybeOffloaded, ...] = ()
        self.plain_bytes = 0
        self.compressed_bytes = 0


@final
class DescriptorCache:
    """One entry a group.

    Args:
        offloader: puts what is large into the blob store.
    """

    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader
        self._entries: dict[int, _Entry] = {}
        self._hits = 0
        self._misses = 0
        self._invalidated = 0

    def lists(self, group: int) -> tuple[MaybeOffloaded, ...] | None:
        """What a consumer of the group is sent; None when its entry has to be made first."""
        entry = self._entries.get(group)
        if entry is None:
            return None
        self._hits += 1
        return entry.lists

    def put(self, group: int, descriptors: ShuffleDescriptors, consumers: int) -> tuple[MaybeOffloaded, ...]:
        """Makes an entry.

        Args:
            group: number of the group.
            descriptors: of all of its partitions.
            consumers: how many will be sent it.

        Raises:
            LocalProtocolError: it has an entry.
            BlobError: the store refuses it; see `Offloader.shuffle_descriptors`. There is no entry then.
        """
        if group in self._entries:
            raise LocalProtocolError(f"group {group} has its descriptors; invalidate them first, or add to them")
        entry = _Entry(consumers)
        self._append(entry, descriptors)
        self._entries[group] = entry
        self._misses += 1
        return entry.lists

    def add(self, group: int, descriptors: ShuffleDescriptors) -> tuple[MaybeOffloaded, ...]:
        """Adds what is known now; `descriptors.index` says of which partitions.

        Raises:
            LocalProtocolError: the group has no entry.
            BlobError: as for `put`; the entry stays as it was.
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
                self._invalidated += 1
                for part in entry.lists:
                    self._offloader.discard(part)

    def clear(self) -> None:
        """Drops everything: the job has ended, or all of it restarts."""
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
            self._hits,
            self._misses,
            self._invalidated,
        )

    def _append(self, entry: _Entry, descriptors: ShuffleDescriptors) -> None:
        plain = descriptors.serialised()
        compressed = compress(plain)
        part = self._offloader.shuffle_descriptors(compressed, len(descriptors), entry.consumers)
        entry.lists = (*entry.lists, part)
        entry.plain_bytes += len(plain)
        entry.compressed_bytes += len(compressed)
