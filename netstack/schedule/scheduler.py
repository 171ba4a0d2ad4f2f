"""The scheduler of one job: a synchronous state machine that turns events into instructions.

Rules:
- It never blocks and has no clock and no randomness: events carry the time, strategies get their jitter as an argument.
  So a test can run a job on a thousand simulated TaskManagers.
- Late input is recognised: a report by its attempt, everything that waits by the version of its subtasks.
- No step is long: work on many subtasks is cut and continues with `Proceed` after the queued events.
- `deployer` is the failure-free part, `recovery` handles failures; `Scheduler` dispatches events to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from ..base.errors import LocalProtocolError
from .adaptive.parallelism import ParallelismExplanation
from .commit_phase import CommitPhase
from .deployer import Deployer
from .descriptors.blob_store import BlobStore, MemoryBlobStore, Offloader
from .descriptors.shuffle import TaskManagerLocation
from .events import (
    CancelJob,
    CheckpointStored,
    Event,
    GlobalFailure,
    PartitionConsumable,
    Proceed,
    SlotsOffered,
    StartJob,
    TaskFailed,
    TaskManagerLost,
    TaskManagerRegistered,
    TasksLost,
    TasksReported,
    TasksWaiting,
    Tick,
    TimerDue,
)
from .execution import ExecutionInput, ExecutionState, JobInput, JobState, JobStatus
from .failover.restart import NoRestart, RestartStrategy
from .graph.job_graph import JobGraph
from .instructions import Deploy, EndJob, Instruction, ReturnSlots
from .recovery import Failure, Recovery
from .scheduler_settings import SchedulerSettings, SchedulerStatistics
from .slots.slots import LoadBalanceMode, Location, PhysicalSlot, SlotDemand
from .speculation import Rival, Speculation
from .structures import index_array
from .topology.execution_graph import ExecutionGraph

__all__ = ["Scheduler", "SchedulerSettings", "SchedulerStatistics"]

NO_SLOT: Final = "got no slot within"
"""A part of the cause when slots were missing: the JobManager then adds what it knows of the cluster."""

_REPORTABLE: Final = frozenset(
    {ExecutionInput.INITIALIZE, ExecutionInput.RUN, ExecutionInput.FINISH, ExecutionInput.CANCELED}
)


@final
class Scheduler:
    """One execution of one job.

    Args:
        job_id: of this execution; a part of the keys of blobs, so no two executions share one.
        restart: the restart strategy; None never restarts.
        store: the blob store for large parts of descriptors; None keeps them in memory.

    Raises:
        ConfigError: the job cannot be run.
    """

    def __init__(
        self,
        job: JobGraph,
        job_id: str,
        *,
        restart: RestartStrategy | None = None,
        store: BlobStore | None = None,
        settings: SchedulerSettings | None = None,
    ) -> None:
        self._settings = SchedulerSettings() if settings is None else settings
        offloader = Offloader(MemoryBlobStore() if store is None else store, job_id, job_id, self._settings.offload)
        self._status = JobStatus()
        self._deployer = Deployer(job, job_id, offloader, self._settings)
        self._speculation = Speculation(self._deployer, self._settings.speculation)
        self._commits = CommitPhase(self._deployer)
        self._recovery = Recovery(
            self._deployer, self._speculation, self._status, NoRestart() if restart is None else restart, self._commits
        )
        self._checkpoint: int | None = None

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self._status.state

    @property
    def topology(self) -> ExecutionGraph:
        """The subtasks, partitions and groups so far; only the scheduler changes it."""
        return self._deployer.topology

    def execution_state(self, subtask: int) -> ExecutionState:
        """The state of the current attempt of a subtask."""
        return self._deployer.executions.state(subtask)

    def count(self, *states: ExecutionState) -> int:
        """How many subtasks are in one of these states."""
        return self._deployer.executions.count(*states)

    def count_within(self, subtasks: range) -> dict[ExecutionState, int]:
        """How many of some neighbouring subtasks are in each state, without states that none is in."""
        return self._deployer.executions.count_within(subtasks)

    def attempt(self, subtask: int) -> int:
        """The number of the current attempt of a subtask, from 0."""
        return int(self._deployer.executions.attempts[subtask])

    def rivals(self, subtask: int) -> tuple[Rival, ...]:
        """The attempts of a subtask beside the current one; only the scheduler changes them."""
        return self._speculation.rivals_of(subtask)

    def drain_events(self) -> list[tuple[int, str]]:
        """What speculation did since the last call: (subtask, text)."""
        return self._speculation.drain_events()

    @property
    def execution(self) -> str:
        """The prefix of the names of its partitions."""
        return self._deployer.deployment.execution

    def explanation(self, vertex: int) -> ParallelismExplanation | None:
        """Why a vertex has its parallelism; None unless it was decided while the job ran."""
        return self._deployer.explanation(vertex)

    def take_failures(self) -> list[Failure]:
        """The root failures since the last call, each with the decision."""
        return self._recovery.drain_events()

    def persistent(self) -> dict[int, list[tuple[int, int, TaskManagerLocation]]]:
        """Partitions that outlive the job, by dataset: each with its attempt and location. Lost ones are left out."""
        topology, tracker = self._deployer.topology, self._deployer.tracker
        return {
            number: [
                (partition, int(tracker.attempts[partition]), self._deployer.locations[tracker.places[partition]])
                for partition in topology.partitions_of(number)
                if tracker.is_tracked[partition]
            ]
            for number, dataset in enumerate(topology.job.datasets)
            if dataset.type.is_persistent
        }

    def statistics(self) -> SchedulerStatistics:
        """A snapshot."""
        deployer, recovery = self._deployer, self._recovery
        return SchedulerStatistics(
            self._status.state,
            {state: deployer.executions.count(state) for state in ExecutionState},
            deployer.deployed,
            recovery.failures,
            recovery.restarts,
            recovery.restarted,
            recovery.stale,
            deployer.steps,
            deployer.deployment.cache.statistics(),
            self._speculation.statistics(),
        )

    def descriptors(self, deploy: Deploy) -> Iterator[tuple[int, bytes]]:
        """The subtasks of a `Deploy`, each with its serialised task deployment descriptor, one by one.

        Raises:
            BlobError: a part must be offloaded and cannot be; hand over `GlobalFailure`.
        """
        return self._deployer.deployment.descriptors(deploy)

    def slot_demand(self) -> SlotDemand | None:
        """The slots that the job lacks and those that it has, for a JobManager that balances tasks; None: any do."""
        return self._deployer.allocation.demand() if self._deployer.mode is LoadBalanceMode.TASKS else None

    def next_deadline(self) -> float | None:
        """When to hand over `Tick` unless another event comes first; None: never."""
        if self._status.state.is_terminal:
            return None
        deadlines = [self._deployer.allocation.next_deadline_s(), self._speculation.next_deadline_s()]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Handles one event.

        Args:
            event: what has happened.
            now_s: seconds of one monotonic clock; never less than before.

        Returns:
            Instructions; none after the job has ended.

        Raises:
            LocalProtocolError: the event is illegal in this state, such as a second `StartJob`.
        """
        if self._status.state.is_terminal:
            return []
        deployer = self._deployer
        deployer.out = []
        deployer.now_s = now_s
        self._dispatch(event)
        self._recovery.restart_ready()
        deployer.step(self._checkpoint, is_proceeding=isinstance(event, Proceed))
        self._speculation.deploy()
        self._commits.step()
        self._end_if_done()
        return deployer.out

    def _dispatch(self, event: Event) -> None:
        match event:
            case TasksReported():
                self._reported(event)
            case PartitionConsumable():
                if not self._deployer.first_output(event.partition, event.attempt):
                    self._recovery.stale += 1
            case TaskFailed():
                self._recovery.task_failed(event)
            case TasksLost():
                self._recovery.tasks_lost(event)
            case TasksWaiting():
                self._recovery.stale += self._commits.wait(event)
            case TimerDue():
                self._recovery.timer_due(event.timer)
            case Tick():
                self._tick()
            case StartJob():
                self._status.change(JobInput.START)
                self._deployer.start()
            case TaskManagerRegistered():
                self._register(event.location)
            case SlotsOffered():
                self._offered(event)
            case TaskManagerLost():
                self._lose(event.taskmanager, event.reason)
            case GlobalFailure():
                self._recovery.fail(None, event.cause)
            case CheckpointStored():
                self._checkpoint = event.checkpoint_id
            case CancelJob():
                self._status.change(JobInput.CANCEL)
                self._recovery.stop_all()
            case Proceed():
                pass  # the step that follows every event

    def _register(self, location: TaskManagerLocation) -> None:
        if location.name in self._deployer.taskmanagers:
            raise LocalProtocolError(f"TaskManager {location.name!r} is already registered; lose it first")
        self._deployer.add_taskmanager(location)

    def _offered(self, event: SlotsOffered) -> None:
        self._deployer.offered += len(event.slots)
        places = self._deployer.taskmanagers.get(event.taskmanager)
        if places is None:
            self._recovery.stale += 1
            return
        where = Location(event.taskmanager, self._deployer.locations[places.start].host)
        self._speculation.add_taskmanager(where)
        slots = [PhysicalSlot(where, slot, event.profile) for slot in event.slots]
        self._deployer.allocation.offer(event.taskmanager, slots, self._deployer.now_s)

    def _lose(self, taskmanager: str, reason: str) -> None:
        """Drops all slots and partitions of a TaskManager. Tasks that had finished there stay finished."""
        places = self._deployer.taskmanagers.pop(taskmanager, None)
        if places is None:
            self._recovery.stale += 1
            return
        self._deployer.tracker.lose(places)
        lost, spare = self._deployer.allocation.lose_taskmanager(taskmanager)
        self._speculation.lose_taskmanager(taskmanager, spare)
        self._recovery.fail_tasks(lost, f"TaskManager {taskmanager!r} is lost: {reason}")

    def _tick(self) -> None:
        self._speculation.check_slow_tasks()
        allocation, now_s = self._deployer.allocation, self._deployer.now_s
        late = allocation.timed_out(now_s)
        if late.size:
            wait_s = self._settings.slots.request_timeout_s
            self._recovery.fail_tasks(late, f"{late.size} tasks {NO_SLOT} {wait_s} s; add TaskManagers")
        allocation.advance(now_s)
        idle = allocation.idle(now_s)
        if idle:
            self._deployer.out.append(ReturnSlots(tuple(idle)))

    def _reported(self, event: TasksReported) -> None:
        if event.what not in _REPORTABLE:
            raise LocalProtocolError(f"a TaskManager cannot report {event.what.value!r}")
        executions = self._deployer.executions
        is_current = executions.current(event.subtasks, event.attempts)
        subtasks = executions.allowed(event.subtasks[is_current], event.what)
        self._recovery.stale += event.subtasks.size - subtasks.size
        for subtask, attempt in zip(
            event.subtasks[~is_current].tolist(), event.attempts[~is_current].tolist(), strict=True
        ):
            self._recovery.stale -= self._speculation.on_report(event, subtask, attempt)
        if event.what is ExecutionInput.CANCELED:
            # The others were not asked to cancel: that is a failure like any other.
            self._recovery.fail_tasks(
                executions.not_in_state(subtasks, ExecutionState.CANCELING), "the task canceled itself"
            )
            subtasks = executions.in_state(subtasks, ExecutionState.CANCELING)
        if event.what is ExecutionInput.FINISH:
            for subtask in executions.in_state(subtasks, ExecutionState.CANCELING).tolist():
                (slot,) = self._deployer.allocation.slots_of(index_array([subtask]))
                self._deployer.drop_written(subtask, int(executions.attempts[subtask]), slot)
        executions.apply(subtasks, event.what)
        if event.what in (ExecutionInput.FINISH, ExecutionInput.CANCELED):
            self._deployer.record_sizes(event.produced_bytes, executions.in_state(subtasks, ExecutionState.FINISHED))
            self._deployer.ended(subtasks)
        if event.what is ExecutionInput.FINISH:
            self._speculation.on_finished(executions.in_state(subtasks, ExecutionState.FINISHED))

    def _end_if_done(self) -> None:
        deployer, status = self._deployer, self._status
        if deployer.work:
            return
        if status.state is JobState.RUNNING and deployer.is_whole and deployer.executions.are_all_finished:
            status.change(JobInput.FINISHED)
        elif status.is_in(JobState.CANCELLING, JobState.FAILING) and deployer.executions.are_all_terminal:
            status.change(JobInput.ENDED)
        else:
            return
        deployer.release_results()
        deployer.out.append(EndJob(status.state, status.reason if status.is_in(JobState.FAILED) else ""))
