"""A JobManager that adopts a TaskManager and does what a test says: jobs, invokables, what they say, how they end."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeAlias, final

import trio

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConnectionLost, NetstackError, RemoteProtocolError, RequestRefused
from netstack.base.ids import ResultPartitionType
from netstack.cluster.control.build import build_of
from netstack.cluster.control.codec import Attempt, Message, Plain, check_plain
from netstack.cluster.control.link import JOBMANAGER, ControlLink, dial
from netstack.cluster.control.messages import CloseJob, OpenJob, OperatorEvent, Refused, submissions
from netstack.cluster.control.reports import JobClosed, JobOpened, JobRefused, TaskFailed, TaskFinished, TaskStates
from netstack.cluster.task.invokable import InvokableTask
from netstack.cluster.taskmanager.code import root_package
from netstack.network.connection.authentication import Secret, prove_dialler
from netstack.network.waiting.threads import background_tasks
from netstack.schedule.descriptors.descriptors import (
    ExecutionAttemptId,
    InputGateDescriptor,
    PartitionDescriptor,
    TaskDeploymentDescriptor,
)
from netstack.schedule.descriptors.information import JobInformation, OperatorInformation, TaskInformation
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation, compress, partition_name
from netstack.schedule.graph.job_graph import OperatorKind


@final
@dataclass(frozen=True, slots=True)
class RemotePartition:
    """A partition that a gate reads."""

    address: str
    task: str
    subtask: int
    attempt: int = 0


@final
@dataclass(frozen=True, slots=True)
class RemoteGate:
    """What a task reads: the same range of subpartitions of every partition."""

    partitions: tuple[RemotePartition, ...]
    first: int = 0
    count: int = 1

    def descriptor(self, job_id: str) -> InputGateDescriptor:
        """What a task of the job is told of it."""
        count = len(self.partitions)
        dataset = self.partitions[0].task if self.partitions else ""
        addresses = list(dict.fromkeys(each.address for each in self.partitions))
        descriptors = ShuffleDescriptors.of(
            job_id,
            dataset,
            [TaskManagerLocation(address, address) for address in addresses],
            index=range(count),
            partition=[each.subtask for each in self.partitions],
            attempt=[each.attempt for each in self.partitions],
            taskmanager=[addresses.index(each.address) for each in self.partitions],
        )
        return InputGateDescriptor(
            dataset,
            ResultPartitionType.PIPELINED_BOUNDED,
            count,
            ((0, count, self.first, self.first + self.count),),
            (compress(descriptors.serialised()),),
        )


@final
@dataclass(frozen=True, slots=True)
class RemoteTask:
    """One subtask of a vertex that is an invokable."""

    task: str
    subtask: int
    invokable: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    subpartitions: int = 0
    gates: tuple[RemoteGate, ...] = ()
    type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED

    def __str__(self) -> str:
        return f"{self.task}-{self.subtask}"

    def descriptor(self, job_id: str, attempt: Attempt, information: bytes) -> TaskDeploymentDescriptor:
        """What its TaskManager is sent."""
        operator = OperatorInformation(self.task, OperatorKind.INVOKABLE, self.invokable, dict(self.parameters))
        partitions: tuple[PartitionDescriptor, ...] = ()
        if self.subpartitions:
            name = partition_name(job_id, self.task, self.subtask, attempt[2])
            partitions = (PartitionDescriptor(name, self.subpartitions, self.type, self.task),)
        return TaskDeploymentDescriptor(
            ExecutionAttemptId(job_id, *attempt),
            f"tm/{self.subtask}",
            information,
            TaskInformation(self.task, operators=(operator,)).pack(),
            partitions=partitions,
            gates=tuple(gate.descriptor(job_id) for gate in self.gates),
        )


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


@final
class RemoteJob:
    """A job on one TaskManager."""

    def __init__(self, link: ControlLink, job_id: str, host: str, data_address: str) -> None:
        self.job_id = job_id
        self.host = host
        self.data_address = data_address
        self._link = link
        self._opened = trio.Event()
        self._events, self._pending = trio.open_memory_channel[JobEvent](math.inf)
        self._vertices: list[str] = []
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._starting: dict[Attempt, trio.Event] = {}
        self._refused: dict[Attempt, str] = {}
        self._error: NetstackError | None = None
        self._over = trio.Event()

    async def deploy(self, tasks: Sequence[RemoteTask]) -> None:
        """Creates and starts tasks of this TaskManager; returns when they run."""
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
        """Says something to a task, for its `receive`; one that has ended hears nothing."""
        attempt = self._attempts.get((task, subtask))
        checked = check_plain(message)
        if attempt is not None:
            self._link.send(OperatorEvent(self.job_id, attempt, checked))

    async def next_event(self) -> JobEvent:
        """What a task said, or how it ended, in order."""
        try:
            return await self._pending.receive()
        except trio.EndOfChannel:
            raise self._why() from None

    async def close(self) -> None:
        """Cancels what runs there and waits until everything of the job is released. Idempotent."""
        if not self._over.is_set():
            self._link.send(CloseJob(self.job_id))
        await self._over.wait()

    # For the client.

    async def opened(self) -> None:
        """Waits for the TaskManager's answer to `OpenJob`; raises as `TaskManagerClient.open_job`."""
        await self._opened.wait()
        self._check()

    def heard(self, message: Message) -> None:
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
            case OperatorEvent():
                self._take(Said(*self._place(message.attempt), message.event))
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
        if self._error is None:
            self._events.send_nowait(event)

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


