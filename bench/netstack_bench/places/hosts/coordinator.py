"""The coordinator of one run over daemons: submits its job, starts all tasks at one moment, collects results.

The run is an ordinary job: the JobManager in this process deploys it, finds the root cause of a failure, and collects
its results. The coordinator decides which subtask runs where, and exchanges operator events with the tasks
(`invokables`).

- The JobManager does not listen: it dials. A daemon offers exactly the slots of the run, so that all of them belong to
  the run, which decides where each subtask runs (`Matrix.placed`).
- Clocks are measured while the network is idle: after the set-up, and after the last record.
- The job is always cancelled at the end, after Ctrl-C too.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np
import trio

from netstack.base.errors import ConnectionLost, InsufficientBuffers, LocalProtocolError, NetstackError, RequestRefused
from netstack.base.units import counted
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.job_master.job_master import JobMaster
from netstack.cluster.jobmanager.job_record import JobRecord
from netstack.cluster.jobmanager.resource_manager.taskmanagers import ConnectedTaskManager
from netstack.cluster.jobmanager.service import JobManager, open_jobmanager
from netstack.network.connection.authentication import Secret
from netstack.schedule.execution import JobState
from netstack.schedule.failover.restart import NO_RESTART
from netstack.schedule.graph.job_file import write_job
from netstack.schedule.instructions import EndJob

from ...spec import DEFAULT_SECONDS
from ..conversation import Conversation, MeasurementFailed, OnProgress, fraction_of, stalled_s
from .clocks import HostClock, Reading, read_clock, translate
from .matrix import RELAY, SINK, SOURCE, Matrix, Placement
from .result import Host, Outcome, Timeline, check_same_build, crowded_hosts, document_of
from .spec import MeshSpec

CONNECT_TIMEOUT_S: Final = 10.0

logging.getLogger("netstack.jobmanager").addHandler(logging.NullHandler())  # its warnings become the run's error


@final
@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon of this run: its dialled `host:port` address and its TaskManager in the JobManager."""

    address: str
    taskmanager: ConnectedTaskManager

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the daemon reported about itself."""
        return self.taskmanager.facts

    @property
    def lost_because(self) -> str:
        """Why the daemon was lost; empty while it is connected."""
        return self.taskmanager.lost_because

    @property
    def name(self) -> str:
        """Its name in the JobManager."""
        return self.taskmanager.location.name


@final
@dataclass(frozen=True, slots=True)
class Mesh:
    """The JobManager of a run and its daemons, in the order of the hosts."""

    jobmanager: JobManager
    daemons: tuple[Daemon, ...]


@asynccontextmanager
async def open_mesh(
    spec: MeshSpec, *, secret: Secret | None = None, name: str = "", connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> AsyncIterator[Mesh]:
    """Opens a JobManager and connects to the daemons of a run.

    All share a secret unless they are on loopback. `name` is that of this coordinator in the daemons' logs, by default
    the host's name. Each daemon has to answer within `connect_timeout_s`.

    Raises:
        ConnectionLost: a daemon cannot be reached, or works for another JobManager; the text names it.
        NetstackError: a daemon refused, or has too few slots.

    Cancellation, and the end of the block: the daemons close what remains of the run, and are free for the next.
    """
    matrix = Matrix(spec)
    config = JobManagerConfig(listen=f"memory://bench-{secrets.token_hex(8)}", name=name)
    async with open_jobmanager(config) as jobmanager:
        daemons = []
        for index, host in enumerate(spec.parsed_hosts):
            try:
                taskmanager = await jobmanager.adopt(
                    host.address, secret=secret, slots=matrix.slots(index), connect_timeout_s=connect_timeout_s
                )
            except (ConnectionLost, RequestRefused) as error:
                raise _named(error, host.address) from error
            daemons.append(Daemon(host.address, taskmanager))
        yield Mesh(jobmanager, tuple(daemons))


def _named(error: NetstackError, address: str) -> NetstackError:
    text = str(error)
    return type(error)(text if address in text else f"{address}: {text}")


_LEAD_NS: Final = 50_000_000  # from the go to the start, besides a round trip: all tasks have read the message by then
_CLOSE_S: Final = 5.0  # for daemons to release a run; a silent one releases it when it detects the lost connection
_SAMPLES_AT_MOST: Final = 1 << 16  # in one message to a sink: 1 MiB
_TASK: Final = re.compile(rf"({SOURCE}|{RELAY}|{SINK}) \((\d+)\) on ")
_NO_RESTART: Final = f" ({NO_RESTART})"  # of every run


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MeshDeadlines:
    """Time limits of the coordinator. A run without a length has no overall limit while records arrive."""

    setup_s: float = 30.0  # until all tasks are ready; likewise for their results
    stalled_s: float = 10.0  # without an arriving record (longer for a slow rate)
    overall_s: float = 120.0  # of a run, besides twice its requested length


def run_over_hosts(
    spec: MeshSpec,
    *,
    secret_file: Path | None = None,
    same_build: bool = False,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Connects to the daemons, measures once, releases them, and returns the document of the run.

    Raises:
        NetstackError: a daemon cannot be reached, refused, or the run failed; the text names the host.
        ConfigError: the secret file cannot be used, or with `same_build` the hosts run different builds.
    """
    secret = None if secret_file is None else Secret.from_file(secret_file)

    async def run() -> Outcome:
        async with open_mesh(spec, secret=secret) as mesh:
            if same_build:
                check_same_build({**daemon.facts, "host": daemon.address} for daemon in mesh.daemons)
            return await measure_mesh(spec, mesh, on_progress)

    return document_of(trio.run(run, restrict_keyboard_interrupt_to_checkpoints=True), "hosts")


