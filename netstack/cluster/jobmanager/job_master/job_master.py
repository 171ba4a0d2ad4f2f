"""Runs one job: carries out the decisions of its scheduler and its checkpoint coordinator.

Rules:
- Every event for the scheduler passes through one inbox (`inbox`). All messages of a step are sent before the next
  event is handled.
- Checkpoints pause while not all tasks run, and resume automatically.
- Messages about superseded attempts are dropped: reports by the scheduler, checkpoint messages by `task_reports`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, final

import trio

from ....base.errors import CheckpointError, ErrorCode, LocalProtocolError, NetstackError, RemoteProtocolError
from ....base.text.limited_log import LimitedLog
from ....base.units import counted
from ....network.waiting.threads import InThread
from ....schedule import events, instructions
from ....schedule.checkpoint.coordinator import CheckpointCoordinator
from ....schedule.checkpoint.finals import FinalStates
from ....schedule.checkpoint.instructions import JobTask, Subtask
from ....schedule.checkpoint.storage import CheckpointStorage
from ....schedule.descriptors.shuffle import TaskManagerLocation
from ....schedule.execution import ExecutionInput, ExecutionState, JobState
from ....schedule.recovery import Failure
from ....schedule.scheduler import NO_SLOT, Scheduler
from ...control.codec import Message, Plain, check_plain
from ...control.messages import CloseJob, OperatorEvent, attempts_of
from ...control.reports import JobClosed, JobProgress, SlotBlocked
from ...disk_retries import until_stored
from ..job_datasets import JobDatasets
from ..job_services import JobCoordinator, JobServices
from ..log import ENDED, Failed, FailureHistory, JobLog, blocked_text, place_of
from ..peer_budget import Charge
from ..progress import ProgressByVertex, checked_progress, data_ahead, queued_by_vertex
from ..resource_manager.slot_manager import slots_needed
from .attempt_translator import AttemptTranslator
from .checkpoints import CheckpointReport, JobCheckpoints
from .inbox import PATIENCE_S, HeldFailures, JobInbox
from .task_reports import TaskReports
from .tasks import CheckpointInProgress, JobTasks, TaskCommands, TaskSender

LOGGER: Final = logging.getLogger("netstack.jobmanager")


@final
class JobJournal:
    """The journal of one job.

    Attributes:
        blocked: slots whose event loop is blocked by user code, by TaskManager and slot.
    """

    def __init__(self, job_id: str, name: str) -> None:
        self._job = f"job {job_id} ({name})"
        self.log = JobLog()
        self.failures = FailureHistory()
        self.blocked: dict[tuple[str, int], SlotBlocked] = {}
        self._slots_missing = 0
        self._limited = LimitedLog(LOGGER, time.monotonic)
        self._restarts = LimitedLog(LOGGER, time.monotonic, burst=200)  # a job may restart a hundred times a second

    def note(self, what: str, text: str) -> None:
        """Adds an entry to the job's log."""
        self.log.add(time.time(), what, text)

    def state_changed(self, before: JobState, after: JobState) -> None:
        """Logs a new state of the job."""
        self.note("job", f"{before.value} -> {after.value}")
        self._restarts.log(logging.INFO, "state", f"{self._job} is now {after.value}")

    def failed(self, event: events.Event, roots: Sequence[Failure], reported: Failed | None, now: JobState) -> None:
        """Logs each root failure with its decision in one line; attaches secondary failures to it."""
        for root in roots:
            led_to = ENDED if root.decision.delay_s is None else str(root.decision)
            self.failures.add(time.time(), reported or Failed(root.cause), led_to)
            self.note("failure", f"{root.cause}; {root.decision}")
            self._restarts.log(logging.WARNING, "failure", f"{self._job}: {root.cause}; {root.decision}")
        if not roots and isinstance(event, events.TaskFailed | events.TasksLost | events.GlobalFailure):
            self.note("task", event.cause)
            if reported is not None and now is not JobState.RUNNING:
                self.failures.beside(time.time(), reported)

    def slots_missing(self, missing: int, describe_slots: Callable[[], str]) -> None:
        """Logs another number of missing slots, unless it is 0."""
        if missing not in (0, self._slots_missing):
            self.note("slots", f"missing slots: {missing}; {describe_slots()}")
        self._slots_missing = missing

    def slot_blocked(self, location: TaskManagerLocation, message: SlotBlocked) -> None:
        """Logs the begin and the end of a blocked slot once.

        Raises:
            RemoteProtocolError: the TaskManager has no such slot.
        """
        taskmanager, slot = location.name, message.slot
        if not 0 <= slot < len(location.slot_addresses):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"{taskmanager} reports slot {slot} as blocked, but has no such slot"
            )
        message = replace(message, where=place_of(message))
        before = self.blocked.pop((taskmanager, slot), None)
        if message.blocked_s:
            self.blocked[taskmanager, slot] = message
        if (before is None) == bool(message.blocked_s):
            text = blocked_text(message) if message.blocked_s else "its event loop is no longer blocked"
            self.note("blocked", f"{taskmanager}, slot {slot}: {text}")
            self._limited.log(logging.WARNING, "blocked", f"{self._job}: {taskmanager}, slot {slot}: {text}")

    def lost(self, taskmanager: str, reason: str) -> None:
        """Logs the loss of a TaskManager; none of its slots is blocked any more."""
        for place in [place for place in self.blocked if place[0] == taskmanager]:
            del self.blocked[place]
        self.note("taskmanager", f"{taskmanager} is lost: {reason}")


