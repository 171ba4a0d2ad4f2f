"""One job on one TaskManager: its tasks by attempt, its network and its code, released as a whole.

Takes: descriptors and commands of the JobManager. Gives: reports of the tasks.

Rules:
- Attempts identify everything. An attempt runs once; a cancellation may arrive before the attempt, and applies to it.
- A failed task does not affect the others; the JobManager decides what to do.
- The JobManager, the loss of its link, or the end of the TaskManager closes a job: its tasks are cancelled, its
  partitions released, its memory returned.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, final

import trio

from ...base.config import NetworkConfig
from ...base.errors import ErrorCode, NetstackError, RemoteProtocolError
from ...base.events import CheckpointBarrier, decode_event
from ...base.text.safe_text import safe_text
from ...network.connection.fair_share import fair_share
from ...network.connection.statistics import NetworkStatistics
from ...network.environment import NetworkEnvironment
from ...schedule.descriptors.descriptors import TaskDeploymentDescriptor
from ...schedule.descriptors.shuffle import ShuffleDescriptors, is_of_job
from ..control.codec import Attempt, Message, Plain
from ..control.messages import (
    AbortCheckpoint,
    CancelTasks,
    CheckpointCompleted,
    CommitTasks,
    KeepDataset,
    OpenJob,
    OperatorEvent,
    ReleasePartitions,
    SubmitTasks,
    TriggerCheckpoint,
    UpdateGate,
)
from ..control.reports import JobOpened, JobProgress
from ..task.latency import merged_rows
from ..task.operators import AT_THE_END
from ..task.queued import merged_queued
from ..task.reports import AttemptReports, RunnableTask
from .blob_reader import BlobReader, Fetch
from .code import AllowList, ShippedCode
from .datasets import KeptDatasets
from .environments import Environments
from .memory import TaskMemory
from .slot_settings import counted_bytes
from .stacks import stack_row
from .task_factory import TaskFactory
from .tasks import OnMade, StateReports, TaskAttempt

LOGGER: Final = logging.getLogger("netstack.taskmanager")

TOMBSTONES: Final = 1 << 17
"""Maximum number of remembered attempts that have ended, and of cancellations of attempts that have not arrived."""

PROGRESS_S: Final = 1.0
_PROGRESS_COST: Final = 0.02  # maximum share of the time

EARLY_BYTES: Final = 64 << 20
"""Limit of descriptors that arrive while a job waits for memory."""

_ENDED_SHOWN: Final = 256
_NAME_CHARACTERS: Final = 200


@final
class JobInProcess:
    """One job at a TaskManager, from its wait for memory to its end.

    Args:
        environments: network environments of the TaskManager.
        host: name of the TaskManager for error texts.
        shipped: stores packages that the job ships; None: shipping is not allowed.
        blobs: blob cache of the TaskManager.
        fetch: fetches a blob over the link of the job.
        on_made: called with each created task, or None.

    Attributes:
        network: settings of the job's own network environment; None: the shared one.
        tasks: attempts that have not ended.
        began_s: time of its opening on trio's clock.
        environment: its network environment; None before it is open.
    """

    def __init__(
        self,
        opening: OpenJob,
        network: NetworkConfig | None,
        *,
        memory: TaskMemory,
        environments: Environments,
        host: str,
        allowed: AllowList,
        shipped: ShippedCode | None,
        blobs: BlobReader,
        datasets: KeptDatasets,
        fetch: Fetch,
        send: Callable[[Message], None],
        source: str,
        on_made: OnMade | None = None,
    ) -> None:
        self.job_id = job_id = opening.job_id
        self.name = name = safe_text(opening.name, _NAME_CHARACTERS)
        self.on_made = on_made
        self.source = source
        self.network = network
        self._memory = memory
        self._environments = environments
        self._memory_timeout_s = opening.memory_timeout_s
        self.data_address = opening.data_address
        self.tasks: dict[Attempt, TaskAttempt] = {}
        self.began_s = trio.current_time()
        self.reason = ""
        """Why the job was closed."""
        self.refusal = ""
        """Why the job was rejected or stopped; empty if it was only closed."""
        self.environment: NetworkEnvironment | None = None
        self.reports = StateReports(job_id, send)
        self._factory = TaskFactory(job_id, name, host=host, allowed=allowed, shipped=shipped, blobs=blobs, fetch=fetch)
        self._shipped = shipped
        self._blobs = blobs
        self._datasets = datasets
        self._send = send
        self._ended: OrderedDict[Attempt, str] = OrderedDict()
        self._canceled_early: OrderedDict[Attempt, None] = OrderedDict()
        self._partitions: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._early: list[TaskAttempt] = []  # arrived before there was memory
        self._progress: Plain = {}  # as last reported
        self._counted: dict[Attempt, tuple[int, int]] = {}  # records in and out of the attempts in it
        self._early_bytes = 0
        self._closing = trio.Event()
        self._waiting = trio.CancelScope()

    def send(self, message: Message) -> None:
        """Sends a message to the JobManager, after all earlier state reports."""
        self.reports.flush()
        self._send(message)

    def log(self, text: str) -> None:
        """Logs a warning about the job."""
        LOGGER.warning("job %s (%s): %s", self.job_id, self.name, text)

    async def live(self) -> None:
        """Waits for memory, then holds all resources of the job until it is closed.

        Raises:
            RequestRefused: there is not enough memory.
            NetstackError: the settings do not work here.

        Cancellation: closes the job.
        """
        own_bytes = 0 if self.network is None else counted_bytes(self.network)
        has_memory = False
        with self._waiting:
            await self._memory.acquire(own_bytes, timeout_s=self._memory_timeout_s)
            has_memory = True
        if has_memory:
            try:
                await self._hold()
            finally:
                self._memory.release(own_bytes)

    async def _hold(self) -> None:
        environments, timeout_s = self._environments, self._memory_timeout_s
        try:
            if self.network is not None:
                async with environments.own(self.job_id, self.network, self.data_address) as environment:
                    await self._work(environment)
                return
            shared: NetworkEnvironment | None = None
            with trio.CancelScope() as self._waiting:
                if self._closing.is_set():
                    self._waiting.cancel()
                shared = await environments.join(self.data_address, timeout_s=timeout_s)
            if shared is not None:
                try:
                    await self._work(shared)
                finally:
                    environments.leave()
        finally:
            self._closing.set()
            self._blobs.job_left(self.job_id)
            if self._shipped is not None:
                self._shipped.job_left(self.job_id)

    async def _work(self, environment: NetworkEnvironment) -> None:
        try:
            self.environment = environment
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self.reports.run)
                self._nursery.start_soon(self._report_progress)
                self._send(JobOpened(self.job_id))
                early, self._early = self._early, []
                for task in early:
                    self._nursery.start_soon(self._live, task)
                await self._closing.wait()
                self._nursery.cancel_scope.cancel()
        finally:
            self.environment = None
            for name in self._partitions:
                environment.release_partition(name)

    def close(self, reason: str) -> None:
        """Closes the job, also while it waits for memory; an empty reason means a normal end. Idempotent."""
        if not self._closing.is_set():
            self.reason = reason
            self._closing.set()
            self._waiting.cancel()

    def refuse(self, why: str) -> None:
        """Closes the job because it was rejected or cannot continue; the first reason counts."""
        self.refusal = self.refusal or why
        self.close(why)

    @property
    def slots(self) -> int:
        """The number of slots that its tasks use."""
        return len({task.slot for task in self.tasks.values()})

    def task_states(self) -> dict[str, str]:
        """Returns the states of current attempts and final states of recent ones, by display name."""
        ended = [(attempt, state) for attempt, state in self._ended.items()][-_ENDED_SHOWN:]
        states = {self.shown_name(attempt): state for attempt, state in ended}
        return states | {self.shown_name(attempt): task.state for attempt, task in self.tasks.items()}

    def stacks(self, slot: int | None) -> list[Plain]:
        """Returns the stacks of all created tasks (`stacks.stack_row`)."""
        return [
            stack_row(attempt, self._factory.vertices.get(attempt[0], ""), slot, task.stack(), is_blocked=False)
            for attempt, task in self.tasks.items()
        ]

    def statistics_of(self, environment: NetworkEnvironment) -> NetworkStatistics:
        """Returns the network statistics of the job: of the shared network only its partitions and gates."""
        statistics = environment.statistics()
        if self.network is not None:
            return statistics
        return dataclasses.replace(
            statistics,
            partitions=tuple(each for each in statistics.partitions if is_of_job(each.partition_id, self.job_id)),
            gates=tuple(each for each in statistics.gates if is_of_job(each.name, self.job_id)),
        )

    def shown_name(self, attempt: Attempt) -> str:
        """Returns the display name of an attempt: vertex, subtask, and its number if it is not the first."""
        vertex, subtask, number = attempt
        name = f"{self._factory.vertices.get(vertex, vertex)}-{subtask}"
        return f"{name}.{number}" if number else name

    async def make_task(self, descriptor: TaskDeploymentDescriptor, reports: AttemptReports) -> RunnableTask:
        """Creates the task of a descriptor (`TaskFactory.make`)."""
        assert self.environment is not None, "tasks start after the job is open"
        return await self._factory.make(descriptor, self.environment, reports)

    def carry_out(self, message: Message) -> None:
        """Carries out a command of the JobManager.

        Raises:
            RemoteProtocolError: the message is not a command, or is invalid.
        """
        match message:
            case SubmitTasks():
                self._submit(message.descriptors)
            case CancelTasks():
                self._cancel(message.attempts)
            case OperatorEvent():
                task = self.tasks.get(message.attempt)
                if task is not None:
                    task.take_event(message.event)
            case TriggerCheckpoint():
                self._trigger_checkpoint(message)
            case AbortCheckpoint():
                for task in self._alive(message.attempts):
                    if task.task is not None:
                        task.task.abort_checkpoint(message.checkpoint_id)
            case CommitTasks():
                for task in self._alive(message.attempts):
                    if task.task is not None:
                        task.task.checkpoint_completed(AT_THE_END)
            case CheckpointCompleted():
                for attempt in self.tasks.values():
                    if attempt.task is not None:
                        attempt.task.checkpoint_completed(message.checkpoint_id)
            case UpdateGate():
                descriptors = ShuffleDescriptors.decompress(message.descriptors)
                for task in self._alive(message.attempts):
                    task.update_gate(message.gate, descriptors)
            case KeepDataset():
                self._keep(message)
            case ReleasePartitions():
                for name in message.names:
                    self._partitions.discard(name)
                    if self.environment is not None:
                        self.environment.release_partition(name)
            case _:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME, f"{type(message).__name__} is not a command for a TaskManager"
                )

    def _keep(self, message: KeepDataset) -> None:
        """Transfers partitions from the job to the kept datasets."""
        if self.environment is None:
            return
        try:
            self._datasets.keep(message.key, message.names, self.environment)
        except NetstackError as error:
            self.refuse(str(error))
            return
        self._partitions.difference_update(message.names)

    def _submit(self, descriptors: Sequence[bytes]) -> None:
        """Adds attempts without waiting, so that later commands find them."""
        if self._closing.is_set():
            return
        if self._nursery is None:
            self._early_bytes += sum(map(len, descriptors))
            if self._early_bytes > EARLY_BYTES:
                self.refuse(
                    f"job {self.name!r} is not open yet, but {self._early_bytes} bytes of tasks have arrived; submit"
                    " them after `JobOpened`"
                )
                return
        for packed in descriptors:
            try:
                descriptor = TaskDeploymentDescriptor.parse(packed)
            except RemoteProtocolError as error:  # its attempt is unknown
                self.refuse(f"a task descriptor is malformed: {error}")
                return
            self._take(TaskAttempt(descriptor, self))
            self._partitions.update(partition.name for partition in descriptor.partitions)

    def _take(self, task: TaskAttempt) -> None:
        attempt = task.attempt
        if attempt in self.tasks or attempt in self._ended:
            return
        if attempt in self._canceled_early:
            del self._canceled_early[attempt]
            self._remember(attempt, "canceled")
            self.reports.add("canceled", attempt)
            return
        self.tasks[attempt] = task
        if self._nursery is None:
            self._early.append(task)
        else:
            self._nursery.start_soon(self._live, task)

    async def _live(self, task: TaskAttempt) -> None:
        try:
            await task.live()
        finally:
            del self.tasks[task.attempt]
            self._remember(task.attempt, task.state)

    def _remember(self, attempt: Attempt, state: str) -> None:
        self._ended[attempt] = state
        if len(self._ended) > TOMBSTONES:
            self._ended.popitem(last=False)

    def _cancel(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            task = self.tasks.get(attempt)
            if task is not None:
                task.cancel()
            elif attempt not in self._ended:
                self._canceled_early[attempt] = None
                if len(self._canceled_early) > TOMBSTONES:
                    self._canceled_early.popitem(last=False)

    def _alive(self, attempts: Iterable[Attempt]) -> list[TaskAttempt]:
        return [self.tasks[attempt] for attempt in attempts if attempt in self.tasks]

    def _trigger_checkpoint(self, message: TriggerCheckpoint) -> None:
        try:
            barrier = decode_event(message.barrier)
        except NetstackError as error:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"a barrier is malformed: {error}") from error
        if not isinstance(barrier, CheckpointBarrier):
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{type(barrier).__name__} is not a barrier")
        for task in self._alive(message.attempts):
            if task.task is None:
                task.declined(barrier.checkpoint_id, f"attempt {task.attempt} is still being deployed")
            else:
                task.task.trigger_checkpoint(barrier, is_savepoint=message.is_savepoint, stops=message.stops)

    def take_out_of_progress(self, attempt: Attempt) -> None:
        """Reports progress without a finished attempt, so that the counts in its `TaskFinished` do not count twice."""
        if attempt in self._counted:
            came, went = self._counted.pop(attempt)
            row = dict(self._progress[str(attempt[0])])
            row |= {"records_in": row["records_in"] - came, "records_out": row["records_out"] - went}
            self._progress = {**self._progress, str(attempt[0]): row | {"tasks": row["tasks"] - 1}}
            self.send(JobProgress(self.job_id, self._progress))

    async def _report_progress(self) -> None:
        """Sends summed progress once a second while it changes; less often if computing it is expensive."""
        clock = fair_share().clock
        period_s = PROGRESS_S
        while True:
            await trio.sleep(period_s)
            began_s = clock()
            vertices: Plain = {}
            self._counted.clear()
            rows: dict[str, list[Mapping[str, Any]]] = {}
            queues: dict[str, list[Plain]] = {}
            for attempt in self.tasks.values():
                statistics = attempt.statistics()
                if statistics is not None:
                    row = vertices.setdefault(str(attempt.attempt[0]), {"records_in": 0, "records_out": 0, "tasks": 0})
                    row["records_in"] += statistics.records_in
                    row["records_out"] += statistics.records_out
                    row["tasks"] += 1
                    self._counted[attempt.attempt] = statistics.records_in, statistics.records_out
                    if statistics.latencies:
                        rows.setdefault(str(attempt.attempt[0]), []).append(statistics.latencies)
                    if queued := attempt.queued():
                        queues.setdefault(str(attempt.attempt[0]), []).append(queued.plain())
            for vertex, parts in rows.items():
                vertices[vertex]["latencies"] = merged_rows(parts)
            for vertex, queues_of in queues.items():
                vertices[vertex]["queued"] = merged_queued(queues_of)
            if vertices != self._progress:
                self._progress = vertices
                self.send(JobProgress(self.job_id, vertices))
            period_s = max(PROGRESS_S, (clock() - began_s) / _PROGRESS_COST)
