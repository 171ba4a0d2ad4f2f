"""One job on one TaskManager, from the side of a driver without a scheduler.

Takes: tasks to deploy, messages for them. Gives: what they say, and how they end, in order.

Rules: what the TaskManager says is kept until it is taken, up to a bound; a driver that leaves more has forgotten the
job, which is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import trio

from ..control.build import build_of
from ..control.codec import Attempt, Plain, check_plain
from ..control.link import ControlLink
from ..control.messages import (
    CloseJob,
    JobClosed,
    JobOpened,
    JobProgress,
    JobRefused,
    PartitionConsumable,
    TaskFailed,
    TaskFinished,
    TaskSaid,
    TaskStates,
    TellTask,
    submissions,
)
from ..errors import ConnectionLost, LocalProtocolError, NetstackError, RequestRefused
from ..schedule.descriptors.descriptors import (
    TaskDeploymentDescriptor,
)
from ..schedule.descriptors.information import (
    JobInformation,
)
from .code import root_package
from .remote_task import RemoteTask

EVENTS_AT_MOST: Final = 1 << 16
"""A driver that leaves so many untaken has forgotten the job."""


@final
@dataclass(frozen=True, slots=True)
class Said:
    """A task said something."""

    task: str
    subtask: int
    message: Plain


@final
@dataclass(frozen=True, slots=True)
class Ended:
    """A task returned."""

    task: str
    subtask: int
    result: Any


@final
@dataclass(frozen=True, slots=True)
class Failed:
    """A task raised; see `TaskFailed`."""

    task: str
    subtask: int
    kind: str
    text: str
    is_secondary: bool
    missing_partition: str = ""


JobEvent: TypeAlias = Said | Ended | Failed
JobMessage: TypeAlias = (
    JobOpened
    | JobRefused
    | JobClosed
    | JobProgress
    | PartitionConsumable
    | TaskStates
    | TaskFinished
    | TaskFailed
    | TaskSaid
)


@final
class RemoteJob:
    """A job on one TaskManager; see `TaskManagerClient.open_job`.

    Attributes:
        job_id: 16 hex digits.
        host: `host:port` of the TaskManager, for messages.
        data_address: what `RemotePartition`s name.
    """

    def __init__(self, link: ControlLink, job_id: str, host: str, data_address: str) -> None:
        self.job_id = job_id
        self.host = host
        self.data_address = data_address
        self._link = link
        self._opened = trio.Event()
        self._events, self._pending = trio.open_memory_channel[JobEvent](EVENTS_AT_MOST)
        self._vertices: list[str] = []
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._starting: dict[Attempt, trio.Event] = {}
        self._refused: dict[Attempt, str] = {}
        self._error: NetstackError | None = None
        self._over = trio.Event()

    async def deploy(self, tasks: Sequence[RemoteTask]) -> None:
        """Creates and starts tasks of this TaskManager; returns when they run.

        A task deployed again under its name is its next attempt.

        Raises:
            RequestRefused: one of them cannot be; the others run. The text says why.
            ConfigError: parameters that are no plain data, or a package that is not here.
            ConnectionLost: the TaskManager is gone.

        Cancellation: those that were submitted run.
        """
        packages = sorted({root_package(task.invokable) for task in tasks})
        builds = {package: await trio.to_thread.run_sync(build_of, package) for package in packages}
        information = JobInformation(self.job_id, builds=builds).pack()
        await trio.lowlevel.checkpoint()
        self._check()
        described = [self._describe(task, information) for task in tasks]
        for submission in submissions(self.job_id, (each.pack() for _, each in described)):
            await self._link.wait_room()
            self._link.send(submission)
        try:
            for attempt, _ in described:
                await self._starting[attempt].wait()
        finally:
            started = [self._starting.pop(attempt) for attempt, _ in described]
        refusals = [self._refused.pop(attempt) for attempt, _ in described if attempt in self._refused]
        if refusals:
            raise RequestRefused(f"{self.host}: {refusals[0]}")
        if self._error is not None and len(started):
            raise self._why()

    def tell(self, task: str, subtask: int, message: Plain) -> None:
        """Says something to a task, for its `receive`; one that has ended hears nothing.

        Raises:
            ConfigError: it is no dict of plain data, or too large.
        """
        attempt = self._attempts.get((task, subtask))
        checked = check_plain(message)
        if attempt is not None:
            self._link.send(TellTask(self.job_id, attempt, checked))

    async def next_event(self) -> JobEvent:
        """What a task said, or how it ended, in order.

        Raises:
            ConnectionLost: the TaskManager is gone, or silent for the heartbeat timeout.
            RequestRefused: the job was closed there.
            LocalProtocolError: events came faster than they were taken; the job is closed.

        Cancellation: nothing is lost; ask again.
        """
        try:
            return await self._pending.receive()
        except trio.EndOfChannel:
            raise self._why() from None

    async def close(self) -> None:
        """Cancels what runs there and waits until everything of the job is released. Idempotent.

        Does not raise when the TaskManager is gone: then it released the job itself, or will when it notices.

        Cancellation: the TaskManager closes the job all the same.
        """
        if not self._over.is_set():
            self._link.send(CloseJob(self.job_id))
        await self._over.wait()

    # For the client.

    async def opened(self) -> None:
        """Waits for the TaskManager's answer to `OpenJob`; raises as `TaskManagerClient.open_job`."""
        await self._opened.wait()
        self._check()

    def heard(self, message: JobMessage) -> None:
        """The TaskManager said something about this job."""
        match message:
            case JobClosed():
                self.gone(RequestRefused(f"{self.host} closed the job: {message.reason or 'it is over'}"))
            case JobRefused():
                self.gone(RequestRefused(f"{self.host}: {message.text}"))
            case JobOpened():
                self._opened.set()
            case TaskStates():
                if message.state == "running":
                    for attempt in message.attempts:
                        self._started(attempt)
            case TaskSaid():
                self._take(Said(*self._place(message.attempt), message.message))
            case TaskFinished():
                self._started(message.attempt)
                (result,) = message.results.values() if len(message.results) == 1 else (message.results,)
                self._take(Ended(*self._place(message.attempt), result))
            case TaskFailed():
                self._failed(message)

    def gone(self, error: NetstackError) -> None:
        """Nothing of it is left there, or the connection is gone: nothing at all will come any more."""
        self._fail(error)
        self._opened.set()
        self._over.set()
        for started in self._starting.values():
            started.set()

    def _failed(self, message: TaskFailed) -> None:
        waiting = self._starting.get(message.attempt)
        if waiting is not None and not waiting.is_set():
            self._refused[message.attempt] = message.text
            waiting.set()
            return
        self._take(
            Failed(
                *self._place(message.attempt),
                message.kind,
                message.text,
                message.is_secondary,
                message.missing_partition,
            )
        )

    def _started(self, attempt: Attempt) -> None:
        waiting = self._starting.get(attempt)
        if waiting is not None:
            waiting.set()

    def _place(self, attempt: Attempt) -> tuple[str, int]:
        vertex, subtask, _ = attempt
        return (self._vertices[vertex] if vertex < len(self._vertices) else str(vertex)), subtask

    def _describe(self, task: RemoteTask, information: bytes) -> tuple[Attempt, TaskDeploymentDescriptor]:
        if task.task not in self._vertices:
            self._vertices.append(task.task)
        before = self._attempts.get((task.task, task.subtask))
        attempt = (self._vertices.index(task.task), task.subtask, 0 if before is None else before[2] + 1)
        descriptor = task.descriptor(self.job_id, attempt, information)
        self._attempts[task.task, task.subtask] = attempt
        self._starting[attempt] = trio.Event()
        return attempt, descriptor

    def _take(self, event: JobEvent) -> None:
        if self._error is not None:
            return
        try:
            self._events.send_nowait(event)
        except trio.WouldBlock:
            self._fail(LocalProtocolError(f"{self.host}: {EVENTS_AT_MOST} events wait to be taken; call next_event"))
            self._link.send(CloseJob(self.job_id))

    def _fail(self, error: NetstackError) -> None:
        if self._error is None:
            self._error = error
            self._events.close()

    def _check(self) -> None:
        if self._error is not None:
            raise self._why()

    def _why(self) -> NetstackError:
        error = self._error or ConnectionLost(f"{self.host}: the connection is closed")
        return type(error)(*error.args)
