"""One simulation: a cluster runs jobs under faults while invariants are checked.

Takes: a `Scenario`. Gives: an `Outcome` with a one-line verdict and the events before it.

Invariants:
- at every check: segments and credit of every connection (`netstack.testing.ledger`);
- every job ends with its exact result, whatever fails;
- afterwards nothing is left: no task, slot, segment, blob, partition, partial file or connection.
"""

from __future__ import annotations

import logging
import os
import random
import re
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import trio

from ...base.causes import root_cause
from ...base.scratch import scratch_folder
from ...base.transport import provided
from ...cluster.jobmanager.config import JobManagerConfig
from ...cluster.jobmanager.service import JobManager, open_jobmanager
from ...cluster.taskmanager.config import TaskManagerConfig
from ...cluster.taskmanager.runner import open_taskmanager
from ...cluster.taskmanager.service import TaskManager
from ...exchange.stored.files import FOLDER_PREFIX
from ...network.connection.authentication import Secret
from ...network.connection.fair_share import measure_with
from ...network.environment import NetworkEnvironment
from ...schedule.slots.slots import LoadBalanceMode
from ..ledger import check_environment
from .client import LONGEST_S, User
from .determinism import JumpingClock, determined
from .faults import Faults
from .history import Event
from .hosts import Host, files_in
from .job_of_scenario import network
from .network import SCHEME, THIS_HOST, Network, Process
from .operators import Outside, outside
from .recorded_job import remembered
from .scenario import JOBMANAGER, LIE, PORT, Scenario, second_of
from .situations import counted, happened, note_line

REMEMBERED: Final = 100
"""Number of events that a failed simulation prints."""

