"""RegionIndex: where each subpartition is in the data files of a partition, in memory and as a file.

Takes: an entry for each written region. Gives: the extents of any range of subpartitions.

A region holds what was written between two cuts: for each subpartition, in order, its pages. Records do not cross the
border of a region, so a range of subpartitions is read region by region, in file order. The exception is a *torn*
region, which was cut inside a record larger than the memory. Torn regions and the one after them form a group, in which
each subpartition is read as a whole.

The file: magic, subpartitions u32, regions u32, CRC-32 u32 of these and of the regions' flags (a byte each); then for
each subpartition a row: (offset u64, stored bytes u64, pages u32) for each region, and the CRC-32 of the row. A reader
needs the head and its own rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from ...base import crc
from ...base.errors import PartitionDamaged

MAGIC: Final = b"nsindex1"
HEAD: Final = struct.Struct(">8sIII")
CELL: Final = np.dtype([("offset", ">u8"), ("bytes", ">u8"), ("pages", ">u4")])

TORN: Final = 1
BROADCAST: Final = 2
"""The bytes were written once, and the cells of all subpartitions refer to them."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Consecutive whole pages in a file.

    Attributes:
        offset: first byte.
        length: stored bytes.
    """

    file: int
    offset: int
    length: int
    pages: int


@final
class RegionEntry:
    """The index entry of one region: cells of all subpartitions, and flags."""

    __slots__ = ("cells", "flags")

    def __init__(self, cells: npt.NDArray[np.void], flags: int) -> None:
        self.cells = cells
        self.flags = flags


@final
class RegionIndex:
    """The regions of a partition, in the order of their cuts.

    Attributes:
        own_files: whether every subpartition has its own data file.
    """

    def __init__(self, subpartitions: int, *, own_files: bool) -> None:
        self.own_files = own_files
        self._subpartitions = subpartitions
        self._entries: list[RegionEntry] = []

    def add(self, entry: RegionEntry) -> None:
        """Adds the next written region."""
        self._entries.append(entry)

    @property
    def regions(self) -> int:
        """Number of written regions."""
        return len(self._entries)

    def is_torn(self, region: int) -> bool:
        """Whether a record continues in the next region."""
        return bool(self._entries[region].flags & TORN)

    def extent(self, region: int, subpartition: int) -> Extent | None:
        """The extent of a subpartition in a region; None if it is empty."""
        offset, length, pages = self._entries[region].cells[subpartition].item()
        if not pages:
            return None
        return Extent(subpartition if self.own_files else 0, offset, length, pages)

    def encode(self) -> Iterator[bytes]:
        """Encodes the index file, in pieces."""
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
    """Number of bytes in front of the rows."""
    return HEAD.size + regions


def row_bytes(regions: int) -> int:
    """Number of bytes of a row."""
    return regions * CELL.itemsize + 4


def decode_head(data: bytes, name: str) -> tuple[int, int]:
    """Decodes (subpartitions, regions) of an index file.

    Args:
        data: its first bytes, as many as `HEAD` has.
        name: path of the file, for error texts.

    Raises:
        PartitionDamaged: it is not an index.
    """
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise PartitionDamaged(f"{name}: not an index of a partition; the file is damaged")
    _, subpartitions, regions, _ = HEAD.unpack_from(data)
    return subpartitions, regions


def decode_rows(head: bytes, rows: bytes, first: int, count: int, name: str, *, own_files: bool) -> list[Extent]:
    """Decodes the extents of a range of subpartitions, in reading order.

    Raises:
        PartitionDamaged: a checksum does not match.
    """
    _, _, regions, crc32 = HEAD.unpack_from(head)
    flags = head[HEAD.size :]
    if len(flags) != regions or crc.crc32(flags, crc.crc32(head[: HEAD.size - 4])) != crc32:
        raise PartitionDamaged(f"{name}: the checksum of its head does not match; the file is damaged")
    step = row_bytes(regions)
    columns = []
    for index in range(count):
        row = rows[index * step : (index + 1) * step]
        if len(row) != step or crc.crc32(row[:-4]) != int.from_bytes(row[-4:], "big"):
            raise PartitionDamaged(
                f"{name}: the checksum of the row of subpartition {first + index} does not match; the file is damaged,"
                " and its producer has to run again"
            )
        columns.append(np.frombuffer(row, CELL, regions))
    return list(merge(_in_order(columns, flags, first, own_files=own_files)))


def merge(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Merges adjacent extents."""
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
