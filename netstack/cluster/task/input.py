"""The input of a task: reads records one buffer at a time, and handles barriers between two records.

Takes: gates, restored bytes. Gives: records to the task; barriers to a handler; unprocessed input to checkpoints.

Rules:
- Only `wait` waits. The task polls, processes the records, reports its progress (`processed`), and polls again.
- A buffer is held until its last record was processed, so its bytes are available if a checkpoint begins in the middle.
  Nothing may happen between the poll and the first record, because the bytes of a record that spans buffers are gone.
- Channels are numbered across all gates, in the order in which the gates were opened. A task without checkpoints starts
  with the first open gate; the others are added when their producers are known.
- Bytes that a checkpoint restores are the first buffers of their channels, and are read before all others. In another
  respect they are like those of producers: for formats, arrays, and the next checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np

from ...base.errors import LocalProtocolError, RecordError, StateMismatch
from ...base.events import CancelCheckpointMarker, CheckpointBarrier, DataType, UserEvent, decode_event
from ...exchange.buffer.buffer import Buffer
from ...exchange.inbound.gate import SingleInputGate
from ...exchange.inbound.union import UnionInputGate
from ...exchange.record.batches import BatchFormat, can_batch
from ...exchange.record.deserializer import RecordDeserializer
from ...exchange.record.formats import format_named
from ...exchange.record.spill import SpillDirectory
from ...network.deserializers import new_deserializer
from ...network.environment import NetworkEnvironment
from ...schedule.checkpoint.barrier import (
    AbortReason,
    BarrierHandler,
    BarrierStatistics,
    BarrierTracker,
    CannotCheckpoint,
    CheckpointTask,
)
from ...schedule.checkpoint.snapshot import ChannelBytes
from ...schedule.descriptors.information import EdgeId, InputInformation, in_flight_format
from ...schedule.descriptors.shuffle import partition_place
from .fused import Records
from .mailbox import Mailbox
from .queued import MARKER, QueuedEvents

GATHERED_BYTES: Final = 256 * 1024
"""Size of the buffers that are joined into one array, which spreads their fixed costs. It fits into a core's cache."""

_DATA: Final = DataType.DATA


