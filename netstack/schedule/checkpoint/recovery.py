"""Redistributes a checkpoint to the subtasks of the next run, also if their number has changed.

Takes: the snapshots of all subtasks, and the plan of the next run. Gives: for every subtask its operator states, and
the records in flight that it must process before any new one.

Rules:
- The data in flight on a channel is the data that had arrived, followed by the data that had not been sent. Together
  they are whole framed records (`exchange/record/framing`), even if one of them was split.
- With unchanged parallelism nothing moves, and no function of the job is called. Otherwise a record of a keyed exchange
  goes to the owner of its key group, a record of a custom exchange to the subtask that the function returns, any other
  record to its old consumer's index modulo the new parallelism.
- A key function gets the value that went through the format. If it does not return a key of the subtask that the record
  was sent to, the checkpoint is refused, since the record's state is elsewhere. Lists in keys count as tuples, because
  formats make lists of them.
- The records of an old channel keep their order. So do those of one key from one producer.
- Nothing is dropped silently: a state or record without a place in the next run is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ...base.errors import CheckpointError, ConfigError
from ...base.text.safe_text import safe_error, safe_repr, type_text
from ...exchange.keygroups import canonical_key, check_parallelism, default_max_parallelism, key_group, operator_index
from ...exchange.record.framing import LENGTH, PREFIX_BYTES, RUN_FLAG, RUN_HEAD_BYTES, explain_run, frame
from .snapshot import ChannelKey, TaskSnapshot

LOGGER: Final = logging.getLogger("netstack")

_InFlight: TypeAlias = dict[ChannelKey, bytes]
"""Whole framed records."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One input of a task: the partitions it read when the checkpoint was taken.

    Attributes:
        name: key of its records in `RecoveredTask.records`.
        partitions: names of its producers' partitions at that time, in order of the producers.
        key_of: returns the key of an encoded record; None if the exchange is not keyed.
        channel_of: returns the subtask for an encoded record and a number of subtasks; None if the exchange is not
            custom.
        function: name of the user's function in these two, for messages.
        key_groups: number of key groups at that time; 0: the default for the parallelism at that time.
    """

    name: str
    partitions: tuple[str, ...]
    key_of: Callable[[bytes], Any] | None = None
    channel_of: Callable[[bytes, int], int] | None = None
    function: str = ""
    key_groups: int = 0


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task of the next run.

    Attributes:
        task: name of the task, as in the checkpoint; a task that is not in the checkpoint starts empty.
        exchanges: its inputs.
        keyed_state: whether the operator's state is keyed (a dict, or a list of [key, value]) and redistributed by key
            group. Otherwise the whole state of old subtask i goes to subtask i modulo the new parallelism.
        max_parallelism: number of key groups, as for its selectors; None chooses the default.
    """

    task: str
    parallelism: int
    exchanges: tuple[Exchange, ...] = ()
    keyed_state: bool = False
    max_parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class RecoveredTask:
    """The restored state of one subtask of the next run.

    Attributes:
        operator_states: states of the old subtasks that it replaces, in their order; keyed state is always one dict, by
            `canonical_key`.
        records: by name of the exchange, the records in flight to it: partition, and whole framed records, in order.
    """

    task: str
    subtask: int
    operator_states: list[Any] = field(default_factory=list)
    records: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)


def recover(snapshots: Iterable[TaskSnapshot], plans: Iterable[TaskPlan]) -> dict[str, list[RecoveredTask]]:
    """Redistributes a checkpoint.

    Args:
        snapshots: the snapshots of all subtasks, from `CheckpointStorage.read`.
        plans: all tasks of the next run.

    Returns:
        The subtasks of every planned task, in order.

    Raises:
        ConfigError: the plans contradict each other.
        CheckpointError: the plans have no place for a state or a record, the data in flight is not whole records, or a
            function of the job fails for a record, or returns another key than before.
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
            raise CheckpointError(f"the checkpoint has state of task {task!r}, which has no plan; add one")
        _check_subtasks(task, group)
    in_flight = _in_flight(by_task, planned)
    return {task: _recover_task(plan, by_task.get(task, []), in_flight) for task, plan in planned.items()}


def split_records(data: bytes) -> list[bytes]:
    """Splits framed bytes into records without length prefixes.

    Raises:
        CheckpointError: the bytes end in the middle of a record; the text says only where.
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
                + (f", with the next {count - 1}" if count > 1 else "")
            )
        if count == 1:
            records.append(data[start:stop])
        else:
            records += [data[each : each + width] for each in range(start, stop, width)]
        position = stop
    return records


def _check_subtasks(task: str, group: Sequence[TaskSnapshot]) -> None:
    indices = [snapshot.subtask for snapshot in group]
    if indices != [*range(len(group))]:
        raise CheckpointError(
            f"the checkpoint has snapshots of subtasks {indices} of task {task!r}; give exactly one of each, from 0 on"
        )


def _in_flight(by_task: dict[str, list[TaskSnapshot]], planned: dict[str, TaskPlan]) -> _InFlight:
    """The records of every channel, in order. A channel belongs to the task that consumes it according to the plans."""
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
            count = len(split_records(first + second))
        except CheckpointError as error:
            raise CheckpointError(
                f"subpartition {subpartition} of {partition!r}: {len(first)} bytes that had arrived and {len(second)}"
                f" that had not been sent are not whole records: {error}; the snapshots are not of one checkpoint"
            ) from error
        records[channel] = first + second
        if count and partition not in consumers:
            raise CheckpointError(
                f"{count} records were in flight in partition {partition!r}, which is in no exchange of"
                " the plans; name it in its consumer's"
            )
    return records


