"""Selects the blob files to evict before the next one is stored.

Takes: stored, used and deleted files. Gives: the files to delete, least recently used first.

Rules: this module deletes nothing. A blob larger than the limit is stored alone, with a warning.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final, TypeAlias, final

from ..config import MIB
from ..errors import ConfigError, LocalProtocolError
from ..schedule.descriptors.descriptors import BlobKey

LOGGER: Final = logging.getLogger("netstack")

MOST_BLOBS: Final = 256
"""Maximum number of blobs; each is an open file."""

TrackedBlob: TypeAlias = tuple[str, BlobKey]
"""Job and key."""


@final
class BlobTracker:
    """Tracks sizes and order of use of blob files.

    Args:
        limit_bytes: limit of all files together.
        most: maximum number of files.

    Raises:
        ConfigError: a limit is not positive.
    """

    def __init__(self, limit_bytes: int = 100 * MIB, most: int = MOST_BLOBS) -> None:
        if limit_bytes < 1 or most < 1:
            raise ConfigError(f"limit_bytes={limit_bytes}, most={most}: the minimum is 1")
        self._most = most
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[TrackedBlob, int] = OrderedDict()
        self.total_bytes = 0
        """Size of all tracked files."""

    def to_delete(self, size_bytes: int) -> list[TrackedBlob]:
        """Returns the blobs that the caller must delete and `untrack` so that a blob of this size fits."""
        chosen: list[TrackedBlob] = []
        total_bytes = self.total_bytes
        for blob, tracked_bytes in self._sizes.items():
            if total_bytes + size_bytes <= self._limit_bytes and len(self._sizes) - len(chosen) < self._most:
                break
            chosen.append(blob)
            total_bytes -= tracked_bytes
        if size_bytes > self._limit_bytes:
            LOGGER.warning(
                "a blob of %d bytes is larger than the blob cache of %d bytes; raise --blob-cache",
                size_bytes,
                self._limit_bytes,
            )
        return chosen

    def track(self, job: str, key: BlobKey, size_bytes: int) -> None:
        """Adds a stored file.

        Raises:
            LocalProtocolError: the file is tracked already.
        """
        if (job, key) in self._sizes:
            raise LocalProtocolError(f"blob {key} of job {job!r} is tracked already; use touch")
        self._sizes[job, key] = size_bytes
        self.total_bytes += size_bytes

    def touch(self, job: str, key: BlobKey) -> None:
        """Marks a file as used; ignores untracked files."""
        if (job, key) in self._sizes:
            self._sizes.move_to_end((job, key))

    def untrack(self, job: str, key: BlobKey) -> None:
        """Removes a deleted file; ignores untracked files."""
        self.total_bytes -= self._sizes.pop((job, key), 0)

    def untrack_job(self, job: str) -> list[TrackedBlob]:
        """Removes all files of a job and returns them."""
        keys = [blob for blob in self._sizes if blob[0] == job]
        for blob in keys:
            self.untrack(*blob)
        return keys
