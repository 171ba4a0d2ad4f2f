"""Builds a chain of operators: a record passes the whole chain before the next one starts.

Takes: operators, the edges between them, and the outputs. Gives: functions that take records; methods that act between
two records, such as snapshots.

Rules:
- The functions are built once, from the last operator to the first. Each calls the next one directly, without lookups
  per record. Lists and arrays that an operator emits stay together as long as the next operators and writers take them.
- Records that cannot be processed within a call wait in front of their operator: records for an async operator, and
  single records for an operator that takes lists. `settle` processes them before anything else happens. So nothing is
  in progress between two records, and the states of all operators reflect the same records.
- Records are counted where they enter and leave the chain. Inside the chain they are counted only where their number
  does not follow from those counts.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, final

import numpy as np

from ...base.errors import ConfigError
from ...exchange.keygroups import default_max_parallelism
from ...schedule.descriptors.information import TaskInformation
from ...schedule.graph.job_graph import ChainedEdge, OperatorKind
from .fused import FusedOperator, Records, Target, check_returned, fused, listed
from .keyed_state import FIXED, copied, plain_copy
from .operators import AT_THE_END, BoundOperator
from .output import TaskOutput
from .reports import OperatorStatistics

_CHANGED: Final = (dict, list, tuple, set, bytearray, np.ndarray)


def _discard(record: Any) -> None:
    """Drops a record that no operator reads."""


_NO_READER: Final = Target(_discard, _discard)


def joined(edges: Sequence[Target], operators: Sequence[Target]) -> Target:
    """All readers of one output, as one target.

    Operators in a chain get the same object, and may change it. So each reader but the last gets its own copy of a
    record of lists, tuples, dicts, sets, bytearrays, numpy arrays and dataclasses, as in Flink; other objects are
    shared. Edges to other tasks come first: they encode records at once, and stage arrays.

    Args:
        edges: those in other tasks.
        operators: those of the same chain.
    """
    if len(edges) + len(operators) < 2:
        return (*edges, *operators, _NO_READER)[0]
    targets = [*edges, *map(_with_copies, operators[:-1]), *operators[-1:]]
    pushes = [target.push for target in targets]
    batches = [target.push_batch for target in targets]
    if edges and operators:
        batches[-1] = copying_arrays(batches[-1])
    first, second = pushes[:2]

    def push_two(record: Any) -> None:
        first(record)
        second(record)

    def push_each(record: Any) -> None:
        for push in pushes:
            push(record)

    def push_batch(records: Records) -> None:
        for push in batches:
            push(records)

    return Target(push_two if len(pushes) == 2 else push_each, push_batch)


def copying_arrays(push_batch: Callable[[Records], None]) -> Callable[[Records], None]:
    """Copies arrays, which are staged, so that the operator may change its own at once."""

    def push_copy(records: Records) -> None:
        push_batch(records.copy() if isinstance(records, np.ndarray) else records)

    return push_copy


def _with_copies(target: Target) -> Target:
    push, push_batch = target.push, target.push_batch

    def push_copy(record: Any) -> None:
        push(record if record.__class__ in FIXED else _copy(record))

    def push_copies(records: Records) -> None:
        if isinstance(records, np.ndarray):
            push_batch(records.copy())
        else:
            push_batch([record if record.__class__ in FIXED else _copy(record) for record in records])

    return Target(push_copy, push_copies)


def _copy(record: Any) -> Any:
    """A copy of everything in a record that can be changed in place, unless it cannot be copied."""
    try:
        return copied(record, _other)
    except Exception:  # a part of it cannot be copied, as its class says
        return record


def _other(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, _CHANGED) or is_dataclass(value) else value


@final
class _Nothing:
    """What a sync operator gets from `emit`: nothing to wait for, since the records are written after its call."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