async def measure_mesh(
    spec: MeshSpec,
    mesh: Mesh,
    on_progress: OnProgress | None = None,
    *,
    deadlines: MeshDeadlines | None = None,
) -> Outcome:
    """Measures once and returns the outcome; a run without a length lasts 3 s.

    Cancellation: the run is closed on every daemon.

    Raises:
        MeasurementFailed: a task failed, a daemon was lost or refused the run, or no records move.
    """
    if len(mesh.daemons) != len(spec.hosts):
        raise LocalProtocolError(f"{len(mesh.daemons)} daemons for {len(spec.hosts)} hosts; open one for each")
    if spec.records is None and spec.seconds is None:
        spec = dataclasses.replace(spec, seconds=DEFAULT_SECONDS)
    matrix = Matrix(spec)
    leader = _Leader(matrix, mesh, on_progress, deadlines or MeshDeadlines())
    dispatcher = mesh.jobmanager.dispatcher
    job_id = await dispatcher.submit(
        write_job(matrix.graph(f"bench {secrets.token_hex(2)}")),
        placement=matrix.placed([daemon.name for daemon in mesh.daemons]),
        coordinator=leader,
    )
    record = dispatcher.records[job_id]
    master = record.master
    assert master is not None, "no time was measured"
    try:
        return await _lead(leader, record, master)
    finally:
        with trio.move_on_after(_CLOSE_S, shield=True):
            master.cancel()
            await master.ended.wait()  # returns at once if the JobManager was cancelled too


async def _lead(leader: _Leader, record: JobRecord, master: JobMaster) -> Outcome:
    failure: NetstackError | None = None
    outcome: Outcome | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.watch, record)
        try:
            outcome = await leader.lead(master)
        except NetstackError as error:  # raised as it is, not inside this nursery's group
            failure = error
        nursery.cancel_scope.cancel()
    if outcome is None:
        raise failure or MeasurementFailed("the run was cancelled")
    return outcome


_News: TypeAlias = tuple[Placement, dict[str, Any]] | EndJob | str
"""An event of a task, the end of the job, or why a daemon refused it or the JobManager failed."""


