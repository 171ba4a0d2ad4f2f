"""A job as the scheduler sees it: chained vertices, the datasets between them, and who consumes which.

Takes: nothing; `chaining` makes it from a stream graph, and tests by hand. Gives: frozen data, in topological order.

Rules: a vertex is known by its index in `JobGraph.vertices`; every edge goes from a lower index to a higher one. A
subtask has no object: it is (vertex index, subtask index), or one number counted through all vertices (`topology`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from ...checkpoint.instructions import CheckpointSettings
from ...config import DEFAULT_LATENCY_INTERVAL_S
from ...errors import ConfigError
from ...ids import ResultPartitionType

UNDECIDED: Final = -1
"""Parallelism of a vertex that the adaptive batch scheduler decides when its inputs are there."""

DEFAULT_FORMAT: Final = "msgpack"
"""Of the records on an edge: any plain data."""

DEFAULT_KEEP: Final = 3
"""Complete checkpoints that are kept."""


class OperatorKind(enum.Enum):
    """What an operator does with a record, and so how the runtime calls its function."""

    SOURCE = "source"
    """Makes records: a function that gives an iterable, or a class with `read` and `snapshot`."""
    MAP = "map"
    """One record for each record."""
    FILTER = "filter"
    """The records it says yes to."""
    FLAT_MAP = "flat_map"
    """An iterable of records for each record."""
    PROCESS = "process"
    """`(record, out)`: emits what it likes, and may have state."""
    CONNECT = "connect"
    """Like PROCESS, with two inputs."""
    SINK = "sink"
    """Emits nothing; may give a result at the end."""
    INVOKABLE = "invokable"
    """A vertex of its own, `async def invokable(task)`: it writes its partitions and reads its gates itself."""


@final
@dataclass(frozen=True, slots=True)
class ChainedEdge:
    """Two operators of one chain: the records of one are handed to the other.

    Attributes:
        source: name of the operator that emits.
        target: name of the operator that is called.
        input_number: which input of the target, from 1.
        side_output: tag of the records that take it; empty is the main output.
        is_keyed: whether the records are partitioned by a key of the target's, so that it may have keyed state.
    """

    source: str
    target: str
    input_number: int = 1
    side_output: str = ""
    is_keyed: bool = False


class DistributionPattern(enum.Enum):
    """Which subtasks an edge connects."""

    ALL_TO_ALL = "all_to_all"
    """Every producer with every consumer."""
    POINTWISE = "pointwise"
    """Each producer with a share of the consumers, or each consumer with a share of the producers."""


@final
@dataclass(frozen=True, slots=True)
class ResourceProfile:
    """What a slot offers or a task needs.

    Attributes:
        kind: `concrete`, `unknown` (a request: any slot will do) or `any` (a slot: every request fits).
        cpu_cores: of a concrete profile.
        memory_bytes: of a concrete profile.
    """

    kind: str = "unknown"
    cpu_cores: float = 0.0
    memory_bytes: int = 0


UNKNOWN_PROFILE: Final = ResourceProfile("unknown")
ANY_PROFILE: Final = ResourceProfile("any")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSize:
    """What a source can tell of its records before it is read, so that its parallelism can be decided.

    Attributes:
        bytes: of all of them; None is unknown.
        splits: of how many pieces they are, of which a subtask reads at least one; likewise.

    Raises:
        ConfigError: a number below 0.
    """

    bytes: int | None = None
    splits: int | None = None

    def __post_init__(self) -> None:
        """Refuses what is no size."""
        for name in ("bytes", "splits"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise ConfigError(f"source_size {name}={value!r}; give a whole number, at least 0, or None")


@final
@dataclass(frozen=True, slots=True)
class JobVertex:
    """A chain of operators that one task runs.

    Attributes:
        name: unique in the job, such as `source -> map`.
        parallelism: number of subtasks; `UNDECIDED` in a dynamic graph.
        max_parallelism: number of key groups; it can never have more subtasks.
        slot_sharing_group: vertices of one group may share slots; index into `JobGraph.slot_sharing_groups`.
        co_location_group: subtask i of each member runs in the same slot; None is free.
        operators: names of the chained operators, head first.
        invokable: what a subtask runs, as `package.module:attribute`; empty where the graph is only looked at.
        parameters: plain data for it; made from a stream graph: for each operator, by its name.
        profile: what a subtask needs.
        is_source: whether it reads nothing from other vertices.
        functions: what each of `operators` runs, as `package.module:attribute`; empty where nobody said.
        kinds: of each of `operators`.
        chained: how records get from one of `operators` to the next.
        supports_concurrent_attempts: whether two attempts of one subtask may run at a time.
        source_size: what it will read, of a source that can tell.
    """

    name: str
    parallelism: int
    max_parallelism: int = 128
    slot_sharing_group: int = 0
    co_location_group: str | None = None
    operators: tuple[str, ...] = ()
    invokable: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    profile: ResourceProfile = UNKNOWN_PROFILE
    is_source: bool = False
    functions: tuple[str, ...] = ()
    kinds: tuple[OperatorKind, ...] = ()
    chained: tuple[ChainedEdge, ...] = ()
    supports_concurrent_attempts: bool = True
    source_size: SourceSize | None = None


@final
@dataclass(frozen=True, slots=True)
class Dataset:
    """An intermediate dataset: what one vertex writes for one or several equal edges.

    Attributes:
        name: unique in the job.
        producer: index of the vertex that writes it.
        type: how it is kept and consumed.
        is_broadcast: whether every consumer reads all of it.
        operator: which operator of the producer's chain writes it; empty is its last.
        side_output: tag of the records that go here; empty is the main output.
    """

    name: str
    producer: int
    type: ResultPartitionType
    is_broadcast: bool = False
    operator: str = ""
    side_output: str = ""


@final
@dataclass(frozen=True, slots=True)
class JobEdge:
    """One input of one vertex.

    Attributes:
        dataset: index into `JobGraph.datasets`.
        consumer: index of the vertex that reads.
        pattern: which subtasks it connects.
        partitioner: how records choose their channel, such as `hash`, `rebalance`, `forward`.
        input_number: which input of the consumer, from 1; the edges of a union share one.
        is_forward: whether it was asked for as forward: then both ends keep the same parallelism.
        buffer_timeout_s: longest a record waits for its buffer to fill; None is until it is full.
        function: what the partitioners `hash` (the key of a record) and `custom` (its channel) call, as
            `package.module:attribute`.
        format: how a record becomes bytes: the name of a record format.
        operator: which operator of the consumer's chain reads it; empty is its first.
        ordinal: tells edges apart that are otherwise the same: the same operators, input and side output.
        channels: from each subtask that writes to each that reads, side by side; of a static graph.
        is_prompt: whether its channels share no connection with those of edges that are not.
    """

    dataset: int
    consumer: int
    pattern: DistributionPattern
    partitioner: str = "rebalance"
    input_number: int = 1
    is_forward: bool = False
    buffer_timeout_s: float | None = 0.1
    function: str = ""
    format: str = DEFAULT_FORMAT
    operator: str = ""
    ordinal: int = 0
    channels: int = 1
    is_prompt: bool = False


@final
@dataclass(frozen=True, slots=True)
class SlotSharingGroup:
    """Vertices that may share slots.

    Attributes:
        name: as the user gave it, or `default`.
        profile: declared for its slots; unknown when not.
    """

    name: str = "default"
    profile: ResourceProfile = UNKNOWN_PROFILE


@final
@dataclass(frozen=True, slots=True)
class JobGraph:
    """A whole job.

    Attributes:
        name: for messages.
        vertices: in topological order.
        datasets: what they write.
        edges: what they read, in the order of inputs within each consumer.
        slot_sharing_groups: at least one.
        is_dynamic: whether vertices may be `UNDECIDED`.
        checkpoints: when they are taken, and how; None takes none.
        checkpoint_folder: where they are kept.
        keep: how many complete ones are kept.
        latency_interval_s: between two markers of latency of a source; 0 is never.
        uids: what the state of an operator is called in checkpoints, where that is not its name.

    Raises:
        ConfigError: there is no vertex, an index points nowhere or backwards, two vertices have one name, or a name
            cannot be printed as it is.
    """

    name: str
    vertices: tuple[JobVertex, ...]
    datasets: tuple[Dataset, ...] = ()
    edges: tuple[JobEdge, ...] = ()
    slot_sharing_groups: tuple[SlotSharingGroup, ...] = (SlotSharingGroup(),)
    is_dynamic: bool = False
    checkpoints: CheckpointSettings | None = None
    checkpoint_folder: str | None = None
    keep: int = DEFAULT_KEEP
    latency_interval_s: float = DEFAULT_LATENCY_INTERVAL_S
    uids: Mapping[str, str] = field(default_factory=dict)
    _inputs: tuple[tuple[JobEdge, ...], ...] = field(init=False, repr=False, compare=False)
    _outputs: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    _consumers: tuple[tuple[JobEdge, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuses what is no graph in topological order."""
        _require_printable("job", self.name)
        if not self.vertices:
            raise ConfigError(f"job {self.name!r} is empty; give it an operator")
        names = set()
        for vertex in self.vertices:
            _require_printable("vertex", vertex.name)
            if vertex.name in names:
                raise ConfigError(f"job {self.name!r} has two vertices of the name {vertex.name!r}")
            names.add(vertex.name)
            if not (1 <= vertex.parallelism <= vertex.max_parallelism or vertex.parallelism == UNDECIDED):
                raise ConfigError(
                    f"vertex {vertex.name!r}: parallelism {vertex.parallelism}; give 1 to {vertex.max_parallelism}"
                )
            if vertex.parallelism == UNDECIDED and not self.is_dynamic:
                raise ConfigError(f"vertex {vertex.name!r} has no parallelism, and the job is not adaptive")
            if not 0 <= vertex.slot_sharing_group < len(self.slot_sharing_groups):
                raise ConfigError(f"vertex {vertex.name!r}: no slot sharing group {vertex.slot_sharing_group}")
        for group in self.slot_sharing_groups:
            _require_printable("slot sharing group", group.name)
        for dataset in self.datasets:
            _require_printable("dataset", dataset.name)
            if not 0 <= dataset.producer < len(self.vertices):
                raise ConfigError(f"dataset {dataset.name!r}: no vertex {dataset.producer}")
        for edge in self.edges:
            if not (0 <= edge.dataset < len(self.datasets) and 0 <= edge.consumer < len(self.vertices)):
                raise ConfigError(f"edge {edge}: no such dataset or vertex")
            if self.datasets[edge.dataset].producer >= edge.consumer:
                raise ConfigError(
                    f"edge {self.datasets[edge.dataset].name!r} -> {self.vertices[edge.consumer].name!r} goes"
                    " backwards: vertices must be in topological order"
                )
        self._index()

    def uids_of(self, vertex: int) -> dict[str, str]:
        """The uids of a vertex's operators, of those that have one."""
        return {name: self.uids[name] for name in self.vertices[vertex].operators if name in self.uids}

    def inputs_of(self, vertex: int) -> tuple[JobEdge, ...]:
        """What a vertex reads, in order."""
        return self._inputs[vertex]

    def outputs_of(self, vertex: int) -> tuple[int, ...]:
        """Indices of the datasets that a vertex writes."""
        return self._outputs[vertex]

    def consumers_of(self, dataset: int) -> tuple[JobEdge, ...]:
        """Who reads a dataset."""
        return self._consumers[dataset]

    def _index(self) -> None:
        """Makes the three questions above cost nothing, however wide the job is."""
        inputs: list[list[JobEdge]] = [[] for _ in self.vertices]
        outputs: list[list[int]] = [[] for _ in self.vertices]
        consumers: list[list[JobEdge]] = [[] for _ in self.datasets]
        for index, dataset in enumerate(self.datasets):
            outputs[dataset.producer].append(index)
        for edge in self.edges:
            inputs[edge.consumer].append(edge)
            consumers[edge.dataset].append(edge)
        object.__setattr__(self, "_inputs", tuple(map(tuple, inputs)))
        object.__setattr__(self, "_outputs", tuple(map(tuple, outputs)))
        object.__setattr__(self, "_consumers", tuple(map(tuple, consumers)))


def _require_printable(what: str, name: str) -> None:
    """Names are shown on terminals; a control character in one could make a terminal do anything."""
    if not name.isprintable():
        raise ConfigError(f"{what} {name!r} has characters that cannot be printed; choose another name")
