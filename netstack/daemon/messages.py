"""What a daemon and whoever runs something on it say to each other, and how each message becomes plain data.

Takes: frozen messages. Gives: lists for `control.frames`, and messages back, checked field by field.

Rules: messages of a run carry its id; one of a run that is over is ignored. Nothing is pickled: an invokable is named,
its parameters and results are plain data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast, final

from ..config import NetworkConfig
from ..errors import ConfigError, ErrorCode, RemoteProtocolError
from ..ids import ChannelDescriptor, ResultPartitionType
from ..schedule.descriptors.descriptors import PartitionDescriptor

VERSION: Final = 1
"""Of the daemon's control protocol."""

GREETING: Final = "netstack taskmanager"

TEXT_CHARACTERS: Final = 8192
"""Names and texts are cut here."""

Plain: TypeAlias = dict[str, Any]


@final
@dataclass(frozen=True, slots=True)
class TaskDescriptor:
    """One subtask, as a daemon is told to run it: the deployment descriptor with everything inline.

    Attributes:
        task: name of the vertex.
        subtask: which of its subtasks, from 0.
        invokable: what it runs, `package.module:attribute`: `async def attribute(task: Task) -> Any`.
        parameters: plain data for it.
        partitions: what it produces; created before it starts.
        gates: the channels of every gate it reads, which it opens itself.
    """

    task: str
    subtask: int
    invokable: str
    parameters: Plain = dataclasses.field(default_factory=dict)
    partitions: tuple[PartitionDescriptor, ...] = ()
    gates: tuple[tuple[ChannelDescriptor, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.task}-{self.subtask}"


# --------------------------------------------------------------------------------------------------- to the daemon


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Reserve slots and memory, open a TaskManager; answered by `RunOpened` or `RunRefused`.

    Attributes:
        run_id: 16 hex digits, unique among everybody's.
        name: for people.
        slots: how many of the daemon's.
        slot_timeout_s: how long to wait for slots and memory that another run holds.
        data_address: how others reach this daemon: what channels name.
        config: settings of the TaskManager, as a document.
    """

    run_id: str
    name: str
    slots: int
    slot_timeout_s: float
    data_address: str
    config: Plain


@dataclass(frozen=True, slots=True)
class Deploy:
    """Create and start these tasks; answered by `Deployed`, or by the end of the run: `RunRefused`.

    Attributes:
        run_id: in which run.
        builds: of the packages that the invokables are in (`build.build_of`), as the sender has them.
        tasks: all of this daemon at once.
    """

    run_id: str
    builds: Plain
    tasks: tuple[TaskDescriptor, ...]


@dataclass(frozen=True, slots=True)
class ToTask:
    """Something for a task's `receive`."""

    run_id: str
    task: str
    subtask: int
    message: Plain


@dataclass(frozen=True, slots=True)
class CloseRun:
    """Cancel what runs and release everything; answered by `RunClosed`, unless the run is over already."""

    run_id: str


@dataclass(frozen=True, slots=True)
class AskStatistics:
    """Answered by `Statistics`."""

    token: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered by `Pong` at once: a sign of life, and a look at the other's clock."""

    token: int


# ------------------------------------------------------------------------------------------------- from the daemon


@dataclass(frozen=True, slots=True)
class Refused:
    """The connection is of no use; the daemon ends it after this."""

    text: str


@dataclass(frozen=True, slots=True)
class RunOpened:
    """The run's TaskManager is there."""

    run_id: str


@dataclass(frozen=True, slots=True)
class RunRefused:
    """The run cannot be opened, or its tasks cannot be deployed; nothing of it is left.

    The last message of a run is this or `RunClosed`.
    """

    run_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Deployed:
    """All tasks have started."""

    run_id: str


@dataclass(frozen=True, slots=True)
class TaskSaid:
    """What a task gave to `send`."""

    run_id: str
    task: str
    subtask: int
    message: Plain


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task returned.

    Attributes:
        run_id: in which run.
        task: name of its vertex.
        subtask: which.
        result: what it returned.
    """

    run_id: str
    task: str
    subtask: int
    result: Any


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task raised.

    Attributes:
        run_id: in which run.
        task: name of its vertex.
        subtask: which.
        kind: the error's class.
        text: what it says.
        is_secondary: whether the cause lies with somebody else: a connection or a producer was lost.
    """

    run_id: str
    task: str
    subtask: int
    kind: str
    text: str
    is_secondary: bool


@dataclass(frozen=True, slots=True)
class RunClosed:
    """Nothing of the run is left in the daemon."""

    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Statistics:
    """See `TaskManagerDaemon.statistics`."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a `Ping`.

    Attributes:
        token: of the ping.
        clock_ns: the daemon's CLOCK_MONOTONIC when it answered.
    """

    token: int
    clock_ns: int


Message: TypeAlias = (
    OpenRun
    | Deploy
    | ToTask
    | CloseRun
    | AskStatistics
    | Ping
    | Refused
    | RunOpened
    | RunRefused
    | Deployed
    | TaskSaid
    | TaskEnded
    | TaskFailed
    | RunClosed
    | Statistics
    | Pong
)


def encode(message: Message) -> list[Any]:
    """A message as a document: its kind, then its fields."""
    return [type(message).__name__, *(_written(getattr(message, field.name)) for field in dataclasses.fields(message))]


def decode(document: list[Any]) -> Message:
    """The message in a document.

    Raises:
        RemoteProtocolError: it is none.
    """
    kind = _KINDS.get(document[0]) if document and isinstance(document[0], str) else None
    if kind is None:
        raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"a control frame of kind {document[:1]!r:.60}")
    fields = dataclasses.fields(kind)
    try:
        if len(fields) != len(document) - 1:
            raise ValueError(f"{len(document) - 1} fields instead of {len(fields)}")
        values = [_READERS[str(field.type)](value) for field, value in zip(fields, document[1:], strict=True)]
    except (TypeError, ValueError, KeyError) as error:  # ConfigError is a ValueError
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{document[0]}: {error}") from error
    return cast(Message, kind(*values))


