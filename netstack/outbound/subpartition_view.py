"""What others see of a subpartition: its one reader (a `BufferSource`), and snapshots.

Takes: a `ResultSubpartition`. Gives: its buffers to whoever sends or reads them, until either side is released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from ..buffer.buffer import Allowance, Buffer
from ..errors import ErrorCode

if TYPE_CHECKING:
    from .subpartition import ResultSubpartition


@dataclass(frozen=True, slots=True)
class SubpartitionStatistics:
    """A snapshot of one subpartition.

    Attributes:
        queued_buffers: elements in the queue: events, data buffers, and the one that is still being written.
        queued_bytes: in them, as far as they were written and not taken.
        backlog_buffers: data buffers that may be promised to the consumer.
        buffers_added: elements ever added.
        buffers_sent: elements ever taken, the next sequence number.
        bytes_sent: bytes ever taken.
        is_blocked: whether it waits for a resume.
        is_finished: whether its end was added.
        is_consumed: whether its consumer is gone or has read the end.
        credit: data buffers its consumer has room for; None of a local consumer, and before one came.
    """

    queued_buffers: int
    queued_bytes: int
    backlog_buffers: int
    buffers_added: int
    buffers_sent: int
    bytes_sent: int
    is_blocked: bool
    is_finished: bool
    is_consumed: bool
    credit: int | None = None


@final
class SubpartitionView:
    """The read end of one subpartition (a `BufferSource`)."""

    __slots__ = ("_released", "_subpartition", "is_available", "poll")

    def __init__(self, subpartition: ResultSubpartition) -> None:
        self._subpartition = subpartition
        self._released = False
        # Bound methods: a view is polled once a buffer, and a second call would double that cost.
        self.poll = subpartition.poll
        self.is_available = subpartition.is_available

    def backlog_buffers(self) -> int:
        """Data buffers that wait and may be promised."""
        return self._subpartition.backlog_buffers()

    def queued_buffers(self) -> int:
        """Elements in the queue."""
        return self._subpartition.queued_buffers()

    def readable(self) -> tuple[int, int]:
        """See `BufferSource.readable`."""
        return self._subpartition.readable()

    def resume(self) -> None:
        """Goes on after a blocking event."""
        self._subpartition.resume()

    def time_out_barrier(self) -> None:
        """See `BufferSource.time_out_barrier`."""
        self._subpartition.time_out_barrier()

    def acknowledge_end_of_data(self) -> None:
        """The consumer has processed every record."""
        self._subpartition.on_acknowledged()

    def release(self) -> None:
        """The consumer will read no more; idempotent."""
        if not self._released:
            self._released = True
            self._subpartition.on_view_released()

    @property
    def has_priority(self) -> bool:
        """Whether the next element is a priority event."""
        return self._subpartition.has_priority

    def set_buffer_size(self, size_bytes: int) -> None:
        """See `BufferSource.set_buffer_size`."""
        self._subpartition.set_buffer_size(size_bytes)

    def take_empty(self) -> Buffer | None:
        """See `BufferSource.take_empty`."""
        return self._subpartition.take_empty()

    def attach_credit(self, credit: Allowance) -> None:
        """See `BufferSource.attach_credit`."""
        self._subpartition.attach_credit(credit)

    @property
    def failure(self) -> str | None:
        """Why the producer failed; None while it did not."""
        return self._subpartition.failure

    @property
    def failure_code(self) -> ErrorCode:
        """See `BufferSource.failure_code`."""
        return ErrorCode.PRODUCER_FAILED

    @property
    def is_released(self) -> bool:
        """Whether this view, or its subpartition, is gone."""
        return self._released or self._subpartition.is_released