@final
class TaskInput:
    """The input of one task (a `CheckpointedInputs`). It owns its gates."""

    def __init__(
        self,
        name: str,
        gates: Mapping[int, SingleInputGate],
        inputs: Sequence[InputInformation],
        edges: Sequence[EdgeId],
        mailbox: Mailbox,
        task: CheckpointTask,
        environment: NetworkEnvironment,
        *,
        exactly_once: bool,
        unaligned: bool,
        restored: Sequence[Sequence[tuple[str, bytes]]] = (),
        checkpoint: str = "",
        takes_arrays: bool = False,
        gathers: bool = False,
        channels: int | None = None,
        on_marker: Callable[[int, bytes], None] | None = None,
    ) -> None:
        """Takes ownership of the gates.

        Args:
            name: name of the task, for messages.
            gates: the open gates, by index of the input.
            inputs: the description of each input.
            edges: the name of each input's edge in checkpoints.
            mailbox: woken when there is something to poll, alerted when there is a priority event.
            task: notified when checkpoints begin and end.
            environment: provides the clock and the spill folder.
            exactly_once: whether barriers are aligned.
            unaligned: whether a checkpoint may be, or become, unaligned.
            restored: for each gate the records in flight in the restored checkpoint (`RestoredTask.records`).
            checkpoint: the folder of that checkpoint, for messages.
            takes_arrays: whether to return arrays where the format allows it.
            gathers: whether an array may span many buffers; only for tasks without checkpoints.
            channels: number of channels of all inputs, if some are not open yet.
            on_marker: called with the index of the input and the payload of each latency marker.
        """
        self._on_marker = on_marker
        self._environment = environment
        opened = list(gates.values())
        self._gate = opened[0] if len(inputs) == 1 else UnionInputGate(opened, missing=len(inputs) - len(opened))
        self._task = name
        self._mailbox = mailbox
        self._gates = opened
        self._input_of = [index for index, gate in gates.items() for _ in range(gate.channel_count)]
        self._inputs = tuple(inputs)
        self._edges = tuple(edges)
        self.gate_index = 0
        """The gate that the current records came through."""
        self._formats = [format_named(each.format) for each in inputs]
        self._batches = [
            BatchFormat(format) if takes_arrays and can_batch(format) else None for format in self._formats
        ]
        self._gathers = gathers
        self._next: Buffer | None = None
        """A polled buffer that could not be part of the last array."""
        config = environment.config
        self._spill = SpillDirectory(None if config.spill_directory is None else [config.spill_directory])
        self._deserializers: list[RecordDeserializer | None] = [None] * len(self._input_of)
        """Created at the first record of a channel; a wide task has thousands of channels without records."""
        self._checkpoint = checkpoint
        self._restored = deque(self._buffers_of(restored, config.segment_size_bytes))
        """Channels and pieces of bytes that are still to be read."""
        self._is_restoring = False
        """Whether the last buffer is one of them."""
        self._captured: dict[int, ChannelBytes] = {}
        # State of the current records.
        self._buffer: Buffer | None = None
        self.channel_index = -1
        """The channel of the current records, numbered across all gates; -1 without any."""
        self._count = 0
        self._done = 0
        self._handler: BarrierHandler | BarrierTracker
        channels = len(self._input_of) if channels is None else channels
        if exactly_once:
            self._handler = BarrierHandler(
                channels, self, task, unaligned=unaligned, now=environment.now, call_at=self._call_at
            )
        else:
            self._handler = BarrierTracker(channels, self, task, now=environment.now)
        self._gate.on_available = mailbox.wake
        self._gate.on_priority = mailbox.alert
        if self._gate.has_priority:
            mailbox.alert()

    # For the task.

    def add(self, index: int, gate: SingleInputGate) -> None:
        """Adds the gate of an input that was not open yet. Raises LocalProtocolError if all gates were open."""
        if not isinstance(self._gate, UnionInputGate):
            raise LocalProtocolError(f"{self._task} has one input, whose gate is already open")
        self._gates.append(gate)
        self._input_of += [index] * gate.channel_count
        self._deserializers += [None] * gate.channel_count
        self._gate.add(gate)

    @property
    def is_finished(self) -> bool:
        """Whether every channel has ended and all records were returned."""
        return self._gate.is_finished and not self._restored and self._next is None

    @property
    def ended_with_drain(self) -> bool:
        """Whether no ended channel was cut off by stop-with-savepoint: each delivered all of its records."""
        return all(gate.ended_with_drain is not False for gate in self._gates)

    @property
    def waited_s(self) -> float:
        """Total time in which the task waited for input, in seconds."""
        return self._gate.idle.total_s(self._gate.now())

    def poll(self) -> Records | None:
        """Returns the next records. Nothing may happen before the first of them is processed.

        Returns:
            The records; an empty list after an event or a partial record (poll again); None if nothing is available.

        Raises:
            ChannelFailed, ConnectionLost, RemoteProtocolError: a channel has failed.
            RecordError: bytes that the format cannot decode, or a channel that ends in the middle of a record.
            StateMismatch: restored bytes that the format cannot decode.
        """
        buffer = self._poll_gate()
        if buffer is None:
            return None
        if buffer.data_type is not _DATA:
            self._on_event(buffer)
            return []
        channel = buffer.channel_index
        batches = self._batches[self._input_of[channel]]
        if batches is not None and self._gathers:
            return self._gather(buffer, batches)
        deserializer = self._deserializers[channel] or self._new_deserializer(channel)
        try:
            elements = deserializer.feed(buffer.contiguous())
        except BaseException as error:
            buffer.recycle()
            if isinstance(error, RecordError):
                raise self._refused(channel, error) from error
            raise
        if not elements:
            buffer.recycle()
            return elements
        records = elements if batches is None else batches.joined(elements)
        self._buffer, self.channel_index = buffer, channel
        self._count, self._done = len(records), 0
        self._gate.count_records(channel, len(records))
        self.gate_index = self._input_of[channel]
        return records

    def processed(self, count: int) -> None:
        """Reports how many of the current records were processed; after the last one their buffer is recycled."""
        self._done = count
        if count == self._count:
            buffer, self._buffer = self._buffer, None
            self.channel_index = -1
            if buffer is not None:
                buffer.recycle()

    def poll_priority(self) -> None:
        """Handles available priority events. Called between two records, also in the middle of a buffer."""
        while self._gate.has_priority:
            buffer = self._gate.poll()
            if buffer is None or not buffer.data_type.has_priority:
                raise LocalProtocolError(f"{self._task}: its gate announced a priority event but returned {buffer!r}")
            self._on_event(buffer)

    async def wait(self) -> None:
        """Waits until there may be something to poll, or the mailbox is urgent. Cancellation: nothing changed."""
        gate = self._gate
        gate.read_connections()
        if gate.is_available or self._mailbox.is_urgent:
            return
        gate.idle.begin(gate.now())
        try:
            await self._mailbox.wait()
        finally:
            gate.idle.end(gate.now())

    def close(self) -> None:
        """Closes the gates and recycles all buffers. Idempotent."""
        if self._buffer is not None:
            self._buffer.recycle()
            self._buffer = None
        if self._next is not None:
            self._next.recycle()
            self._next = None
        for deserializer in self._deserializers:
            if deserializer is not None:
                deserializer.clear()
        self._gate.abandon()

    def count_queued(self, queued: QueuedEvents) -> None:
        """Adds the markers and barriers that were received and not processed; O(channels and their queues)."""
        channels = (channel for gate in self._gates for channel in gate.channels)
        for index, channel in zip(self._input_of, channels, strict=True):
            events, data_bytes = channel.queued_events()
            if not queued.add(index, events):
                queued.add_data(index, data_bytes)
        if self._next is not None and self._next.data_type is not _DATA:
            queued.add(self._input_of[self._next.channel_index], [(bytes(self._next.memory), 0)])

    def statistics(self) -> BarrierStatistics:
        """The statistics of barrier alignment."""
        return self._handler.statistics()

    # For the checkpoint.

    def take_captured(self, checkpoint_id: int) -> ChannelBytes:
        """Removes and returns the data before the barriers of a checkpoint that was not processed when it began."""
        return self._captured.pop(checkpoint_id, {})

    def resume(self, channel: int) -> None:
        """Implements `CheckpointedInputs.resume`."""
        self._gate.resume(channel)

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Implements `CheckpointedInputs.checkpoint_started`."""
        unread: dict[int, list[memoryview]] = {}
        for channel, piece in self._restored:
            unread.setdefault(channel, []).append(piece)
        for channel in range(len(self._input_of)):
            unprocessed = self._unprocessed(channel)
            if channel in unread:
                unprocessed = b"".join((unprocessed, *unread[channel]))
            if not self._gate.start_capture(channel, barrier.checkpoint_id, unprocessed):
                raise CannotCheckpoint(AbortReason.SUBSUMED)

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        """Implements `CheckpointedInputs.checkpoint_stopped`."""
        captured = {}
        for channel in range(len(self._input_of)):
            data = self._gate.take_capture(channel, checkpoint_id)
            if data:
                captured[self._key(channel)] = data
        self._captured[checkpoint_id] = captured

    def prioritize(self, channel: int, sequence: int) -> None:
        """Implements `CheckpointedInputs.prioritize`."""
        self._gate.prioritize(channel, sequence)

    # Inside.

    def _poll_gate(self) -> Buffer | None:
        if self._restored:
            channel, piece = self._restored.popleft()
            restored = Buffer(piece, len(piece), _DATA, None)
            restored.channel_index = channel
            self._is_restoring = True
            return restored
        self._is_restoring = False
        buffer, self._next = self._next, None
        return self._gate.poll() if buffer is None else buffer

    def _buffers_of(
        self, restored: Sequence[Sequence[tuple[str, bytes]]], size_bytes: int
    ) -> Iterator[tuple[int, memoryview]]:
        """Cuts restored bytes to buffers of their channels, or of another one if their producer is no more."""
        for index, given in enumerate(restored):
            channels = [channel for channel, number in enumerate(self._input_of) if number == index and given]
            named = {self._key(channel)[0]: channel for channel in channels}
            for partition, data in given:
                other = channels[EdgeId.of_partition(partition)[1] % len(channels)]
                memory = memoryview(data)
                for start in range(0, len(data), size_bytes):
                    yield named.get(partition, other), memory[start : start + size_bytes]

    def _gather(self, first: Buffer, batches: BatchFormat) -> Records:
        """The records of a data buffer and of the available ones after it; recycles each buffer at once."""
        index = self.gate_index = self._input_of[first.channel_index]
        elements: list[Any] = []
        size = self._count = 0
        buffer: Buffer | None = first
        while buffer is not None:
            channel = buffer.channel_index
            if buffer.data_type is not _DATA or self._input_of[channel] != index:
                self._next = buffer
                break
            deserializer = self._deserializers[channel] or self._new_deserializer(channel)
            try:
                result = deserializer.feed(buffer.contiguous())
            except RecordError as error:
                raise self._refused(channel, error) from error
            finally:
                size += buffer.length
                buffer.recycle()
            elements += result
            records = sum(len(each) if isinstance(each, np.ndarray) else 1 for each in result)
            self._gate.count_records(channel, records)
            self._count += records
            buffer = self._gate.poll() if size < GATHERED_BYTES else None
        self._done = 0
        return batches.joined(elements) if elements else elements

    def _new_deserializer(self, channel: int) -> RecordDeserializer:
        config = self._environment.config
        made = self._deserializers[channel] = new_deserializer(
            self._batches[self._input_of[channel]] or self._formats[self._input_of[channel]], self._spill, config
        )
        return made

    def _refused(self, channel: int, error: RecordError) -> RecordError | StateMismatch:
        edge = self._inputs[self._input_of[channel]].edge
        if self._is_restoring:  # every attempt would read the same bytes
            return StateMismatch(
                f"{self._name(channel)} cannot read the records in flight from {edge.source!r} to {edge.target!r} in"
                f" checkpoint {self._checkpoint}: {error}"
            )
        return RecordError(f"operator {edge.target!r} reads from {edge.source!r}: {error}")

    def _key(self, channel: int) -> tuple[str, int]:
        """The name of a channel in checkpoints, which contains its edge but no vertices and attempts."""
        partition, subpartition = self._gate.channel_key(channel)
        number = self._input_of[channel]
        place = partition_place(partition)
        label = in_flight_format(self._inputs[number].format, has_heads=self._environment.config.as_flink)
        return self._edges[number].partition(place.partition, label), subpartition

    def _call_at(self, deadline_s: float, callback: Any) -> None:
        """Runs a timer of the handler between two records, since it may end a checkpoint."""
        self._environment.call_at(deadline_s, lambda: self._mailbox.post(callback))

    def _on_event(self, buffer: Buffer) -> None:
        """Handles an event; everything before it was processed."""
        channel, data_type, sequence = buffer.channel_index, buffer.data_type, buffer.sequence
        event = decode_event(buffer.memory)
        buffer.recycle()
        if data_type is DataType.END_OF_DATA:
            self._gate.acknowledge_end_of_data(channel)
        elif data_type is DataType.END_OF_PARTITION:
            deserializer = self._deserializers[channel]
            left = 0 if deserializer is None else deserializer.pending_bytes
            if left:
                raise RecordError(
                    f"{self._name(channel)} ended in the middle of a record, after {left} bytes; its producer is faulty"
                )
            self._handler.on_end_of_partition(channel)
        elif isinstance(event, CancelCheckpointMarker):
            self._handler.on_cancel(channel, event.checkpoint_id)
        elif isinstance(event, UserEvent) and event.name == MARKER and self._on_marker is not None:
            self._on_marker(self._input_of[channel], event.payload)
        elif not isinstance(event, CheckpointBarrier):
            raise LocalProtocolError(
                f"{self._name(channel)} delivered {event}; tasks exchange only records, barriers and latency markers"
            )
        elif data_type is DataType.ANNOUNCEMENT:
            self._handler.on_announcement(channel, event, sequence)
        else:
            self._handler.on_barrier(channel, event)

    def _name(self, channel: int) -> str:
        partition, subpartition = self._gate.channel_key(channel)
        return f"{self._task}: channel {channel} ({partition!r} subpartition {subpartition})"

    def _unprocessed(self, channel: int) -> bytes:
        """The polled but unprocessed bytes of a channel, framed: current records, and a partial one."""
        deserializer = self._deserializers[channel]
        if deserializer is None:
            return b""
        if channel != self.channel_index or self._buffer is None:
            return deserializer.unconsumed()
        return deserializer.unprocessed(self._buffer.contiguous(), self._done)