_HEARTBEAT_S: Final = 5.0
_LOOK_S: Final = 0.25
_MISUNDERSTOOD: Final = re.compile(
    r"RemoteProtocolError(?!.*(TRUNCATED_STREAM|SESSION_UNKNOWN|PARTITION_NOT_FOUND|no such session))"
)
_SECRET: Final = b"a secret that every simulated host has"
_JOBMANAGER: Final = f"{SCHEME}://{JOBMANAGER}:6120"
_OWN_FOLDERS: Final = f"{FOLDER_PREFIX}{os.getpid()}-"
"""Begins the names of shuffle folders; events show them without the number of the process."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a scenario.

    Attributes:
        failure: the failure in one line; empty on success.
        digest: equal for equal runs.
        events: the last events with their times.
        clock_s: duration in virtual seconds.
        deaths: number of ended host lives.
        detail: traceback of the failure.
    """

    scenario: Scenario
    failure: str
    digest: str
    events: tuple[str, ...]
    clock_s: float
    deaths: int
    detail: str = ""
    situations: dict[str, int] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The result on one line; a replay prints the same."""
        how = f"FAILED: {self.failure}" if self.failure else "ok"
        return f"seed {self.scenario.seed} [{self.digest}] {self.clock_s:.3f} s: {how}"


def scratch() -> str | None:
    """The folder for files: TMPDIR, or a fast one; None: the default."""
    return os.environ.get("TMPDIR") or ("/dev/shm" if Path("/dev/shm").is_dir() else None)


def simulate(scenario: Scenario) -> Outcome:
    """Plays a scenario to its end; failures are part of the outcome."""
    with scratch_folder(scratch()) as folder:
        return _played(Cluster(scenario, Path(folder)))


def _played(cluster: Cluster) -> Outcome:
    scenario = cluster.scenario
    failure = detail = ""
    situations: Counter[str] = Counter()
    try:
        with (
            determined(scenario.seed, cluster.clock),
            provided(SCHEME, cluster.network),
            cluster.listening(),
            remembered() as cluster.history,
            outside() as world,
            counted() as situations,
        ):
            cluster.begin(world)
            trio.run(cluster.run, clock=cluster.clock)
    except BaseException as error:
        root = root_cause(error)
        if isinstance(root, KeyboardInterrupt):
            raise
        text = " ".join((str(root) or type(root).__name__).split())
        failure = f"{type(root).__name__}: {text}"[:400]
        detail = "".join(traceback.format_exception(error))
    finally:
        cluster.let_go()
    return Outcome(
        scenario,
        failure,
        cluster.network.digest.hexdigest(),
        tuple(cluster.events),
        cluster.clock_s,
        cluster.network.deaths,
        detail,
        dict(situations),
    )


@final
class Cluster:
    """One simulation, as described in the module.

    Attributes:
        events: the last events.
        clock_s: virtual seconds so far.
    """

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.clock = JumpingClock(self.give_up)
        self.network = Network(random.Random(scenario.seed ^ 0x5EED), self.clock.call_at)
        self.events: deque[str] = deque(maxlen=REMEMBERED)
        self.clock_s = 0.0
        self.history: list[Event] = []
        self._folder = folder
        self._began_s = 0.0
        self._environments: dict[NetworkEnvironment, Process] = {}
        self._users: list[User] = []
        self._given_up = ""
        self._misunderstood = ""
        self._is_lied_to = any(fault.kind == LIE for fault in scenario.faults)
        self._scope = trio.CancelScope()
        shuffle = folder / "shuffle"
        shuffle.mkdir()
        secret = Secret(_SECRET)
        settings = replace(network(scenario), shuffle_directory=str(shuffle))
        jobmanager = JobManagerConfig(
            listen=_JOBMANAGER,
            folder=str(folder / "jobs"),
            secret=secret,
            heartbeat_timeout_s=_HEARTBEAT_S,
            checkpoint_roots=(str(folder),),
            load_balance=LoadBalanceMode(scenario.load_balance),
        )
        self.jobmanager = Host(JOBMANAGER, self.network, partial(open_jobmanager, jobmanager), self.log_event)
        with provided(SCHEME, self.network):  # a configuration checks that its addresses have a transport
            self.taskmanagers = [
                Host(
                    name,
                    self.network,
                    partial(
                        open_taskmanager,
                        TaskManagerConfig(
                            listen=f"{SCHEME}://{name}:{PORT}",
                            name=name,
                            jobmanager=_JOBMANAGER,
                            link_in_thread=False,
                            slots=scenario.slots,
                            memory_bytes=16 << 20,
                            network=settings,
                            secret=secret,
                            allow=("netstack.testing.simulate.",),
                            heartbeat_timeout_s=_HEARTBEAT_S,
                        ),
                    ),
                    self.log_event,
                )
                for name in (f"tm-{number}" for number in range(scenario.taskmanagers))
            ]
        self._hosts = {host.name: host for host in (self.jobmanager, *self.taskmanagers)}

    def log_event(self, text: str) -> None:
        """Something happened."""
        text = text.replace(str(self._folder), "").replace(_OWN_FOLDERS, FOLDER_PREFIX)
        line = f"{trio.current_time() - self._began_s:9.4f} {text}"
        if not self._is_lied_to and _MISUNDERSTOOD.search(text):
            self._misunderstood = self._misunderstood or text
        self.events.append(line)
        note_line(line)
        self.network.digest.update(line.encode())

    def begin(self, world: Outside) -> None:
        """Creates the users and the external system."""
        scenario = self.scenario
        if scenario.case is not None:
            for axis, value in scenario.case.values().items():
                happened(f"jobs with {axis}: {value}")
        scenarios = [scenario, second_of(scenario)] if scenario.has_second else [scenario]
        folder = self._folder / "jobs"
        self._users = [
            User(each, f"simulated-{scenario.seed}.{number}", self.jobmanager, folder, world, self.log_event)
            for number, each in enumerate(scenarios)
        ]

    def give_up(self, why: str) -> None:
        """Ends the simulation as failed."""
        self._given_up = why
        self._scope.cancel()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turns log records of the services into events."""
        logger = logging.getLogger("netstack")
        handler = _Handler(self.log_event)
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate

    async def run(self) -> None:
        """Plays the scenario. Raises AssertionError if an invariant is violated."""
        self._began_s = trio.current_time()
        measure_with(trio.current_time)
        THIS_HOST.set(Process("outside"))
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                for host in self._hosts.values():
                    nursery.start_soon(host.live)
                faults = Faults(self._hosts, self.network, self.log_event, self._check)
                nursery.start_soon(self._look, faults)
                for fault in self.scenario.faults:
                    nursery.start_soon(faults.happen, fault)
                async with trio.open_nursery() as users:
                    users.start_soon(self._users[0].play, self.history)
                    for user in self._users[1:]:
                        happened("second jobs")
                        users.start_soon(user.play, [])
                await self._check_nothing_left()
                nursery.cancel_scope.cancel()
            assert not self._given_up, self._given_up
            assert not self._misunderstood, f"honest peers do not understand each other: {self._misunderstood}"
            self._check_all_closed()
        finally:
            self.clock_s = trio.current_time() - self._began_s

    def let_go(self) -> None:
        """Closes the files of dead processes, as the kernel does; the files stay."""
        for environment in self._environments:
            environment.kept._folder.close()

    # Invariants.

    async def _look(self, faults: Faults) -> None:
        while True:
            await trio.sleep(_LOOK_S)
            self._check()
            manager: JobManager | None = self.jobmanager.service
            if manager is not None:
                for master in manager.dispatcher.running.values():
                    faults.overhear(master)

    def _check(self) -> None:
        for host in self.taskmanagers:
            service: TaskManager | None = host.service
            if service is None:
                continue
            own = [job.environment for job in service.jobs_in_process]
            for environment in dict.fromkeys((service.environments.shared, *own)):
                if environment is not None:
                    with host.asked() as process:  # a check may start reading kept partitions
                        self._environments.setdefault(environment, process)
                        check_environment(environment)

    async def _check_nothing_left(self) -> None:
        """Waits until nothing of the jobs is left; hosts that are starting need more time."""
        left = ["?"]
        with trio.move_on_after(LONGEST_S):
            while left:
                await trio.sleep(1.0)
                left = [*self._left()]
        assert not left, f"left behind: {', '.join(left)}"

    def _left(self) -> Iterator[str]:
        manager: JobManager | None = self.jobmanager.service
        if manager is None or not all(host.is_up for host in self.taskmanagers):
            yield "a host is not back"
            return
        if manager.slots.total != self.scenario.slots * self.scenario.taskmanagers:
            yield f"{manager.slots.total} slots are registered"
        if manager.slots.free != manager.slots.total:
            yield f"{manager.slots.total - manager.slots.free} slots"
        if any(manager.blobs.keys(job_id) for user in self._users for job_id in user.jobs):
            yield "blobs"
        for host in self.taskmanagers:
            service: TaskManager = host.service
            if not service.is_idle:
                yield f"jobs at {host.name}"
            if service.environments.shared is not None:
                yield f"the network of jobs at {host.name}"
            if service.memory.free_memory_bytes != service.memory.memory_bytes:
                yield f"memory at {host.name}"
        for path in files_in(str(self._folder / "jobs")):
            if path.endswith((".part", ".tmp")):
                yield f"file {Path(path).name}"
        for environment, process in self._environments.items():
            if process.is_alive and (kept := files_in(environment.kept.folder)):
                yield f"{len(kept)} files of kept partitions at {process.host}"

    def _check_all_closed(self) -> None:
        for environment, process in self._environments.items():
            lent = environment._pool.statistics().lent_segments
            assert lent == 0 or not process.is_alive, f"{lent} segments of {process.host} were not returned"
            left = os.path.exists(environment.kept.folder) or environment.kept._folder.open_files
            assert not left or not process.is_alive, f"{process.host} stopped in order but left shuffle files"
        open_streams = [stream for stream in self.network.streams if stream.process.is_alive]
        assert not open_streams, f"{len(open_streams)} connections are open: {open_streams[0].peer}"


@final
class _Handler(logging.Handler):
    def __init__(self, log_event: Any) -> None:
        super().__init__()
        self._log_event = log_event

    def emit(self, record: logging.LogRecord) -> None:
        process = THIS_HOST.get(None)
        where = "" if process is None else process.host
        dead = "" if process is None or process.is_alive else " (dead)"
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._log_event(f"{where}{dead}: {text}")
