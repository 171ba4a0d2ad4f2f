"""Reads offloaded data for tasks: from the cache of the TaskManager, or over the link of the job.

Takes: keys from descriptors, and the time. Gives: bytes, and decoded lists of shuffle descriptors.

Rules: each TaskManager fetches a blob once, also when several tasks request it at the same time. The least recently
used blobs are evicted first. At the end of a job its values and blobs are dropped; packages stay for the next job.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias, final

import trio

from ...base.config import MIB
from ...base.errors import ConfigError
from ...network.waiting.threads import in_thread
from ...schedule.descriptors.blob_store import CODE_KEY, BlobError
from ...schedule.descriptors.descriptors import BlobKey, MaybeOffloaded
from ...schedule.descriptors.shuffle import ShuffleDescriptors
from ..control.messages import SLICE_BYTES, BlobPart
from ..control.reports import FetchBlob
from .group_cache import GroupCache


@final
class KeptBlob:
    """One blob in an unnamed file: written sequentially, checked, then read in any order, all in threads.

    No end of the process leaves the file behind. It is closed with its last reader, so a blob may be dropped at any
    time.

    Args:
        key: a kind, `-`, and the SHA-1 or SHA-256 of the content.
        directory: folder of its file; None: the system's temporary folder.

    Attributes:
        size_bytes: bytes written so far.
    """

    def __init__(self, key: BlobKey, directory: str | None = None) -> None:
        self.key = key
        self.size_bytes = 0
        self._directory = directory
        self._file: int | None = None  # a descriptor, closed by `_close` or with the last reference
        self._close: weakref.finalize[[int], KeptBlob] | None = None
        self._wanted = key.partition("-")[2].partition("-")[0]
        self._digest = self._new_digest()

    def _new_digest(self) -> hashlib._Hash:
        return hashlib.sha256() if len(self._wanted) == 64 else hashlib.sha1(usedforsecurity=False)

    def write(self, data: bytes) -> None:
        """Appends data. Raises BlobError if writing failed."""
        try:
            if self._file is None:
                with tempfile.TemporaryFile(prefix="netstack-blob-", dir=self._directory, buffering=0) as file:
                    self._file = os.dup(file.fileno())
                self._close = weakref.finalize(self, os.close, self._file)
            written = 0
            with memoryview(data) as whole:
                while written < len(data):
                    written += os.write(self._file, whole[written:])
        except OSError as error:
            folder = self._directory or tempfile.tempdir or "the temporary folder"
            raise BlobError(
                f"blob {self.key} cannot be written in {folder}: {error}; free space there, or set shuffle_directory"
            ) from error
        self._digest.update(data)
        self.size_bytes += len(data)

    def clear(self) -> None:
        """Discards the contents."""
        if self._close is not None:
            self._close()
        self._file, self.size_bytes, self._digest = None, 0, self._new_digest()

    def check(self) -> None:
        """Compares the contents with the digest in the key. Raises BlobError if the digests differ."""
        if self._digest.hexdigest() != self._wanted:
            raise BlobError(f"blob {self.key} is damaged: the digest of its {self.size_bytes} bytes does not match")

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Returns a part of the blob, by default all; empty beyond the end. Raises BlobError if reading failed."""
        stop = self.size_bytes if size is None else min(self.size_bytes, offset + size)
        parts = []
        while offset < stop and self._file is not None:
            try:
                part = os.pread(self._file, stop - offset, offset)
            except OSError as error:
                raise BlobError(f"blob {self.key} cannot be read: {error}") from error
            if not part:
                raise BlobError(f"blob {self.key} ends at {offset} of {self.size_bytes} bytes")
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


LOGGER: Final = logging.getLogger("netstack")

FETCH_RETRIES: Final = 5
CACHE_BYTES: Final = 100 * MIB

MOST_BLOBS: Final = 256
"""Maximum number of cached blobs; each is an open file."""

Fetch: TypeAlias = Callable[[KeptBlob], Awaitable[None]]
"""Fills an empty blob and checks it; raises `BlobError`, or `ConnectionLost`, after which it is not retried."""