def config_document(config: NetworkConfig) -> Plain:
    """Settings as they travel."""
    return dataclasses.asdict(config)


def config_of(document: Plain) -> NetworkConfig:
    """Settings that came.

    Raises:
        ConfigError: a value cannot work, or is of another type.
        TypeError: a name is unknown here.
    """
    for field in dataclasses.fields(NetworkConfig):
        value = document.get(field.name, field.default)
        kinds = [kind for name in str(field.type).split(" | ") for kind in _CONFIG_TYPES[name]]
        if type(value) not in kinds or value != value:  # no number: it would poison every sum it is in
            raise ConfigError(f"{field.name}={value!r:.60} of the run's settings is no {field.type}")
    return NetworkConfig(**document)


def check_said(message: Any) -> Plain:
    """What tasks and coordinators say to each other.

    Raises:
        ConfigError: it is no dict; whether its values are plain data is seen when it is sent.
    """
    if not isinstance(message, dict):
        raise ConfigError(f"{message!r:.80} cannot be sent: give a dict of plain data")
    return message


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain_task(task) for task in value]
    if isinstance(value, str):  # an error's text may be anything: too long, or half of a surrogate pair
        return value[:TEXT_CHARACTERS].encode("utf-8", "replace").decode()
    return value


def _plain_task(task: TaskDescriptor) -> list[Any]:
    return [
        task.task,
        task.subtask,
        task.invokable,
        task.parameters,
        [[partition.name, partition.subpartitions, partition.type.value] for partition in task.partitions],
        [[[channel.address, channel.partition_id, channel.subpartition] for channel in gate] for gate in task.gates],
    ]


def _read_tasks(value: Any) -> tuple[TaskDescriptor, ...]:
    found = []
    for plain in _is(list)(value):
        task, subtask, invokable, parameters, partitions, gates = _is(list)(plain)
        found.append(
            TaskDescriptor(
                _is(str)(task),
                _is(int)(subtask),
                _is(str)(invokable),
                _is(dict)(parameters),
                tuple(
                    PartitionDescriptor(_is(str)(name), _is(int)(count), ResultPartitionType(kind))
                    for name, count, kind in _is(list)(partitions)
                ),
                tuple(tuple(_read_channel(channel) for channel in _is(list)(gate)) for gate in _is(list)(gates)),
            )
        )
    return tuple(found)


def _read_channel(value: Any) -> ChannelDescriptor:
    address, partition_id, subpartition = _is(list)(value)
    return ChannelDescriptor(_is(str)(address), _is(str)(partition_id), _is(int)(subpartition))


def _is(kind: type[Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r:.60} is no {kind.__name__}")
        return value

    return read


def _read_float(value: Any) -> float:
    if type(value) not in (int, float) or not value >= 0:
        raise TypeError(f"{value!r:.60} is no number of seconds")
    return float(value)


_CONFIG_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}

_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _is(int),
    "str": _is(str),
    "bool": _is(bool),
    "float": _read_float,
    "Plain": _is(dict),
    "Any": lambda value: value,
    "tuple[TaskDescriptor, ...]": _read_tasks,
}

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in Message.__args__}