def _add(channels: dict[ChannelKey, bytes], channel: ChannelKey, data: bytes) -> None:
    if channel in channels:
        raise CheckpointError(
            f"two snapshots contain subpartition {channel[1]} of {channel[0]!r}; names of partitions must be unique"
        )
    channels[channel] = data


def _recover_task(plan: TaskPlan, group: Sequence[TaskSnapshot], in_flight: _InFlight) -> list[RecoveredTask]:
    owner = _owner(plan.parallelism, plan.max_parallelism)
    subtasks = [
        RecoveredTask(plan.task, index, records={exchange.name: [] for exchange in plan.exchanges})
        for index in range(plan.parallelism)
    ]
    if plan.keyed_state:
        _distribute_keyed_state(subtasks, group, owner)
    else:
        for snapshot in group:
            subtasks[snapshot.subtask % plan.parallelism].operator_states.append(snapshot.operator)
    for exchange in plan.exchanges:
        order = {partition: index for index, partition in enumerate(exchange.partitions)}
        channels = [channel for channel in in_flight if channel[0] in order and in_flight[channel]]
        for channel in sorted(channels, key=lambda channel: (order[channel[0]], channel[1])):
            for subtask, data in _shares(plan, exchange, len(group), channel, in_flight[channel]):
                subtasks[subtask].records[exchange.name].append((channel[0], data))
    return subtasks


def _shares(
    plan: TaskPlan, exchange: Exchange, before: int, channel: ChannelKey, data: bytes
) -> Iterable[tuple[int, bytes]]:
    """The subtasks that get the records of an old channel, with the records of each, framed.

    Args:
        plan: the consumer.
        exchange: the consumer's input.
        before: the consumer's parallelism at the time of the checkpoint.
        channel: the old channel.
        data: its records.
    """
    is_keyed = exchange.key_of is not None
    groups = exchange.key_groups or default_max_parallelism(before)
    is_alike = not is_keyed or groups == (plan.max_parallelism or default_max_parallelism(plan.parallelism))
    if plan.parallelism == before and is_alike:
        return [(channel[1], data)]
    if not is_keyed and exchange.channel_of is None:
        return [(channel[1] % plan.parallelism, data)]
    owner, owner_before = _owner(plan.parallelism, plan.max_parallelism), _owner(before, groups)
    shares: dict[int, list[bytes]] = {}
    for number, record in enumerate(split_records(data)):
        where = f"record {number} in flight to subtask {channel[1]}, in {channel[0]!r}"
        try:
            if exchange.channel_of is not None:
                subtask, is_same = exchange.channel_of(record, plan.parallelism), True
                if not 0 <= subtask < plan.parallelism:
                    raise ConfigError(f"it returned subtask {subtask} of {plan.parallelism}")
            else:
                assert exchange.key_of is not None
                key = _with_tuples(exchange.key_of(record))
                subtask, is_same = owner(key), owner_before(key) == channel[1]
        except (Exception, SystemExit) as error:  # of user code
            raise CheckpointError(
                f"{exchange.function or 'the format'} fails for {where}: {safe_error(error)};"
                " keep the parallelism, or change it with a savepoint, which has no records in flight"
            ) from error
        if not is_same:
            raise CheckpointError(
                f"{exchange.function or 'the record'} gives the key {safe_repr(key)} for {where}, but before the"
                " checkpoint it gave a key of another subtask: it depends on what the format does not keep, such as"
                " tuples; keep the parallelism, or change it with a savepoint, which has no records in flight"
            )
        shares.setdefault(subtask, []).append(frame(record))
    return [(subtask, b"".join(records)) for subtask, records in sorted(shares.items())]


def _with_tuples(key: Any) -> Any:
    """A key with tuples in place of lists."""
    return tuple(map(_with_tuples, key)) if isinstance(key, list | tuple) else key


def _owner(parallelism: int, max_parallelism: int | None) -> Callable[[object], int]:
    """Returns a function that maps a key to its subtask."""
    groups = default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
    check_parallelism(parallelism, groups)
    return lambda key: operator_index(key_group(key, groups), parallelism, groups)


def _distribute_keyed_state(
    subtasks: Sequence[RecoveredTask], group: Sequence[TaskSnapshot], owner: Callable[[object], int]
) -> None:
    states: list[dict[Any, Any]] = [{} for _ in subtasks]
    for snapshot in group:
        state = {} if snapshot.operator is None else snapshot.operator
        is_list = isinstance(state, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in state)
        if not is_list and not isinstance(state, dict):
            raise CheckpointError(
                f"the state of {snapshot.task}-{snapshot.subtask} is planned as keyed but is {type_text(state)};"
                " plan it without keyed_state"
            )
        for key, value in state if is_list else state.items():
            form, mine = canonical_key(key), states[owner(key)]
            if form not in mine:
                mine[form] = value
            elif key != key:  # as releases before 0.4.0 stored it
                LOGGER.warning("the state of %s has several values for NaN; the first one is used", snapshot.task)
            else:
                raise CheckpointError(
                    f"subtask {snapshot.subtask} of {snapshot.task.replace(chr(0), ', state ')} and an earlier subtask"
                    f" both have a value for key {key!r}"
                )
    for subtask, state in zip(subtasks, states, strict=True):
        subtask.operator_states.append(state)
