"""BufferBuilder appends to a network buffer while BufferConsumer reads it.

Takes: a segment from a `LocalBufferPool`, and framed bytes. Gives: a queue element to a subpartition, and `Buffer`s to
its reader.

Writer and reader run in one thread, so the shared position marker is a plain field and `finished` is current: the
writer announces a buffer when it finishes (DESIGN.md, "Announce on finish"). Three fields make up the protocol:

- `position` is the commit: only bytes below it may be read.
- `limit` is what the per-record path compares with. It equals `capacity` while the buffer's flush is armed. When the
  reader takes the bytes of an unfinished buffer, `limit` drops to `position`. The next record then takes the slow
  path, which arms a new deadline. So the fast path does not read the clock.
- `pen` writes single records behind `position` without committing them (`exchange/record/fast_path`). `settle` commits
  them together. Every other write and every read calls it first, so the delay is not observable.
"""

from __future__ import annotations

from typing import Final, final

from ...base.errors import LocalProtocolError
from ...base.events import DataType
from ..record.fast_path import RecordPen
from ..record.framing import PREFIX_BYTES
from .buffer import Buffer
from .pools import LocalBufferPool
from .segment import Segment

_DATA: Final = DataType.DATA  # looking up an enum's attribute takes 50 ns


@final
class BufferBuilder:
    """The write end of one network buffer.

    References: one for the builder until `close`, one per open consumer, one per built `Buffer`. At zero the segment
    returns to its pool, which credits the subpartition that it was charged to.
    """

    __slots__ = (
        "_has_consumer",
        "_pool",
        "_references",
        "_subpartition",
        "capacity",
        "finished",
        "is_pen_open",
        "limit",
        "memory",
        "pen",
        "position",
        "records",
        "segment",
        "stays_armed",
    )

    def __init__(self, segment: Segment, pool: LocalBufferPool | None, subpartition: int) -> None:
        self.segment = segment
        self.memory = segment.memory
        self.position = 0
        self.pen = RecordPen(segment.memory)
        self.is_pen_open = False
        """Whether the pen may have uncommitted records."""
        self.records = 0
        """Committed records of the pen."""
        self.capacity = self.limit = len(segment.memory)
        self.finished = False
        self.stays_armed = False
        """Whether a later flush round covers bytes written after a read (`exchange/outbound/flush_rounds`)."""
        self._pool = pool
        self._subpartition = subpartition
        self._references = 1
        self._has_consumer = False

    @property
    def written_bytes(self) -> int:
        """Committed bytes plus those of the pen."""
        if not self.is_pen_open:
            return self.position
        written: int = self.pen.written
        return self.position + written

    def append(self, source: bytes | memoryview) -> int:
        """Copies and commits the part of `source` that fits.

        Returns:
            The number of bytes copied.

        Raises:
            LocalProtocolError: the builder is finished.
        """
        if self.finished:
            raise LocalProtocolError("append to a finished BufferBuilder; request a new one from the pool")
        self.settle()
        count = min(len(source), self.capacity - self.position)
        end = self.position + count
        self.memory[self.position : end] = source if count == len(source) else memoryview(source)[:count]
        self.position = end
        return count

    def write(self, framed: memoryview, head: bytes = b"") -> None:
        """Copies and commits `head` and whole records; they must end below `limit`."""
        self.settle()
        start = self.position
        if head:
            self.memory[start : start + len(head)] = head
            start += len(head)
        end = start + len(framed)
        self.memory[start:end] = framed
        self.position = end

    def open_pen(self, payload: bytes | bytearray | memoryview, granted: int) -> bool:
        """Commits the pen's records and writes another one with it, which must end below `limit`.

        Args:
            payload: the record's bytes.
            granted: number of records the pen may write before the next `RecordPen.put`.

        Returns:
            Whether the record fitted; otherwise the pen is closed.
        """
        self.settle()
        if self.position + PREFIX_BYTES + len(payload) >= self.limit:
            return False
        self.is_pen_open = self.pen.open(payload, granted, self.position, self.limit)
        return self.is_pen_open

    def settle(self) -> None:
        """Commits the pen's records and closes it."""
        if self.is_pen_open:
            self.is_pen_open = False
            records: int = self.pen.records
            self.position += self.pen.settle()
            self.records += records

    def trim(self, capacity_bytes: int) -> None:
        """Sets the capacity, between the written bytes and the size of the segment."""
        self.settle()
        armed = self.limit == self.capacity
        self.capacity = min(max(capacity_bytes, self.position), len(self.memory))
        if armed:
            self.limit = self.capacity

    def finish(self) -> int:
        """Marks the buffer as complete; idempotent. Returns the written bytes."""
        self.settle()
        self.finished = True
        self.limit = -1
        return self.position

    def create_consumer(self) -> BufferConsumer:
        """Creates the read end, at the first byte. Allowed once; copy it for further readers."""
        if self._has_consumer:
            raise LocalProtocolError("this BufferBuilder already has a consumer; use BufferConsumer.copy")
        self._has_consumer = True
        self._references += 1
        return BufferConsumer(self, 0)

    def close(self) -> None:
        """Drops the builder's own reference. Call it once, after `finish`."""
        self.drop_reference()

    def add_reference(self) -> None:
        """Adds a reference for another reader."""
        self._references += 1

    def drop_reference(self) -> None:
        """Drops a reference; the last one returns the segment."""
        self._references -= 1
        if self._references == 0:
            if self._pool is not None:
                self._pool.recycle(self.segment, self._subpartition)
        elif self._references < 0:
            raise LocalProtocolError("a BufferBuilder's segment was released twice")

    def reclaim(self, buffer: Buffer) -> None:
        """Drops the reference of a built buffer (`BufferOwner`)."""
        self.drop_reference()


@final
class BufferConsumer:
    """The read end of a builder's buffer. In a broadcast every subpartition has a copy with its own position."""

    __slots__ = ("_builder", "_closed", "_position")
    data_type = _DATA
    buffers = 1
    is_data = True

    def __init__(self, builder: BufferBuilder, position: int) -> None:
        self._builder = builder
        self._position = position
        self._closed = False

    @property
    def is_finished(self) -> bool:
        """Whether the writer has finished it."""
        return self._builder.finished

    @property
    def unread_bytes(self) -> int:
        """Bytes written since the last `build`."""
        return self._builder.written_bytes - self._position

    def has_data(self) -> bool:
        """Whether bytes were written since the last `build`."""
        builder = self._builder
        return builder.written_bytes > self._position

    def build(self) -> Buffer | None:
        """The bytes written since the last call, as a buffer; None without any."""
        if self._closed:
            raise LocalProtocolError("build on a closed BufferConsumer")
        builder = self._builder
        builder.settle()
        start = self._position
        end = builder.position
        if not builder.finished and not builder.stays_armed:
            builder.limit = end  # the next record is the first unflushed one and must arm the flush again
        if start == end:
            return None
        self._position = end
        builder._references += 1
        memory = builder.memory
        return Buffer(
            memory if end - start == len(memory) else memory[start:end],
            end - start,
            _DATA,
            builder,
            builder.segment,
        )

    def snapshot(self) -> bytes:
        """A copy of the bytes not yet built."""
        self._builder.settle()
        return bytes(self._builder.memory[self._position : self._builder.position])

    def copy(self) -> BufferConsumer:
        """A consumer at the same position, with its own reference."""
        self._builder.add_reference()
        return BufferConsumer(self._builder, self._position)

    def close(self) -> None:
        """Drops its reference. Idempotent."""
        if not self._closed:
            self._closed = True
            self._builder.drop_reference()
