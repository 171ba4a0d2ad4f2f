"""What `netstack top` shows of what daemons say, without a terminal: rates, gaps, histories, sparklines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from netstack.cli.top_view import SPAN_S, History, TaskManagerHistory, snapshot_document, sparkline


def document(cpu_s: float = 0.0, pid: int = 7, runs: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """What a daemon of four slots says."""
    return {
        "hostname": "vm",
        "version": "0.3.0",
        "pid": pid,
        "uptime_s": 100.0,
        "cpu_s": cpu_s,
        "cpus": 2,
        "slots": 4,
        "free_slots": 3,
        "memory_bytes": 1000,
        "free_memory_bytes": 600,
        "jobs": runs or [],
        **more,
    }


def run(out: float = 0.0, *, credit: int = 0, job_id: str = "a", **metrics: Any) -> dict[str, Any]:
    """A run that has written `out` bytes and records, read half of it locally and half remotely, and sent a tenth."""
    return {
        "job_id": job_id,
        "name": "bench",
        "slots": 1,
        "memory_bytes": 400,
        "age_s": 5.0,
        "tasks": {"source-0": "running", "source-1": "running", "sink-0": "failed"},
        "metrics": {
            "netstack_output_bytes_total": {"p": out / 2, "q": out / 2},
            "netstack_output_records_total": {"p": out},
            "netstack_input_local_bytes_total": {"g": out / 2},
            "netstack_input_remote_bytes_total": {"g": out / 2},
            "netstack_input_records_total": {"g": out},
            "netstack_sent_bytes_total": out / 10,
            "netstack_received_bytes_total": out / 10,
            "netstack_output_backpressured_ms_per_second": {"p": 10.0, "q": 700.0},
            "netstack_input_idle_ms_per_second": {"g": 3.0},
            "netstack_output_pool_usage_ratio": {"p": 0.5, "q": 1.25},
            "netstack_input_pool_usage_ratio": {},
            "netstack_memory_used_bytes": 123,
            **metrics,
        },
        "channel_count": 9,
        "channels": [
            {"peer": "tcp://b:1", "partition": "p", "subpartition": number, "credit": credit + number, "buffers": 1}
            for number in range(6)
        ],
    }


def test_counters_become_rates_between_two_looks() -> None:
    history = TaskManagerHistory("a:1")
    history.add(document(1.0, jobs=[run(1000)]), 10.0)
    first = history.view(10.0)
    assert (first.cpu_percent, first.jobs[0].out_bytes_per_s) == (None, None)
    assert not history.is_known
    history.add(document(2.0, jobs=[run(3000)]), 14.0)
    assert history.is_known
    view = history.view(15.0)
    assert (view.cpu_percent, view.used_slots, view.held_memory_bytes, view.used_memory_bytes) == (25.0, 1, 400, 123)
    (row,) = view.jobs
    assert (row.out_bytes_per_s, row.out_records_per_s) == (500, 500)
    assert (row.in_bytes_per_s, row.in_records_per_s) == (500, 500)
    assert (row.sent_bytes_per_s, row.received_bytes_per_s) == (50, 50)
    assert row.out_history == ((5.0, 1.0, 500.0),)
    assert (row.backpressured_ms_per_s, row.idle_ms_per_s) == (700, 3)
    assert (row.out_pool_usage, row.in_pool_usage) == (1.25, 0)
    assert row.tasks == {"running": 2, "finished": 0, "failed": 1}
    assert [channel.credit for channel in row.channels] == [0, 1, 2, 3]
    assert row.channel_count == 9
    json.dumps(snapshot_document([view]))


def test_a_partition_that_is_released_is_no_negative_rate() -> None:
    history = TaskManagerHistory("a:1")
    for now_s, out in ((0.0, 1000.0), (1.0, 10.0), (2.0, 20.0)):
        history.add(document(jobs=[run(out)]), now_s)
    assert [value for _, _, value in history.view(2.0).jobs[0].out_history] == [0, 10]


def test_a_daemon_that_is_gone_keeps_its_name_and_tells_why() -> None:
    history = TaskManagerHistory("a:1")
    assert history.view(0.0).gone == "not connected yet"
    assert not history.is_known
    history.lost("Connection refused")
    assert history.is_known
    assert (history.view(0.0).gone, history.view(0.0).hostname) == ("Connection refused", "")
    history.add(document(jobs=[run()]), 1.0)
    assert history.view(1.0).gone == ""
    history.lost("its host is down")
    view = history.view(2.0)
    assert (view.gone, view.hostname, view.slots, view.jobs) == ("its host is down", "vm", 4, ())


def test_what_was_before_a_gap_or_another_process_does_not_count() -> None:
    history = TaskManagerHistory("a:1")
    history.add(document(1.0, jobs=[run(100)]), 0.0)
    history.add(document(1.5, jobs=[run(200)]), 1.0)
    history.lost("a moment")
    history.add(document(2.0, jobs=[run(300)]), 9.0)
    assert history.view(9.0).cpu_percent is None
    history.add(document(2.0, jobs=[run(400)]), 10.0)
    history.add(document(0.1, pid=8, jobs=[run(5)]), 11.0)
    assert (history.view(11.0).cpu_percent, history.view(11.0).jobs[0].out_bytes_per_s) == (None, None)


def test_jobs_come_and_go_and_wait_for_slots() -> None:
    history = TaskManagerHistory("a:1")
    waiting = {key: value for key, value in run().items() if key not in ("metrics", "channels", "channel_count")}
    history.add(document(jobs=[run(), {**waiting, "job_id": "b", "tasks": {}}]), 0.0)
    one, other = history.view(0.0).jobs
    assert (one.is_open, other.is_open, other.channels) == (True, False, ())
    history.add(document(jobs=[run(job_id="c")]), 1.0)
    assert [row.job_id for row in history.view(1.0).jobs] == ["c"]


def test_a_daemon_that_tells_less_is_shown_with_less() -> None:
    history = TaskManagerHistory("a:1")
    history.add(document(jobs=[run(100)]), 0.0)
    history.add(document(is_shortened=True, jobs=[{**run(200), "metrics": {}, "channels": [], "tasks": {}}]), 1.0)
    (row,) = history.view(1.0).jobs
    assert (row.is_open, row.out_bytes_per_s, row.channels, row.channel_count) == (True, None, (), 9)


def test_histories_go_back_a_minute_and_no_further() -> None:
    history = TaskManagerHistory("a:1")
    for second in range(300):
        history.add(document(jobs=[run(second * 10, credit=second % 3)]), float(second))
    (row,) = history.view(299.0).jobs
    assert len(row.out_history) == len(row.channels[0].credits) == SPAN_S
    assert row.channels[0].credits[-1] == (1.0, 0.0, 299 % 3)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 10), st.floats(0, 1e12)), max_size=30),
    st.integers(1, 200),
)
def test_a_sparkline_has_its_width_whatever_was_seen(looks: list[tuple[float, float, float]], width: int) -> None:
    history: History = tuple((ago + length, ago, value) for ago, length, value in looks)
    line = sparkline(history, width)
    assert len(line) == width
    assert set(line) <= set(" ▁▂▃▄▅▆▇█")
    assert (line.strip() == "") == all(ago >= SPAN_S for _, ago, _ in history)


@pytest.mark.parametrize(
    ("history", "top", "line"),
    [
        ((), 0, "      "),
        (((60, 50, 8), (50, 40, 4), (40, 30, 0), (20, 10, 2), (10, 0, 1)), 0, "█▅▁ ▃▂"),
        (((60, 0, 3),), 0, "██████"),
        (((60, 0, 0),), 0, "▁▁▁▁▁▁"),
        (((60, 0, 3),), 6, "▅▅▅▅▅▅"),
        (((30, 15, 1), (15, 0, 1)), 0, "   ███"),
    ],
)
def test_sparklines(history: History, top: float, line: str) -> None:
    assert sparkline(history, 6, top=top) == line
