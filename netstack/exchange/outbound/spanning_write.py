"""Writes framed bytes into one slot of a writer, from a batch, a byte source or pieces that are not copied.

Takes: a batch as runs, a source of bytes, or a cursor over pieces. Gives: filled builders and lent buffers while
buffers are available; `advance` continues later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from ..buffer.builder import BufferBuilder
from ..buffer.lent import LentBuffers, PieceCursor
from ..record.framing import LENGTH
from ..record.runs import FramedRuns
from .open_buffers import SEND_BUFFERS, OpenBuffers

Rows = npt.NDArray[np.uint8]
Payload = bytes | bytearray | memoryview

SMALL_PIECE_BYTES: Final = 1024
"""Smaller pieces may be copied."""


class SpanningWrite:
    """Framed bytes that are written into one slot. It stops when no buffer is available, and continues later.

    It may be cut only between *units*: cells of equal length, or runs.
    """

    __slots__ = (
        "_begun_at",
        "_buffers",
        "_cursor",
        "_lent",
        "_offset",
        "_opened_at",
        "_runs",
        "_slot",
        "_source",
        "_total",
        "_unit_bytes",
        "_unit_records",
    )

    def __init__(
        self,
        buffers: OpenBuffers,
        slot: int,
        total: int,
        unit_bytes: int,
        source: Callable[[int, int, memoryview], None] | None,
        cursor: PieceCursor | None,
        lent: list[LentBuffers] | None,
        *,
        unit_records: int = 1,
        runs: FramedRuns | None = None,
    ) -> None:
        """Takes a source or runs, whose bytes are copied, or a cursor, whose pieces are queued without copying.

        Args:
            buffers: the open buffers to fill.
            slot: the slot to write to.
            total: framed bytes in all; 0 for runs, whose length depends on the room in buffers.
            unit_bytes: framed bytes of a unit; 0 for runs.
            source: writes a range of the bytes into memory.
            cursor: returns pieces.
            lent: list for the buffers over memory that its owner needs back.
            unit_records: records in each unit; runs count their own.
            runs: instead of a source.
        """
        self._buffers = buffers
        self._slot = slot
        self._total = total
        self._unit_bytes = unit_bytes
        self._unit_records = unit_records
        self._runs = runs
        self._source = source
        self._cursor = cursor
        self._lent = lent
        self._offset = 0
        self._opened_at = -1  # offset at which the last buffer that it took begins
        self._begun_at = 0  # offset at which the last run begins

    def advance(self) -> bool:
        """Continues while buffers are available. Returns whether it is complete."""
        return self._lend() if self._cursor is not None else self._copy()

    @property
    def has_taken_buffer(self) -> bool:
        """Whether the unit in progress took a buffer; False if its first part fitted into an already open one."""
        offset = self._offset
        if self._runs is None:
            begun_at = offset - offset % self._unit_bytes
        else:
            begun_at = offset if offset == self._total else self._begun_at
        return begun_at <= self._opened_at < offset

    @property
    def begun_records(self) -> int:
        """How many records are written, or will be once the unit in progress is complete."""
        if self._runs is not None:
            return self._runs.begun
        return -(-self._offset // self._unit_bytes) * self._unit_records

    def cut(self) -> bytes:
        """Ends the spanning write; returns the bytes that complete the unit in progress."""
        offset = self._offset
        missing = self._unit_left(offset)
        self._total = offset
        if self._runs is not None:
            self._runs.left = 0
            rest = bytearray(missing)
            self._runs.write(memoryview(rest))
            return bytes(rest)
        if missing == self._unit_bytes:
            return b""
        if self._source is not None:
            rest = bytearray(missing)
            self._source(offset, offset + missing, memoryview(rest))
            return bytes(rest)
        assert self._cursor is not None
        return b"".join(self._cursor.take(missing))

    def _copy(self) -> bool:
        """Copies the bytes into open buffers."""
        buffers, slot, source, runs = self._buffers, self._slot, self._source, self._runs
        builders = buffers.builders
        offset, total = self._offset, self._total
        while offset < total or (runs is not None and runs.left):
            builder = builders[slot]
            builder.settle()
            position = builder.position
            if runs is not None and offset == total and position < builder.capacity:
                self._offset = self._begun_at = offset
                self._total = total = offset + runs.begin(self._room_for_run(builder))
            room, left = builder.capacity - position, total - offset
            if room < left and builder.capacity < len(builder.memory):
                room = self._make_room(offset)
            count = min(room, left)
            if count <= 0:
                self._offset = offset
                if not buffers.open(slot, self.has_taken_buffer):
                    return False
                self._opened_at = offset
                continue
            if runs is not None:
                runs.write(builder.memory[position : position + count])
            elif source is not None:
                source(offset, offset + count, builder.memory[position : position + count])
            builder.position = position + count
            offset += count
            if position + count == builder.capacity:
                buffers.finish(slot)
        self._offset = offset
        return True

    def _lend(self) -> bool:
        """Queues full buffers without copying; copies the bytes that do not fill one, so that frames are full.

        If the consumer requested smaller buffers, a buffer still holds at least the rest of the record at its start.
        """
        buffers, slot, cursor = self._buffers, self._slot, self._cursor
        assert cursor is not None
        segment_bytes = buffers.partition.pool.segment_size_bytes
        subpartition = buffers.partition.subpartitions[slot]
        while self._offset < self._total:
            builder = buffers.builders[slot]
            builder.settle()
            left = self._total - self._offset
            size, at_once = segment_bytes, SEND_BUFFERS
            if subpartition.buffer_size < size:
                size, at_once = min(size, max(subpartition.buffer_size, self._unit_left(self._offset))), 1
            if builder.position or left < size:
                room = builder.capacity - builder.position
                if room < left and builder.capacity < len(builder.memory):
                    room = self._make_room(self._offset)
                count = min(room, left)
                if count <= 0:
                    if not buffers.open(slot, self.has_taken_buffer):
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
            if not segments and (self.has_taken_buffer or buffers.ends_record):
                begins = -(-self._unit_left(self._offset) // size)  # buffers that begin in the record in progress
                segments = buffers.overdraw_many(slot, min(left // size, at_once, begins))
            if not segments:
                return False
            count = len(segments)
            self._opened_at = self._offset + (count - 1) * size
            self._offset += count * size
            run = LentBuffers(cursor.take(count * size), size, segments, buffers.partition.pool, slot)
            if self._lent is not None:
                self._lent.append(run)
            counters = buffers.partition.counters
            counters.buffers += count
            counters.bytes += count * size
            counters.slots[slot] += count * size
            counters.flushes_full += count
            subpartition.add_run(run)
            buffers.count_unsent(count)
        return True

    def _unit_left(self, offset: int) -> int:
        """Framed bytes from `offset` to the end of its unit."""
        return self._unit_bytes - offset % self._unit_bytes if self._runs is None else self._total - offset

    def _room_for_run(self, builder: BufferBuilder) -> int:
        """The maximum length of a run that begins in the open buffer.

        The run ends in this buffer, or in the next one if almost nothing fits. If the capacity was reduced, a single
        record may continue in the next one, as elsewhere.
        """
        room = builder.capacity - builder.position
        assert self._runs is not None
        if not builder.position or builder.capacity < len(builder.memory) or room >= self._runs.least_bytes:
            return room
        return room + len(builder.memory)

    def _make_room(self, offset: int) -> int:
        """Returns the room in the open buffer, whose capacity was reduced; enlarges it if needed.

        An empty buffer must hold the rest of its first unit. Any buffer must hold the unit that its end would cut when
        the pool has no buffer for the rest (`OpenBuffers.grow`).
        """
        builder = self._buffers.builders[self._slot]
        position = builder.position
        if not position:
            builder.trim(max(builder.capacity, self._unit_left(offset)))
        end = offset + builder.capacity - position
        if self._runs is not None:
            left = self._total - end
        else:
            cut = end % self._unit_bytes
            left = self._unit_bytes - cut if cut else 0
        if left > 0:
            self._buffers.grow(self._slot, builder.capacity + left)
        return builder.capacity - position


def framed_rows(rows: Rows) -> Iterator[Payload]:
    """Frames rows as pieces: a prefix, a row, a prefix, a row, ..."""
    prefix = LENGTH.pack(rows.shape[1])
    for row in rows:
        yield prefix
        yield row.data


def is_immutable(piece: Payload) -> bool:
    """Whether a piece cannot change, or is small enough to be copied."""
    return (
        isinstance(piece, bytes) or len(piece) < SMALL_PIECE_BYTES or (isinstance(piece, memoryview) and piece.readonly)
    )
