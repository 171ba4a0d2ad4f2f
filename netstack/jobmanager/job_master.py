"""Drives one job: a scheduler decides, a checkpoint coordinator decides, and this carries out what they say.

Takes: a job, slots and messages of TaskManagers as the `JobManager` hands them over, wishes of users. Gives: messages
to TaskManagers; the end of the job.

Rules:
- Everything the scheduler is told goes through one inbox, in the order in which it came, timers last. Whatever a step
  sends is sent before the next event is looked at.
- Failures that may be another's fault wait in `blame` until that other is heard or lost.
- Checkpoints pause while not every task runs, and go on by themselves.
- What attempts say that are over is dropped: reports by the scheduler, checkpoints here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final, Protocol, final

import trio

from ..checkpoint.coordinator import CheckpointCoordinator, JobTask, Subtask
from ..checkpoint.finals import FinalStates
from ..checkpoint.snapshot import TaskFile
from ..checkpoint.storage import CheckpointStorage
from ..control.codec import Attempt
from ..control.messages import (
    AbortCheckpoint,
    CheckpointAcknowledged,
    CheckpointCompleted,
    CheckpointDeclined,
    CloseJob,
    JobClosed,
    JobProgress,
    Message,
    PartitionConsumable,
    TaskFailed,
    TaskFinished,
    TaskSaid,
    TaskStates,
    TriggerCheckpoint,
    submissions,
)
from ..errors import CheckpointError, ErrorCode, LocalProtocolError, NetstackError, RemoteProtocolError
from ..runtime.threads import InThread
from ..schedule import events, instructions
from ..schedule.descriptors.shuffle import TaskManagerLocation
from ..schedule.execution.execution_states import ExecutionInput, ExecutionState, JobState
from ..schedule.inbox import Inbox
from ..schedule.scheduler import NO_SLOT, Scheduler
from ..schedule.slots.slots import PhysicalSlot
from .blame import PATIENCE_S, Blame
from .checkpoints import CheckpointReport, JobCheckpoints
from .driver import JobDriver
from .log import JobLog

LOGGER: Final = logging.getLogger("netstack.jobmanager")

CLOSE_PATIENCE_S: Final = 10.0
"""How long an ended job waits for its TaskManagers to say that nothing of it is left."""

DESCRIPTORS_A_TURN: Final = 64
"""Descriptors made before others get a turn: about a millisecond."""


class Cluster(Protocol):
    """What a job needs of the JobManager."""

    def send(self, taskmanager: str, message: Message) -> None:
        """Tells a TaskManager something; nothing happens when it is gone."""

    async def wait_room(self, taskmanager: str) -> None:
        """Waits until more may be sent to a TaskManager."""

    def require(self, job_id: str, missing: int) -> None:
        """The job lacks so many slots."""

    def give_back(self, job_id: str, slots: Iterable[PhysicalSlot]) -> None:
        """The job does not need these."""

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None:
        """The job wants no more slots of these for now; replaces what was said before."""

    def heard_s(self, taskmanager: str) -> float | None:
        """When it was last heard; None when it is gone."""

    def ask_for_life(self, taskmanagers: Iterable[str]) -> None:
        """Has these say something soon."""

    def describe_slots(self) -> str:
        """What slots there are, in words."""


@final
class JobMaster:
    """One job, from its submission to its end; `run` it.

    Attributes:
        job_id: of the job.
        name: of the job.
        scheduler: decides about tasks.
        log: what happened.
        results: what sinks returned: operator -> subtask -> value.
        history: checkpoints that have ended.
        end: how the job ended; None before.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        scheduler: Scheduler,
        cluster: Cluster,
        *,
        make_coordinator: Callable[[Iterable[JobTask], int], CheckpointCoordinator] | None = None,
        storage: CheckpointStorage | None = None,
        restore: int | None = None,
        patience_s: float = PATIENCE_S,
        in_thread: InThread,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            job_id: see above.
            name: see above.
            scheduler: of a job that has not been started.
            cluster: the rest of the world.
            make_coordinator: makes the coordinator of checkpoints, from the tasks and the first number; None: the job
                takes none.
            storage: of its checkpoints; given when it takes some, or begins from one.
            restore: the checkpoint in `storage` that it begins from.
            patience_s: how long a failure waits for a better explanation; see `blame`.
            in_thread: runs what blocks.
            clock: seconds since 1970, for the log.
        """
        self.job_id = job_id
        self.name = name
        self.scheduler = scheduler
        self.log = JobLog()
        self.results: dict[str, dict[int, Any]] = {}
        self.history: list[CheckpointReport] = []
        self.end: instructions.EndJob | None = None
        self.ended = trio.Event()
        self.restored_from = restore
        self.progress: dict[str, dict[str, Any]] = {}
        self.places: dict[int, PhysicalSlot] = {}
        self._beside: dict[tuple[int, int], PhysicalSlot] = {}  # where second attempts are, by subtask and attempt
        self._results_of: dict[Attempt, Mapping[str, Any]] = {}  # of attempts whose end is in the inbox
        self._driver = JobDriver(job_id, scheduler)
        self._cluster = cluster
        self._make_coordinator = make_coordinator
        self._storage = storage
        self._in_thread = in_thread
        self._clock = clock
        self._inbox = Inbox()
        self._timers: list[tuple[float, int]] = []
        self._wake = trio.Event()
        self._blame = Blame(cluster.heard_s, patience_s)
        self._taskmanagers: dict[str, TaskManagerLocation] = {}
        self._open: set[str] = set()
        self._slots_missing = 0
        self._slots_under_way = 0  # offered, and still in the inbox
        self._all_closed = trio.Event()
        self._checkpoints: JobCheckpoints | None = None
        self._last_stored: tuple[int, str] | None = None
        self._finals: dict[Subtask, TaskFile] = {}
        self._ticked_s = -math.inf
        self._names = [vertex.name for vertex in scheduler.topology.job.vertices]
        self._vertices = {name: number for number, name in enumerate(self._names)}

    # ------------------------------------------------------------------------------------------ from the JobManager

    def offered(self, location: TaskManagerLocation, slots: tuple[int, ...]) -> None:
        """Slots of a TaskManager that has opened the job are this job's."""
        if location.name not in self._taskmanagers:
            self._taskmanagers[location.name] = location
            self._open.add(location.name)
            self._post(events.TaskManagerRegistered(0.0, location))
        self._slots_under_way += len(slots)
        self._post(events.SlotsOffered(0.0, location.name, slots))

    def lost(self, taskmanager: str, reason: str) -> None:
        """A TaskManager is gone."""
        if taskmanager in self._taskmanagers:
            del self._taskmanagers[taskmanager]
            self._closed(taskmanager)
            self.progress.pop(taskmanager, None)
            self._note("taskmanager", f"{taskmanager} is lost: {reason}")
            self._post(events.TaskManagerLost(0.0, taskmanager, reason))
            self._tell_held()

    def refused(self, taskmanager: str, reason: str) -> None:
        """A TaskManager does not take the job, or cannot go on with it: whatever runs there is lost."""
        text = f"it does not take the job: {reason}"
        if taskmanager in self._taskmanagers:
            self.lost(taskmanager, text)
        else:
            self._note("taskmanager", f"{taskmanager}: {text}")

    def heard(self, taskmanager: str, message: Message) -> None:
        """A TaskManager says something about this job.

        Raises:
            RemoteProtocolError: it makes no sense; whoever said so is broken.
        """
        now_s = trio.current_time()
        match message:
            case TaskStates():
                self._post(self._driver.states(message, now_s))
            case TaskFinished():
                self._finished(message, now_s)
            case TaskFailed():
                self._failed(taskmanager, message, now_s)
            case CheckpointAcknowledged():
                self._acknowledged(message)
            case CheckpointDeclined():
                if self._checkpoints is not None and self._driver.is_current(message.attempt):
                    vertex, index, _ = message.attempt
                    self._checkpoints.declined(message.checkpoint_id, self._names[vertex], index, message.reason)
            case PartitionConsumable():
                self._post(self._driver.consumable(message, now_s))
            case JobProgress():
                self.progress[taskmanager] = message.vertices
            case JobClosed():
                if self.end is None:
                    self.lost(taskmanager, f"it closed the job: {message.reason}")
                self._closed(taskmanager)
            case TaskSaid():
                pass  # nobody here listens to invokables
            case _:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME, f"{taskmanager} sent what only a driver says: {type(message).__name__}"
                )

    # ---------------------------------------------------------------------------------------------------- from users

    def cancel(self) -> None:
        """The job is to stop; `ended` says when it has. Idempotent."""
        self._note("job", "cancel was asked for")
        self._post(events.CancelJob(0.0))

    async def savepoint(self, *, stop: bool) -> CheckpointReport:
        """Takes a savepoint, and with `stop` waits for the end of the job behind it.

        Raises:
            LocalProtocolError: the job takes no checkpoints, or is ending.
            CheckpointError: it was not completed; the text says why. The job goes on.

        Cancellation: it is taken all the same.
        """
        report = await self._take(savepoint=True, stops=stop)
        if not report.is_complete:
            raise CheckpointError(f"savepoint {report.checkpoint_id} of job {self.name!r}: {report.reason}")
        if stop:
            await self.ended.wait()
        return report

    async def checkpoint(self) -> CheckpointReport:
        """Takes a checkpoint now, or as soon as one that is under way has ended.

        Returns:
            How it went; look at `is_complete`.

        Raises:
            LocalProtocolError: the job takes no checkpoints, or is ending.

        Cancellation: it is taken all the same.
        """
        return await self._take(savepoint=False, stops=False)

    async def _take(self, *, savepoint: bool, stops: bool) -> CheckpointReport:
        if self._checkpoints is None:
            raise LocalProtocolError(
                f"job {self.name!r} takes no checkpoints: give it `checkpoints` (an interval is not needed)"
            )
        request = self._checkpoints.request(savepoint=savepoint, stops=stops)
        await request.ended.wait()
        if request.report is None:
            raise LocalProtocolError(f"job {self.name!r} ended before the checkpoint was taken")
        return request.report

    @property
    def last_checkpoint(self) -> tuple[int, str] | None:
        """Number and folder of the newest complete checkpoint of this run; None without any."""
        return self._last_stored

    def path_of(self, checkpoint_id: int) -> str:
        """The folder of one of its checkpoints.

        Raises:
            LocalProtocolError: it takes none.
        """
        if self._storage is None:
            raise LocalProtocolError(f"job {self.name!r} takes no checkpoints")
        return self._storage.path(checkpoint_id)

    # ----------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> instructions.EndJob:
        """Runs the job to its end.

        Returns:
            How it ended; by then no TaskManager has anything of it, or is to forget it.

        Cancellation: TaskManagers are told to drop the job; on disk it stays as it is.
        """
        try:
            async with trio.open_nursery() as nursery:
                await self._prepare(nursery)
                self._post(events.StartJob(0.0))
                end = await self._loop()
                await self._after(end)
                nursery.cancel_scope.cancel()
        finally:
            for taskmanager in self._open:
                self._cluster.send(taskmanager, CloseJob(self.job_id))
        return end

    async def _prepare(self, nursery: trio.Nursery) -> None:
        if self.restored_from is not None:
            self._note("checkpoint", f"begins from checkpoint {self.restored_from}")
            self._post(events.CheckpointStored(0.0, self.restored_from))
        if self._make_coordinator is None or self._storage is None:
            return
        storage = self._storage
        first_id = await self._in_thread(storage.next_id)
        finals = FinalStates(storage.folder)
        await self._in_thread(finals.clear)
        self._checkpoints = JobCheckpoints(
            self._make_coordinator(self._job_tasks(), first_id),
            storage,
            finals,
            self,
            nursery,
            self._in_thread,
            self.history,
        )
        self._checkpoints.pause("the job starts")

    def _job_tasks(self) -> list[JobTask]:
        topology = self.scheduler.topology
        found = []
        for vertex, name in enumerate(self._names):
            inputs = {
                self._names[topology.job.datasets[edge.dataset].producer] for edge in topology.job.inputs_of(vertex)
            }
            found.append(JobTask(name, topology.job.vertices[vertex].parallelism, tuple(sorted(inputs))))
        return found

    async def _loop(self) -> instructions.EndJob:
        while self.end is None:
            self._post_due()
            event = self._inbox.take()
            if event is None:
                await self._sleep()
                continue
            before = self.scheduler.state
            if isinstance(event, events.SlotsOffered):
                self._slots_under_way -= len(event.slots)
            for instruction in self.scheduler.handle(replace(event, now_s=trio.current_time())):
                await self._carry_out(instruction)
            if isinstance(event, events.SlotsOffered):
                self._require()
            self._look(before, event)
            await trio.lowlevel.checkpoint()
        return self.end

    def _require(self) -> None:
        """Says how many slots are missing beside those that the scheduler has not been told of yet."""
        self._cluster.require(self.job_id, max(0, self._slots_missing - self._slots_under_way))

    def _post(self, event: events.Event) -> None:
        self._inbox.post(event)
        self._wake.set()

    def _post_due(self) -> None:
        """What the clock says."""
        now_s = trio.current_time()
        while self._timers and self._timers[0][0] <= now_s:
            self._post(events.TimerDue(now_s, heappop(self._timers)[1]))
        for failure in self._blame.release(self._taskmanagers, now_s):
            self._post(failure)
        deadline_s = self.scheduler.next_deadline()
        if deadline_s is not None and max(deadline_s, self._ticked_s + _TICK_S) <= now_s:
            self._ticked_s = now_s
            self._post(events.Tick(now_s))

    async def _sleep(self) -> None:
        """Until something is posted, or the next deadline."""
        self._wake = trio.Event()
        tick_s = self.scheduler.next_deadline()
        deadlines = [
            None if tick_s is None else max(tick_s, self._ticked_s + _TICK_S),
            self._blame.next_deadline_s(),
        ]
        if self._timers:
            deadlines.append(self._timers[0][0])
        if len(self._blame):
            deadlines.append(trio.current_time() + _LISTEN_S)
        with trio.move_on_at(min((each for each in deadlines if each is not None), default=math.inf)):
            await self._wake.wait()

    async def _carry_out(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Deploy():
                await self._deploy(instruction)
            case instructions.Cancel():
                for name, message in self._driver.cancellations(instruction):
                    self._cluster.send(name, message)
            case instructions.UpdateGate():
                for name, message in self._driver.updates(instruction):
                    self._cluster.send(name, message)
            case instructions.ReleasePartitions():
                for name, message in self._driver.releases(instruction):
                    self._cluster.send(name, message)
            case instructions.StartTimer():
                heappush(self._timers, (trio.current_time() + instruction.delay_s, instruction.timer))
            case instructions.RequireSlots():
                if instruction.missing:
                    self._note("slots", f"{instruction.missing} slots are missing; {self._cluster.describe_slots()}")
                self._slots_missing = instruction.missing
                self._require()
            case instructions.ReturnSlots():
                self._cluster.give_back(self.job_id, instruction.slots)
            case instructions.Blocklist():
                self._note("blocklist", f"nothing new is sent to {', '.join(instruction.taskmanagers) or 'nobody'}")
                self._cluster.block(self.job_id, instruction.taskmanagers)
            case instructions.Continue():
                self._post(events.Proceed(0.0))
            case instructions.EndJob():
                self.end = self._explained(instruction)
            case instructions.AskHeartbeats():
                pass  # links have signs of life of their own

    async def _deploy(self, deploy: instructions.Deploy) -> None:
        """Makes and sends descriptors, in turns with others; the scheduler is told nothing meanwhile."""
        self._note("deploy", f"{deploy.subtasks.size} tasks are sent to their TaskManagers")
        if deploy.is_speculative:
            self._beside |= dict(zip(self._keys(deploy), deploy.slots, strict=True))
        else:
            self.places.update(zip(deploy.subtasks.tolist(), deploy.slots, strict=True))
        found: dict[str, list[bytes]] = {}
        try:
            for number, (name, descriptor) in enumerate(self._driver.deployments(deploy), 1):
                found.setdefault(name, []).append(descriptor)
                if not number % DESCRIPTORS_A_TURN:
                    await trio.lowlevel.checkpoint()
        except NetstackError as error:
            self._post(events.GlobalFailure(0.0, f"tasks cannot be sent: {error}"))
            return
        for name, descriptors in found.items():
            for message in submissions(self.job_id, descriptors):
                await self._cluster.wait_room(name)
                self._cluster.send(name, message)

    def _keys(self, deploy: instructions.Deploy) -> list[tuple[int, int]]:
        return [*zip(deploy.subtasks.tolist(), deploy.attempts.tolist(), strict=True)]

    def _look(self, before: JobState, event: events.Event) -> None:
        """What the last step changed, for users and for checkpoints."""
        after = self.scheduler.state
        for subtask, text in self.scheduler.take_news():
            vertex, index = self.scheduler.topology.place_of(subtask)
            self._note("speculation", f"{self._names[vertex]} ({index}) {text}")
            slot = self._beside.get((subtask, self.scheduler.attempt(subtask)))
            if slot is not None:
                self.places[subtask] = slot
        if isinstance(event, events.TasksReported) and event.what is ExecutionInput.FINISH:
            self._keep_results(event)
        if after is not before:
            self._note("job", f"{before.value} -> {after.value}")
            LOGGER.info("job %s (%s) is %s", self.job_id, self.name, after.value)
        if isinstance(event, events.TaskFailed | events.GlobalFailure):
            self._note("failure", event.cause)
            LOGGER.warning("job %s (%s): %s", self.job_id, self.name, event.cause)
        if self._checkpoints is None:
            return
        if isinstance(event, events.TasksReported) and event.what is ExecutionInput.FINISH:
            self._tell_ended(event, self._checkpoints)
        running, finished = self._count(ExecutionState.RUNNING), self._count(ExecutionState.FINISHED)
        if running + finished < self.scheduler.topology.subtask_count:
            self._checkpoints.pause("not all tasks run")
        elif after is JobState.RUNNING:
            self._checkpoints.resume(self._has_ended)

    def _tell_ended(self, event: events.TasksReported, checkpoints: JobCheckpoints) -> None:
        """Tasks have ended, and the scheduler knows: before that a pause would take them for such as run again."""
        for number in event.subtasks.tolist():
            vertex, index = self.scheduler.topology.place_of(number)
            subtask = self._names[vertex], index
            if self._has_ended(subtask) and not checkpoints.has_ended(subtask):
                checkpoints.task_ended(*subtask)

    async def _after(self, end: instructions.EndJob) -> None:
        """The job has ended: TaskManagers drop it, the last checkpoint is stored, users are told."""
        if self._checkpoints is not None:
            if end.state is JobState.FINISHED:
                await self._checkpoints.take_last(self._has_ended)
            self._checkpoints.stop()
            await self._checkpoints.close()
        for taskmanager in self._open:
            self._cluster.send(taskmanager, CloseJob(self.job_id))
        with trio.move_on_after(CLOSE_PATIENCE_S):
            while self._open:
                self._all_closed = trio.Event()
                await self._all_closed.wait()
        self._note("job", f"{end.state.value}{f': {end.reason}' if end.reason else ''}")
        self.ended.set()

    def _explained(self, end: instructions.EndJob) -> instructions.EndJob:
        """A job that got too few slots says how many it needs, and what there was."""
        if NO_SLOT in end.reason:
            return replace(end, reason=f"{end.reason}; {self.slots_needed()}; {self._cluster.describe_slots()}")
        return end

    def slots_needed(self) -> str:
        """How many slots the job takes when all of it runs, by slot sharing group, in words."""
        job = self.scheduler.topology.job
        needed: dict[str, int] = {}
        for vertex in job.vertices:
            name = job.slot_sharing_groups[vertex.slot_sharing_group].name
            needed[name] = max(needed.get(name, 0), vertex.parallelism)
        groups = ", ".join(f"{count} of group {name}" for name, count in needed.items())
        return f"all of it takes {sum(needed.values())} slots ({groups})"

    # ------------------------------------------------------------------------------------------------------- reports

    def _finished(self, message: TaskFinished, now_s: float) -> None:
        report = self._driver.finished(message, now_s)
        if message.results:
            self._results_of[message.attempt] = message.results
        if message.final is not None and self._driver.is_current(message.attempt):
            vertex, index, _ = message.attempt
            subtask = self._names[vertex], index
            self._finals[subtask] = _task_file(subtask, message.final)
        self._post(report)

    def _keep_results(self, event: events.TasksReported) -> None:
        """Of the attempts that the scheduler took for the ones that count."""
        for number, attempt in zip(event.subtasks.tolist(), event.attempts.tolist(), strict=True):
            vertex, index = self.scheduler.topology.place_of(number)
            results = self._results_of.pop((vertex, index, attempt), {})
            if self.scheduler.attempt(number) == attempt and self._has_ended((self._names[vertex], index)):
                for operator, value in results.items():
                    self.results.setdefault(operator, {})[index] = value

    def _failed(self, taskmanager: str, message: TaskFailed, now_s: float) -> None:
        failure = self._driver.failed(taskmanager, message, now_s)
        if message.is_secondary and failure.missing_partition is None and self._driver.is_current(message.attempt):
            self._blame.hold(failure, now_s)
            self._cluster.ask_for_life(self._taskmanagers)
            self._wake.set()
            return
        self._post(failure)
        if not message.is_secondary:
            self._tell_held()

    def _tell_held(self) -> None:
        """A root was found: what follows from it may be told, behind it."""
        for failure in self._blame.release_all():
            self._post(failure)

    def _acknowledged(self, message: CheckpointAcknowledged) -> None:
        if self._checkpoints is None or not self._driver.is_current(message.attempt):
            return
        vertex, index, _ = message.attempt
        file = TaskFile(self._names[vertex], index, message.size_bytes, message.crc32)
        self._checkpoints.acknowledged(message.checkpoint_id, file, message.report)

    # -------------------------------------------------------------------------------- what checkpoints need of the job

    def trigger(self, barrier: bytes, subtasks: Iterable[Subtask], *, is_savepoint: bool, stops: bool) -> None:
        """See `CheckpointCommands.trigger`."""
        for name, attempts in self._placed(subtasks).items():
            self._cluster.send(name, TriggerCheckpoint(self.job_id, barrier, tuple(attempts), is_savepoint, stops))

    def abort_checkpoint(self, checkpoint_id: int, subtasks: Iterable[Subtask]) -> None:
        """See `CheckpointCommands.abort_checkpoint`."""
        for name, attempts in self._placed(subtasks).items():
            self._cluster.send(name, AbortCheckpoint(self.job_id, checkpoint_id, tuple(attempts)))

    def final_of(self, subtask: Subtask) -> TaskFile | None:
        """See `CheckpointCommands.final_of`."""
        return self._finals.get(subtask)

    def checkpoint_stored(self, checkpoint_id: int) -> None:
        """See `CheckpointCommands.checkpoint_stored`."""
        assert self._storage is not None
        self._last_stored = checkpoint_id, self._storage.path(checkpoint_id)
        self._note("checkpoint", f"checkpoint {checkpoint_id} is complete")
        self._post(events.CheckpointStored(0.0, checkpoint_id))
        for taskmanager in self._taskmanagers:
            self._cluster.send(taskmanager, CheckpointCompleted(self.job_id, checkpoint_id))

    def checkpoint_aborted(self, checkpoint_id: int, reason: str, *, is_failure: bool) -> None:
        """See `CheckpointCommands.checkpoint_aborted`."""
        text = f"checkpoint {checkpoint_id} was aborted: {reason}"
        self._note("failure" if is_failure else "checkpoint", text)
        LOGGER.log(logging.WARNING if is_failure else logging.INFO, "job %s (%s): %s", self.job_id, self.name, text)

    def fail(self, reason: str) -> None:
        """See `CheckpointCommands.fail`."""
        self._post(events.GlobalFailure(0.0, reason))

    def _placed(self, subtasks: Iterable[Subtask]) -> dict[str, list[Attempt]]:
        """The current attempts of subtasks, by the TaskManager that each is on."""
        found: dict[str, list[Attempt]] = {}
        for name, index in subtasks:
            subtask = self.scheduler.topology.subtask(self._vertices[name], index)
            slot = self.places.get(subtask)
            if slot is not None:
                found.setdefault(slot.location.taskmanager, []).append(self._driver.attempt(subtask))
        return found

    # -------------------------------------------------------------------------------------------------------- inside

    def _has_ended(self, subtask: Subtask) -> bool:
        number = self.scheduler.topology.subtask(self._vertices[subtask[0]], subtask[1])
        return self.scheduler.execution_state(number) is ExecutionState.FINISHED

    def _count(self, state: ExecutionState) -> int:
        return self.scheduler.count(state)

    def _closed(self, taskmanager: str) -> None:
        self._open.discard(taskmanager)
        if not self._open:
            self._all_closed.set()

    def _note(self, what: str, text: str) -> None:
        self.log.add(self._clock(), what, text)


_LISTEN_S: Final = 0.02
"""How often held failures are looked at."""

_TICK_S: Final = 0.01
"""The scheduler hears of the clock at most so often: a deadline may pass without anything that could be done."""


def _task_file(subtask: Subtask, final: dict[str, Any]) -> TaskFile:
    size_bytes, crc32 = final.get("size_bytes"), final.get("crc32")
    if type(size_bytes) is not int or type(crc32) is not int:
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "the final state of a task has no size and checksum")
    return TaskFile(*subtask, size_bytes, crc32)