@final
class Collector:
    """The output of one operator (an `Output`)."""

    __slots__ = ("_drain", "_output", "_sides", "collect", "collect_batch")

    def __init__(self, main: Target, sides: Mapping[str, Target], output: TaskOutput, *, copies: bool) -> None:
        self.collect = main.push
        self.collect_batch = copying_arrays(main.push_batch) if copies else main.push_batch
        self._sides = sides
        self._output = output
        self._drain: Callable[[], Awaitable[None]] = _Nothing

    def write_at_once(self) -> None:
        """Writes each emitted record at once, for an async operator, which may wait after any record."""
        flush = self._output.flush
        self._drain = self._output.drain

        def flushing(push: Callable[[Any], None]) -> Callable[[Any], None]:
            def push_and_flush(record: Any) -> None:
                push(record)
                flush()

            return push_and_flush

        self.collect, self.collect_batch = flushing(self.collect), flushing(self.collect_batch)
        self._sides = {tag: Target(flushing(side.push), side.push_batch) for tag, side in self._sides.items()}

    def end(self, operator: str, *, raises: bool) -> None:
        """Refuses records from now on, because the data has ended and nobody would send them.

        Without `raises` it warns only: a commit may come at any time, and its job has done everything else.
        """
        text = (
            f"operator {operator!r} emits after the end of its task, in close, in a commit or in a thread, where"
            " nothing is sent any more; emit in finish"
        )

        def refuse(records: Any) -> None:
            if raises:
                raise ConfigError(text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)

        self.collect = self.collect_batch = refuse
        self._sides = dict.fromkeys(self._sides, Target(refuse, refuse))

    def collect_to(self, tag: str, record: Any) -> None:
        """Implements `Output.collect_to`."""
        side = self._sides.get(tag)
        if side is not None:
            side.push(record)

    def emit(self, record: Any) -> Awaitable[None]:
        """Implements `Output.emit`."""
        self.collect(record)
        return self._drain()

    def emit_batch(self, records: Records) -> Awaitable[None]:
        """Implements `Output.emit_batch`."""
        self.collect_batch(records)
        return self._drain()


@final
class ChainedOperator:
    """One operator of a chain.

    Attributes:
        main: the target of its main output.
        waiting: records that wait for `settle`.
        counted: number of records received, if it is counted here.
        read: number of records of a source's last read.
        sent: number of these that were sent.
    """

    __slots__ = ("bound", "counted", "main", "out", "read", "sent", "waiting")

    def __init__(
        self, bound: BoundOperator, main: Target, sides: Mapping[str, Target], output: TaskOutput, *, is_head: bool
    ) -> None:
        self.bound = bound
        self.main = main
        # Only after each call of a head that takes batches is everything written before the next call.
        self.out = Collector(main, sides, output, copies=not (is_head and bound.is_batched))
        if bound.is_async:
            self.out.write_at_once()
        self.waiting: list[Any] = []
        self.counted = 0
        self.read = 0
        self.sent = 0

    @property
    def waits(self) -> bool:
        """Whether records wait in front of it until `settle`."""
        return self.bound.is_async or self.bound.is_batched

    def has_sent(self, count: int) -> None:
        """Sets how many records of a source's last read were sent."""
        self.sent = count

    def unsent(self) -> int:
        """The number of records of a source's last read that were not sent."""
        return self.read - self.sent


