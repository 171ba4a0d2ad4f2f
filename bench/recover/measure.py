"""Runs a job again and again, kills its processes on the way, and compares what its sinks counted in the end.

Takes: a `RecoverSpec`. Gives: one document.

Rules: whoever dies is started again at once, and a job that failed is sent again: nothing else is done for the job. A
process that dies, or a job that fails, without a kill that explains it ends the measurement with an error.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from netstack.checkpoint.storage import CheckpointStorage

from ..children import DIED, Children
from ..host import host_facts, version
from ..processes import MeasurementFailed
from ..runner import Progress
from .counts import Comparison, compare
from .kills import Kill, OnDisk, on_disk, plan
from .operators import SINK, SOURCE
from .spec import MASTER, MOST_SINKS, RecoverSpec

STALLED_S: Final = 60.0
"""A run of which nothing was heard for so long is stuck."""

_WORKER: Final = "bench.recover.worker"
_MOST_FAILURES: Final = 5  # a job may be sent again before the master knows of all who died
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
    with tempfile.TemporaryDirectory(prefix="netstack-bench-") as scratch, Children(_WORKER) as children:
        supervisor = Supervisor(spec, children)
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
    """Keeps the processes of a job running, whatever happens to them, and kills them.

    Args:
        spec: the settings.
        children: where they are started; nothing else is in there.
    """

    def __init__(self, spec: RecoverSpec, children: Children) -> None:
        self._spec = spec
        self._children = children
        # In this order by name, too, which is that of the indices of the job's workers.
        sources = [f"a-{SOURCE}-{number}" for number in range(spec.sources)]
        self._workers = [*sources, *(f"b-{SINK}-{number}" for number in range(spec.sinks))]
        self._address = ""
        self._killed: set[str] = set()  # and did not die yet
        self._joined: set[str] = set()  # were told where the master is
        self._orphans: set[str] = set()  # the master they were told of was killed, and they will notice
        self._chance = random.Random(spec.seed)
        self._run = Run()
        self._folder = Path()
        self._sinks = spec.sinks
        self._errors: dict[str, str] = {}  # what a process said last, before it ended
        self._failures_left = 0  # of the job, that the last kill explains
        self._running_s: float | None = None
        self._began_s = 0.0
        self._killed_ns: int | None = None
        self._opened_ns = 0
        self._counted_ns: list[int] = []

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
        self._killed_ns = self._running_s = None
        self._failures_left = 0
        self._began_s = time.monotonic()
        for name in (MASTER, *self._workers):
            if name not in self._children.names:
                self._start(name)
        if self._address:
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
        self._run.comparison = self._compare()
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
        elif event == "address":
            self._address = message["address"]
            for worker in self._workers:
                if worker in self._children.names and worker not in self._orphans:
                    self._join(worker)
            self._send_job()
        elif event == "checkpoint":
            if message["is_complete"]:
                self._run.state_bytes.append(message["channel_state_bytes"])
            else:
                self._run.aborted += 1
        elif event == "opening":
            self._opened_ns = message["at_ns"]
            self._recovered()
        elif event == "counting":
            self._counted_ns.append(message["at_ns"])
            self._recovered()
        elif event == "ended":
            self._counted_ns.append(time.monotonic_ns())  # if there was nothing left to count
            self._recovered()
            return True
        elif MASTER not in self._killed:
            if event == "running":
                self._running(message["restored_from"])
            elif event == "failed":
                self._failed(message["reason"])
        return False

    def _running(self, restored_from: int | None) -> None:
        self._running_s = time.monotonic()
        self._failures_left = 0
        if self._run.hits:
            self._run.restored_from.append(restored_from)

    def _failed(self, reason: str) -> None:
        if not self._failures_left:
            raise MeasurementFailed(f"the job failed, and no kill explains it: {reason}{self._children.quotes()}")
        self._failures_left -= 1
        self._running_s = None
        self._send_job()

    def _died(self, name: str, how: str) -> None:
        error = self._errors.pop(name, "")
        if name not in self._killed and name not in self._orphans:
            raise MeasurementFailed(f"{name} {how}; it was not killed{error and f' ({error})'}")
        self._killed.discard(name)
        self._orphans.discard(name)
        self._joined.discard(name)
        self._start(name)

    def _start(self, name: str) -> None:
        self._children.start(name, "--name", name)
        if name != MASTER and self._address:
            self._join(name)

    def _join(self, worker: str) -> None:
        self._joined.add(worker)
        self._children.send(worker, "address", address=self._address)

    def _send_job(self) -> None:
        if self._run.hits and self._spec.change_parallelism:
            self._sinks = self._chance.choice([count for count in range(1, MOST_SINKS + 1) if count != self._sinks])
        settings = self._spec.as_dict()
        self._children.send(MASTER, "job", settings=settings, sinks=self._sinks, folder=str(self._folder))

    def _recovered(self) -> None:
        """Looks whether a sink counts again since the last kill."""
        if self._killed_ns is None or self._opened_ns < self._killed_ns:
            return
        counted_ns = [at_ns for at_ns in self._counted_ns if at_ns > self._opened_ns]
        if counted_ns:
            self._run.recovered_s.append((min(counted_ns) - self._killed_ns) / 1e9)
            self._killed_ns = None

    def _kill(self, kill: Kill) -> None:
        victim = kill.of([name for name in self._children.names if name not in self._killed])
        self._run.hits.append(Hit(kill.moment, victim, self.look()))
        self._counted_ns.clear()
        self._killed_ns = time.monotonic_ns()
        self._children.kill(victim)
        self._began_s = time.monotonic()
        self._running_s = None
        self._failures_left = _MOST_FAILURES
        self._killed.add(victim)
        if victim == MASTER:
            self._address = ""
            self._orphans.update(self._joined - self._killed)

    def _compare(self) -> Comparison:
        """The final counts, out of the last checkpoint, with those of the generator."""
        storage = CheckpointStorage(self._folder)
        newest = storage.newest()
        if newest is None:
            raise MeasurementFailed(f"the job has ended, but {self._folder} holds no complete checkpoint")
        snapshots = storage.read(newest.checkpoint_id)
        expected = self._spec.stream.expected(self._spec.sources, self._spec.records)
        return compare(expected, [each.operator for each in snapshots if each.task == SINK])


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
