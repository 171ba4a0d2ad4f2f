"""Stand-ins for processes: a runner that invents plausible results, and a pair of workers in one process."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from netstack_bench.grid import Grid
from netstack_bench.pacing import clock_ns
from netstack_bench.places.local.pair_io import PairIo, Side
from netstack_bench.spec import RunSpec
from netstack_bench.store import Row, flatten

FakeResult = Callable[..., dict[str, Any]]


@pytest.fixture(name="fake_result", scope="session")
def _fake_result() -> FakeResult:
    return fake_result


@pytest.fixture(name="fake_rows", scope="session")
def _fake_rows() -> Callable[..., list[Row]]:
    return fake_rows


def fake_result(spec: RunSpec, *, salt: int = 0, noise: float = 0.03, faster: float = 1.0) -> dict[str, Any]:
    """The document of one run: the same for the same settings and salt.

    Args:
        spec: the settings.
        salt: another value gives another sample of the noise.
        noise: relative spread of the figures.
        faster: factor on the throughput.
    """
    rng = random.Random(hashlib.sha256(f"{spec.run_id} {salt}".encode()).digest())
    timeout = spec.buffer_timeout_s
    kept = 1.0 if timeout is None or timeout >= 0.1 else {0.01: 0.99, 0.001: 0.96, 0.0: 0.52}.get(timeout, 0.9)
    seconds = spec.seconds or 3.0
    fastest = faster * 4.6e6 * kept / (1 + spec.record_bytes / 400) * (0.92 if spec.channels > 1 else 1)
    fastest = min(fastest, _link_bytes_per_s(spec) / (spec.record_bytes + 4))
    rate = (spec.rate_per_s or fastest) * rng.uniform(1 - noise, 1 + noise)
    if spec.rate_per_s is not None:
        rate = spec.rate_per_s
    base = (52.0 + 12.0 * (spec.channels > 1)) * rng.uniform(1 - noise, 1 + noise)
    flush = (seconds if timeout is None else min(timeout, seconds)) * 1e6
    records = spec.records or int(rate * seconds)
    framed = (spec.record_bytes + 4) * records
    return {
        "engine": "netstack",
        "records": records,
        "seconds": seconds,
        "records_per_s": rate,
        "payload_mb_per_s": rate * spec.record_bytes / 1e6,
        "wire_mb_per_s": rate * (spec.record_bytes + 4) / 1e6 * 1.001,
        "latency_us": {
            "p50": base + flush * 0.52,
            "p75": base * 1.3 + flush * 0.77,
            "p90": base * 1.7 + flush * 0.91,
            "p95": base * 2.2 + flush * 0.96,
            "p99": base * 4.1 + flush * 1.0,
            "p999": base * 9.0 + flush * 1.02,
            "p9999": base * 15.0 + flush * 1.04,
            "max": base * 22.0 + flush * 1.05,
        },
        "latency_kind": "sampled under load" if spec.rate_per_s is None else "open-loop",
        "latency_samples": int((spec.rate_per_s or 1000) * seconds),
        "latency_histogram": None,
        "cpu_s_per_gb": {"producer": 2.3 / kept, "consumer": 1.8 / kept},
        "delivered": True,
        "buffers": framed // spec.segment_size_bytes + 1,
        "wire_bytes": framed,
        "credits": framed // spec.segment_size_bytes,
        "average_buffer_fill": 0.98 * kept,
        "debloated_buffer_bytes": None if spec.debloat_s is None else 4096,
        "backpressured_ms_per_s": {"soft": 120.0, "hard": 80.0},
        "idle_ms_per_s": 310.0,
        "timeline": _timeline(rng, seconds),
        "metrics": {
            "producer": {
                "netstack_output_full_flushes_total": framed // spec.segment_size_bytes,
                "netstack_output_timeout_flushes_total": 2,
                "netstack_output_event_flushes_total": 1,
                "netstack_output_pool_usage_ratio": 0.75,
            },
            "consumer": {
                "netstack_input_remote_buffers_total": 5088,
                "netstack_input_local_buffers_total": 0,
                "netstack_input_announcements_total": 17,
                "netstack_input_backlog_announcements_total": 3,
                "netstack_input_pool_usage_ratio": 0.5,
            },
        },
        "settings": spec.as_dict(),
        "host": {
            "name": "lab-<7>",
            "cpu": "AMD EPYC 7B13",
            "cores": 2,
            "memory_bytes": 8 << 30,
            "kernel": "6.1.0",
            "python": "3.11.9",
            "load_average": [rng.uniform(0.5, 2.0), 1.0, 1.0],
            "packages": {"numpy": "2.4.6", "pyzmq": None},
        },
        "version": "0.1.0",
        "warnings": [],
    }


def _timeline(rng: random.Random, seconds: float) -> list[dict[str, Any]]:
    actual: list[dict[str, Any]] = []
    for step in range(1, int(seconds / 0.1) + 1):
        waited = 500 + 400 * math.sin(step / 2) * rng.uniform(0.5, 1.0)
        nothing = dict.fromkeys(("backpressured_ms_per_s", "busy_ms_per_s", "idle_ms_per_s"))
        quiet = {"queued_ms_per_s": 12.5, "stolen_ms_per_s": 0.0}
        common = {**nothing, **quiet, "t_s": step * 0.1, "host": "lab-<7>", "records": step * 1000}
        actual.append({**common, "task": "producer", "backpressured_ms_per_s": waited, "pool_usage": 0.7})
        idle = {"idle_ms_per_s": 1000 - waited, "busy_ms_per_s": waited}
        actual.append({**common, "task": "consumer", **idle, "pool_usage": rng.uniform(0.0, 0.4)})
    return actual


def on_hosts(rows: list[Row], hosts: tuple[str, ...]) -> list[Row]:
    """The same rows as if measured all to all between hosts."""
    actual = []
    for row in rows:
        rng = random.Random(row["run_id"])
        share = row["payload_mb_per_s"] / len(hosts) ** 2
        pairs = [
            {
                "source_host": source,
                "sink_host": sink,
                "is_local": source == sink,
                "records": 1000,
                "payload_bytes": 1000 * row["settings_record_bytes"],
                "payload_mb_per_s": share * rng.uniform(0.4, 1.6),
                "latency_us": {
                    name: row[f"latency_us_{name}"] * (0.3 if source == sink else rng.uniform(0.8, 2.0))
                    for name in ("p50", "p90", "p99", "p999", "max")
                },
                "latency_uncertainty_us": 0.0 if source == sink else 45.0,
            }
            for source in hosts
            for sink in hosts
        ]
        reported = [
            {
                "host": host,
                "address": f"10.0.0.{number}:6121",
                "sources": 1,
                "sinks": 2,
                "records_per_s": row["records_per_s"] / len(hosts),
                "payload_mb_per_s": share * len(hosts),
                "cpu_s": 1.25,
                "clock_offset_us": 130.0 * number * (-1) ** number,
                "clock_uncertainty_us": 22.5 if number else 0.0,
                "backpressured_ms_per_s": 400.0,
                "idle_ms_per_s": None,
            }
            for number, host in enumerate(hosts)
        ]
        timeline = [
            {**sample, "host": host, "t_s": sample["t_s"] + 0.01 * number}
            for number, host in enumerate(hosts)
            for sample in row["timeline"]
        ]
        actual.append({**row, "engine_kind": "hosts", "pairs": pairs, "hosts": reported, "timeline": timeline})
    return actual


def _link_bytes_per_s(spec: RunSpec) -> float:
    """What the link carries, or what the buffers let on to it."""
    buffers = spec.channels * spec.exclusive_buffers + spec.floating_buffers
    window = buffers * spec.segment_size_bytes / spec.round_trip_s if spec.round_trip_s else math.inf
    return min(window, spec.link_bytes_per_s or math.inf)


def fake_rows(grid: Grid | None = None, **figures: Any) -> list[Row]:
    """The rows of a whole sweep; `figures` go to `fake_result`."""
    rows = []
    for run in (grid or Grid()).plan():
        result = fake_result(run.spec, **{"salt": run.repeat, **figures})
        rows.append(
            {
                "run_id": run.spec.run_id,
                "repeat": run.repeat,
                "order": run.order,
                "kind": run.kind,
                "started_at": "2026-11-21T09:30:00Z",
                "error": None,
                **flatten(result),
            }
        )
    return rows


@pytest.fixture(name="on_hosts", scope="session")
def _on_hosts() -> Callable[[list[Row], tuple[str, ...]], list[Row]]:
    return on_hosts


@pytest.fixture(name="in_one_process", scope="session")
def _in_one_process() -> Callable[[Side, Side, dict[str, Any], Path], tuple[dict[str, Any], dict[str, Any]]]:
    return in_one_process


def in_one_process(
    produce: Side, consume: Side, settings: dict[str, Any], scratch: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs both sides of a pair as tasks of one process; returns their summaries."""

    async def run() -> tuple[dict[str, Any], dict[str, Any]]:
        producer, consumer = FakePairIo(settings, scratch), FakePairIo(settings, scratch)
        producer.other, consumer.other = consumer, producer

        async def producing() -> None:
            await producer.told.send(await produce(producer))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(producing)
            consumed = await consume(consumer)
        assert consumer.records() > 0
        return await consumer.producer_summary(), consumed

    return trio.run(run)


class FakePairIo(PairIo):
    """One side of a conversation between two sides in one process."""

    def __init__(self, settings: dict[str, Any], scratch: Path) -> None:
        self.settings = settings
        self.scratch = scratch
        self.other: FakePairIo
        self.records: Callable[[], int] = int
        self.told, self.heard = trio.open_memory_channel[Any](2)
        self._barriers: list[trio.Event] = []
        self._summary: dict[str, Any] | None = None

    def watch(self, records: Callable[[], int]) -> None:
        self.records = records

    def publish(self, address: str) -> None:
        self.told.send_nowait(address)

    async def peer_address(self) -> str:
        return str(await self.other.heard.receive())

    async def ready(self) -> int:
        self._barriers.append(trio.Event())
        number = len(self._barriers)
        if len(self.other._barriers) >= number:
            self.other._barriers[number - 1].set()
        else:
            await self._barriers[-1].wait()
        return clock_ns()

    async def producer_summary(self) -> dict[str, Any]:
        if self._summary is None:
            self._summary = await self.other.heard.receive()
        return self._summary
