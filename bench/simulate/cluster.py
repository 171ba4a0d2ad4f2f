"""One simulation: a cluster lives, its job runs, faults happen, and what must hold is looked at all the time.

Takes: a `Scenario`. Gives: an `Outcome`: one line that says how it went, and the events before it.

What must hold:
- at every look: segments and credit of every connection, as `netstack.testing.ledger` has them;
- the job ends, with the only right result, whatever went wrong;
- afterwards nothing is left: no task, no slot, no segment, no blob, no partition, no half-written file, no connection.
"""

from __future__ import annotations

import logging
import os
import random
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import trio

from netstack.control.messages import (
    CheckpointAcknowledged,
    Message,
    PartitionConsumable,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from netstack.errors import ConfigError, NetstackError
from netstack.jobmanager.config import JobManagerConfig
from netstack.jobmanager.job_master import JobMaster
from netstack.jobmanager.jobs import JobRecord
from netstack.jobmanager.service import JobManager, open_jobmanager
from netstack.runtime.authentication import Secret
from netstack.runtime.causes import root_cause
from netstack.runtime.network_environment import NetworkEnvironment
from netstack.runtime.turns import measure_with
from netstack.schedule.commit_phase import COMMITTED
from netstack.schedule.graph.job_file import write_job
from netstack.taskmanager.service import TaskManager, TaskManagerConfig, open_taskmanager
from netstack.testing.ledger import check_environment
from netstack.transport import provided

from ..stopping import scratch_folder
from . import scenario as kinds
from .checked import remembered
from .clock import JumpingClock
from .determined import determined
from .history import Event
from .hosts import Host, files_in
from .network import SCHEME, THIS_HOST, Network, Process
from .operators import effect_problems, job, network, problems
from .scenario import JOBMANAGER, Fault, Scenario, takes_checkpoints

REMEMBERED: Final = 100
"""Events that are told of a simulation that fails."""

LONGEST_S: Final = 1_000.0
"""A job that has not ended after so long, by its own clock, never will."""

STEPS_AT_MOST: Final = 150_000
"""Turns of tasks; one that goes round and round without time passing is stopped."""

_HEARTBEAT_S: Final = 5.0
_LOOK_S: Final = 0.25
_SECRET: Final = b"a secret that every simulated host has"
_JOBMANAGER: Final = f"{SCHEME}://{JOBMANAGER}:6120"
_REPEATED: Final = (CheckpointAcknowledged, PartitionConsumable, TaskFailed, TaskFinished, TaskStates)


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario.

    Attributes:
        scenario: which.
        failure: what was wrong, in one line; empty: nothing.
        digest: equal for equal runs.
        events: the last of them, with their times.
        clock_s: how long it took, by its own clock.
        deaths: lives that hosts lost.
        detail: traceback of the failure.
    """

    scenario: Scenario
    failure: str
    digest: str
    events: tuple[str, ...]
    clock_s: float
    deaths: int
    detail: str = ""

    @property
    def line(self) -> str:
        """All of it, on one line; a replay gives the same."""
        how = f"FAILED: {self.failure}" if self.failure else "ok"
        return f"seed {self.scenario.seed} [{self.digest}] {self.clock_s:.3f} s: {how}"


def scratch() -> str | None:
    """Where files go: TMPDIR, or where they are fast; None: nowhere in particular."""
    return os.environ.get("TMPDIR") or ("/dev/shm" if Path("/dev/shm").is_dir() else None)


def simulate(scenario: Scenario) -> Outcome:
    """Plays a scenario to its end; never raises for what it finds."""
    with scratch_folder(scratch()) as folder:
        return _played(Cluster(scenario, Path(folder)))


def _played(cluster: Cluster) -> Outcome:
    scenario = cluster.scenario
    failure = detail = ""
    try:
        with (
            determined(scenario.seed),
            provided(SCHEME, cluster.network),
            cluster.listening(),
            remembered() as cluster.history,
        ):
            steps = _Steps(cluster.give_up)
            trio.run(cluster.run, clock=JumpingClock(), instruments=[steps])
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
    )


@final
class Cluster:
    """All of one simulation; see the module.

    Attributes:
        network: between its hosts.
        events: the last ones.
        clock_s: how long it has taken.
        history: what the operators of a checked job have told.
    """

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.network = Network(random.Random(scenario.seed ^ 0x5EED))
        self.events: deque[str] = deque(maxlen=REMEMBERED)
        self.clock_s = 0.0
        self.history: list[Event] = []
        self._folder = folder
        self._began_s = 0.0
        self._environments: dict[NetworkEnvironment, Process] = {}
        self._heard: deque[tuple[str, JobMaster, Message]] = deque(maxlen=200)
        self._job_id = ""
        self._given_up = ""
        self._ending = trio.Event()
        self._scope = trio.CancelScope()
        shuffle = folder / "shuffle"
        shuffle.mkdir()
        secret = Secret(_SECRET)
        settings = replace(network(scenario), shuffle_directory=str(shuffle))
        jobmanager = JobManagerConfig(
            listen=_JOBMANAGER, folder=str(folder / "jobs"), secret=secret, heartbeat_timeout_s=_HEARTBEAT_S
        )
        self.jobmanager = Host(JOBMANAGER, self.network, partial(open_jobmanager, jobmanager), self.tell)
        self.taskmanagers = [
            Host(
                name,
                self.network,
                partial(
                    open_taskmanager,
                    TaskManagerConfig(
                        listen=f"{SCHEME}://{name}:6121",
                        name=name,
                        jobmanager=_JOBMANAGER,
                        link_in_thread=False,
                        slots=scenario.slots,
                        memory_bytes=16 << 20,
                        network=settings,
                        secret=secret,
                        allow=("bench.simulate.",),
                        heartbeat_timeout_s=_HEARTBEAT_S,
                    ),
                ),
                self.tell,
            )
            for name in (f"tm-{number}" for number in range(scenario.taskmanagers))
        ]
        self._hosts = {host.name: host for host in (self.jobmanager, *self.taskmanagers)}

    def tell(self, text: str) -> None:
        """Something happened."""
        line = f"{trio.current_time() - self._began_s:9.4f} {text}"
        self.events.append(line)
        self.network.digest.update(line.encode())

    def give_up(self, why: str) -> None:
        """Ends it in the middle, as a failure."""
        self._given_up = why
        self._scope.cancel()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """What the services log are events."""
        logger = logging.getLogger("netstack")
        handler = _Handler(self.tell)
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
        """Plays all of it.

        Raises:
            AssertionError: something does not hold; the text says what.
        """
        self._began_s = trio.current_time()
        measure_with(trio.current_time)
        THIS_HOST.set(Process("outside"))
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                for host in self._hosts.values():
                    nursery.start_soon(host.live)
                nursery.start_soon(self._look)
                for fault in self.scenario.faults:
                    nursery.start_soon(self._happen, fault)
                record = await self._run_job()
                self._check_result(record)
                await self._check_nothing_left()
                nursery.cancel_scope.cancel()
            assert not self._given_up, self._given_up
            self._check_all_closed()
        finally:
            self.clock_s = trio.current_time() - self._began_s

    def let_go(self) -> None:
        """What the kernel does for the dead: their files are closed, and stay."""
        for environment in self._environments:
            environment.kept._folder.close()

    # The job.

    async def _run_job(self) -> JobRecord:
        document = write_job(job(self.scenario).stream_graph())
        with trio.move_on_after(LONGEST_S):
            while True:
                manager = await self._manager()
                record = manager.jobs.records.get(self._job_id)
                if record is None:
                    await self._submit(manager, document)
                elif record.end is not None:
                    return record
                with trio.move_on_after(_LOOK_S):
                    await trio.sleep_forever() if record is None else await record.ended.wait()
        states = self._states()
        raise AssertionError(f"the job has not ended after {LONGEST_S:g} s: {states}")

    async def _submit(self, manager: JobManager, document: Any) -> None:
        """As a client does whose question was carried to the JobManager; who hears no answer looks, and asks again."""
        found = [each.stored.job_id for each in manager.jobs.records.values()]
        if found:
            self._job_id = found[0]
            return
        host = self.jobmanager
        done = trio.Event()

        async def ask() -> None:
            try:
                self._job_id = await manager.jobs.submit(document)
            except ConfigError:
                raise
            except (NetstackError, OSError) as error:
                self.tell(f"the job was not taken: {error}")
            except (
                RuntimeError
            ) as error:  # a service that is stopped ends its questions; this one was asked from outside
                if host.is_up and host.process is process:
                    raise
                self.tell(f"nobody answers: {error}")
            finally:
                done.set()

        async with trio.open_nursery() as nursery:
            process = host.process

            async def run(function: Any) -> Any:
                return await host.disk.run(process, function)

            THIS_HOST.set(process)
            manager.in_thread = manager.jobs._in_thread = manager.jobs._owners._in_thread = run
            nursery.start_soon(ask)
            while not done.is_set() and process.is_alive:
                with trio.move_on_after(0.05):
                    await done.wait()
            nursery.cancel_scope.cancel()

    async def _manager(self) -> JobManager:
        while not self.jobmanager.is_up:  # noqa: ASYNC110  # between two of its lives
            await trio.sleep(_LOOK_S)
        found: JobManager = self.jobmanager.service
        return found

    def _states(self) -> str:
        manager: JobManager | None = self.jobmanager.service
        record = None if manager is None else manager.jobs.records.get(self._job_id)
        if record is None or record.master is None:
            return "nobody runs it"
        master = record.master
        tasks = {
            f"{host.name}": [scope.task_states() for scope in host.service.scopes]
            for host in self.taskmanagers
            if host.service is not None
        }
        return f"it is {master.scheduler.state.value}; {master.scheduler.statistics()}; {tasks}"

    def _check_result(self, record: JobRecord) -> None:
        assert record.end is not None
        if (
            record.end["state"] == "failed"
            and COMMITTED in record.end["reason"]
            and not takes_checkpoints(self.scenario)
        ):
            wrong = effect_problems(self.scenario, is_finished=False)
            assert not wrong, wrong
            return
        assert record.end["state"] == "finished", f"the job is {record.end['state']}: {record.end['reason']}"
        wrong = problems(self.scenario, record.end["results"], self.history)
        assert not wrong, wrong

    # What goes wrong.

    async def _happen(self, fault: Fault) -> None:
        if fault.is_at_end:
            await self._ending.wait()
        await trio.sleep(fault.at_s)
        self.tell(f"FAULT {fault}")
        host = self._hosts[fault.host]
        others = [name for name in self._hosts if name != fault.host]
        network = self.network
        self._check()
        match fault.kind:
            case kinds.KILL | kinds.POWER:
                host.die(silently=fault.kind == kinds.POWER, for_s=fault.for_s)
            case kinds.STOP:
                host.stop(for_s=fault.for_s)
            case kinds.CUT:
                network.cut(fault.host, fault.other)
            case kinds.UNPLUG:
                for name in others:
                    network.stall(fault.host, name)
                    network.stall(name, fault.host)
                await trio.sleep(fault.for_s)
                for name in others:
                    network.heal(fault.host, name)
                    network.heal(name, fault.host)
            case kinds.HALF:
                network.stall(fault.host, fault.other)
                await trio.sleep(fault.for_s)
                network.heal(fault.host, fault.other)
            case kinds.DELAY:
                network.set_delay(fault.host, fault.other, fault.amount)
                await trio.sleep(fault.for_s)
                network.set_delay(fault.host, fault.other, 0.001)
            case kinds.SLOW:
                host.process.slowness = fault.amount
                await trio.sleep(fault.for_s)
                host.process.slowness = 1.0
            case kinds.DISK_SLOW:
                host.disk.delay_s = fault.amount
                await trio.sleep(fault.for_s)
                host.disk.delay_s = 0.0
            case kinds.DISK_FULL:
                host.disk.room_bytes = int(fault.amount)
                await trio.sleep(fault.for_s)
                host.disk.room_bytes = None
            case kinds.REPEAT:
                said = [each for each in self._heard if each[0].startswith(fault.host)]
                await trio.sleep(fault.for_s)
                for taskmanager, master, message in said[-5:]:
                    if master.end is None:
                        master.heard(taskmanager, message)
        self._check()

    # What must hold.

    async def _look(self) -> None:
        while True:
            await trio.sleep(_LOOK_S)
            self._check()
            manager: JobManager | None = self.jobmanager.service
            if manager is not None:
                for master in manager.jobs.running.values():
                    self._overhear(master)

    def _overhear(self, master: JobMaster) -> None:
        """What is said to a JobMaster is kept, to be repeated."""
        if "heard" not in vars(master):
            hear = master.heard

            def heard(taskmanager: str, message: Message) -> None:
                if isinstance(message, _REPEATED):
                    self._heard.append((taskmanager, master, message))
                if isinstance(message, TaskStates) and message.state == "waiting":
                    self._ending.set()
                hear(taskmanager, message)

            master.heard = heard  # type: ignore[method-assign]
            add = master.log.add

            def note(at: float, what: str, text: str) -> None:
                self.tell(f"{what}: {text}")
                add(at, what, text)

            master.log.add = note  # type: ignore[method-assign]
            for happening in master.log.all():
                self.tell(f"earlier, {happening.what}: {happening.text}")

    def _check(self) -> None:
        for host in self.taskmanagers:
            service: TaskManager | None = host.service
            if service is None:
                continue
            found = [scope.environment for scope in service.scopes]
            for environment in dict.fromkeys((service.environments.shared, *found)):
                if environment is not None:
                    self._environments.setdefault(environment, host.process)
                    check_environment(environment)

    async def _check_nothing_left(self) -> None:
        """Of the job; some of it needs a moment, and a host that is just coming back more than that."""
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
        if manager.blobs.keys(self._job_id):
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
            assert lent == 0 or not process.is_alive, f"{lent} segments of {process.host} never came home"
            left = os.path.exists(environment.kept.folder) or environment.kept._folder.open_files
            assert not left or not process.is_alive, f"{process.host} ended in order and left its shuffle files"
        open_streams = [stream for stream in self.network.streams if stream.process.is_alive]
        assert not open_streams, f"{len(open_streams)} connections are open: {open_streams[0].peer}"


@final
class _Handler(logging.Handler):
    def __init__(self, tell: Any) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        process = THIS_HOST.get(None)
        where = "" if process is None else process.host
        dead = "" if process is None or process.is_alive else " (dead)"
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._tell(f"{where}{dead}: {text}")


@final
class _Steps(trio.abc.Instrument):
    """Stops what goes round without end."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self._give_up = give_up
        self._steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps += 1
        if self._steps == STEPS_AT_MOST:
            self._give_up(f"no end after {STEPS_AT_MOST} steps of tasks, the last one of {task.name}")
