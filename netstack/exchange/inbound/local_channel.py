"""LocalInputChannel: an input channel that reads a partition of the same TaskManager, directly from its queue.

Takes: a `BufferSource`. Gives: its buffers to the gate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ...base.errors import ChannelFailed, ErrorCode, channel_error
from ...base.events import Alignment, CheckpointBarrier, DataType, decode_event
from ...base.ids import ChannelDescriptor
from ..buffer.buffer import Buffer, BufferSource
from .capture import InputCapture
from .gate import SingleInputGate
from .statistics import ChannelStatistics

_DATA: Final = DataType.DATA
_BARRIER_TYPES: Final = (DataType.PRIORITY_EVENT, DataType.ALIGNED_BARRIER, DataType.TIMEOUTABLE_ALIGNED_BARRIER)


@final
class LocalInputChannel:
    """An input channel that reads a partition of the same TaskManager.

    It needs no credit, no wire format and no copy. Buffers stay charged to the producer until they are recycled.
    """

    __slots__ = (
        "_buffer_size",
        "_buffers",
        "_bytes",
        "_capture",
        "_error",
        "_gate",
        "_released",
        "_view",
        "index",
        "is_enqueued",
        "is_finished",
        "is_first",
        "partition_id",
        "subpartition",
        "subpartitions",
        "withdraw",
    )

    def __init__(self, gate: SingleInputGate, index: int, descriptor: ChannelDescriptor) -> None:
        """Creates the channel at an index of a gate."""
        self.index = index
        self.is_enqueued = False
        self.is_first = False
        self.is_finished = False
        self.partition_id = descriptor.partition_id
        self.subpartition = descriptor.subpartition
        self.subpartitions = descriptor.subpartitions
        self.withdraw: Callable[[], None] | None = None
        """Cancels the request for the view."""
        self._gate = gate
        self._view: BufferSource | None = None
        self._buffer_size = 0  # requested size, perhaps before there is a view; 0: none
        self._error: Exception | None = None
        self._released = False
        self._capture: InputCapture | None = None
        self._buffers = 0
        self._bytes = 0

    def __str__(self) -> str:
        return f"local channel ({self.partition_id!r} subpartition {self.subpartition})"

    def on_data_available(self) -> None:
        """Puts the channel in line: the subpartition has data, or was released."""
        if self.has_priority:
            self._gate.enqueue_first(self)
        else:
            self._gate.enqueue(self)

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        return self._view is not None and self._view.has_priority

    def on_view(self, view: BufferSource) -> None:
        """Takes the view, when the partition exists."""
        if self._released:
            view.release()
            return
        self._view = view
        if self._buffer_size:
            view.set_buffer_size(self._buffer_size)
        if view.is_released or view.is_available(has_credit=True):
            self.on_data_available()

    def fail(self, error: Exception) -> None:
        """Fails the channel: the next poll raises."""
        if self._error is None and not self._released:
            self._error = error
            if isinstance(error, ChannelFailed):
                error.partition = self.partition_id
            self._gate.enqueue(self)

    def poll(self) -> Buffer | None:
        """The next buffer.

        Raises:
            ProducerFailed: with the producer's cause.
            PartitionNotFound: the partition was released.
        """
        view = self._view
        if view is None:
            if self._error is not None:
                raise self._error
            return None
        buffer = view.poll()
        if buffer is None:
            if view.is_released and not self._released:
                failure = view.failure
                if failure is not None:
                    lost = channel_error(view.failure_code, failure, channel=str(self))
                else:
                    lost = channel_error(ErrorCode.PARTITION_NOT_FOUND, "the partition was released", channel=str(self))
                lost.partition = self.partition_id
                raise lost
            return None
        if buffer.data_type is _DATA:
            self._buffers += 1
            self._bytes += buffer.length
            if self._capture is not None and self._capture.is_open:
                self._capture.add(buffer.contiguous())
        elif buffer.data_type in _BARRIER_TYPES:
            event = decode_event(buffer.memory)
            if isinstance(event, CheckpointBarrier) and event.alignment is not Alignment.AT_LEAST_ONCE:
                self._captured().on_barrier(event.checkpoint_id, buffer.sequence)
        return buffer

    def resume(self) -> None:
        """Lets the producer continue after a blocking event."""
        if self._view is not None:
            self._view.resume()

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Requests this size for new buffers from the producer."""
        self._buffer_size = size_bytes
        if self._view is not None:
            self._view.set_buffer_size(size_bytes)

    def widen(self, window: int) -> None:
        """Nothing: a local channel has no credit."""

    def measure(self) -> tuple[int, int]:
        """Returns the bytes of data polled so far, and the buffers queued at the producer; O(1)."""
        return self._bytes, 0 if self._view is None or self._released else self._view.queued_buffers()

    def queued_events(self) -> tuple[list[tuple[bytes, int]], int]:
        """Returns nothing: what is queued is in the producer's queue, and counted there."""
        return [], 0

    def start_capture(self, checkpoint_id: int, unconsumed: bytes) -> bool:
        """Starts to keep data for a checkpoint: only later data, since the producer keeps its queue."""
        return self._captured().start(checkpoint_id, unconsumed, ())

    def take_capture(self, checkpoint_id: int) -> bytes:
        """Ends the capture when the last barrier arrived or the checkpoint was aborted; returns the data."""
        return b"" if self._capture is None else self._capture.take(checkpoint_id)

    def prioritize(self, sequence: int) -> None:
        """Makes the announced barrier overtake the producer's queue."""
        if self._view is not None:
            self._view.time_out_barrier()

    def _captured(self) -> InputCapture:
        if self._capture is None:
            self._capture = InputCapture()
        return self._capture

    def acknowledge_end_of_data(self) -> None:
        """Records at the producer that every record was processed."""
        if self._view is not None:
            self._view.acknowledge_end_of_data()

    def release(self) -> None:
        """Ends reading: the producer counts this subpartition as consumed. Idempotent."""
        if not self._released:
            self._released = True
            if self.withdraw is not None:
                self.withdraw()
            if self._view is not None:
                self._view.release()

    def statistics(self) -> ChannelStatistics:
        """A snapshot; O(queue)."""
        view = None if self._released else self._view
        queued_buffers, queued_bytes = (0, 0) if view is None else view.readable()
        return ChannelStatistics(
            channel_index=self.index,
            is_local=True,
            partition_id=self.partition_id,
            subpartition=self.subpartition,
            queued_buffers=queued_buffers,
            queued_bytes=queued_bytes,
            buffers=self._buffers,
            bytes=self._bytes,
            polled_buffers=self._buffers,
            polled_bytes=self._bytes,
            exclusive=0,
            free_exclusive=0,
            free_floating=0,
            unannounced_credit=0,
            announced_credit=0,
            announcements=0,
            backlog_announcements=0,
            sender_backlog=0 if view is None else view.queued_buffers() - queued_buffers,
            sender_expected=0,
            is_finished=self.is_finished,
        )
