"""A task's input: buffers and their records, what was in flight, and producers that do not keep to the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from netstack.base.config import NetworkConfig
from netstack.base.errors import LocalProtocolError, RecordError, StateMismatch
from netstack.base.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    DataType,
    EndOfData,
    EndOfPartition,
    Event,
    UserEvent,
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
from netstack.exchange.record.formats import rows_as_bytes
from netstack.exchange.record.framing import frame, head_of
from netstack.exchange.record.stream_records import HEAD
from netstack.network.environment import NetworkEnvironment
from netstack.schedule.checkpoint.barrier import AbortReason, AlignmentStatistics
from netstack.schedule.descriptors.information import EdgeId, InputInformation
from netstack.schedule.descriptors.shuffle import partition_name


def key_of(number: int) -> tuple[str, int]:
    """A channel as checkpoints know it: by its edge and the producer's subtask, whatever the attempt."""
    return EdgeId(f"p{number}", "task").partition(7, "bytes"), 3


class Stage:
    """Gates over local channels, each with one, and the task's input over them."""

    config = NetworkConfig()

    def __init__(
        self,
        gates: int = 1,
        *,
        format: str = "bytes",
        exactly_once: bool = True,
        restored: Sequence[Sequence[tuple[str, bytes]]] = (),
        takes_arrays: bool = False,
        gathers: bool = False,
    ) -> None:
        self.pool = NetworkBufferPool(50, 32).create_pool(1, None)
        self.log: list[Any] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.clock = 0.0
        self.queues = []
        self.overtaken: list[bytes] = []
        made = []
        for number in range(gates):
            gate = SingleInputGate(None, read_connections=lambda: None, on_closed=lambda: None)
            queue = ResultSubpartition(
                3,
                lambda index: None,
                lambda index: self.log.append("acknowledged"),
                lambda *told: self.overtaken.append(told[2]),
            )
            channel = LocalInputChannel(gate, 0, ChannelDescriptor("", partition_name("job", f"p{number}", 7, 2), 3))
            gate.add_channel(channel)
            channel.on_view(queue.create_view(channel.on_data_available))
            made.append(gate)
            self.queues.append(queue)
        self.mailbox = Mailbox()
        edges = [EdgeId(f"p{number}", "task") for number in range(gates)]
        self.inputs = TaskInput(
            "task-3",
            dict(enumerate(made)),
            [InputInformation(edge, format=format) for edge in edges],
            edges,
            self.mailbox,
            self,
            cast(NetworkEnvironment, self),
            exactly_once=exactly_once,
            unaligned=True,
            restored=restored,
            checkpoint="/chk-7",
            takes_arrays=takes_arrays,
            gathers=gathers,
        )

    def put(self, data: bytes, number: int = 0) -> None:
        segment = self.pool.try_acquire()
        assert segment is not None
        self.queues[number].add(LentBuffers((memoryview(data),), len(data), [segment], self.pool, 0))

    def put_event(self, event: Event, number: int = 0) -> None:
        self.queues[number].add(EventBuffer(encode_event(event), data_type_of(event)))

    def poll(self) -> list[Any] | None:
        """The next records, all processed."""
        records = self.inputs.poll()
        if isinstance(records, np.ndarray):
            records = rows_as_bytes(records)
        if records:
            self.inputs.processed(len(records))
        return records

    # The manager and the task.

    def now(self) -> float:
        return self.clock

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((deadline_s, callback))

    def on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        self.log.append(("trigger", barrier.checkpoint_id, barrier.alignment))

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        self.log.append(("complete", checkpoint_id))

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        self.log.append(("abort", checkpoint_id, reason))


def test_a_buffer_goes_back_with_its_last_record() -> None:
    stage = Stage()
    stage.put(frame(b"a") + frame(b"b"))
    assert stage.inputs.poll() == [b"a", b"b"]
    stage.inputs.processed(1)
    assert stage.pool.statistics().used == 1
    stage.inputs.processed(2)
    assert stage.pool.statistics().used == 0
    assert stage.inputs.poll() is None
    stage.put(frame(b"c")[:3])
    assert stage.inputs.poll() == []
    assert stage.pool.statistics().used == 0


def test_an_array_is_gathered_from_the_buffers_that_are_there_up_to_the_next_event_or_gate() -> None:
    stage = Stage(2, takes_arrays=True, gathers=True)
    records = [b"%03d" % number for number in range(60)]
    stream = b"".join(map(frame, records))
    for start in range(0, len(stream), 100):
        stage.put(stream[start : start + 100])
    stage.put_event(EndOfData())
    array = stage.inputs.poll()
    assert isinstance(array, np.ndarray)
    assert rows_as_bytes(array) == records
    assert stage.pool.statistics().used == 0
    assert stage.log == []  # the end is acknowledged when all before it was processed
    stage.inputs.processed(60)
    assert stage.poll() == []
    assert stage.log == ["acknowledged"]
    stage.put_event(EndOfPartition())
    stage.put(frame(b"abc"), 1)
    assert stage.poll() == []
    assert stage.poll() == [b"abc"]
    assert stage.inputs.gate_index == 1
    stage.put(frame(b"ab")[:3], 1)
    assert stage.poll() == []
    stage.put(frame(b"ab")[3:] + frame(b"c"), 1)
    assert stage.poll() == [b"ab", b"c"]


