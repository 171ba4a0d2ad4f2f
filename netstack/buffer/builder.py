"""Append at one end while the other end reads: BufferBuilder, BufferConsumer, and the finished kinds of queue element.

Takes: a segment from a `LocalBufferPool`, and framed bytes. Gives: queue elements to a subpartition, `Buffer`s to its
reader.

Writer and reader run in one thread, so the shared position marker is a plain field, and `finished` is read live: the
writer announces a buffer when it finishes (DESIGN.md, "Announce on finish"). What remains of the classical protocol:

- `position` is the commit: a byte below it may be read, one at or above it may not.
- `limit` is what the per-record path compares with. It equals `capacity` while the buffer's flush is armed; when the
  reader takes the bytes of an unfinished buffer it drops to `position`, which sends the next record through the slow
  path, where a new deadline is armed. So the fast path needs no question about time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol, final

from ..errors import LocalProtocolError
from ..events import CheckpointBarrier, DataType, encode_event
from .buffer import Buffer
from .pool import LocalBufferPool
from .segment import Segment

_DATA: Final = DataType.DATA  # an enum's attribute costs 50 ns a look-up
_GONE: Final = memoryview(b"")


class QueueElement(Protocol):
    """What waits in a subpartition's queue."""

    data_type: DataType

    @property
    def is_data(self) -> bool:
        """Whether it is a data buffer; a plain attribute where it is asked for every buffer."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be appended."""

    @property
    def unread_bytes(self) -> int:
        """How many bytes `build` would return, for metrics."""

    def has_data(self) -> bool:
        """Whether `build` would return bytes."""

    def build(self) -> Buffer | None:
        """The bytes since the last call, with a reference of their own; None when there are none."""

    def snapshot(self) -> bytes:
        """A copy of the bytes not yet built."""

    def close(self) -> None:
        """Drops this element's reference, once."""


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
        "limit",
        "memory",
        "position",
        "segment",
    )

    def __init__(self, segment: Segment, pool: LocalBufferPool, subpartition: int) -> None:
        self.segment = segment
        self.memory = segment.memory
        self.position = 0
        self.capacity = self.limit = len(segment.memory)
        self.finished = False
        self._pool = pool
        self._subpartition = subpartition
        self._references = 1
        self._has_consumer = False

    @property
    def writable_bytes(self) -> int:
        """Room left."""
        return self.capacity - self.position

    def append(self, source: bytes | memoryview) -> int:
        """Copies and commits as much of `source` as fits.

        Returns:
            The number of bytes taken; the rest stays with the caller.

        Raises:
            LocalProtocolError: the builder is finished.
        """
        if self.finished:
            raise LocalProtocolError("append to a finished BufferBuilder; request a new one from the pool")
        count = min(len(source), self.capacity - self.position)
        end = self.position + count
        self.memory[self.position : end] = source if count == len(source) else memoryview(source)[:count]
        self.position = end
        return count

    def trim(self, capacity_bytes: int) -> None:
        """Sets the capacity, never below what is written nor above the segment."""
        armed = self.limit == self.capacity
        self.capacity = min(max(capacity_bytes, self.position), len(self.memory))
        if armed:
            self.limit = self.capacity

    def finish(self) -> int:
        """Marks the end; idempotent. Returns the bytes written."""
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
        """Committed since the last `build`."""
        return self._builder.position - self._position

    def has_data(self) -> bool:
        """Whether bytes were committed since the last `build`."""
        return self._builder.position > self._position

    def build(self) -> Buffer | None:
        """The newly committed bytes; never the same byte twice."""
        if self._closed:
            raise LocalProtocolError("build on a closed BufferConsumer")
        builder = self._builder
        start = self._position
        end = builder.position
        if not builder.finished:
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


