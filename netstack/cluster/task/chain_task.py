"""One attempt of one subtask: a chain of operators with its input, its output and its checkpoints.

Takes: a `TaskDeploymentDescriptor`, and the network environment it runs in. Gives: records to the consumers, reports, a
`TaskOutcome`.

How a task of a job with checkpoints ends (FLIP-147): all records processed -> `finish` of every operator -> EndOfData
to the consumers -> they have processed everything -> EndOfPartition -> a checkpoint that began after that is complete,
and the operators were notified -> the task ends. Until EndOfPartition the task takes part in checkpoints as usual:
barriers follow EndOfData, or overtake it if they are unaligned. Afterwards the coordinator triggers its checkpoints.
Only operators with `checkpoint_completed` or `prepare_commit` need that last checkpoint; a task without them ends after
EndOfPartition. The final state of the operators is stored, and belongs to every later checkpoint.

Without checkpoints (a job that keeps results takes none) the task waits for no consumer. Instead of a checkpoint,
prepared commits then wait for the scheduler's message that no task of the region can run again.

How a job stops with a savepoint: its sources send the barrier, and no record after it until the savepoint is complete.
Then they end, and so do all other tasks, without `finish`, because the job may continue elsewhere. If the savepoint
fails, the sources continue.

`chain_loop` processes the records and does what is due between two of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, final

import trio

from ...base.causes import root_cause
from ...base.errors import ConfigError, LocalProtocolError, OperatorFailed, PoolDestroyed
from ...base.events import CheckpointBarrier
from ...exchange.inbound.gate import SingleInputGate
from ...exchange.outbound.partition import ResultPartition
from ...network.environment import NetworkEnvironment
from ...network.waiting.threads import InThread
from ...network.writer import RecordWriter
from ...schedule.checkpoint.barrier import BarrierStatistics
from ...schedule.checkpoint.instructions import CheckpointSettings
from ...schedule.checkpoint.snapshot import TaskFile, TaskSnapshot
from ...schedule.checkpoint.storage import CheckpointStorage
from ...schedule.descriptors.descriptors import MaybeOffloaded, PartitionDescriptor, TaskDeploymentDescriptor
from ...schedule.descriptors.information import JobInformation, OutputInformation, TaskInformation, in_flight_format
from ...schedule.descriptors.shuffle import ShuffleDescriptors
from ..control.codec import Plain
from .chain import OperatorChain
from .chain_loop import ChainLoop
from .checkpoints import TaskCheckpoints, store_final
from .context import OperatorContext
from .error_place import code_rows, with_operator
from .gates import TaskGates, keyed_operators, selector_of
from .input import TaskInput
from .keyed_state import plain_copy
from .latency import TaskLatencies, marker_ages_us
from .mailbox import Mailbox
from .operators import AT_THE_END, BoundOperator
from .output import TaskOutput
from .queued import QueuedEvents
from .recovery import RestoredCheckpoint, RestoredTask, check_rescaled, open_operator
from .reports import AttemptReports, TaskOutcome, TaskStatistics, kept_bytes


@final
class ChainTask:
    """One attempt of one subtask (a `RunnableTask`). Call `create`, `run`, and always `close`."""

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        job: JobInformation,
        task: TaskInformation,
        environment: NetworkEnvironment,
        reports: AttemptReports,
        *,
        storage: CheckpointStorage | None,
        restored: Callable[[], Awaitable[RestoredCheckpoint]] | None,
        load: Callable[[str], Any],
        in_thread: InThread,
        read: Callable[[MaybeOffloaded], ShuffleDescriptors] | None = None,
    ) -> None:
        """Allocates nothing; `create` does.

        Args:
            descriptor: the attempt.
            job: the description that all tasks of the job share.
            task: the description that all subtasks of the vertex share.
            environment: its network environment.
            reports: receives the reports of the task.
            storage: stores checkpoints; None if the job takes none.
            restored: reads the checkpoint that the descriptor names.
            load: resolves the name of a function, whose module is already imported.
            in_thread: runs blocking functions in a thread.
            read: resolves an offloaded list of shuffle descriptors; None accepts inline lists only.
        """
        self.name = task.name
        self.subtask = descriptor.attempt.subtask
        self._descriptor = descriptor
        self._job = job
        self._task = task
        self._environment = environment
        self._reports = reports
        self._storage = storage
        self._restored = restored
        self._load = load
        self._in_thread = in_thread
        self._settings = job.checkpoints or CheckpointSettings()
        self._mailbox = Mailbox()
        self._gates = TaskGates(descriptor.gates, environment, read)
        self._bound: dict[str, BoundOperator] = {}
        self._output = TaskOutput((), (), self._mailbox, environment.now)
        self._chain: OperatorChain
        self._checkpoints: TaskCheckpoints | None = None
        self._latencies: TaskLatencies
        self._loop: ChainLoop
        self._input: TaskInput | None = None
        self._opened: list[BoundOperator] = []
        self._results: dict[str, Any] = {}
        self._is_working = False
        self._began_s = environment.now()

    def __str__(self) -> str:
        return f"{self.name}-{self.subtask}"

    def create(self) -> None:
        """Creates the partitions and the operators, and builds the chain.

        Raises:
            InsufficientBuffers: the partitions' buffers are not free.
            LocalProtocolError: a partition of this name exists.
            ConfigError: the descriptor is invalid, or an operator cannot be created.
        """
        job, task, descriptor, attempt = self._job, self._task, self._descriptor, self._descriptor.attempt
        if len(descriptor.partitions) != len(task.outputs) or len(descriptor.gates) != len(task.inputs):
            raise ConfigError(
                f"task {self}: {len(descriptor.partitions)} partitions and {len(descriptor.gates)} gates were deployed"
                f" for {len(task.outputs)} outputs and {len(task.inputs)} inputs"
            )
        keyed = keyed_operators(task, self._load)
        for information in task.operators:
            context = OperatorContext(
                information.name,
                task.name,
                attempt.subtask,
                task.parallelism,
                task.max_parallelism,
                attempt.attempt,
                is_keyed=information.name in keyed,
                key_types=keyed.get(information.name, ()),
                state_id=job.state_id(information.name),
                open_gate=self._environment.open_gate,
                by_index=all(gate.type.must_be_pipelined for gate in descriptor.gates),
            )
            self._bound[information.name] = BoundOperator(information, context, self._load)
        writers: list[RecordWriter[Any]] = []
        try:
            for partition, output in zip(descriptor.partitions, task.outputs, strict=True):
                writers.append(self._writer(partition, output))
            self._output = TaskOutput(writers, task.outputs, self._mailbox, self._environment.now)
            self._chain = OperatorChain(task, self._bound, self._output)
        except BaseException:
            for writer in writers:
                writer.partition.release()
            raise
        self._checkpoints = TaskCheckpoints(
            task.name,
            attempt.subtask,
            self._chain,
            self._output,
            [
                job.kept_edge(each.edge).partition(
                    attempt.subtask, in_flight_format(each.format, has_heads=self._environment.config.as_flink)
                )
                for each in task.outputs
            ],
            self._reports,
            self._storage,
            self._environment,
            self._mailbox,
            self._in_thread,
        )
        self._latencies = TaskLatencies(
            attempt.vertex,
            self._environment.config.latency_interval_s(job.latency_interval_s),
            self._output.mark,
            has_sources=bool(self._chain.sources),
        )
        self._loop = ChainLoop(
            self._chain,
            self._output,
            self._mailbox,
            self._checkpoints,
            self._environment,
            self._latencies,
            task.inputs,
            self._reports.consumable if self._job.reports_first_output else None,
        )

    # Called by the TaskManager at any time.

    def trigger_checkpoint(
        self, barrier: CheckpointBarrier, *, is_savepoint: bool = False, stops: bool = False
    ) -> None:
        """Takes a checkpoint between two records, for a task that receives no barriers."""
        if not self._is_working:
            self._reports.declined(barrier.checkpoint_id, f"task {self} is not running yet")
            return
        received_s = self._environment.now()
        self._mailbox.post(partial(self._running.trigger_checkpoint, barrier, received_s, stops=stops))

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Implements `RunnableTask.abort_checkpoint`."""
        self._mailbox.post(partial(self._running.abort_here, checkpoint_id))

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Implements `RunnableTask.checkpoint_completed`."""
        self._mailbox.post(partial(self._running.completed_here, checkpoint_id))

    def update_gate(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Adds producers of a gate that were unknown when the task was deployed.

        Raises:
            LocalProtocolError: there is no such gate.
        """
        self._gates.update(gate, descriptors)

    def operator_event(self, event: Plain) -> None:
        """Does nothing: only invokables receive events."""

    async def run(self) -> TaskOutcome:
        """Runs the task until its input ends.

        Raises:
            NetstackError: a channel failed, a record does not fit its format, a state cannot be stored, ...
            Exception: an operator raised it.

        Cancellation: the task has ended; `close` it.
        """
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:  # waits until the last snapshots are written
                self._running.nursery = nursery
                try:
                    await self._open()
                    self._is_working = True
                    self._reports.running()
                    if not self._gates.is_complete:
                        nursery.start_soon(self._open_others)
                    await self._work()
                except trio.Cancelled:
                    raise
                except BaseException as error:  # keeps this nursery from wrapping it in a group
                    failure = with_operator(error, self._bound.values())
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # a snapshot could not be stored
            root = root_cause(group)
            if not isinstance(root, Exception):
                raise
            failure = failure or root
        if failure is not None:
            raise failure from (failure.cause if isinstance(failure, OperatorFailed) else failure.__cause__)
        partitions = self._output.partitions
        produced_bytes = tuple(partition.bytes_per_subpartition for partition in partitions)
        return TaskOutcome(produced_bytes, self._results, await self._store_final(), kept_bytes(partitions))

    async def close(self, failure: str = "") -> None:
        """Closes the operators and the gates, and fails unfinished partitions, so that their consumers fail too.

        A finished partition lives until it is consumed or released. Idempotent. An error does not prevent later steps.

        Args:
            failure: why the task failed.
        """
        if self._input is not None:
            self._input.close()
        self._gates.close()
        for partition in self._output.partitions:
            if not partition.is_finished:
                partition.fail(failure or f"task {self} ended before it had finished this partition")
        if self._opened:
            self._chain.end(raises=True)
        errors: list[Exception] = []
        while self._opened:
            try:
                await self._opened.pop().call("close")
            except Exception as error:  # user code may raise anything; the other operators are still closed
                errors.append(error)
        if errors:
            raise errors[0]

    def statistics(self) -> TaskStatistics:
        """The statistics of the task; O(operators)."""
        if self._checkpoints is None:
            return TaskStatistics(0, 0)
        now_s = self._environment.now()
        idle_s = self._loop.reading.total_s(now_s) + (0.0 if self._input is None else self._input.waited_s)
        backpressured_s = self._output.backpressured.total_s(now_s)
        return TaskStatistics(
            self._chain.records_in,
            sum(partition.counters.records for partition in self._output.partitions),
            self._chain.statistics(),
            max(0.0, now_s - self._began_s - idle_s - backpressured_s),
            idle_s,
            backpressured_s,
            self._latencies.rows(),
        )

    def queued(self) -> QueuedEvents:
        """Implements `RunnableTask.queued`."""
        queued = QueuedEvents(marker_ages_us)
        if self._checkpoints is not None:
            self._output.count_queued(queued)
            if self._input is not None:
                self._input.count_queued(queued)
        return queued

    def barrier_statistics(self) -> BarrierStatistics | None:
        """Implements `RunnableTask.barrier_statistics`."""
        return None if self._input is None else self._input.statistics()

    def code(self) -> list[list[Any]]:
        """Implements `RunnableTask.code`."""
        return [row for operator in self._bound.values() for row in code_rows(operator)]

    @property
    def open_gates(self) -> Sequence[SingleInputGate | None]:
        """Implements `RunnableTask.open_gates`."""
        return self._gates.opened

    @property
    def open_partitions(self) -> Sequence[ResultPartition]:
        """Implements `RunnableTask.open_partitions`."""
        return self._output.partitions

    # Inside.

    @property
    def _running(self) -> TaskCheckpoints:
        if self._checkpoints is None:
            raise LocalProtocolError(f"task {self} was not created; call create first")
        return self._checkpoints

    def _writer(self, descriptor: PartitionDescriptor, output: OutputInformation) -> RecordWriter[Any]:
        selector = selector_of(output, descriptor, self.subtask, self._load)
        partition = self._environment.create_partition(
            descriptor.name, subpartitions=descriptor.subpartitions, kind=descriptor.type
        )
        try:
            return RecordWriter(
                partition, selector=selector, format=output.format, buffer_timeout_s=output.buffer_timeout_s
            )
        except BaseException:
            partition.release()
            raise

    async def _open(self) -> None:
        """Opens gates, restores state, opens operators; in this order, since gates wait for their producers."""
        self._reports.initializing()
        await trio.lowlevel.checkpoint()
        gates = await self._gates.open()
        while self._job.checkpoints is not None and not self._gates.is_complete:  # barriers come through all of them
            gates |= await self._gates.open()
        mine, checkpoint_path = RestoredTask(records=[()] * len(self._task.inputs)), ""
        if self._descriptor.restore is not None:
            if self._restored is None:
                raise ConfigError(f"task {self} cannot read checkpoint {self._descriptor.restore}: it has no storage")
            checkpoint = await self._restored()
            mine, checkpoint_path = checkpoint.of(self._job, self._task, self.subtask, self._load), checkpoint.path
            check_rescaled({name: bound.fixed_parallelism for name, bound in self._bound.items()}, mine, self._task)
        if gates:
            self._input = self._running.inputs = TaskInput(
                str(self),
                dict(sorted(gates.items())),
                self._task.inputs,
                [self._job.kept_edge(each.edge) for each in self._task.inputs],
                self._mailbox,
                self._running,
                self._environment,
                exactly_once=self._settings.exactly_once,
                unaligned=self._settings.unaligned,
                restored=mine.records,
                checkpoint=checkpoint_path,
                takes_arrays=self._chain.head is not None and self._chain.head.bound.takes_arrays,
                gathers=self._job.checkpoints is None,
                channels=self._gates.channel_count,
                on_marker=self._latencies.on_marker,
            )
        for operator in reversed(self._chain.operators):  # an operator that emits is opened after its readers
            self._opened.append(operator.bound)
            await open_operator(operator.bound, mine, self._descriptor.restore)

    async def _open_others(self) -> None:
        """Opens gates whose producers are known later; each is read as soon as it is open."""
        assert self._input is not None
        while not self._gates.is_complete:
            for index, gate in (await self._gates.open()).items():
                self._input.add(index, gate)

    async def _work(self) -> None:
        chain, output = self._chain, self._output
        drain = await self._loop.run(self._input)
        is_restored = drain
        if drain:
            others = (operator for operator in chain.operators if operator not in chain.sources)
            for operator in (*chain.sources, *others):
                if not operator.bound.is_finished or chain.records_in:
                    is_restored = False
                    await operator.bound.finish(operator.out)
                    self._loop.report_first_output()
                    await chain.settle()
                if operator.bound.result is not None:
                    self._results[operator.bound.name] = plain_copy(operator.bound.result)
        await output.drain()
        await self._end(drain, is_restored)

    async def _end(self, drain: bool, is_restored: bool) -> None:
        """Ends the task in the steps that the module describes."""
        output, checkpoints = self._output, self._running
        self._chain.end(raises=False)
        await output.end_of_data(drain=drain)
        if self._job.checkpoints is not None:
            await self._loop.settle_until(lambda: output.is_consumed)
            for partition in output.partitions:
                if partition.is_released:
                    raise PoolDestroyed(f"partition {partition.partition_id!r} was released before it was consumed")
        output.finish()
        await self._loop.settle_until(lambda: output.is_sealed)
        output.check_kept()
        if self._is_confirmed_at_the_end():
            checkpoints.await_confirmation(drain=drain, is_restored=is_restored)
            if self._job.checkpoints is None:
                await self._chain.prepare(AT_THE_END)
            if not checkpoints.is_confirmed:
                self._reports.waiting()
                await self._loop.settle_until(lambda: checkpoints.is_confirmed)
        checkpoints.close()
        await self._loop.settle_until(lambda: not checkpoints.is_gathering)  # barriers may still be in the queues

    def _is_confirmed_at_the_end(self) -> bool:
        """Whether an operator must be notified that its final state is safe."""
        takes_checkpoints = self._job.checkpoints is not None
        return any(
            bound.awaits_completion if takes_checkpoints else bound.has("prepare_commit")
            for bound in self._bound.values()
        )

    async def _store_final(self) -> TaskFile | None:
        storage = self._storage
        if self._job.checkpoints is None or storage is None:
            return None
        snapshot = TaskSnapshot(self.name, self.subtask, await self._chain.snapshot())
        return await store_final(storage, snapshot, self._in_thread, self._reports)
