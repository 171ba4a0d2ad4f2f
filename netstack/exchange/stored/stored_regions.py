"""StoredRegions: the regions of a kept partition, in memory and in files, as its views read them.

Takes: nothing; `PartitionStore`, which extends it, fills and writes the regions. Gives: buffers in memory, places in
files; keeps the files as long as somebody reads or writes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import final

import numpy as np

from ...base.errors import NetstackError
from ...base.ids import ResultPartitionType
from ..buffer.buffer import Buffer
from .compression import DiskQuota, PageCompression
from .files import PartitionFiles
from .index import BROADCAST, CELL, TORN, RegionEntry, RegionIndex
from .pages import Piece, paginate
from .reading import Disk, ReadScheduler

_NOTHING: list[Buffer] = []


@final
class Region:
    """The output between two cuts.

    Attributes:
        number: in the order of the cuts.
        buffers: number of buffers in memory, of all subpartitions.
        is_torn: whether it was cut inside a record.
    """

    __slots__ = ("_items", "buffers", "bytes", "is_cut", "is_torn", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.buffers = 0
        self.bytes = 0
        self.is_cut = False
        self.is_torn = False
        self._items: dict[int, list[Buffer]] = {}

    def add(self, subpartition: int, buffer: Buffer) -> None:
        """Adds the next buffer of a subpartition, and takes over its reference."""
        items = self._items.get(subpartition)
        if items is None:
            items = self._items[subpartition] = []
        items.append(buffer)
        self.buffers += 1
        self.bytes += buffer.length

    def items(self, subpartition: int) -> list[Buffer]:
        """The buffers of one subpartition, in order."""
        return self._items.get(subpartition, _NOTHING)

    def drop(self, subpartition: int, count: int) -> None:
        """Recycles the first buffers of a subpartition."""
        items = self._items[subpartition]
        for buffer in items[:count]:
            self.buffers -= 1
            self.bytes -= buffer.length
            buffer.recycle()
        del items[:count]

    def recycle(self) -> None:
        """Recycles all buffers. Idempotent."""
        items, self._items = self._items, {}
        for buffers in items.values():
            for buffer in buffers:
                buffer.recycle()

    def write(
        self, files: PartitionFiles, subpartitions: int, *, page_bytes: int, compression: PageCompression
    ) -> RegionEntry:
        """Appends the region to the files; runs in a thread.

        Raises:
            DiskFull: the disk is full.
            ShuffleStorageError: another error of the operating system.
        """
        cells = np.zeros(subpartitions, CELL)
        if not files.own_files and self._is_broadcast(subpartitions):
            sizes: list[tuple[int, int]] = []
            offset, _ = files.append(0, self._pages(0, page_bytes, compression, sizes))
            cells[:] = (offset, *sizes[0])
            return RegionEntry(cells, BROADCAST | self._torn_flag)
        if files.own_files:
            for subpartition in self._items:
                sizes = []
                offset, _ = files.append(subpartition, self._pages(subpartition, page_bytes, compression, sizes))
                cells[subpartition] = (offset, *sizes[0])
            return RegionEntry(cells, self._torn_flag)
        order = sorted(self._items)
        sizes = []

        def all_pages() -> Iterator[Piece]:
            for subpartition in order:
                yield from self._pages(subpartition, page_bytes, compression, sizes)

        offset, _ = files.append(0, all_pages())
        for subpartition, (size, pages) in zip(order, sizes, strict=True):
            cells[subpartition] = (offset, size, pages)
            offset += size
        return RegionEntry(cells, self._torn_flag)

    @property
    def _torn_flag(self) -> int:
        return TORN if self.is_torn else 0

    def _pages(
        self, subpartition: int, page_bytes: int, compression: PageCompression, sizes: list[tuple[int, int]]
    ) -> Iterator[Piece]:
        """Yields the pages of a subpartition; then appends (bytes, pages) to `sizes`."""
        size = count = 0
        for data_type, pieces, length in paginate(self._items[subpartition], page_bytes):
            count += 1
            for piece in compression.encode(data_type, pieces, length):
                size += len(piece)
                yield piece
        sizes.append((size, count))

    def _is_broadcast(self, subpartitions: int) -> bool:
        if subpartitions < 2 or len(self._items) < subpartitions:
            return False
        first = self._items[0]
        for subpartition in range(1, subpartitions):
            items = self._items[subpartition]
            if len(items) != len(first):
                return False
            for mine, theirs in zip(items, first, strict=True):
                if mine.memory.obj is not theirs.memory.obj or mine.segment is not theirs.segment:
                    return False
        return True


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