CLOSE_PATIENCE_S: Final = 10.0
"""How long an ended job waits for the `JobClosed` of its TaskManagers."""


@final
class JobMaster:
    """The master of one job; `run` executes the job to its end.

    Args:
        make_coordinator: creates the checkpoint coordinator from the tasks and the first checkpoint id; None: the
            job takes no checkpoints.
        storage: storage of the checkpoints; required if the job takes or restores any.
        restore: id of the checkpoint in `storage` from which the job starts.
        patience_s: maximum time a secondary failure is held (`inbox`).
        coordinator: receives operator events and the end of the job in this process.

    Attributes:
        tasks: places and results of the tasks.
        blocked: slots whose event loop is blocked by user code, by TaskManager and slot.
        end: how the job ended; None before.
        ended: set when `run` has ended in any way.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        scheduler: Scheduler,
        services: JobServices,
        *,
        make_coordinator: Callable[[Iterable[JobTask], int], CheckpointCoordinator] | None = None,
        storage: CheckpointStorage | None = None,
        restore: int | None = None,
        patience_s: float = PATIENCE_S,
        coordinator: JobCoordinator | None = None,
        in_thread: InThread,
    ) -> None:
        self.job_id = job_id
        self.name = name
        self.scheduler = scheduler
        self._journal = JobJournal(job_id, name)
        self._note = self._journal.note
        self.log = self._journal.log
        self.failures = self._journal.failures
        self.blocked = self._journal.blocked
        self.history: list[CheckpointReport] = []
        self.end: instructions.EndJob | None = None
        self.ended = trio.Event()
        self.restored_from = restore
        self.progress: dict[str, ProgressByVertex] = {}
        self.tasks = JobTasks(scheduler)
        self._translator = AttemptTranslator(job_id, scheduler)
        self._datasets = JobDatasets(job_id, name, scheduler, self._translator, services)
        self._sender = TaskSender(job_id, self._translator, services)
        self._services = services
        self._make_coordinator = make_coordinator
        self._storage = storage
        self._coordinator = coordinator
        self._in_thread = in_thread
        self._taskmanagers: dict[str, TaskManagerLocation] = {}
        self._inbox = JobInbox(
            HeldFailures(services.heard_s, patience_s),
            self._taskmanagers,
            scheduler.next_deadline,
            lambda: self._checkpoints is not None and self._checkpoints.is_storing,
        )
        self._reports = TaskReports(
            scheduler, self.tasks, self._translator, self._inbox, services, self._taskmanagers, coordinator
        )
        self._open: set[str] = set()
        self._all_closed = trio.Event()
        self._commit_waits = ""
        self._nursery: trio.Nursery | None = None
        self._checkpoints: JobCheckpoints | None = None

    # ------------------------------------------------------------------------------------------ from the JobManager

    def offered(self, location: TaskManagerLocation, slots: tuple[int, ...]) -> None:
        """Adds slots of a TaskManager that has opened the job."""
        if location.name not in self._taskmanagers:
            self._taskmanagers[location.name] = location
            self._open.add(location.name)
            self._inbox.post(events.TaskManagerRegistered(location))
        self._inbox.post(events.SlotsOffered(location.name, slots))

    def lost(self, taskmanager: str, reason: str) -> None:
        """Handles the loss of a TaskManager."""
        if taskmanager in self._taskmanagers:
            del self._taskmanagers[taskmanager]
            self._closed(taskmanager)
            self.progress.pop(taskmanager, None)
            self._journal.lost(taskmanager, reason)
            self._inbox.post(events.TaskManagerLost(taskmanager, reason))
            self._inbox.post_held()

    def refused(self, taskmanager: str, reason: str) -> None:
        """Handles a TaskManager that rejects or stops the job; tasks that run there are lost."""
        text = f"it rejected the job: {reason}"
        if taskmanager in self._taskmanagers:
            self.lost(taskmanager, text)
        else:
            self._note("taskmanager", f"{taskmanager}: {text}")
        if self._coordinator is not None:
            self._coordinator.refused(taskmanager, reason)

    def on_message(self, taskmanager: str, message: Message, charge: Charge | None = None) -> None:
        """Handles a message of a TaskManager about this job.

        Raises:
            RemoteProtocolError: the message is invalid, or too many reports of the TaskManager wait.
        """
        for attempt in attempts_of(message):
            self._reports.check_place(taskmanager, attempt, message)
        if taskmanager not in self._taskmanagers and not isinstance(message, JobClosed):
            return  # no task runs there
        self._inbox.charge = charge
        try:
            self._handle(taskmanager, message)
        finally:
            self._inbox.charge = None

    def _handle(self, taskmanager: str, message: Message) -> None:
        match message:
            case JobProgress():
                self.progress[taskmanager] = checked_progress(message.vertices, self.scheduler.topology)
            case SlotBlocked():
                self._journal.slot_blocked(self._taskmanagers[taskmanager], message)
            case JobClosed():
                if self.end is None:
                    self.lost(taskmanager, f"it closed the job: {message.reason}")
                self._closed(taskmanager)
            case _:
                self._reports.on_message(taskmanager, message)

    def send_event(self, vertex: str, subtask: int, event: Plain) -> None:
        """Sends an event to the `receive` of a task; drops it if the task is not deployed.

        Raises:
            ConfigError: the event is not a dict of plain data, or is too large.
        """
        for taskmanager, attempts in self.tasks.by_taskmanager([(vertex, subtask)]).items():
            for attempt in attempts:
                self._services.send(taskmanager, OperatorEvent(self.job_id, attempt, check_plain(event)))

    # ---------------------------------------------------------------------------------------------------- from users

    def cancel(self) -> None:
        """Starts cancelling the job; `ended` is set at its end. Idempotent."""
        self._note("job", "cancel requested")
        self._inbox.post(events.CancelJob())

    async def savepoint(self, *, stop: bool) -> CheckpointReport:
        """Takes a savepoint; with `stop`, waits for the end of the job after it.

        Raises:
            LocalProtocolError: the job takes no checkpoints, or is ending.
            CheckpointError: the savepoint was aborted, and the job continues; or it is complete, but a failure kept the
                job from stopping with it, and the job restarted. The text contains the reason.

        Cancellation: the savepoint is taken anyway.
        """
        report = await self._take(savepoint=True, stops=stop)
        if not report.is_complete:
            raise CheckpointError(f"savepoint {report.checkpoint_id} of job {self.name!r} was aborted: {report.reason}")
        if stop:
            await self.ended.wait()
            state = self.scheduler.state.value
            has_stopped = self._checkpoints is not None and self._checkpoints.stops_the_job(report.checkpoint_id)
            if state != "finished" or not has_stopped:
                raise CheckpointError(
                    f"job {self.name!r} did not stop with its savepoint {self.path_of(report.checkpoint_id)}: a failure"
                    f" came before its end, and it is now {state}. What it did since then happens again in a job that"
                    f" starts from this savepoint; `netstack jobs {self.job_id}` has the failure"
                )
        return report

    async def checkpoint(self) -> CheckpointReport:
        """Takes a checkpoint now, or as soon as a pending one has ended.

        Returns:
            The report; `is_complete` is false if the checkpoint was aborted.

        Raises:
            LocalProtocolError: the job takes no checkpoints, or is ending.

        Cancellation: the checkpoint is taken anyway.
        """
        return await self._take(savepoint=False, stops=False)

    def check_takes_checkpoints(self) -> None:
        """Raises LocalProtocolError if the job takes no checkpoints, whatever its tasks do."""
        if self._storage is None:
            raise LocalProtocolError(
                f"job {self.name!r} takes no checkpoints: set `checkpoints` (an interval is not needed); a batch job"
                " that keeps results never takes any"
            )

    async def _take(self, *, savepoint: bool, stops: bool) -> CheckpointReport:
        self.check_takes_checkpoints()
        if self._checkpoints is None:
            raise LocalProtocolError(f"job {self.name!r} is starting; ask again when its tasks run")
        return await self._checkpoints.take(savepoint=savepoint, stops=stops)

    @property
    def checkpoint_counts(self) -> tuple[int, int]:
        """The numbers of completed and failed checkpoints of this run."""
        checkpoints = self._checkpoints
        return (0, 0) if checkpoints is None else (checkpoints.completed, checkpoints.failed)

    @property
    def checkpoints_in_progress(self) -> list[CheckpointInProgress]:
        """The checkpoints that were triggered and have not ended, oldest first."""
        return [] if self._checkpoints is None else self._checkpoints.in_progress()

    def _data_ahead(self, checkpoint_id: int, subtasks: Collection[Subtask]) -> int:
        job = self.scheduler.topology.job
        queued = queued_by_vertex(job, self.progress, self.tasks.placed_vertices())
        return data_ahead(job, queued, checkpoint_id, subtasks)

    @property
    def waits_for(self) -> str:
        """What delays a restart or storing the job's end; empty if nothing does."""
        if self.scheduler.state is JobState.RESTARTING and self._inbox.holds_a_timer:
            return "the checkpoint that is being stored; then the job restarts"
        return self._commit_waits or ("" if self._checkpoints is None else self._checkpoints.waits_for)

    @property
    def last_checkpoint(self) -> tuple[int, str] | None:
        """Id and folder of the newest completed checkpoint of this run; None before the first."""
        return None if self._reports.commands is None else self._reports.commands.last_stored

    def path_of(self, checkpoint_id: int) -> str:
        """Returns the folder of a checkpoint. Raises LocalProtocolError if the job takes no checkpoints."""
        if self._storage is None:
            raise LocalProtocolError(f"job {self.name!r} takes no checkpoints")
        return self._storage.path(checkpoint_id)

    # ----------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> instructions.EndJob:
        """Runs the job to its end.

        Returns:
            How the job ended; all TaskManagers have closed it or were ordered to.

        Cancellation: orders TaskManagers to close the job; its files stay.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._prepare(nursery)
                self._inbox.post(events.StartJob())
                end = await self._loop()
                if self._coordinator is not None:
                    self._coordinator.ended(end)
                await self._after(end)
                nursery.cancel_scope.cancel()
        finally:
            if self._checkpoints is not None:
                self._checkpoints.abandon()
            self.ended.set()  # also after an unexpected error, so that no caller waits forever
            for taskmanager in self._open:
                self._services.send(taskmanager, CloseJob(self.job_id))
        return end

    async def _prepare(self, nursery: trio.Nursery) -> None:
        if self.restored_from is not None:
            self._note("checkpoint", f"starts from checkpoint {self.restored_from}")
            self._inbox.post(events.CheckpointStored(self.restored_from))
        if self._make_coordinator is None or self._storage is None:
            return
        storage = self._storage
        first_id = await self._in_thread(storage.next_id)
        finals = FinalStates(storage.folder, root=storage.root)
        await self._in_thread(finals.clear)
        commands = TaskCommands(
            self.job_id,
            self.name,
            self.tasks,
            storage,
            self._services,
            self._taskmanagers,
            post=self._inbox.post,
            note=self._note,
            data_ahead=self._data_ahead,
        )
        self._checkpoints = JobCheckpoints(
            self._make_coordinator(self.tasks.checkpointed(), first_id),
            storage,
            finals,
            commands,
            nursery,
            self._in_thread,
            self.history,
        )
        self._checkpoints.pause("the job starts")
        self._reports.take_checkpoints(self._checkpoints, commands)

    async def _loop(self) -> instructions.EndJob:
        while self.end is None:
            event = await self._inbox.next()
            before = self.scheduler.state
            for instruction in self.scheduler.handle(event, trio.current_time()):
                await self._carry_out(instruction)
            self._look(before, event)
        return self.end

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
                self._note(
                    "restart",
                    f"{self.tasks.describe_restart()} {instruction.delay_s:g} s after all of them have stopped",
                )
            case instructions.RequireSlots():
                self._journal.slots_missing(instruction.missing, self._services.describe_slots)
                self._services.require(self.job_id, instruction.total)
            case instructions.ReturnSlots():
                self._services.give_back(self.job_id, instruction.slots)
            case instructions.BlockTaskManagers():
                self._note("blocklist", f"blocked TaskManagers: {', '.join(instruction.taskmanagers) or 'none'}")
                self._services.block(self.job_id, instruction.taskmanagers)
            case instructions.Continue():
                self._inbox.post(events.Proceed())
            case instructions.EndJob():
                self.end = self._explained(instruction)

    async def _deploy(self, deploy: instructions.Deploy) -> None:
        self._note("deploy", f"{counted(deploy.subtasks.size, 'task')} sent for deployment")
        self.tasks.sent(deploy)
        try:
            await self._sender.deploy(self.scheduler.descriptors(deploy), deploy.slots)
        except NetstackError as error:
            self._inbox.post(events.GlobalFailure(f"tasks cannot be deployed: {error}"))

    async def _commit(self, instruction: instructions.CommitTasks) -> None:
        """Makes tasks commit; stores this on disk first, so that no JobManager runs the job again."""

        def waits(why: str) -> None:
            if why and not self._commit_waits:
                self._note("failure", f"tasks wait to commit: {why}")
            self._commit_waits = why

        await until_stored(partial(self._services.put_committing, self.job_id), waits)
        self._note("commit", f"{counted(instruction.subtasks.size, 'task')} to commit prepared output and finish")
        self._sender.send(instruction)

    def _look(self, before: JobState, event: events.Event) -> None:
        """Logs the changes of the last step, and pauses or resumes checkpoints."""
        after = self.scheduler.state
        for subtask, text in self.scheduler.drain_events():
            name, index = self.tasks.named_by_number(subtask)
            self._note("speculation", f"{name} ({index}) {text}")
            self.tasks.chosen(subtask)
        if isinstance(event, events.TasksReported) and event.what is ExecutionInput.FINISH:
            self.tasks.keep_results(event)
            self._datasets.finished(event)
        if after is not before:
            self._journal.state_changed(before, after)
        reported = None
        if isinstance(event, events.TaskFailed):
            reported = self._reports.failures.pop((event.subtask, event.attempt), None)
        self._journal.failed(event, self.scheduler.take_failures(), reported, after)
        if self._checkpoints is None:
            return
        if isinstance(event, events.TasksReported) and event.what is ExecutionInput.FINISH:
            self._tell_ended(event, self._checkpoints)
        count = self.scheduler.count
        if count(ExecutionState.RUNNING) + count(ExecutionState.FINISHED) < self.scheduler.topology.subtask_count:
            self._checkpoints.pause("not all tasks run")
        elif after is JobState.RUNNING:
            self._checkpoints.resume(self.tasks.goes_on)

    def _tell_ended(self, event: events.TasksReported, checkpoints: JobCheckpoints) -> None:
        """Reports ended tasks to checkpoints, after the scheduler has handled them: a pause before would reset them."""
        for number in event.subtasks.tolist():
            subtask = self.tasks.named_by_number(number)
            if self.tasks.has_ended(subtask) and not checkpoints.has_ended(subtask):
                checkpoints.task_ended(*subtask)

    async def _after(self, end: instructions.EndJob) -> None:
        """After the end: stores the final checkpoint, keeps datasets, closes the job at TaskManagers."""
        if self._checkpoints is not None:
            if end.state is JobState.FINISHED:
                await self._checkpoints.take_last(self.tasks.goes_on)
            self._checkpoints.stop()
            await self._checkpoints.close()
        if end.state is JobState.FINISHED:
            for text in await self._datasets.leave():
                self._note("dataset", text)
        for taskmanager in self._open:
            self._services.send(taskmanager, CloseJob(self.job_id))
        with trio.move_on_after(CLOSE_PATIENCE_S):
            while self._open:
                self._all_closed = trio.Event()
                await self._all_closed.wait()
        self._note("job", f"{end.state.value}{f': {end.reason}' if end.reason else ''}")

    def _explained(self, end: instructions.EndJob) -> instructions.EndJob:
        """Adds the required and existing slots to the reason of a job that lacked slots."""
        if NO_SLOT in end.reason:
            needed = slots_needed(self.scheduler.topology.job)
            return replace(end, reason=f"{end.reason}; {needed}; {self._services.describe_slots()}")
        return end

    def _closed(self, taskmanager: str) -> None:
        self._open.discard(taskmanager)
        if not self._open:
            self._all_closed.set()