@final
class Adopter:
    """The JobManager's end of an adoption."""

    def __init__(self, url: str, link: ControlLink, facts: Plain) -> None:
        self.address = url.partition("://")[2]
        self.facts = facts
        self.link = link
        self._jobs: dict[str, RemoteJob] = {}
        self._error: ConnectionLost | None = None

    async def open_job(
        self, job_id: str, *, name: str, network: NetworkConfig | Plain | None, memory_timeout_s: float = 5.0
    ) -> RemoteJob:
        if self._error is not None:
            raise ConnectionLost(str(self._error))
        data = str((self.facts["slot_addresses"] or [self.facts["data"]])[0])  # where the first slot is, at least
        job = RemoteJob(self.link, job_id, self.address, data)
        document = asdict(network) if isinstance(network, NetworkConfig) else network
        self.link.send(OpenJob(job_id, name, memory_timeout_s, data, document, b""))
        self._jobs.setdefault(job_id, job)
        others, self._jobs[job_id] = self._jobs[job_id], job
        try:
            await job.opened()
        except (trio.Cancelled, KeyboardInterrupt):
            self.link.send(CloseJob(job_id))
            raise
        except RequestRefused:
            if others is not job:  # of this id there was one, which goes on
                self._jobs[job_id] = others
            raise
        return job

    async def listen(self) -> None:
        try:
            while True:
                message = await self.link.receive()
                if isinstance(message, Refused):
                    raise RequestRefused(message.text)
                job = self._jobs.get(getattr(message, "job_id", ""))
                if job is not None:
                    job.heard(message)
                    if isinstance(message, JobClosed | JobRefused):
                        self._jobs.pop(message.job_id, None)
        except (ConnectionLost, RemoteProtocolError, RequestRefused) as error:
            self.link.fail_pings()
            self._error = ConnectionLost(f"{self.address}: {error}")
            for job in self._jobs.values():
                job.gone(self._error)


async def asleep(task: InvokableTask) -> None:
    """An invokable that never ends."""
    await trio.sleep_forever()


async def echo(task: InvokableTask) -> list[Any]:
    """An invokable that says what it is told, until that is to stop; returns where it ran, and the last it was told."""
    task.send({"here": task.environment.address})
    while "stop" not in (event := await task.receive()):
        task.send({"heard": event})
    return [task.environment.address, event["stop"]]


@asynccontextmanager
async def adopt(
    address: str,
    *,
    secret: Secret | None = None,
    name: str = "a jobmanager",
    heartbeat_timeout_s: float = 10.0,
    connect_timeout_s: float = 10.0,
) -> AsyncIterator[Adopter]:
    """Has a TaskManager work for the test while the block runs."""
    url = address if "://" in address else f"tcp://{address}"
    link, greeting = await dial(
        url,
        role=JOBMANAGER,
        name=name,
        facts={},
        prove=None if secret is None else partial(prove_dialler, secret=secret),
        heartbeat_timeout_s=heartbeat_timeout_s,
        connect_timeout_s=connect_timeout_s,
    )
    try:
        async with background_tasks() as nursery:
            adopter = Adopter(url, link, greeting.facts)
            nursery.start_soon(link.run)
            nursery.start_soon(adopter.listen)
            yield adopter
    finally:
        link.close()
