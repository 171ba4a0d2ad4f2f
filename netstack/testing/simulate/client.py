"""The user of one job of a simulation: submits it, takes savepoints, rescales and cancels it, and checks its end.

Takes: a scenario, the JobManager's host. Gives: an error if the job ends wrongly.

A user acts like a client: requests are executed at the JobManager's host and its disk. Without an answer, because the
host died, the user queries the jobs and tries again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, final

import trio

from ...base.errors import ConfigError, NetstackError
from ...cluster.jobmanager.job_master.job_master import JobMaster
from ...cluster.jobmanager.job_record import JobRecord
from ...cluster.jobmanager.service import JobManager
from ...schedule.checkpoint.storage import CheckpointStorage
from ...schedule.commit_phase import COMMITTED
from ...schedule.graph.job_file import write_job
from ...schedule.graph.job_generator import generate_job
from ...schedule.slots.slot_sharing import FixedPlacement
from . import feature_job
from .history import Event
from .hosts import Host, LogEvent
from .job_of_scenario import job
from .operators import SINK, Committed, Outside, made, two_thirds
from .recorded_job import verdict
from .scenario import CANCEL, CHECKED, FEATURED, PORT, RESCALE, TWO_SOURCES, Act, Scenario, takes_checkpoints
from .situations import happened

_SETTLED_S: Final = 10.0
"""How long a slow link or disk may delay a deployment or a restore."""


def problems(scenario: Scenario, results: Mapping[str, Any], committed: Committed, history: Sequence[Event]) -> str:
    """Returns what is wrong with the results and the history of a finished job; empty if nothing is."""
    if scenario.case is not None:
        return feature_job.problems(scenario.case, results, feature_job.commits_of(committed.values()))
    if scenario.movement == CHECKED:
        anomalies = verdict(
            history,
            results,
            sources=scenario.parallelism[0],
            records=scenario.records,
            aligned=scenario.mode == "aligned",
            settled_s=_SETTLED_S,
        )
        return str(anomalies[0]) if anomalies else ""
    sums: dict[int, list[int]] = {}
    for rows in results.get(SINK, {}).values():
        for key, *counted in rows:
            if key in sums:
                return f"key {key} is counted in two sinks"
            sums[key] = counted
    right = {key: [count, count * (count + 1) // 2, 0] for key, count in expected(scenario).items()}
    wrong = [key for key in {**right, **sums} if right.get(key) != sums.get(key)]
    if wrong:
        key = wrong[0]
        return (
            f"{len(wrong)} keys are wrong: of key {key} (records, sum of numbers, damaged) are {sums.get(key)} instead"
            f" of {right.get(key)}"
        )
    return wrong_commits(scenario, committed)


def wrong_commits(scenario: Scenario, committed: Committed, *, is_finished: bool = True) -> str:
    """Returns what is wrong with the commits: each record once, or at most once for an unfinished job."""
    if scenario.movement in (CHECKED, FEATURED):
        return ""
    counts = Counter((key, number) for rows in committed.values() for key, number in rows)
    right = Counter({(key, number): 1 for key, most in expected(scenario).items() for number in range(1, most + 1)})
    wrong = sorted((counts - right) + ((right - counts) if is_finished else Counter()))
    return f"{len(wrong)} records were not committed once: {wrong[0]} {counts[wrong[0]]} times" if wrong else ""


def expected(scenario: Scenario) -> dict[int, int]:
    """Returns the number of records by key."""
    streams = [
        made(split, number, scenario.keys)
        for split in range(scenario.parallelism[0])
        for number in range(scenario.records)
    ]
    splits = scenario.parallelism[0]
    for number, stage in enumerate(scenario.stages):
        if stage == "filter":
            streams = [each for each in streams if two_thirds(each)]
        elif stage == "double":
            streams = [each for each in streams for _ in range(2)]
        elif stage in TWO_SOURCES:
            width = scenario.parallelism[number + 1]
            streams += [
                made(split, each, scenario.keys)
                for split in range(splits, splits + width)
                for each in range(scenario.records // 2)
            ]
            splits += width
    return dict(Counter(each[0] for each in streams))


LONGEST_S: Final = 1_000.0
"""Virtual seconds after which a job counts as hanging."""

_LOOK_S: Final = 0.25
_CANCELED: Final = "canceled"

_Answer = TypeVar("_Answer")


@final
class User:
    """The user of one job.

    Attributes:
        jobs: ids of the submitted jobs, the current one last; empty before it is known.
    """

    def __init__(
        self, scenario: Scenario, name: str, jobmanager: Host, folder: Path, world: Outside, log_event: LogEvent
    ) -> None:
        self.jobs: list[str] = []
        self._scenario = scenario
        self._name = name
        self._host = jobmanager
        self._folder = folder
        self._world = world
        self._log_event = log_event
        self._widths = scenario.parallelism
        self._stopped_for: tuple[int, ...] = ()  # the parallelism with which the job continues after a stop
        self._savepoint: str | None = None
        self._is_known = False  # whether the last of `jobs` is the current one

    async def play(self, history: list[Event]) -> None:
        """Plays until the job has ended. Raises AssertionError if it does not end, or ends wrongly."""
        began_s = trio.current_time()
        for act in self._scenario.acts:
            if await self._follow(began_s + act.at_s) is not None:
                break
            await self._do(act)
        record = await self._follow(began_s + LONGEST_S)
        if self._stopped_for and await self._go_on(self._stopped_for, _LOOK_S):  # its end was reported late
            record = await self._follow(began_s + LONGEST_S)
        if record is None:
            raise AssertionError(f"the job has not ended after {LONGEST_S:g} s: {self._state()}")
        self._check(record, history)

    # Actions.

    async def _do(self, act: Act) -> None:
        record = (await self._manager()).dispatcher.records.get(self._job_id)
        if record is None or record.master is None:
            return
        self._log_event(f"USER {act.kind} of {self._name}")
        if act.kind == CANCEL:
            await self._cancel()
            return
        report = await self._ask(lambda manager: self._saved(manager, stop=act.kind == RESCALE))
        if report is not None:
            happened("savepoints")
        if act.kind == RESCALE:
            self._stopped_for = () if await self._go_on(act.widths, 0.5) else act.widths

    async def _saved(self, manager: JobManager, *, stop: bool) -> object:
        master = manager.dispatcher.records[self._job_id].master
        return None if master is None else await master.savepoint(stop=stop)

    async def _cancel(self) -> None:
        """Cancels the job and starts it again from its newest retained checkpoint."""
        while True:
            manager = await self._manager()
            record = manager.dispatcher.records[self._job_id]
            if record.end is not None:
                break
            await self._ask(lambda manager: manager.dispatcher.cancel(manager.dispatcher.records[self._job_id]))
        if record.end["state"] != _CANCELED:
            return
        newest = CheckpointStorage(self._checkpoints).newest()
        self._savepoint = None if newest is None else newest.path
        happened("cancelled jobs that begin again from a checkpoint" if newest else "cancelled jobs that begin anew")
        self._is_known = False

    async def _go_on(self, widths: tuple[int, ...], patience_s: float) -> bool:
        """Continues a job that stopped with a savepoint; returns whether it did."""
        record = await self._follow(trio.current_time() + patience_s)
        if record is None or record.end is None or record.end["state"] != "finished" or record.end["results"].get(SINK):
            return False
        newest = CheckpointStorage(self._checkpoints).newest()
        assert newest is not None, "the job has stopped, but its savepoint is missing"
        self._savepoint = newest.path
        self._widths = widths
        self._is_known = False
        happened("jobs that go on from a savepoint with another parallelism")
        return True

    @property
    def _job_id(self) -> str:
        return self.jobs[-1] if self._is_known else ""

    @property
    def _checkpoints(self) -> Path:
        return self._folder / "checkpoints" / self._job_id

    # Waiting.

    async def _follow(self, until_s: float) -> JobRecord | None:
        """Submits the job if the JobManager lacks it, and waits. Returns its record if it has ended."""
        while trio.current_time() < until_s:
            manager = await self._manager()
            record = manager.dispatcher.records.get(self._job_id)
            if record is None:
                await self._submit(manager)
            elif record.end is not None:
                return record
            else:
                with trio.move_on_at(min(until_s, trio.current_time() + _LOOK_S)):
                    await record.ended.wait()
        return None

    async def _submit(self, manager: JobManager) -> None:
        mine = [each.stored.job_id for each in manager.dispatcher.records.values() if each.name == self._name]
        new = [job_id for job_id in mine if job_id not in self.jobs]
        if not new:
            graph = job(self._scenario, self._name, self._widths).stream_graph()
            placement = _placed_apart(self._scenario, graph) if self._scenario.is_placed else None
            document = write_job(graph)
            submit = partial(manager.dispatcher.submit, document, from_savepoint=self._savepoint, placement=placement)
            job_id = await self._ask(lambda manager: submit())
            if job_id is None:
                await trio.sleep(_LOOK_S)
                return
            new = [job_id]
        self.jobs.append(new[0])
        self._is_known = True

    async def _ask(self, question: Callable[[JobManager], Awaitable[_Answer]]) -> _Answer | None:
        """Returns the answer; None without one, or if it is an error."""
        manager = await self._manager()
        host = self._host
        process = host.process
        done = trio.Event()
        answers: list[_Answer] = []

        async def ask() -> None:
            try:
                answers.append(await question(manager))
            except ConfigError as error:
                if "does not run" not in str(error):
                    raise
            except (NetstackError, OSError) as error:
                self._log_event(f"the user's request was refused: {error}")
            except RuntimeError as error:  # a service that is stopped cancels its requests; ours runs outside of it
                if host.is_up and host.process is process:
                    raise
                self._log_event(f"nobody answers: {error}")
            finally:
                done.set()

        async with trio.open_nursery() as nursery:
            with host.asked():
                nursery.start_soon(ask)
            while not done.is_set() and process.is_alive and host.service is manager:
                with trio.move_on_after(0.05):
                    await done.wait()
            nursery.cancel_scope.cancel()
        return answers[0] if answers else None

    async def _manager(self) -> JobManager:
        while not self._host.is_up:  # noqa: ASYNC110  # between two of its lives
            await trio.sleep(_LOOK_S)
        service: JobManager = self._host.service
        return service

    # The end.

    def _check(self, record: JobRecord, history: list[Event]) -> None:
        assert record.end is not None
        committed = self._world.committed.get(self._name, {})
        if (
            record.end["state"] == "failed"
            and COMMITTED in record.end["reason"]
            and not takes_checkpoints(self._scenario)
        ):
            happened("jobs that failed because they were committing")
            wrong = wrong_commits(self._scenario, committed, is_finished=False)
        else:
            assert record.end["state"] == "finished", f"the job is {record.end['state']}: {record.end['reason']}"
            wrong = problems(self._scenario, record.end["results"], committed, history)
        assert not wrong, wrong

    def _state(self) -> str:
        manager: JobManager | None = self._host.service
        record = None if manager is None else manager.dispatcher.records.get(self._job_id)
        master: JobMaster | None = None if record is None else record.master
        return (
            "nobody runs it" if master is None else f"{master.scheduler.state.value}; {master.scheduler.statistics()}"
        )


def _placed_apart(scenario: Scenario, graph: Any) -> FixedPlacement:
    """Places the first subtask of each vertex on another TaskManager."""
    count = scenario.taskmanagers

    def places(first: int, parallelism: int) -> Iterator[str]:
        return (f"tm-{(first + subtask) % count}:{PORT}" for subtask in range(parallelism))

    vertices = generate_job(graph).job.vertices
    return FixedPlacement({each.name: tuple(places(number, each.parallelism)) for number, each in enumerate(vertices)})
