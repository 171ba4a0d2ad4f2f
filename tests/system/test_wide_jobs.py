"""Wide jobs in real processes: thousands of tasks start, and nobody loses a heartbeat over it, at default timeouts."""

from __future__ import annotations

import pytest
import trio

from netstack_bench.jobs.spec import JobsSpec
from netstack_bench.jobs.starts import exchanges, pointwise

pytestmark = pytest.mark.long

TASKMANAGERS = 4


def silent(step: str) -> None:
    """Nobody looks."""


def test_ten_thousand_tasks_run_on_four_taskmanagers_and_cost_what_their_number_says() -> None:
    """Costs are CPU times of one run: they differ by a half where others use the caches; what is quadratic is 4."""
    half, whole = trio.run(pointwise, JobsSpec(tasks=(5_000, 10_000), taskmanagers=TASKMANAGERS), silent)
    assert [row["tasks"] for row in (half, whole)] == [5_000, 10_000]
    assert [row["lost"] for row in (half, whole)] == [0, 0]
    assert whole["spread"] == [2_500, 2_500]
    assert whole["cpu_growth"] < 3.2, (half, whole)


def test_all_to_all() -> None:
    """A thousand by a thousand takes minutes on a busy machine: `netstack-bench jobs --all-to-all 1000`."""
    (row,) = trio.run(exchanges, JobsSpec(all_to_all=(300,), taskmanagers=TASKMANAGERS), silent)
    assert (row["tasks"], row["channels"], row["records"], row["lost"]) == (600, 90_000, 90_000, 0)
