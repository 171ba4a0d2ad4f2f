"""One attempt of one subtask: reads, has its chain process, writes, takes part in checkpoints, until its input ends.

Takes: a `TaskDeploymentDescriptor`, and the network environment it runs in. Gives: records to the consumers, reports, a
`TaskOutcome`.

How a task of a job with checkpoints ends (FLIP-147): all records processed -> `finish` of every operator -> EndOfData
to the consumers -> they have processed it all -> EndOfPartition -> ended. Up to EndOfPartition it takes part in
checkpoints as always: barriers follow EndOfData, unaligned ones overtake it. What its operators had in the end is
stored as its final state, and counts in every later checkpoint. Without checkpoints, or with results that are consumed
when they are complete, nobody is waited for.

How a job stops with a savepoint: its sources send the barrier, and nothing after it until the savepoint is complete;
then they end, and every task behind them without `finish`, because the job is to go on elsewhere. When the savepoint
fails they go on.

Rules:
- Between two records, and only there: barriers, timers, the coordinator's wishes. So also while it waits for output
  (soft back-pressure) or, as a source, for something to read. Inside a record it waits for output only when the record
  needs more than the overdraft gives; then a barrier waits for that record.
- No clock, no await, no look at the network per record of an ordinary operator: records are processed in slices that
  take about a millisecond.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import length_hint
from typing import Any, Final, TypeAlias, final

import trio

from ..checkpoint.barrier import BarrierStatistics
from ..checkpoint.finals import FinalStates
from ..checkpoint.instructions import CheckpointSettings
from ..checkpoint.snapshot import TaskFile, TaskSnapshot
from ..checkpoint.storage import CheckpointStorage
from ..control.codec import Plain
from ..errors import ConfigError, LocalProtocolError, OperatorFailed, PoolDestroyed, RecordError
from ..events import CheckpointBarrier
from ..inbound.gate import SingleInputGate
from ..outbound.partition import ResultPartition
from ..outbound.selector import (
    BroadcastSelector,
    ChannelSelector,
    CustomSelector,
    ForwardSelector,
    GlobalSelector,
    KeyGroupSelector,
    RebalanceSelector,
    RescaleSelector,
    ShuffleSelector,
)
from ..runtime.causes import root_cause
from ..runtime.network_environment import NetworkEnvironment
from ..runtime.record_writer import RecordWriter
from ..runtime.threads import InThread
from ..schedule.descriptors.descriptors import MaybeOffloaded, PartitionDescriptor, TaskDeploymentDescriptor
from ..schedule.descriptors.information import JobInformation, OutputInformation, TaskInformation
from ..schedule.descriptors.shuffle import ShuffleDescriptors
from ..waits import WaitMeter
from .blame import blamed
from .chain import ChainedOperator, OperatorChain
from .checkpoints import TaskCheckpoints
from .context import OperatorContext
from .gates import TaskGates
from .input import TaskInput
from .mailbox import Mailbox
from .operators import BoundOperator
from .output import Records, TaskOutput
from .recovery import RestoredCheckpoint, RestoredTask, check_rescaled
from .reports import TaskOutcome, TaskReports, TaskStatistics

SLICE_S: Final = 0.001
"""Records are processed in slices of about this duration; between two of them a clock is read."""

TURN_S: Final = 0.005
"""After so long without a wait other tasks get a turn, among them those that read barriers from the network; a turn
costs 20 to 50 us."""

_Step: TypeAlias = Callable[[Any, int, int], Awaitable[int]]
"""Processes records [first, last) of a list or array, or only the first of these; gives the index of the next."""

MAX_SLICE: Final = 4096


@final
class ChainTask:
    """One attempt of one subtask (a `RunnableTask`). Use: `create`, `run`, and `close` whatever happened."""

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        job: JobInformation,
        task: TaskInformation,
        environment: NetworkEnvironment,
        reports: TaskReports,
        *,
        storage: CheckpointStorage | None,
        restored: Callable[[], Awaitable[RestoredCheckpoint]] | None,
        load: Callable[[str], Any],
        in_thread: InThread,
        read: Callable[[MaybeOffloaded], ShuffleDescriptors] | None = None,
    ) -> None:
        """Nothing is taken yet.

        Args:
            descriptor: of the attempt.
            job: what its tasks share.
            task: what the subtasks of the vertex share.
            environment: where it lives.
            reports: hears of it.
            storage: for checkpoints; None where the job takes none.
            restored: reads the checkpoint that the descriptor names.
            load: what a name stands for; its module is imported already.
            in_thread: runs what blocks.
            read: parses a list of shuffle descriptors; None reads what is inline.
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
        self._ticks = environment.ticks
        self._mailbox = Mailbox()
        self._gates = TaskGates(descriptor.gates, environment, read)
        self._bound: dict[str, BoundOperator] = {}
        self._output = TaskOutput((), (), self._mailbox, environment.now)
        self._chain: OperatorChain
        self._checkpoints: TaskCheckpoints | None = None
        self._input: TaskInput | None = None
        self._opened: list[BoundOperator] = []
        self._results: dict[str, Any] = {}
        self._untold = [*range(len(descriptor.partitions))] if job.tells_first_output else []
        self._is_working = False
        self._drain = True
        self._slice = 1
        self._waited_at = 0.0
        self._began_s = environment.now()
        self._reading = WaitMeter(self._began_s)

    def __str__(self) -> str:
        return f"{self.name}-{self.subtask}"

    # Before.

    def create(self) -> None:
        """Creates the partitions and the operators, and puts the chain together.

        Raises:
            InsufficientBuffers: the partitions' buffers are not free.
            LocalProtocolError: a partition of this name exists.
            ConfigError: what the descriptor says cannot be, or an operator cannot be made.
        """
        task, descriptor, attempt = self._task, self._descriptor, self._descriptor.attempt
        if len(descriptor.partitions) != len(task.outputs) or len(descriptor.gates) != len(task.inputs):
            raise ConfigError(
                f"task {self}: {len(descriptor.partitions)} partitions and {len(descriptor.gates)} gates were deployed"
                f" for {len(task.outputs)} outputs and {len(task.inputs)} inputs"
            )
        keyed = self._keyed_operators()
        for information in task.operators:
            context = OperatorContext(
                information.name,
                task.name,
                attempt.subtask,
                task.parallelism,
                task.max_parallelism,
                attempt.attempt,
                is_keyed=information.name in keyed,
            )
            self._bound[information.name] = BoundOperator(information, context, self._load)
        writers: list[RecordWriter[Any]] = []
        try:
            for made, told_output in zip(descriptor.partitions, task.outputs, strict=True):
                writers.append(self._writer(made, told_output))
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
            task.outputs,
            self._reports,
            self._storage,
            self._environment,
            self._mailbox,
            self._in_thread,
        )

    # From the TaskManager, at any time.

    def trigger_checkpoint(
        self, barrier: CheckpointBarrier, *, is_savepoint: bool = False, stops: bool = False
    ) -> None:
        """Takes a checkpoint between two records, because nobody sends this task barriers.

        Args:
            barrier: to be sent on.
            is_savepoint: whether it was asked for.
            stops: whether the job ends with it.
        """
        if not self._is_working:
            self._reports.declined(barrier.checkpoint_id, f"task {self} is not running yet")
            return
        received_s = self._environment.now()
        self._mailbox.post(partial(self._running.trigger_here, barrier, received_s, stops=stops))

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """The checkpoint will not happen."""
        self._mailbox.post(partial(self._running.abort_here, checkpoint_id))

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """The checkpoint is complete."""
        self._mailbox.post(partial(self._running.completed_here, checkpoint_id))

    def update_gate(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Producers that a gate did not know are known now.

        Raises:
            LocalProtocolError: there is no such gate.
        """
        self._gates.update(gate, descriptors)

    def told(self, message: Plain) -> None:
        """Nobody listens: it is no invokable."""

    # The run.

    async def run(self) -> TaskOutcome:
        """Works until the end of the input.

        Raises:
            NetstackError: a channel failed, a record does not fit, a state cannot be stored, ...
            Exception: whatever an operator raises.

        Cancellation: the task is over; `close` it.
        """
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:  # it waits for the last snapshots
                self._running.nursery = nursery
                try:
                    await self._open()
                    self._is_working = True
                    self._reports.running()
                    await self._work()
                except trio.Cancelled:
                    raise
                except BaseException as error:  # leaves as it is, not inside this nursery's group
                    failure = blamed(error, self._bound.values())
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # a snapshot could not be stored
            root = root_cause(group)
            if not isinstance(root, Exception):
                raise
            failure = failure or root
        if failure is not None:
            raise failure from (failure.cause if isinstance(failure, OperatorFailed) else failure.__cause__)
        return TaskOutcome(self._produced(), self._results, await self._store_final())

    async def close(self, failure: str = "") -> None:
        """Closes the operators and the gates; fails partitions that are unfinished, so that consumers learn of it.

        A finished partition lives on until it was consumed or is released. Idempotent; every step is tried.

        Args:
            failure: why the task failed.
        """
        if self._input is not None:
            self._input.close()
        self._gates.close()
        for partition in self._output.partitions:
            if not partition.is_finished:
                partition.fail(failure or f"task {self} ended and left it unfinished")
        errors: list[Exception] = []
        while self._opened:
            try:
                await self._opened.pop().call("close")
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def statistics(self) -> TaskStatistics:
        """How far it is; O(operators)."""
        if self._checkpoints is None:
            return TaskStatistics(0, 0)
        now_s = self._environment.now()
        idle_s = self._reading.total_s(now_s) + (0.0 if self._input is None else self._input.waited_s)
        backpressured_s = self._output.backpressured.total_s(now_s)
        return TaskStatistics(
            self._chain.records_in,
            sum(partition.counters.records for partition in self._output.partitions),
            self._chain.statistics(),
            max(0.0, now_s - self._began_s - idle_s - backpressured_s),
            idle_s,
            backpressured_s,
        )

    def barrier_statistics(self) -> BarrierStatistics | None:
        """How barriers come together here; None of a task without gates."""
        return None if self._input is None else self._input.statistics()

    @property
    def open_gates(self) -> Sequence[SingleInputGate]:
        """The gates that are open, in order of their index."""
        return self._gates.opened

    @property
    def open_partitions(self) -> Sequence[ResultPartition]:
        """What it produces."""
        return self._output.partitions

    # Inside.

    @property
    def _running(self) -> TaskCheckpoints:
        if self._checkpoints is None:
            raise LocalProtocolError(f"task {self} was not created")
        return self._checkpoints

    def _keyed_operators(self) -> set[str]:
        """The operators all of whose inputs are keyed."""
        inputs: dict[str, list[bool]] = {}
        for given in self._task.inputs:
            inputs.setdefault(given.edge.target, []).append(given.partitioner == "hash")
        for edge in self._task.chained:
            inputs.setdefault(edge.target, []).append(edge.is_keyed)
        return {name for name, are_keyed in inputs.items() if all(are_keyed)}

    def _writer(self, made: PartitionDescriptor, told_output: OutputInformation) -> RecordWriter[Any]:
        selector = _selector(told_output, made, self.subtask, self._load)
        partition = self._environment.create_partition(made.name, subpartitions=made.subpartitions, kind=made.type)
        try:
            return RecordWriter(
                partition,
                selector=selector,
                format=told_output.format,
                buffer_timeout_s=told_output.buffer_timeout_s,
            )
        except BaseException:
            partition.release()
            raise

    async def _open(self) -> None:
        """Gates, states, operators: in this order, so that nothing is restored for producers that are not there."""
        self._waited_at = self._ticks()
        self._reports.initializing()
        await trio.lowlevel.checkpoint()
        gates = await self._gates.open()
        mine = RestoredTask(records=[()] * len(self._task.inputs))
        if self._descriptor.restore is not None:
            if self._restored is None:
                raise ConfigError(f"task {self} is to go on from checkpoint {self._descriptor.restore}, and has none")
            checkpoint = await self._restored()
            mine = checkpoint.of(self._job, self._task, self.subtask, self._load)
            check_rescaled({name: bound.fixed_parallelism for name, bound in self._bound.items()}, mine, self._task)
        if gates:
            self._input = self._running.inputs = TaskInput(
                str(self),
                gates,
                self._task.inputs,
                self._mailbox,
                self._running,
                self._environment,
                exactly_once=self._settings.exactly_once,
                unaligned=self._settings.unaligned,
                recovered=mine.records,
            )
        for operator in reversed(self._chain.operators):  # whoever is given records is open before
            bound = operator.bound
            bound.context.restore_keyed(mine.keyed.get(bound.name, {}))
            self._opened.append(bound)
            await bound.call("open", bound.context)
            states = mine.own.get(bound.name)
            if states is not None and bound.has("restore"):
                await bound.call("restore", states)
            elif states and states != [None]:
                raise ConfigError(
                    f"operator {bound.name!r} has state in checkpoint {self._descriptor.restore}, and no method restore"
                )

    async def _work(self) -> None:
        chain, output = self._chain, self._output
        if self._input is None:
            await self._run_sources(chain.sources)
        elif chain.sources:
            await self._run_mixed(self._input, chain.sources)
        else:
            await self._run_operators(self._input)
        if self._drain:
            others = (operator for operator in chain.operators if operator not in chain.sources)
            for operator in (*chain.sources, *others):
                result = await operator.bound.finish(operator.out)
                self._tell_first_output()
                await chain.settle()
                if result is not None:
                    self._results[operator.bound.name] = result
        await output.drain()
        await self._end()

    async def _run_operators(self, inputs: TaskInput) -> None:
        output, mailbox, checkpoints = self._output, self._mailbox, self._running
        steps = self._steps()
        while True:
            if mailbox.is_urgent:
                await self._settle()
            elif not output.is_available:
                await self._wait(output.wait)
            else:
                records = inputs.poll()
                if records:
                    self._enter(inputs.gate_index)
                    await self._in_slices(records, steps[inputs.gate_index], inputs.processed)
                elif records is None:
                    if inputs.is_finished:
                        self._drain = inputs.ended_with_drain
                        return
                    await self._wait(inputs.wait)
                elif checkpoints.is_due:
                    await checkpoints.perform()
                elif self._ticks() - self._waited_at > TURN_S:
                    await self._wait(trio.lowlevel.checkpoint)

    async def _run_sources(self, sources: Sequence[ChainedOperator]) -> None:
        """Sources in turn; with several each must be an ordinary one, since one that waits would hold up the others."""
        left = list(sources)
        self._check_mixed(left, 1)
        turn = 0
        while left:
            if self._mailbox.is_urgent:
                await self._settle()
            elif self._running.is_held:
                await self._wait(self._mailbox.wait)
            elif self._running.is_stopped:
                self._drain = False
                return
            elif not self._output.is_available:
                await self._wait(self._output.wait)
            else:
                turn = (turn + 1) % len(left)
                if await self._read(left[turn]) is False:
                    del left[turn]

    async def _run_mixed(self, inputs: TaskInput, sources: Sequence[ChainedOperator]) -> None:
        """Gates and chained sources in turn."""
        left = list(sources)
        self._check_mixed(left, 0)
        output, mailbox, checkpoints = self._output, self._mailbox, self._running
        steps = self._steps()
        while (left and self._drain) or not inputs.is_finished:
            if mailbox.is_urgent:
                await self._settle()
            elif not output.is_available:
                await self._wait(output.wait)
            else:
                self._drain = inputs.ended_with_drain  # else the job was stopped, and the sources with it
                records = None if inputs.is_finished else inputs.poll()
                if records:
                    self._enter(inputs.gate_index)
                    await self._in_slices(records, steps[inputs.gate_index], inputs.processed)
                elif records is not None and checkpoints.is_due:
                    await checkpoints.perform()
                elif records is None and not left:
                    if not inputs.is_finished:
                        await self._wait(inputs.wait)
                    continue
                if left and await self._read(left[0]) is False:
                    del left[0]
                elif left:
                    left.append(left.pop(0))
                if self._ticks() - self._waited_at > TURN_S:
                    await self._wait(trio.lowlevel.checkpoint)
        self._drain = inputs.ended_with_drain

    def _check_mixed(self, sources: Sequence[ChainedOperator], allowed: int) -> None:
        waits = [source.bound.name for source in sources if source.bound.is_async]
        if waits and len(sources) > allowed:
            raise ConfigError(
                f"source {waits[0]!r} is async, and chained as an input beside others, whom its waits would hold up;"
                " start a chain behind it"
            )

    async def _read(self, source: ChainedOperator) -> bool:
        """Has a source read once, and sends what it gave; False at its end."""
        bound = source.bound
        if bound.is_async:
            self._reading.begin(self._environment.now())
            try:
                has_read, records = await self._mailbox.unless_urgent(bound.process)
            finally:
                self._reading.end(self._environment.now())
            self._waited_at = self._ticks()
            if not has_read:
                return True
        else:
            records = bound.process()
        if records is None:
            return False
        if not len(records):
            raise RecordError(f"source {bound.context} read nothing; give at least one record, or None at the end")
        source.read, source.sent = len(records), 0
        await self._in_slices(records, self._step_of(source.main.push, source.main.push_batch), source.has_sent)
        if not self._running.is_stopped:
            source.read = source.sent = 0
        return True

    def _tell_first_output(self) -> None:
        output = self._output
        waiting = {writer.partition.partition_id for writer, _, _ in output.kept}
        for index in list(self._untold):
            partition = output.partitions[index]
            if partition.counters.records or partition.partition_id in waiting:
                self._untold.remove(index)
                self._reports.consumable(index)

    def _enter(self, gate: int) -> None:
        head = self._chain.head
        assert head is not None
        head.bound.context.input = self._task.inputs[gate].edge.input_number

    async def _in_slices(self, records: Records, step: _Step, processed: Callable[[int], None]) -> None:
        """Has `step` process records, a slice at a time, with what is due in between."""
        output, mailbox, chain, checkpoints = self._output, self._mailbox, self._chain, self._running
        done, count = 0, len(records)
        while done < count:
            last = min(done + self._slice, count)
            began = self._ticks()
            reached = await step(records, done, last)
            if self._untold:  # before anything waits for consumers that are not there yet
                self._tell_first_output()
            if not chain.is_settled:
                await chain.settle()
            chain.records_in += reached - done
            processed(reached)
            now = self._ticks()
            self._adapt(reached - done, now - began)
            done = reached
            if now - self._waited_at > TURN_S:
                await self._wait(trio.lowlevel.checkpoint)
            while done < count:
                if mailbox.is_urgent:
                    await self._settle()
                elif checkpoints.is_held:
                    await self._wait(mailbox.wait)
                elif checkpoints.is_stopped:
                    return
                elif not output.is_available:
                    await self._wait(output.wait)
                else:
                    break

    def _adapt(self, count: int, elapsed_s: float) -> None:
        """Makes slices take about `SLICE_S`."""
        if elapsed_s > SLICE_S:
            self._slice = max(1, int(count * SLICE_S / elapsed_s))
        elif count == self._slice and 2 * elapsed_s < SLICE_S:
            self._slice = min(2 * count, MAX_SLICE)

    # Steps: each processes at least one record, and says which is next.

    def _steps(self) -> list[_Step]:
        """One for every gate."""
        head = self._chain.head
        assert head is not None
        if head.waits:
            return [self._step_of_waiting(head)] * len(self._chain.inputs)
        return [self._step_of(target.push, target.push_batch) for target in self._chain.inputs]

    def _step_of(self, push: Callable[[Any], None], push_batch: Callable[[Records], None]) -> _Step:
        """Hands records on one by one, until there is no room; an array at once."""
        output, chain = self._output, self._chain
        kept, room, is_sink = output.kept, output.room, output.is_sink

        async def step(records: Records, first: int, last: int) -> int:
            if not isinstance(records, list):
                push_batch(records[first:last])
                return last
            rest = iter(records[first:last])
            if chain.settles_often:
                for record in rest:
                    push(record)
                    if not chain.is_settled:
                        await chain.settle()
                    if self._mailbox.is_urgent or not room.is_available:
                        break
            elif is_sink:
                for record in rest:
                    push(record)
            else:
                for record in rest:
                    push(record)
                    if kept or not room.is_available:
                        break
            return last - length_hint(rest)

        return step

    def _step_of_waiting(self, head: ChainedOperator) -> _Step:
        """Of a head that is async, or takes several records at a time."""
        chain, output = self._chain, self._output

        async def slice_at_once(records: Records, first: int, last: int) -> int:
            await chain.process(head, records[first:last])
            return last

        async def each(records: Records, first: int, last: int) -> int:
            for index in range(first, last):
                await chain.process(head, records[index : index + 1])
                if not chain.is_settled:
                    await chain.settle()
                if self._mailbox.is_urgent or not output.is_available:
                    return index + 1
            return last

        return slice_at_once if head.bound.is_batched else each

    # Between records.

    async def _settle(self) -> None:
        """Does what is due between two records."""
        while self._mailbox.is_urgent:
            self._mailbox.open()
            if self._input is not None:
                self._input.poll_priority()
            await self._running.perform()

    async def _wait(self, wait: Callable[[], Any]) -> None:
        await wait()
        self._waited_at = self._ticks()

    async def _end(self) -> None:
        """See the module."""
        output, checkpoints = self._output, self._running
        await output.end_of_data(drain=self._drain)
        is_pipelined = all(made.type.must_be_pipelined for made in self._descriptor.partitions)
        if self._job.checkpoints is not None and is_pipelined:
            await self._settle_until(lambda: output.is_consumed)
            for partition in output.partitions:
                if partition.is_released:
                    raise PoolDestroyed(f"partition {partition.partition_id!r} was released before it was consumed")
        output.finish()
        await self._settle_until(lambda: output.is_sealed)
        output.check_kept()
        checkpoints.close()
        await self._settle_until(lambda: not checkpoints.is_gathering)  # barriers may still be in the queues

    async def _settle_until(self, condition: Callable[[], bool]) -> None:
        while True:
            if self._mailbox.is_urgent:
                await self._settle()
            elif condition():
                return
            else:
                await self._mailbox.wait()

    async def _store_final(self) -> TaskFile | None:
        storage = self._storage
        if self._job.checkpoints is None or storage is None:
            return None
        snapshot = TaskSnapshot(self.name, self.subtask, await self._chain.snapshot())
        return await self._in_thread(partial(FinalStates(storage.folder).write, snapshot))

    def _produced(self) -> tuple[tuple[int, ...], ...]:
        """What went into every subpartition, in framed bytes."""
        return tuple(partition.bytes_per_subpartition for partition in self._output.partitions)


def _selector(
    told_output: OutputInformation, made: PartitionDescriptor, subtask: int, load: Callable[[str], Any]
) -> ChannelSelector:
    """Who gets a record of a subtask."""
    function = load(told_output.function) if told_output.function else None
    match told_output.partitioner:
        case "forward":
            return ForwardSelector()
        case "rescale":
            return RescaleSelector()
        case "rebalance":
            return RebalanceSelector(random.Random(subtask))  # so that not all begin with the same consumer
        case "shuffle":
            return ShuffleSelector(random.Random())
        case "global":
            return GlobalSelector()
        case "broadcast":
            return BroadcastSelector()
        case "hash":
            return KeyGroupSelector(function, max_parallelism=made.max_parallelism)
        case "custom" if function is not None:
            return CustomSelector(function, partition_batch=getattr(function, "partition_batch", None))
    raise ConfigError(
        f"edge {told_output.edge}: the partitioner {told_output.partitioner!r} is not known, or needs a function"
    )
