"""RecordWriter: waiting for buffers, the buffer timeout, and calls that cannot work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from record_streams import split_stream
from trio.testing import MockClock

from netstack.base.errors import ConfigError, ConsumerLost, LocalProtocolError, PoolDestroyed, RecordError
from netstack.base.events import DataType, EndOfData, UserEvent, decode_event
from netstack.base.ids import PartitionId, ResultPartitionType
from netstack.base.timing.deadlines import Deadlines
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.outbound.selector import RebalanceSelector
from netstack.exchange.record.formats import RecordFormat
from netstack.exchange.record.framing import frame
from netstack.network.handles import ResultPartition as Handle
from netstack.network.waiting.parking import TaskParking
from netstack.network.writer import LEND_GRACE_S, RecordWriter

SIZE = 64


class Host:
    """A `PartitionHost` on trio's clock, without connections."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.call_at = self.deadlines.call_at
        self.now = trio.current_time
        self.ticks = trio.current_time
        self.settled = 0

    def flush_connections(self) -> None:
        pass

    hold = flush_held = flush_connections

    def settle(self) -> None:
        self.settled += 1


class Stage:
    def __init__(self, *, subpartitions: int = 1, segments: int = 3, segment_bytes: int = SIZE, **options: Any) -> None:
        self.network = NetworkBufferPool(segments, segment_bytes)
        self.host = Host()
        self.partition = ResultPartition(
            PartitionId("p"),
            ResultPartitionType.PIPELINED,
            subpartitions,
            self.network.create_pool(subpartitions + 1, None),
            on_released=lambda partition: None,
            host=self.host,
        )
        self.writer = RecordWriter(Handle(self.partition), **options)
        self.views = [self.partition.create_view(index, lambda: None) for index in range(subpartitions)]

    def read(self, subpartition: int = 0, limit: int = 1000) -> bytes:
        actual = bytearray()
        view = self.views[subpartition]
        while limit and view.is_available(has_credit=True) and (buffer := view.poll()) is not None:
            if buffer.data_type is DataType.DATA:
                actual += buffer.contiguous()
            buffer.recycle()
            limit -= 1
        return bytes(actual)


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_emit_waits_for_a_buffer_and_goes_on_when_one_is_back(autojump_clock: MockClock) -> None:
    stage = Stage(buffer_timeout_s=None)
    written = 0

    async def write() -> None:
        nonlocal written
        for _ in range(8):
            await stage.writer.emit(bytes(60))
            written += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for expected in (3, 4, 5):
            await settle()
            assert written == expected
            assert stage.read(limit=1) == frame(bytes(60))
        await settle()
        stage.read()
        await settle()
        stage.read()
    assert stage.partition.statistics().records == 8


async def test_a_type_checker_knows_what_emit_nowait_takes(autojump_clock: MockClock) -> None:
    stage = Stage(format="str")
    writer: RecordWriter[str] = stage.writer
    with pytest.raises(RecordError):
        writer.emit_nowait(3)  # type: ignore[arg-type]  # mypy fails here if it takes this
    writer.emit_nowait("word")


async def test_emit_nowait_refuses_what_has_no_buffer_and_writes_nothing_of_it(autojump_clock: MockClock) -> None:
    stage = Stage(buffer_timeout_s=None)
    stage.writer.emit_nowait(bytes(100))
    with pytest.raises(trio.WouldBlock):
        stage.writer.emit_nowait(bytes(200))
    stage.writer.emit_nowait(b"fits")
    await stage.writer.flush()
    assert stage.read() == frame(bytes(100)) + frame(b"fits")


async def test_a_record_larger_than_all_buffers_goes_through_them(autojump_clock: MockClock) -> None:
    stage = Stage(buffer_timeout_s=None)
    record = bytes(range(256)) * 10
    received = bytearray()

    async def read() -> None:
        while len(received) < len(record) + 4:
            await trio.sleep(1)
            received.extend(stage.read())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await stage.writer.emit(record)
        await stage.writer.flush()
    assert received == frame(record)


