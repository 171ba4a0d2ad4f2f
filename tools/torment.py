"""The checked job on real processes that are killed, stopped, disconnected, or whose disk is full.

Takes: hosts (`netstack.testing.namespaces`), a seed. Gives: the faults, and the anomalies of the history with
their witnesses.

Host 0 has the JobManager and the user, each other host a TaskManager of one slot. They share a small tmpfs with the
JobManager's folder and the checkpoints; the history is elsewhere, a file per attempt, so that it outlives its writer.
Faults are undone after a while, and then the job has to finish.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from netstack.base.errors import NetstackError
from netstack.testing.namespaces import Hosts
from netstack.testing.simulate.history import BEGUN, Anomaly, Event, read_history
from netstack.testing.simulate.recorded_job import job as recorded_job, verdict

KILL: Final = "kill"
PAUSE: Final = "pause"
CUT: Final = "cut"
FULL: Final = "full disk"
KINDS: Final = (KILL, PAUSE, CUT, FULL)

JOBMANAGER: Final = 0
"""Its host."""

SOURCES: Final = 2
RECORDS: Final = 1_600
"""Records of each source: about 13 s."""

_DISK_BYTES: Final = 8 << 20
_HEARTBEAT_S: Final = 2.0
_STORM_S: Final = 10.0
_LEAST_S, _MOST_S = 0.3, 5.0
"""Durations of faults: shorter and longer than the heartbeat timeout."""

_SETTLED_S: Final = 10.0
"""How long a stopped process may delay a deployment or a restore."""

_PATIENCE_S: Final = 120.0
_ANSWER_S: Final = 60.0


class TormentFailed(NetstackError):
    """The job did not end, or failed, or a host did not come up."""


@final
@dataclass(frozen=True, slots=True)
class HostFault:
    """One fault.

    Attributes:
        at_s: seconds since the job runs.
        kind: one of `KINDS`.
        host: the affected host; a full disk affects all.
        for_s: duration; after a kill, until the restart.
    """

    at_s: float
    kind: str
    host: int
    for_s: float

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s: {self.kind} at host {self.host} for {self.for_s:.1f} s"


@final
@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run.

    Attributes:
        lives: started attempts of sources and sinks; one of each without a restart.
        anomalies: violations; empty on success.
    """

    faults: tuple[HostFault, ...]
    lives: int
    events: tuple[Event, ...]
    results: dict[str, Any]
    anomalies: tuple[Anomaly, ...]


def planned(seed: int, hosts: int, count: int = 6) -> tuple[HostFault, ...]:
    """Plans faults by a seed: first each kind once, then any; they start one after the other and overlap."""
    chance = random.Random(seed)
    kinds = [*chance.sample(KINDS, len(KINDS)), *chance.choices(KINDS, k=count)][:count]
    times = sorted(chance.uniform(0.5, _STORM_S) for _ in kinds)
    return tuple(
        HostFault(
            at_s, kind, chance.randint(1 if kind == CUT else JOBMANAGER, hosts), chance.uniform(_LEAST_S, _MOST_S)
        )
        for at_s, kind in zip(times, kinds, strict=True)
    )


def torment(
    hosts: Hosts, seed: int, folder: Path, *, mode: str = "aligned", log_event: Callable[[str], None] = lambda _: None
) -> RunResult:
    """Runs the job once with the faults of a seed.

    Args:
        hosts: running empty hosts; processes stay until the caller ends them.
        seed: seed of the faults.
        folder: empty folder for all files.
        mode: checkpoint mode, `aligned` or `unaligned`.
        log_event: logs an event.

    Raises:
        TormentFailed: the job did not end, or failed.
        OSError: no disk can be made here: it takes root.
    """
    history = folder / "history"
    history.mkdir()
    with small_disk(folder / "disk") as disk:
        cluster = _Cluster(hosts, folder, disk)
        cluster.start_all()
        job_id = cluster.submit(history, mode)
        cluster.until(job_id, lambda job: job["checkpoints_completed"] >= 1)
        faults = planned(seed, hosts.count)
        cluster.play(faults, log_event)
        job = cluster.until(job_id, lambda job: job["state"] in ("finished", "failed", "canceled"))
        if job["state"] != "finished":
            raise TormentFailed(f"the job has {job['state']}: {json.dumps(job['log'][-5:])}")
        events = read_history(history)
        wrong = judged(events, job["results"], mode)
        lives = sum(event.what == BEGUN for event in events)
        return RunResult(faults, lives, tuple(events), job["results"], tuple(wrong))


def judged(events: Sequence[Event], results: dict[str, Any], mode: str) -> list[Anomaly]:
    """Checks a history of `torment`'s job."""
    aligned = mode == "aligned"
    return verdict(events, results, sources=SOURCES, records=RECORDS, aligned=aligned, settled_s=_SETTLED_S)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """Mounts a file system of a few MiB in memory. Raises OSError if it cannot be mounted."""
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"a small disk cannot be made: {done.stderr.strip()}; it takes root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)


