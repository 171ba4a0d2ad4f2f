"""Drives one job: a scheduler decides, a checkpoint coordinator decides, and this carries out what they say.

Takes: a job, slots and messages of TaskManagers as the `JobManager` hands them over, wishes of users. Gives: messages
to TaskManagers; the end of the job.

Rules:
- Every event for the scheduler goes through one inbox (`job_inbox`). Whatever a step sends is sent before the next
  event is looked at.
- Checkpoints pause while not every task runs, and go on by themselves.
- What attempts say that are over is dropped: reports by the scheduler, checkpoints here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

import trio

from ..checkpoint.coordinator import CheckpointCoordinator, JobTask
from ..checkpoint.finals import FinalStates
from ..checkpoint.snapshot import TaskFile
from ..checkpoint.storage import CheckpointStorage
from ..control.codec import Attempt, Message, Plain, check_plain
from ..control.messages import CloseJob, OperatorEvent, attempts_of
from ..control.reports import (
    CheckpointAcknowledged,
    CheckpointDeclined,
    JobClosed,
    JobProgress,
    PartitionConsumable,
    SlotBlocked,
    SlotEnded,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from ..errors import CheckpointError, ErrorCode, LocalProtocolError, NetstackError, RemoteProtocolError
from ..runtime.threads import InThread
from ..schedule import events, instructions
from ..schedule.descriptors.shuffle import TaskManagerLocation
from ..schedule.execution import ExecutionInput, ExecutionState, JobState
from ..schedule.scheduler import NO_SLOT, Scheduler
from ..task.checkpoints import checked_subtask_report
from .checkpoints import CheckpointReport, JobCheckpoints
from .datasets import JobDatasets
from .driver import JobDriver
from .job_inbox import PATIENCE_S, Blame, JobInbox
from .job_tasks import Cluster, JobCoordinator, JobTasks, TaskCommands, TaskSender
from .log import ENDED, Failed, FailureHistory, JobLog
from .slots import slots_needed
from .stacks import blocked_text
from .stored_files import until_stored

LOGGER: Final = logging.getLogger("netstack.jobmanager")

_STOPPING: Final = frozenset({ExecutionState.CANCELING, ExecutionState.CANCELED, ExecutionState.FAILED})
_NAMED: Final = 8
"""Of the tasks that run again, as many are named in the log."""

CLOSE_PATIENCE_S: Final = 10.0
"""How long an ended job waits for its TaskManagers to say that nothing of it is left."""


@final
class JobMaster:
    """One job, from its submission to its end; `run` it.

    Attributes:
        job_id: of the job.
        name: of the job.
        scheduler: decides about tasks.
        log: what happened.
        tasks: where they are, and what they returned.
        history: checkpoints that have ended.
        blocked: slots whose event loop user code keeps from turning, by TaskManager and slot.
        failures: of its tasks, and of all of it.
        end: how the job ended; None before.
        ended: set when `run` has ended, however it did.
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
        coordinator: JobCoordinator | None = None,
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
            patience_s: how long a failure waits for a better explanation; see `job_inbox`.
            coordinator: takes part in the job from inside this process.
            in_thread: runs what blocks.
            clock: seconds since 1970, for the log.
        """
        self.job_id = job_id
        self.name = name
        self.scheduler = scheduler
        self.log = JobLog()
        self.history: list[CheckpointReport] = []
        self.failures = FailureHistory()
        self.end: instructions.EndJob | None = None
        self.ended = trio.Event()
        self.restored_from = restore
        self.progress: dict[str, dict[str, Any]] = {}
        self.blocked: dict[tuple[str, int], SlotBlocked] = {}
        self.tasks = JobTasks(scheduler)
        self._driver = JobDriver(job_id, scheduler)
        self._datasets = JobDatasets(job_id, name, scheduler, self._driver, cluster)
        self._sender = TaskSender(job_id, self._driver, cluster)
        self._cluster = cluster
        self._make_coordinator = make_coordinator
        self._storage = storage
        self._coordinator = coordinator
        self._in_thread = in_thread
        self._clock = clock
        self._taskmanagers: dict[str, TaskManagerLocation] = {}
        self._inbox = JobInbox(Blame(cluster.heard_s, patience_s), self._taskmanagers, scheduler.next_deadline)
        self._reported: dict[tuple[int, int], Failed] = {}
        """Failures that the scheduler has not handled yet, by subtask and attempt."""
        self._open: set[str] = set()
        self._slots_missing = 0
        self._slots_under_way = 0  # offered, and still in the inbox
        self._all_closed = trio.Event()
        self._commit_waits = ""
        self._nursery: trio.Nursery | None = None
        self._checkpoints: JobCheckpoints | None = None
        self._commands: TaskCommands | None = None

    # ------------------------------------------------------------------------------------------ from the JobManager

    def offered(self, location: TaskManagerLocation, slots: tuple[int, ...]) -> None:
        """Slots of a TaskManager that has opened the job are this job's."""
        if location.name not in self._taskmanagers:
            self._taskmanagers[location.name] = location
            self._open.add(location.name)
            self._inbox.post(events.TaskManagerRegistered(0.0, location))
        self._slots_under_way += len(slots)
        self._inbox.post(events.SlotsOffered(0.0, location.name, slots))

    def lost(self, taskmanager: str, reason: str) -> None:
        """A TaskManager is gone."""
        if taskmanager in self._taskmanagers:
            del self._taskmanagers[taskmanager]
            self._closed(taskmanager)
            self.progress.pop(taskmanager, None)
            self.blocked = {place: blocked for place, blocked in self.blocked.items() if place[0] != taskmanager}
            self._note("taskmanager", f"{taskmanager} is lost: {reason}")
            self._inbox.post(events.TaskManagerLost(0.0, taskmanager, reason))
            self._inbox.post_held()

    def refused(self, taskmanager: str, reason: str) -> None:
        """A TaskManager does not take the job, or cannot go on with it: whatever runs there is lost."""
        text = f"it does not take the job: {reason}"
        if taskmanager in self._taskmanagers:
            self.lost(taskmanager, text)
        else:
            self._note("taskmanager", f"{taskmanager}: {text}")
        if self._coordinator is not None:
            self._coordinator.refused(taskmanager, reason)

    def on_message(self, taskmanager: str, message: Message) -> None:
        """A TaskManager says something about this job.

        Raises:
            RemoteProtocolError: it makes no sense; whoever said so is broken.
        """
        for attempt in attempts_of(message):
            self._check_place(taskmanager, attempt, message)
        now_s = trio.current_time()
        match message:
            case TaskStates(state="waiting"):
                self._waiting(message, now_s)
            case TaskStates():
                self._inbox.post(self._driver.states(message, now_s))
            case TaskFinished():
                self._finished(message, now_s)
            case TaskFailed():
                self._failed(taskmanager, message, now_s)
            case CheckpointAcknowledged():
                self._acknowledged(message)
            case CheckpointDeclined():
                if self._checkpoints is not None and self._driver.is_current(message.attempt):
                    subtask = self.tasks.named(message.attempt)
                    self._checkpoints.declined(message.checkpoint_id, *subtask, message.reason)
            case PartitionConsumable():
                self._inbox.post(self._driver.consumable(message, now_s))
            case JobProgress():
                self.progress[taskmanager] = message.vertices
            case SlotEnded():
                self._inbox.post(self._driver.lost(taskmanager, message, now_s))
                self._inbox.post_held()
            case SlotBlocked():
                self._slot_blocked(taskmanager, message)
            case JobClosed():
                if self.end is None:
                    self.lost(taskmanager, f"it closed the job: {message.reason}")
                self._closed(taskmanager)
            case OperatorEvent():
                if self._driver.is_current(message.attempt) and self._coordinator is not None:
                    self._coordinator.event(*self.tasks.named(message.attempt), message.event)
            case _:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME,
                    f"{taskmanager} sent what no TaskManager says: {type(message).__name__}",
                )

    def _check_place(self, taskmanager: str, attempt: Attempt, message: Message) -> None:
        """Only where an attempt was sent anybody knows how it is. A late report on one that is over is dropped.

        Raises:
            RemoteProtocolError: it was not sent there.
        """
        number = self._driver.subtask(attempt)
        place = self.tasks.place_of(number, attempt[2])
        if place is None:
            is_wrong = attempt[2] >= self.scheduler.attempt(number)
        else:
            is_wrong = place.location.taskmanager != taskmanager
            is_wrong |= isinstance(message, SlotEnded) and message.slot != place.index
        if is_wrong:
            raise RemoteProtocolError(
                ErrorCode.UNEXPECTED_FRAME,
                f"{taskmanager} tells of attempt {attempt} ({type(message).__name__}), which was not sent there",
            )

    def send_event(self, vertex: str, subtask: int, event: Plain) -> None:
        """Tells a task something, for its `receive`; one that is nowhere hears nothing.

        Raises:
            ConfigError: it is no dict of plain data, or too large.
        """
        for taskmanager, attempts in self.tasks.by_taskmanager([(vertex, subtask)]).items():
            for attempt in attempts:
                self._cluster.send(taskmanager, OperatorEvent(self.job_id, attempt, check_plain(event)))

    # ---------------------------------------------------------------------------------------------------- from users

    def cancel(self) -> None:
        """The job is to stop; `ended` says when it has. Idempotent."""
        self._note("job", "cancel was asked for")
        self._inbox.post(events.CancelJob(0.0))

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
        return await self._checkpoints.take(savepoint=savepoint, stops=stops)

    @property
    def checkpoint_counts(self) -> tuple[int, int]:
        """How many checkpoints of this run were completed, and how many have failed."""
        checkpoints = self._checkpoints
        return (0, 0) if checkpoints is None else (checkpoints.statistics().completed, checkpoints.failed)

    @property
    def waits_for(self) -> str:
        """What keeps its end from being stored; empty where nothing does."""
        return self._commit_waits or ("" if self._checkpoints is None else self._checkpoints.waits_for)

    @property
    def last_checkpoint(self) -> tuple[int, str] | None:
        """Number and folder of the newest checkpoint of this run that a restart begins from; None without any."""
        return None if self._commands is None else self._commands.last_stored

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

        Cancellation: TaskManagers get the order to drop the job; on disk it stays as it is.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._prepare(nursery)
                self._inbox.post(events.StartJob(0.0))
                end = await self._loop()
                if self._coordinator is not None:
                    self._coordinator.ended(end)
                await self._after(end)
                nursery.cancel_scope.cancel()
        finally:
            if self._checkpoints is not None:
                self._checkpoints.abandon()
            self.ended.set()  # also when it broke: nobody waits for what is over
            for taskmanager in self._open:
                self._cluster.send(taskmanager, CloseJob(self.job_id))
        return end

    async def _prepare(self, nursery: trio.Nursery) -> None:
        if self.restored_from is not None:
            self._note("checkpoint", f"begins from checkpoint {self.restored_from}")
            self._inbox.post(events.CheckpointStored(0.0, self.restored_from))
        if self._make_coordinator is None or self._storage is None:
            return
        storage = self._storage
        first_id = await self._in_thread(storage.next_id)
        finals = FinalStates(storage.folder)
        await self._in_thread(finals.clear)
        self._commands = TaskCommands(
            self.job_id,
            self.name,
            self.tasks,
            storage,
            self._cluster,
            self._taskmanagers,
            post=self._inbox.post,
            note=self._note,
        )
        self._checkpoints = JobCheckpoints(
            self._make_coordinator(self.tasks.checkpointed(), first_id),
            storage,
            finals,
            self._commands,
            nursery,
            self._in_thread,
            self.history,
        )
        self._checkpoints.pause("the job starts")

    async def _loop(self) -> instructions.EndJob:
        while self.end is None:
            event = await self._inbox.next()
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
        """Says how many slots are missing beside those whose offers the scheduler has not handled yet."""
        self._cluster.require(self.job_id, max(0, self._slots_missing - self._slots_under_way))

    async def _carry_out(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Deploy():
                await self._deploy(instruction)
            case instructions.Cancel() | instructions.UpdateGate() | instructions.ReleasePartitions():
                self._sender.send(instruction)
            case instructions.CommitTasks():
                assert self._nursery is not None, "the job runs"
                self._nursery.start_soon(self._commit, instruction)
            case instructions.StartTimer():
                self._inbox.start_timer(instruction.timer, instruction.delay_s)
                self._note("restart", f"{self._restarting()}, {instruction.delay_s:g} s after all of them have stopped")
            case instructions.RequireSlots():
                if instruction.missing:
                    self._note("slots", f"{instruction.missing} slots are missing; {self._cluster.describe_slots()}")
                self._slots_missing = instruction.missing
                self._require()
            case instructions.ReturnSlots():
                self._cluster.give_back(self.job_id, instruction.slots)
            case instructions.BlockTaskManagers():
                self._note("blocklist", f"nothing new is sent to {', '.join(instruction.taskmanagers) or 'nobody'}")
                self._cluster.block(self.job_id, instruction.taskmanagers)
            case instructions.Continue():
                self._inbox.post(events.Proceed(0.0))
            case instructions.EndJob():
                self.end = self._explained(instruction)

    async def _deploy(self, deploy: instructions.Deploy) -> None:
        self._note("deploy", f"{deploy.subtasks.size} tasks are sent to their TaskManagers")
        self.tasks.sent(deploy)
        try:
            await self._sender.deploy(deploy)
        except NetstackError as error:
            self._inbox.post(events.GlobalFailure(0.0, f"tasks cannot be sent: {error}"))

    async def _commit(self, instruction: instructions.CommitTasks) -> None:
        """Tells tasks to commit; first that is on disk, so that no JobManager runs the job again."""

        def waits(why: str) -> None:
            if why and not self._commit_waits:
                self._note("failure", f"the tasks that are to commit wait: {why}")
            self._commit_waits = why

        await until_stored(partial(self._cluster.put_committing, self.job_id), waits)
        self._note("commit", f"{instruction.subtasks.size} tasks commit what they have prepared, and end")
        self._sender.send(instruction)

    def _restarting(self) -> str:
        """What a failure has reached and runs again, in words."""
        topology = self.scheduler.topology
        names = []
        for subtask in range(topology.subtask_count):
            if self.scheduler.execution_state(subtask) in _STOPPING:
                vertex, index = topology.place_of(subtask)
                names.append(f"{topology.job.vertices[vertex].name} {index}")
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        tasks = f"{len(names)} of {topology.subtask_count} tasks"
        return f"{tasks}, those of the regions that the failure reached, run again ({', '.join(names[:_NAMED])}{more})"

    def _look(self, before: JobState, event: events.Event) -> None:
        """What the last step changed, for users and for checkpoints."""
        after = self.scheduler.state
        for subtask, text in self.scheduler.drain_events():
            name, index = self.tasks.named_by_number(subtask)
            self._note("speculation", f"{name} ({index}) {text}")
            self.tasks.chosen(subtask)
        if isinstance(event, events.TasksReported) and event.what is ExecutionInput.FINISH:
            self.tasks.keep_results(event)
            self._datasets.finished(event)
        if after is not before:
            self._note("job", f"{before.value} -> {after.value}")
            LOGGER.info("job %s (%s) is %s", self.job_id, self.name, after.value)
        self._look_at_failures(event)
        if self._checkpoints is None:
            return
        if isinstance(event, events.TasksReported) and event.what is ExecutionInput.FINISH:
            self._tell_ended(event, self._checkpoints)
        count = self.scheduler.count
        if count(ExecutionState.RUNNING) + count(ExecutionState.FINISHED) < self.scheduler.topology.subtask_count:
            self._checkpoints.pause("not all tasks run")
        elif after is JobState.RUNNING:
            self._checkpoints.resume(self.tasks.goes_on)

    def _look_at_failures(self, event: events.Event) -> None:
        """Tells each root failure with what was decided about it, in one line; what follows from it is kept beside."""
        reported = None
        if isinstance(event, events.TaskFailed):
            reported = self._reported.pop((event.subtask, event.attempt), None)
        roots = self.scheduler.take_failures()
        for root in roots:
            led_to = ENDED if root.decision.delay_s is None else str(root.decision)
            self.failures.add(self._clock(), reported or Failed(root.cause), led_to)
            self._note("failure", f"{root.cause}; {root.decision}")
            LOGGER.warning("job %s (%s): %s; %s", self.job_id, self.name, root.cause, root.decision)
        if not roots and isinstance(event, events.TaskFailed | events.TasksLost | events.GlobalFailure):
            self._note("task", event.cause)
            if reported is not None and self.scheduler.state is not JobState.RUNNING:
                self.failures.beside(self._clock(), reported)

    def _tell_ended(self, event: events.TasksReported, checkpoints: JobCheckpoints) -> None:
        """Tasks have ended, and the scheduler knows: before that a pause would take them for such as run again."""
        for number in event.subtasks.tolist():
            subtask = self.tasks.named_by_number(number)
            if self.tasks.has_ended(subtask) and not checkpoints.has_ended(subtask):
                checkpoints.task_ended(*subtask)

    async def _after(self, end: instructions.EndJob) -> None:
        """The job has ended: TaskManagers drop it, the last checkpoint is stored, users see the end."""
        if self._checkpoints is not None:
            if end.state is JobState.FINISHED:
                await self._checkpoints.take_last(self.tasks.goes_on)
            self._checkpoints.stop()
            await self._checkpoints.close()
        if end.state is JobState.FINISHED:
            for text in await self._datasets.leave(self._clock):
                self._note("dataset", text)
        for taskmanager in self._open:
            self._cluster.send(taskmanager, CloseJob(self.job_id))
        with trio.move_on_after(CLOSE_PATIENCE_S):
            while self._open:
                self._all_closed = trio.Event()
                await self._all_closed.wait()
        self._note("job", f"{end.state.value}{f': {end.reason}' if end.reason else ''}")

    def _explained(self, end: instructions.EndJob) -> instructions.EndJob:
        """A job that got too few slots says how many it needs, and what there was."""
        if NO_SLOT in end.reason:
            needed = slots_needed(self.scheduler.topology.job)
            return replace(end, reason=f"{end.reason}; {needed}; {self._cluster.describe_slots()}")
        return end

    # ------------------------------------------------------------------------------------------------------- reports

    def _finished(self, message: TaskFinished, now_s: float) -> None:
        report = self._driver.finished(message, now_s)
        self.tasks.returned(message.attempt, message.results, message.kept)
        if message.final is not None and self._commands is not None and self._driver.is_current(message.attempt):
            self._commands.left(self.tasks.named(message.attempt), message.final)
        self._inbox.post(report)

    def _waiting(self, message: TaskStates, now_s: float) -> None:
        """Tasks wait to hear that their ends are safe: of a checkpoint, or that nothing can run again."""
        if self._checkpoints is None:
            self._inbox.post(self._driver.waiting(message, now_s))
            return
        for attempt in message.attempts:
            if self._driver.is_current(attempt):
                subtask = self.tasks.waits(attempt)
                if not self._checkpoints.has_ended(subtask):
                    self._checkpoints.task_waits(*subtask)

    def _failed(self, taskmanager: str, message: TaskFailed, now_s: float) -> None:
        where = self._taskmanagers.get(taskmanager) or TaskManagerLocation(taskmanager, "")
        failure, reported = self._driver.failed(where, message, now_s)
        self._reported[failure.subtask, failure.attempt] = reported
        if message.is_secondary and self._driver.is_current(message.attempt):
            self._inbox.hold(failure)
            self._cluster.ask_for_life(self._taskmanagers)
            return
        self._inbox.post(failure)
        if not message.is_secondary:
            self._inbox.post_held()

    def _slot_blocked(self, taskmanager: str, message: SlotBlocked) -> None:
        """User code holds up a slot, or no longer does: the log says so once."""
        location = self._taskmanagers.get(taskmanager)
        if location is None:
            return
        if not 0 <= message.slot < len(location.slot_addresses):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"{taskmanager} says that slot {message.slot} is blocked, which it does not have",
            )
        place = taskmanager, message.slot
        before = self.blocked.pop(place, None)
        if message.blocked_s:
            self.blocked[place] = message
        if (before is None) == bool(message.blocked_s):
            text = blocked_text(message) if message.blocked_s else "its event loop turns again"
            self._note("blocked", f"{taskmanager}, slot {message.slot}: {text}")
            LOGGER.warning("job %s (%s): %s, slot %d: %s", self.job_id, self.name, taskmanager, message.slot, text)

    def _acknowledged(self, message: CheckpointAcknowledged) -> None:
        if self._checkpoints is None or not self._driver.is_current(message.attempt):
            return
        try:
            report = checked_subtask_report(message.report)
        except ValueError as error:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"attempt {message.attempt}: {error}") from error
        file = TaskFile(*self.tasks.named(message.attempt), message.size_bytes, message.crc32)
        self._checkpoints.acknowledged(message.checkpoint_id, file, report)

    # -------------------------------------------------------------------------------------------------------- inside

    def _closed(self, taskmanager: str) -> None:
        self._open.discard(taskmanager)
        if not self._open:
            self._all_closed.set()

    def _note(self, what: str, text: str) -> None:
        self.log.add(self._clock(), what, text)
