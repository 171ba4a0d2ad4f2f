"""RecordReader and ArrayReader: elements in order, who they came from, and what a bad stream does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError, LocalProtocolError, RecordError
from netstack.base.events import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Event,
    UserEvent,
    data_type_of,
    encode_event,
)
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.buffer.elements import EventBuffer
from netstack.exchange.buffer.lent import LentBuffers
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.local_channel import LocalInputChannel
from netstack.exchange.inbound.union import UnionInputGate
from netstack.exchange.outbound.subpartition import ResultSubpartition
from netstack.exchange.record.formats import format_named
from netstack.exchange.record.framing import LENGTH, frame
from netstack.exchange.record.stream_records import StreamRecords
from netstack.network.handles import InputGate
from netstack.network.reader import ArrayReader, RecordReader
from netstack.network.waiting.gate_waiter import TURN_BUFFERS


class Stage:
    """A gate over local channels, and what their producers put there."""

    def __init__(self, channels: int = 1) -> None:
        self.network = NetworkBufferPool(400, 8)
        self.pool = self.network.create_pool(1, None)
        self.log: list[str] = []
        self.pokes = 0
        now = trio.current_time if trio.lowlevel.in_trio_run() else lambda: 0.0
        self.gate = SingleInputGate(
            None, read_connections=self.read_connections, on_closed=lambda: self.log.append("closed"), now=now
        )
        self.subpartitions = []
        for index in range(channels):
            channel = LocalInputChannel(self.gate, index, ChannelDescriptor("", "p", index))
            self.gate.add_channel(channel)
            subpartition = ResultSubpartition(
                index,
                lambda index: self.log.append(f"consumed {index}"),
                lambda index: self.log.append(f"acknowledged {index}"),
            )
            channel.on_view(subpartition.create_view(channel.on_data_available))
            self.subpartitions.append(subpartition)

    def read_connections(self) -> None:
        self.pokes += 1

    def put(self, data: bytes, index: int = 0) -> None:
        segment = self.pool.try_acquire()
        assert segment is not None
        self.subpartitions[index].add(LentBuffers((memoryview(data),), len(data), [segment], self.pool, 0))

    def put_event(self, event: Event, index: int = 0) -> None:
        self.subpartitions[index].add(EventBuffer(encode_event(event), data_type_of(event)))

    def end(self, index: int = 0) -> None:
        self.put_event(EndOfData(), index)
        self.put_event(EndOfPartition(), index)

    def assert_all_home(self) -> None:
        assert self.pool.statistics().used == 0


# One by one.


async def test_elements_come_in_order_with_their_channel(autojump_clock: MockClock) -> None:
    stage = Stage(2)
    stage.put(frame(b"a") + frame(b"b"), 0)
    stage.put(frame(b"c")[:3], 1)
    stage.put_event(UserEvent("x"), 0)
    stage.put(frame(b"c")[3:] + frame(b""), 1)
    stage.end(0)
    stage.end(1)
    reader = RecordReader(InputGate(stage.gate))
    actual = [(reader.channel_index, element) async for element in reader]
    assert [element for channel, element in actual if channel == 0] == [b"a", b"b", UserEvent("x")]
    assert [element for channel, element in actual if channel == 1] == [b"c", b""]
    assert sorted(stage.log) == ["acknowledged 0", "acknowledged 1", "consumed 0", "consumed 1"]
    stage.assert_all_home()
    with pytest.raises(StopAsyncIteration):
        await reader.__anext__()
    assert await reader.next_records() is None


async def test_next_records_gives_a_buffer_at_a_time_and_never_nothing(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.put(frame(b"abc")[:5])
    stage.put(frame(b"abc")[5:] + frame(b"d"))
    reader = RecordReader(InputGate(stage.gate))
    assert await reader.next_records() == [b"abc", b"d"]
    stage.put_event(UserEvent("x"))
    assert await reader.next_records() == [UserEvent("x")]
    stage.end()
    assert await reader.next_records() is None


@given(data=st.data())
def test_ways_to_read_can_be_mixed(data: st.DataObject) -> None:
    records = [b"%d" % number for number in range(24)]

    async def read() -> list[Any]:
        stage = Stage()
        for start in range(0, len(records), 6):
            stage.put(b"".join(map(frame, records[start : start + 6])))
        stage.end()
        reader = RecordReader(InputGate(stage.gate))
        actual: list[Any] = []
        while True:
            way = data.draw(st.sampled_from(["one", "few", "buffer", "buffer now"]))
            if way == "one":
                element = await anext(reader, None)
                part = None if element is None else [element]
            elif way == "few":
                few = data.draw(st.integers(1, 8))
                part = []
                async for element in reader:
                    part.append(element)
                    if len(part) == few:
                        break
                part = part or None
            else:
                part = await reader.next_records() if way == "buffer" else reader.next_records_nowait()
            if part is None:
                return actual
            actual += part

    assert trio.run(read) == records


async def test_a_gate_has_one_reader() -> None:
    stage = Stage()
    RecordReader(InputGate(stage.gate))
    for make in (lambda: RecordReader(InputGate(stage.gate)), lambda: ArrayReader(InputGate(stage.gate), "<i8")):
        with pytest.raises(LocalProtocolError, match="already has a reader"):
            make()


@pytest.mark.parametrize("as_arrays", [False, True])
async def test_a_gate_that_a_union_gets_while_it_is_read(autojump_clock: MockClock, as_arrays: bool) -> None:
    stages = [Stage(1), Stage(2)]
    union = UnionInputGate([stages[0].gate], missing=1)
    reader: Any = (ArrayReader(InputGate(union), "S1") if as_arrays else RecordReader(InputGate(union))).__aiter__()
    stages[0].put(frame(b"a"))
    assert list(await reader.__anext__()) == list(np.array([b"a"]) if as_arrays else b"a")
    stages[1].put(frame(b"b"), 1)
    union.add(stages[1].gate)
    assert list(await reader.__anext__()) == list(np.array([b"b"]) if as_arrays else b"b")
    for stage in stages:
        for index in range(len(stage.subpartitions)):
            stage.end(index)
    with pytest.raises(StopAsyncIteration):
        await reader.__anext__()


async def test_a_reader_waits_and_is_woken(autojump_clock: MockClock) -> None:
    stage = Stage()
    reader = RecordReader(InputGate(stage.gate))
    got: list[Any] = []

    async def read() -> None:
        async for element in reader:
            got.append(element)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for number in range(3):
            await trio.testing.wait_all_tasks_blocked()
            assert len(got) == number
            assert stage.pokes > number  # before it waits it looks itself
            stage.put(frame(b"%d" % number))
        stage.end()
    assert got == [b"0", b"1", b"2"]


async def test_a_reader_that_never_waits_lets_others_run(autojump_clock: MockClock) -> None:
    stage = Stage()
    for _ in range(2 * TURN_BUFFERS):
        stage.put(frame(b""))
    ran = False

    async def other() -> None:
        nonlocal ran
        ran = True

    reader = RecordReader(InputGate(stage.gate))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(2 * TURN_BUFFERS):
            assert await reader.next_records() == [b""]
        assert ran


async def test_a_barrier_holds_its_channel_until_the_next_element_is_asked_for(autojump_clock: MockClock) -> None:
    stage = Stage()
    barrier = CheckpointBarrier(1)
    stage.put_event(barrier)
    stage.put(frame(b"a"))
    reader = RecordReader(InputGate(stage.gate))
    assert await reader.__anext__() == barrier
    assert stage.subpartitions[0].is_blocked
    assert await reader.__anext__() == b"a"
    assert not stage.subpartitions[0].is_blocked


async def test_a_stream_that_ends_in_a_record_is_told_apart_from_one_that_ends(autojump_clock: MockClock) -> None:
    stage = Stage(2)
    stage.put(frame(b"whole"), 0)
    stage.put(frame(b"torn")[:6], 1)
    stage.end(0)
    stage.end(1)
    reader = RecordReader(InputGate(stage.gate))
    assert await reader.__anext__() == b"whole"
    with pytest.raises(RecordError, match="channel 1 ended after 6 bytes"):
        await reader.__anext__()
    stage.assert_all_home()


async def test_bytes_that_are_no_record_give_their_buffer_back(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.put(frame(b"seven"))
    reader = RecordReader(InputGate(stage.gate), format="int64")
    with pytest.raises(RecordError, match="int64"):
        await reader.__anext__()
    stage.assert_all_home()


async def test_a_closed_gate_ends_the_reader(autojump_clock: MockClock) -> None:
    stage = Stage()
    reader = RecordReader(InputGate(stage.gate))
    reader.close()
    reader.close()
    assert stage.log == ["consumed 0", "closed"]
    with pytest.raises(LocalProtocolError, match="closed"):
        await reader.__anext__()


@pytest.mark.parametrize("from_gate", [False, True])
async def test_a_large_record_goes_through_a_file_that_does_not_outlive_the_reader(
    autojump_clock: MockClock, tmp_path: Path, from_gate: bool
) -> None:
    config = NetworkConfig(spill_threshold_bytes=100 * 1024, spill_directory=str(tmp_path))

    stage = Stage()
    record = bytes(range(256)) * 800
    stage.gate.config = config if from_gate else NetworkConfig(spill_directory="/nowhere")
    reader = RecordReader(InputGate(stage.gate), config=None if from_gate else config)
    stage.put(LENGTH.pack(len(record)) + record[:150_000])
    with trio.move_on_after(1):
        await reader.__anext__()
    descriptors = os.listdir("/proc/self/fd")
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == len(descriptors) - 1
    assert os.listdir(tmp_path) == []


# Tasks.


async def test_next_records_is_a_checkpoint_whether_it_waits_or_not(autojump_clock: MockClock) -> None:
    stage = Stage()
    reader = RecordReader(InputGate(stage.gate))
    stage.put(frame(b"a"))
    with trio.testing.assert_checkpoints():
        assert await reader.next_records() == [b"a"]
    stage.put(frame(b"b"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await reader.next_records()
    assert scope.cancelled_caught
    assert await reader.next_records() == [b"b"]  # nothing is lost
    stage.end()
    with trio.testing.assert_checkpoints():
        assert await reader.next_records() is None


async def test_next_records_nowait_gives_what_has_come(autojump_clock: MockClock) -> None:
    stage = Stage()
    reader = RecordReader(InputGate(stage.gate))
    with trio.testing.assert_no_checkpoints():
        with pytest.raises(trio.WouldBlock):
            reader.next_records_nowait()
        assert stage.pokes == 1
        record = frame(b"abc")
        stage.put(record[:3])
        with pytest.raises(trio.WouldBlock):
            reader.next_records_nowait()
        stage.put(record[3:] + frame(b"d"))
        stage.put_event(UserEvent("x"))
        assert reader.next_records_nowait() == [b"abc", b"d"]
        assert reader.next_records_nowait() == [UserEvent("x")]
        stage.end()
        assert reader.next_records_nowait() is None
    stage.assert_all_home()


@pytest.mark.parametrize("arrays", [False, True])
async def test_two_tasks_on_one_reader_are_told_so(autojump_clock: MockClock, arrays: bool) -> None:
    stage = Stage()
    reader: Any = (
        ArrayReader(InputGate(stage.gate), "<i8") if arrays else RecordReader(InputGate(stage.gate), format="int64")
    )
    got: list[Any] = []

    async def read() -> None:
        got.append(await reader.__anext__())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError, match="another task reads"):
            await reader.__anext__()
        if not arrays:
            with pytest.raises(trio.BusyResourceError):
                await reader.next_records()
            with pytest.raises(trio.BusyResourceError):
                reader.next_records_nowait()
        stage.put(frame(bytes(8)))
    assert len(got) == 1  # the first one is none the worse for it
    with trio.CancelScope() as scope:
        scope.cancel()
        await reader.__anext__()
    stage.put(frame(bytes(8)))
    await reader.__anext__()  # who was cancelled reads no more


# Arrays.


async def test_arrays_hold_whole_records_of_one_channel(autojump_clock: MockClock) -> None:
    stage = Stage(2)
    values = [np.arange(5, dtype="<i4"), np.arange(10, 17, dtype="<i4")]
    for index in (0, 1):
        stream = b"".join(frame(value.tobytes()) for value in values[index])
        for at in range(0, len(stream), 9):
            stage.put(stream[at : at + 9], index)
        stage.end(index)
    reader = ArrayReader(InputGate(stage.gate), "<i4")
    parts: list[list[Any]] = [[], []]
    async for array in reader:
        assert array.dtype == np.dtype("<i4")
        assert len(array) > 0
        parts[reader.channel_index].append(array)
    assert [np.concatenate(part).tolist() for part in parts] == [value.tolist() for value in values]
    stage.assert_all_home()


async def test_an_array_belongs_to_whoever_got_it(autojump_clock: MockClock) -> None:
    stage = Stage()
    reader = ArrayReader(InputGate(stage.gate), record_bytes=2)
    kept = []
    for number in range(40):
        stage.put(frame(bytes([number, number])) * 20)
        kept.append(await reader.__anext__())
    assert all(array.shape == (20, 2) and (array == number).all() for number, array in enumerate(kept))


async def test_events_are_kept_aside_and_the_end_is_the_end(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.put(frame(b"ab"))
    stage.put_event(UserEvent("x"))
    stage.put(frame(b"cd"))
    stage.end()
    reader = ArrayReader(InputGate(stage.gate), record_bytes=2)
    assert [array.tobytes() async for array in reader] == [b"ab", b"cd"]
    assert reader.events == [(0, UserEvent("x"))]
    assert stage.log == ["acknowledged 0", "consumed 0"]


async def test_what_came_before_a_record_of_another_width_is_still_handed_out(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.put(frame(b"ab") + frame(b"cd") + frame(b"wide"))
    reader = ArrayReader(InputGate(stage.gate), record_bytes=2)
    assert (await reader.__anext__()).tobytes() == b"abcd"
    with pytest.raises(RecordError, match="record"):
        await reader.__anext__()
    stage.assert_all_home()


async def test_arrays_of_a_stream_that_ends_in_a_record(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.put(frame(b"ab") + frame(b"cd")[:5])
    stage.end()
    reader = ArrayReader(InputGate(stage.gate), record_bytes=2)
    assert (await reader.__anext__()).tobytes() == b"ab"
    with pytest.raises(RecordError, match="channel 0 ended in the middle of a record"):
        await reader.__anext__()
    reader.close()
    reader.close()


def test_settings_of_arrays_that_cannot_work() -> None:
    gate = InputGate(Stage().gate)
    for arguments in (
        {},
        {"dtype": "<i8", "record_bytes": 8},
        {"record_bytes": 0},
        {"dtype": "V0"},
        {"record_bytes": -1},
        {"record_bytes": 1.5},
        {"record_bytes": "8"},
        {"record_bytes": True},
    ):
        with pytest.raises(ConfigError, match="record"):
            ArrayReader(gate, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"dtype='number'.*; give a numpy dtype"):
        ArrayReader(gate, "number")
    with pytest.raises(ConfigError, match="objects"):
        ArrayReader(gate, object)


# How long a reader waits, and what it has decoded.


async def test_a_reader_is_idle_while_its_gate_is_empty(autojump_clock: MockClock) -> None:
    stage = Stage()
    reader = RecordReader(InputGate(stage.gate))
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def produce() -> None:
            for number in range(3):
                await trio.sleep(2)
                stage.put(frame(b"%d" % number) * 5)
            stage.end()

        async for _ in reader:
            await trio.sleep(0.1)  # the task is busy
    statistics = stage.gate.statistics()
    assert statistics.idle.total_s == pytest.approx(6 - 2 * 0.5)
    assert statistics.idle.longest_s == pytest.approx(2)
    assert statistics.idle.ms_per_s == pytest.approx(1000 * 5 / 6.5)
    assert statistics.records == 15


async def test_a_cancelled_wait_is_over(autojump_clock: MockClock) -> None:
    stage = Stage()
    with trio.move_on_after(3):
        await RecordReader(InputGate(stage.gate)).next_records()
    await trio.sleep(7)
    assert stage.gate.statistics().idle.total_s == pytest.approx(3)


async def test_the_gates_of_a_union_are_idle_together(autojump_clock: MockClock) -> None:
    stages = [Stage(), Stage(2)]
    union = UnionInputGate([stage.gate for stage in stages])
    reader = ArrayReader(InputGate(union), record_bytes=1)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def produce() -> None:
            await trio.sleep(1)
            stages[1].put(frame(b"a") * 4, 1)
            await trio.sleep(1)
            stages[0].put(frame(b"b") * 2)

        assert (len(await reader.__anext__()), len(await reader.__anext__())) == (4, 2)
    parts = [stage.gate.statistics() for stage in stages]
    assert [part.idle.total_s for part in parts] == pytest.approx([2, 2])
    assert [part.records for part in parts] == [2, 4]
    whole = union.statistics()
    assert (whole.idle, whole.records) == (parts[0].idle, 6)
    assert [channel.channel_index for channel in whole.channels] == [0, 1, 2]


@pytest.mark.parametrize("as_flink", [False, True])
async def test_a_buffer_is_recycled_once_it_is_decoded_or_as_flink_after_its_last_record(as_flink: bool) -> None:
    stage = Stage()
    form = format_named("bytes")
    encode = StreamRecords(form).encode if as_flink else form.encode
    config = NetworkConfig.flink() if as_flink else NetworkConfig()
    reader = RecordReader[bytes](InputGate(stage.gate), config=config)
    for numbers in ((1, 2), (3, 4)):
        stage.put(b"".join(frame(bytes(encode(bytes([number])))) for number in numbers))
    held = []
    for number in (1, 2, 3):
        assert await reader.__anext__() == bytes([number])
        held.append(stage.pool.statistics().used)
    assert held == ([2, 2, 1] if as_flink else [1, 1, 0])
    stage.gate.close()
    stage.assert_all_home()