async def test_two_tasks_cannot_emit_at_once(autojump_clock: MockClock) -> None:
    stage = Stage(buffer_timeout_s=None)

    async def write() -> None:
        await stage.writer.emit(bytes(1000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await settle()
        with pytest.raises(trio.BusyResourceError, match="one task at a time"):
            await stage.writer.emit(bytes(1000))
        with pytest.raises(trio.BusyResourceError):
            await stage.writer.emit_batch(np.zeros((100, 50), np.uint8))
        with pytest.raises(trio.BusyResourceError):
            await stage.writer.broadcast_event(UserEvent("e"))
        with pytest.raises(trio.WouldBlock):
            stage.writer.emit_nowait(b"into the middle of the other's record")
        received = bytearray()
        while len(received) < 1004:
            received.extend(stage.read())
            await settle()
            stage.partition.flush_all()
    assert received == frame(bytes(1000))


async def test_the_buffer_timeout_by_the_clock(autojump_clock: MockClock) -> None:
    stage = Stage(subpartitions=2, segments=8, buffer_timeout_s=0.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.host.deadlines.run)
        await stage.writer.emit(b"a")
        assert (stage.read(0), stage.read(1)) == (frame(b"a"), b"")
        await stage.writer.emit(b"b")
        assert (stage.read(0), stage.read(1)) == (b"", frame(b"b"))
        await stage.writer.emit(b"c")
        await trio.sleep(0.4)
        assert (stage.read(0), stage.read(1)) == (b"", b"")
        await trio.sleep(0.11)
        assert (stage.read(0), stage.read(1)) == (frame(b"c"), b"")
        nursery.cancel_scope.cancel()
    assert stage.partition.statistics().flushes_timeout == 3


async def test_lent_memory_is_waited_for_a_moment_and_then_copied(autojump_clock: MockClock) -> None:
    stage = Stage(segments=30, segment_bytes=8192, buffer_timeout_s=None)
    array = np.ones((2, 20_000), np.uint8)
    start = trio.current_time()
    await stage.writer.emit_batch(array)
    assert trio.current_time() - start == pytest.approx(LEND_GRACE_S)
    array[:] = 0
    stage.writer.close()
    assert stage.read() == frame(b"\1" * 20_000) * 2


async def test_a_long_array_of_short_records_is_lent_too(autojump_clock: MockClock) -> None:
    stage = Stage(segments=30, segment_bytes=8192, buffer_timeout_s=None)
    rows = np.arange(10_000).view(np.uint8).reshape(-1, 8)
    expected = rows.tobytes()
    start = trio.current_time()
    await stage.writer.emit_batch(rows)
    assert trio.current_time() - start == pytest.approx(LEND_GRACE_S)
    rows[:] = 0
    stage.writer.close()
    assert b"".join(split_stream(stage.read())) == expected


async def test_lent_memory_that_was_sent_is_not_waited_for(autojump_clock: MockClock) -> None:
    stage = Stage(segments=30, segment_bytes=8192, buffer_timeout_s=None)
    received = bytearray()
    start = trio.current_time()

    async def read() -> None:
        received.extend(stage.read())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await stage.writer.emit_batch(np.ones((2, 20_000), np.uint8))
    assert trio.current_time() == start
    assert stage.host.settled == 0
    stage.writer.close()
    assert bytes(received) + stage.read() == frame(b"\1" * 20_000) * 2


async def test_lent_memory_wakes_its_writer_once_however_many_buffers_return(autojump_clock: MockClock) -> None:
    parking = TaskParking()
    wake, woken = parking.wake, 0

    def count() -> None:
        nonlocal woken
        woken += 1
        wake()

    parking.wake = count  # type: ignore[method-assign]
    stage = Stage(segments=60, segment_bytes=8192, buffer_timeout_s=None, parking=parking)

    async def read() -> None:
        await settle()  # the writer waits for its memory
        for _ in range(20):
            stage.read(limit=1)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        # Twenty full buffers of its own memory, in two runs.
        await stage.writer.emit_batch(np.ones((2, 82_000), np.uint8))
    assert stage.host.settled == 0
    assert woken == 1
    await stage.writer.emit_batch(np.ones((2, 20_000), np.uint8))
    stage.read()
    assert woken == 1, "nobody waits any more"


async def test_finish_says_whether_the_job_drains_and_comes_once(autojump_clock: MockClock) -> None:
    stage = Stage()
    await stage.writer.finish(drain=False)
    buffer = stage.views[0].poll()
    assert buffer is not None
    assert decode_event(buffer.memory) == EndOfData(drain=False)
    with pytest.raises(LocalProtocolError, match="finished"):
        await stage.writer.emit(b"late")
    with pytest.raises(LocalProtocolError, match="finished"):
        await stage.writer.broadcast_event(UserEvent("late"))


async def test_waiting_for_consumers_ends_when_they_acknowledge_leave_or_the_partition_goes(
    autojump_clock: MockClock,
) -> None:
    for end, raised in (("acknowledge", ""), ("close", ""), ("lose", "ConsumerLost"), ("release", "PoolDestroyed")):
        stage = Stage()
        await stage.writer.finish()
        done = trio.Event()
        reported: list[str] = []

        async def wait(stage: Stage = stage, done: trio.Event = done, reported: list[str] = reported) -> None:
            try:
                await stage.writer.wait_consumed()
            except (ConsumerLost, PoolDestroyed) as error:
                reported.append(type(error).__name__)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await settle()
            assert not done.is_set()
            if end == "acknowledge":
                stage.read()
                stage.views[0].acknowledge_end_of_data()
            elif end == "close":
                stage.views[0].acknowledge_end_of_data()
                stage.views[0].release()
            elif end == "lose":
                stage.views[0].release()
            else:
                stage.partition.release()
        assert reported == [raised] * bool(raised)


async def test_calls_that_may_wait_are_checkpoints(autojump_clock: MockClock) -> None:
    stage = Stage(segments=20)
    with trio.testing.assert_checkpoints():
        await stage.writer.flush()
    with trio.testing.assert_checkpoints():
        await stage.writer.emit_batch(np.zeros(3, "V4"))
    with trio.testing.assert_checkpoints():
        await stage.writer.broadcast_event(UserEvent("x"))
    with trio.testing.assert_no_checkpoints():
        await stage.writer.emit(b"a record that has a buffer costs no turn of the scheduler")
    with trio.testing.assert_checkpoints():
        await stage.writer.finish()
    stage.read()
    stage.views[0].acknowledge_end_of_data()
    with trio.testing.assert_checkpoints():
        await stage.writer.wait_consumed()


async def test_a_release_takes_the_open_buffers_from_the_writer(autojump_clock: MockClock) -> None:
    for end in ("release", "fail"):
        stage = Stage(subpartitions=2, segments=8)
        await stage.writer.emit(b"a")
        await stage.writer.emit(b"b")
        if end == "fail":
            stage.partition.fail("on purpose")
        else:
            stage.partition.release()
        assert stage.network.statistics().lent_segments == 0
        for call in (stage.writer.emit(b"c"), stage.writer.emit_batch(np.zeros((30, 9), np.uint8))):
            with pytest.raises((LocalProtocolError, PoolDestroyed), match="'p'"):
                await call
        with pytest.raises((LocalProtocolError, PoolDestroyed)):
            stage.writer.emit_nowait(b"c")
        stage.writer.close()
        stage.writer.close()
        assert stage.network.statistics().lent_segments == 0


async def test_what_is_no_batch_is_refused_and_nothing_of_it_written(autojump_clock: MockClock) -> None:
    stage = Stage()
    for batch in (np.zeros((2, 2)), np.array([None, "x"], object)):
        with pytest.raises(RecordError, match="array of"):
            await stage.writer.emit_batch(batch)
    for thing in ([1, 2, 3], None, 7):
        with pytest.raises(RecordError):
            await stage.writer.emit_batch(thing)  # type: ignore[arg-type]
    await stage.writer.emit_batch(np.empty((0, 5), np.uint8))
    await stage.writer.flush()
    assert stage.read() == b""


async def test_what_is_no_event_is_refused(autojump_clock: MockClock) -> None:
    with pytest.raises(ConfigError, match="given a str; give"):
        await Stage().writer.broadcast_event("x")  # type: ignore[arg-type]


async def test_settings_that_cannot_work(autojump_clock: MockClock) -> None:
    with pytest.raises(ConfigError, match=r"buffer_timeout_s=-1; give 0"):
        Stage(buffer_timeout_s=-1)
    with pytest.raises(ConfigError, match="'xml'"):
        Stage(format="xml")


async def test_the_writer_knows_its_partition(autojump_clock: MockClock) -> None:
    stage = Stage()
    assert stage.writer._partition is stage.partition


# Back-pressure: which kind, and how long.


class Reader:
    """Takes one buffer a second."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    async def run(self) -> None:
        while True:
            await trio.sleep(1)
            self.stage.read(limit=1)


async def pressed(stage: Stage, write: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Seconds of soft and hard back-pressure while `write` runs against a slow reader."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Reader(stage).run)
        await write()
        nursery.cancel_scope.cancel()
    statistics = stage.partition.statistics()
    return statistics.soft_backpressured.total_s, statistics.hard_backpressured.total_s


async def test_waiting_for_the_first_buffer_of_a_record_is_soft(autojump_clock: MockClock) -> None:
    stage = Stage(buffer_timeout_s=None)

    async def write() -> None:
        for _ in range(8):
            await stage.writer.emit(bytes(60))  # a buffer each

    assert await pressed(stage, write) == pytest.approx((5, 0))
    statistics = stage.partition.statistics()
    assert statistics.soft_backpressured.longest_s == pytest.approx(1)
    assert statistics.soft_backpressured.ms_per_s == pytest.approx(1000)
    assert statistics.backpressured_ms_per_s == statistics.soft_backpressured.ms_per_s


async def test_a_record_that_only_filled_an_open_buffer_still_waits_for_its_first_one(
    autojump_clock: MockClock,
) -> None:
    stage = Stage(buffer_timeout_s=None)

    async def write() -> None:
        for _ in range(9):
            await stage.writer.emit(bytes(40))  # the second begins where the first left 20 bytes

    async def write_batch() -> None:
        await stage.writer.emit_batch(np.zeros((9, 40), np.uint8))

    soft, hard = await pressed(stage, write)
    assert soft > 2
    assert hard == 0
    more, hard = await pressed(stage, write_batch)
    assert more > soft + 2
    assert hard == 0


async def test_waiting_inside_a_record_is_hard(autojump_clock: MockClock) -> None:
    stage = Stage(buffer_timeout_s=None)

    async def write() -> None:
        await stage.writer.emit(bytes(6 * SIZE - 4))

    assert await pressed(stage, write) == pytest.approx((0, 3))
    assert await pressed(stage, write) == pytest.approx((1, 3 + 5))


async def test_a_batch_is_pressed_by_where_it_stands(autojump_clock: MockClock) -> None:
    stage = Stage(buffer_timeout_s=None)

    async def write_whole() -> None:
        await stage.writer.emit_batch(np.zeros((6, 60), np.uint8))  # a buffer each

    async def write_spanning() -> None:
        await stage.writer.emit_batch(np.zeros((2, 3 * SIZE - 4), np.uint8))  # three buffers each

    assert await pressed(stage, write_whole) == pytest.approx((3, 0))
    assert await pressed(stage, write_spanning) == pytest.approx((3 + 2, 4))


async def test_completing_a_torn_record_is_hard_and_cancelled_waits_end(autojump_clock: MockClock) -> None:
    stage = Stage(buffer_timeout_s=None)
    with trio.move_on_after(2):
        await stage.writer.emit(bytes(6 * SIZE - 4))
    with trio.move_on_after(3):
        await stage.writer.broadcast_event(UserEvent("e"))
    await trio.sleep(10)
    statistics = stage.partition.statistics()
    assert statistics.hard_backpressured.total_s == pytest.approx(5)
    assert statistics.soft_backpressured.total_s == 0


async def test_waiting_for_lent_memory_to_be_sent_is_soft(autojump_clock: MockClock) -> None:
    stage = Stage(segments=30, segment_bytes=8192, buffer_timeout_s=None)
    await stage.writer.emit_batch(np.ones((2, 20_000), np.uint8))
    statistics = stage.partition.statistics()
    assert statistics.soft_backpressured.total_s == pytest.approx(LEND_GRACE_S)
    assert statistics.hard_backpressured.total_s == 0


# Arguments that fit no writer.


async def test_a_partition_has_one_writer() -> None:
    stage = Stage()
    with pytest.raises(LocalProtocolError, match="partition 'p' already has a writer"):
        RecordWriter(Handle(stage.partition))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"buffer_timeout_s": float("nan")}, "buffer_timeout_s=nan"),
        ({"buffer_timeout_s": "1"}, "buffer_timeout_s='1'"),
        ({"format": None}, "format=None; give one of bytes, str"),
        ({"format": int}, "format=<class 'int'>; give one of"),
        ({"selector": RebalanceSelector}, "give an object of a subclass of ChannelSelector"),
        ({"selector": lambda record: 0}, "or CustomSelector"),
    ],
)
async def test_arguments_of_the_wrong_type(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Stage(**options)


@pytest.mark.parametrize("format", ["str", "msgpack", "arrow"])
@pytest.mark.parametrize("dtype", ["f8", "i8", "u1"])
async def test_formats_without_an_array_type_take_no_arrays(format: str, dtype: str) -> None:
    stage = Stage(format=format)
    with pytest.raises(RecordError, match="their width varies"):
        await stage.writer.emit_batch(np.zeros(3, dtype))
    assert stage.partition.statistics().records == 0


async def test_an_array_without_a_dimension_is_no_batch() -> None:
    with pytest.raises(RecordError, match="an array without a dimension"):
        await Stage(format="int64").writer.emit_batch(np.array(3))


@pytest.mark.parametrize("encoded", [None, "text", [b"a"], np.zeros(3), memoryview(np.zeros(3))])
async def test_a_format_whose_encode_returns_no_bytes_is_named(encoded: Any) -> None:
    class Own(RecordFormat):
        name = "own"

        def encode(self, record: Any) -> Any:
            return encoded if record else b"ab"

        def decode(self, view: memoryview) -> Any:
            return bytes(view)

    stage = Stage(format=Own(), buffer_timeout_s=0)
    await stage.writer.emit(0)
    with pytest.raises(RecordError, match="format own returned"):
        await stage.writer.emit(1)
    await stage.writer.emit(0)
    assert stage.read() == frame(b"ab") * 2
