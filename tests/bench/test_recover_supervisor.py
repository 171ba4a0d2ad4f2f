"""The supervisor of `recover`: whom it kills, starts again, and when it gives up."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recover_records import SMALL

from bench.children import DIED
from bench.processes import MeasurementFailed
from bench.recover import measure
from bench.recover.counts import Comparison, KeyCounts, count
from bench.recover.kills import Kill, OnDisk
from bench.recover.measure import Aim, Run, Supervisor
from bench.recover.records import split_records
from bench.recover.spec import MASTER, RecoverSpec

# ---------------------------------------------------------------------------------------------------------- supervisor


class FakeCluster:
    """Stands for the processes: a job goes on by itself when one of them is killed, and ends when `kills` were made."""

    def __init__(self, spec: RecoverSpec, *, kills: int) -> None:
        self.spec = spec
        self.names: list[str] = []
        self.kills_left = kills
        self.inbox: deque[tuple[str, dict[str, Any]]] = deque()
        self.jobs: list[dict[str, Any]] = []
        self.known: list[str] = []
        self.listens: list[str] = []
        self.killed: list[str] = []
        self.addressed: list[str] = []
        self.lose = 0
        self.mute_masters = 0  # that do not come so far as to tell their address

    def start(self, name: str, *arguments: str) -> None:
        assert name not in self.names
        assert arguments == ("--name", name)
        self.names.append(name)

    def say(self, name: str, event: str, **fields: Any) -> None:
        self.inbox.append((name, {"event": event, **fields}))

    def send(self, name: str, event: str, **fields: Any) -> None:
        if event == "start" and name != MASTER:
            assert fields == {"jobmanager": "tcp://here"}
            self.addressed.append(name)
        elif event == "start":
            self.listens.append(fields["listen"])
            if len(self.killed) >= self.mute_masters:
                self.say(MASTER, "address", address="tcp://here", jobs=[*self.known])
                if self.known:
                    self.go_on()
        else:
            assert (name, event) == (MASTER, "job")
            self.jobs.append(fields)
            self.known.append(fields["job"])
            self.go_on()

    def go_on(self) -> None:
        now = time.monotonic_ns()
        self.say(MASTER, "running", restored_from=len(self.killed) or None)
        self.say("taskmanager-1", "counting", at_ns=now + 1, opened_ns=now)
        self.say(MASTER, "checkpoint", is_complete=True, channel_state_bytes=1000)
        if not self.kills_left:
            self.finish()

    def finish(self) -> None:
        counts: KeyCounts = {}
        spec = self.spec
        for split in range(spec.sources):
            end = split_records(split, spec.sources, spec.records)
            for record in list(spec.stream.stream(split, 0, end))[self.lose :]:
                count(counts, spec.sources, *spec.stream.check(record))
        self.say(MASTER, "ended", job=self.jobs[-1]["job"], counts=[[*counts.items()]])

    def kill(self, name: str) -> None:
        assert name in self.names
        self.killed.append(name)
        self.kills_left -= 1
        if name == MASTER:
            self.say(MASTER, "running", restored_from=77)  # said before, heard after
        self.say(name, DIED, how="was ended by signal 9")
        if name != MASTER and not self.spec.change_parallelism:
            self.go_on()

    def receive(self, wait_s: float) -> tuple[str, dict[str, Any]] | None:
        if not self.inbox:
            return None
        name, message = self.inbox.popleft()
        if message["event"] == DIED:
            self.names.remove(name)
        return name, message

    def quotes(self) -> str:
        return "\n  last words"


def supervised(
    monkeypatch: pytest.MonkeyPatch, folder: Path, victims: list[float], *, moment: Any = "running", **changed: Any
) -> tuple[Run, FakeCluster]:
    spec = replace(SMALL, kills=len(victims))
    cluster = FakeCluster(spec, kills=len(victims))
    for name, value in changed.items():
        setattr(cluster, name, value)
    monkeypatch.setattr(measure, "plan", lambda *_: [Kill(moment, 0.0, victim) for victim in victims])
    told: list[int] = []
    run = Supervisor(spec, cluster, folder).run(0, folder, lambda: told.append(1))
    assert told
    return run, cluster


WORKERS = [f"taskmanager-{number}" for number in range(4)]


def test_a_run_without_kills(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, cluster = supervised(monkeypatch, tmp_path, [])
    assert (run.hits, run.restored_from, run.recovered_s) == ([], [], [])
    assert run.comparison == Comparison(0, 0, 0, ())
    assert cluster.names == [MASTER, *WORKERS]
    assert cluster.addressed == WORKERS


def test_who_was_killed_is_started_again_and_the_job_goes_on_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, cluster = supervised(monkeypatch, tmp_path, [0.3, 0.7])
    assert cluster.killed == ["taskmanager-0", "taskmanager-3"], "of those that run, the one started again comes last"
    assert [hit.victim for hit in run.hits] == cluster.killed
    assert sorted(cluster.names) == [MASTER, *WORKERS]
    assert len(cluster.jobs) == 1
    assert run.restored_from == [1, 2]
    assert len(run.recovered_s) == 1, "the second kill came before a record was counted after the first"
    assert run.state_bytes == [1000] * 3


def test_the_jobmanager_comes_back_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, cluster = supervised(monkeypatch, tmp_path, [0.0])
    assert cluster.killed == [MASTER]
    assert cluster.listens == ["", "tcp://here"]
    assert len(cluster.jobs) == 1, "it knows the job"
    assert run.restored_from == [1], "what it said before it died does not count"
    assert cluster.addressed == WORKERS, "TaskManagers find it by themselves"


def test_a_job_that_was_never_accepted_is_submitted_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, cluster = supervised(monkeypatch, tmp_path, [0.0], moment="starting", mute_masters=1)
    assert cluster.killed == [MASTER]
    assert cluster.listens == ["", ""]
    assert cluster.addressed == WORKERS
    assert len(cluster.jobs) == 1
    assert run.restored_from == [1]


def test_a_lost_record_of_a_run_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, _ = supervised(monkeypatch, tmp_path, [0.3], lose=1)
    assert (run.comparison.lost, run.comparison.repeated) == (2, 0), "one of each split"


@pytest.mark.parametrize(
    ("event", "fields", "told"),
    [
        ("failed", {"reason": "a bug"}, "the job gave up: a bug\n  last words"),
        (DIED, {"how": "exited with code 5"}, "jobmanager exited with code 5; it was not killed"),
    ],
)
def test_what_no_kill_explains_is_an_error(event: str, fields: dict[str, Any], told: str, tmp_path: Path) -> None:
    cluster = FakeCluster(SMALL, kills=1)
    cluster.say(MASTER, event, **fields)
    with pytest.raises(MeasurementFailed, match=re.escape(told)):
        Supervisor(SMALL, cluster, tmp_path).run(0, tmp_path, lambda: None)


def test_a_run_that_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "STALLED_S", 0.0)
    with pytest.raises(MeasurementFailed, match=r"stood still for 0 s after 0 kills\n  last words"):
        Supervisor(SMALL, FakeCluster(SMALL, kills=1), tmp_path).run(0, tmp_path, lambda: None)


def test_parallelism_changes_at_every_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = replace(SMALL, change_parallelism=True, kills=6)
    cluster = FakeCluster(spec, kills=6)
    monkeypatch.setattr(measure, "plan", lambda *_: [Kill("running", 0.0, 0.3)] * 6)
    Supervisor(spec, cluster, tmp_path).run(0, tmp_path, lambda: None)
    sinks = [fields["sinks"] for fields in cluster.jobs]
    assert sinks[0] == 2
    assert all(before != after for before, after in itertools.pairwise(sinks))
    assert set(sinks) <= {1, 2, 3, 4}


@pytest.mark.parametrize("before", [0, 2])
def test_ctrl_c_keeps_the_runs_that_ended(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(SMALL, runs=4, kills=0)
    cluster = FakeCluster(spec, kills=0)
    monkeypatch.setattr(measure, "Children", lambda module: contextlib.nullcontext(cluster))
    heard: list[Any] = []

    def interrupt(progress: Any) -> None:
        heard.append(progress)
        if len(cluster.jobs) > before:
            raise KeyboardInterrupt

    if not before:
        with pytest.raises(KeyboardInterrupt):
            measure.measure(spec, on_progress=interrupt)
        return
    found, stopped = measure.measure(spec, on_progress=interrupt)
    assert stopped
    assert len(found) == before
    assert heard[-1].records == before * spec.records


class Watched:
    """What an aim looks at."""

    def __init__(self) -> None:
        self.began_s: float = 100.0
        self.running_s: float | None = None
        self.disk = OnDisk(1, 3, True)

    def look(self) -> OnDisk:
        return self.disk


def test_moments_are_waited_for() -> None:
    seen = Watched()
    starting, running, checkpoint, files = (
        Aim(Kill(moment, 0.5, 0.0, passed=1)) for moment in ("starting", "running", "checkpoint", "files")
    )
    assert not starting.is_due(seen, 100.4)
    assert starting.is_due(seen, 100.5), "whether the job runs by then or not"
    assert not running.is_due(seen, 200.0)
    seen.running_s = 200.0
    assert not running.is_due(seen, 200.4)
    assert running.is_due(seen, 200.5)
    for number in (1, 2):
        seen.disk = OnDisk(number, 3, False)
        assert not any(aim.is_due(seen, 300.0) for aim in (checkpoint, files)), "one is let pass"
    seen.disk = OnDisk(3, 0, False)
    assert not any(aim.is_due(seen, 301.0) for aim in (checkpoint, files))
    seen.disk = OnDisk(3, 1, False)
    assert not files.is_due(seen, 301.2)
    assert checkpoint.is_due(seen, 301.5)
    assert files.is_due(seen, 301.7)
