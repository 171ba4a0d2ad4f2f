"""One attempt of one subtask, from its descriptor to its final report; any error is a failure of this attempt only.

Takes: a `TaskDeploymentDescriptor` and the job that it belongs to. Gives: reports about the attempt.

States: deploying (blobs, code) -> initializing -> running -> finished, failed or canceled. In every case its gates are
closed, its unfinished partitions fail, and exactly one final report is sent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, final

import msgpack
import trio

from ...base.causes import cause_text, is_secondary, root_cause
from ...base.errors import (
    ConfigError,
    LocalProtocolError,
    NetstackError,
    OperatorFailed,
    PartitionNotFound,
    ProducerUnreachable,
)
from ...base.text.safe_text import error_text
from ...schedule.checkpoint.snapshot import TaskFile
from ...schedule.descriptors.descriptors import TaskDeploymentDescriptor
from ...schedule.descriptors.shuffle import ShuffleDescriptors
from ..control.codec import Attempt, Message, Plain, readable
from ..control.link import packed
from ..control.messages import OperatorEvent, slices
from ..control.reports import (
    CheckpointAcknowledged,
    CheckpointDeclined,
    PartitionConsumable,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from ..failure_report import with_place
from ..task.error_place import sigint_raises
from ..task.queued import QueuedEvents
from ..task.reports import AttemptReports, RunnableTask, TaskStatistics
from ..tracebacks import describe
from .stacks import Frame, coroutine_stack

GATHER_S: Final = 0.05
"""Minimum interval of batches: each message costs a switch to the link's thread."""


@final
class StateReports:
    """The unreported states of one job's attempts: one message for each state, at once or at most every `GATHER_S`.

    The states of an attempt are sent in order; `flush` sends the batch before any message that must follow it.
    """

    def __init__(self, job_id: str, send: Callable[[Message], None]) -> None:
        self._job_id = job_id
        self._send = send
        # Attempts pass through states in this order, so one list for each state preserves it.
        self._gathered: dict[str, list[Attempt]] = {"initializing": [], "running": [], "waiting": [], "canceled": []}
        self._more = trio.Event()

    def add(self, state: str, attempt: Attempt) -> None:
        """Adds a state change of an attempt."""
        self._gathered[state].append(attempt)
        self._more.set()

    def flush(self) -> None:
        """Sends the batch."""
        for state, attempts in self._gathered.items():
            if attempts:
                self._gathered[state] = []
                for some in slices(attempts):
                    self._send(TaskStates(self._job_id, state, some))

    async def run(self) -> None:
        """Sends batches, at least `GATHER_S` apart, until cancelled."""
        sent_s = -GATHER_S
        while True:
            await self._more.wait()
            self._more = trio.Event()
            await trio.sleep(max(0.0, sent_s + GATHER_S - trio.current_time()))
            self.flush()
            sent_s = trio.current_time()


LOGGER: Final = logging.getLogger("operators")
"""Logs errors of user code that fail no task; `netstack run` shows it like the loggers of user code."""

TOLD_EARLY_BYTES: Final = 16 << 20
"""Limit of operator events that wait for the creation of the task; equals that of a task's inbox."""

DEPLOYING: Final = "deploying"
INITIALIZING: Final = "initializing"
RUNNING: Final = "running"
FINISHED: Final = "finished"
FAILED: Final = "failed"
WAITING: Final = "waiting"
CANCELED: Final = "canceled"


OnMade: TypeAlias = Callable[[str, Attempt, RunnableTask], None]
"""Receives a created task: the id of its job, its attempt, the task."""


class JobOfTask(Protocol):
    """The job at this TaskManager, as its tasks use it."""

    job_id: str
    on_made: OnMade | None
    """Called with each created task."""
    reports: StateReports

    def send(self, message: Message) -> None:
        """Sends a message to the JobManager, after all earlier state reports."""

    def shown_name(self, attempt: Attempt) -> str:
        """Returns the display name of an attempt."""

    async def make_task(self, descriptor: TaskDeploymentDescriptor, reports: AttemptReports) -> RunnableTask:
        """Creates the task of a descriptor."""

    def take_out_of_progress(self, attempt: Attempt) -> None:
        """Reports progress without a finished attempt."""


