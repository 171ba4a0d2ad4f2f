"""TaskManagers that exist in a test only: real connections to a real JobManager, tasks that do what the test says."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from netstack.base.errors import ConnectionLost
from netstack.base.events import CheckpointBarrier, decode_event
from netstack.cluster.control.codec import Message
from netstack.cluster.control.link import CLIENT, TASKMANAGER, ControlLink, dial
from netstack.cluster.control.messages import (
    AbortCheckpoint,
    Answer,
    Ask,
    AskRefused,
    CancelTasks,
    CheckpointCompleted,
    CloseJob,
    CommitTasks,
    OpenJob,
    SubmitTasks,
    TriggerCheckpoint,
)
from netstack.cluster.control.reports import (
    CheckpointAcknowledged,
    CheckpointDeclined,
    JobClosed,
    JobOpened,
    JobRefused,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.service import JobManager, open_jobmanager
from netstack.schedule.checkpoint.finals import FinalStates
from netstack.schedule.checkpoint.snapshot import TaskSnapshot
from netstack.schedule.checkpoint.storage import CheckpointStorage
from netstack.schedule.descriptors.descriptors import TaskDeploymentDescriptor
from netstack.schedule.descriptors.information import TaskInformation
from netstack.schedule.graph.job_file import write_job
from netstack.schedule.graph.stream_builder import StreamEnvironment

_NUMBERS = itertools.count()

Attempt = tuple[int, int, int]


async def at_once(function: Callable[[], Any]) -> Any:
    """Instead of a thread, which a clock that jumps does not wait for."""
    await trio.lowlevel.checkpoint()
    return function()


@asynccontextmanager
async def jobmanager(**settings: Any) -> AsyncIterator[JobManager]:
    config = JobManagerConfig(**{"listen": f"memory://jm-{next(_NUMBERS)}", **settings})
    async with open_jobmanager(config, in_thread=at_once) as manager:
        yield manager


class ScriptedTaskManager:
    """Runs what it is sent: reports INITIALIZING and RUNNING at once, and then what the test tells it to."""

    def __init__(self, name: str, link: ControlLink) -> None:
        self.name = name
        self.link = link
        self.tasks: dict[Attempt, TaskDeploymentDescriptor] = {}
        self.said: list[Message] = []
        self.opened: list[str] = []
        self.job_id = ""
        self.finishes = False
        self.refuses = ""
        self.leaves_finals: Path | None = None
        self.changed = trio.Event()
        self.ended = trio.Event()

    async def serve(self) -> None:
        with contextlib.suppress(ConnectionLost):
            while True:
                self.heard(await self.link.receive())
                self.changed.set()
                self.changed = trio.Event()
        self.ended.set()

    def heard(self, message: Message) -> None:
        self.said.append(message)
        match message:
            case OpenJob():
                self.opened.append(message.job_id)
                self.job_id = message.job_id
                if self.refuses:
                    self.link.send(JobRefused(message.job_id, self.refuses))
                else:
                    self.link.send(JobOpened(message.job_id))
            case SubmitTasks():
                actual = [TaskDeploymentDescriptor.parse(data) for data in message.descriptors]
                attempts = [(each.attempt.vertex, each.attempt.subtask, each.attempt.attempt) for each in actual]
                self.tasks.update(zip(attempts, actual, strict=True))
                for state in ("initializing", "running"):
                    self.link.send(TaskStates(message.job_id, state, tuple(attempts)))
                if self.finishes:
                    self.finish(*attempts)
            case CancelTasks():
                for attempt in message.attempts:
                    self.tasks.pop(attempt, None)
                self.link.send(TaskStates(message.job_id, "canceled", message.attempts))
            case CloseJob():
                self.tasks.clear()
                self.link.send(JobClosed(message.job_id, ""))

    def finish(self, *attempts: Attempt) -> None:
        for attempt in attempts or tuple(self.tasks):
            descriptor = self.tasks.pop(attempt)
            produced = tuple((0,) * partition.subpartitions for partition in descriptor.partitions)
            final = None
            if self.leaves_finals is not None:
                loaded = TaskInformation.parse(bytes(descriptor.task_information))
                file = FinalStates(self.leaves_finals).write(TaskSnapshot(loaded.name, attempt[1], {}))
                final = {"size_bytes": file.size_bytes, "crc32": file.crc32}
            self.link.send(TaskFinished(self.job_id, attempt, produced, {"sink": attempt[1]}, final, (), 7, 5))

    def fail(
        self,
        attempt: Attempt,
        text: str,
        *,
        is_secondary: bool = False,
        missing: str = "",
        is_recoverable: bool = True,
        report: dict[str, Any] | None = None,
    ) -> None:
        del self.tasks[attempt]
        self.link.send(
            TaskFailed(self.job_id, attempt, "ValueError", text, is_secondary, missing, is_recoverable, report or {})
        )

    def store(self, checkpoint_id: int, folder: Path) -> None:
        """Every task takes part in a checkpoint, with nothing to keep."""
        storage = CheckpointStorage(folder)
        for attempt, descriptor in self.tasks.items():
            name = TaskInformation.parse(bytes(descriptor.task_information)).name
            file = storage.write_task(checkpoint_id, TaskSnapshot(name, attempt[1], {}))
            acknowledged = CheckpointAcknowledged(self.job_id, attempt, checkpoint_id, file.size_bytes, file.crc32, {})
            self.link.send(acknowledged)

    def wait(self, *attempts: Attempt) -> None:
        """These tasks have sent their last event, and wait to hear that their ends are safe."""
        self.link.send(TaskStates(self.job_id, "waiting", attempts or tuple(self.tasks)))

    def committing(self) -> list[Attempt]:
        return [attempt for message in self.said if isinstance(message, CommitTasks) for attempt in message.attempts]

    def decline(self, checkpoint_id: int, reason: str) -> None:
        self.link.send(CheckpointDeclined(self.job_id, min(self.tasks), checkpoint_id, reason))

    def triggered(self) -> list[int]:
        actual = []
        for message in self.said:
            if isinstance(message, TriggerCheckpoint):
                barrier = decode_event(message.barrier)
                assert isinstance(barrier, CheckpointBarrier)
                actual.append(barrier.checkpoint_id)
        return actual

    def completed(self) -> list[int]:
        return [message.checkpoint_id for message in self.said if isinstance(message, CheckpointCompleted)]

    def aborted(self) -> list[int]:
        return [message.checkpoint_id for message in self.said if isinstance(message, AbortCheckpoint)]

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await self.changed.wait()


@asynccontextmanager
async def taskmanager(
    manager: JobManager,
    *,
    slots: int = 2,
    name: str = "",
    pid: Any = 1,
    has_processes: bool = False,
    reads: bool = True,
) -> AsyncIterator[ScriptedTaskManager]:
    name = name or f"tm{next(_NUMBERS)}"
    facts = {"slots": slots, "data": f"memory://{name}", "hostname": name, "pid": pid}
    if has_processes:
        facts["slot_addresses"] = [f"memory://{name}.{slot}" for slot in range(slots)]
    link, _ = await dial(manager.address, role=TASKMANAGER, name=name, facts=facts)
    async with trio.open_nursery() as nursery:
        actual = ScriptedTaskManager(name, link)
        nursery.start_soon(link.run)
        if reads:
            nursery.start_soon(actual.serve)
        try:
            yield actual
        finally:
            nursery.cancel_scope.cancel()
            link.close()


class Client:
    """A client, by hand."""

    def __init__(self, link: ControlLink) -> None:
        self.link = link
        self.tokens = itertools.count()

    async def ask(self, what: str, **document: Any) -> dict[str, Any]:
        token = next(self.tokens)
        self.link.send(Ask(token, what, document))
        answer = await self.link.receive()
        if isinstance(answer, AskRefused):
            raise AssertionError(answer.text)
        assert isinstance(answer, Answer)
        assert answer.token == token
        return answer.document


@asynccontextmanager
async def client(manager: JobManager) -> AsyncIterator[Client]:
    link, _ = await dial(manager.address, role=CLIENT, name="test", facts={})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        yield Client(link)
        nursery.cancel_scope.cancel()


def document(env: StreamEnvironment) -> dict[str, Any]:
    return write_job(env.stream_graph())
