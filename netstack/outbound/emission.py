"""A run of framed bytes on its way into one slot of a writer, and the pieces it may be made of.

Takes: a source of bytes, or a cursor over pieces where they lie. Gives: filled builders and lent buffers, as far as
there are buffers; the rest when it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from ..buffer.lent import LentBuffer
from ..record.framing import LENGTH
from .open_buffers import KICK_BUFFERS, OpenBuffers

Rows = npt.NDArray[np.uint8]
Payload = bytes | bytearray | memoryview

SMALL_PIECE_BYTES: Final = 1024
"""Pieces below this may as well be copied."""


class Emission:
    """A run of framed bytes on its way into one slot; may stop for want of a buffer and go on later."""

    __slots__ = ("_buffers", "_cursor", "_lent", "_offset", "_opened_at", "_record_bytes", "_slot", "_source", "_total")

    def __init__(
        self,
        buffers: OpenBuffers,
        slot: int,
        total: int,
        record_bytes: int,
        source: Callable[[int, int, memoryview], None] | None,
        cursor: PieceCursor | None,
        lent: list[LentBuffer] | None,
    ) -> None:
        """Takes either a source, whose bytes are copied, or a cursor, whose pieces are queued where they lie.

        Args:
            buffers: whose builders are filled.
            slot: which of them.
            total: framed bytes in all.
            record_bytes: framed bytes of one record: where the emission may be cut short.
            source: writes a range of the bytes into memory.
            cursor: hands out pieces.
            lent: where buffers over the cursor's pieces are noted, if their owner wants them back.
        """
        self._buffers = buffers
        self._slot = slot
        self._total = total
        self._record_bytes = record_bytes
        self._source = source
        self._cursor = cursor
        self._lent = lent
        self._offset = 0
        self._opened_at = -1  # where the last buffer that it took begins

    def advance(self) -> bool:
        """Goes on as far as there are buffers. Returns whether it is complete."""
        return self._copy() if self._source is not None else self._lend()

    @property
    def has_taken_buffer(self) -> bool:
        """Whether the record in progress took a buffer; not if its first part fitted into one that was open before."""
        begun_at = self._offset - self._offset % self._record_bytes
        return begun_at <= self._opened_at < self._offset

    def cut(self) -> bytes:
        """The bytes that complete the record in progress; the emission is over."""
        offset, self._total = self._offset, self._offset
        torn = offset % self._record_bytes
        if not torn:
            return b""
        missing = self._record_bytes - torn
        if self._source is not None:
            rest = bytearray(missing)
            self._source(offset, offset + missing, memoryview(rest))
            return bytes(rest)
        assert self._cursor is not None
        return b"".join(self._cursor.take(missing))

    def _copy(self) -> bool:
        buffers, slot, source = self._buffers, self._slot, self._source
        assert source is not None
        builders = buffers.builders
        offset, total = self._offset, self._total
        while offset < total:
            builder = builders[slot]
            if builder.run:
                builder.settle()
            position = builder.position
            room, left = builder.capacity - position, total - offset
            if room < left and builder.capacity < len(builder.memory):
                room = self._make_room(offset)
            count = min(room, left)
            if count <= 0:
                if not buffers.open(slot):
                    self._offset = offset
                    return False
                self._opened_at = offset
                continue
            source(offset, offset + count, builder.memory[position : position + count])
            builder.position = position + count
            offset += count
            if position + count == builder.capacity:
                buffers.finish(slot)
        self._offset = offset
        return True

    def _lend(self) -> bool:
        """Queues whole buffers where they lie; what does not fill one is copied, so that frames are full.

        Where the consumer asked for smaller buffers, one still holds at least what is left of the record it begins
        with.
        """
        buffers, slot, cursor = self._buffers, self._slot, self._cursor
        assert cursor is not None
        pool = buffers.partition.pool
        counters = buffers.partition.counters
        segment_bytes = pool.segment_size_bytes
        subpartition = buffers.partition.subpartitions[slot]
        told = None if self._lent is None else buffers.on_lent_back
        while self._offset < self._total:
            builder = buffers.builders[slot]
            if builder.run:
                builder.settle()
            left = self._total - self._offset
            size, at_once = segment_bytes, KICK_BUFFERS
            if subpartition.buffer_size < size:
                size, at_once = min(size, max(subpartition.buffer_size, self._record_left(self._offset))), 1
            if builder.position or left < size:
                room = builder.capacity - builder.position
                if room < left and builder.capacity < len(builder.memory):
                    room = self._make_room(self._offset)
                count = min(room, left)
                if count <= 0:
                    if not buffers.open(slot):
                        return False
                    self._opened_at = self._offset
                    continue
                position = builder.position
                for piece in cursor.take(count):
                    builder.memory[position : position + len(piece)] = piece
                    position += len(piece)
                builder.position = position
                self._offset += count
                if builder.position == builder.capacity:
                    buffers.finish(slot)
                continue
            segments = buffers.acquire_many(slot, min(left // size, at_once))
            if not segments:
                return False
            elements = [LentBuffer(cursor.take(size), size, segment, pool, slot, told) for segment in segments]
            count = len(elements)
            self._opened_at = self._offset + (count - 1) * size
            self._offset += count * size
            if self._lent is not None:
                self._lent += elements
            counters.buffers += count
            counters.bytes += count * size
            counters.slots[slot] += count * size
            counters.flushes_full += count
            subpartition.add_finished(elements)
            buffers.count_unkicked(count)
        return True

    def _record_left(self, offset: int) -> int:
        """Framed bytes of the record at `offset`, from there to its end."""
        return self._record_bytes - offset % self._record_bytes

    def _make_room(self, offset: int) -> int:
        """Room in the open buffer, which was kept small and will be full.

        A new one is to hold what is left of the record that comes first; any, the record that its end would cut, when
        there is no buffer for the rest (`OpenBuffers.grow`).
        """
        builder = self._buffers.builders[self._slot]
        position = builder.position
        if not position:
            builder.trim(max(builder.capacity, self._record_left(offset)))
        cut = (offset + builder.capacity - position) % self._record_bytes
        if cut:
            self._buffers.grow(self._slot, builder.capacity + self._record_bytes - cut)
        return builder.capacity - position


class PieceCursor:
    """Takes a stream of pieces apart at arbitrary lengths, without copying."""

    __slots__ = ("_left", "_pieces")

    def __init__(self, pieces: Iterable[Payload]) -> None:
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def take(self, count: int) -> tuple[memoryview, ...]:
        """The next `count` bytes (which are there) as views."""
        taken: list[memoryview] = []
        left = self._left
        while count:
            if not left:
                left = memoryview(next(self._pieces))
                continue
            if len(left) <= count:
                taken.append(left)
                count -= len(left)
                left = _EMPTY
            else:
                taken.append(left[:count])
                left = left[count:]
                count = 0
        self._left = left
        return tuple(taken)


_EMPTY: Final = memoryview(b"")


def framed_rows(rows: Rows) -> Iterator[Payload]:
    """The framed stream of rows in pieces: a prefix, a row, a prefix, a row, ..."""
    prefix = LENGTH.pack(rows.shape[1])
    for row in rows:
        yield prefix
        yield row.data


def is_immutable(piece: Payload) -> bool:
    """Whether nobody will change it, or it is so small that it may as well be copied."""
    return (
        isinstance(piece, bytes) or len(piece) < SMALL_PIECE_BYTES or (isinstance(piece, memoryview) and piece.readonly)
    )