@final
class BlobReader:
    """Reads blobs for the tasks of one TaskManager.

    Args:
        cache_bytes: limit of all cached blobs, and separately of all decoded lists; a larger blob is cached alone.
        directory: folder for files; None: the system's temporary folder.

    Raises:
        ConfigError: `retries` is negative, or `cache_bytes` is not positive.
    """

    def __init__(
        self, cache_bytes: int = CACHE_BYTES, *, directory: str | None = None, retries: int = FETCH_RETRIES
    ) -> None:
        if retries < 0:
            raise ConfigError(f"retries={retries}: the minimum is 0")
        self._directory = directory
        self._cache_bytes = cache_bytes
        self._kept: OrderedDict[tuple[str, BlobKey], KeptBlob] = OrderedDict()  # by job and key, last used last
        self.kept_bytes = 0
        """Size of all cached blobs."""
        self._values: GroupCache[ShuffleDescriptors] = GroupCache(max_bytes=cache_bytes)
        self._retries = retries
        self._under_way: dict[tuple[str, BlobKey], trio.Event] = {}
        self.fetched = self.evicted = 0
        """Numbers of blobs."""

    async def fetch_all(self, job: str, parts: Iterable[MaybeOffloaded], fetch: Fetch) -> dict[BlobKey, bytes]:
        """Returns the bytes of all offloaded parts; fetches each at most once.

        Raises:
            BlobError: a blob cannot be fetched.
            ConnectionLost: the link is lost.

        Cancellation: fetched blobs stay in the cache.
        """
        blobs = {}
        for part in parts:
            if isinstance(part, str):
                blob = await self.fetch(job, BlobKey(part), fetch)
                blobs[BlobKey(part)] = await _read(blob, 0, blob.size_bytes)
        return blobs

    async def fetch(self, job: str, key: BlobKey, fetch: Fetch) -> KeptBlob:
        """Returns a blob from the cache, or fetches it.

        Raises:
            BlobError: the blob cannot be fetched, even after retries.
            ConnectionLost: the link is lost.

        Cancellation: another task that waits for the same blob fetches it.
        """
        place = _owner(job, key), key
        while True:
            blob = self._kept.get(place)
            if blob is not None:
                self._kept.move_to_end(place)
                return blob
            under_way = self._under_way.get(place)
            if under_way is not None:
                await under_way.wait()
                continue
            self._under_way[place] = trio.Event()
            try:
                blob = await self._fetch(key, fetch)
                self._keep(place, blob)
            finally:
                self._under_way.pop(place).set()
            return blob

    async def part(self, job: str, ask: FetchBlob, fetch: Fetch) -> BlobPart:
        """Returns a part of a blob, fetching it if necessary; raises like `fetch`."""
        return await _part(await self.fetch(job, BlobKey(ask.key), fetch), ask)

    async def part_of_kept(self, ask: FetchBlob) -> BlobPart:
        """Returns a part of a cached blob to another TaskManager; never fetches."""
        blob = next((blob for (_, key), blob in self._kept.items() if key == ask.key), None)
        if blob is None:
            return BlobPart(ask.key, ask.offset, -1, b"it is not cached at this TaskManager")
        try:
            return await _part(blob, ask)
        except BlobError as error:
            return BlobPart(ask.key, ask.offset, -1, str(error).encode())

    def shuffle_descriptors(
        self, job: str, part: MaybeOffloaded, fetched: dict[BlobKey, bytes], now_s: float
    ) -> ShuffleDescriptors:
        """Returns the decoded list of a part of a gate; decodes it once for all consumers.

        Raises:
            RemoteProtocolError: the list is malformed.
        """
        data = part if isinstance(part, bytes) else fetched[part]
        # Inline data has no key, and every consumer receives its own copy.
        key = part if isinstance(part, str) else hashlib.sha1(part, usedforsecurity=False).hexdigest()
        descriptors = self._values.get(job, key, now_s)
        if descriptors is None:
            descriptors = ShuffleDescriptors.decompress(data)
            self._values.put(job, key, descriptors, now_s, len(data))
        return descriptors

    def job_left(self, job: str) -> None:
        """Drops the values and blobs of an ended job, except packages."""
        self._values.clear(job)
        for place in [place for place in self._kept if place[0] == job]:
            self.kept_bytes -= self._kept.pop(place).size_bytes

    def _keep(self, place: tuple[str, BlobKey], blob: KeptBlob) -> None:
        size_bytes = blob.size_bytes
        while self._kept and (self.kept_bytes + size_bytes > self._cache_bytes or len(self._kept) >= MOST_BLOBS):
            _, evicted = self._kept.popitem(last=False)
            self.kept_bytes -= evicted.size_bytes
            self.evicted += 1
        if size_bytes > self._cache_bytes:
            LOGGER.warning(
                "a blob of %d bytes is larger than the blob cache of %d bytes; raise --blob-cache",
                size_bytes,
                self._cache_bytes,
            )
        self.fetched += 1
        self._kept[place] = blob
        self.kept_bytes += size_bytes

    async def _fetch(self, key: BlobKey, fetch: Fetch) -> KeptBlob:
        attempts_left = self._retries
        while True:
            blob = KeptBlob(key, self._directory)
            try:
                await fetch(blob)
            except BlobError:
                if not attempts_left:
                    raise
                attempts_left -= 1
            else:
                return blob


def _owner(job: str, key: BlobKey) -> str:
    """Returns the job that owns a blob; packages have no owner."""
    return "" if key.startswith(CODE_KEY) else job


async def _read(blob: KeptBlob, offset: int, size: int) -> bytes:
    return await in_thread(partial(blob.read, offset, size))


async def _part(blob: KeptBlob, ask: FetchBlob) -> BlobPart:
    offset = max(0, ask.offset)
    return BlobPart(ask.key, offset, blob.size_bytes, await _read(blob, offset, SLICE_BYTES))
