"""Leads one run over daemons: opens it everywhere, starts all tasks at one moment, hears them out, closes everything.

Takes: a `MeshSpec`, a `TaskManagerClient` for each of its hosts. Gives: the document of the run (`bench.mesh.result`),
or `MeasurementFailed` with the host, the task and the cause.

Rules:
- Two phases: the run is opened on every daemon before anything is deployed on one; a daemon without a free slot costs
  nothing.
- Clocks are measured while the wires are idle: when everything is set up, and when everything has arrived.
- A failure is told by its root: a task's own error before a daemon that is gone, before a timeout, before what others
  lost because of it. Hence the moment of listening after the first bad news.
- The run is closed on every daemon on every path out of here, Ctrl-C included.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import trio

from netstack.errors import LocalProtocolError, NetstackError
from netstack.taskmanager.client import TaskManagerClient
from netstack.taskmanager.remote_job import Ended, Failed, JobEvent, RemoteJob

from ..processes import MeasurementFailed
from ..runner import DEFAULT_SECONDS, OnProgress, Progress
from .clocks import HostClock, Reading, translate
from .matrix import RELAY, SINK, SOURCE, Matrix, Placement
from .result import Host, Outcome, crowded_hosts, document_of
from .spec import MeshSpec
from .timeline import Timeline
from .together import cause_rank, on_all

_LEAD_NS: Final = 50_000_000  # from the go to the start, beside a round trip: all tasks have long read the message
_GRACE_S: Final = 1.0  # after the first bad news: what else is there, and what of it is the cause
_CLOSE_S: Final = 5.0  # for a daemon to release a run; one that does not answer releases it when it notices
_SAMPLES_AT_MOST: Final = 1 << 16  # in one message to a sink: 1 MiB


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MeshDeadlines:
    """How patient the coordinator is.

    Attributes:
        setup_s: until the run is open everywhere, and until all tasks are ready; likewise for their results.
        stalled_s: no record arrived for this long, and the run is over (a slow rate makes it longer).
        overall_s: beside twice the asked length, for all of a run; a run without a length may take as long as it moves.
    """

    setup_s: float = 30.0
    stalled_s: float = 10.0
    overall_s: float = 120.0


async def run_mesh(
    spec: MeshSpec,
    daemons: Sequence[TaskManagerClient],
    on_progress: OnProgress | None = None,
    *,
    engine_kind: str = "hosts",
    deadlines: MeshDeadlines | None = None,
) -> dict[str, Any]:
    """Measures once; see `measure_mesh`.

    Args:
        spec: the settings; a run without a length lasts 3 s.
        daemons: connected, in the order of `spec.hosts`.
        on_progress: called a few times a second.
        engine_kind: what brought the daemons up, for the document.
        deadlines: how patient to be.

    Returns:
        The document of the run, as plain JSON values.
    """
    return document_of(await measure_mesh(spec, daemons, on_progress, deadlines=deadlines), engine_kind)


async def measure_mesh(
    spec: MeshSpec,
    daemons: Sequence[TaskManagerClient],
    on_progress: OnProgress | None = None,
    *,
    deadlines: MeshDeadlines | None = None,
) -> Outcome:
    """Measures once.

    Args:
        spec: as in `run_mesh`, like the others.
        daemons: as there.
        on_progress: as there.
        deadlines: as there.

    Returns:
        All that is known of the run.

    Raises:
        MeasurementFailed: a task failed, a daemon is gone, or no records move.
        NetstackError: a daemon refused the run: no free slots, too little memory, another release.

    Cancellation: the run is closed on every daemon.
    """
    if len(daemons) != len(spec.hosts):
        raise LocalProtocolError(f"{len(daemons)} daemons for {len(spec.hosts)} hosts; open one for each")
    if spec.records is None and spec.seconds is None:
        spec = dataclasses.replace(spec, seconds=DEFAULT_SECONDS)
    limits = deadlines or MeshDeadlines()
    matrix = Matrix(spec)
    runs: list[RemoteJob] = []
    try:
        try:
            with trio.fail_after(limits.setup_s):
                await _deploy(matrix, daemons, runs)
        except trio.TooSlowError:
            raise MeasurementFailed(
                f"measuring over {len(daemons)} hosts failed: the run was not set up within {limits.setup_s:g} s"
            ) from None
        outcome = await _lead(matrix, daemons, runs, on_progress, limits)
    finally:
        with trio.move_on_after(_CLOSE_S, shield=True):
            await on_all([run.close for run in runs])
    return outcome


async def _deploy(matrix: Matrix, daemons: Sequence[TaskManagerClient], runs: list[RemoteJob]) -> None:
    """Opens the run everywhere, then deploys everywhere; opened runs are in `runs`, whatever happens."""
    job_id = secrets.token_hex(8)

    def opening(host: int) -> Callable[[], Awaitable[RemoteJob]]:
        async def open_run() -> RemoteJob:
            run = await daemons[host].open_job(
                job_id, name=f"bench {job_id[:4]}", slots=matrix.slots(host), network=matrix.config(host)
            )
            runs.append(run)
            return run

        return open_run

    def deploying(host: int) -> Callable[[], Awaitable[None]]:
        return lambda: opened[host].deploy(matrix.tasks(host, addresses))

    opened = await on_all([opening(host) for host in range(len(daemons))])
    runs[:] = opened
    addresses = [run.data_address for run in opened]
    await on_all([deploying(host) for host in range(len(daemons))])


async def _lead(
    matrix: Matrix,
    daemons: Sequence[TaskManagerClient],
    runs: Sequence[RemoteJob],
    on_progress: OnProgress | None,
    limits: MeshDeadlines,
) -> Outcome:
    """Hears all daemons while the conversation goes on."""
    conversation = _Conversation(matrix, daemons, runs, on_progress, limits)
    failure: NetstackError | None = None
    outcome: Outcome | None = None
    async with trio.open_nursery() as nursery:
        for host, run in enumerate(runs):
            nursery.start_soon(conversation.hear, host, run)
        try:
            outcome = await conversation.lead()
        except NetstackError as error:  # leaves as it is, not inside this nursery's group
            failure = error
        nursery.cancel_scope.cancel()
    if outcome is None:
        raise failure or MeasurementFailed("the run was cancelled")
    return outcome


@final
class _Conversation:
    """One run, from `ready` to the results."""

    def __init__(
        self,
        matrix: Matrix,
        daemons: Sequence[TaskManagerClient],
        runs: Sequence[RemoteJob],
        on_progress: OnProgress | None,
        limits: MeshDeadlines,
    ) -> None:
        self._matrix = matrix
        self._spec = matrix.spec
        self._daemons = daemons
        self._runs = runs
        self._on_progress = on_progress
        self._limits = limits
        self._inbox, self._news = trio.open_memory_channel[tuple[int, JobEvent | NetstackError]](math.inf)
        self._places = {(each.task, each.subtask): each for each in matrix.placements}
        self._ready: set[Placement] = set()
        self._stopped: dict[int, dict[str, Any]] = {}  # by source
        self._arrived: dict[int, int] = {}  # by sink: records so far
        self._ended: set[int] = set()  # sinks
        self._results: dict[Placement, dict[str, Any]] = {}
        self._timeline = Timeline()
        self._phase = "starting"
        self._start_ns = 0
        self._moved_at_s = trio.current_time()

    async def hear(self, host: int, run: RemoteJob) -> None:
        """Passes on what a daemon says, until it is gone."""
        try:
            while True:
                self._inbox.send_nowait((host, await run.next_event()))
        except NetstackError as error:
            self._inbox.send_nowait((host, error))

    async def lead(self) -> Outcome:
        """The whole conversation."""
        sources, relays, sinks = (self._matrix.of_task(task) for task in (SOURCE, RELAY, SINK))
        until_s = trio.current_time() + self._limits.setup_s
        everyone = len(self._matrix.placements)
        await self._until(lambda: len(self._ready) == everyone, "became ready", until_s)
        before = await self._read_clocks()
        clocks = [HostClock(reading) for reading in before]
        self._go(clocks)
        flowing = {*sources, *relays}
        await self._until(
            lambda: len(self._ended) == len(sinks) and flowing <= self._results.keys(), "ended", self._end_s(), True
        )
        after = await self._read_clocks()
        clocks = [HostClock(first, last) for first, last in zip(before, after, strict=True)]
        self._finish(sinks, clocks)
        until_s = trio.current_time() + self._limits.setup_s
        await self._until(lambda: len(self._results) == everyone, "returned its result", until_s)
        return Outcome(
            matrix=self._matrix,
            hosts=tuple(
                Host(daemon.address, dict(daemon.facts), clock)
                for daemon, clock in zip(self._daemons, clocks, strict=True)
            ),
            start_ns=self._start_ns,
            stopped_ns=tuple(
                int(clocks[each.host].here_ns(np.array([self._stopped[each.subtask]["stopped_ns"]]))[0])
                for each in sources
            ),
            results=self._results,
            timeline=self._timeline,
        )

    async def _read_clocks(self) -> list[Reading]:
        """One host after the other: nothing else is to be on the wire."""
        found = []
        for daemon in self._daemons:
            sample = await daemon.measure_clock()
            found.append(Reading(sample.at_ns, sample.offset_ns, sample.rtt_ns))
        return found

    def _go(self, clocks: Sequence[HostClock]) -> None:
        lead_ns = _LEAD_NS + 2 * max(clock.before.rtt_ns for clock in clocks)
        self._start_ns = time.monotonic_ns() + lead_ns
        self._phase = "running"
        self._moved_at_s = trio.current_time()
        crowded = crowded_hosts([daemon.facts for daemon in self._daemons])
        for each in self._matrix.placements:
            # A source begins at the start in its own clock, which is this moment in everybody's.
            start_ns = self._start_ns + clocks[each.host].before.offset_ns
            groups = len(self._matrix.upstream()) if each.task == SINK else 0
            message = {"start_ns": start_ns, "starts": [start_ns] * groups, "spins": each.host not in crowded}
            self._tell(each, {"event": "go", **message})

    def _finish(self, sinks: Sequence[Placement], clocks: Sequence[HostClock]) -> None:
        """Tells every sink when sources stopped, and when the samples were emitted, in its own clock."""
        sources = self._matrix.of_task(SOURCE)
        stops = [(int(self._stopped[each.subtask]["stopped_ns"]), clocks[each.host]) for each in sources]
        keep = max(1, _SAMPLES_AT_MOST // len(self._matrix.upstream()))
        for each in sinks:
            clock = clocks[each.host]
            samples = []
            for source in self._matrix.sources_of(each.subtask):
                indexes, times = (np.frombuffer(values, dtype=np.int64) for values in self._stopped[source]["samples"])
                stride = max(1, -(-len(indexes) // keep))
                moved = translate(times[::stride], clocks[sources[source].host], clock)
                samples.append([indexes[::stride].tobytes(), moved.tobytes()])
            stop_ns = min(int(translate(np.array([at]), theirs, clock)[0]) for at, theirs in stops)
            self._tell(each, {"event": "finish", "stop_ns": stop_ns, "samples": samples})

    def _tell(self, each: Placement, message: dict[str, Any]) -> None:
        self._runs[each.host].tell(each.task, each.subtask, message)

    async def _until(self, is_done: Callable[[], bool], what: str, until_s: float, moving: bool = False) -> None:
        """Takes news until a condition holds.

        Args:
            is_done: the condition.
            what: what every task has to do for it, for the message of a timeout.
            until_s: trio's time at which that takes too long.
            moving: whether records have to arrive meanwhile.
        """
        while not is_done():
            stalled_at_s = self._moved_at_s + self._patience_s() if moving else math.inf
            deadline_s = min(until_s, stalled_at_s)
            with trio.move_on_at(deadline_s) as scope:
                host, news = await self._news.receive()
            if not scope.cancelled_caught:
                await self._take(host, news)
            elif deadline_s == until_s:
                raise self._failed(f"not every task {what} in time: {self._waiting_for()}")
            else:
                raise self._failed(f"no record arrived for {self._patience_s():g} s: {self._waiting_for()}")

    async def _take(self, host: int, news: JobEvent | NetstackError) -> None:
        if isinstance(news, Failed | NetstackError):
            raise await self._root_cause(host, news)
        place = self._places[news.task, news.subtask]
        if isinstance(news, Ended):
            self._results[place] = news.result
        else:
            self._said(place, news.message)
        self._tell_progress()

    def _said(self, place: Placement, message: dict[str, Any]) -> None:
        match message["event"]:
            case "ready":
                self._ready.add(place)
            case "progress":
                self._timeline.add(place, message)
            case "stopped":
                self._stopped[place.subtask] = message
                self._phase = "draining"
            case "ended":
                self._ended.add(place.subtask)
        if place.task == SINK and "records" in message and message["records"] != self._arrived.get(place.subtask):
            self._arrived[place.subtask] = message["records"]
            self._moved_at_s = trio.current_time()

    async def _root_cause(self, host: int, news: Failed | NetstackError) -> MeasurementFailed:
        """What began it, after listening for a moment to what else is told."""
        found = [(host, news)]
        with trio.move_on_after(_GRACE_S):
            while min(cause_rank(each) for _, each in found):
                other, more = await self._news.receive()
                if isinstance(more, Failed | NetstackError):
                    found.append((other, more))
        cause_host, cause = min(found, key=lambda each: cause_rank(each[1]))
        if isinstance(cause, Failed):
            address = self._daemons[cause_host].address
            return self._failed(f"{cause.task}-{cause.subtask} on {address}: {cause.kind}: {cause.text}")
        return self._failed(str(cause))

    def _failed(self, text: str) -> MeasurementFailed:
        return MeasurementFailed(f"measuring over {len(self._daemons)} hosts failed: {text}")

    def _waiting_for(self) -> str:
        """Tasks that have not returned, and what has arrived, as far as it helps."""
        silent = [each for each in self._matrix.placements if each not in self._results]
        if len(self._ready) < len(self._matrix.placements):
            silent = [each for each in silent if each not in self._ready]
        named = [f"{each} on {self._daemons[each.host].address}" for each in silent]
        more = f" and {len(named) - 4} more" if len(named) > 4 else ""
        return f"waiting for {', '.join(named[:4])}{more}; {sum(self._arrived.values())} records arrived"

    def _patience_s(self) -> float:
        spec = self._spec
        rates = [spec.rate_per_s and spec.rate_per_s * spec.sources, spec.consume_rate_per_s]
        slowest = min((rate for rate in rates if rate), default=math.inf)
        at_once = spec.effective_batch_records if spec.emit == "arrow" else 1  # a columnar batch arrives as a whole
        return max(self._limits.stalled_s, 3 * at_once / slowest)

    def _end_s(self) -> float:
        spec = self._spec
        seconds = spec.seconds
        if spec.records is not None:
            seconds = spec.records / spec.rate_per_s if spec.rate_per_s else None
        if seconds is None or spec.consume_rate_per_s is not None:
            return math.inf
        return trio.current_time() + 2 * seconds + self._limits.overall_s

    def _tell_progress(self) -> None:
        if self._on_progress is None:
            return
        elapsed_s = max(0.0, (time.monotonic_ns() - self._start_ns) / 1e9) if self._start_ns else 0.0
        records, fraction = sum(self._arrived.values()), None
        if self._spec.records is not None:
            fraction = min(1.0, records / (self._spec.records * self._spec.sources))
        elif self._spec.seconds is not None:
            fraction = min(1.0, elapsed_s / self._spec.seconds)
        self._on_progress(Progress("netstack", self._phase, records, elapsed_s, fraction))
