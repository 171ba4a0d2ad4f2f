"""A chain of operators put together: a record goes through all of it before the next one begins.

Takes: operators, the edges between them, and where records leave the chain. Gives: functions that take records in, and
what is done between two records.

Rules:
- The functions are made once, from the last operator to the first: each knows the next one, and nothing is looked up
  for a record. Lists and arrays that an operator emits at once stay together as far as operators and writers take them.
- What cannot be done within a call waits in front of its operator: records for one that is async, and single records
  for one that takes several at a time. `settle` hands them over, before anything else happens; so between two records
  nothing is under way, and the state of all operators is that after the same record.
- Records are counted where they come in and leave; inside the chain only where the number does not follow from those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from ..errors import ConfigError
from ..schedule.descriptors.information import TaskInformation
from ..schedule.graph.job_graph import ChainedEdge, OperatorKind
from .commits import AT_THE_END
from .fused import FusedOperator, Records, Target, fused, listed
from .operators import BoundOperator
from .output import TaskOutput
from .reports import OperatorStatistics


@final
class Collector:
    """Where one operator's records go (an `Output`)."""

    __slots__ = ("_output", "_sides", "collect", "collect_batch")

    def __init__(self, main: Target, sides: Mapping[str, Target], output: TaskOutput) -> None:
        self.collect = main.push
        self.collect_batch = main.push_batch
        self._sides = sides
        self._output = output

    def write_at_once(self) -> None:
        """The operator is async: it may wait behind each record that it emits."""
        flush = self._output.flush

        def flushing(push: Callable[[Any], None]) -> Callable[[Any], None]:
            def push_and_flush(record: Any) -> None:
                push(record)
                flush()

            return push_and_flush

        self.collect, self.collect_batch = flushing(self.collect), flushing(self.collect_batch)
        self._sides = {tag: Target(flushing(side.push), side.push_batch) for tag, side in self._sides.items()}

    def collect_to(self, tag: str, record: Any) -> None:
        """Implements `Output.collect_to`."""
        side = self._sides.get(tag)
        if side is not None:
            side.push(record)

    async def emit(self, record: Any) -> None:
        """Implements `Output.emit`."""
        self.collect(record)
        await self._output.drain()

    async def emit_batch(self, records: Records) -> None:
        """Implements `Output.emit_batch`."""
        self.collect_batch(records)
        await self._output.drain()


@final
class ChainedOperator:
    """One operator in its place.

    Attributes:
        bound: the operator.
        out: where its records go.
        main: the same, as functions.
        waiting: records that `settle` hands to it.
        counted: records that came, where that is counted here.
        read: of a source, how many records it gave last.
        sent: how many of these were sent.
    """

    __slots__ = ("bound", "counted", "main", "out", "read", "sent", "waiting")

    def __init__(self, bound: BoundOperator, main: Target, sides: Mapping[str, Target], output: TaskOutput) -> None:
        self.bound = bound
        self.main = main
        self.out = Collector(main, sides, output)
        if bound.is_async:
            self.out.write_at_once()
        self.waiting: list[Any] = []
        self.counted = 0
        self.read = 0
        self.sent = 0

    @property
    def waits(self) -> bool:
        """Whether records wait in front of it."""
        return self.bound.is_async or self.bound.is_batched

    def has_sent(self, count: int) -> None:
        """So many of the records that a source gave last were sent."""
        self.sent = count

    def unsent(self) -> int:
        """How many of the records that a source gave last were not."""
        return self.read - self.sent


