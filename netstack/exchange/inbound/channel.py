"""RemoteInputChannel: an input channel whose producer is behind a connection.

Takes: received segments and events from the `ChannelReceiver`. Gives: buffers to the gate, credit to the receiver's
next announcement. `channel_buffers` manages its exclusive and floating buffers.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from ...base.errors import ChannelFailed, RemoteProtocolError
from ...base.events import Alignment, CheckpointBarrier, DataType
from ...base.ids import ChannelDescriptor
from ..buffer.buffer import Buffer
from ..buffer.pools import LocalBufferPool, NetworkBufferPool
from ..buffer.segment import Segment
from ..wire.codec import Inflate
from .capture import InputCapture
from .channel_buffers import NO_QUEUE, ChannelBuffers, ChannelLink
from .gate import SingleInputGate
from .in_band import (
    EVENT_OVERHEAD_BYTES,
    MAX_WAITING_EVENT_BYTES,
    compressed_checkpoint,
    out_of_sequence,
    read_event,
    too_many_events,
    without_credit,
)
from .parts import CompressedBuffer, buffers_of
from .statistics import ChannelStatistics

_DATA: Final = DataType.DATA

TRICKLE_BYTES: Final = 256
"""A last buffer of so few bytes does not announce its credit at once, because its reader polls again soon. An
announcement before the record is delivered would wake the producer first, and delay the record."""


@final
class RemoteInputChannel(ChannelBuffers):
    """An input channel whose producer is behind a connection."""

    __slots__ = (
        "_buffers",
        "_bytes",
        "_capture",
        "_error",
        "_event_bytes",
        "_expected_sequence",
        "_gate",
        "_has_compressed",
        "_priority_count",
        "backlog_announcements",
        "index",
        "is_enqueued",
        "is_finished",
        "is_first",
        "partition_id",
        "peer",
        "subpartition",
        "subpartitions",
    )

    def __init__(
        self,
        gate: SingleInputGate,
        index: int,
        descriptor: ChannelDescriptor,
        *,
        exclusive: list[Segment],
        pool: LocalBufferPool,
        network: NetworkBufferPool,
        credit_based: bool = True,
    ) -> None:
        """Takes its exclusive buffers.

        Args:
            gate: the gate that polls it.
            index: its index in the gate.
            descriptor: what it reads.
            exclusive: its exclusive buffers, which are the initial credit.
            pool: the gate's pool of floating buffers.
            network: the pool to which exclusive buffers return.
            credit_based: whether the producer sends only with credit; if not, data takes buffers when it arrives
                (`uncredited`).
        """
        super().__init__(exclusive, pool, network, credit_based=credit_based)
        self.index = index
        self.is_enqueued = False
        self.is_first = False
        self.is_finished = False
        self.peer = descriptor.address
        self.partition_id = descriptor.partition_id
        self.subpartition = descriptor.subpartition
        self.subpartitions = descriptor.subpartitions
        self.backlog_announcements = 0
        self._gate = gate
        self._priority_count = 0
        self._capture: InputCapture | None = None
        self._has_compressed = False
        self._event_bytes = 0
        self._expected_sequence = 0
        self._error: Exception | None = None
        self._buffers = 0
        self._bytes = 0

    def __str__(self) -> str:
        return f"channel {self.number} ({self.partition_id!r} subpartition {self.subpartition} at {self.peer})"

    @property
    def is_answered(self) -> bool:
        """Whether the producer has sent anything but errors."""
        return bool(self._expected_sequence or self.backlog_announcements)

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        return self._priority_count > 0

    def attach(self, link: ChannelLink, number: int) -> None:
        """Attaches the channel to a connection under a number."""
        self._link = link
        self.number = number

    # From the receiver.

    def on_buffer(self, sequence: int, backlog: int, segment: Segment, length: int) -> Segment:
        """Queues a data buffer that was received in `segment`; returns a free segment in exchange.

        Raises:
            ChannelFailed: wrong sequence number, or no credit; `segment` stays with the caller.
        """
        if sequence != self._expected_sequence:
            raise out_of_sequence(self._expected_sequence, sequence, self)
        is_floating = bool(self._floating)
        if is_floating:
            free = self._floating.pop()
        elif self._exclusive:
            free = self._exclusive.pop()
        else:
            raise without_credit(sequence, self)
        memory = segment.memory
        self._take(
            memory if length == len(memory) else memory[:length], length, segment, is_floating, sequence, backlog
        )
        return free

    def on_small_buffer(self, sequence: int, backlog: int, payload: bytes) -> None:
        """Queues a data buffer on the heap; it occupies one free segment, which stands for its credit.

        Raises:
            ChannelFailed: wrong sequence number, or no credit.
        """
        if sequence != self._expected_sequence:
            raise out_of_sequence(self._expected_sequence, sequence, self)
        is_floating = bool(self._floating)
        if is_floating:
            free = self._floating.pop()
        elif self._exclusive:
            free = self._exclusive.pop()
        else:
            raise without_credit(sequence, self)
        self._take(memoryview(payload), len(payload), free, is_floating, sequence, backlog)

    def _take(
        self, memory: memoryview, length: int, segment: Segment, is_floating: bool, sequence: int, backlog: int
    ) -> None:
        """Queues data that occupies `segment`."""
        buffer = Buffer(memory, length, _DATA, self, segment, is_floating)
        self._expected_sequence = (sequence + 1) & 0xFFFFFFFF  # 32 bits on the wire
        self._buffers += 1
        self._bytes += length
        buffer.sequence = sequence
        if self._capture is not None and self._capture.is_open:
            self._capture.add(memory)
        queue = self._queue
        if queue is NO_QUEUE:
            queue = self._queue = deque()
        queue.append(buffer)
        if len(queue) == 1:
            self._gate.enqueue(self)
        if not length:
            # An empty buffer has nothing to read: its credit returns at once.
            queue.pop()
            buffer.recycle()
        self._backlog = backlog
        wanted = backlog if backlog > self._expected else self._expected
        required = self._required = wanted + self._initial_credit
        self._is_trickle = not wanted and length <= TRICKLE_BYTES
        if self.credit.use() and self._link is not None:
            self._link.schedule_announcement(self)
        if not self._waiting and len(self._exclusive) + len(self._floating) < required:
            self.on_backlog(backlog)

    def on_parts(
        self, sequence: int, backlog: int, body: memoryview, sizes: tuple[int, ...], inflate: Inflate | None
    ) -> None:
        """Queues the data buffers of one frame: several sequence numbers, one credit, one segment.

        Compressed buffers are decompressed one by one in `poll`, so that they need no more memory than others.

        Raises:
            ChannelFailed: wrong sequence number, no credit, or compressed data in a checkpoint.
        """
        if sequence != self._expected_sequence:
            raise out_of_sequence(self._expected_sequence, sequence, self)
        is_floating = bool(self._floating)
        if not self.free_buffers:
            raise without_credit(sequence, self)
        if inflate is not None:
            if self._capture is not None:
                raise compressed_checkpoint(self)
            self._has_compressed = True
        segment = self._floating.pop() if is_floating else self._exclusive.pop()
        length = len(body)
        segment.memory[:length] = body
        self._expected_sequence = (sequence + len(sizes)) & 0xFFFFFFFF
        self._buffers += len(sizes)
        self._bytes += length
        whole = Buffer(segment.memory[:length], length, _DATA, self, segment, is_floating)
        made = buffers_of(whole, sequence, sizes, inflate)
        if self._capture is not None and self._capture.is_open:
            self._capture.add(whole.memory)
        if made:
            if self._queue is NO_QUEUE:
                self._queue = deque()
            was_empty = not self._queue
            self._queue.extend(made)
            if was_empty:
                self._gate.enqueue(self)
        whole.recycle()
        self.on_backlog(backlog)
        if self.credit.use() and self._link is not None:
            self._link.schedule_announcement(self)

    def on_event(self, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        """Queues an in-band event, which occupies no buffer.

        Raises:
            ChannelFailed: wrong sequence number, malformed event, or too many bytes of events in the queue.
        """
        if sequence != self._expected_sequence:
            raise out_of_sequence(self._expected_sequence, sequence, self)
        event = read_event(payload, data_type, backlog, self)
        self._expected_sequence = (sequence + 1) & 0xFFFFFFFF  # 32 bits on the wire
        self._event_bytes += len(payload) + EVENT_OVERHEAD_BYTES
        if self._event_bytes > MAX_WAITING_EVENT_BYTES:
            raise too_many_events(self)
        buffer = Buffer(memoryview(payload), len(payload), data_type, None)
        buffer.sequence = sequence
        if self._queue is NO_QUEUE:
            self._queue = deque()
        if isinstance(event, CheckpointBarrier) and event.alignment is not Alignment.AT_LEAST_ONCE:
            if self._has_compressed:
                raise compressed_checkpoint(self)
            if self._capture is None:
                self._capture = InputCapture()
            self._capture.on_barrier(event.checkpoint_id, sequence)
        if data_type.has_priority:
            self._insert_first(buffer)
        else:
            self._queue.append(buffer)
            if data_type is DataType.TIMEOUTABLE_ALIGNED_BARRIER:
                announcement = Buffer(memoryview(payload), len(payload), DataType.ANNOUNCEMENT, None)
                announcement.sequence = sequence
                self._event_bytes += len(payload) + EVENT_OVERHEAD_BYTES
                self._insert_first(announcement)
            self._gate.enqueue(self)
        if self._on_demand and data_type.blocks_upstream:
            self._release_floating()
        else:
            self.on_backlog(backlog)

    def fail(self, error: Exception) -> None:
        """Fails the channel: `poll` raises the first error, after all received buffers."""
        if self._error is None and not self.is_released and not self.is_finished:
            self._error = error
            if isinstance(error, ChannelFailed):
                error.partition = self.partition_id
            self._gate.enqueue(self)

    # From the gate.

    def poll(self) -> Buffer | None:
        """The next buffer; buffers received before a failure come first."""
        queue = self._queue
        if not queue:
            if self._error is not None:
                raise self._error
            return None
        buffer = queue.popleft()
        if self._has_compressed and isinstance(buffer, CompressedBuffer):
            buffer = self._inflated(buffer)
        if queue:
            buffer.more_available = True
            buffer.next_is_event = queue[0].data_type is not _DATA
        elif self._error is not None:
            buffer.more_available = True  # the gate then polls again, for the error
        if self._event_bytes and buffer.data_type is not _DATA:
            self._event_bytes -= buffer.length + EVENT_OVERHEAD_BYTES
            if buffer.data_type is DataType.PRIORITY_EVENT or buffer.data_type is DataType.ANNOUNCEMENT:
                self._priority_count -= 1
        return buffer

    def resume(self) -> None:
        """Sends a resume, after a blocking event."""
        if self._link is not None and not self.is_released:
            if self._on_demand:
                self.credit.forget()
            self._link.send_resume(self.number)

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Requests this size for new buffers from the producer."""
        if self._link is not None and not self.is_released:
            self._link.request_buffer_size(self.number, size_bytes)

    def measure(self) -> tuple[int, int]:
        """Returns the bytes of data polled so far, and the buffers in use here or at the producer; O(queue)."""
        polled = self._bytes
        for buffer in self._queue:
            if buffer.data_type is _DATA:
                polled -= buffer.length
        at_producer = 0 if self.is_released else self._backlog
        return polled, len(self._queue) + at_producer

    def queued_events(self) -> tuple[list[tuple[bytes, int]], int]:
        """The events that its reader has not polled, each with the bytes of data in front of it; O(queue).

        Returns:
            The events, without announcements, and the bytes of all data in the queue.
        """
        events, ahead_bytes = [], 0
        for buffer in self._queue:
            if buffer.data_type is _DATA:
                ahead_bytes += buffer.length
            elif buffer.data_type is not DataType.ANNOUNCEMENT:
                events.append((bytes(buffer.memory), ahead_bytes))
        return events, ahead_bytes

    def start_capture(self, checkpoint_id: int, unconsumed: bytes) -> bool:
        """Starts to keep the unprocessed data in front of an unaligned barrier.

        Args:
            checkpoint_id: the checkpoint.
            unconsumed: the partial record in the channel's deserializer.

        Returns:
            False if a newer barrier arrived without this one: the checkpoint cannot complete.
        """
        if self._capture is None:
            self._capture = InputCapture()
        return self._capture.start(checkpoint_id, unconsumed, self._queue)

    def take_capture(self, checkpoint_id: int) -> bytes:
        """Ends the capture when the last barrier arrived or the checkpoint was aborted; returns the data."""
        return b"" if self._capture is None else self._capture.take(checkpoint_id)

    def prioritize(self, sequence: int) -> None:
        """Makes the barrier with this sequence number overtake the queue, if it is still queued."""
        for index, buffer in enumerate(self._queue):
            if buffer.sequence == sequence and buffer.data_type is DataType.TIMEOUTABLE_ALIGNED_BARRIER:
                del self._queue[index]
                buffer.data_type = DataType.PRIORITY_EVENT
                self._insert_first(buffer)
                return

    def acknowledge_end_of_data(self) -> None:
        """Sends that every record was processed."""
        if self._link is not None and not self.is_released:
            self._link.acknowledge(self.number)

    def release(self) -> None:
        """Returns every buffer and cancels the channel at the producer. Idempotent."""
        if self.is_released:
            return
        self.is_released = True
        queue, self._queue = self._queue, NO_QUEUE
        for buffer in queue:
            buffer.recycle()
        self._return_all()
        if self._link is not None:
            self._link.remove(self)

    def statistics(self) -> ChannelStatistics:
        """A snapshot; O(queue)."""
        unread = [buffer.length for buffer in self._queue if buffer.data_type is _DATA]
        return ChannelStatistics(
            channel_index=self.index,
            is_local=False,
            partition_id=self.partition_id,
            subpartition=self.subpartition,
            queued_buffers=len(self._queue),
            queued_bytes=sum(buffer.length for buffer in self._queue),
            buffers=self._buffers,
            bytes=self._bytes,
            polled_buffers=self._buffers - len(unread),
            polled_bytes=self._bytes - sum(unread),
            exclusive=0 if self.is_released else self._initial_credit,
            free_exclusive=len(self._exclusive),
            free_floating=len(self._floating),
            unannounced_credit=self.credit.unannounced,
            announced_credit=self.credit.announced,
            announcements=self.announcements,
            backlog_announcements=self.backlog_announcements,
            sender_backlog=0 if self.is_released else self._backlog,
            sender_expected=0 if self.is_released else self._expected,
            is_finished=self.is_finished,
        )

    def _insert_first(self, buffer: Buffer) -> None:
        self._queue.insert(self._priority_count, buffer)
        self._priority_count += 1
        self._gate.enqueue_first(self)

    def _inflated(self, compressed: CompressedBuffer) -> Buffer:
        try:
            return compressed.inflated()
        except RemoteProtocolError as error:
            compressed.recycle()
            self._error = ChannelFailed(error.code, error.text, channel=str(self))
            raise self._error from error
