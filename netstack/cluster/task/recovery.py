"""Redistributes a checkpoint to the operators of the next run, with other chains and another parallelism if necessary.

Takes: the snapshots of a checkpoint, each of one subtask with its chain. Gives: for a subtask of the next run the state
of each of its operators, and the records that were in flight to it.

    a snapshot's `operator`: {uid or name: {"own": the result of snapshot(), "keyed": {state: see `stored_state`},
                                            "begins": {state: the type of its default},
                                            "groups": number of key groups, if not the default}}
    its channels: named by `EdgeId.partition`, which does not depend on chains, attempts and vertices

Rules: state of operators that the job does not have is ignored. The JobManager has already refused the checkpoint, or
was allowed to drop such state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from ...base.errors import CheckpointError, StateMismatch
from ...exchange.record.formats import format_named
from ...exchange.record.stream_records import StreamRecords
from ...schedule.checkpoint.recovery import Exchange, TaskPlan, recover
from ...schedule.checkpoint.snapshot import ChannelBytes, TaskSnapshot
from ...schedule.descriptors.information import (
    EdgeId,
    InputInformation,
    JobInformation,
    TaskInformation,
    in_flight_format,
)
from ...schedule.graph.job_graph import DistributionPattern
from ...schedule.topology.distribution import static_input
from .keyed_state import plain_copy
from .operators import BoundOperator

_KEYED: Final = "\0"
"""Separates the names of an operator and its keyed state, since each keyed state is planned like a task of its own."""


@final
@dataclass(slots=True)
class RestoredTask:
    """The restored state of one subtask.

    Attributes:
        own: for each operator with own state the results of `snapshot` in the subtasks that this one replaces. The list
            is empty in some subtasks if the parallelism grew.
        keyed: for each operator its keyed states, with the keys of this subtask.
        prepared: for each operator its prepared commits, which are committed (again).
        finished: for each finished operator the result of `finish`.
        begins: for each operator the types of the default values of its keyed states.
        parallelism: the former parallelism of each operator; 0 for a new one.
        records: for each gate the records in flight: partitions in checkpoints, and whole framed records, in order.
    """

    own: dict[str, list[Any]] = field(default_factory=dict)
    keyed: dict[str, dict[str, Mapping[Any, Any]]] = field(default_factory=dict)
    prepared: dict[str, list[Any]] = field(default_factory=dict)
    finished: dict[str, Any] = field(default_factory=dict)
    begins: dict[str, dict[str, str]] = field(default_factory=dict)
    parallelism: dict[str, int] = field(default_factory=dict)
    records: list[Sequence[tuple[str, bytes]]] = field(default_factory=list)


@final
class RestoredCheckpoint:
    """One checkpoint, read once for all tasks of a job that run in one TaskManager.

    Args:
        snapshots: the snapshots of all subtasks, from `CheckpointStorage.read`.
        path: its folder, for messages.
        has_heads: whether records have the heads of Flink's stream records here (`NetworkConfig.as_flink`).

    Raises:
        CheckpointError: a snapshot is not one of a chain of operators.
    """

    def __init__(self, snapshots: Sequence[TaskSnapshot], path: str = "", *, has_heads: bool = False) -> None:
        self.path = path
        self._has_heads = has_heads
        self._states: dict[str, dict[int, dict[str, Any]]] = {}
        self._arrived: dict[EdgeId, ChannelBytes] = {}
        self._unsent: dict[EdgeId, ChannelBytes] = {}
        self._tasks: dict[str, list[RestoredTask]] = {}
        self._stateful: set[str] = set()
        for snapshot in snapshots:
            if not isinstance(snapshot.operator, dict):
                raise CheckpointError(
                    f"the checkpoint's state of {snapshot.task}-{snapshot.subtask} is no state of a chain of operators;"
                    " it was written by another release of netstack"
                )
            for operator, state in snapshot.operator.items():
                if snapshot.subtask in self._states.setdefault(operator, {}):
                    raise CheckpointError(
                        f"the checkpoint has two states of operator {operator!r} for subtask {snapshot.subtask}"
                    )
                self._states[operator][snapshot.subtask] = state
                if "own" in state:
                    self._stateful.add(operator)
            for entry, channels in ((self._arrived, snapshot.inputs), (self._unsent, snapshot.outputs)):
                for channel, data in channels.items():
                    if data:
                        edge = _edge_of(channel[0])[0]
                        entry.setdefault(edge, {})[channel] = data

    def of(self, job: JobInformation, task: TaskInformation, subtask: int, load: Callable[[str], Any]) -> RestoredTask:
        """The restored state of a subtask. The first call redistributes the state of all subtasks of the vertex.

        Returns copies, since operators change their state and another attempt may start from the same checkpoint.

        Raises:
            StateMismatch: the checkpoint does not fit the job; the text says what to do.
        """
        snapshot = self._tasks.get(task.name)
        if snapshot is None:
            try:
                snapshot = self._tasks[task.name] = self._share_out(job, task, load)
            except CheckpointError as error:  # every attempt would fail alike
                where = f"{task.name} cannot continue from {self.path}: " if self.path else ""
                raise StateMismatch(f"{where}{error}") from error
        mine = snapshot[subtask]
        return replace(mine, own=plain_copy(mine.own), keyed=plain_copy(mine.keyed), prepared=plain_copy(mine.prepared))

    def _share_out(self, job: JobInformation, task: TaskInformation, load: Callable[[str], Any]) -> list[RestoredTask]:
        names = [operator.name for operator in task.operators]
        restored = [RestoredTask(records=[()] * len(task.inputs)) for _ in range(task.parallelism)]
        groups: dict[str, int] = {}
        snapshots: list[TaskSnapshot] = []
        plans: list[TaskPlan] = []
        for name in names:
            states = self._states.get(job.state_id(name), {})
            groups[name] = next((state["groups"] for state in states.values() if "groups" in state), 0)
            begins = {key: report for state in states.values() for key, report in state.get("begins", {}).items()}
            results = {index: state["finished"][0] for index, state in states.items() if "finished" in state}
            if len(states) != task.parallelism and (
                len(results) < len(states) or any(result is not None for result in results.values())
            ):
                results = {}  # their state moves to other subtasks, which compute the results again
            for index, each in enumerate(restored):
                each.parallelism[name] = len(states)
                each.begins[name] = begins
                if index in results or (results and len(states) != task.parallelism):
                    each.finished[name] = results.get(index)
            for index, state in sorted(states.items()):
                restored[index % task.parallelism].prepared.setdefault(name, []).extend(state.get("prepared", ()))
            snapshots += [TaskSnapshot(name, index, state.get("own", _NOTHING)) for index, state in states.items()]
            keyed = sorted({state for each in states.values() for state in each.get("keyed", ())})
            plans += [
                TaskPlan(name + _KEYED + state, task.parallelism, (), True, task.max_parallelism) for state in keyed
            ]
            snapshots += [
                TaskSnapshot(name + _KEYED + state, index, each.get("keyed", {}).get(state, {}))
                for state in keyed
                for index, each in states.items()
            ]
            exchanges = tuple(
                self._exchange(number, given, job, load, groups[name])
                for number, given in enumerate(task.inputs)
                if given.edge.target == name
            )
            plans.append(TaskPlan(name, task.parallelism, exchanges, False, task.max_parallelism))
        for given in task.inputs:
            arrived, unsent = self._in_flight(given, job)
            snapshots.append(TaskSnapshot(given.edge.target, 0, _NOTHING, arrived, unsent))
        self._take(job, restored, recover(_merged(snapshots), plans))
        return restored

    def _take(self, job: JobInformation, restored: Sequence[RestoredTask], shared: Mapping[str, Sequence[Any]]) -> None:
        for planned, parts in shared.items():
            name, is_keyed, state = planned.partition(_KEYED)
            for mine, part in zip(restored, parts, strict=True):
                if is_keyed:
                    mine.keyed.setdefault(name, {})[state] = part.operator_states[0]
                else:
                    if job.state_id(name) in self._stateful:
                        mine.own[name] = [each for each in part.operator_states if each is not _NOTHING]
                    for number, records in part.records.items():
                        mine.records[int(number)] = records

    def _exchange(
        self,
        number: int,
        given: InputInformation,
        job: JobInformation,
        load: Callable[[str], Any],
        key_groups: int,
    ) -> Exchange:
        producers = max(len(self._states.get(job.state_id(given.edge.source), ())), 1)
        kept, label = job.kept_edge(given.edge), in_flight_format(given.format, has_heads=self._has_heads)
        partitions = tuple(kept.partition(producer, label) for producer in range(producers))
        key_of = channel_of = None
        if given.partitioner in ("hash", "custom"):
            format = format_named(given.format)
            decode = (StreamRecords(format) if self._has_heads else format).decode
            function = load(given.function) if given.function else None
            if given.partitioner == "custom":

                def channel_of(data: bytes, channels: int) -> int:
                    assert function is not None
                    return int(function(decode(memoryview(data)), channels))
            elif function is None:

                def key_of(data: bytes) -> Any:
                    return decode(memoryview(data))
            else:

                def key_of(data: bytes) -> Any:
                    return function(decode(memoryview(data)))

        return Exchange(str(number), partitions, key_of, channel_of, given.function, key_groups)

    def _in_flight(self, given: InputInformation, job: JobInformation) -> tuple[ChannelBytes, ChannelBytes]:
        """The records in flight on an edge, with channels named by consumer instead of subpartition."""
        edge = job.kept_edge(given.edge)
        arrived, unsent = self._arrived.get(edge, {}), self._unsent.get(edge, {})
        label = in_flight_format(given.format, has_heads=self._has_heads)
        for partition, _ in (*arrived, *unsent):
            written = _edge_of(partition)[2]
            if written != label:
                raise CheckpointError(
                    f"records in flight on {given.edge} were written as {written}, but are read as {label}: keep the"
                    " format, and the profile of the network (--as, NetworkConfig.flink), or start from a savepoint,"
                    " which has no records in flight"
                )
        if not given.is_pointwise or not (arrived or unsent):
            return dict(arrived), dict(unsent)
        producers, consumers = (len(self._states.get(name, ())) for name in (edge.source, edge.target))
        reads = static_input(DistributionPattern.POINTWISE, producers, consumers)
        consumer_of = {
            (partition, subpartition): consumer
            for consumer in range(consumers)
            for piece in reads.pieces_of(consumer)
            for partition in piece.partitions
            for subpartition in piece.subpartitions
        }

        def renamed(channels: ChannelBytes) -> ChannelBytes:
            return {
                (name, consumer_of[_edge_of(name)[1], subpartition]): data
                for (name, subpartition), data in channels.items()
            }

        return renamed(arrived), renamed(unsent)


_NOTHING: Final = object()
"""Marks an operator without own state, since None can be a state."""


def _edge_of(partition: str) -> tuple[EdgeId, int, str]:
    try:
        return EdgeId.of_partition(partition)
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint holds records in flight in {partition[:80]!r}, which is no edge between operators; it was"
            " written by another release of netstack"
        ) from error


def _merged(snapshots: Sequence[TaskSnapshot]) -> list[TaskSnapshot]:
    """Merges snapshots of the same planned subtask."""
    merged: dict[tuple[str, int], TaskSnapshot] = {}
    for snapshot in snapshots:
        earlier = merged.get((snapshot.task, snapshot.subtask))
        if earlier is None:
            merged[snapshot.task, snapshot.subtask] = snapshot
        else:
            merged[snapshot.task, snapshot.subtask] = TaskSnapshot(
                earlier.task,
                earlier.subtask,
                earlier.operator,
                {**earlier.inputs, **snapshot.inputs},
                {**earlier.outputs, **snapshot.outputs},
            )
    return list(merged.values())


async def open_operator(bound: BoundOperator, restored: RestoredTask, checkpoint: int | None) -> None:
    """Opens an operator and restores its state.

    Raises:
        StateMismatch: the operator has own state in the checkpoint, but no method restore.
        Exception: the operator raised it.
    """
    bound.context.restore_keyed(restored.keyed.get(bound.name, {}), restored.begins.get(bound.name))
    await bound.call("open", bound.context)
    states = restored.own.get(bound.name)
    if bound.name in restored.finished:
        bound.is_finished, bound.result = True, restored.finished[bound.name]
    if states is not None and bound.has("restore"):
        await bound.call("restore", states)
    elif states and states != [None]:
        raise StateMismatch(
            f"operator {bound.name!r} has own state in checkpoint {checkpoint}, but no method restore; add the method,"
            " or drop the state (with another uid, and --allow-non-restored-state)"
        )
    await bound.commits.restore(restored.prepared.get(bound.name, []))


def check_rescaled(operators: Mapping[str, bool], restored: RestoredTask, task: TaskInformation) -> None:
    """Checks that operators with fixed parallelism keep it.

    Raises:
        StateMismatch: the parallelism of such an operator has changed.
    """
    for name, is_fixed in operators.items():
        before = restored.parallelism.get(name, 0)
        if is_fixed and before and before != task.parallelism:
            raise StateMismatch(
                f"source {name!r} is a function, whose position cannot be redistributed to another number of subtasks;"
                f" keep its parallelism {before}, or write it as a class with restore"
            )
