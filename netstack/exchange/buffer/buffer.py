"""Reference-counted network buffers, and the interface that a subpartition offers to its reader.

Takes: segments from a pool, or heap memory for events. Gives: `Buffer`s to the sender, the gates and the deserialisers.

Rules: a buffer starts with one reference; `retain` adds one, `recycle` drops one. At zero the memory returns to its
owner, exactly once. Buffers are read-only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, final

from ...base.errors import ErrorCode, LocalProtocolError
from ...base.events import DataType
from .segment import Segment


class BufferOwner(Protocol):
    """The owner of a buffer's memory."""

    def reclaim(self, buffer: Buffer) -> None:
        """Called once, when the last reference to `buffer` is dropped."""


class Buffer:
    """A read-only view of memory that is released exactly once.

    Attributes:
        memory: the readable bytes; of a buffer with several pieces only the first: use `contiguous`.
        pieces: all pieces; None for an ordinary buffer, which has one.
        length: readable bytes in all pieces.
        data_type: data, or the kind of event.
        backlog: data buffers behind it at the producer, as announced to the consumer.
        more_available: whether another element was available when this one was taken.
        next_is_event: whether that element is an event, which needs no credit.
        segment: its pool memory; None for heap memory.
        is_floating: received buffers: whether it occupies one of the gate's floating buffers.
        channel_index: received buffers: the index of its channel in the gate.
        buffers: network buffers that it stands for: 1, or those of a run (`lent.LentPart`,
            `credit.receiving.LandedBuffers`).
    """

    __slots__ = (
        "_owner",
        "_references",
        "backlog",
        "buffers",
        "channel_index",
        "data_type",
        "is_floating",
        "length",
        "memory",
        "more_available",
        "next_is_event",
        "pieces",
        "segment",
        "sequence",
    )

    def __init__(
        self,
        memory: memoryview,
        length: int,
        data_type: DataType,
        owner: BufferOwner | None,
        segment: Segment | None = None,
        is_floating: bool = False,
    ) -> None:
        self.memory = memory
        self.length = length
        self.data_type = data_type
        self._owner = owner
        self._references = 1
        self.segment = segment
        self.is_floating = is_floating
        self.pieces: tuple[memoryview, ...] | None = None
        self.sequence = 0
        self.backlog = 0
        self.more_available = False
        self.next_is_event = False
        self.channel_index = 0
        self.buffers = 1

    def retain(self) -> Buffer:
        """Adds a reference, which the caller must drop with `recycle`."""
        if self._references <= 0:
            raise LocalProtocolError(f"{self!r} is already recycled; call retain() before the last recycle()")
        self._references += 1
        return self

    def recycle(self) -> None:
        """Drops a reference; the last one returns the memory to its owner.

        Raises:
            LocalProtocolError: all references were dropped before.
        """
        self._references -= 1
        if self._references == 0:
            self._reclaim()
        elif self._references < 0:
            raise LocalProtocolError(f"{self!r} was recycled more often than retained")

    def _reclaim(self) -> None:
        """Returns the memory after the last reference was dropped."""
        if self._owner is not None:
            self._owner.reclaim(self)

    def contiguous(self) -> memoryview:
        """All readable bytes as one block; a buffer of several pieces is copied."""
        if self.pieces is None:
            return self.memory
        return memoryview(b"".join(self.pieces))

    def __repr__(self) -> str:
        return f"<Buffer {self.data_type.name} {self.length} bytes, {self._references} references>"


@final
class PartOwner:
    """The owner of buffers over parts of `whole`, each of which holds one reference to it (a `BufferOwner`)."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Buffer) -> None:
        self._whole = whole

    def reclaim(self, buffer: Buffer) -> None:
        """Drops the reference of one part."""
        self._whole.recycle()


class Allowance(Protocol):
    """The credit of a source's consumer."""

    available: int
    """Data buffers that may be sent."""

    @property
    def is_on_demand(self) -> bool:
        """Whether it reserves buffers only for the announced backlog, because it has no exclusive buffers."""


class BufferSource(Protocol):
    """The read end of a subpartition, used by senders and local input channels."""

    def poll(self, most: int = 1, room_bytes: int = 0) -> Buffer | None:
        """Takes the next buffer; None when none is available.

        Buffers that were queued together may be taken together: at most `most`, and as many as begin in `room_bytes`.
        """

    def is_available(self, *, has_credit: bool) -> bool:
        """Whether `poll` would return a buffer; without credit only events count."""

    def backlog_buffers(self) -> int:
        """Data buffers in the queue that may be announced to the consumer."""

    def queued_buffers(self) -> int:
        """Number of elements in the queue, for metrics."""

    def readable(self) -> tuple[int, int]:
        """Number of buffers that `poll` would return before it returns None, and their bytes; for metrics."""

    @property
    def has_priority(self) -> bool:
        """Whether the next element is a priority event."""

    def take_empty(self) -> Buffer | None:
        """Takes an empty data buffer with the next sequence number; None where data may not follow now."""

    def attach_credit(self, credit: Allowance) -> None:
        """Attaches the credit of its consumer, when a connection begins to send this source.

        If the credit is on demand, `poll` also returns empty finished data buffers: the consumer has reserved a buffer
        for each announced one, and an empty buffer releases that reservation.
        """

    def set_buffer_size(self, size_bytes: int) -> None:
        """Sets the size that the consumer requests for new buffers, at least 1 (debloating)."""

    def resume(self) -> None:
        """Continues after a blocking event."""

    def time_out_barrier(self) -> None:
        """Makes a queued barrier with a timeout overtake everything in front of it."""

    def acknowledge_end_of_data(self) -> None:
        """Records that the consumer has processed every record; before EndOfData: that it needs no more of them."""

    def release(self) -> None:
        """Ends reading. Idempotent."""

    @property
    def failure(self) -> str | None:
        """Why the producer failed, or why its files cannot be read; None without a failure."""

    @property
    def failure_code(self) -> ErrorCode:
        """The error code of `failure`."""

    @property
    def is_released(self) -> bool:
        """Whether this source or its partition is released."""


Notify = Callable[[], Any]
"""Called when a source becomes readable. Spurious calls are allowed; missing ones are not."""
