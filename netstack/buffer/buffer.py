"""A counted window on memory, and what a subpartition offers to its reader.

Takes: segments from a pool, or heap memory for events. Gives: `Buffer`s to the sender, the gates and the deserialisers.

Rules: a buffer starts with one reference; `retain` adds one, `recycle` drops one; at zero its owner takes the memory
back, exactly once. Nobody writes through a buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..errors import ErrorCode, LocalProtocolError
from ..events import DataType
from .segment import Segment


class BufferOwner(Protocol):
    """Takes memory back."""

    def reclaim(self, buffer: Buffer) -> None:
        """Called once, when the last reference to `buffer` is dropped."""


class Buffer:
    """A read-only window that is released exactly once.

    Attributes:
        memory: the readable bytes. For a buffer of several pieces it is the first; use `contiguous`.
        pieces: all pieces, or None for the ordinary buffer of one.
        length: readable bytes over all pieces.
        data_type: data, or which kind of event.
        sequence: number of this buffer on its channel.
        backlog: data buffers that wait behind it at the producer, as promised to the consumer.
        more_available: whether the subpartition had another element ready when this one was taken.
        next_is_event: whether that element is an event, which costs no credit.
        segment: the pool memory behind it, None for heap memory.
        is_floating: received buffers: whether its place came from the gate's floating buffers.
        channel_index: received buffers: which channel of the gate it came from.
    """

    __slots__ = (
        "_owner",
        "_references",
        "backlog",
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

    def retain(self) -> Buffer:
        """Adds a reference; the caller owes one more `recycle`."""
        if self._references <= 0:
            raise LocalProtocolError(f"{self!r} was recycled already; retain it while you hold it")
        self._references += 1
        return self

    def recycle(self) -> None:
        """Drops a reference; the last one gives the memory back to its owner.

        Raises:
            LocalProtocolError: there was none left.
        """
        self._references -= 1
        if self._references == 0:
            self._reclaim()
        elif self._references < 0:
            raise LocalProtocolError(f"{self!r} was recycled more often than retained")

    def _reclaim(self) -> None:
        """The last reference is gone."""
        if self._owner is not None:
            self._owner.reclaim(self)

    def contiguous(self) -> memoryview:
        """All readable bytes as one block; copies only a buffer of several pieces."""
        if self.pieces is None:
            return self.memory
        return memoryview(b"".join(self.pieces))

    def __repr__(self) -> str:
        return f"<Buffer {self.data_type.name} {self.length} bytes, {self._references} references>"


class Allowance(Protocol):
    """What the consumer of a source allows to be sent."""

    available: int
    """Data buffers it has room for."""
    is_on_demand: bool
    """Whether it reserves room only for what waits, because it has no buffers of its own."""


class BufferSource(Protocol):
    """The read end of a subpartition: what a sender and a local input channel see of it."""

    def poll(self) -> Buffer | None:
        """The next buffer, or None when nothing may be taken now."""

    def is_available(self, *, has_credit: bool) -> bool:
        """Whether `poll` would return something; without credit only events count."""

    def backlog_buffers(self) -> int:
        """Data buffers that wait and may be promised."""

    def queued_buffers(self) -> int:
        """Elements in the queue, for metrics."""

    def readable(self) -> tuple[int, int]:
        """Elements `poll` would return, one after the other, before it returns None, and their bytes; for metrics."""

    @property
    def has_priority(self) -> bool:
        """Whether the next element is a priority event."""

    def take_empty(self) -> Buffer | None:
        """A data buffer without bytes in its place among the others; None where none may come now."""

    def attach_credit(self, credit: Allowance) -> None:
        """A connection carries this source; `credit` is what its consumer allows.

        When that is given on demand, finished data buffers without bytes are returned by `poll` too: the consumer has
        reserved a buffer for each it was promised, and the empty ones set theirs free.
        """

    def set_buffer_size(self, size_bytes: int) -> None:
        """How much the consumer would like a buffer begun from now on to hold, at least 1 (debloating)."""

    def resume(self) -> None:
        """Goes on after a blocking event."""

    def time_out_barrier(self) -> None:
        """Has a barrier with a timeout that waits overtake what is in front of it."""

    def acknowledge_end_of_data(self) -> None:
        """The consumer has processed every record."""

    def release(self) -> None:
        """The consumer will read no more; idempotent."""

    @property
    def failure(self) -> str | None:
        """Why the producer failed, or why its files cannot be read; None while neither is so."""

    @property
    def failure_code(self) -> ErrorCode:
        """Which of the two."""

    @property
    def is_released(self) -> bool:
        """Whether this source, or the partition behind it, is gone."""


Notify = Callable[[], Any]
"""Told that a source went from nothing to read to something to read. May be called spuriously; never too rarely."""
