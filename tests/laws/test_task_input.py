"""What a task's input gives to an unaligned checkpoint: every byte in front of a barrier that was not processed, once.

Any records over one to three channels of one or two gates, cut into buffers anywhere; barriers come at any moment, in
the middle of a buffer of their own or another channel too. The model: the records a channel had sent before its
barrier, without those that were processed before the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from hypothesis import given, strategies as st
from record_streams import split_stream

from netstack.base.config import NetworkConfig
from netstack.base.events import (
    Alignment,
    CheckpointBarrier,
    DataType,
    EndOfData,
    EndOfPartition,
    data_type_of,
    encode_event,
)
from netstack.base.ids import ChannelDescriptor
from netstack.cluster.task.input import TaskInput
from netstack.cluster.task.mailbox import Mailbox
from netstack.exchange.buffer.elements import BarrierBuffer, EventBuffer
from netstack.exchange.buffer.lent import LentBuffers
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.local_channel import LocalInputChannel
from netstack.exchange.outbound.subpartition import ResultSubpartition
from netstack.exchange.record.framing import head_of
from netstack.network.environment import NetworkEnvironment
from netstack.schedule.checkpoint.barrier import AbortReason, AlignmentStatistics
from netstack.schedule.descriptors.information import EdgeId, InputInformation
from netstack.schedule.descriptors.shuffle import partition_name

ID = 3
BARRIER = CheckpointBarrier(ID, alignment=Alignment.UNALIGNED)


class Manager:
    """What a `TaskInput` needs of a TaskManager."""

    config = NetworkConfig()

    def now(self) -> float:
        return 0.0

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        raise AssertionError("nothing here has a timeout")


class Channel:
    """A producer's queue, and what the model knows of it."""

    def __init__(
        self, gate: SingleInputGate, index: int, dataset: str, pool: Any, overtaken: dict[int, bytes], number: int
    ) -> None:
        self.records: list[bytes] = []
        self.in_front: list[bytes] | None = None  # of the barrier, once it was sent
        self.processed = 0
        self._pool = pool

        def on_barrier(index: int, checkpoint_id: int, data: bytes) -> None:
            overtaken[number] = data

        self._queue = ResultSubpartition(index, lambda index: None, lambda index: None, on_barrier)
        channel = LocalInputChannel(gate, index, ChannelDescriptor("", partition_name("job", dataset, 0, 0), index))
        gate.add_channel(channel)
        channel.on_view(self._queue.create_view(channel.on_data_available))

    def send(self, records: list[bytes], cuts: list[int]) -> None:
        """One record, or several of one length."""
        data = head_of(len(records), len(records[0])) + b"".join(records)
        self.records += records
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if start < stop:
                segment = self._pool.try_acquire()
                assert segment is not None
                piece = memoryview(data)[start:stop]
                self._queue.add(LentBuffers((piece,), len(piece), [segment], self._pool, 0))

    def send_barrier(self) -> None:
        self.in_front = [*self.records]
        self._queue.add_barrier(BarrierBuffer(BARRIER, DataType.PRIORITY_EVENT, lambda: 0.0))

    def end(self) -> None:
        for event in (EndOfData(), EndOfPartition()):
            self._queue.add(EventBuffer(encode_event(event), data_type_of(event)))


class Recorder:
    """The task's checkpoints: notes what was processed when the snapshot was taken."""

    def __init__(self, channels: list[Channel]) -> None:
        self.channels = channels
        self.at_snapshot: list[int] | None = None
        self.is_complete = False

    def on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        assert self.at_snapshot is None
        assert barrier.checkpoint_id == ID
        self.at_snapshot = [channel.processed for channel in self.channels]

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        self.is_complete = True

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        raise AssertionError(f"checkpoint {checkpoint_id} was aborted: {reason}")


@given(st.data())
def test_what_is_captured_is_what_was_in_front_and_not_processed(data: st.DataObject) -> None:
    widths = data.draw(st.sampled_from([[1], [2], [3], [1, 1], [1, 2]]), label="channels of each gate")
    network = NetworkBufferPool(200, 128)
    pool = network.create_pool(1, None)
    gates = [SingleInputGate(None, read_connections=lambda: None, on_closed=lambda: None) for _ in widths]
    overtaken: dict[int, bytes] = {}
    channels: list[Channel] = []
    for number, (gate, width) in enumerate(zip(gates, widths, strict=True)):
        for index in range(width):
            channels.append(Channel(gate, index, f"d{number}", pool, overtaken, len(channels)))
    recorder = Recorder(channels)
    mailbox = Mailbox()
    reported = [InputInformation(EdgeId("s", "t", number), format="bytes") for number in range(1, len(gates) + 1)]
    inputs = TaskInput(
        "t",
        dict(enumerate(gates)),
        reported,
        [each.edge for each in reported],
        mailbox,
        recorder,
        cast(NetworkEnvironment, Manager()),
        exactly_once=True,
        unaligned=True,
    )
    keys = [
        (each.edge.partition(0, "bytes"), index)
        for each, width in zip(reported, widths, strict=True)
        for index in range(width)
    ]
    left = data.draw(st.integers(0, 12), label="records")

    def something_happens() -> None:
        """Producers send, whatever they like."""
        nonlocal left
        while data.draw(st.booleans(), label="more happens"):
            channel = data.draw(st.sampled_from(channels), label="at")
            if channel.in_front is None and data.draw(st.integers(0, 4), label="barrier") == 0:
                channel.send_barrier()
            elif left:
                left -= 1
                size = data.draw(st.integers(0, 20), label="size")
                number = channels.index(channel)
                first = len(channel.records)
                count = data.draw(st.sampled_from([1, 1, 2, 5]), label="of one length")
                # Distinct, so that order and multiplicity show.
                records = [bytes([number, first + each]) + bytes(size) for each in range(count)]
                most = 64 if count > 1 else size + 5
                cuts = data.draw(st.lists(st.integers(1, most), max_size=3), label="cuts")
                channel.send(records, sorted(min(cut, count * (size + 2) + 3) for cut in cuts))
            else:
                return

    def poll_all(*, stop_when_empty: bool) -> None:
        while True:
            if mailbox.is_urgent:
                mailbox.open()
                inputs.poll_priority()
            records = inputs.poll()
            if records is None:
                return
            for done, record in enumerate(records, 1):
                channel = channels[record[0]]
                assert channel.records[channel.processed] == record
                channel.processed += 1
                inputs.processed(done)
                if stop_when_empty:
                    something_happens()
                if mailbox.is_urgent:
                    mailbox.open()
                    inputs.poll_priority()

    for _ in range(3):
        something_happens()
        poll_all(stop_when_empty=True)
    for channel in channels:
        if channel.in_front is None:
            channel.send_barrier()
    poll_all(stop_when_empty=False)

    assert recorder.is_complete
    assert recorder.at_snapshot is not None
    captured = inputs.take_captured(ID)
    assert inputs.take_captured(ID) == {}
    for number, (channel, processed) in enumerate(zip(channels, recorder.at_snapshot, strict=True)):
        assert channel.in_front is not None
        expected = channel.in_front[processed:]
        actual = split_stream(captured.pop(keys[number], b"") + overtaken[number])
        assert actual == expected, f"channel {number}"
    assert captured == {}

    for channel in channels:
        channel.end()
    poll_all(stop_when_empty=False)
    assert inputs.is_finished
    assert all(channel.processed == len(channel.records) for channel in channels)
    inputs.close()
    assert pool.statistics().used == 0
