"""How `checkpoints` measures, without processes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from bench.checkpoint_results import SPEC
from trio.testing import MockClock

from netstack.cluster.jobmanager.job_master.checkpoints import CheckpointReport
from netstack_bench.checkpoints import command
from netstack_bench.checkpoints.command import Runner, jobs, measured_point, taken
from netstack_bench.checkpoints.spec import MODES, CheckpointsSpec, Mode
from netstack_bench.places.conversation import MeasurementFailed

# --------------------------------------------------------------------------------------------------------- measurement


def test_records_are_counted_between_samples() -> None:
    samples = [(100, 10), (200, 30), (400, 30)]
    assert [taken(samples, at) for at in (50, 100, 150, 200, 300, 400, 500)] == [10, 10, 20, 30, 30, 30, 30]
    assert taken([], 5) == 0


def test_stretches_are_a_few_barriers_long() -> None:
    assert (SPEC.stretch_s, SPEC.stretches) == (0.25, 12)
    slow = CheckpointsSpec(seconds=3.0, interval_s=0.4)
    assert (slow.stretch_s, slow.stretches) == (1.0, 3)
    short = CheckpointsSpec(seconds=0.2)
    assert (short.stretch_s, short.stretches) == (0.2, 1)


def report(reason: str = "") -> CheckpointReport:
    """A checkpoint as the JobManager reports it; aborted where there is a reason."""
    reported = {"start_delay_s": 0.002, "alignment_s": 0.01, "write_s": 0.004, "input_bytes": 60, "output_bytes": 40}
    return CheckpointReport(1, not reason, reason, False, 0.0, 0.02, 500, 0.001, ({"task": "sink", **reported},))


class FakeRuns:
    """Stands for `Runner.run`: sinks take 1000 records/s, or what they may; 10 % less with checkpoints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[tuple[str | None, float | None]] = []
        self.interrupted_after = 100
        monkeypatch.setattr(command, "open_local_cluster", self.open)
        monkeypatch.setattr(Runner, "run", self.run)

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[None]:
        assert settings["slots"] == SPEC.channels
        yield None

    async def run(self, pressure: float, mode: Mode | None, rate_per_s: float | None) -> Any:
        if len(self.jobs) == self.interrupted_after:
            raise KeyboardInterrupt
        self.jobs.append((mode, rate_per_s))
        samples, records = [], 0
        for second in range(7):
            samples.append((second * 10**9, records))
            records += int((rate_per_s or 1000.0) * (0.9 if second % 2 else 1.0))
        spans = [(bool(at % 2), at * 10**9, (at + 1) * 10**9) for at in range(6)]
        if mode is None:
            return measured_point("undisturbed", pressure, samples, spans[::2], [])
        reports = [report()] * 3 + [report("declined")] * 2
        return measured_point(f"{mode}, pressure {pressure:g}", pressure, samples, spans, reports)


def test_every_mode_is_measured_at_every_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = FakeRuns(monkeypatch)
    actual, stopped = command.measure(SPEC)
    assert not stopped
    assert actual["undisturbed_records_per_s"] == 1000
    held_back = pytest.approx(100.0)
    assert runs.jobs == [(None, None), *((mode, None) for mode in MODES), *((mode, held_back) for mode in MODES)]
    assert len(jobs(SPEC)) == 7
    aligned = actual["modes"]["aligned"]
    assert [each["pressure"] for each in aligned] == [0.0, 0.9]
    assert (aligned[0]["checkpoints"], aligned[0]["aborted"]) == (3, 2)
    assert aligned[0]["throughput_lost"] == pytest.approx(0.1)
    assert aligned[1]["records_per_s"] == pytest.approx(90, abs=1)
    assert aligned[1]["duration_ms"]["p50"] == pytest.approx(20.0)
    assert aligned[1]["state_write_ms"]["p50"] == pytest.approx(5.0)
    assert actual["warnings"][0] == "aligned, pressure 0: a checkpoint was aborted: declined"
    assert len(actual["warnings"]) == 6


@pytest.mark.parametrize("before", [1, 3])
def test_ctrl_c_keeps_what_was_measured(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRuns(monkeypatch).interrupted_after = before
    if before == 1:
        with pytest.raises(KeyboardInterrupt):
            command.measure(SPEC)
        return
    actual, stopped = command.measure(SPEC)
    assert stopped
    assert [len(actual["modes"][mode]) for mode in MODES] == [1, 1, 0]


class FakeCluster:
    """Two TaskManagers, and a JobManager whose jobs are what a test says."""

    def __init__(self, end: dict[str, str] | None = None, death: str | None = None) -> None:
        ended = trio.Event()
        ended.set()
        record = SimpleNamespace(end=end, master=None, ended=ended)
        nodes = [SimpleNamespace(location=SimpleNamespace(name=name)) for name in ("a", "b")]
        self.jobmanager = SimpleNamespace(
            dispatcher=SimpleNamespace(submit=self.submit, records={"1": record}),
            taskmanagers=SimpleNamespace(all=lambda: iter(nodes)),
        )
        deaths = [] if death is None else [death]
        self.taskmanagers = SimpleNamespace(deaths=deaths, last_words=lambda: "; last words")

    async def submit(self, graph: Any, *, placement: Any) -> str:
        assert placement.taskmanagers == {"source": ["a"] * SPEC.channels, "sink": ["b"] * 2}
        return "1"


@pytest.mark.parametrize(
    ("cluster", "reported"),
    [
        ({"end": {"reason": "a bug", "state": "failed"}}, "pressure 0.5: the job failed: a bug; last words"),
        ({"death": "TaskManager process 2 exited with code 1"}, "pressure 0.5: TaskManager process 2 exited"),
    ],
)
def test_what_goes_wrong_is_told(cluster: dict[str, Any], reported: str, tmp_path: Path) -> None:
    received: list[Any] = []
    fake: Any = FakeCluster(**cluster)
    with pytest.raises(MeasurementFailed, match=re.escape(reported)):
        trio.run(Runner(SPEC, fake, tmp_path, [], received.append).run, 0.5, "timed", 10.0)


def test_a_job_without_an_end_is_an_error(tmp_path: Path) -> None:
    fake: Any = FakeCluster()
    with pytest.raises(MeasurementFailed, match=r"timed, pressure 0\.5: no end after"):
        trio.run(Runner(SPEC, fake, tmp_path, [], None).run, 0.5, "timed", 10.0, clock=MockClock(autojump_threshold=0))