@final
class OperatorChain:
    """The operators of one task.

    Attributes:
        operators: all operators: the head first, each after the one it reads; chained sources last.
        inputs: the target of each gate's records.
        head: the operator that reads the gates; None without gates.
        has_waiting: whether records may wait in front of operators other than the head.
        settles_often: whether one of these operators is async, so that records should not wait for the end of a slice.
    """

    def __init__(self, task: TaskInformation, bound: Mapping[str, BoundOperator], output: TaskOutput) -> None:
        """Builds the chain. Raises ConfigError if the edges form no chain."""
        self._task = task
        self._output = output
        self.records_in = 0
        self._made: dict[str, ChainedOperator] = {}
        self._network: dict[str, list[int]] = {}
        for index, report in enumerate(task.outputs):
            self._network.setdefault(report.edge.source, []).append(index)
        self._behind: dict[str, list[ChainedEdge]] = {}
        for edge in task.chained:
            self._behind.setdefault(edge.source, []).append(edge)
        self._counting = self._choose_counters()
        names = [operator.name for operator in task.operators]
        if not set(self._network) | set(self._behind) <= set(names) or len(set(names)) != len(names):
            raise ConfigError(f"vertex {task.name!r}: its edges name operators that it does not have")
        order = [name for name in names if bound[name].kind is not OperatorKind.SOURCE]
        starts = [name for name in names if bound[name].kind is OperatorKind.SOURCE]
        targets: dict[str, Target] = {}
        head = task.inputs[0].edge.target if task.inputs else None
        for name in (*reversed(order), *starts):
            main, sides = self._joined(name, "", targets), self._sides(name, targets)
            made = self._made[name] = ChainedOperator(bound[name], main, sides, output, is_head=name == head)
            entry = _entry(made)
            targets[name] = _counted(made, entry) if name in self._counting else entry
        self.operators: Sequence[ChainedOperator] = [self._made[name] for name in names]
        self.sources: Sequence[ChainedOperator] = [self._made[name] for name in starts]
        self.head: ChainedOperator | None = None if head is None else self._made[head]
        self.inputs: Sequence[Target] = [
            self._input(given.edge.target, given.edge.input_number, targets, sets_input=False) for given in task.inputs
        ]
        self._waiting = [
            self._made[name] for name in order if self._made[name].waits and self._made[name] is not self.head
        ]
        self.has_waiting = bool(self._waiting)
        self.settles_often = any(operator.bound.is_async for operator in self._waiting)

    def end(self, *, raises: bool) -> None:
        """Ends the outputs of all operators; see `Collector.end`."""
        for operator in self.operators:
            operator.out.end(operator.bound.name, raises=raises)

    # Between two records.

    async def settle(self) -> None:
        """Writes staged records and processes waiting ones. Cancellation: the task must end."""
        await self._output.drain()
        for operator in self._waiting:
            while operator.waiting:
                records, operator.waiting[:] = list(operator.waiting), ()
                await self.process(operator, records)

    @property
    def is_settled(self) -> bool:
        """Whether no record is staged or waits."""
        return self._output.is_flushed and not any(operator.waiting for operator in self._waiting)

    async def process(self, operator: ChainedOperator, records: Records) -> None:
        """Makes an operator that is async, or takes lists, process records."""
        process, output = operator.bound.process, self._output
        arguments = (operator.out,) if operator.bound.wants_output else ()
        if operator.bound.is_batched:
            result = process(records, *arguments)
            if operator.bound.is_async:
                await result
            else:
                check_returned(operator.bound.name, result)
            await output.drain()
            return
        for record in records:
            await process(record, *arguments)
            await output.drain()

    # State.

    async def prepare(self, checkpoint_id: int) -> None:
        """Makes the operators prepare their commits for a checkpoint."""
        for operator in self.operators:
            await operator.bound.commits.prepare(checkpoint_id)

    async def complete(self, checkpoint_id: int) -> None:
        """Commits and notifies the operators after a checkpoint is complete."""
        for operator in self.operators:
            await operator.bound.commits.complete(checkpoint_id)
            if checkpoint_id != AT_THE_END:
                await operator.bound.call("checkpoint_completed", checkpoint_id)

    async def snapshot(self, checkpoint_id: int = -1) -> dict[str, dict[str, Any]]:
        """The state of every operator, by uid or name; see `recovery`. Without a checkpoint id it is the final state.

        All operators prepare their commits before any snapshot, since preparing may change the next operator's state.
        States are copied, because they are stored while the operators change them.
        """
        if checkpoint_id >= 0:
            await self.prepare(checkpoint_id)
        result: dict[str, dict[str, Any]] = {}
        for operator in self.operators:
            bound = operator.bound
            state: dict[str, Any] = {}
            if bound.has("snapshot"):
                bound.context.checkpoint_id = checkpoint_id
                arguments = (operator.unsent(),) if bound.kind is OperatorKind.SOURCE else ()
                state["own"] = plain_copy(await bound.call("snapshot", *arguments))
            keyed = bound.context.keyed_snapshot()
            if keyed:
                state["keyed"], state["begins"] = keyed, bound.context.keyed_begins()
            context = bound.context
            if context.max_parallelism != default_max_parallelism(context.parallelism):
                state["groups"] = context.max_parallelism
            if prepared := bound.commits.snapshot():
                state["prepared"] = prepared
            if bound.is_finished:
                state["finished"] = [bound.result]
            result[bound.context.state_id] = state
        return result

    def statistics(self) -> tuple[OperatorStatistics, ...]:
        """The record counts of each operator."""
        measured = {name: self._made[name].counted for name in self._counting}
        sent = [partition.counters.records for partition in self._output.partitions]
        came, went = self._solve(measured, sent, self.records_in)
        return tuple(
            OperatorStatistics(operator.name, came.get(operator.name, 0), went.get(operator.name, 0))
            for operator in self._task.operators
        )

    # Construction.

    def _joined(self, name: str, tag: str, targets: Mapping[str, Target]) -> Target:
        """All readers of one output of an operator, as one target."""
        inside = [
            self._input(edge.target, edge.input_number, targets, sets_input=True)
            for edge in self._behind.get(name, ())
            if edge.side_output == tag
        ]
        outside = [
            self._output.edges[index].target
            for index in self._network.get(name, ())
            if self._task.outputs[index].edge.side_output == tag
        ]
        return joined(outside, inside)

    def _sides(self, name: str, targets: Mapping[str, Target]) -> dict[str, Target]:
        tags = {edge.side_output for edge in self._behind.get(name, ())}
        tags |= {self._task.outputs[index].edge.side_output for index in self._network.get(name, ())}
        return {tag: self._joined(name, tag, targets) for tag in tags if tag}

    def _input(self, name: str, number: int, targets: Mapping[str, Target], *, sets_input: bool) -> Target:
        """The target of one input of an operator.

        Args:
            name: name of the operator.
            number: number of the input, from 1.
            targets: the targets of the operators built so far.
            sets_input: whether to set `context.input` before every record; for gates it is set before every buffer.
        """
        operator = self._made[name]
        if operator.bound.kind is not OperatorKind.CONNECT:
            return targets[name]
        if operator.bound.inputs:
            if not 1 <= number <= len(operator.bound.inputs):
                raise ConfigError(f"operator {name!r} has an input {number}, but no method process{number}")
            entry = _called(operator, operator.bound.inputs[number - 1])
            return _counted(operator, entry) if name in self._counting else entry
        return _with_input_number(operator, number, targets[name]) if sets_input else targets[name]

    # Counting.

    def _choose_counters(self) -> list[str]:
        """The operators whose records must be counted one by one: as few as possible."""
        chosen: list[str] = []
        while True:
            came, _ = self._solve(dict.fromkeys(chosen, 0), [0] * len(self._task.outputs), 0)
            missing = [operator.name for operator in self._task.operators if operator.name not in came]
            if not missing:
                return chosen
            chosen.append(missing[0])

    def _solve(
        self, counted: Mapping[str, int], sent: Sequence[int], records_in: int
    ) -> tuple[dict[str, int], dict[str, int]]:
        """The numbers of input and output records of every operator, as far as they follow from the known counts."""
        came, went = dict(counted), dict[str, int]()
        sources = [each.name for each in self._task.operators if each.kind is OperatorKind.SOURCE]
        for name in sources:
            came[name] = 0
        if len(sources) + bool(self._task.inputs) == 1:
            if sources:
                went[sources[0]] = records_in
            else:
                came[self._task.inputs[0].edge.target] = records_in
        kinds = {each.name: each.kind for each in self._task.operators}
        before = -1
        while len(came) + len(went) != before:
            before = len(came) + len(went)
            for name, kind in kinds.items():
                mains = [edge.target for edge in self._behind.get(name, ()) if not edge.side_output]
                known = [came[target] for target in mains if target in came]
                known += [
                    sent[index]
                    for index in self._network.get(name, ())
                    if not self._task.outputs[index].edge.side_output
                ]
                if known:
                    went.setdefault(name, known[0])
                if kind is OperatorKind.MAP:
                    if name in went:
                        came.setdefault(name, went[name])
                    elif name in came:
                        went[name] = came[name]
                if name in went:
                    for target in mains:
                        came.setdefault(target, went[name])
        return came, went


