"""Shares a checkpoint out among the subtasks of the next run, also when their number has changed.

Takes: the snapshots of all subtasks, and what the next run looks like. Gives: for every subtask the operator states it
goes on with, and the records that were in flight and are now its own, to be processed before any new one.

Rules:
- What was in flight on a channel is what had arrived there, then what had not been sent. Together these are whole
  framed records (`record/framing`), wherever they were cut.
- A keyed exchange gives a record to the owner of its key's group, a custom one to whom its function says, any other to
  its old consumer's index modulo the new number. With the same number of subtasks everything stays where it was.
- The records of one old channel keep their order. So do those of one key from one producer.
- Nothing is dropped in silence: a state or a record that has no place in the next run is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ..errors import CheckpointError, ConfigError
from ..keygroups import canonical_key, check_parallelism, default_max_parallelism, key_group, operator_index
from ..record.framing import LENGTH, PREFIX_BYTES, RUN_FLAG, RUN_HEAD_BYTES, explain_run
from .snapshot import ChannelKey, TaskSnapshot

LOGGER: Final = logging.getLogger("netstack")

_InFlight: TypeAlias = dict[ChannelKey, list[bytes]]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One input of a task: the partitions it read when the checkpoint was taken.

    Attributes:
        name: for finding its records again in `RecoveredTask.records`.
        partitions: the names that its producers' partitions had then, in their producers' order.
        key_of: the key of a record, from the bytes of the record; None where records are not keyed.
        channel_of: the subtask of a record, from its bytes and the number of subtasks; None where no function says.
    """

    name: str
    partitions: tuple[str, ...]
    key_of: Callable[[bytes], Any] | None = None
    channel_of: Callable[[bytes, int], int] | None = None


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task of the next run.

    Attributes:
        task: its name, as in the checkpoint; one that is not there starts empty.
        parallelism: how many subtasks it has now.
        exchanges: its inputs.
        keyed_state: the operator's state is by key, a dict or a list of [key, value], and is shared out by key group.
            Otherwise the state of old subtask
            i goes to subtask i modulo the new number, as a whole.
        max_parallelism: the number of key groups, as its selectors have it; None as they choose for None.
    """

    task: str
    parallelism: int
    exchanges: tuple[Exchange, ...] = ()
    keyed_state: bool = False
    max_parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class RecoveredTask:
    """What one subtask of the next run begins with.

    Attributes:
        task: its name.
        subtask: which of its subtasks.
        operator_states: of the old subtasks whose work it goes on with, by their index; keyed state is always one dict,
            by `canonical_key`.
        records: the bytes of the records in flight to it, without length prefixes, by the name of the exchange.
    """

    task: str
    subtask: int
    operator_states: list[Any] = field(default_factory=list)
    records: dict[str, list[bytes]] = field(default_factory=dict)


def recover(snapshots: Iterable[TaskSnapshot], plans: Iterable[TaskPlan]) -> dict[str, list[RecoveredTask]]:
    """Shares out what a checkpoint holds.

    Args:
        snapshots: of all subtasks, as `CheckpointStorage.read` gives them.
        plans: all tasks of the next run.

    Returns:
        The subtasks of every planned task, in order.

    Raises:
        ConfigError: the plans contradict each other.
        CheckpointError: a state or a record that is not in the plans, or bytes that are not whole records.
    """
    by_task: dict[str, list[TaskSnapshot]] = {}
    for snapshot in sorted(snapshots, key=lambda snapshot: (snapshot.task, snapshot.subtask)):
        by_task.setdefault(snapshot.task, []).append(snapshot)
    planned: dict[str, TaskPlan] = {}
    for plan in plans:
        if planned.setdefault(plan.task, plan) is not plan:
            raise ConfigError(f"two plans for task {plan.task!r}; give one")
    for task, group in by_task.items():
        if task not in planned:
            raise CheckpointError(f"the checkpoint holds state of task {task!r}, which is not planned; plan it, too")
        _check_all_there(task, group)
    in_flight = _in_flight(by_task, planned)
    return {task: _recover_task(plan, by_task.get(task, []), in_flight) for task, plan in planned.items()}


def split_records(data: bytes) -> list[bytes]:
    """The records in framed bytes, without their lengths.

    Raises:
        CheckpointError: the bytes end inside a record; the text says only where.
    """
    records: list[bytes] = []
    position = 0
    end = len(data)
    while position < end:
        count, width = 1, 0
        start = stop = position + PREFIX_BYTES
        if start <= end:
            (width,) = LENGTH.unpack_from(data, position)
            if width >= RUN_FLAG:
                count = width - RUN_FLAG
                start = position + RUN_HEAD_BYTES
                width = LENGTH.unpack_from(data, position + PREFIX_BYTES)[0] if start <= end else 0
                wrong = explain_run(count, width) if start <= end else ""
                if wrong:
                    raise CheckpointError(f"record {len(records)} begins at byte {position} of {end}: {wrong}")
            stop = start + count * width
        if stop > end:
            raise CheckpointError(
                f"record {len(records)} begins at byte {position} of {end} and needs {stop - position}"
                + (f", with the {count - 1} behind it" if count > 1 else "")
            )
        if count == 1:
            records.append(data[start:stop])
        else:
            records += [data[each : each + width] for each in range(start, stop, width)]
        position = stop
    return records


def _check_all_there(task: str, group: Sequence[TaskSnapshot]) -> None:
    indices = [snapshot.subtask for snapshot in group]
    if indices != [*range(len(group))]:
        raise CheckpointError(
            f"the checkpoint holds subtasks {indices} of task {task!r}; give every one of them, from 0 on, once"
        )


def _in_flight(by_task: dict[str, list[TaskSnapshot]], planned: dict[str, TaskPlan]) -> _InFlight:
    """The records of every channel, in order. Each channel is one of the task that the plans say consumes it."""
    consumers: dict[str, str] = {}
    for plan in planned.values():
        for exchange in plan.exchanges:
            for partition in exchange.partitions:
                if partition in consumers:
                    raise ConfigError(f"partition {partition!r} is in two exchanges; it has one consumer")
                consumers[partition] = plan.task
    arrived: dict[ChannelKey, bytes] = {}
    unsent: dict[ChannelKey, bytes] = {}
    for task, group in by_task.items():
        for snapshot in group:
            for (partition, subpartition), data in snapshot.inputs.items():
                if consumers.get(partition, task) != task:
                    raise CheckpointError(
                        f"{task}-{snapshot.subtask} had read partition {partition!r}; the plans give it to"
                        f" {consumers[partition]!r}"
                    )
                _add(arrived, (partition, subpartition), data)
            for channel, data in snapshot.outputs.items():
                _add(unsent, channel, data)
    records: _InFlight = {}
    for channel in sorted(arrived.keys() | unsent.keys()):
        partition, subpartition = channel
        first, second = arrived.get(channel, b""), unsent.get(channel, b"")
        try:
            records[channel] = split_records(first + second)
        except CheckpointError as error:
            raise CheckpointError(
                f"subpartition {subpartition} of {partition!r}: {len(first)} bytes that had arrived and {len(second)}"
                f" that had not been sent are not whole records: {error}; the snapshots are not of one checkpoint"
            ) from error
        if records[channel] and partition not in consumers:
            raise CheckpointError(
                f"{len(records[channel])} records were in flight in partition {partition!r}, which is in no exchange of"
                " the plans; name it in its consumer's"
            )
    return records


def _add(found: dict[ChannelKey, bytes], channel: ChannelKey, data: bytes) -> None:
    if channel in found:
        raise CheckpointError(
            f"two snapshots hold subpartition {channel[1]} of {channel[0]!r}; partitions' names are unique in a job"
        )
    found[channel] = data


def _recover_task(plan: TaskPlan, group: Sequence[TaskSnapshot], in_flight: _InFlight) -> list[RecoveredTask]:
    owner = _owner(plan)
    subtasks = [
        RecoveredTask(plan.task, index, records={exchange.name: [] for exchange in plan.exchanges})
        for index in range(plan.parallelism)
    ]
    if plan.keyed_state:
        _share_keyed_state(subtasks, group, owner)
    else:
        for snapshot in group:
            subtasks[snapshot.subtask % plan.parallelism].operator_states.append(snapshot.operator)
    for exchange in plan.exchanges:
        order = {partition: index for index, partition in enumerate(exchange.partitions)}
        channels = [channel for channel in in_flight if channel[0] in order]
        for channel in sorted(channels, key=lambda channel: (order[channel[0]], channel[1])):
            if exchange.channel_of is not None:
                for record in in_flight[channel]:
                    chosen = exchange.channel_of(record, plan.parallelism)
                    subtasks[chosen].records[exchange.name].append(record)
            elif exchange.key_of is None:
                subtasks[channel[1] % plan.parallelism].records[exchange.name].extend(in_flight[channel])
            else:
                for record in in_flight[channel]:
                    subtasks[owner(exchange.key_of(record))].records[exchange.name].append(record)
    return subtasks


def _owner(plan: TaskPlan) -> Callable[[object], int]:
    """The subtask of a key."""
    parallelism = plan.parallelism
    groups = default_max_parallelism(parallelism) if plan.max_parallelism is None else plan.max_parallelism
    check_parallelism(parallelism, groups)
    return lambda key: operator_index(key_group(key, groups), parallelism, groups)


def _share_keyed_state(
    subtasks: Sequence[RecoveredTask], group: Sequence[TaskSnapshot], owner: Callable[[object], int]
) -> None:
    states: list[dict[Any, Any]] = [{} for _ in subtasks]
    for snapshot in group:
        state = {} if snapshot.operator is None else snapshot.operator
        is_list = isinstance(state, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in state)
        if not is_list and not isinstance(state, dict):
            raise CheckpointError(
                f"the state of {snapshot.task}-{snapshot.subtask} is planned as keyed and is a {type(state).__name__};"
                " plan it without keyed_state"
            )
        for key, value in state if is_list else state.items():
            form, mine = canonical_key(key), states[owner(key)]
            if form not in mine:
                mine[form] = value
            elif key != key:  # as releases before 0.4.0 kept them
                LOGGER.warning("the state of %s has several values for NaN; the first counts", snapshot.task)
            else:
                raise CheckpointError(
                    f"{snapshot.task}-{snapshot.subtask} and a subtask before it both hold key {key!r}; keyed state has"
                    " every key once"
                )
    for subtask, state in zip(subtasks, states, strict=True):
        subtask.operator_states.append(state)
