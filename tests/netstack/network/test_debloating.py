"""Debloating: what a period measures, when there is a timer, and that a slow consumer has little under way."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.events import DataType, EndOfPartition, encode_event
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.inbound.debloat import BufferDebloater
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.statistics import ChannelStatistics
from netstack.exchange.outbound.partition import ResultPartition
from netstack.network.debloating import GateDebloating
from netstack.network.environment import open_network
from netstack.network.handles import InputGate
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter
from netstack.testing.scripted import VirtualHost

KIB = 1024
PERIOD_S = 0.25  # of the unit tests: exact in binary


def nothing() -> None:
    pass


class FakeChannel:
    """A channel of which the test says what was polled."""

    is_enqueued = is_first = is_finished = has_priority = False
    index = 0

    def __init__(self, gate: SingleInputGate) -> None:
        self.gate = gate
        self.queue: deque[Buffer] = deque()
        self.polled_bytes = 0
        self.backlog = 0
        self.told: list[int] = []

    def put(self, count: int, data_type: DataType = DataType.DATA) -> None:
        self.queue.append(Buffer(memoryview(bytes(count)), count, data_type, None))
        self.gate.enqueue(self)

    def poll(self) -> Buffer | None:
        if not self.queue:
            return None
        buffer = self.queue.popleft()
        buffer.more_available = bool(self.queue)
        if buffer.data_type is DataType.DATA:
            self.polled_bytes += buffer.length
        return buffer

    def announce_buffer_size(self, size_bytes: int) -> None:
        self.told.append(size_bytes)

    def widen(self, window: int) -> None: ...

    def measure(self) -> tuple[int, int]:
        return self.polled_bytes, len(self.queue) + self.backlog

    def resume(self) -> None: ...

    acknowledge_end_of_data = release = resume

    def statistics(self) -> ChannelStatistics:
        raise NotImplementedError


class Stage:
    """A gate whose clock the test moves, debloated to one second, without smoothing and threshold."""

    def __init__(self, *, waiting_bytes: int = 0, start_bytes: int | None = None, samples: int = 1) -> None:
        self.host = VirtualHost(nothing)
        self.gate = SingleInputGate(None, read_connections=nothing, on_closed=nothing, now=self.host.now)
        self.channel = FakeChannel(self.gate)
        self.gate.add_channel(self.channel)
        if waiting_bytes:
            self.channel.put(waiting_bytes)
        config = NetworkConfig(
            debloat_period_s=PERIOD_S,
            debloat_samples=samples,
            debloat_threshold_percent=0,
            debloat_start_buffer_bytes=start_bytes,
        )
        GateDebloating(self.gate, config, 1.0, call_at=self.host.call_at)

    @property
    def has_timer(self) -> bool:
        return self.host.pending_calls > 0

    def poll(self) -> None:
        buffer = self.gate.poll()
        assert buffer is not None
        buffer.recycle()

    def wait(self, seconds: float) -> None:
        """The reader waits for data."""
        self.gate.idle.begin(self.host.now())
        self.host.advance(seconds)
        self.gate.idle.end(self.host.now())


# When there is a timer.


def test_data_starts_the_timer_and_an_empty_period_ends_it() -> None:
    stage = Stage()
    stage.host.advance(10)
    assert not stage.has_timer
    for _ in range(2):
        stage.channel.put(100)
        assert stage.has_timer
        stage.poll()
        stage.wait(PERIOD_S)
        assert stage.has_timer  # something was polled: there may be more
        stage.wait(PERIOD_S)
        assert not stage.has_timer
        stage.wait(10)


def test_more_data_starts_no_second_timer() -> None:
    stage = Stage()
    for _ in range(3):
        stage.channel.put(100)
        stage.poll()
    assert stage.host.pending_calls == 1


def test_data_that_was_there_before_is_seen() -> None:
    assert Stage(waiting_bytes=10).has_timer


def test_an_event_is_data_enough_to_look() -> None:
    stage = Stage()
    stage.channel.put(1, DataType.PRIORITY_EVENT)
    assert stage.has_timer


@pytest.mark.parametrize("end", ["closed", "finished"])
def test_a_gate_that_ended_has_no_timer(end: str) -> None:
    stage = Stage()
    stage.channel.put(100)
    stage.channel.put(100)
    if end == "closed":
        stage.gate.close()
    else:
        payload = encode_event(EndOfPartition())
        stage.channel.queue.append(Buffer(memoryview(payload), len(payload), DataType.END_OF_PARTITION, None))
        for _ in range(3):
            stage.poll()
    stage.host.advance(10)
    assert not stage.has_timer
    assert stage.channel.told == []


# What a period measures.


def test_throughput_is_what_was_polled_by_the_time_of_the_period() -> None:
    stage = Stage()
    stage.channel.put(1000)
    stage.channel.put(500)
    stage.channel.backlog = 3
    stage.poll()
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [1000]  # 4,000 bytes/s for a second, in 4 buffers
    stage.poll()
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [1000, 667]  # 2,000 bytes/s in 3
    assert stage.gate.debloater is not None
    assert stage.gate.debloater.announced_bytes == 667
    assert stage.gate.debloater.estimated_time_to_consume_s == 667 * 3 / 2000


def test_time_in_which_the_gate_was_empty_does_not_count() -> None:
    stage = Stage()
    stage.channel.put(1000)
    stage.poll()
    stage.host.advance(PERIOD_S / 5)
    stage.wait(PERIOD_S * 4 / 5)
    assert stage.channel.told == [20000]


def test_a_reader_that_takes_longer_than_a_period_is_measured_when_it_asks_again() -> None:
    stage = Stage(samples=20)
    for _ in range(3):
        stage.channel.put(2000)
    stage.host.advance(9.5 * PERIOD_S)
    assert stage.channel.told == []
    assert stage.has_timer
    stage.poll()
    stage.host.advance(PERIOD_S / 2)
    (reported,) = stage.channel.told
    alike = BufferDebloater(target_s=1.0, samples=20, threshold_percent=0, min_bytes=256, max_bytes=32768)
    for _ in range(10):
        alike.recalculate(2000 / (10 * PERIOD_S), 2)
    assert reported == alike.announced_bytes


def test_a_reader_that_is_busy_with_the_last_buffer_is_not_slow() -> None:
    stage = Stage(start_bytes=4096)
    stage.channel.put(1000)
    stage.poll()
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [4000]
    stage.host.advance(100 * PERIOD_S)
    assert stage.channel.told == [4000]


def test_without_time_the_last_throughput_stands() -> None:
    stage = Stage(start_bytes=4096)
    stage.channel.put(1000)
    stage.poll()
    stage.wait(PERIOD_S)
    assert stage.channel.told == []  # nothing is known yet
    stage.channel.put(1000)
    stage.poll()
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [4000]
    stage.channel.put(1000)
    stage.poll()
    stage.channel.backlog = 2
    stage.wait(PERIOD_S)
    assert stage.channel.told == [4000, 2000]


# End to end, in virtual time.

SEGMENT_BYTES = 32 * KIB
RECORD_BYTES = 96
FRAMED_BYTES = RECORD_BYTES + 4
TARGET_S = 1.0
PLAIN = NetworkConfig(heartbeat_interval_s=None)
DEBLOATED = replace(PLAIN, debloat_target_s=TARGET_S)

names = itertools.count()


@dataclass
class Consumer:
    """Reads at a given rate, and checks that every record comes in order."""

    gate: InputGate
    bytes_per_s: float
    seconds_a_buffer: float = 0.0
    records: int = 0

    async def run(self) -> None:
        reader = RecordReader(self.gate)
        while (records := await reader.next_records()) is not None:
            assert [int(record) for record in records] == list(range(self.records, self.records + len(records)))
            self.records += len(records)
            await trio.sleep(len(records) * FRAMED_BYTES / self.bytes_per_s + self.seconds_a_buffer)

    def bytes_under_way(self, partition: ResultPartition) -> int:
        """Written and not yet polled."""
        waiting = sum(part.queued_bytes for part in partition.statistics().subpartitions)
        return waiting + sum(part.queued_bytes for part in self.gate.statistics().channels if not part.is_local)


async def produce(writer: RecordWriter) -> None:
    for number in itertools.count():
        await writer.emit(b"%096d" % number)


@pytest.mark.slow
@pytest.mark.parametrize("local", [True, False])
async def test_a_slow_consumer_has_little_under_way_and_a_fast_one_whole_buffers(
    autojump_clock: MockClock, local: bool
) -> None:
    rate = 20_000.0
    async with (
        open_network(f"memory://debloating-{next(names)}", PLAIN if not local else DEBLOATED) as producer,
        open_network(f"memory://debloating-{next(names)}", DEBLOATED) as other,
        trio.open_nursery() as nursery,
    ):
        partition = producer.create_partition("p", subpartitions=1)
        (subpartition,) = partition._engine.subpartitions
        gate = await (producer if local else other).open_gate([ChannelDescriptor(producer.address, "p")])
        consumer = Consumer(gate, rate)
        nursery.start_soon(produce, RecordWriter(partition, buffer_timeout_s=0.1))
        nursery.start_soon(consumer.run)

        await trio.sleep(1)
        assert consumer.bytes_under_way(partition) > 5 * rate * TARGET_S  # all buffers, full
        await trio.sleep(60)
        for _ in range(20):
            await trio.sleep(0.37)
            assert consumer.bytes_under_way(partition) == pytest.approx(rate * TARGET_S, rel=0.4)
        actual = gate.statistics()
        assert actual.debloated_buffer_bytes == subpartition.buffer_size
        assert actual.debloated_buffer_bytes is not None
        assert actual.debloated_buffer_bytes < SEGMENT_BYTES // 8
        assert actual.estimated_time_to_consume_s == pytest.approx(TARGET_S, rel=0.4)

        consumer.bytes_per_s = 1e12
        consumer.seconds_a_buffer = 0.01
        await trio.sleep(15)
        assert subpartition.buffer_size == SEGMENT_BYTES
        assert gate.statistics().debloated_buffer_bytes == SEGMENT_BYTES
        assert consumer.bytes_under_way(partition) > 5 * SEGMENT_BYTES
        nursery.cancel_scope.cancel()


async def test_a_start_size_is_told_with_the_channel_local_or_not(autojump_clock: MockClock) -> None:
    config = replace(DEBLOATED, debloat_start_buffer_bytes=KIB)
    async with (
        open_network(f"memory://debloating-{next(names)}", PLAIN) as producer,
        open_network(f"memory://debloating-{next(names)}", config) as consumer,
    ):
        descriptors = [ChannelDescriptor(producer.address, "p"), ChannelDescriptor(consumer.address, "q")]
        gate = await consumer.open_gate(descriptors)
        for manager, name in ((producer, "p"), (consumer, "q")):
            partition = manager.create_partition(name, subpartitions=1)
            await trio.testing.wait_all_tasks_blocked()
            assert partition._engine.subpartitions[0].buffer_size == KIB
            writer = RecordWriter(partition)
            for number in range(100):
                await writer.emit(b"%096d" % number)
            assert partition.statistics().buffers == 100 * FRAMED_BYTES // KIB
            writer.close()
        assert gate.statistics().debloated_buffer_bytes == KIB
        assert gate.statistics().estimated_time_to_consume_s is None


async def test_without_a_target_nothing_is_measured_or_told(autojump_clock: MockClock) -> None:
    config = replace(PLAIN, debloat_start_buffer_bytes=KIB)
    async with open_network(f"memory://debloating-{next(names)}", config) as manager:
        partition = manager.create_partition("p", subpartitions=1)
        gate = await manager.open_gate([ChannelDescriptor(manager.address, "p")])
        assert partition._engine.subpartitions[0].buffer_size > SEGMENT_BYTES
        assert gate._engine.on_data is None
        assert gate.statistics().debloated_buffer_bytes is None