def _entry(operator: ChainedOperator) -> Target:
    """The target that makes an operator process records."""
    bound = operator.bound
    if operator.waits:
        return _entry_of_waiting(operator)
    if bound.kind is OperatorKind.SOURCE:
        return operator.main
    if bound.kind in (OperatorKind.MAP, OperatorKind.FILTER, OperatorKind.FLAT_MAP):
        return fused(FusedOperator(bound.name, bound.kind, bound.process), operator.main)
    return _called(operator, bound.process)


def _called(operator: ChainedOperator, function: Callable[..., Any]) -> Target:
    """The target of a function that returns no records: a process or a sink."""
    name = operator.bound.name
    if operator.bound.wants_output:
        return fused(FusedOperator(name, OperatorKind.PROCESS, function, operator.out))
    return fused(FusedOperator(name, OperatorKind.SINK, function))


def _entry_of_waiting(operator: ChainedOperator) -> Target:
    waiting, bound, out = operator.waiting, operator.bound, operator.out
    if bound.is_async:

        def push_later(records: Records) -> None:
            waiting.extend(listed(records))

        return Target(waiting.append, push_later)
    arguments = (out,) if bound.wants_output else ()
    process = bound.process

    def push_batch(records: Records) -> None:
        if waiting:
            earlier = list(waiting)
            waiting.clear()
            process(earlier, *arguments)
        check_returned(bound.name, process(records, *arguments))

    return Target(waiting.append, push_batch)


def _counted(operator: ChainedOperator, entry: Target) -> Target:
    inside, inside_batch = entry.push, entry.push_batch

    def push(record: Any) -> None:
        operator.counted += 1
        inside(record)

    def push_batch(records: Records) -> None:
        operator.counted += len(records)
        inside_batch(records)

    return Target(push, push_batch)


def _with_input_number(operator: ChainedOperator, number: int, entry: Target) -> Target:
    context = operator.bound.context
    inside, inside_batch = entry.push, entry.push_batch

    def push(record: Any) -> None:
        context.input = number
        inside(record)

    def push_batch(records: Records) -> None:
        context.input = number
        inside_batch(records)

    return Target(push, push_batch)
