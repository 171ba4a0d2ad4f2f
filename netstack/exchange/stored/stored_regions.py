"""StoredRegions: the regions of a kept partition, in memory and in files, as its views read them.

Takes: nothing; `PartitionStore`, which extends it, fills and writes the regions. Gives: buffers in memory, places in
files; keeps the files as long as somebody reads or writes them.
"""

from __future__ import annotations

from collections import deque

from ...base.errors import NetstackError
from ...base.ids import ResultPartitionType
from ..buffer.buffer import Buffer
from .compression import DiskQuota
from .files import PartitionFiles
from .index import RegionIndex
from .reading import Disk, ReadScheduler
from .region import Region


class StoredRegions:
    """The regions of one kept partition.

    Attributes:
        number: unique in its TaskManager; names the files, and orders reads.
        index: its regions; for a sealed blocking partition empty, since the index file has them.
        page_bytes: size of a network buffer.
        drain: the drain flag of its EndOfData.
        failure: why its producer failed; None without a failure.
    """

    def __init__(
        self,
        number: int,
        kind: ResultPartitionType,
        files: PartitionFiles,
        index: RegionIndex,
        *,
        page_bytes: int,
        disk: Disk,
        reads: ReadScheduler,
        quota: DiskQuota,
    ) -> None:
        self.number = number
        self.kind = kind
        self.files = files
        self.index = index
        self.page_bytes = page_bytes
        self.reads = reads
        self.first_region = 0
        self.drain = True
        self.is_sealed = False
        self.is_released = False
        self.stored_bytes = 0
        self.failure: str | None = None
        self._disk = disk
        self._quota = quota
        self._open = Region(0)
        self._unwritten: deque[Region] = deque()
        self._is_writing = False
        self._is_sealing = False
        self._file_users = 1

    def retain_files(self) -> None:
        """Adds a user of the files, for a read or write."""
        self._file_users += 1

    def release_files(self) -> None:
        """Drops a user of the files; the last one removes them."""
        self._file_users -= 1
        if not self._file_users:
            self._quota.used_bytes -= self.stored_bytes
            self.stored_bytes = 0
            self._disk.submit(self.files.remove, _ignore)

    @property
    def regions(self) -> int:
        """Number of cut regions."""
        return self._open.number

    def is_cut(self, region: int) -> bool:
        """Whether a region is complete."""
        return region < self._open.number or self._is_sealing

    def items(self, region: int, subpartition: int) -> list[Buffer] | None:
        """The buffers in memory of a subpartition in a region; None if the region is on disk."""
        if region < self.index.regions:
            return None
        if region == self._open.number:
            return self._open.items(subpartition)
        return self._unwritten[region - self.index.regions].items(subpartition)

    def next_group(self, region: int, *, alone: bool) -> list[int]:
        """The regions from `region` on that are read together: one, unless it is torn; none while that is unknown.

        Args:
            region: the first region.
            alone: whether the reader reads one subpartition, and so need not wait for a cut.
        """
        if region > self._open.number or (region == self._open.number and (self._is_sealing or not alone)):
            return []
        if alone:
            return [region]
        group = [region]
        while self._is_torn(group[-1]):
            if group[-1] + 1 >= self._open.number:
                return group if self._is_sealing else []
            group.append(group[-1] + 1)
        return group

    def drop_taken(self, region: int, subpartition: int, taken: int) -> bool:
        """Drops the first `taken` buffers of a subpartition, if they are read only once. Returns whether it did."""
        if self.kind.is_reconsumable or (self._is_writing and region == self.index.regions):
            return False
        holder = self._open if region == self._open.number else self._unwritten[region - self.index.regions]
        holder.drop(subpartition, taken)
        return True

    def count_in_memory(self, first_region: int, first: int, count: int) -> int:
        """Number of buffers and events in memory, of `count` subpartitions and the regions from `first_region` on."""
        waiting = 0
        for region in (*self._unwritten, self._open):
            if region.number >= first_region:
                for subpartition in range(first, first + count):
                    waiting += len(region.items(subpartition))
        return waiting

    def _is_torn(self, region: int) -> bool:
        if region < self.index.regions:
            return self.index.is_torn(region)
        return self._unwritten[region - self.index.regions].is_torn


def _ignore(result: object, error: NetstackError | None) -> None:
    """Ignores files that cannot be removed; they are removed with their folder."""