def test_what_ended_an_array_is_not_forgotten() -> None:
    stage = Stage(2, takes_arrays=True, gathers=True)
    for number in (0, 1):
        stage.put(frame(b"%d" % number), number)
        stage.put_event(EndOfData(), number)
        stage.put_event(EndOfPartition(), number)
    actual = []
    while (records := stage.poll()) is not None:
        actual += records
        assert not stage.inputs.is_finished or stage.inputs.poll() is None
    assert sorted(actual) == [b"0", b"1"]
    assert stage.inputs.is_finished
    again = Stage(takes_arrays=True, gathers=True)
    again.put(frame(b"x"))
    again.put_event(EndOfData())
    assert again.poll() == [b"x"]
    again.inputs.close()
    assert again.pool.statistics().used == 0


def test_a_task_with_checkpoints_has_an_array_a_buffer() -> None:
    stage = Stage(takes_arrays=True)
    stage.put(frame(b"ab") * 40)
    stage.put(frame(b"cd") * 40)
    array = stage.inputs.poll()
    assert isinstance(array, np.ndarray)
    assert rows_as_bytes(array) == [b"ab"] * 40
    stage.inputs.processed(39)
    assert stage.pool.statistics().used == 2
    stage.inputs.processed(40)
    assert stage.pool.statistics().used == 1


def test_it_tells_which_gate_a_record_came_from() -> None:
    stage = Stage(2)
    for number in (1, 0, 1):
        stage.put(frame(b"%d" % number), number)
    for _ in range(3):
        (record,) = stage.poll() or []
        assert stage.inputs.gate_index == int(record)


def test_ends_are_acknowledged_and_the_last_one_finishes() -> None:
    stage = Stage(2)
    for number in (0, 1):
        stage.put_event(EndOfData(), number)
        stage.put_event(EndOfPartition(), number)
    assert not stage.inputs.is_finished
    while stage.poll() is not None:
        pass
    assert stage.inputs.is_finished
    assert stage.log == ["acknowledged"] * 2
    stage.inputs.close()
    stage.inputs.close()


def restored_of(number: int, *records: bytes) -> tuple[str, bytes]:
    return key_of(number)[0], b"".join(map(frame, records))


@pytest.mark.parametrize("segment_bytes", [7, 32 * 1024])
def test_restored_records_come_first_and_are_in_flight_until_they_are_processed(
    segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever record the next checkpoint begins it has the rest, in front of what the channel has."""
    monkeypatch.setattr(Stage, "config", NetworkConfig(segment_size_bytes=max(segment_bytes, 256)))
    old = [b"old %d" % number for number in range(40)]
    for done in range(len(old) + 1):
        stage = Stage(2, restored=[[restored_of(0, *old)], [restored_of(1, b"x", b"y")]])
        stage.put(frame(b"new"))
        read: list[bytes] = []
        while len(read) < done:
            records = stage.inputs.poll()
            assert records is not None
            count = min(len(records), done - len(read))
            read += records[:count]
            if count:
                stage.inputs.processed(count)
        assert read == old[:done]
        assert not stage.inputs.is_finished
        stage.put_event(CheckpointBarrier(1, 0, Alignment.UNALIGNED))
        stage.put_event(CheckpointBarrier(1, 0, Alignment.UNALIGNED), 1)
        stage.inputs.poll_priority()
        captured = stage.inputs.take_captured(1)
        assert captured[key_of(0)] == b"".join(map(frame, old[done:])) if done < len(old) else key_of(0) not in captured
        assert captured[key_of(1)] == restored_of(1, b"x", b"y")[1]


def test_restored_bytes_are_read_as_those_of_producers() -> None:
    """A second path into the task decoded them: it knew neither arrays nor the heads of Flink's records."""
    rows = np.arange(100, dtype="<i8")
    data = head_of(100, 8) + rows.tobytes()
    stage = Stage(format="int64", takes_arrays=True, restored=[[(EdgeId("p0", "task").partition(7, "int64"), data)]])
    records = stage.inputs.poll()
    assert isinstance(records, np.ndarray)
    assert records.tolist() == rows.tolist()
    stage.inputs.processed(100)
    assert stage.inputs.poll() is None


def test_restored_records_of_flinks_profile_have_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "config", NetworkConfig.flink())
    partition = EdgeId("p0", "task").partition(7, "bytes with heads")
    stage = Stage(restored=[[(partition, frame(HEAD + b"one") + frame(HEAD + b"two"))]])
    assert stage.inputs._key(0) == (partition, 3)
    assert stage.poll() == [b"one", b"two"]