@final
class _Cluster:
    def __init__(self, hosts: Hosts, folder: Path, disk: Path) -> None:
        self._hosts = hosts
        self._folder = folder
        self._disk = disk
        self._ballast = disk / "ballast"
        self._secret = folder / "secret"
        self._secret.touch(mode=0o600)
        self._secret.write_text(os.urandom(32).hex())
        self._address = f"tcp://{hosts.address(JOBMANAGER)}:6120"
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._refusal = ""

    def start_all(self) -> None:
        for host in range(self._hosts.count + 1):
            self._start(host)
            self._wait_up(host)

    def submit(self, history: Path, mode: str) -> str:
        words = [
            f"{recorded_job.__module__}:{recorded_job.__name__}",
            "-p",
            f"history={history}",
            "-p",
            f"records={RECORDS}",
        ]
        end_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end_s:
            submitted = self._ask("submit", *words, "-p", f"sources={SOURCES}", "-p", f"mode={mode}")
            if submitted is not None:
                return str(submitted["job_id"])
            time.sleep(0.5)  # it does not listen yet
        raise TormentFailed(f"the job cannot be submitted: {self._refusal} {self._last_words(JOBMANAGER)}")

    def until(self, job_id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Queries until a condition holds; an unreachable JobManager is queried again."""
        end_s = time.monotonic() + _PATIENCE_S
        job = None
        while time.monotonic() < end_s:
            job = self._ask("jobs", job_id) or job
            if job is not None and condition(job):
                return job
            time.sleep(0.2)
        log = [] if job is None else job["log"][-10:]
        raise TormentFailed(f"the job made no progress for {_PATIENCE_S:g} s: {json.dumps(log)}")

    def play(self, faults: Sequence[HostFault], log_event: Callable[[str], None]) -> None:
        """Executes the planned faults and undoes them, each at its time."""
        acts = [(fault.at_s, True, fault) for fault in faults]
        acts += [(fault.at_s + fault.for_s, False, fault) for fault in faults]
        began_s = time.monotonic()
        under_way: list[HostFault] = []
        for at_s, is_begin, fault in sorted(acts, key=lambda act: act[:2]):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            if is_begin:
                log_event(str(fault))
                self._do(fault)
                under_way.append(fault)
            else:
                under_way.remove(fault)
                if not any((each.kind, each.host) == (fault.kind, fault.host) for each in under_way):
                    self._undo(fault)
        for host in range(self._hosts.count + 1):
            self._wait_up(host)

    def _do(self, fault: HostFault) -> None:
        process = self._processes[fault.host]
        match fault.kind:
            case "kill":
                _signal(process, signal.SIGKILL)
                process.wait()
            case "pause":
                _signal(process, signal.SIGSTOP)
            case "cut":
                self._hosts.cut(fault.host)
            case _:
                with contextlib.suppress(OSError), self._ballast.open("wb") as file:
                    while True:
                        file.write(bytes(1 << 16))
                        file.flush()

    def _undo(self, fault: HostFault) -> None:
        match fault.kind:
            case "kill":
                self._start(fault.host)
            case "pause":
                _signal(self._processes[fault.host], signal.SIGCONT)
            case "cut":
                self._hosts.heal(fault.host)
            case _:
                self._ballast.unlink(missing_ok=True)

    def _start(self, host: int) -> None:
        common = ["--secret-file", str(self._secret), "--heartbeat-timeout", f"{_HEARTBEAT_S:g}s", "--json"]
        if host == JOBMANAGER:
            words = ["jobmanager", "--listen", self._address, "--folder", str(self._disk / "jobs")]
        else:
            words = ["taskmanager", "--jobmanager", self._address, "--listen", "tcp://0.0.0.0:6121", "--slots", "1"]
            words += ["--allow", "netstack.testing.simulate.", "--name", f"host-{host}", "--memory", "32MiB"]
        with self._log(host).open("a") as log:
            command = [sys.executable, "-m", "netstack.cli", *words, *common]
            self._processes[host] = self._hosts.start(host, command, stdout=log, stderr=log)

    def _wait_up(self, host: int) -> None:
        """Restarts a process that failed because of the full disk."""
        end_s = time.monotonic() + _PATIENCE_S
        while self._processes[host].poll() is not None:
            if time.monotonic() > end_s:
                raise TormentFailed(f"host {host} does not come up: {self._last_words(host)}")
            self._start(host)
            time.sleep(2.0)

    def _ask(self, command: str, *words: str) -> dict[str, Any] | None:
        self._wait_up(JOBMANAGER)
        flags = ["--jobmanager", self._address, "--secret-file", str(self._secret), "--json"]
        asked = [sys.executable, "-m", "netstack.cli", command, *words, *flags]
        try:
            done = self._hosts.run(JOBMANAGER, asked, timeout=_ANSWER_S)
        except subprocess.TimeoutExpired:  # the JobManager is stopped, or the machine is busy
            self._refusal = f"{command} had no answer within {_ANSWER_S:g} s"
            if command == "submit":  # it may have been executed
                raise TormentFailed(self._refusal) from None
            return None
        if done.returncode:
            self._refusal = done.stderr.strip()
            return None
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def _log(self, host: int) -> Path:
        return self._folder / f"log-{host}"

    def _last_words(self, host: int) -> str:
        return self._log(host).read_text()[-800:]


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