@final
class _Leader:
    """Leads one run, from `ready` to the results (a `JobCoordinator`)."""

    def __init__(self, matrix: Matrix, mesh: Mesh, on_progress: OnProgress | None, limits: MeshDeadlines) -> None:
        self._matrix = matrix
        self._spec = matrix.spec
        self._mesh = mesh
        self._on_progress = on_progress
        self._limits = limits
        self._inbox, self._news = trio.open_memory_channel[_News](math.inf)
        self._places = {(each.task, each.subtask): each for each in matrix.placements}
        self._conversation = Conversation(
            matrix.placements,
            matrix.of_task(SINK),
            ready_by_s=trio.current_time() + limits.setup_s,
            stalled_s=stalled_s(matrix.spec, limits.stalled_s, sources=matrix.spec.sources),
        )
        self._is_over = False
        self._timeline = Timeline()
        self._send_event: Callable[[str, int, dict[str, Any]], None]

    # From the JobManager (`JobCoordinator`).

    def event(self, vertex: str, subtask: int, event: dict[str, Any]) -> None:
        self._inbox.send_nowait((self._places[vertex, subtask], event))

    def refused(self, taskmanager: str, reason: str) -> None:
        self._inbox.send_nowait(f"{taskmanager}: {reason}")

    def ended(self, end: EndJob) -> None:
        self._inbox.send_nowait(end)

    async def watch(self, record: JobRecord) -> None:
        await record.ended.wait()
        if record.end is not None:
            self._inbox.send_nowait(str(record.end.get("reason")))

    async def lead(self, master: JobMaster) -> Outcome:
        self._send_event = master.send_event
        sources, sinks = self._matrix.of_task(SOURCE), self._matrix.of_task(SINK)
        conversation = self._conversation
        await self._until(lambda: conversation.is_ready, "became ready", conversation.deadline_s)
        before = await self._read_clocks()
        clocks = [HostClock(reading) for reading in before]
        self._go(clocks)
        await self._until(lambda: conversation.is_done, "ended", self._end_s(), True)
        after = await self._read_clocks()
        clocks = [HostClock(first, last) for first, last in zip(before, after, strict=True)]
        self._finish(sinks, clocks)
        until_s = trio.current_time() + self._limits.setup_s
        await self._until(lambda: self._is_over, "returned its result", until_s)
        return Outcome(
            matrix=self._matrix,
            hosts=tuple(
                Host(daemon.address, dict(daemon.facts), clock)
                for daemon, clock in zip(self._mesh.daemons, clocks, strict=True)
            ),
            start_ns=conversation.start_ns,
            stopped_ns=tuple(
                int(clocks[each.host].here_ns(np.array([self._conversation.stopped[each]["stopped_ns"]]))[0])
                for each in sources
            ),
            results={each: master.tasks.results[each.task][each.subtask] for each in self._matrix.placements},
            timeline=self._timeline,
        )

    async def _read_clocks(self) -> list[Reading]:
        return [await read_clock(daemon.taskmanager.link) for daemon in self._mesh.daemons]

    def _go(self, clocks: Sequence[HostClock]) -> None:
        lead_ns = _LEAD_NS + 2 * max(clock.before.rtt_ns for clock in clocks)
        run_start_ns = time.monotonic_ns() + lead_ns
        self._conversation.begin(run_start_ns, trio.current_time())
        slots = [self._matrix.slots(index) for index in range(len(clocks))]
        crowded = crowded_hosts([daemon.facts for daemon in self._mesh.daemons], slots)
        for each in self._matrix.placements:
            # The start in each source's own clock.
            start_ns = run_start_ns + clocks[each.host].before.offset_ns
            groups = len(self._matrix.upstream()) if each.task == SINK else 0
            message = {"start_ns": start_ns, "starts": [start_ns] * groups, "spins": each.host not in crowded}
            self._send(each, {"event": "go", **message})

    def _finish(self, sinks: Sequence[Placement], clocks: Sequence[HostClock]) -> None:
        sources = self._matrix.of_task(SOURCE)
        stops = [(int(self._conversation.stopped[each]["stopped_ns"]), clocks[each.host]) for each in sources]
        keep = max(1, _SAMPLES_AT_MOST // len(self._matrix.upstream()))
        for each in sinks:
            clock = clocks[each.host]
            samples = []
            for source in self._matrix.sources_of(each.subtask):
                indexes, times = (
                    np.frombuffer(values, dtype=np.int64)
                    for values in self._conversation.stopped[sources[source]]["samples"]
                )
                stride = max(1, -(-len(indexes) // keep))
                moved = translate(times[::stride], clocks[sources[source].host], clock)
                samples.append([indexes[::stride].tobytes(), moved.tobytes()])
            stop_ns = min(int(translate(np.array([at]), theirs, clock)[0]) for at, theirs in stops)
            self._send(each, {"event": "finish", "stop_ns": stop_ns, "samples": samples})

    def _send(self, each: Placement, message: dict[str, Any]) -> None:
        self._send_event(each.task, each.subtask, message)

    async def _until(self, is_done: Callable[[], bool], what: str, until_s: float, moving: bool = False) -> None:
        while not is_done():
            deadline_s = min(until_s, self._conversation.deadline_s if moving else math.inf)
            with trio.move_on_at(deadline_s) as scope:
                news = await self._news.receive()
            if not scope.cancelled_caught:
                self._take(news)
            elif deadline_s == until_s:
                raise self._failed(f"not every task {what} in time: {self._waiting_for()}")
            else:
                raise self._failed(f"no record arrived for {self._conversation.stalled_s:g} s: {self._waiting_for()}")

    def _take(self, news: _News) -> None:
        if isinstance(news, str):
            raise self._failed(news)
        if isinstance(news, EndJob):
            if news.state is not JobState.FINISHED:
                raise self._failed((news.reason or "the run was cancelled").removesuffix(_NO_RESTART))
            self._is_over = True
        else:
            place, message = news
            if message["event"] == "progress":
                self._timeline.add(place, message)
            self._conversation.on_message(place, message, trio.current_time())
        if self._on_progress is not None:
            fraction = partial(fraction_of, self._spec, sources=self._spec.sources)
            self._on_progress(self._conversation.state("netstack", time.monotonic_ns(), fraction))

    def _failed(self, text: str) -> MeasurementFailed:
        for daemon in self._mesh.daemons:  # the user names it by its control port
            text = text.replace(daemon.name, daemon.address)
        text = _TASK.sub(r"\1-\2 on ", text)
        if InsufficientBuffers.__name__ in text:
            text += (
                f"; the subtasks of a host share the memory of {counted(self._spec.connections, 'slot')}:"
                " --connections raises that, the TaskManager's --memory is shared by its slots"
            )
        return MeasurementFailed(f"measuring over {len(self._mesh.daemons)} hosts failed: {text}")

    def _waiting_for(self) -> str:
        silent = self._conversation.waited_for()
        named = [f"{each} on {self._mesh.daemons[each.host].address}" for each in silent]
        more = f" and {len(named) - 4} more" if len(named) > 4 else ""
        more += "".join(
            f"; {each.address} was lost: {each.lost_because}" for each in self._mesh.daemons if each.lost_because
        )
        return f"waiting for {', '.join(named[:4])}{more}; {self._conversation.records} records arrived"

    def _end_s(self) -> float:
        spec = self._spec
        seconds = spec.seconds
        if spec.records is not None:
            seconds = spec.records / spec.rate_per_s if spec.rate_per_s else None
        if seconds is None or spec.consume_rate_per_s is not None:
            return math.inf
        return trio.current_time() + 2 * seconds + self._limits.overall_s
