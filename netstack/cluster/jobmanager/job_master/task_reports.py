"""Reports of a job's tasks: checks their origin and passes them to the scheduler and the checkpoints.

Takes: messages of TaskManagers about attempts. Gives: events in the job's inbox, reports to its checkpoints, events to
its coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from ....base.errors import ErrorCode, RemoteProtocolError
from ....base.units import format_size
from ....schedule import events
from ....schedule.checkpoint.snapshot import TaskFile
from ....schedule.descriptors.shuffle import TaskManagerLocation
from ....schedule.scheduler import Scheduler
from ...control.codec import Attempt, Message
from ...control.messages import OperatorEvent
from ...control.reports import (
    CheckpointAcknowledged,
    CheckpointDeclined,
    PartitionConsumable,
    SlotEnded,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from ...task.checkpoints import checked_subtask_report
from ..job_services import JobCoordinator, JobServices
from ..log import Failed
from ..peer_budget import RESULTS_BYTES
from .attempt_translator import AttemptTranslator
from .checkpoints import JobCheckpoints
from .inbox import JobInbox
from .tasks import JobTasks, TaskCommands


@final
class TaskReports:
    """The reports of one job's tasks.

    Attributes:
        failures: failures that the scheduler has not handled yet, by subtask and attempt.
        commands: commands to the tasks that take checkpoints; None without checkpoints.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tasks: JobTasks,
        translator: AttemptTranslator,
        inbox: JobInbox,
        services: JobServices,
        taskmanagers: Mapping[str, TaskManagerLocation],
        coordinator: JobCoordinator | None,
    ) -> None:
        self.failures: dict[tuple[int, int], Failed] = {}
        self.commands: TaskCommands | None = None
        self._checkpoints: JobCheckpoints | None = None
        self._scheduler = scheduler
        self._tasks = tasks
        self._translator = translator
        self._inbox = inbox
        self._services = services
        self._taskmanagers = taskmanagers
        self._coordinator = coordinator

    def take_checkpoints(self, checkpoints: JobCheckpoints, commands: TaskCommands) -> None:
        """Passes checkpoint reports to `checkpoints` from now on."""
        self._checkpoints = checkpoints
        self.commands = commands

    def on_message(self, taskmanager: str, message: Message) -> None:
        """Handles a report whose origin was checked. Raises RemoteProtocolError if the message is invalid."""
        match message:
            case TaskStates(state="waiting"):
                self._waiting(message)
            case TaskStates():
                self._inbox.post(self._translator.states(message))
            case TaskFinished():
                self._finished(message)
            case TaskFailed():
                self._failed(taskmanager, message)
            case CheckpointAcknowledged():
                self._acknowledged(message)
            case CheckpointDeclined():
                if self._checkpoints is not None and self._translator.is_current(message.attempt):
                    subtask = self._tasks.named(message.attempt)
                    self._checkpoints.declined(message.checkpoint_id, *subtask, message.reason)
            case PartitionConsumable():
                self._inbox.post(self._translator.consumable(message))
            case SlotEnded():
                self._inbox.post(self._translator.lost(taskmanager, message))
                self._inbox.post_held()
            case OperatorEvent():
                if self._translator.is_current(message.attempt) and self._coordinator is not None:
                    self._coordinator.event(*self._tasks.named(message.attempt), message.event)
            case _:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME,
                    f"{taskmanager} sent {type(message).__name__}, which TaskManagers do not send",
                )

    def check_place(self, taskmanager: str, attempt: Attempt, message: Message) -> None:
        """Checks that a message about an attempt comes from the attempt's TaskManager; late ones pass.

        Raises:
            RemoteProtocolError: the attempt was not sent there.
        """
        number = self._translator.subtask(attempt)
        place = self._tasks.place_of(number, attempt[2])
        if place is None:
            is_wrong = attempt[2] >= self._scheduler.attempt(number)
        else:
            is_wrong = place.location.taskmanager != taskmanager
            is_wrong |= isinstance(message, SlotEnded) and message.slot != place.index
        if is_wrong:
            raise RemoteProtocolError(
                ErrorCode.UNEXPECTED_FRAME,
                f"{taskmanager} sent {type(message).__name__} of attempt {attempt}, which was not deployed there",
            )

    def _finished(self, message: TaskFinished) -> None:
        report = self._translator.finished(message)
        if not self._tasks.returned(message):
            name, index = self._tasks.named(message.attempt)
            why = (
                f"{name} ({index}) returns results, with which those of the job have more than"
                f" {format_size(RESULTS_BYTES)}: write them to a file or a dataset, and return its name"
            )
            number = self._translator.subtask(message.attempt)
            self._inbox.post(events.TaskFailed(number, message.attempt[2], why, is_recoverable=False))
            return
        if message.final is not None and self.commands is not None and self._translator.is_current(message.attempt):
            self.commands.left(self._tasks.named(message.attempt), message.final)
        self._inbox.post(report)

    def _waiting(self, message: TaskStates) -> None:
        """Handles tasks that wait for a checkpoint, or for the commit phase, before they finish."""
        if self._checkpoints is None:
            self._inbox.post(self._translator.waiting(message))
            return
        for attempt in message.attempts:
            if self._translator.is_current(attempt):
                subtask = self._tasks.waits(attempt)
                if not self._checkpoints.has_ended(subtask):
                    self._checkpoints.task_waits(*subtask)

    def _failed(self, taskmanager: str, message: TaskFailed) -> None:
        where = self._taskmanagers.get(taskmanager) or TaskManagerLocation(taskmanager, "")
        failure, reported = self._translator.failed(where, message)
        self.failures[failure.subtask, failure.attempt] = reported
        if message.is_secondary and self._translator.is_current(message.attempt):
            self._inbox.hold(failure)
            self._services.ask_for_life(self._taskmanagers)
            return
        self._inbox.post(failure)
        if not message.is_secondary:
            self._inbox.post_held()

    def _acknowledged(self, message: CheckpointAcknowledged) -> None:
        if self._checkpoints is None or not self._translator.is_current(message.attempt):
            return
        try:
            report = checked_subtask_report(message.report)
        except ValueError as error:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"attempt {message.attempt}: {error}") from error
        file = TaskFile(*self._tasks.named(message.attempt), message.size_bytes, message.crc32)
        self._checkpoints.acknowledged(message.checkpoint_id, file, report)
