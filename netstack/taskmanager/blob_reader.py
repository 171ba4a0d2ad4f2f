"""How a TaskManager gets what was offloaded: from memory, from its own store, over the link of the job.

Takes: keys from descriptors, and the time. Gives: bytes, and lists of shuffle descriptors ready to use.

Rules: a blob travels once to each TaskManager, however many of its tasks need it, also when they ask at one time. Blobs
go least recently used first; a job that leaves takes its values and blobs with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias, final

import trio

from ..errors import ConfigError
from ..schedule.descriptors.blob_store import BlobError, BlobStore
from ..schedule.descriptors.descriptors import BlobKey, MaybeOffloaded
from ..schedule.descriptors.shuffle import ShuffleDescriptors
from .blob_tracker import BlobTracker
from .group_cache import GroupCache

FETCH_RETRIES: Final = 5

Fetch: TypeAlias = Callable[[BlobKey], Awaitable[bytes]]
"""Brings a blob from where it is kept; raises `BlobError`, and `ConnectionLost`, which is not tried again."""


@final
class BlobReader:
    """Reads blobs for the tasks of one TaskManager.

    Args:
        files: this TaskManager's own.
        tracker: bounds the size of those.
        values: lists of shuffle descriptors, read and ready.
        retries: how often a failed fetch is repeated.

    Raises:
        ConfigError: `retries` is negative.
    """

    def __init__(
        self,
        files: BlobStore,
        *,
        tracker: BlobTracker | None = None,
        values: GroupCache[ShuffleDescriptors] | None = None,
        retries: int = FETCH_RETRIES,
    ) -> None:
        if retries < 0:
            raise ConfigError(f"retries={retries}; give at least 0")
        self._files = files
        self._tracker = BlobTracker() if tracker is None else tracker
        self._values: GroupCache[ShuffleDescriptors] = GroupCache() if values is None else values
        self._retries = retries
        self._under_way: dict[tuple[str, BlobKey], trio.Event] = {}

    async def fetch_all(self, job: str, parts: Iterable[MaybeOffloaded], fetch: Fetch) -> dict[BlobKey, bytes]:
        """The bytes of everything that was offloaded, each fetched at most once.

        Raises:
            BlobError: one cannot be fetched.
            ConnectionLost: who keeps them is gone.

        Cancellation: what was fetched is kept.
        """
        return {BlobKey(part): await self.fetch(job, BlobKey(part), fetch) for part in parts if isinstance(part, str)}

    async def fetch(self, job: str, key: BlobKey, fetch: Fetch) -> bytes:
        """The bytes of a blob; they are kept here.

        Args:
            job: whose.
            key: of the blob.
            fetch: brings it, if it is not here.

        Raises:
            BlobError: it cannot be fetched, even after the retries.
            ConnectionLost: who keeps it is gone.

        Cancellation: somebody else who waits for the same blob fetches it.
        """
        while True:
            try:
                data = self._files.get(job, key)
            except BlobError:
                self._tracker.untrack(job, key)
            else:
                self._tracker.touch(job, key)
                return data
            under_way = self._under_way.get((job, key))
            if under_way is not None:
                await under_way.wait()
                continue
            self._under_way[job, key] = trio.Event()
            try:
                data = await self._fetch(key, fetch)
                self._keep(job, key, data)
            finally:
                self._under_way.pop((job, key)).set()
            return data

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
        found = self._values.get(job, key, now_s)
        if found is None:
            found = ShuffleDescriptors.decompress(data)
            self._values.put(job, key, found, now_s, len(data))
        return found

    def job_left(self, job: str) -> None:
        """Drops everything of a job of which no task is left here."""
        self._values.clear(job)
        for found_job, key in self._tracker.untrack_job(job):
            self._files.delete(found_job, key)

    def _keep(self, job: str, key: BlobKey, data: bytes) -> None:
        for old_job, old_key in self._tracker.to_delete(len(data)):
            self._files.delete(old_job, old_key)
            self._tracker.untrack(old_job, old_key)
        self._files.put(job, key, data)
        self._tracker.track(job, key, len(data))

    async def _fetch(self, key: BlobKey, fetch: Fetch) -> bytes:
        attempts_left = self._retries
        while True:
            try:
                return await fetch(key)
            except BlobError:
                if not attempts_left:
                    raise
                attempts_left -= 1