@final
class LentBuffer(Buffer):
    """A finished buffer over memory that belongs to somebody else until it is sent; queue element and `Buffer` in one.

    Copying a large record into a segment costs as much as sending it. So a large record is queued where it lies, cut to
    the size of network buffers, and each cut *reserves* a segment without touching it: the pool's bounds, the quota and
    back-pressure are those of copied buffers. If the lender needs its memory back early (cancellation, a snapshot),
    `detach` copies the bytes into the reserved segment.
    """

    __slots__ = ("_built", "_is_back", "_on_back", "_pool", "_subpartition")
    is_data = True
    is_finished = True

    def __init__(
        self,
        pieces: tuple[memoryview, ...],
        length: int,
        segment: Segment,
        pool: LocalBufferPool,
        subpartition: int,
        on_back: Callable[[], None] | None = None,
    ) -> None:
        """Queues `length` bytes where they lie.

        Args:
            pieces: the bytes.
            length: how many, over all pieces.
            segment: reserved for `detach`.
            pool: where the segment returns.
            subpartition: who it is charged to.
            on_back: told when the memory is the lender's again because it was sent or dropped.
        """
        super().__init__(pieces[0], length, _DATA, None, segment)
        if len(pieces) > 1:
            self.pieces = pieces
        self._pool = pool
        self._subpartition = subpartition
        self._is_back = False
        self._on_back = on_back
        self._built = False

    @property
    def unread_bytes(self) -> int:
        """All of it, until it is built."""
        return 0 if self._built else self.length

    def has_data(self) -> bool:
        """Until it is built."""
        return not self._built

    def build(self) -> Buffer | None:
        """Itself, once; the queue's reference goes to the caller."""
        if self._built:
            return None
        self._built = True
        return self

    def snapshot(self) -> bytes:
        """A copy of the bytes not yet built."""
        return b"" if self._built else bytes(self.contiguous())

    @property
    def is_back(self) -> bool:
        """Whether the lent memory is the lender's again."""
        return self._is_back

    def detach(self) -> bool:
        """Moves the bytes into the reserved segment, unless they are on their way or back already.

        Returns:
            Whether they are on their way: then whoever sends them must copy the rest.
        """
        if self._is_back:
            return False
        if self._built:
            return True
        assert self.segment is not None
        memory = self.segment.memory
        position = 0
        for piece in self.pieces or (self.memory,):
            memory[position : position + len(piece)] = piece
            position += len(piece)
        self.memory = memory[:position]
        self.pieces = None
        self._is_back = True
        return False

    def close(self) -> None:
        """Dropped from the queue; once it was built, its reference is the reader's."""
        if not self._built:
            self._built = True
            self.recycle()

    def _reclaim(self) -> None:
        assert self.segment is not None
        was_back, self._is_back = self._is_back, True
        self.pieces = None
        self.memory = _GONE
        self._pool.recycle(self.segment, self._subpartition)
        if not was_back and self._on_back is not None:
            self._on_back()


@final
class EventBuffer:
    """A finished element over heap memory, shared by every subpartition it is queued in: an event."""

    __slots__ = ("_built", "_memory", "data_type")
    is_data = False
    is_finished = True

    def __init__(self, data: bytes, data_type: DataType) -> None:
        self.data_type = data_type
        self._memory = memoryview(data)
        self._built = False

    @property
    def unread_bytes(self) -> int:
        """All of it, until it is built."""
        return 0 if self._built else len(self._memory)

    def has_data(self) -> bool:
        """Until it is built."""
        return not self._built

    def build(self) -> Buffer | None:
        """All of it, once."""
        if self._built:
            return None
        self._built = True
        return Buffer(self._memory, len(self._memory), self.data_type, None)

    def snapshot(self) -> bytes:
        """Its bytes."""
        return bytes(self._memory)

    def close(self) -> None:
        """Heap memory needs no returning."""


@final
class BarrierBuffer:
    """A barrier in a queue: tells its age when it leaves, so the time it waited counts. Like `EventBuffer`."""

    __slots__ = ("_added_s", "_built", "barrier", "data_type", "now")
    is_data = False
    is_finished = True

    def __init__(self, barrier: CheckpointBarrier, data_type: DataType, now: Callable[[], float]) -> None:
        """Queues `barrier`, as old as it says at this moment of the clock `now` (monotonic seconds)."""
        self.data_type = data_type
        self.barrier = barrier
        self.now = now
        self._added_s = now()
        self._built = False

    @property
    def unread_bytes(self) -> int:
        """All of it, until it is built."""
        return 0 if self._built else len(self.snapshot())

    def has_data(self) -> bool:
        """Until it is built."""
        return not self._built

    def aged(self) -> CheckpointBarrier:
        """The barrier as old as it is now."""
        waited_ns = int((self.now() - self._added_s) * 1e9)
        return replace(self.barrier, elapsed_ns=self.barrier.elapsed_ns + max(0, waited_ns))

    def build(self) -> Buffer | None:
        """Its bytes, once."""
        if self._built:
            return None
        self._built = True
        data = self.snapshot()
        return Buffer(memoryview(data), len(data), self.data_type, None)

    def snapshot(self) -> bytes:
        """Its bytes as they would leave now."""
        return encode_event(self.aged())

    def close(self) -> None:
        """Heap memory needs no returning."""
