"""RemoteInputChannel: an input channel whose producer is behind a connection.

Takes: received segments and events from the `ChannelReceiver`. Gives: buffers to the gate, credit to the receiver's
next announcement. `credit.receiving` manages its exclusive and floating buffers.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol, final

from ...base.errors import ChannelFailed, ErrorCode, RemoteProtocolError, channel_error
from ...base.events import Alignment, CheckpointBarrier, DataType, EndOfData, EndOfPartition, Event, decode_event
from ...base.ids import ChannelDescriptor
from ..buffer.buffer import Buffer
from ..buffer.pools import LocalBufferPool, NetworkBufferPool
from ..buffer.segment import Segment
from ..credit.receiving import NO_QUEUE, BufferManager, CreditLink, LandedBuffers
from ..wire.codec import Inflate
from .capture import InputCapture
from .gate import SingleInputGate
from .parts import CompressedBuffer, buffers_of
from .statistics import ChannelStatistics

_DATA: Final = DataType.DATA
_END_TYPES: Final = {EndOfData: DataType.END_OF_DATA, EndOfPartition: DataType.END_OF_PARTITION}
"""Gates count these events by data type and decode their bytes, so both must agree."""

MAX_WAITING_EVENT_BYTES: Final = 16 * 1024 * 1024
EVENT_OVERHEAD_BYTES: Final = 100
"""Events need no credit, so this bound keeps a hostile producer from filling memory: 160,000 small events."""


class ChannelLink(CreditLink, Protocol):
    """The receiver of a connection, as its channels use it: it sends their control frames when the socket has room."""

    def place_next(self, number: int, memory: memoryview) -> None:
        """Receives the channel's next data in `memory`, if that is possible."""

    def send_resume(self, number: int) -> None:
        """Sends a resume for the channel of this number."""

    def request_buffer_size(self, number: int, size_bytes: int) -> None:
        """Requests a size for the channel's new buffers; only the newest request is sent."""

    def acknowledge(self, number: int) -> None:
        """Sends that every record of the channel was processed."""

    def remove(self, channel: RemoteInputChannel) -> None:
        """Removes a released channel and cancels it at the producer."""


