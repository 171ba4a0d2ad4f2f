"""Runs a job again and again, kills its processes on the way, and compares what its sinks counted in the end.

Takes: a `RecoverSpec`. Gives: one document.

Rules: whoever dies is started again at once; nothing else is done for the job, but with --change-parallelism, where it
is stopped and submitted again from its newest checkpoint. A process that dies without being killed, or a job that gives
up, ends the measurement with an error.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..children import DIED, Children
from ..host import host_facts, version
from ..processes import MeasurementFailed
from ..runner import Progress
from ..stopping import scratch_folder
from .counts import Comparison, KeyCounts, compare
from .kills import Kill, OnDisk, on_disk, plan
from .spec import MASTER, MOST_SINKS, RecoverSpec

STALLED_S: Final = 60.0
"""A run of which nothing was heard for so long is stuck."""

_WORKER: Final = "bench.recover.worker"
_AIM_S: Final = 0.001
_WAIT_S: Final = 0.1
_START_S: Final = 1.0
_RESTART_S: Final = 0.8


@dataclass(frozen=True, slots=True)
class Hit:
    """One kill that was made.

    Attributes:
        moment: what was waited for.
        victim: the process.
        disk: the newest checkpoint on the disk right then.
    """

    moment: str
    victim: str
    disk: OnDisk


@dataclass(slots=True)
class Run:
    """What became of one run.

    Attributes:
        hits: the kills.
        restored_from: of every restart the checkpoint; None is from the start.
        recovered_s: from a kill to the first record counted after it, where no other kill came in between.
        state_bytes: channel state of every complete checkpoint, the final one included.
        aborted: checkpoints that were not complete.
        comparison: of the final counts.
    """

    hits: list[Hit] = field(default_factory=list)
    restored_from: list[int | None] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)
    state_bytes: list[int] = field(default_factory=list)
    aborted: int = 0
    comparison: Comparison = field(default_factory=lambda: Comparison(0, 0, 0, ()))


def expected_s(spec: RecoverSpec) -> float:
    """How long all runs take."""
    return _START_S + spec.runs * (spec.records / spec.rate_per_s + spec.kills * _RESTART_S)


def measure(spec: RecoverSpec, *, on_progress: Callable[[Progress], None] | None = None) -> tuple[list[Run], bool]:
    """Makes all runs.

    Args:
        spec: the settings.
        on_progress: called at every message.

    Returns:
        The runs that came to their end, and whether Ctrl-C left some of them out.

    Raises:
        MeasurementFailed: a process died or hung, or a job failed, without being killed.
        NetstackError: what a process found wrong with the settings.
    """
    runs: list[Run] = []
    with scratch_folder() as scratch, Children(_WORKER) as children:
        supervisor = Supervisor(spec, children, Path(scratch) / "jobmanager")
        try:
            for number in range(spec.runs):

                def tell(phase: str = "running", number: int = number) -> None:
                    if on_progress is not None:
                        on_progress(Progress("run", phase, number * spec.records, 0.0, number / spec.runs))

                tell("starting")
                runs.append(supervisor.run(number, Path(scratch) / f"run-{number}", tell))
        except KeyboardInterrupt:
            if not runs:
                raise
    return runs, len(runs) < spec.runs


class Supervisor:
    """Starts the processes of a cluster, starts those again that died, and kills them.

    Args:
        spec: the settings.
        children: where they are started; nothing else is in there.
        folder: of the JobManager.
    """

    def __init__(self, spec: RecoverSpec, children: Children, folder: Path) -> None:
        self._spec = spec
        self._children = children
        self._home = folder
        self._workers = [f"taskmanager-{number}" for number in range(spec.sources + spec.sinks)]
        self._address = ""  # where the JobManager listens, in all of its lives
        self._is_up = False
        self._killed: set[str] = set()  # and did not die yet
        self._joined: set[str] = set()  # were told where the JobManager is
        self._chance = random.Random(spec.seed)
        self._run = Run()
        self._folder = Path()
        self._name = ""
        self._sinks = spec.sinks
        self._errors: dict[str, str] = {}  # what a process said last, before it ended
        self._is_changing = False  # the job is to go on with another number of sinks
        self._running_s: float | None = None
        self._began_s = 0.0
        self._killed_ns: int | None = None
        self._counts: list[KeyCounts] = []

    def run(self, number: int, folder: Path, tell: Callable[[], None]) -> Run:
        """One job from its beginning to its end, with the kills planned for it.

        Args:
            number: of the run.
            folder: of its checkpoints.
            tell: called now and then.

        Raises:
            MeasurementFailed: see `measure`.
        """
        self._run, self._folder, self._sinks = Run(), folder, self._spec.sinks
        self._name = f"recover {number}"
        self._killed_ns = self._running_s = None
        self._is_changing = False
        self._began_s = time.monotonic()
        for name in (MASTER, *self._workers):
            if name not in self._children.names:
                self._start(name)
        if self._is_up:
            self._send_job()
        aims = [Aim(kill) for kill in plan(self._spec.seed, number, self._spec.kills)]
        heard_s = time.monotonic()
        while True:
            message = self._children.receive(_AIM_S if aims else _WAIT_S)
            if message is not None:
                tell()
                if message[1]["event"] != "progress":  # which is said by processes that only live
                    heard_s = time.monotonic()
                if self._heard(*message):
                    break
            if time.monotonic() - heard_s > STALLED_S:
                raise MeasurementFailed(
                    f"run {number} stood still for {STALLED_S:g} s after {len(self._run.hits)} kills"
                    f"{self._children.quotes()}"
                )
            if aims and aims[0].is_due(self, time.monotonic()):
                self._kill(aims.pop(0).kill)
        expected = self._spec.stream.expected(self._spec.sources, self._spec.records)
        self._run.comparison = compare(expected, self._counts)
        return self._run

    @property
    def began_s(self) -> float:
        """When the run began, or the last kill was made."""
        return self._began_s

    @property
    def running_s(self) -> float | None:
        """Since when all tasks run; None while they do not."""
        return self._running_s

    def look(self) -> OnDisk:
        """The newest checkpoint on the disk."""
        return on_disk(self._folder)

    def _heard(self, name: str, message: dict[str, Any]) -> bool:
        """Takes a message; returns whether the job has ended."""
        event = message["event"]
        if event == DIED:
            self._died(name, message["how"])
        elif event == "error":
            self._errors[name] = f"{message['kind']}: {message['text']}"
        elif event == "counting":
            self._counting(message["at_ns"], message["opened_ns"])
        elif MASTER in self._killed:
            return False  # what it said before it died
        elif event == "address":
            self._address, self._is_up = message["address"], True
            for worker in self._workers:
                if worker in self._children.names and worker not in self._joined:
                    self._join(worker)
            if self._is_changing or self._name not in message["jobs"]:
                self._send_job()
        elif event == "checkpoint":
            if message["is_complete"]:
                self._run.state_bytes.append(message["channel_state_bytes"])
            else:
                self._run.aborted += 1
        elif event == "running":
            self._running(message["restored_from"])
        elif event == "failed":
            raise MeasurementFailed(f"the job gave up: {message['reason']}{self._children.quotes()}")
        elif event == "ended" and message["job"] == self._name:
            self._counting(time.monotonic_ns(), time.monotonic_ns())  # if there was nothing left to count
            self._counts = [dict(counts) for counts in message["counts"]]
            return True
        return False

    def _running(self, restored_from: int | None) -> None:
        self._running_s = time.monotonic()
        if self._run.hits:
            self._run.restored_from.append(restored_from)

    def _died(self, name: str, how: str) -> None:
        error = self._errors.pop(name, "")
        if name not in self._killed:
            raise MeasurementFailed(f"{name} {how}; it was not killed{error and f' ({error})'}")
        self._killed.discard(name)
        self._joined.discard(name)
        self._start(name)

    def _start(self, name: str) -> None:
        self._children.start(name, "--name", name)
        if name == MASTER:
            self._children.send(name, "start", listen=self._address, folder=str(self._home))
        elif self._address:
            self._join(name)

    def _join(self, worker: str) -> None:
        self._joined.add(worker)
        self._children.send(worker, "start", jobmanager=self._address)

    def _send_job(self) -> None:
        self._is_changing = False
        settings = self._spec.as_dict()
        self._children.send(
            MASTER, "job", job=self._name, settings=settings, sinks=self._sinks, folder=str(self._folder)
        )

    def _counting(self, at_ns: int, opened_ns: int) -> None:
        """A sink counts: the first one that was opened after the last kill shows that the job has recovered."""
        if self._killed_ns is not None and opened_ns > self._killed_ns:
            self._run.recovered_s.append((at_ns - self._killed_ns) / 1e9)
            self._killed_ns = None

    def _kill(self, kill: Kill) -> None:
        victim = kill.of([name for name in self._children.names if name not in self._killed])
        self._run.hits.append(Hit(kill.moment, victim, self.look()))
        self._killed_ns = time.monotonic_ns()
        self._children.kill(victim)
        self._began_s = time.monotonic()
        self._running_s = None
        self._killed.add(victim)
        if victim == MASTER:
            self._is_up = False
        if self._spec.change_parallelism:
            self._sinks = self._chance.choice([count for count in range(1, MOST_SINKS + 1) if count != self._sinks])
            self._is_changing = True
            if self._is_up:
                self._send_job()


class Aim:
    """Waits for the moment of one kill."""

    def __init__(self, kill: Kill) -> None:
        self.kill = kill
        self._next: int | None = None  # the number of the checkpoint to wait for
        self._since_s: float | None = None

    def is_due(self, supervisor: Supervisor, now_s: float) -> bool:
        """Whether it is time."""
        if self._since_s is None:
            self._since_s = self._moment_s(supervisor, now_s)
        return self._since_s is not None and now_s >= self._since_s + self.kill.delay_s

    def _moment_s(self, supervisor: Supervisor, now_s: float) -> float | None:
        """When what is waited for happened; None before."""
        if self.kill.moment == "starting":
            return supervisor.began_s
        running_s = supervisor.running_s
        if running_s is None or self.kill.moment in ("running", "anytime"):
            return running_s
        disk = supervisor.look()
        if self._next is None:
            self._next = disk.number + 1 + self.kill.passed
        is_there = disk.number >= self._next and (disk.is_half_written or self.kill.moment == "checkpoint")
        return now_s if is_there else None


def document(spec: RecoverSpec, runs: Sequence[Run]) -> dict[str, Any]:
    """The document of the command (`bench/METHOD.md` says what each key means)."""
    hits = [hit for run in runs for hit in run.hits]
    state_bytes = [size for run in runs for size in run.state_bytes]
    recovered_ms = [seconds * 1e3 for run in runs for seconds in run.recovered_s]
    lost, repeated, disordered = (
        sum(getattr(run.comparison, name) for run in runs) for name in ("lost", "repeated", "disordered")
    )
    problems = [f"run {number}: {text}" for number, run in enumerate(runs) for text in run.comparison.problems]
    return {
        "runs": len(runs),
        "kills": len(hits),
        "lost": lost,
        "repeated": repeated,
        "disordered": disordered,
        "delivered": not (lost or repeated or disordered),
        "time_to_recover_ms": _of(recovered_ms),
        "checkpoints_completed": len(state_bytes),
        "checkpoints_aborted": sum(run.aborted for run in runs),
        "channel_state_bytes": _of(state_bytes),
        "restored_from": [each for run in runs for each in run.restored_from],
        "kills_by_moment": dict(Counter(hit.moment for hit in hits)),
        "kills_by_process": dict(Counter(hit.victim for hit in hits)),
        "kills_with_half_written_checkpoint": sum(hit.disk.is_half_written for hit in hits),
        "warnings": problems,
        "settings": spec.as_dict(),
        "host": host_facts(),
        "version": version(),
    }


def _of(values: Sequence[float]) -> dict[str, float] | None:
    return {"p50": statistics.median(values), "max": max(values)} if values else None
