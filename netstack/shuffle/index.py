"""Where in the data files each subpartition lies: the index of a partition, in memory and as a file.

Takes: an entry for each region that was written. Gives: extents to read for any range of subpartitions.

A region holds what was written between two cuts: for each subpartition, in order, its pages. Records do not cross the
border of a region, so several subpartitions are read region by region, in the order of the file; unless a region is
*torn*: it was cut inside a record that was larger than the memory. Torn regions and the one after them form a group, of
which each subpartition is read as a whole.

The file: magic, subpartitions u32, regions u32, CRC-32 u32 of what precedes and of the regions' flags (a byte each);
then for each subpartition a row: (offset u64, stored bytes u64, pages u32) for each region, and the CRC-32 of the row.
A reader needs the head and its own rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from .. import crc
from ..errors import PartitionDamaged

MAGIC: Final = b"nsindex1"
HEAD: Final = struct.Struct(">8sIII")
CELL: Final = np.dtype([("offset", ">u8"), ("bytes", ">u8"), ("pages", ">u4")])

TORN: Final = 1
BROADCAST: Final = 2
"""Its bytes were written once, and every subpartition's cell says where."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of whole pages in a file.

    Attributes:
        file: which data file.
        offset: its first byte.
        length: in bytes, as stored.
        pages: in it.
    """

    file: int
    offset: int
    length: int
    pages: int


@final
class RegionEntry:
    """What was written of one region: cells of all subpartitions, and its flags."""

    __slots__ = ("cells", "flags")

    def __init__(self, cells: npt.NDArray[np.void], flags: int) -> None:
        self.cells = cells
        self.flags = flags


@final
class RegionIndex:
    """The regions of a partition, in the order in which they were cut.

    Attributes:
        own_files: whether every subpartition has a data file of its own.
    """

    def __init__(self, subpartitions: int, *, own_files: bool) -> None:
        self.own_files = own_files
        self._subpartitions = subpartitions
        self._entries: list[RegionEntry] = []

    def add(self, entry: RegionEntry) -> None:
        """The next region was written."""
        self._entries.append(entry)

    @property
    def regions(self) -> int:
        """How many there are."""
        return len(self._entries)

    def is_torn(self, region: int) -> bool:
        """Whether a record goes on in the next region."""
        return bool(self._entries[region].flags & TORN)

    def extent(self, region: int, subpartition: int) -> Extent | None:
        """One subpartition in one region; None if it has nothing there."""
        offset, length, pages = self._entries[region].cells[subpartition].item()
        if not pages:
            return None
        return Extent(subpartition if self.own_files else 0, offset, length, pages)

    def encode(self) -> Iterator[bytes]:
        """The index file, in pieces."""
        flags = bytes(entry.flags for entry in self._entries)
        head = MAGIC + struct.pack(">II", self._subpartitions, len(flags))
        yield head + struct.pack(">I", crc.crc32(flags, crc.crc32(head))) + flags
        for subpartition in range(self._subpartitions):
            row = np.empty(len(flags), CELL)
            for region, entry in enumerate(self._entries):
                row[region] = entry.cells[subpartition]
            data = row.tobytes()
            yield data + struct.pack(">I", crc.crc32(data))


def head_bytes(regions: int) -> int:
    """Bytes in front of the rows."""
    return HEAD.size + regions


def row_bytes(regions: int) -> int:
    """Bytes of each row."""
    return regions * CELL.itemsize + 4


def decode_head(data: bytes, name: str) -> tuple[int, int]:
    """(subpartitions, regions) of an index file.

    Args:
        data: its first bytes, as many as `HEAD` has.
        name: of the file, for messages.

    Raises:
        PartitionDamaged: it is none of ours.
    """
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise PartitionDamaged(f"{name}: not an index of a partition: the file was damaged")
    _, subpartitions, regions, _ = HEAD.unpack_from(data)
    return subpartitions, regions


def decode_rows(head: bytes, rows: bytes, first: int, count: int, name: str, *, own_files: bool) -> list[Extent]:
    """What to read of a range of subpartitions, in order.

    Args:
        head: of the index, with its flags.
        rows: of the range.
        first: subpartition of the range.
        count: how many.
        name: of the file, for messages.
        own_files: whether every subpartition has a data file of its own.

    Raises:
        PartitionDamaged: checksums do not match.
    """
    _, _, regions, crc32 = HEAD.unpack_from(head)
    flags = head[HEAD.size :]
    if len(flags) != regions or crc.crc32(flags, crc.crc32(head[: HEAD.size - 4])) != crc32:
        raise PartitionDamaged(f"{name}: its head does not have the checksum that was written: the file was damaged")
    step = row_bytes(regions)
    columns = []
    for index in range(count):
        row = rows[index * step : (index + 1) * step]
        if len(row) != step or crc.crc32(row[:-4]) != int.from_bytes(row[-4:], "big"):
            raise PartitionDamaged(
                f"{name}: the row of subpartition {first + index} does not have the checksum that was written: the"
                " file was damaged; its producer has to run again"
            )
        columns.append(np.frombuffer(row, CELL, regions))
    return list(merge(_in_order(columns, flags, first, own_files=own_files)))


def merge(extents: Iterable[Extent]) -> Iterator[Extent]:
    """The same bytes in the same order, in as few extents as possible."""
    last: Extent | None = None
    for extent in extents:
        if last is not None and last.file == extent.file and last.offset + last.length == extent.offset:
            last = Extent(last.file, last.offset, last.length + extent.length, last.pages + extent.pages)
            continue
        if last is not None:
            yield last
        last = extent
    if last is not None:
        yield last


def _in_order(columns: list[npt.NDArray[np.void]], flags: bytes, first: int, *, own_files: bool) -> Iterator[Extent]:
    group: list[int] = []
    for region in range(len(flags)):
        group.append(region)
        if flags[region] & TORN and region + 1 < len(flags):
            continue
        for index, column in enumerate(columns):
            for member in group:
                offset, length, pages = column[member].item()
                if pages:
                    yield Extent(first + index if own_files else 0, offset, length, pages)
        group = []
