from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
import trio
import trio.lowlevel
import trio.testing
from trio.testing import MockClock

from netstack import ChannelDescriptor, NetworkConfig, NetworkEnvironment, RecordReader, RecordWriter, open_network
from netstack_bench import run_metrics as observed
from netstack_bench.host import QUEUED, STOLEN, lost_s
from netstack_bench.pacing import clock_ns
from netstack_bench.run_metrics import PERIOD_S, Observation, observing, pause_aside

CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=64 * 1024, heartbeat_interval_s=None)


async def pause(seconds: float) -> dict[str, float]:
    """Does what `pause_aside` does, by the clock of the loop."""
    await trio.sleep(seconds)
    return lost_s()


@pytest.fixture
async def producer() -> AsyncIterator[NetworkEnvironment]:
    async with open_network("memory://observed-producer", CONFIG) as manager:
        yield manager


@pytest.fixture
async def consumer(producer: NetworkEnvironment) -> AsyncIterator[NetworkEnvironment]:
    async with open_network("memory://observed-consumer", CONFIG) as manager:
        yield manager


async def converse(
    producer: NetworkEnvironment, consumer: NetworkEnvironment, slow_s: float
) -> tuple[Observation, Observation]:
    """200 records of half a buffer each; the consumer takes `slow_s` over each."""
    partition = producer.create_partition("p", subpartitions=1)
    writer = RecordWriter(partition)
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
    seen: list[Observation] = []

    async def produce() -> None:
        async with observing(producer, clock_ns(), pause) as observation:
            for _ in range(200):
                await writer.emit(bytes(500))
        seen.insert(0, observation)
        await writer.finish()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        async with observing(consumer, clock_ns(), pause) as observation:
            async for _ in RecordReader(gate):
                await trio.sleep(slow_s)
    seen.append(observation)
    return seen[0], seen[1]


async def test_a_slow_consumer_shows_as_back_pressure(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    produced, consumed = (each.result() for each in await converse(producer, consumer, 0.1))
    assert produced["netstack_output_records_total"] == consumed["netstack_input_records_total"] == 200
    soft, hard = (produced[f"netstack_output_{kind}_backpressured_ms_per_second"] for kind in ("soft", "hard"))
    assert produced["netstack_output_backpressured_ms_per_second"] == soft + hard
    assert 900 < soft + hard <= 1000
    assert consumed["netstack_input_idle_ms_per_second"] < 50
    assert produced["netstack_output_pool_usage_ratio"] > 0.5, "the mean, not the empty pool of the end"
    assert not any(name.startswith("netstack_input") for name in produced)
    assert not any(name.startswith("netstack_output") for name in consumed)


async def test_waits_are_counted_from_the_start_to_the_stop(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, "later")])
    await trio.sleep(5)
    async with observing(consumer, clock_ns(), pause) as observation:
        with trio.move_on_after(1):
            await RecordReader(gate).__anext__()
        await trio.sleep(3)
    await trio.sleep(7)
    actual = observation.result()
    assert actual["netstack_input_idle_ms_per_second"] == pytest.approx(250, rel=0.02)
    gate.close()


async def test_counts_go_on_after_the_stop(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    writer = RecordWriter(producer.create_partition("p", subpartitions=1))
    async with observing(producer, clock_ns(), pause) as observation:
        await trio.lowlevel.checkpoint()
    await writer.emit(b"one")
    assert observation.result()["netstack_output_records_total"] == 1


async def test_the_timeline_tells_stretch_by_stretch(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    produced, consumed = (each.timeline() for each in await converse(producer, consumer, 0.1))
    assert [sample["t_s"] for sample in produced] == sorted({sample["t_s"] for sample in produced})
    assert produced[-1]["records"] == consumed[-1]["records"] == 200
    common = {"t_s", "records", "pool_usage", QUEUED, STOLEN}
    assert all(sample.keys() == {*common, "backpressured_ms_per_s"} for sample in produced), (
        "a source is never idle for want of input"
    )
    assert all(sample.keys() == {*common, "idle_ms_per_s", "busy_ms_per_s"} for sample in consumed)
    waited = [sample["backpressured_ms_per_s"] for sample in produced]
    assert min(waited[1:]) > 900
    assert max(waited) <= 1000


@pytest.mark.parametrize(("is_paced", "period_s"), [(False, PERIOD_S), (True, 0.4)])
async def test_a_long_timeline_keeps_every_second_sample(
    autojump_clock: MockClock,
    producer: NetworkEnvironment,
    monkeypatch: pytest.MonkeyPatch,
    is_paced: bool,
    period_s: float,
) -> None:
    for name in ("_COST", "_COST_AT_RATE"):
        monkeypatch.setattr(observed, name, 1e9)  # a busy machine must not make the samples rarer

    producer.create_partition("p", subpartitions=1)
    async with observing(producer, clock_ns(), pause, is_paced=is_paced) as observation:
        await trio.sleep(1000 * period_s)
    actual = [sample["t_s"] for sample in observation.timeline()]
    assert 100 < len(actual) <= 240
    steps = [after - before for before, after in itertools.pairwise(actual)]
    assert max(steps) == pytest.approx(8 * period_s)
    assert actual[-1] == pytest.approx(1000 * period_s, rel=0.01)


async def test_samples_are_not_timed_by_the_loop(mock_clock: MockClock) -> None:
    lost = await pause_aside(0.001)  # a timer of the loop would wait for ever: its clock stands still
    assert set(lost) == {QUEUED, STOLEN}
    assert mock_clock.current_time() == 0