def test_restored_records_of_a_producer_that_is_no_more_come_through_another_channel() -> None:
    partition = EdgeId("p0", "task").partition(12, "bytes")
    stage = Stage(restored=[[(partition, frame(b"a")), restored_of(0, b"b"), (partition, frame(b"c"))]])
    read = [record for _ in range(3) for record in stage.poll() or ()]
    assert read == [b"a", b"b", b"c"]


def test_restored_bytes_that_no_reader_understands_end_the_job() -> None:
    stage = Stage(format="int64", restored=[[(EdgeId("p0", "task").partition(7, "int64"), frame(b"123"))]])
    with pytest.raises(StateMismatch, match="from 'p0' to 'task' in checkpoint /chk-7"):
        stage.poll()
    assert StateMismatch.is_permanent


def test_a_priority_event_is_handled_in_the_middle_of_a_buffer() -> None:
    stage = Stage()
    stage.put(frame(b"a") + frame(b"b") + frame(b"cd")[:5])
    assert stage.inputs.poll() == [b"a", b"b"]
    stage.inputs.processed(1)
    stage.queues[0].add_barrier(
        BarrierBuffer(CheckpointBarrier(4, alignment=Alignment.UNALIGNED), DataType.PRIORITY_EVENT, stage.now)
    )
    assert stage.mailbox.is_urgent
    stage.inputs.poll_priority()
    assert stage.log == [("trigger", 4, Alignment.UNALIGNED), ("complete", 4)]
    assert stage.inputs.take_captured(4) == {key_of(0): frame(b"b") + frame(b"cd")[:5]}
    stage.inputs.poll_priority()  # nothing is there any more
    statistics = stage.inputs.statistics()
    assert statistics.completed == 1


def test_a_timeout_is_handled_between_two_records() -> None:
    stage = Stage(2)
    barrier = CheckpointBarrier(4, alignment=Alignment.ALIGNED, aligned_timeout_ns=2_000_000_000)
    stage.queues[0].add_barrier(BarrierBuffer(barrier, DataType.TIMEOUTABLE_ALIGNED_BARRIER, stage.now))
    while stage.poll() is not None:
        pass
    ((deadline_s, callback),) = stage.timers
    assert deadline_s == 2
    stage.clock = 3.0
    callback()
    assert stage.log == []
    stage.mailbox.open()
    assert stage.log == [("trigger", 4, Alignment.UNALIGNED)]
    stage.put_event(CancelCheckpointMarker(4), 1)
    assert stage.poll() == []
    assert stage.log[1:] == [("abort", 4, AbortReason.DECLINED)]


def test_at_least_once_does_not_wait() -> None:
    stage = Stage(2, exactly_once=False)
    for number in (0, 1):
        stage.put_event(CheckpointBarrier(4, alignment=Alignment.AT_LEAST_ONCE), number)
        stage.put(frame(b"x"), number)
    while stage.poll() is not None:
        pass
    assert stage.log == [("trigger", 4, Alignment.AT_LEAST_ONCE), ("complete", 4)]


@pytest.mark.parametrize("gathers", [False, True])
def test_a_record_that_is_too_long_is_refused_by_its_length(gathers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "config", NetworkConfig(max_record_bytes=32 * 1024))
    stage = Stage(takes_arrays=gathers, gathers=gathers)
    stage.put(frame(bytes(32 * 1024 + 1))[:10])
    with pytest.raises(RecordError, match=r"'task' reads from 'p0': record 0 .* 32769"):
        stage.inputs.poll()
    assert stage.pool.statistics().used == 0


def test_producers_that_break_the_rules() -> None:
    stage = Stage(format="int64")
    stage.put(frame(b"short"))
    with pytest.raises(RecordError, match=r"'task' reads from 'p0': .* 8 bytes"):
        stage.inputs.poll()
    assert stage.pool.statistics().used == 0
    stage = Stage()
    stage.put(frame(b"abc")[:5])
    stage.put_event(EndOfPartition())
    assert stage.poll() == []
    with pytest.raises(
        RecordError,
        match=r"task-3: channel 0 \('job/p0/7.2' subpartition 3\) .* 5 bytes",
    ):
        stage.poll()
    stage = Stage()
    stage.put_event(UserEvent("x"))
    with pytest.raises(LocalProtocolError, match="tasks exchange only records, barriers"):
        stage.poll()