@final
class TaskAttempt:
    """One attempt; implements `AttemptReports`.

    Attributes:
        attempt: vertex, subtask, attempt.
        slot: its slot according to the descriptor.
    """

    def __init__(self, descriptor: TaskDeploymentDescriptor, job: JobOfTask) -> None:
        identity = descriptor.attempt
        self.attempt: Attempt = (identity.vertex, identity.subtask, identity.attempt)
        self.slot = descriptor.allocation
        self.state = DEPLOYING
        self._descriptor = descriptor
        self._job = job
        self._job_id = job.job_id
        self._cancel = trio.CancelScope()
        self._refusal = ""
        self.task: RunnableTask | None = None
        """The task; None until it is created."""
        self._runs_in: trio.lowlevel.Task | None = None
        self._waiting: list[Callable[[RunnableTask], None]] = []
        self._waiting_bytes = 0

    @property
    def subtask(self) -> int:
        """Index of the subtask."""
        return self.attempt[1]

    async def live(self) -> None:
        """Runs the attempt. Raises only for cancellation of the caller and for Ctrl-C."""
        failure = "the task was canceled"
        finished: TaskFinished | None = None
        self._runs_in = trio.lowlevel.current_task()
        try:
            with self._cancel:
                finished = await self._work()
                failure = ""
        except BaseException as error:
            root = root_cause(error)
            if _is_ours(root):
                raise
            failure = cause_text(root)
            self._fail(
                root, describe(root if isinstance(root, OperatorFailed) else error)
            )  # reported before its consumers fail because of it
        finally:
            if self._refusal and finished is None and self.state != FAILED:
                failure = self._refusal
                self._fail(LocalProtocolError(failure), {})
            task, self.task = self.task, None
            if task is not None:
                with trio.CancelScope(shield=True):
                    await self._close(task, failure)
            if finished is not None:  # after its resources are released
                self.state = FINISHED
                self._job.take_out_of_progress(self.attempt)
                self._job.send(finished)
            elif self.state != FAILED:
                self.state = CANCELED
                self._job.reports.add(CANCELED, self.attempt)

    def cancel(self) -> None:
        """Cancels the attempt; has no effect on a finished one. Idempotent."""
        self._cancel.cancel()

    def refuse(self, why: str) -> None:
        """Fails the attempt; the first reason counts."""
        self._refusal = self._refusal or why
        self._cancel.cancel()

    def take_event(self, event: Plain) -> None:
        """Passes an operator event to the task; a task that accepts none fails."""
        if self.task is None and self.state == DEPLOYING:
            self._waiting_bytes += len(msgpack.packb(event))
            if self._waiting_bytes > TOLD_EARLY_BYTES:
                self._waiting.clear()
                who = self._job.shown_name(self.attempt)
                self.refuse(
                    f"task {who} received {self._waiting_bytes} bytes of events before it ran; the limit is"
                    f" {TOLD_EARLY_BYTES}"
                )
                return
        self._when_made(lambda task: task.operator_event(event))

    def update_gate(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Adds producers to an input gate."""
        self._when_made(lambda task: task.update_gate(gate, descriptors))

    def initializing(self) -> None:
        """Reports that the task restores its state."""
        self.state = INITIALIZING
        self._job.reports.add(INITIALIZING, self.attempt)

    def running(self) -> None:
        """Reports that the task runs."""
        self.state = RUNNING
        self._job.reports.add(RUNNING, self.attempt)

    def waiting(self) -> None:
        """Reports that the task waits for its final checkpoint or commit."""
        self._job.reports.add(WAITING, self.attempt)

    def acknowledged(self, checkpoint_id: int, file: TaskFile, report: Plain) -> None:
        """Reports a stored checkpoint."""
        self._job.send(
            CheckpointAcknowledged(self._job_id, self.attempt, checkpoint_id, file.size_bytes, file.crc32, report)
        )

    def declined(self, checkpoint_id: int, reason: str) -> None:
        """Reports a declined checkpoint."""
        self._job.send(CheckpointDeclined(self._job_id, self.attempt, checkpoint_id, reason))

    def consumable(self, partition: int) -> None:
        """Reports the first data of a partition."""
        self._job.send(PartitionConsumable(self._job_id, self.attempt, partition))

    def operator_event(self, event: Plain) -> None:
        """Sends an event to the job's coordinator."""
        self._job.send(OperatorEvent(self._job_id, self.attempt, event))

    def statistics(self) -> TaskStatistics | None:
        """Returns the statistics of the task; None before it is created."""
        return None if self.task is None else self.task.statistics()

    def queued(self) -> QueuedEvents | None:
        """Returns the markers and barriers in its queues; None before it is created."""
        return None if self.task is None else self.task.queued()

    def stack(self) -> list[Frame]:
        """Returns the stack of its code, innermost frame first."""
        return [] if self._runs_in is None else coroutine_stack(self._runs_in.coro)

    def _when_made(self, do: Callable[[RunnableTask], None]) -> None:
        """Calls a function with the task, now or after its creation; errors fail the task."""
        if self.task is None:
            if self.state == DEPLOYING:
                self._waiting.append(do)
            return
        try:
            do(self.task)
        except trio.WouldBlock:
            self.refuse(f"task {self._job.shown_name(self.attempt)} cannot receive more events: its inbox is full")
        except NetstackError as error:
            self.refuse(str(error))

    async def _work(self) -> TaskFinished:
        await trio.lowlevel.checkpoint()  # raises if it was canceled meanwhile
        made = await self._job.make_task(self._descriptor, self)
        self.task = made
        made.create()
        if self._job.on_made is not None:
            self._job.on_made(self._job_id, self.attempt, made)
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            self._when_made(do)
        outcome = await made.run()
        final = _file_document(outcome.final)
        results = dict(outcome.results)
        counts = made.statistics()
        finished = TaskFinished(
            self._job_id,
            self.attempt,
            outcome.produced_bytes,
            results,
            final,
            outcome.kept,
            counts.records_in,
            counts.records_out,
        )
        try:
            packed(finished)
        except ConfigError as error:
            who = ", ".join(f"operator {name!r}" for name in results)
            raise ConfigError(f"{who or 'the task'} has a result that cannot be sent: {error}") from None
        return finished

    async def _close(self, task: RunnableTask, failure: str) -> None:
        try:
            await task.close(failure)
        except BaseException as error:  # of user code, after the final report
            root = root_cause(error)
            if _is_ours(root):
                raise
            text = with_place(cause_text(root), describe(root))
            LOGGER.warning("task %s: closing it failed: %s", self._job.shown_name(self.attempt), text)

    def _fail(self, root: BaseException, report: Plain) -> None:
        self.state = FAILED
        missing = root.partition if isinstance(root, PartitionNotFound | ProducerUnreachable) else ""
        kind, text = type(root).__name__, error_text(root)
        if isinstance(root, OperatorFailed):
            cause = root_cause(root.cause)
            kind, text = type(cause).__name__, error_text(cause)
            text = f"operator {root.operator!r}{': ' if text else ''}{text}"
        self._job.send(
            TaskFailed(
                self._job_id,
                self.attempt,
                kind,
                readable(text),
                is_secondary(root),
                missing,
                is_recoverable=not (isinstance(root, NetstackError) and root.is_permanent),
                report=report,
            )
        )


def _file_document(file: TaskFile | None) -> Plain | None:
    if file is None:
        return None
    return {"task": file.task, "subtask": file.subtask, "size_bytes": file.size_bytes, "crc32": file.crc32}


def _is_ours(error: BaseException) -> bool:
    """Whether an error is the TaskManager's own: its cancellation, or Ctrl-C.

    Everything else is the task's failure, also `sys.exit()` in user code. KeyboardInterrupt counts as Ctrl-C only if
    SIGINT raises it; the commands handle SIGINT themselves, so there user code has raised it.
    """
    if isinstance(error, trio.Cancelled):
        return trio.current_effective_deadline() == -math.inf
    return isinstance(error, KeyboardInterrupt) and sigint_raises()
