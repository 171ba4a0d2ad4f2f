"""Region: the output of a writer between two cuts, in memory and then on disk.

Takes: finished buffers and events of each subpartition. Gives: their pages, appended to the data files; an index entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np

from ..buffer.buffer import Buffer
from .compression import PageCompression
from .files import PartitionFiles
from .index import BROADCAST, CELL, TORN, RegionEntry
from .pages import Piece, paginate

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
