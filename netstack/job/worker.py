"""A worker: runs the subtasks of a job that its master gives it, one run after the other.

Takes: commands of the master. Gives: reports; see `control`.

A run: TaskManager and partitions -> `Deployed` -> gates, operators, state -> `Running` -> tasks, until they end or the
master cancels. A run ends only by `Cancel`, by a failure, or with the control link: subtasks that have ended are asked
for their final states until the job is over. Whatever happens, the TaskManager of the run is closed, and `Stopped` is
the last word about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, final

import trio

from ..checkpoint.coordinator import CheckpointSettings
from ..checkpoint.recovery import RecoveredTask, recover
from ..checkpoint.snapshot import TaskFile, TaskSnapshot
from ..checkpoint.storage import CheckpointStorage
from ..errors import CheckpointError, ConnectionLost, LocalProtocolError
from ..events import CheckpointBarrier, decode_event
from ..ids import ChannelDescriptor
from ..runtime.causes import is_secondary, root_cause, told
from ..runtime.network_environment import NetworkEnvironment, open_task_manager
from ..runtime.record_writer import RecordWriter
from ..transport import transport_for
from .control import (
    AbortCheckpoint,
    Acknowledged,
    Cancel,
    Connect,
    ControlLink,
    Declined,
    Deploy,
    Deployed,
    Ended,
    Failed,
    Message,
    Running,
    Stopped,
    StoreFinals,
    TriggerCheckpoint,
)
from .control_stream import StreamLink
from .operators import TaskContext, make_operator
from .spec import Job, TaskSpec
from .task import Task
from .task_checkpoints import InThread, SubtaskReport

_Result = TypeVar("_Result")


async def in_thread(function: Callable[[], _Result]) -> _Result:
    """Runs something that blocks in a thread; waits for its end, also when cancelled."""
    return await trio.to_thread.run_sync(function)


async def run_worker(master: str, name: str, address: str = "tcp://127.0.0.1:0") -> None:
    """Joins a master and works for it until it ends the connection: what a process of its own runs.

    Args:
        master: URL of `open_job_master`. It is trusted: what it names is imported and run.
        name: of this worker, unique among those of the master.
        address: where the TaskManager of each run listens.

    Raises:
        ConnectionLost: the master cannot be reached.
        RemoteProtocolError: it is no master, or of another version.

    Cancellation: the run is cancelled, the connection ends.
    """
    stream = await transport_for(master).connect(master)
    link = StreamLink(stream)
    try:
        await link.greet(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await serve(link, address)
            nursery.cancel_scope.cancel()
    finally:
        link.close()


async def serve(
    link: ControlLink,
    address: str,
    *,
    storage: CheckpointStorage | None = None,
    in_thread: InThread = in_thread,
) -> None:
    """Carries out the commands that come over a link, until it ends.

    Args:
        link: to the master.
        address: where the TaskManager of each run listens.
        storage: for checkpoints; None is the folder of the job.
        in_thread: runs what blocks.
    """
    run: _Run | None = None
    async with trio.open_nursery() as nursery:
        while True:
            try:
                command = await link.receive()
            except ConnectionLost:
                break
            if isinstance(command, Deploy):
                run = _Run(command, link, storage, in_thread)
                nursery.start_soon(run.work, address)
            elif run is not None and command.attempt == run.attempt:
                run.on_command(command)
        nursery.cancel_scope.cancel()


@final
class _Run:
    """The subtasks of this worker in one run of a job (a `TaskControl`)."""

    def __init__(
        self, deploy: Deploy, link: ControlLink, storage: CheckpointStorage | None, in_thread: InThread
    ) -> None:
        self.attempt = deploy.attempt
        self._job = job = deploy.job
        self._worker = deploy.worker
        self._places = job.placement(deploy.workers)
        self._restore = deploy.restore
        self._link = link
        self._in_thread = in_thread
        if storage is None and job.folder is not None:
            storage = CheckpointStorage(job.folder, keep=job.keep)
        self._storage = storage
        self._settings = job.checkpoints or CheckpointSettings()
        self._addresses: tuple[str, ...] = ()
        self._connected = trio.Event()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._tasks: dict[tuple[str, int], Task] = {}
        self._finals: dict[tuple[str, int], TaskSnapshot] = {}

    async def work(self, address: str) -> None:
        """The run, from its first to its last moment."""
        try:
            with self._scope:
                async with open_task_manager(address, self._job.network) as manager:
                    await self._run_tasks(manager)
        except BaseException as error:  # of setting it up: a bad name, a folder that cannot be read, ...
            if not self._fail("", 0, error):
                raise
        finally:
            self._link.send(Stopped(self.attempt))

    def on_command(self, command: Message) -> None:
        """Carries out a command of the master's, other than `Deploy`."""
        match command:
            case Connect():
                self._addresses = command.addresses
                self._connected.set()
            case Cancel():
                self._scope.cancel()
            case TriggerCheckpoint():
                barrier = decode_event(command.barrier)
                assert isinstance(barrier, CheckpointBarrier)
                for subtask in command.subtasks:
                    if subtask in self._tasks:  # else it has ended, and the master hears of it
                        self._tasks[subtask].trigger(barrier)
            case AbortCheckpoint():
                for task in self._tasks.values():
                    task.abort_checkpoint(command.checkpoint_id)
            case StoreFinals():
                for subtask in command.subtasks:
                    if self._nursery is not None:  # else the run ends here, and the master hears of it
                        self._nursery.start_soon(self._store_final, command.checkpoint_id, self._finals[subtask])
            case _:
                raise LocalProtocolError(f"{self._link.peer} sent {type(command).__name__} to a worker")

    # What tasks report.

    def acknowledged(self, checkpoint_id: int, file: TaskFile, report: SubtaskReport) -> None:
        """See `TaskControl.acknowledged`."""
        self._link.send(Acknowledged(self.attempt, checkpoint_id, file.crc32, report))

    def declined(self, checkpoint_id: int, context: TaskContext, reason: str) -> None:
        """See `TaskControl.declined`."""
        self._link.send(Declined(self.attempt, checkpoint_id, context.task, context.subtask, reason))

    # Inside.

    async def _run_tasks(self, manager: NetworkEnvironment) -> None:
        mine = [
            (self._job.task(name), subtask)
            for (name, subtask), worker in self._places.items()
            if worker == self._worker
        ]
        try:
            for spec, subtask in mine:
                self._tasks[spec.name, subtask] = self._make_task(manager, spec, subtask)
            self._link.send(Deployed(self.attempt, manager.address))
            await self._connected.wait()
            recovered = await self._recover()
            for spec, subtask in mine:
                await self._open_task(manager, spec, subtask, recovered.get(spec.name))
            self._link.send(Running(self.attempt))
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for spec, subtask in mine:
                    nursery.start_soon(self._run_task, spec.name, subtask)
                await trio.sleep_forever()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                for task in self._tasks.values():
                    await task.close()

    def _make_task(self, manager: NetworkEnvironment, spec: TaskSpec, subtask: int) -> Task:
        job = self._job
        writers = [
            RecordWriter(
                manager.create_partition(edge.partition(subtask), subpartitions=edge.consumer.parallelism),
                selector=edge.selector(subtask, job.max_parallelism),
                format=edge.input.format,
                buffer_timeout_s=edge.input.buffer_timeout_s,
            )
            for edge in job.outputs_of(spec)
        ]
        return Task(
            TaskContext(spec.name, subtask, spec.parallelism, job.max_parallelism, self.attempt),
            make_operator(spec.operator, spec.arguments, is_source=spec.is_source, task=spec.name),
            writers,
            self,
            manager,
            storage=self._storage,
            in_thread=self._in_thread,
        )

    async def _open_task(
        self, manager: NetworkEnvironment, spec: TaskSpec, subtask: int, recovered: Sequence[RecoveredTask] | None
    ) -> None:
        gates = []
        try:
            for edge in self._job.inputs_of(spec):
                producer = edge.producer
                descriptors = [
                    ChannelDescriptor(
                        self._addresses[self._places[producer.name, index]], edge.partition(index), subtask
                    )
                    for index in range(producer.parallelism)
                ]
                gates.append(await manager.open_gate(descriptors))
        except BaseException:
            for gate in gates:
                gate.close()
            raise
        mine = None if recovered is None else recovered[subtask]
        await self._tasks[spec.name, subtask].open(
            gates,
            [edge.input.format for edge in self._job.inputs_of(spec)],
            {} if mine is None else mine.records,
            [] if mine is None else mine.operator_states,
            exactly_once=self._settings.exactly_once,
            unaligned=self._settings.unaligned,
        )

    async def _recover(self) -> dict[str, list[RecoveredTask]]:
        if self._restore < 0:
            return {}
        return await self._in_thread(partial(_read_checkpoint, self._job, self._storage, self._restore))

    async def _run_task(self, name: str, subtask: int) -> None:
        task = self._tasks[name, subtask]
        try:
            state = await task.run()
            await task.close()
        except BaseException as error:
            is_reported = self._fail(name, subtask, error)
            task.output.fail(told(root_cause(error)))
            self._scope.cancel()
            if not is_reported:
                raise
        else:
            del self._tasks[name, subtask]
            self._finals[name, subtask] = TaskSnapshot(name, subtask, state)
            self._link.send(Ended(self.attempt, name, subtask))

    async def _store_final(self, checkpoint_id: int, final: TaskSnapshot) -> None:
        storage = self._storage
        assert storage is not None  # or there are no checkpoints
        context = TaskContext(final.task, final.subtask, 0, 0, self.attempt)
        try:
            file = await self._in_thread(partial(storage.write_task, checkpoint_id, final))
        except CheckpointError as error:
            self.declined(checkpoint_id, context, str(error))
        else:
            report = SubtaskReport(final.task, final.subtask, size_bytes=file.size_bytes)
            self.acknowledged(checkpoint_id, file, report)

    def _fail(self, task: str, subtask: int, error: BaseException) -> bool:
        """Reports an error, if it is one; cancellation and the end of the process are not. Returns whether it was."""
        root = root_cause(error)
        if not isinstance(root, Exception):
            return False
        self._link.send(Failed(self.attempt, task, subtask, told(root), is_secondary(root), root))
        return True


def _read_checkpoint(job: Job, storage: CheckpointStorage | None, checkpoint_id: int) -> dict[str, list[RecoveredTask]]:
    """In a thread."""
    if storage is None:
        raise CheckpointError(f"checkpoint {checkpoint_id} cannot be read: the job has no folder for checkpoints")
    snapshots = storage.read(checkpoint_id)
    parallelism: dict[str, int] = {}
    for snapshot in snapshots:
        parallelism[snapshot.task] = max(parallelism.get(snapshot.task, 0), snapshot.subtask + 1)
    return recover(snapshots, job.recovery_plans(parallelism))
