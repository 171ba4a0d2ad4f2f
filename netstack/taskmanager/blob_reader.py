"""How a TaskManager gets what was offloaded: from what it keeps, or over the link of the job.

Takes: keys from descriptors, and the time. Gives: bytes, and lists of shuffle descriptors ready to use.

Rules: a blob travels once to each TaskManager, however many of its tasks need it, also when they ask at one time. Blobs
go least recently used first; a job that leaves takes its values and blobs with it, but no packages: the next job may
bring the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias, final

import trio

from ..config import MIB
from ..control.messages import SLICE_BYTES, BlobPart
from ..control.reports import FetchBlob
from ..errors import ConfigError
from ..runtime.threads import in_thread
from ..schedule.descriptors.blob_store import CODE_KEY, BlobError
from ..schedule.descriptors.descriptors import BlobKey, MaybeOffloaded
from ..schedule.descriptors.shuffle import ShuffleDescriptors
from .blob_files import KeptBlob
from .blob_tracker import BlobTracker, TrackedBlob
from .group_cache import GroupCache

FETCH_RETRIES: Final = 5
CACHE_BYTES: Final = 100 * MIB

Fetch: TypeAlias = Callable[[KeptBlob], Awaitable[None]]
"""Fills an empty blob, and checks it; raises `BlobError`, and `ConnectionLost`, which is not tried again."""


@final
class BlobReader:
    """Reads blobs for the tasks of one TaskManager.

    Args:
        cache_bytes: what is kept of blobs, and apart from them of lists that were read, is no more than this; a blob
            that is larger is kept alone. Nor are there ever more than `blob_tracker.MOST_BLOBS`.
        directory: for files; None is the system's temporary folder.
        retries: how often a failed fetch is repeated.

    Raises:
        ConfigError: `retries` is negative, or the cache keeps nothing.
    """

    def __init__(
        self, cache_bytes: int = CACHE_BYTES, *, directory: str | None = None, retries: int = FETCH_RETRIES
    ) -> None:
        if retries < 0:
            raise ConfigError(f"retries={retries}; give at least 0")
        self._directory = directory
        self._kept: dict[TrackedBlob, KeptBlob] = {}
        self._tracker = BlobTracker(cache_bytes)
        self._values: GroupCache[ShuffleDescriptors] = GroupCache(max_bytes=cache_bytes)
        self._retries = retries
        self._under_way: dict[TrackedBlob, trio.Event] = {}
        self.fetched = self.evicted = 0
        """Blobs, so far."""

    @property
    def kept_bytes(self) -> int:
        """Of all blobs that are kept."""
        return self._tracker.total_bytes

    async def fetch_all(self, job: str, parts: Iterable[MaybeOffloaded], fetch: Fetch) -> dict[BlobKey, bytes]:
        """The bytes of everything that was offloaded, each fetched at most once.

        Raises:
            BlobError: one cannot be fetched.
            ConnectionLost: who keeps them is gone.

        Cancellation: what was fetched is kept.
        """
        blobs = {}
        for part in parts:
            if isinstance(part, str):
                blob = await self.fetch(job, BlobKey(part), fetch)
                blobs[BlobKey(part)] = await _read(blob, 0, blob.size_bytes)
        return blobs

    async def fetch(self, job: str, key: BlobKey, fetch: Fetch) -> KeptBlob:
        """A blob; it is kept here.

        Args:
            job: whose.
            key: of the blob.
            fetch: brings it, if it is not here.

        Raises:
            BlobError: it cannot be fetched, even after the retries.
            ConnectionLost: who keeps it is gone.

        Cancellation: another task that waits for the same blob fetches it.
        """
        place = _owner(job, key), key
        while True:
            blob = self._kept.get(place)
            if blob is not None:
                self._tracker.touch(*place)
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
        """Answers a reader part by part; raises like `fetch`."""
        return await _part(await self.fetch(job, BlobKey(ask.key), fetch), ask)

    async def part_of_kept(self, ask: FetchBlob) -> BlobPart:
        """Answers another TaskManager; what is not kept here is not fetched for it."""
        blob = next((blob for (_, key), blob in self._kept.items() if key == ask.key), None)
        if blob is None:
            return BlobPart(ask.key, ask.offset, -1, b"it is not kept here")
        try:
            return await _part(blob, ask)
        except BlobError as error:
            return BlobPart(ask.key, ask.offset, -1, str(error).encode())

    def shuffle_descriptors(
        self, job: str, part: MaybeOffloaded, fetched: dict[BlobKey, bytes], now_s: float
    ) -> ShuffleDescriptors:
        """The list behind a part of a gate, read once for all consumers here.

        Args:
            job: whose.
            part: inline, or a key.
            fetched: what `fetch_all` gave for the descriptor.
            now_s: monotonic.

        Raises:
            RemoteProtocolError: it is damaged.
        """
        data = part if isinstance(part, bytes) else fetched[part]
        # What came inline has no key, and comes once for every consumer too.
        key = part if isinstance(part, str) else hashlib.sha1(part, usedforsecurity=False).hexdigest()
        descriptors = self._values.get(job, key, now_s)
        if descriptors is None:
            descriptors = ShuffleDescriptors.decompress(data)
            self._values.put(job, key, descriptors, now_s, len(data))
        return descriptors

    def job_left(self, job: str) -> None:
        """Drops everything of a job of which no task is left here, but packages."""
        self._values.clear(job)
        for place in self._tracker.untrack_job(job):
            del self._kept[place]

    def _keep(self, place: TrackedBlob, blob: KeptBlob) -> None:
        for old in self._tracker.to_delete(blob.size_bytes):
            del self._kept[old]
            self._tracker.untrack(*old)
            self.evicted += 1
        self.fetched += 1
        self._kept[place] = blob
        self._tracker.track(*place, blob.size_bytes)

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
    """Whose a blob is: its job's, but a package is nobody's."""
    return "" if key.startswith(CODE_KEY) else job


async def _read(blob: KeptBlob, offset: int, size: int) -> bytes:
    return await in_thread(partial(blob.read, offset, size))


async def _part(blob: KeptBlob, ask: FetchBlob) -> BlobPart:
    offset = max(0, ask.offset)
    return BlobPart(ask.key, offset, blob.size_bytes, await _read(blob, offset, SLICE_BYTES))
