"""What the catalogue reads of a TaskManager, and how a task spent its time."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import trio
import trio.testing
from trio_runs import run_virtual

from netstack.base.config import NetworkConfig
from netstack.base.ids import ChannelDescriptor
from netstack.base.timing.waits import WaitStatistics
from netstack.exchange.outbound.selector import BroadcastSelector
from netstack.network.connection.statistics import NetworkStatistics
from netstack.network.environment import open_network
from netstack.network.handles import InputGate
from netstack.network.metrics.catalogue import CATALOGUE
from netstack.network.metrics.samples import TaskTimes, as_dict, samples
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=64 * 1024, heartbeat_interval_s=None)
RECORDS = 300
PAYLOAD_BYTES = 100


async def run_a_little(name: str) -> tuple[NetworkStatistics, NetworkStatistics]:
    """What a TaskManager that produces (and consumes a part itself), and another that consumes, say at the end."""
    async with (
        open_network(f"memory://{name}-producer", CONFIG) as producer,
        open_network(f"memory://{name}-consumer", replace(CONFIG, debloat_target_s=1.0)) as consumer,
        trio.open_nursery() as nursery,
    ):
        writer = RecordWriter(
            producer.create_partition("p", subpartitions=3), selector=BroadcastSelector(), buffer_timeout_s=0.01
        )

        async def read(gate: InputGate) -> None:
            async for _ in RecordReader(gate):
                await trio.sleep(0.01)  # time in which there is something to read

        async def write() -> None:
            for _ in range(RECORDS):
                await writer.emit(bytes(PAYLOAD_BYTES))

        nursery.start_soon(read, await producer.open_gate([ChannelDescriptor(producer.address, "p", 0)]))
        await consumer.open_gate([ChannelDescriptor(producer.address, "p", 1)])  # nobody reads it
        nursery.start_soon(read, await consumer.open_gate([ChannelDescriptor(producer.address, "p", 2)]))
        nursery.start_soon(write)
        await trio.sleep(10)
        actual = producer.statistics(), consumer.statistics()
        nursery.cancel_scope.cancel()
    return actual


def statistics_of(name: str) -> tuple[NetworkStatistics, NetworkStatistics]:
    return run_virtual(run_a_little, name)


def test_every_metric_has_finite_values_after_a_little_run() -> None:
    for detailed in (False, True):
        seen: set[str] = set()
        for statistics in statistics_of(f"metrics-{detailed}"):
            actual = samples(statistics, detailed=detailed)
            keys = [(sample.metric.name, *sample.labels.values()) for sample in actual]
            assert len(set(keys)) == len(keys)
            for metric, labels, value in actual:
                assert math.isfinite(value), metric.name
                assert value >= 0, metric.name
                assert tuple(labels) == metric.scope.labels
            seen |= {sample.metric.name for sample in actual}
        of_slots = {metric.name for metric in CATALOGUE if metric.scope.labels == ("slot",)}  # their supervisor's
        assert seen == {metric.name for metric in CATALOGUE if detailed or not metric.is_detailed} - of_slots


def test_the_values_are_those_of_the_run() -> None:
    producer, consumer = (as_dict(statistics) for statistics in statistics_of("metrics-values"))
    assert set(producer) == set(consumer) == {metric.name for metric in CATALOGUE if not metric.is_detailed}
    assert json.loads(json.dumps([producer, consumer])) == [producer, consumer]
    assert producer["netstack_memory_total_segments"] == 64
    assert consumer["netstack_output_records_total"] == {}
    emitted = producer["netstack_output_records_total"]
    assert isinstance(emitted, dict)
    assert 0 < emitted["p"] < RECORDS  # stopped by the channel that nobody reads
    assert producer["netstack_input_records_total"] == {"p": emitted["p"]}
    assert consumer["netstack_input_records_total"] == {"p": 0, "p#2": emitted["p"]}
    polled = producer["netstack_input_local_bytes_total"]
    assert isinstance(polled, dict)
    assert 0 < polled["p"] - emitted["p"] * (PAYLOAD_BYTES + 4) < PAYLOAD_BYTES  # the last record is half-way
    assert consumer["netstack_input_remote_bytes_total"] == {"p": 0, "p#2": polled["p"]}
    queued = consumer["netstack_input_queue_bytes"]
    assert isinstance(queued, dict)
    assert queued["p"] > 0
    assert queued["p#2"] == 0
    usage = consumer["netstack_input_pool_usage_ratio"]
    assert isinstance(usage, dict)
    assert (usage["p"], usage["p#2"]) == (1, 0)
    pressed = producer["netstack_output_soft_backpressured_ms_per_second"]
    assert isinstance(pressed, dict)
    assert 900 < pressed["p"] <= 1000


# How a task spent its time.


def waits(ms_per_s: float) -> WaitStatistics:
    return WaitStatistics(0, ms_per_s, 0)


def test_times_of_a_task_a_source_and_a_sink() -> None:
    producer, _ = statistics_of("metrics-times")
    (gate,), (partition,) = producer.gates, producer.partitions
    gate = replace(gate, idle=waits(300))
    partition = replace(partition, soft_backpressured=waits(200), hard_backpressured=waits(100))
    task = TaskTimes.of(gate, partition)
    assert (task.idle_ms_per_s, task.soft_ms_per_s, task.hard_ms_per_s) == (300, 200, 100)
    assert (task.backpressured_ms_per_s, task.busy_ms_per_s) == (300, 400)
    assert TaskTimes.of(None, partition).busy_ms_per_s == 700
    assert TaskTimes.of(gate, None).busy_ms_per_s == 700
    assert TaskTimes.of(None, None).busy_ms_per_s == 1000
    assert TaskTimes(600, 300, 300).busy_ms_per_s == 0
