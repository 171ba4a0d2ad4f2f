"""Markers of latency: where they go, what they measure, that they are as few as they are said to be."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st
from task.tasks import SMALL, Run, running
from trio.testing import MockClock

from netstack.base.config import DEFAULT_LATENCY_INTERVAL_S, NetworkConfig
from netstack.base.events import CheckpointBarrier, UserEvent, decode_event, encode_event
from netstack.base.timing.steady_clock import CLOCK_ID, steady_time
from netstack.cluster.task import latency
from netstack.cluster.task.latency import HISTORY, MERGED, TaskLatencies, marker_ages_us, merged_rows, summary_us
from netstack.cluster.task.queued import MOST_MARKERS, QueuedEvents, merged_queued
from netstack.schedule import StreamEnvironment, StreamSettings

RECORD_S = 0.01
RECORDS = 500


@pytest.fixture
def _virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "clock_ns", lambda: round(trio.current_time() * 1e9))


class Paced:
    """A source of a record every 10 ms."""

    def __init__(self) -> None:
        self._next = 0

    async def read(self) -> list[int] | None:
        await trio.sleep(RECORD_S)
        self._next += 1
        return [self._next] if self._next <= RECORDS else None

    async def snapshot(self) -> int:
        return self._next


class Slow:
    """Takes 4 ms over a record."""

    async def process(self, record: int, out: Any) -> None:
        await trio.sleep(0.004)
        out.collect(record)


class Sink:
    def process(self, record: int, out: Any) -> None:
        pass


async def run(interval_s: float, parallelism: int = 1, config: NetworkConfig = SMALL) -> Run:
    settings = StreamSettings(is_chaining_enabled=False, latency_interval_s=interval_s)
    job = StreamEnvironment("job", parallelism=parallelism, settings=settings, buffer_timeout_s=0.1)
    job.source(Paced, name="paced").rebalance().process(Slow, name="slow").rebalance().sink(Sink, name="sink")
    async with running(job, config=config, ticks=trio.current_time) as actual:
        await actual.wait()
        return actual


@pytest.mark.usefixtures("_virtual")
async def test_each_edge_and_the_way_from_the_source_are_measured(autojump_clock: MockClock) -> None:
    actual = await run(0.2)
    slow, sink = (actual.task(name).statistics().latencies for name in ("slow", "sink"))
    assert actual.task("paced").statistics().latencies == {}
    assert slow.keys() == sink.keys() == {"input 0", "source 0"}
    assert 20 <= len(sink["source 0"]) <= 32, "one in 160 to 240 ms, of five seconds"
    assert slow["input 0"] == slow["source 0"], "it reads from the source"
    edge, whole = summary_us(sink["input 0"]), summary_us(sink["source 0"])
    assert 0 < summary_us(slow["input 0"])["p50_us"] <= 150_000, "a timeout, and the records in front"
    assert edge["max_us"] <= 150_000
    assert whole["p50_us"] > edge["p50_us"]


@pytest.mark.usefixtures("_virtual")
async def test_without_an_interval_there_are_none(autojump_clock: MockClock) -> None:
    actual = await run(0.0)
    assert all(not task.statistics().latencies for task in actual.tasks.values())
    assert all(
        partition.statistics().events == 2 for task in actual.tasks.values() for partition in task.open_partitions
    )


@pytest.mark.usefixtures("_virtual")
async def test_as_flink_there_are_none_unless_a_job_asks_for_more_than_the_default(autojump_clock: MockClock) -> None:
    sizes = {"segment_size_bytes": SMALL.segment_size_bytes, "memory_bytes": 8 * SMALL.memory_bytes}
    flink = NetworkConfig.flink(**sizes)
    actual = await run(DEFAULT_LATENCY_INTERVAL_S, config=flink)
    assert all(not task.statistics().latencies for task in actual.tasks.values())
    actual = await run(0.5, config=flink)
    assert actual.task("sink").statistics().latencies.keys() == {"input 0", "source 0"}


@pytest.mark.usefixtures("_virtual")
async def test_more_channels_make_no_more_markers(autojump_clock: MockClock) -> None:
    actual = await run(0.2, parallelism=3)
    rows = [actual.task("sink", subtask).statistics().latencies["source 0"] for subtask in range(3)]
    assert all(rows), "the next marker goes to the next consumer"
    assert sum(map(len, rows)) <= 3 * 32


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=300))
def test_what_is_kept_is_exact_and_bounded(delays_us: Sequence[int]) -> None:
    sent: list[bytes] = []
    here = TaskLatencies(5, 1.0, sent.append, has_sources=True)
    now_ns = 10**15
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "clock_ns", lambda: now_ns)
        for delay_us in delays_us:
            TaskLatencies(2, 1.0, sent.append, has_sources=True).mark(0.0)
            event = decode_event(sent.pop())
            assert isinstance(event, UserEvent)
            now_ns += 1000 * delay_us
            here.on_marker(1, event.payload)
            onwards = decode_event(sent.pop())
            assert isinstance(onwards, UserEvent)
    expected = [max(0, delay_us) for delay_us in delays_us][-HISTORY:]
    assert here.rows() == {"input 1": expected, "source 2": expected}
    actual = summary_us(expected)
    assert actual["max_us"] == max(expected)
    for name, part in (("p50_us", 0.5), ("p99_us", 0.99)):
        assert sum(each <= actual[name] for each in expected) >= part * len(expected)
        assert sum(each < actual[name] for each in expected) < part * len(expected)
    assert merged_rows([here.rows(), {"input 1": "no row"}, here.rows()])["input 1"] == 2 * expected


HOSTS = st.sampled_from([b"host one", b"host two"])
WALL_NS = st.integers(-(10**18), 10**18)  # what the clock of a host said when a process started


@given(HOSTS, HOSTS, WALL_NS, WALL_NS, st.integers(0, 10**6), WALL_NS)
def test_setting_the_clock_of_a_host_makes_no_latency(
    there: bytes, here: bytes, sender_ns: int, receiver_ns: int, delay_us: int, jump_ns: int
) -> None:
    """Within a host whatever its clocks say; between hosts by what they said when the processes started."""
    sent: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        now_ns = 10**15
        patch.setattr(latency, "clock_ns", lambda: now_ns)
        patch.setattr(latency, "CLOCK_ID", there)
        patch.setattr(latency, "OFFSET_NS", sender_ns)
        TaskLatencies(2, 1.0, sent.append, has_sources=True).mark(0.0)
        event = decode_event(sent.pop())
        assert isinstance(event, UserEvent)
        now_ns += 1000 * delay_us
        wall_ns = time.time_ns() + jump_ns
        patch.setattr(time, "time_ns", lambda: wall_ns)
        patch.setattr(latency, "CLOCK_ID", here)
        patch.setattr(latency, "OFFSET_NS", receiver_ns)
        receiver = TaskLatencies(5, 1.0, sent.append, has_sources=True)
        receiver.on_marker(1, event.payload)
    apart_us = 0 if there == here else (receiver_ns - sender_ns) // 1000
    (actual,) = receiver.rows()["source 2"]
    assert actual == max(0, delay_us + apart_us)


def test_the_steady_time_is_that_of_the_host_and_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time()
    assert abs(steady_time() - before) < 3600
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert steady_time() >= before - 3600
    command = "from netstack.base.timing.steady_clock import CLOCK_ID; print(CLOCK_ID.hex())"
    other = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert bytes.fromhex(other.stdout) == CLOCK_ID, "processes of a host share the clock"


@given(st.lists(st.integers(0, HISTORY), max_size=2 * MERGED // HISTORY), st.integers(0, 2 * MERGED))
def test_of_many_subtasks_some_of_each_are_told(sizes: Sequence[int], many: int) -> None:
    merged = merged_rows([{"input 0": [number] * size} for number, size in enumerate([*sizes, *[1] * many])])
    values = merged.get("input 0", [])
    assert len(values) <= max(MERGED, len(sizes) + many)
    assert set(values) == {number for number, size in enumerate([*sizes, *[1] * many]) if size}


MICROSECONDS = st.integers(0, 1000)


@given(st.lists(MICROSECONDS), st.lists(st.tuples(MICROSECONDS, MICROSECONDS)))
def test_quantiles_with_waiting_markers_are_lower_bounds_or_exact(
    measured: list[int], waiting: list[tuple[int, int]]
) -> None:
    """A marker arrives at an age of at least its age in the queue, so no measured quantile is below its lower bound."""
    if not measured and not waiting:
        return
    reported = summary_us(measured, [age for age, _ in waiting])
    ended = summary_us([*measured, *(age + more for age, more in waiting)])
    assert (reported["count"], reported["waiting"]) == (len(measured), len(waiting))
    assert ended["at_least"] == []
    for name in ("p50_us", "p99_us", "max_us"):
        assert reported[name] <= ended[name]
        if name not in reported["at_least"]:
            assert reported[name] == ended[name]
    assert waiting == [] or reported["max_us"] >= max(age for age, _ in waiting)
    assert "max_us" in reported["at_least"] or not waiting, "it may stay for ever"


class Stuck:
    """Takes 4 s over a record."""

    async def process(self, record: int, out: Any) -> None:
        await trio.sleep(4.0)


@pytest.mark.usefixtures("_virtual")
@pytest.mark.parametrize("parallelism", [1, 2])
async def test_markers_in_queues_count_with_their_age(autojump_clock: MockClock, parallelism: int) -> None:
    """No marker is missing: each was measured, or waits at one end of the edge, local or remote, with its age."""
    settings = StreamSettings(is_chaining_enabled=False, latency_interval_s=0.2)
    job = StreamEnvironment("job", parallelism=parallelism, settings=settings, buffer_timeout_s=0.1)
    job.source(Paced, name="paced").rebalance().sink(Stuck, name="stuck")
    oldest_us = 0
    async with running(job, ticks=trio.current_time) as actual:
        sources, sinks = (
            [task for (name, _), task in actual.tasks.items() if name == each] for each in ("paced", "stuck")
        )
        for at_s in range(1, 6):
            await trio.sleep_until(trio.current_time() + 1.0)
            left = sum(task.open_partitions[0].statistics().events for task in sources)
            rows = merged_queued([task.queued().plain() for task in (*sources, *sinks)])["markers"]
            measured = [us for task in sinks for us in task.statistics().latencies.get("input 0", [])]
            assert left >= at_s
            assert left <= len(rows) + len(measured) <= left + parallelism**2, (
                "one in each open buffer may have to leave"
            )
            assert all(0 <= edge_us == age_us <= 1e6 * trio.current_time() for _, _, edge_us, age_us in rows)
            assert rows[0][3] >= oldest_us, "the oldest one grows"
            oldest_us = rows[0][3]
    assert oldest_us >= 4e6


@given(st.lists(st.lists(st.tuples(st.integers(-2, 2), MICROSECONDS), max_size=40), max_size=4), st.integers(0, 1200))
def test_of_many_queued_markers_the_oldest_is_kept(parts: list[list[tuple[int, int]]], many: int) -> None:
    rows = [[[place, 0, age_us, age_us] for place, age_us in part] for part in parts]
    rows.append([[0, 0, 1, 1]] * many)
    every = [row for part in rows for row in part]
    merged = merged_queued([{"markers": part} for part in rows])["markers"]
    assert len(merged) <= MOST_MARKERS
    assert len(merged) == len(every) or len(every) > MOST_MARKERS
    assert max((row[3] for row in merged), default=0) == max((row[3] for row in every), default=0)
    assert all(row in every for row in merged)


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.builds(lambda end: b"\x03\x07latency" + end, st.binary(max_size=40))))
)
def test_a_malformed_event_in_a_queue_does_not_end_the_scan(events: list[bytes]) -> None:
    """The task that reads it fails; whoever looks at the queue of another task does not."""
    barrier = encode_event(CheckpointBarrier(7, 0))
    queued = QueuedEvents(marker_ages_us)
    assert queued.add(0, [*((data, 1) for data in events), (barrier, 5)])
    assert [0, 7, 5] in queued.plain()["barriers"]
