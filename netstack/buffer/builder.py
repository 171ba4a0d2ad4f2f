"""Append at one end while the other end reads: BufferBuilder and BufferConsumer.

Takes: a segment from a `LocalBufferPool`, and framed bytes. Gives: a queue element to a subpartition, `Buffer`s to its
reader.

Writer and reader run in one thread, so the shared position marker is a plain field, and `finished` is read live: the
writer announces a buffer when it finishes (DESIGN.md, "Announce on finish"). What remains of the classical protocol:

- `position` is the commit: a byte below it may be read, one at or above it may not.
- `limit` is what the per-record path compares with. It equals `capacity` while the buffer's flush is armed; when the
  reader takes the bytes of an unfinished buffer it drops to `position`, which sends the next record through the slow
  path, where a new deadline is armed. So the fast path needs no question about time.
- `pen` writes single records behind `position` that are not committed yet (`record/cells`). They are committed when
  somebody looks (`settle`), together. Whoever writes, or takes what is committed, settles first; so nobody can tell.
"""

from __future__ import annotations

from typing import Final, final

from ..errors import LocalProtocolError
from ..events import DataType
from ..record.cells import Pen
from ..record.framing import PREFIX_BYTES
from .buffer import Buffer
from .local_pool import LocalBufferPool
from .segment import Segment

_DATA: Final = DataType.DATA  # an enum's attribute costs 50 ns a look-up


@final
class BufferBuilder:
    """The writing end of one network buffer.

    References: one for the builder until `close`, one per open consumer, one per built `Buffer`; at zero the segment
    returns to the pool it came from, under the subpartition it was charged to.
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
        self.pen = Pen(segment.memory)
        self.is_pen_open = False
        """Whether the pen may have written since it was settled last."""
        self.records = 0
        """How many records the pen wrote, those it has not settled not counted."""
        self.capacity = self.limit = len(segment.memory)
        self.finished = False
        self.stays_armed = False
        """Whether it is flushed again some time after its bytes were taken, whatever comes."""
        self._pool = pool
        self._subpartition = subpartition
        self._references = 1
        self._has_consumer = False

    @property
    def writable_bytes(self) -> int:
        """Room left."""
        return self.capacity - self.written_bytes

    @property
    def written_bytes(self) -> int:
        """What is in it, with what the pen wrote."""
        if not self.is_pen_open:
            return self.position
        written: int = self.pen.written
        return self.position + written

    def append(self, source: bytes | memoryview) -> int:
        """Copies and commits as much of `source` as fits.

        Returns:
            The number of bytes taken; the rest stays with the caller.

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
        """Copies and commits whole records, and what stands in front of them, which must end below `limit`."""
        self.settle()
        start = self.position
        if head:
            self.memory[start : start + len(head)] = head
            start += len(head)
        end = start + len(framed)
        self.memory[start:end] = framed
        self.position = end

    def open_pen(self, payload: bytes | bytearray | memoryview, granted: int) -> bool:
        """Commits what the pen wrote, and has it write one more record, which must end below `limit`.

        Args:
            payload: of the record.
            granted: how many records may be written until `Pen.put` is asked again.

        Returns:
            Whether the record fitted. If not, the pen is closed.
        """
        self.settle()
        if self.position + PREFIX_BYTES + len(payload) >= self.limit:
            return False
        self.is_pen_open = self.pen.open(payload, granted, self.position, self.limit)
        return self.is_pen_open

    def settle(self) -> None:
        """Commits what the pen wrote, and closes it."""
        if self.is_pen_open:
            self.is_pen_open = False
            records: int = self.pen.records
            self.position += self.pen.settle()
            self.records += records

    def trim(self, capacity_bytes: int) -> None:
        """Sets the capacity, never below what is written nor above the segment."""
        self.settle()
        armed = self.limit == self.capacity
        self.capacity = min(max(capacity_bytes, self.position), len(self.memory))
        if armed:
            self.limit = self.capacity

    def finish(self) -> int:
        """Marks the end; idempotent. Returns the bytes written."""
        self.settle()
        self.finished = True
        self.limit = -1
        return self.position

    def create_consumer(self) -> BufferConsumer:
        """The reading end, from the first byte. Allowed once; further ones come from `BufferConsumer.copy`."""
        if self._has_consumer:
            raise LocalProtocolError("a BufferBuilder has one consumer; copy that one")
        self._has_consumer = True
        self._references += 1
        return BufferConsumer(self, 0)

    def close(self) -> None:
        """Drops the builder's own reference; finish it first. Idempotent through the owner, which forgets it."""
        self.drop_reference()

    def add_reference(self) -> None:
        """One more reader of the memory."""
        self._references += 1

    def drop_reference(self) -> None:
        """One reader fewer; the last one returns the segment."""
        self._references -= 1
        if self._references == 0:
            if self._pool is not None:
                self._pool.recycle(self.segment, self._subpartition)
        elif self._references < 0:
            raise LocalProtocolError("a BufferBuilder's segment was released twice")

    def reclaim(self, buffer: Buffer) -> None:
        """A built buffer came back (`BufferOwner`)."""
        self.drop_reference()


@final
class BufferConsumer:
    """The reading end of a builder's buffer; broadcast gives every subpartition a copy with a position of its own."""

    __slots__ = ("_builder", "_closed", "_position")
    data_type = _DATA
    is_data = True

    def __init__(self, builder: BufferBuilder, position: int) -> None:
        self._builder = builder
        self._position = position
        self._closed = False

    @property
    def is_finished(self) -> bool:
        """Whether the writer is done with it."""
        return self._builder.finished

    @property
    def unread_bytes(self) -> int:
        """Written since the last `build`."""
        return self._builder.written_bytes - self._position

    def has_data(self) -> bool:
        """Whether bytes were committed since the last `build`."""
        builder = self._builder
        return builder.written_bytes > self._position

    def build(self) -> Buffer | None:
        """The newly committed bytes; never the same byte twice."""
        if self._closed:
            raise LocalProtocolError("build on a closed BufferConsumer")
        builder = self._builder
        builder.settle()
        start = self._position
        end = builder.position
        if not builder.finished and not builder.stays_armed:
            builder.limit = end  # the next record is the first unflushed one: it must re-arm the flush
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
        """A consumer at the same position, with a reference of its own."""
        self._builder.add_reference()
        return BufferConsumer(self._builder, self._position)

    def close(self) -> None:
        """Drops its reference; idempotent."""
        if not self._closed:
            self._closed = True
            self._builder.drop_reference()
