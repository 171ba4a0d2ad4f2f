"""How `checkpoints` measures, without processes."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from checkpoint_results import SPEC

from netstack.bench.checkpoints import measure
from netstack.bench.checkpoints.measure import Runner, jobs, taken
from netstack.bench.checkpoints.spec import MASTER, MODES, WORKERS, CheckpointsSpec
from netstack.bench.children import DIED
from netstack.bench.processes import MeasurementFailed

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


class FakeProcesses:
    """Stands for the three processes: sinks take 1000 records/s, or what they may; 10 % less with checkpoints."""

    def __init__(self) -> None:
        self.inbox: deque[tuple[str, dict[str, Any]]] = deque()
        self.started: list[str] = []
        self.addressed: list[str] = []
        self.jobs: list[tuple[str | None, float | None]] = []
        self.instead: tuple[str, dict[str, Any]] | None = None
        self.second = 0

    def __enter__(self) -> FakeProcesses:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.started.clear()

    def start(self, name: str, *arguments: str) -> None:
        self.started.append(name)
        if name == MASTER:
            self.inbox.append((MASTER, {"event": "address", "address": "tcp://x"}))

    def send(self, name: str, event: str, **fields: Any) -> None:
        if event == "address":
            self.addressed.append(name)
            self.inbox.append((MASTER, {"event": "registered", "count": len(self.addressed)}))
            return
        self.jobs.append((fields["mode"], fields["rate_per_s"]))
        rate = fields["rate_per_s"] or 1000.0
        start = self.second
        records = 0
        for second in range(7):
            self.inbox.append((WORKERS[1], self.told(start + second, records)))
            self.inbox.append((WORKERS[0], self.told(start + second, 0)))
            records += int(rate * (0.9 if second % 2 else 1.0))
        self.second += 10
        report = {
            "reason": "", "duration_s": 0.02, "start_delay_s": 0.002, "alignment_s": 0.01, "write_s": 0.005,
            "channel_state_bytes": 100,
        }  # fmt: skip
        reports = [{"is_complete": True, **report}] * 3 + [{**report, "is_complete": False, "reason": "declined"}] * 2
        stretches = [[bool(at % 2), (start + at) * 10**9, (start + at + 1) * 10**9] for at in range(6)]
        if fields["mode"] is None:
            stretches, reports = stretches[::2], []
        self.inbox.append(self.instead or (MASTER, {"event": "measured", "stretches": stretches, "reports": reports}))

    def told(self, second: int, records: int) -> dict[str, Any]:
        return {"event": "taken", "at_ns": second * 10**9, "records": records}

    def receive(self, wait_s: float) -> tuple[str, dict[str, Any]] | None:
        return self.inbox.popleft() if self.inbox else None

    def quotes(self) -> str:
        return "\n  last words"


def test_every_mode_is_measured_at_every_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = FakeProcesses()
    monkeypatch.setattr(measure, "Children", lambda module: processes)
    heard: list[Any] = []
    found, stopped = measure.measure(SPEC, on_progress=heard.append)
    assert not stopped
    assert processes.addressed == list(WORKERS)
    assert found["undisturbed_records_per_s"] == 1000
    held_back = pytest.approx(100.0)
    assert processes.jobs == [(None, None), *((mode, None) for mode in MODES), *((mode, held_back) for mode in MODES)]
    assert len(jobs(SPEC)) == len({each.engine for each in heard}) == 7
    aligned = found["modes"]["aligned"]
    assert [each["pressure"] for each in aligned] == [0.0, 0.9]
    assert (aligned[0]["checkpoints"], aligned[0]["aborted"]) == (3, 2)
    assert aligned[0]["throughput_lost"] == pytest.approx(0.1)
    assert aligned[1]["records_per_s"] == pytest.approx(90, abs=1)
    assert aligned[1]["duration_ms"]["p50"] == pytest.approx(20.0)
    assert found["warnings"][0] == "aligned, pressure 0: a checkpoint was aborted: declined"
    assert len(found["warnings"]) == 6


@pytest.mark.parametrize(
    ("name", "message", "told"),
    [
        (
            MASTER,
            {"event": "failed", "reason": "a bug"},
            "undisturbed, pressure 0: the job failed: a bug\n  last words",
        ),
        (MASTER, {"event": "error", "kind": "ConfigError", "text": "no"}, "jobmanager raised ConfigError: no"),
        (WORKERS[1], {"event": DIED, "how": "exited with code 1"}, "sinks exited with code 1"),
    ],
)
def test_what_goes_wrong_is_told(
    name: str, message: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = FakeProcesses()
    processes.instead = (name, message)
    monkeypatch.setattr(measure, "Children", lambda module: processes)
    with pytest.raises(MeasurementFailed, match=re.escape(told)):
        measure.measure(SPEC)
    assert processes.started == [], "all of them were ended"


def test_a_job_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "PATIENCE_S", -1000.0)
    with pytest.raises(MeasurementFailed, match=r"timed, pressure 0\.5: no end after"):
        Runner(SPEC, FakeProcesses(), tmp_path, None).run(1, 0.5, "timed", 10.0)


@pytest.mark.parametrize("before", [0, 3])
def test_ctrl_c_keeps_what_was_measured(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = FakeProcesses()
    monkeypatch.setattr(measure, "Children", lambda module: processes)

    def interrupt(heard: Any) -> None:
        if len(processes.jobs) > before:
            raise KeyboardInterrupt

    if not before:
        with pytest.raises(KeyboardInterrupt):
            measure.measure(SPEC, on_progress=interrupt)
        return
    found, stopped = measure.measure(SPEC, on_progress=interrupt)
    assert stopped
    assert [len(found["modes"][mode]) for mode in MODES] == [1, 1, 0]