@final
class OperatorChain:
    """The operators of one task.

    Attributes:
        operators: the head first, then each behind the one it reads; sources that are inputs of the chain last.
        sources: those that are sources.
        inputs: for every gate what takes its records: one by one, several at once.
        head: the operator that reads the gates; None where there are none.
        has_waiting: whether records wait in front of operators behind the head.
        settles_often: whether something waits that should not wait for the end of a slice.
        records_in: that came through gates, or from sources.
    """

    def __init__(self, task: TaskInformation, bound: Mapping[str, BoundOperator], output: TaskOutput) -> None:
        """Puts them together.

        Raises:
            ConfigError: the edges make no chain.
        """
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
        for name in (*reversed(order), *starts):
            made = self._made[name] = ChainedOperator(
                bound[name], self._joined(name, "", targets), self._sides(name, targets), output
            )
            entry = _entry(made)
            targets[name] = _counted(made, entry) if name in self._counting else entry
        self.operators: Sequence[ChainedOperator] = [self._made[name] for name in names]
        self.sources: Sequence[ChainedOperator] = [self._made[name] for name in starts]
        self.head: ChainedOperator | None = self._made[task.inputs[0].edge.target] if task.inputs else None
        self.inputs: Sequence[Target] = [
            self._input(given.edge.target, given.edge.input_number, targets, tells=False) for given in task.inputs
        ]
        self._waiting = [
            self._made[name] for name in order if self._made[name].waits and self._made[name] is not self.head
        ]
        self.has_waiting = bool(self._waiting)
        self.settles_often = any(operator.bound.is_async for operator in self._waiting)

    # Between two records.

    async def settle(self) -> None:
        """Hands over what waits, and writes what found no buffer. Cancellation: the task has to end."""
        await self._output.drain()
        for operator in self._waiting:
            while operator.waiting:
                records, operator.waiting[:] = list(operator.waiting), ()
                await self.process(operator, records)

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits."""
        return self._output.is_flushed and not any(operator.waiting for operator in self._waiting)

    async def process(self, operator: ChainedOperator, records: Records) -> None:
        """Has an operator that is async, or takes several records at a time, process some."""
        process, output = operator.bound.process, self._output
        arguments = (operator.out,) if operator.bound.wants_output else ()
        if operator.bound.is_batched:
            result = process(records, *arguments)
            if operator.bound.is_async:
                await result
            await output.drain()
            return
        for record in records:
            await process(record, *arguments)
            await output.drain()

    # State.

    async def prepare(self, checkpoint_id: int) -> None:
        """Has operators prepare what they are to commit."""
        for operator in self.operators:
            await operator.bound.commits.prepare(checkpoint_id)

    async def complete(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: what was prepared is committed, and operators that want to know are notified."""
        for operator in self.operators:
            await operator.bound.commits.complete(checkpoint_id)
            if checkpoint_id != AT_THE_END:
                await operator.bound.call("checkpoint_completed", checkpoint_id)

    async def snapshot(self, checkpoint_id: int = -1) -> dict[str, dict[str, Any]]:
        """The state of every operator, by its uid or name; see `recovery`. Without a checkpoint it is the final one.

        Everything is prepared before anything is stored: an operator may prepare what one behind it holds.
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
                state["own"] = await bound.call("snapshot", *arguments)
            keyed = bound.context.keyed_snapshot()
            if keyed:
                state["keyed"], state["begins"] = keyed, bound.context.keyed_begins()
            if prepared := bound.commits.snapshot():
                state["prepared"] = prepared
            if bound.is_finished:
                state["finished"] = [bound.result]
            result[bound.context.state_id] = state
        return result

    def statistics(self) -> tuple[OperatorStatistics, ...]:
        """What each operator has taken and given so far."""
        measured = {name: self._made[name].counted for name in self._counting}
        sent = [partition.counters.records for partition in self._output.partitions]
        came, went = self._solve(measured, sent, self.records_in)
        return tuple(
            OperatorStatistics(operator.name, came.get(operator.name, 0), went.get(operator.name, 0))
            for operator in self._task.operators
        )

    # Putting together.

    def _joined(self, name: str, tag: str, targets: Mapping[str, Target]) -> Target:
        """All readers of an output of an operator, as one."""
        inside = [
            self._input(edge.target, edge.input_number, targets, tells=True)
            for edge in self._behind.get(name, ())
            if edge.side_output == tag
        ]
        outside = [
            self._output.edges[index].target
            for index in self._network.get(name, ())
            if self._task.outputs[index].edge.side_output == tag
        ]
        return _all([*inside, *outside])

    def _sides(self, name: str, targets: Mapping[str, Target]) -> dict[str, Target]:
        tags = {edge.side_output for edge in self._behind.get(name, ())}
        tags |= {self._task.outputs[index].edge.side_output for index in self._network.get(name, ())}
        return {tag: self._joined(name, tag, targets) for tag in tags if tag}

    def _input(self, name: str, number: int, targets: Mapping[str, Target], *, tells: bool) -> Target:
        """One input of an operator.

        Args:
            name: of the operator.
            number: which of its inputs, from 1.
            targets: of the operators so far.
            tells: whether to tell the operator's context which input it is, before every record; of what comes through
                gates it gets the channel before every buffer.
        """
        operator = self._made[name]
        if operator.bound.kind is not OperatorKind.CONNECT:
            return targets[name]
        if operator.bound.inputs:
            if not 1 <= number <= len(operator.bound.inputs):
                raise ConfigError(f"operator {name!r} has an input {number}, and no method process{number}")
            entry = _called(operator, operator.bound.inputs[number - 1])
            return _counted(operator, entry) if name in self._counting else entry
        return _telling(operator, number, targets[name]) if tells else targets[name]

    # Counting.

    def _choose_counters(self) -> list[str]:
        """The operators whose records have to be counted one by one: as few as possible."""
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
        """What came to and went out of every operator, as far as it follows from what is known."""
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


def _discard(record: Any) -> None:
    """Nobody reads it."""


_NOBODY: Final = Target(_discard, _discard)


def _all(targets: Sequence[Target]) -> Target:
    """Several as one."""
    if len(targets) < 2:
        return targets[0] if targets else _NOBODY
    pushes = [target.push for target in targets]
    batches = [target.push_batch for target in targets]
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


def _entry(operator: ChainedOperator) -> Target:
    """What takes an operator's records."""
    bound = operator.bound
    if operator.waits:
        return _entry_of_waiting(operator)
    if bound.kind is OperatorKind.SOURCE:
        return operator.main
    if bound.kind in (OperatorKind.MAP, OperatorKind.FILTER, OperatorKind.FLAT_MAP):
        return fused(FusedOperator(bound.name, bound.kind, bound.process), operator.main)
    return _called(operator, bound.process)


def _called(operator: ChainedOperator, function: Callable[..., Any]) -> Target:
    """A function that emits by itself, or not at all."""
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
        process(records, *arguments)

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


def _telling(operator: ChainedOperator, number: int, entry: Target) -> Target:
    context = operator.bound.context
    inside, inside_batch = entry.push, entry.push_batch

    def push(record: Any) -> None:
        context.input = number
        inside(record)

    def push_batch(records: Records) -> None:
        context.input = number
        inside_batch(records)

    return Target(push, push_batch)
