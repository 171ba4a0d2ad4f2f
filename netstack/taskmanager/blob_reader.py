"""How a TaskManager gets what was offloaded: from memory, from its own files, from the store that all share.

Takes: keys from descriptors, and the time. Gives: bytes, and lists of shuffle descriptors ready to use.

Rules: a blob travels once to each TaskManager, however many of its tasks need it. What came inline is not remembered.
Files go least recently used first; a job that leaves takes its values and files with it. The calls wait for the store:
a caller runs them in a thread.
"""

from __future__ import annotations

from typing import Final, final

from ..errors import ConfigError
from ..schedule.descriptors.blob_store import BlobError, BlobStore
from ..schedule.descriptors.descriptors import BlobKey, MaybeOffloaded
from ..schedule.descriptors.shuffle import ShuffleDescriptors
from .blob_tracker import BlobTracker
from .group_cache import GroupCache

FETCH_RETRIES: Final = 5


@final
class BlobReader:
    """Reads blobs for the tasks of one TaskManager.

    Args:
        shared: what all of them read from.
        files: this TaskManager's own.
        tracker: bounds the size of those.
        values: lists of shuffle descriptors, read and ready.
        retries: how often a failed fetch is repeated.

    Raises:
        ConfigError: `retries` is negative.
    """

    def __init__(
        self,
        shared: BlobStore,
        files: BlobStore,
        *,
        tracker: BlobTracker | None = None,
        values: GroupCache[ShuffleDescriptors] | None = None,
        retries: int = FETCH_RETRIES,
    ) -> None:
        if retries < 0:
            raise ConfigError(f"retries={retries}; give at least 0")
        self._shared = shared
        self._files = files
        self._tracker = BlobTracker() if tracker is None else tracker
        self._values: GroupCache[ShuffleDescriptors] = GroupCache() if values is None else values
        self._retries = retries

    def shuffle_descriptors(self, job: str, part: MaybeOffloaded, now_s: float) -> ShuffleDescriptors:
        """The list behind a part of a gate.

        Raises:
            BlobError: it cannot be fetched.
            RemoteProtocolError: it is damaged.
        """
        if isinstance(part, bytes):
            return ShuffleDescriptors.decompress(part)
        found = self._values.get(job, part, now_s)
        if found is None:
            data = self.fetch(job, part)
            found = ShuffleDescriptors.decompress(data)
            self._values.put(job, part, found, now_s, len(data))
        return found

    def fetch(self, job: str, key: BlobKey) -> bytes:
        """The bytes of a blob; they are kept in this TaskManager's files.

        Raises:
            BlobError: it cannot be fetched, even after the retries.
        """
        try:
            data = self._files.get(job, key)
        except BlobError:
            self._tracker.untrack(job, key)
        else:
            self._tracker.touch(job, key)
            return data
        data = self._fetch_shared(job, key)
        for old_job, old_key in self._tracker.to_delete(len(data)):
            self._files.delete(old_job, old_key)
            self._tracker.untrack(old_job, old_key)
        self._files.put(job, key, data)
        self._tracker.track(job, key, len(data))
        return data

    def job_left(self, job: str) -> None:
        """Drops everything of a job of which no task is left here."""
        self._values.clear(job)
        for found_job, key in self._tracker.untrack_job(job):
            self._files.delete(found_job, key)

    def _fetch_shared(self, job: str, key: BlobKey) -> bytes:
        attempts_left = self._retries
        while True:
            try:
                return self._shared.get(job, key)
            except BlobError:
                if not attempts_left:
                    raise
                attempts_left -= 1
