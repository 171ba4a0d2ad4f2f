"""Which of a TaskManager's blob files have to go before the next one is stored.

Takes: what was stored, used and deleted. Gives: the files to delete, least recently used first.

Rules: nothing is deleted here. A blob larger than the limit is stored all the same, with nothing beside it, and a
warning is logged.
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
"""Each is an open file."""

TrackedBlob: TypeAlias = tuple[str, BlobKey]
"""Job and key."""


@final
class BlobTracker:
    """Sizes and order of use of blob files.

    Args:
        limit_bytes: of all of them together.
        most: so many files.

    Raises:
        ConfigError: a limit is not positive.
    """

    def __init__(self, limit_bytes: int = 100 * MIB, most: int = MOST_BLOBS) -> None:
        if limit_bytes < 1 or most < 1:
            raise ConfigError(f"limit_bytes={limit_bytes}, most={most}; give at least 1")
        self._most = most
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[TrackedBlob, int] = OrderedDict()
        self._total_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Of all tracked files."""
        return self._total_bytes

    def to_delete(self, size_bytes: int) -> list[TrackedBlob]:
        """What has to be deleted, and `untrack`ed, so that a blob of this size fits."""
        chosen: list[TrackedBlob] = []
        total_bytes = self._total_bytes
        for blob, tracked_bytes in self._sizes.items():
            if total_bytes + size_bytes <= self._limit_bytes and len(self._sizes) - len(chosen) < self._most:
                break
            chosen.append(blob)
            total_bytes -= tracked_bytes
        if size_bytes > self._limit_bytes:
            LOGGER.warning("a blob of %d bytes is larger than the whole cache, %d bytes", size_bytes, self._limit_bytes)
        return chosen

    def track(self, job: str, key: BlobKey, size_bytes: int) -> None:
        """A file was stored.

        Raises:
            LocalProtocolError: it is tracked.
        """
        if (job, key) in self._sizes:
            raise LocalProtocolError(f"blob {key} of job {job!r} is tracked; touch it instead")
        self._sizes[job, key] = size_bytes
        self._total_bytes += size_bytes

    def touch(self, job: str, key: BlobKey) -> None:
        """A file was used; does nothing when it is not tracked."""
        if (job, key) in self._sizes:
            self._sizes.move_to_end((job, key))

    def untrack(self, job: str, key: BlobKey) -> None:
        """A file was deleted; does nothing when it is not tracked."""
        self._total_bytes -= self._sizes.pop((job, key), 0)

    def untrack_job(self, job: str) -> list[TrackedBlob]:
        """All files of a job are to be deleted; returns which those are."""
        keys = [blob for blob in self._sizes if blob[0] == job]
        for blob in keys:
            self.untrack(*blob)
        return keys
