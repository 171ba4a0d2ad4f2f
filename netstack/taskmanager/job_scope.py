"""One job on one TaskManager: its tasks by attempt, its network, its code; released as a whole.

Takes: descriptors and commands of whoever drives the job. Gives: what the tasks say and how they end.

Rules:
- Everything is keyed by the attempt. An attempt is carried out once; a cancel may come before it, and holds.
- A task that fails ends nobody else: what that means is for the driver to decide, who knows what the others said.
- A scope ends when it is closed, whoever asks for that: the driver, the end of its link, the TaskManager. Then its
  tasks are cancelled, its partitions released, its memory and slots given back.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, final

import trio

from ..checkpoint.storage import CheckpointStorage
from ..config import NetworkConfig
from ..control.codec import Attempt, Plain
from ..control.messages import (
    AbortCheckpoint,
    CancelTasks,
    CheckpointCompleted,
    JobOpened,
    JobProgress,
    Message,
    ReleasePartitions,
    SubmitTasks,
    TellTask,
    TriggerCheckpoint,
    UpdateGate,
)
from ..errors import CheckpointError, ErrorCode, NetstackError, RemoteProtocolError
from ..events import CheckpointBarrier, decode_event
from ..runtime.network_environment import NetworkEnvironment
from ..runtime.statistics import NetworkStatistics
from ..runtime.threads import in_thread
from ..runtime.turns import turns
from ..schedule.descriptors.descriptors import BlobKey, MaybeOffloaded, TaskDeploymentDescriptor
from ..schedule.descriptors.information import JobInformation, TaskInformation
from ..schedule.descriptors.shuffle import ShuffleDescriptors
from ..shown import shown
from ..task.chain_task import ChainTask
from ..task.invokable import InvokableTask
from ..task.recovery import RestoredCheckpoint
from ..task.reports import RunnableTask
from .blob_reader import BlobReader, Fetch
from .code import AllowList, ShippedCode, check_builds, root_package
from .environments import Environments
from .slots import TaskSlotTable
from .state_reports import StateReports
from .tasks import TaskAttempt

LOGGER: Final = logging.getLogger("netstack.taskmanager")


TOMBSTONES: Final = 1 << 17
"""Attempts of a job that are remembered after their end, or before they came."""

PROGRESS_S: Final = 1.0
_PROGRESS_COST: Final = 0.02  # of the time, at most

EARLY_BYTES: Final = 64 << 20
"""Of descriptors that come while a job waits for slots or memory."""

_ENDED_SHOWN: Final = 256


@final
class JobScope:
    """One job, from its wait for slots to its end.

    Attributes:
        job_id: unique.
        name: for people.
        slots: held; 0 where the driver keeps account.
        network: settings of an environment of its own; None uses the shared one.
        tasks: attempts that have not ended.
        began_s: trio's time of its opening.
        reports: gathers states.
        environment: its network; None before it is open.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        slots: int,
        network: NetworkConfig | None,
        data_address: str,
        *,
        host: str,
        allowed: AllowList,
        shipped: ShippedCode | None,
        blobs: BlobReader,
        fetch: Fetch,
        send: Callable[[Message], None],
    ) -> None:
        """Nothing is reserved yet.

        Args:
            job_id: see above.
            name: see above.
            slots: see above.
            network: see above.
            data_address: what channels of other TaskManagers name.
            host: the TaskManager, for errors.
            allowed: what may be run.
            shipped: takes packages that the job brings along; None where that is not allowed.
            blobs: of the TaskManager.
            fetch: brings a blob over the link of the job.
            send: to the driver.
        """
        self.job_id = job_id
        self.name = name
        self.slots = slots
        self.network = network
        self.data_address = data_address
        self.tasks: dict[Attempt, TaskAttempt] = {}
        self.began_s = trio.current_time()
        self.reason = ""
        """Why it was closed."""
        self.refusal = ""
        """Why it cannot be, or cannot go on; empty for one that was merely closed."""
        self.environment: NetworkEnvironment | None = None
        self.reports = StateReports(job_id, send)
        self._host = host
        self._allowed = allowed
        self._shipped = shipped
        self._blobs = blobs
        self._fetch = fetch
        self._send = send
        self._ended: OrderedDict[Attempt, str] = OrderedDict()
        self._canceled_early: OrderedDict[Attempt, None] = OrderedDict()
        self._partitions: set[str] = set()
        self._vertices: dict[int, str] = {}
        self._functions: dict[str, Any] = {}
        self._loading = trio.Lock()
        self._parsed_jobs: dict[bytes, JobInformation] = {}
        self._parsed_tasks: dict[bytes, TaskInformation] = {}
        self._storage: CheckpointStorage | None = None
        self._checkpoints: dict[int, RestoredCheckpoint] = {}
        self._restoring = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._early: list[TaskAttempt] = []  # came before there were slots and memory
        self._early_bytes = 0
        self._closing = trio.Event()
        self._waiting = trio.CancelScope()

    def send(self, message: Message) -> None:
        """Tells the driver something, after the states that came before it."""
        self.reports.flush()
        self._send(message)

    def log(self, text: str) -> None:
        """A line for those who run the TaskManager."""
        LOGGER.warning("job %s (%s): %s", self.job_id, self.name, text)

    async def live(self, pool: TaskSlotTable, environments: Environments, *, slot_timeout_s: float) -> None:
        """Waits for slots and memory, then holds everything of the job until it is closed.

        Args:
            pool: of the TaskManager.
            environments: of the TaskManager.
            slot_timeout_s: how long to wait for what others hold.

        Raises:
            RequestRefused: there is not enough.
            NetstackError: the settings do not work here.

        Cancellation: closes the job.
        """
        own_bytes = 0 if self.network is None else self.network.memory_bytes
        has_slots = False
        with self._waiting:
            await pool.acquire(self.slots, own_bytes, timeout_s=slot_timeout_s)
            has_slots = True
        if has_slots:
            try:
                await self._hold(environments, slot_timeout_s)
            finally:
                pool.release(self.slots, own_bytes)

    async def _hold(self, environments: Environments, timeout_s: float) -> None:
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
                self._nursery.start_soon(self._tell_progress)
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
        """Ends it, also while it waits for slots; idempotent. An empty reason is a job that is over."""
        if not self._closing.is_set():
            self.reason = reason
            self._closing.set()
            self._waiting.cancel()

    def refuse(self, why: str) -> None:
        """Ends it because it cannot be, or cannot go on; the first reason counts."""
        self.refusal = self.refusal or why
        self.close(why)

    def task_states(self) -> dict[str, str]:
        """How each attempt is that is here, and how those ended that were here last, by vertex, subtask and attempt."""
        ended = [(attempt, state) for attempt, state in self._ended.items()][-_ENDED_SHOWN:]
        states = {self._shown_name(attempt): state for attempt, state in ended}
        return states | {self._shown_name(attempt): task.state for attempt, task in self.tasks.items()}

    def statistics_of(self, environment: NetworkEnvironment) -> NetworkStatistics:
        """The job's part of its network: all of one of its own, its partitions and gates of the shared one."""
        found = environment.statistics()
        if self.network is not None:
            return found
        prefix = f"{self.job_id}/"
        return dataclasses.replace(
            found,
            partitions=tuple(each for each in found.partitions if each.partition_id.startswith(prefix)),
            gates=tuple(each for each in found.gates if each.name.startswith(prefix)),
        )

    def _shown_name(self, attempt: Attempt) -> str:
        vertex, subtask, number = attempt
        name = f"{self._vertices.get(vertex, vertex)}-{subtask}"
        return f"{name}.{number}" if number else name

    # Commands.

    def carry_out(self, message: Message) -> None:
        """Does what the driver wants of the job.

        Raises:
            RemoteProtocolError: it is no command, or says what cannot be.
        """
        match message:
            case SubmitTasks():
                self._submit(message.descriptors)
            case CancelTasks():
                self._cancel(message.attempts)
            case TellTask():
                task = self.tasks.get(message.attempt)
                if task is not None:
                    task.tell(message.message)
            case TriggerCheckpoint():
                self._trigger(message)
            case AbortCheckpoint():
                for task in self._alive(message.attempts):
                    if task.task is not None:
                        task.task.abort_checkpoint(message.checkpoint_id)
            case CheckpointCompleted():
                for attempt in self.tasks.values():
                    if attempt.task is not None:
                        attempt.task.checkpoint_completed(message.checkpoint_id)
            case UpdateGate():
                descriptors = ShuffleDescriptors.decompress(message.descriptors)
                for task in self._alive(message.attempts):
                    task.update_gate(message.gate, descriptors)
            case ReleasePartitions():
                for name in message.names:
                    self._partitions.discard(name)
                    if self.environment is not None:
                        self.environment.release_partition(name)
            case _:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME, f"{type(message).__name__} is nothing that is said to a TaskManager"
                )

    def _submit(self, descriptors: Sequence[bytes]) -> None:
        """Whatever is said of these attempts from now on is about something that is there, so this does not wait."""
        if self._closing.is_set():
            return
        if self._nursery is None:
            self._early_bytes += sum(map(len, descriptors))
            if self._early_bytes > EARLY_BYTES:
                self.refuse(
                    f"job {self.name!r} is not open yet, and {self._early_bytes} bytes of tasks have come; submit them"
                    " when it is"
                )
                return
        for packed in descriptors:
            try:
                descriptor = TaskDeploymentDescriptor.parse(packed)
            except RemoteProtocolError as error:  # nobody can be told whose it is
                self.refuse(f"a task cannot be read: {error}")
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
        alive = sum(each[0] == attempt[0] for each in self.tasks) if self.slots else 0
        if self.slots and alive >= self.slots:
            task.refuse(
                f"{alive} subtasks of vertex {attempt[0]} run here, and the job holds {self.slots} slots: a slot takes"
                " one subtask of every vertex"
            )
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

    def _trigger(self, message: TriggerCheckpoint) -> None:
        try:
            barrier = decode_event(message.barrier)
        except NetstackError as error:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"a barrier cannot be read: {error}") from error
        if not isinstance(barrier, CheckpointBarrier):
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{type(barrier).__name__} is no barrier")
        for task in self._alive(message.attempts):
            if task.task is None:
                task.declined(barrier.checkpoint_id, f"attempt {task.attempt} is still being deployed")
            else:
                task.task.trigger_checkpoint(barrier, is_savepoint=message.is_savepoint, stops=message.stops)

    # What tasks are made of.

    async def make_task(self, descriptor: TaskDeploymentDescriptor, reports: TaskAttempt) -> tuple[RunnableTask, str]:
        """Fetches what a descriptor names, imports its code, and makes its task.

        Returns:
            The task, and the name of its vertex.

        Raises:
            NetstackError: something is not there, or may not be run.
        """
        parts: list[MaybeOffloaded] = [descriptor.job_information, descriptor.task_information]
        for gate in descriptor.gates:
            parts += gate.groups
        fetched = await self._blobs.fetch_all(self.job_id, parts, self._fetch)
        job = self._job(_inline(descriptor.job_information, fetched))
        task = self._task(_inline(descriptor.task_information, fetched))
        reports.name = self._vertices[descriptor.attempt.vertex] = task.name
        await self._load_all(job, task)
        assert self.environment is not None, "tasks come when the job is open"
        now_s = trio.current_time()

        def read(part: MaybeOffloaded) -> ShuffleDescriptors:
            return self._blobs.shuffle_descriptors(self.job_id, part, fetched, now_s)

        load = self._functions.__getitem__
        if task.is_invokable:
            gates = [gate.gate(read).channels for gate in descriptor.gates]
            return InvokableTask(descriptor, task, self.environment, reports, gates=gates, load=load), task.name
        chain = ChainTask(
            descriptor,
            job,
            task,
            self.environment,
            reports,
            storage=self._storage_of(job),
            restored=None if descriptor.restore is None else partial(self._restored, descriptor.restore, job),
            load=load,
            in_thread=in_thread,
            read=read,
        )
        return chain, task.name

    def _storage_of(self, job: JobInformation) -> CheckpointStorage | None:
        """Where the job keeps its checkpoints: one for all of its tasks here."""
        if self._storage is None and job.checkpoint_folder is not None:
            self._storage = CheckpointStorage(job.checkpoint_folder, keep=job.keep)
        return self._storage

    async def _restored(self, checkpoint_id: int, job: JobInformation) -> RestoredCheckpoint:
        """A checkpoint, read once for all tasks here; the one before it is forgotten."""
        async with self._restoring:
            found = self._checkpoints.get(checkpoint_id)
            if found is None:
                storage = self._storage_of(job)
                if storage is None:
                    raise CheckpointError(
                        f"checkpoint {checkpoint_id} cannot be read: the job has no folder for checkpoints"
                    )
                found = await in_thread(lambda: RestoredCheckpoint(storage.read(checkpoint_id)))
                self._checkpoints = {checkpoint_id: found}
        return found

    def _job(self, data: bytes) -> JobInformation:
        found = self._parsed_jobs.get(data)
        if found is None:
            found = self._parsed_jobs[data] = JobInformation.parse(data)
        return found

    def _task(self, data: bytes) -> TaskInformation:
        found = self._parsed_tasks.get(data)
        if found is None:
            found = self._parsed_tasks[data] = TaskInformation.parse(data)
        return found

    async def _load_all(self, job: JobInformation, task: TaskInformation) -> None:
        """Imports everything a task names that was not imported yet, in a thread."""
        names = [name for name in _named(task) if name not in self._functions]
        if not names:
            return
        async with self._loading:  # one import for all of a vertex' subtasks
            missing = [name for name in names if name not in self._functions]
            if missing:
                await self._unpack(job)
                self._functions |= await in_thread(partial(self._load, job, missing), abandon_on_cancel=True)

    async def _unpack(self, job: JobInformation) -> None:
        if not job.code:
            return
        if self._shipped is None:
            raise NetstackError(
                f"job {self.name!r} ships {', '.join(shown(package, 40) for package, _ in job.code)}, and TaskManager"
                f" {self._host} takes no code: start it with --allow-submitted, or install the package there"
            )
        for package, key in job.code:
            data = await self._blobs.fetch(self.job_id, BlobKey(key), self._fetch)
            await in_thread(partial(self._shipped.put, self.job_id, package, key, data))

    def _load(self, job: JobInformation, names: Iterable[str]) -> Mapping[str, Any]:
        """In a thread: imports and reads files."""
        shipped = {package for package, _ in job.code}
        found = {name: self._allowed.load(name, shipped) for name in names}
        check_builds(sorted({root_package(name) for name in found} - shipped), job.builds)
        return found

    # Progress.

    async def _tell_progress(self) -> None:
        """Once a second, less often where it costs much, while something changes: sums over the attempts here."""
        told: Plain = {}
        clock = turns().clock
        period_s = PROGRESS_S
        while True:
            await trio.sleep(period_s)
            began_s = clock()
            vertices: Plain = {}
            for attempt in self.tasks.values():
                statistics = attempt.statistics()
                if statistics is not None:
                    row = vertices.setdefault(str(attempt.attempt[0]), {"records_in": 0, "records_out": 0, "tasks": 0})
                    row["records_in"] += statistics.records_in
                    row["records_out"] += statistics.records_out
                    row["tasks"] += 1
            if vertices != told:
                self.send(JobProgress(self.job_id, vertices))
                told = vertices
            period_s = max(PROGRESS_S, (clock() - began_s) / _PROGRESS_COST)


def _named(task: TaskInformation) -> set[str]:
    """Every function that a task names."""
    names = {operator.function for operator in task.operators}
    names |= {each.function for each in task.inputs} | {each.function for each in task.outputs}
    return names - {""}


def _inline(part: MaybeOffloaded, fetched: Mapping[BlobKey, bytes]) -> bytes:
    return part if isinstance(part, bytes) else fetched[part]
