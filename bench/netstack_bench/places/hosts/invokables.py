"""The benchmark's invokables on daemons: source, relay and sink, with only public calls of netstack in between.

Their conversation with the coordinator (`places.conversation`), as operator events:

    task         ready                                  the gate is open, or the partition exists
    coordinator  go      start_ns, starts, spins        start of the run and of each group's source, in the task's clock
    task         progress                               every 0.25 s at least
    source       stopped records, stopped_ns, samples   the last record is written; then it waits until all is consumed
    task         done                                   all of it has been consumed, or every channel has ended
    coordinator  finish  stop_ns, samples               when the first source stopped, emit times, in the sink's clock
    task         returns its result

Samples are pairs of int64 arrays, as bytes: indexes of records, and their emit times.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt
import trio

from netstack import ArrayReader, RecordReader, RecordWriter
from netstack.cluster.task.invokable import InvokableTask
from netstack.exchange.outbound.selector import ChannelSelector
from netstack.network.handles import InputGate, ResultPartition

from ...arrivals import warm_ns
from ...arrow_input import kept
from ...engines.netstack import emit_all, take_all, writer_of
from ...generator import Source, span_records
from ...histogram import Histogram
from ...host import cpu_seconds, lost_s
from ...pacing import clock_ns
from ...rows import RowSource
from ...run_metrics import EARLY_NS
from ...spec import RunSpec
from ...verifier import Taker, Verifier
from ..local.worker_io import DueRecords, verifier_of, warm_from_ns
from .matrix import Matrix
from .spec import MeshSpec

if TYPE_CHECKING:
    import pyarrow as pa

_SPREAD: Final = 2_654_435_761  # Knuth's: its multiples modulo small numbers have no pattern


async def source(task: InvokableTask) -> dict[str, Any]:
    """Writes until the run ends, then waits until everything has been consumed."""
    spec = _spec_of(task)
    (partition,) = task.partitions
    io = SourceIo(spec)
    writer = writer_of(spec, partition, io.source)
    go = await _go(task)
    start_ns = int(go["start_ns"])
    io.begin(start_ns, spins=bool(go["spins"]))
    meter = Meter(start_ns, lambda: io.sent_records, partition=partition)
    async with reporting_progress(task, meter):
        await emit_all(spec, io, writer)
    waits = meter.sample()
    congestion_control = task.environment.tcp_facts().get("congestion_control")  # before the connections close
    task.send(
        {
            "event": "stopped",
            "records": io.sent_records,
            "stopped_ns": io.stopped_ns,
            "samples": [values.tobytes() for values in io.samples()],
        }
    )
    await writer.finish()
    await writer.wait_consumed()
    task.send({"event": "done"})
    statistics = partition.statistics()
    return {
        "waits": waits,
        "records": io.sent_records,
        "expected": io.source.expected(io.sent_records),
        "buffers": statistics.buffers,
        "buffer_bytes": statistics.bytes,
        "congestion_control": congestion_control,
        **_host_facts(task, meter),
    }


async def relay(task: InvokableTask) -> dict[str, Any]:
    """Returns the records of each source to the sink beside that source, in the same order."""
    spec = _spec_of(task)
    (partition,) = task.partitions
    gate = await task.open_gate()
    dialled = _dialled(task)
    selector = BackSelector()
    writer = RecordWriter(partition, selector=selector, buffer_timeout_s=spec.buffer_timeout_s)
    start_ns = int((await _go(task))["start_ns"])
    meter = Meter(start_ns, lambda: partition._engine.counters.records, partition=partition, gate=gate)
    async with reporting_progress(task, meter):
        if spec.emit == "batch" and spec.rows_file is None:
            await _relay_arrays(spec, gate, selector, writer)
        else:
            await _relay_records(gate, selector, writer)
    waits = meter.sample()
    await writer.finish()
    await writer.wait_consumed()
    task.send({"event": "done"})
    return {"waits": waits, **_host_facts(task, meter, dialled)}


async def sink(task: InvokableTask) -> dict[str, Any]:
    """Reads until every channel has ended, and verifies the records."""
    spec = _spec_of(task)
    matrix = Matrix(spec)
    verifier = SinkVerifier(spec, spec.lanes, matrix.lane_bases(task.subtask))
    hosts = [producer.host for producer in matrix.upstream()]
    gate = await task.open_gate()
    dialled = _dialled(task)
    go = await _go(task)
    start_ns = int(go["start_ns"])
    for group, began_ns in zip(verifier.groups, go["starts"], strict=True):
        group.begin(began_ns, warm_from_ns(spec, began_ns))
    meter = Meter(start_ns, lambda: verifier.received_records, gate=gate)
    async with reporting_progress(task, meter):
        await take_all(spec, verifier, gate)
    waits = meter.sample()
    facts = _host_facts(task, meter, dialled)
    verifier.finish()
    statistics = gate.statistics()
    task.send({"event": "done", "records": verifier.received_records})
    finish = await task.receive()
    return {
        "waits": waits,
        "records": verifier.received_records,
        "last_ns": max(group.arrivals.last_ns for group in verifier.groups),
        "credits": sum(channel.announced_credit for channel in statistics.channels) if spec.credit else None,
        "debloated_buffer_bytes": statistics.debloated_buffer_bytes,
        "deliveries": [group.delivery().as_dict() for group in verifier.groups],
        "pairs": _pairs(spec, verifier.groups, hosts, start_ns, finish),
        **facts,
    }


class SourceIo(DueRecords):
    """The records of a source that are due; samples are spread over all lanes."""

    def __init__(self, spec: MeshSpec) -> None:
        rows = spec.rows_file
        source = Source(spec.record_bytes, span_records(spec)) if rows is None else RowSource(kept(rows), spec.lanes)
        super().__init__(spec, source)
        self._lanes = spec.lanes
        self._spans = 0

    def _offset(self, count: int) -> int:
        self._spans += 1
        return (self._spans * _SPREAD >> 16) % min(count, self._lanes)


class BackSelector(ChannelSelector):
    """Writes to the subpartition `target`: the number of the channel that the record was read from."""

    target = 0

    def select(self, record: Any) -> int:
        """The target."""
        return self.target

    def select_batch(self, array: npt.NDArray[Any]) -> int:
        """The target, for the whole array."""
        return self.target


async def _relay_arrays(spec: MeshSpec, gate: InputGate, selector: BackSelector, writer: RecordWriter) -> None:
    reader = ArrayReader(gate, record_bytes=spec.record_bytes)
    async for array in reader:
        selector.target = reader.channel_index
        await writer.emit_batch(array)


async def _relay_records(gate: InputGate, selector: BackSelector, writer: RecordWriter) -> None:
    reader = RecordReader(gate)
    async for record in reader:
        selector.target = reader.channel_index
        try:
            writer.emit_nowait(record)
        except trio.WouldBlock:
            await writer.emit(record)


def _pairs(
    spec: MeshSpec,
    groups: Sequence[Verifier],
    hosts: Sequence[int],
    start_ns: int,
    finish: dict[str, Any],
) -> list[dict[str, Any]]:
    stop_ns = int(finish["stop_ns"])
    pairs: dict[int, dict[str, Any]] = {}
    latencies: dict[int, Histogram] = {}
    for group, host, samples in zip(groups, hosts, finish["samples"], strict=True):
        pair = pairs.setdefault(
            host, {"host": host, "records": 0, "window_records_per_s": 0.0, "window_s": 0.0, "steady": True}
        )
        window = group.arrivals.window(start_ns, stop_ns, spec.warmup_s)
        pair["records"] += group.received_records
        pair["window_records_per_s"] += window.records_per_s
        pair["window_s"] = max(pair["window_s"], window.seconds)
        pair["steady"] = pair["steady"] and window.steady
        indexes, times = (np.frombuffer(values, dtype=np.int64) for values in samples)
        latency = group.latencies(indexes, times, warm_ns(start_ns, stop_ns, spec.warmup_s))
        latencies.setdefault(host, Histogram()).merge(latency)
    return [{**pair, "latency": latencies[host].to_dict()} for host, pair in pairs.items()]


async def _go(task: InvokableTask) -> dict[str, Any]:
    task.send({"event": "ready"})
    message = await task.receive()
    await trio.sleep(max(0, int(message["start_ns"]) - EARLY_NS - clock_ns()) / 1e9)
    return message


def _dialled(task: InvokableTask) -> list[str]:
    """The addresses to which its process has connections; those of gates that have ended are closed."""
    return [each.address for each in task.environment.statistics().dialled]


def _host_facts(task: InvokableTask, meter: Meter, dialled: Sequence[str] = ()) -> dict[str, Any]:
    statistics = task.environment.statistics()
    return {
        "pid": os.getpid(),
        "cpu_s": meter.cpu_s(),
        "dialled": list(dialled),
        "bytes_sent": statistics.bytes_sent,
        "bytes_received": statistics.bytes_received,
    }


def _spec_of(task: InvokableTask) -> MeshSpec:
    return MeshSpec(**task.parameters["spec"])


_Feeds: TypeAlias = list[tuple[Callable[..., None], int]]


@final
class SinkVerifier(Taker):
    """Verifies all channels of a sink: one verifier in `groups` for each source's group of channels."""

    def __init__(self, spec: RunSpec, lanes: int, lane_bases: Sequence[int]) -> None:
        """Creates the verifiers of a sink.

        Each source has this many `lanes`; `lane_bases` has for each group of channels the first of its source's lanes.
        """
        self.groups: tuple[Verifier, ...] = tuple(verifier_of(spec, lanes) for _ in lane_bases)
        channels = range(spec.channels)
        lanes_of = [
            (group, base + channel) for group, base in zip(self.groups, lane_bases, strict=True) for channel in channels
        ]
        # Bound once, because stamped records pass one by one.
        self._feed: _Feeds = [(group.feed, lane) for group, lane in lanes_of]
        self._feed_array: _Feeds = [(group.feed_array, lane) for group, lane in lanes_of]
        self._feed_arrow: _Feeds = [(group.feed_arrow, lane) for group, lane in lanes_of]

    @property
    def received_records(self) -> int:
        """Implements `Taker.received_records`."""
        return sum(group.received_records for group in self.groups)

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Implements `Taker.feed`."""
        feed, lane = self._feed[channel]
        feed(lane, records, now_ns)

    def feed_array(self, channel: int, array: npt.NDArray[Any], now_ns: int | None = None) -> None:
        """Implements `Taker.feed_array`."""
        feed, lane = self._feed_array[channel]
        feed(lane, array, now_ns)

    def feed_arrow(self, channel: int, batch: pa.RecordBatch, now_ns: int | None = None) -> None:
        """Implements `Taker.feed_arrow`."""
        feed, lane = self._feed_arrow[channel]
        feed(lane, batch, now_ns)

    def finish(self) -> None:
        """Implements `Taker.finish`."""
        for group in self.groups:
            group.finish()


PERIOD_S: Final = 0.25
"""Time between progress messages."""

_EARLY_S: Final = 0.05
_COST: Final = 0.01  # part of the time for reading the statistics of many channels


@final
class Meter:
    """Records and waits of one task since the meter was created.

    `start_ns` is the start of the run in this host's clock.
    """

    def __init__(
        self,
        start_ns: int,
        records: Callable[[], int],
        *,
        partition: ResultPartition | None = None,
        gate: InputGate | None = None,
    ) -> None:
        self._start_ns = start_ns
        self._records = records
        self._partition = partition
        self._gate = gate
        self._before = self._waited()
        self._cpu_before_s = cpu_seconds()

    def sample(self) -> dict[str, Any]:
        """Seconds since the start, records, seconds waited (0 for what the task does not do), usage of its pool.

        The figures of `netstack_bench.host` are added as totals.
        """
        usage = 0.0
        if self._partition is not None:
            usage = self._partition._engine.pool.statistics().usage
        elif self._gate is not None:
            usage = self._gate.statistics().in_pool_usage
        waited = {name: value - self._before[name] for name, value in self._waited().items()}
        return {
            "t_s": (clock_ns() - self._start_ns) / 1e9,
            "records": self._records(),
            **waited,
            **lost_s(),
            "pool_usage": usage,
        }

    def cpu_s(self) -> float:
        """CPU seconds of the whole process since the meter was created."""
        return cpu_seconds() - self._cpu_before_s

    def _waited(self) -> dict[str, float]:
        waits = {}
        if self._partition is not None:
            now_s = self._partition._engine.host.now()
            waits["soft_s"] = self._partition._engine.soft_backpressured.total_s(now_s)
            waits["hard_s"] = self._partition._engine.hard_backpressured.total_s(now_s)
        if self._gate is not None:
            waits["idle_s"] = self._gate._engine.idle.total_s(self._gate._engine.now())
        return waits


@asynccontextmanager
async def reporting_progress(task: InvokableTask, meter: Meter) -> AsyncIterator[None]:
    """Sends progress messages while the block runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_report, task, meter)
        yield
        nursery.cancel_scope.cancel()


async def _report(task: InvokableTask, meter: Meter) -> None:
    while True:
        began = time.thread_time()
        sample = meter.sample()
        task.send({"event": "progress", **sample})
        period_s = min(PERIOD_S, max(_EARLY_S, sample["t_s"] / 5))  # a short run needs a timeline, too
        await trio.sleep(max(period_s, (time.thread_time() - began) / _COST))
