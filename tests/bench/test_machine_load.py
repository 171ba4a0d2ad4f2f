"""A machine that was busy with something else is noticed, and the link is not blamed for it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from netstack_bench.host import QUEUED, STOLEN, busy_times, busy_warnings, is_busy, lost_s
from netstack_bench.labels import bottleneck, distinct_warnings
from netstack_bench.spec import RunSpec


def timeline(queued: list[float], stolen: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"t_s": 0.1 * number, "task": task, QUEUED: wait, STOLEN: stolen}
        for number, wait in enumerate(queued, 1)
        for task in ("producer", "consumer")
    ]


def test_a_process_that_shares_its_processor_sees_that_it_waits() -> None:
    mine = os.sched_getaffinity(0)
    core = {min(mine)}
    burn = f"import os; os.sched_setaffinity(0, {core}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        os.sched_setaffinity(0, core)
        try:
            before_s = lost_s()[QUEUED]
            while lost_s()[QUEUED] - before_s < 0.1:  # for ever, if it sees nothing
                pass
        finally:
            os.sched_setaffinity(0, mine)
            other.kill()


def test_a_few_busy_slices_are_flagged_and_many_make_a_warning() -> None:
    few, many = timeline([0, 300, 0, 0, 0]), timeline([0, 300, 900, 10, 10])
    assert busy_times(few) == [0.2]
    assert (is_busy(few), busy_warnings(few)) == (False, [])
    (reported,) = busy_warnings(many)
    assert reported.startswith("the machine was busy in 2 of 5 slices of the run: ")
    assert "for 244 ms " in reported


def test_time_that_the_host_takes_counts_too() -> None:
    assert is_busy(timeline([0, 0], stolen=150.0))
    assert "host took 150 ms;" in busy_warnings(timeline([0, 0], stolen=150.0))[0]


@pytest.mark.parametrize("older", [None, [], [{"t_s": 0.1, "task": "producer"}]])
def test_results_that_do_not_tell_are_not_busy(older: list[dict[str, Any]] | None) -> None:
    assert not is_busy(older)
    assert busy_warnings(older) == []


def test_the_link_is_not_blamed_for_a_busy_machine() -> None:
    waits = {"backpressured_ms_per_s": {"soft": 400.0, "hard": 0.0}, "idle_ms_per_s": 500.0}
    assert "the link" in bottleneck({**waits, "timeline": timeline([0, 0])}, RunSpec())
    assert "busy" in bottleneck({**waits, "timeline": timeline([800, 800])}, RunSpec())


def test_runs_with_and_without_a_host_that_took_some_have_one_warning_in_a_report() -> None:
    rows = [{"warnings": busy_warnings(timeline([900, 900], stolen=stolen))} for stolen in (0.0, 8.0)]
    assert [count for _, count in distinct_warnings(rows)] == [2]
