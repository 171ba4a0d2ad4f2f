"""A TaskManager from the outside: connect, open jobs, deploy invokables, hear what they say. For benchmarks.

Takes: `host:port` of a TaskManager. Gives: `TaskManagerClient`, and `RemoteJob`s on it.

A job that is driven like this has no scheduler: whoever drives it says what runs where. Its vertices are invokables; it
opens an environment of its own with settings of its own, and the TaskManager reserves slots and memory for it.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, final
from urllib.parse import urlsplit

import trio

from ..config import NetworkConfig
from ..control.build import build_of
from ..control.clock import ClockSample, best_sample
from ..control.codec import Attempt, Plain, check_plain
from ..control.link import CLIENT, HEARTBEAT_TIMEOUT_S, TASKMANAGER, ControlLink, dial
from ..control.messages import (
    AskStatistics,
    CloseJob,
    JobClosed,
    JobOpened,
    JobProgress,
    JobRefused,
    Message,
    OpenJob,
    PartitionConsumable,
    Refused,
    Statistics,
    TaskFailed,
    TaskFinished,
    TaskSaid,
    TaskStates,
    TellTask,
    submissions,
)
from ..control.routing import check_job_id
from ..errors import ConfigError, ConnectionLost, LocalProtocolError, NetstackError, RemoteProtocolError, RequestRefused
from ..ids import ResultPartitionType
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.background import background_tasks
from ..schedule.descriptors.descriptors import (
    ExecutionAttemptId,
    InputGateDescriptor,
    PartitionDescriptor,
    TaskDeploymentDescriptor,
)
from ..schedule.descriptors.information import (
    JobInformation,
    OperatorInformation,
    TaskInformation,
)
from ..schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation, compress, partition_name
from ..schedule.graph.job_graph import OperatorKind
from .code import root_package
from .network_settings import config_document

CLOCK_SAMPLES: Final = 20

EVENTS_AT_MOST: Final = 1 << 16
"""A driver that leaves so many untaken has forgotten the job."""

_ANY: Final = ("0.0.0.0", "::")


@final
@dataclass(frozen=True, slots=True)
class RemotePartition:
    """A partition that a gate reads.

    Attributes:
        address: of the TaskManager that has it (`RemoteJob.data_address`).
        task: the vertex that writes it.
        subtask: which of its subtasks.
        attempt: which of its attempts.
    """

    address: str
    task: str
    subtask: int
    attempt: int = 0


@final
@dataclass(frozen=True, slots=True)
class RemoteGate:
    """What a task reads: the same range of subpartitions of every partition.

    Attributes:
        partitions: of one vertex.
        first: subpartition that it reads of each.
        count: how many, from there.
    """

    partitions: tuple[RemotePartition, ...]
    first: int = 0
    count: int = 1


@final
@dataclass(frozen=True, slots=True)
class RemoteTask:
    """One subtask of a vertex that is an invokable.

    Attributes:
        task: name of the vertex.
        subtask: which of its subtasks, from 0.
        invokable: what it runs, `package.module:attribute`: `async def attribute(task: InvokableTask) -> Any`.
        parameters: plain data for it.
        subpartitions: of its one partition; 0 writes none.
        gates: what it reads.
        type: of its partition.
    """

    task: str
    subtask: int
    invokable: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    subpartitions: int = 0
    gates: tuple[RemoteGate, ...] = ()
    type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED

    def __str__(self) -> str:
        return f"{self.task}-{self.subtask}"


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
_JobMessage: TypeAlias = (
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

    def heard(self, message: _JobMessage) -> None:
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
        vertex = self._vertices.index(task.task)
        before = self._attempts.get((task.task, task.subtask))
        attempt = (vertex, task.subtask, 0 if before is None else before[2] + 1)
        operator = OperatorInformation(task.task, OperatorKind.INVOKABLE, task.invokable, dict(task.parameters))
        partitions: tuple[PartitionDescriptor, ...] = ()
        if task.subpartitions:
            name = partition_name(self.job_id, task.task, task.subtask, attempt[2])
            partitions = (PartitionDescriptor(name, task.subpartitions, task.type, task.task),)
        descriptor = TaskDeploymentDescriptor(
            ExecutionAttemptId(self.job_id, *attempt),
            "",
            information,
            TaskInformation(task.task, operators=(operator,)).pack(),
            partitions=partitions,
            gates=tuple(self._describe_gate(gate) for gate in task.gates),
        )
        self._attempts[task.task, task.subtask] = attempt
        self._starting[attempt] = trio.Event()
        return attempt, descriptor

    def _describe_gate(self, gate: RemoteGate) -> InputGateDescriptor:
        count = len(gate.partitions)
        dataset = gate.partitions[0].task if gate.partitions else ""
        addresses = list(dict.fromkeys(each.address for each in gate.partitions))
        descriptors = ShuffleDescriptors.of(
            self.job_id,
            dataset,
            [TaskManagerLocation(address, address) for address in addresses],
            index=range(count),
            partition=[each.subtask for each in gate.partitions],
            attempt=[each.attempt for each in gate.partitions],
            taskmanager=[addresses.index(each.address) for each in gate.partitions],
        )
        return InputGateDescriptor(
            dataset,
            ResultPartitionType.PIPELINED_BOUNDED,
            count,
            ((0, count, gate.first, gate.first + gate.count),),
            (compress(descriptors.serialised()),),
        )

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


@final
class TaskManagerClient:
    """A control connection; see `open_client`.

    Attributes:
        address: `host:port` as it was dialled.
        facts: what the TaskManager said of itself; see `TaskManager.facts`.
    """

    def __init__(self, url: str, link: ControlLink, facts: Plain) -> None:
        self.address = url.partition("://")[2]
        self._url = url
        self.facts = facts
        self._link = link
        self._jobs: dict[str, RemoteJob] = {}
        self._tokens = itertools.count(1)
        self._statistics: dict[int, trio.MemorySendChannel[Plain]] = {}
        self._error: NetstackError | None = None

    async def measure_clock(self, samples: int = CLOCK_SAMPLES) -> ClockSample:
        """The TaskManager's CLOCK_MONOTONIC against ours; best while nothing else is on the wire.

        Raises:
            ConnectionLost: the TaskManager is gone.
            ConfigError: not even one sample.

        Cancellation: nothing is left behind.
        """
        if samples < 1:
            raise ConfigError(f"samples={samples}; the least is 1")
        self._check()
        exchanges = []
        for _ in range(samples):
            with trio.move_on_after(self._link.heartbeat_timeout_s) as silence:
                exchanges.append(await self._link.ping())
            self._check()
            if silence.cancelled_caught:
                raise ConnectionLost(f"{self.address} did not answer within {self._link.heartbeat_timeout_s:g} s")
        return best_sample(exchanges)

    async def open_job(
        self,
        job_id: str,
        *,
        name: str,
        slots: int,
        network: NetworkConfig | None,
        slot_timeout_s: float = 2 * HEARTBEAT_TIMEOUT_S,
    ) -> RemoteJob:
        """Reserves slots and memory and opens a network for a job.

        Args:
            job_id: 16 hex digits, the same on every TaskManager of the job.
            name: for people.
            slots: one holds a subtask of every vertex.
            network: settings of the job's own environment, whose `memory_bytes` is reserved; None uses the one that
                jobs share.
            slot_timeout_s: how long to wait for what other jobs hold; a job whose driver died holds it until the
                TaskManager has noticed.

        Raises:
            RequestRefused: not enough slots or memory, or settings that cannot work there.
            ConnectionLost: the TaskManager is gone.

        Cancellation: the job is closed.
        """
        self._check()
        if check_job_id(job_id) in self._jobs:
            raise RequestRefused(
                f"{self.address}: job {job_id} is open over this connection already; choose another id"
            )
        data = self._data_address()
        job = RemoteJob(self._link, job_id, self.address, data)
        document = None if network is None else config_document(network)
        self._link.send(OpenJob(job_id, name, slots, slot_timeout_s, data, document, b""))
        self._jobs[job_id] = job
        try:
            await job.opened()
        except (trio.Cancelled, KeyboardInterrupt):
            self._link.send(CloseJob(job_id))
            raise
        return job

    async def statistics(self) -> Plain:
        """What the TaskManager says of itself and its jobs; see `TaskManager.statistics`.

        Raises:
            ConnectionLost: the TaskManager is gone.

        Cancellation: the answer is ignored when it comes.
        """
        self._check()
        token = next(self._tokens)
        send, receive = trio.open_memory_channel[Plain](1)
        self._statistics[token] = send
        self._link.send(AskStatistics(token))
        try:
            return await receive.receive()
        except trio.EndOfChannel:
            self._check()
            raise ConnectionLost(f"{self.address}: the connection is closed") from None
        finally:
            self._statistics.pop(token, None)

    async def listen(self) -> None:
        """Takes what the TaskManager says, until it is gone. Called by `open_client`."""
        try:
            while True:
                self._heard(await self._link.receive())
        except (ConnectionLost, RemoteProtocolError, RequestRefused) as error:
            self._error = ConnectionLost(f"{self.address}: {error}")
            self._link.give_up()
            for job in self._jobs.values():
                job.gone(self._error)
            for waiting in self._statistics.values():
                waiting.close()

    def _heard(self, message: Message) -> None:
        if isinstance(message, Refused):
            raise RequestRefused(message.text)
        if isinstance(message, Statistics):
            waiting = self._statistics.pop(message.token, None)
            if waiting is not None:
                waiting.send_nowait(message.document)
        elif isinstance(message, _JobMessage):
            job = self._jobs.get(message.job_id)
            if job is not None:
                job.heard(message)
                if isinstance(message, JobClosed | JobRefused):
                    del self._jobs[message.job_id]

    def _data_address(self) -> str:
        """Where its data port is, as seen from where it was reached."""
        if not self.facts.get("control"):  # it has one port for everything
            return self._url
        data = urlsplit(str(self.facts.get("data") or ""))
        if not data.port:
            return str(self.facts.get("data"))
        host = self.address.rpartition(":")[0] if data.hostname in _ANY else data.netloc.rpartition(":")[0]
        return f"tcp://{host}:{data.port}"

    def _check(self) -> None:
        if self._error is not None:
            raise ConnectionLost(str(self._error))


@asynccontextmanager
async def open_client(
    address: str,
    *,
    secret: Secret | None = None,
    name: str = "",
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    connect_timeout_s: float = 10.0,
) -> AsyncIterator[TaskManagerClient]:
    """Connects to a TaskManager's control or only port.

    Args:
        address: `host:port`, or a URL.
        secret: shared with the TaskManager.
        name: of this driver, for the TaskManager's log; the host's name if not given.
        heartbeat_timeout_s: a TaskManager that is silent for so long is lost; less if it is less patient.
        connect_timeout_s: dialling, proof and greetings together.

    Raises:
        ConnectionLost: nobody answers.
        AuthenticationFailed: the secrets differ, or the TaskManager has none.
        RequestRefused: it is another release, or no TaskManager.
        RemoteProtocolError: it is no control port, or one that wants a secret.

    Cancellation, and the end of the block: the connection ends, and with it every job that was opened over it.
    """
    url = address if "://" in address else f"tcp://{address}"
    link, greeting = await dial(
        url,
        role=CLIENT,
        name=name or socket.gethostname(),
        facts={},
        prove=None if secret is None else partial(prove_dialler, secret=secret),
        heartbeat_timeout_s=heartbeat_timeout_s,
        connect_timeout_s=connect_timeout_s,
    )
    try:
        if greeting.role != TASKMANAGER:
            raise RequestRefused(f"{url.partition('://')[2]} is no TaskManager but a {greeting.role}")
        async with background_tasks() as nursery:
            client = TaskManagerClient(url, link, greeting.facts)
            nursery.start_soon(link.run)
            nursery.start_soon(client.listen)
            yield client
    finally:
        link.close()