@final
class RemoteInputChannel:
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
        "_link",
        "_priority_count",
        "backlog_announcements",
        "index",
        "is_enqueued",
        "is_finished",
        "is_first",
        "manager",
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
        self.manager: Final = BufferManager(exclusive, pool, network, credit_based=credit_based)
        self._link: ChannelLink | None = None
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
    def number(self) -> int:
        """Its number on the connection; -1 before `attach`."""
        return self.manager.number

    @property
    def is_released(self) -> bool:
        """Whether all of its buffers were returned."""
        return self.manager.is_released

    @property
    def is_answered(self) -> bool:
        """Whether the producer has sent anything but errors."""
        return bool(self._expected_sequence or self._buffers or self.backlog_announcements)

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""
        return self._priority_count > 0

    def attach(self, link: ChannelLink, number: int) -> None:
        """Attaches the channel to a connection under a number."""
        self._link = link
        self.manager.attach(link, number)

    # From the receiver.

    def on_buffer(self, sequence: int, backlog: int, segment: Segment, length: int) -> Segment:
        """Queues a data buffer that was received in `segment`; returns a free segment in exchange.

        Raises:
            ChannelFailed: wrong sequence number, or no credit; `segment` stays with the caller.
        """
        if sequence != self._expected_sequence:
            raise _out_of_sequence(self._expected_sequence, sequence, self)
        manager = self.manager
        is_floating = bool(manager.floating)
        if is_floating:
            free = manager.floating.pop()
        elif manager.exclusive:
            free = manager.exclusive.pop()
        else:
            raise _without_credit(sequence, self)
        memory = segment.memory
        self._take(
            memory if length == len(memory) else memory[:length], length, segment, is_floating, sequence, backlog
        )
        return free

    def on_small_buffer(self, sequence: int, backlog: int, payload: bytes | memoryview) -> None:
        """Queues a data buffer that is not in a segment; it occupies one free segment, which stands for its credit.

        Raises:
            ChannelFailed: wrong sequence number, or no credit.
        """
        if sequence != self._expected_sequence:
            raise _out_of_sequence(self._expected_sequence, sequence, self)
        manager = self.manager
        is_floating = bool(manager.floating)
        if is_floating:
            free = manager.floating.pop()
        elif manager.exclusive:
            free = manager.exclusive.pop()
        else:
            raise _without_credit(sequence, self)
        self._take(memoryview(payload), len(payload), free, is_floating, sequence, backlog)

    def on_landed(self, sequence: int, backlogs: list[int], memory: memoryview) -> None:
        """Queues a run of data buffers of equal length as one element; each occupies one free segment.

        Raises:
            ChannelFailed: wrong sequence number, or no credit; those with credit are queued.
        """
        if sequence != self._expected_sequence:
            raise _out_of_sequence(self._expected_sequence, sequence, self)
        manager = self.manager
        each = len(memory) // len(backlogs)
        run = LandedBuffers(memory, manager)
        run.sequence = sequence
        if manager.queue is NO_QUEUE:
            manager.queue = deque()
        for backlog in backlogs:
            is_floating = bool(manager.floating)
            if is_floating:
                run.segments.append(manager.floating.pop())
            elif manager.exclusive:
                run.segments.append(manager.exclusive.pop())
            else:
                break
            run.floating.append(is_floating)
            manager.on_data(backlog, each)
        count = run.buffers = len(run.segments)
        following = self._expected_sequence = (sequence + count) & 0xFFFFFFFF
        self._buffers += count
        if count < len(backlogs):
            run.memory = memory[: count * each]
        run.length = len(run.memory)
        self._bytes += run.length
        if count:
            if self._capture is not None and self._capture.is_open:
                self._capture.add(run.memory)
            manager.queue.append(run)
            if len(manager.queue) == 1:
                self._gate.enqueue(self)
        if count < len(backlogs):
            raise _without_credit(following, self)

    def _take(
        self, memory: memoryview, length: int, segment: Segment, is_floating: bool, sequence: int, backlog: int
    ) -> None:
        """Queues data that occupies `segment`."""
        manager = self.manager
        buffer = Buffer(memory, length, _DATA, manager, segment, is_floating)
        self._expected_sequence = (sequence + 1) & 0xFFFFFFFF  # 32 bits on the wire
        self._buffers += 1
        self._bytes += length
        buffer.sequence = sequence
        if self._capture is not None and self._capture.is_open:
            self._capture.add(memory)
        queue = manager.queue
        if queue is NO_QUEUE:
            queue = manager.queue = deque()
        queue.append(buffer)
        if len(queue) == 1:
            self._gate.enqueue(self)
        manager.on_data(backlog, length)
        if not length:
            # An empty buffer has nothing to read: its credit returns at once.
            queue.pop()
            buffer.recycle()

    def on_parts(
        self, sequence: int, backlog: int, body: memoryview, sizes: tuple[int, ...], inflate: Inflate | None
    ) -> None:
        """Queues the data buffers of one frame: several sequence numbers, one credit, one segment.

        Compressed buffers are decompressed one by one in `poll`, so that they need no more memory than others.

        Raises:
            ChannelFailed: wrong sequence number, no credit, or compressed data in a checkpoint.
        """
        if sequence != self._expected_sequence:
            raise _out_of_sequence(self._expected_sequence, sequence, self)
        manager = self.manager
        if not manager.free_buffers:
            raise _without_credit(sequence, self)
        if inflate is not None:
            if self._capture is not None:
                raise _compressed_checkpoint(self)
            self._has_compressed = True
        is_floating = bool(manager.floating)
        segment = manager.floating.pop() if is_floating else manager.exclusive.pop()
        length = len(body)
        segment.memory[:length] = body
        self._expected_sequence = (sequence + len(sizes)) & 0xFFFFFFFF
        self._buffers += len(sizes)
        self._bytes += length
        whole = Buffer(segment.memory[:length], length, _DATA, manager, segment, is_floating)
        made = buffers_of(whole, sequence, sizes, inflate)
        if self._capture is not None and self._capture.is_open:
            self._capture.add(whole.memory)
        if made:
            if manager.queue is NO_QUEUE:
                manager.queue = deque()
            was_empty = not manager.queue
            manager.queue.extend(made)
            if was_empty:
                self._gate.enqueue(self)
        manager.on_data(backlog, length)
        whole.recycle()

    def on_event(self, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        """Queues an in-band event, which occupies no buffer.

        Raises:
            ChannelFailed: wrong sequence number, malformed event, or too many bytes of events in the queue.
        """
        if sequence != self._expected_sequence:
            raise _out_of_sequence(self._expected_sequence, sequence, self)
        event = _read_event(payload, data_type, backlog, self)
        self._expected_sequence = (sequence + 1) & 0xFFFFFFFF  # 32 bits on the wire
        self._event_bytes += len(payload) + EVENT_OVERHEAD_BYTES
        if self._event_bytes > MAX_WAITING_EVENT_BYTES:
            raise _too_many_events(self)
        buffer = Buffer(memoryview(payload), len(payload), data_type, None)
        buffer.sequence = sequence
        manager = self.manager
        if manager.queue is NO_QUEUE:
            manager.queue = deque()
        if isinstance(event, CheckpointBarrier) and event.alignment is not Alignment.AT_LEAST_ONCE:
            if self._has_compressed:
                raise _compressed_checkpoint(self)
            if self._capture is None:
                self._capture = InputCapture()
            self._capture.on_barrier(event.checkpoint_id, sequence)
        if data_type.has_priority:
            self._insert_first(buffer)
        else:
            manager.queue.append(buffer)
            if data_type is DataType.TIMEOUTABLE_ALIGNED_BARRIER:
                announcement = Buffer(memoryview(payload), len(payload), DataType.ANNOUNCEMENT, None)
                announcement.sequence = sequence
                self._event_bytes += len(payload) + EVENT_OVERHEAD_BYTES
                self._insert_first(announcement)
            self._gate.enqueue(self)
        if manager.is_on_demand and data_type.blocks_upstream:
            manager.release_floating()
        else:
            manager.on_backlog(backlog)

    def fail(self, error: Exception) -> None:
        """Fails the channel: `poll` raises the first error, after all received buffers."""
        if self._error is None and not self.is_released and not self.is_finished:
            self._error = error
            if isinstance(error, ChannelFailed):
                error.partition = self.partition_id
            self._gate.enqueue(self)

    # From its reader.

    def place_next(self, memory: memoryview) -> None:
        """Lends memory of the reader for the channel's next data; only while all received data has been read.

        Args:
            memory: where the next bytes belong. Buffers that are received there are polled like others; their `memory`
                is then a part of it, so copying them to their place costs nothing.
        """
        if self._link is not None and not self.manager.queue and not self.is_released:
            self._link.place_next(self.number, memory)

    # From the gate.

    def poll(self) -> Buffer | None:
        """The next buffer; buffers received before a failure come first."""
        queue = self.manager.queue
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
            if self.manager.is_on_demand:
                self.manager.credit.forget()
            self._link.send_resume(self.number)

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Requests this size for new buffers from the producer."""
        if self._link is not None and not self.is_released:
            self._link.request_buffer_size(self.number, size_bytes)

    def widen(self, window: int) -> None:
        """Keeps more buffers free if its producer expects to send some: its share of a window of so many buffers."""
        self.manager.widen(window)

    def measure(self) -> tuple[int, int]:
        """Returns the bytes of data polled so far, and the buffers in use here or at the producer; O(queue)."""
        polled = self._bytes
        for buffer in self.manager.queue:
            if buffer.data_type is _DATA:
                polled -= buffer.length
        at_producer = 0 if self.is_released else self.manager.backlog
        return polled, self.manager.queued_buffers + at_producer

    def queued_events(self) -> tuple[list[tuple[bytes, int]], int]:
        """The events that its reader has not polled, each with the bytes of data in front of it; O(queue).

        Returns:
            The events, without announcements, and the bytes of all data in the queue.
        """
        events, ahead_bytes = [], 0
        for buffer in self.manager.queue:
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
        return self._capture.start(checkpoint_id, unconsumed, self.manager.queue)

    def take_capture(self, checkpoint_id: int) -> bytes:
        """Ends the capture when the last barrier arrived or the checkpoint was aborted; returns the data."""
        return b"" if self._capture is None else self._capture.take(checkpoint_id)

    def prioritize(self, sequence: int) -> None:
        """Makes the barrier with this sequence number overtake the queue, if it is still queued."""
        for index, buffer in enumerate(self.manager.queue):
            if buffer.sequence == sequence and buffer.data_type is DataType.TIMEOUTABLE_ALIGNED_BARRIER:
                del self.manager.queue[index]
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
        self.manager.release()
        if self._link is not None:
            self._link.remove(self)

    def statistics(self) -> ChannelStatistics:
        """A snapshot; O(queue)."""
        manager, credit = self.manager, self.manager.credit
        unread = [buffer for buffer in manager.queue if buffer.data_type is _DATA]
        return ChannelStatistics(
            channel_index=self.index,
            is_local=False,
            partition_id=self.partition_id,
            subpartition=self.subpartition,
            queued_buffers=manager.queued_buffers,
            queued_bytes=sum(buffer.length for buffer in manager.queue),
            buffers=self._buffers,
            bytes=self._bytes,
            polled_buffers=self._buffers - sum(buffer.buffers for buffer in unread),
            polled_bytes=self._bytes - sum(buffer.length for buffer in unread),
            exclusive=0 if self.is_released else manager.initial_credit,
            free_exclusive=len(manager.exclusive),
            free_floating=len(manager.floating),
            unannounced_credit=credit.unannounced,
            announced_credit=credit.announced,
            announcements=manager.announcements,
            backlog_announcements=self.backlog_announcements,
            sender_backlog=0 if self.is_released else manager.backlog,
            sender_expected=0 if self.is_released else manager.expected,
            is_finished=self.is_finished,
        )

    def _insert_first(self, buffer: Buffer) -> None:
        self.manager.queue.insert(self._priority_count, buffer)
        self._priority_count += 1
        self._gate.enqueue_first(self)

    def _inflated(self, compressed: CompressedBuffer) -> Buffer:
        try:
            return compressed.inflated()
        except RemoteProtocolError as error:
            compressed.recycle()
            self._error = ChannelFailed(error.code, error.text, channel=str(self))
            raise self._error from error


def _read_event(payload: bytes, data_type: DataType, backlog: int, channel: object) -> Event:
    """Decodes and checks the event in a frame.

    Raises:
        ChannelFailed: malformed, or not allowed under this data type.
    """
    try:
        event = decode_event(payload)
    except RemoteProtocolError as error:
        raise ChannelFailed(error.code, error.text, channel=str(channel)) from error
    if _END_TYPES.get(type(event)) is not (data_type if data_type in _END_TYPES.values() else None):
        raise ChannelFailed(
            ErrorCode.MALFORMED_FRAME,
            f"event {type(event).__name__} came under data type {data_type.name}; its producer is faulty",
            channel=str(channel),
        )
    if backlog and data_type.blocks_upstream:
        raise ChannelFailed(
            ErrorCode.MALFORMED_FRAME,
            f"{data_type.name} came with backlog {backlog}, but only a resume may be followed by data; its producer is"
            " faulty",
            channel=str(channel),
        )
    return event


def _too_many_events(channel: object) -> ChannelFailed:
    """The error of a channel with too many bytes of queued events."""
    return ChannelFailed(
        ErrorCode.CREDIT_VIOLATION,
        f"more than {MAX_WAITING_EVENT_BYTES} bytes of events wait to be read; send large data as records",
        channel=str(channel),
    )


def _compressed_checkpoint(channel: object) -> ChannelFailed:
    """The error of a channel with compressed data in a checkpoint, which cannot store it."""
    return ChannelFailed(
        ErrorCode.UNEXPECTED_FRAME,
        "compressed buffers cannot be part of a checkpoint, but a barrier may overtake them; switch compression off",
        channel=str(channel),
    )


def _without_credit(sequence: int, channel: object) -> ChannelFailed:
    """The error of a data buffer without credit."""
    return ChannelFailed(
        ErrorCode.CREDIT_VIOLATION,
        f"a data buffer came (sequence {sequence}) although the producer had no credit left",
        channel=str(channel),
    )


def _out_of_sequence(expected: int, sequence: int, channel: object) -> ChannelFailed:
    """The error of an unexpected sequence number."""
    return channel_error(
        ErrorCode.SEQUENCE_GAP,
        f"expected buffer {expected}, got {sequence}: a buffer was lost or repeated",
        channel=str(channel),
    )
