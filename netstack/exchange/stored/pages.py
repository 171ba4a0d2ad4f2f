"""Pages: the buffers and events in a data file, each compressed where that pays, each with its own checksum.

Takes: buffers of one subpartition, in order. Gives: pages as pieces to write; and the pages of a block that was read.

A page starts with 16 bytes: data type u8, three zeros, stored bytes u32, original bytes u32 (0: not compressed), CRC-32
u32 of the stored bytes. Its initial value is computed from data type and original length, so that it covers those too.
The last eight bytes and the body are a compressed buffer as on the wire (`exchange.buffer.stored`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, final

from ...base import crc
from ...base.errors import PartitionDamaged
from ...base.events import DataType
from ..buffer.buffer import Buffer
from ..buffer.stored import PART_HEADER, compress, part_crc32

PAGE: Final = struct.Struct(">B3xIII")
PAGE_BYTES: Final = PAGE.size

_PART_OFFSET: Final = PAGE_BYTES - PART_HEADER.size
_DATA: Final = DataType.DATA
_DATA_CODE: Final = int(DataType.DATA)
_TYPES: Final = {int(data_type): data_type for data_type in DataType}

Piece = bytes | memoryview


@final
class Page:
    """One page that was read.

    Attributes:
        data_type: data, or the kind of event.
        memory: the stored bytes; of a compressed page with their `PART_HEADER`.
        original_bytes: decompressed size; 0 if not compressed.
        offset: where it starts in the file; -1 for a partial page.
    """

    __slots__ = ("data_type", "file", "memory", "offset", "original_bytes")

    def __init__(self, data_type: DataType, memory: memoryview, original_bytes: int, file: int, offset: int) -> None:
        self.data_type = data_type
        self.memory = memory
        self.original_bytes = original_bytes
        self.file = file
        self.offset = offset

    @property
    def stored_bytes(self) -> int:
        """Its size in the file."""
        return len(self.memory) + (_PART_OFFSET if self.original_bytes else PAGE_BYTES)

    @property
    def length(self) -> int:
        """Bytes of records (or of an event), uncompressed."""
        return self.original_bytes or len(self.memory)


def paginate(buffers: Iterable[Buffer], page_bytes: int) -> Iterator[tuple[DataType, list[memoryview], int]]:
    """Yields (data type, pieces, bytes) of each page, in order: data as full pages, each event in its own page.

    Args:
        buffers: buffers of one subpartition.
        page_bytes: maximum bytes of records in a page: the size of a network buffer.
    """
    pieces: list[memoryview] = []
    size = 0
    for buffer in buffers:
        if buffer.data_type is not _DATA:
            if pieces:
                yield _DATA, pieces, size
                pieces, size = [], 0
            memory = buffer.contiguous()
            yield buffer.data_type, [memory], len(memory)
            continue
        for whole in buffer.pieces or (buffer.memory,):
            rest = whole
            while len(rest) > page_bytes - size:
                room = page_bytes - size
                pieces.append(rest[:room])
                yield _DATA, pieces, page_bytes
                rest = rest[room:]
                pieces, size = [], 0
            if rest:
                pieces.append(rest)
                size += len(rest)
            if size == page_bytes:  # at once, so that pages of full buffers have no empty second piece
                yield _DATA, pieces, size
                pieces, size = [], 0
    if pieces:
        yield _DATA, pieces, size


def encode_page(data_type: DataType, pieces: list[memoryview], length: int, *, compressed: bool) -> list[Piece]:
    """Encodes a page as pieces to write."""
    if compressed and data_type is _DATA:
        block = compress(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if block is not None:
            return [PAGE.pack(data_type, len(block), length, part_crc32(block, length)), block]
    crc32 = _seed(data_type)
    for piece in pieces:
        crc32 = crc.crc32(piece, crc32)
    return [PAGE.pack(data_type, length, 0, crc32), *pieces]


def split_pages(block: memoryview, pages: list[Page], *, max_bytes: int, name: str, file: int, offset: int) -> int:
    """Appends the complete pages at the start of a block. Returns the number of bytes they take.

    Args:
        block: bytes of a data file, from the start of a page on.
        pages: receives the pages.
        max_bytes: size limit of a page's body, and of its decompressed bytes.
        name: path of the file, for error texts.
        file: number of the file.
        offset: offset of the block in the file.

    Raises:
        PartitionDamaged: the bytes are not pages, or a checksum does not match.
    """
    position = 0
    end = len(block)
    unpack = PAGE.unpack_from
    while position + PAGE_BYTES <= end:
        code, stored, original, crc32 = unpack(block, position)
        data_type = _TYPES.get(code)
        if data_type is None or stored > max_bytes or original > max_bytes or (original and code != _DATA_CODE):
            raise PartitionDamaged(
                f"{name}: no page at byte {offset + position} (type {code}, {stored} bytes, {original} decompressed):"
                " the file is damaged, and its producer has to run again"
            )
        start = position + PAGE_BYTES
        stop = start + stored
        if stop > end:
            break
        if crc.crc32(block[start:stop], original or _seed(data_type)) != crc32:
            raise PartitionDamaged(
                f"{name}: the checksum of the page of {stored} bytes at byte {offset + position} does not match:"
                " the file is damaged, and its producer has to run again"
            )
        memory = block[position + _PART_OFFSET if original else start : stop]
        pages.append(Page(data_type, memory, original, file, offset + position))
        position = stop
    return position


def _seed(data_type: DataType) -> int:
    return (data_type - _DATA_CODE) << 25
