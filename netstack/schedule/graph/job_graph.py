"""The job graph: chained vertices, the datasets between them, and their consumers, as frozen data.

Rules: a vertex is identified by its index in `JobGraph.vertices`; every edge goes from a lower index to a higher one. A
subtask has no object: it is (vertex index, subtask index), or one number counted through all vertices (`topology`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from ...base.config import DEFAULT_LATENCY_INTERVAL_S
from ...base.errors import ConfigError
from ...base.ids import ResultPartitionType
from ..checkpoint.instructions import CheckpointSettings

UNDECIDED: Final = -1
"""Parallelism of a vertex that the adaptive batch scheduler decides when its inputs are complete."""

DEFAULT_FORMAT: Final = "msgpack"
"""The default record format: any plain data."""

DEFAULT_KEEP: Final = 3
"""Default number of complete checkpoints that are kept."""


class OperatorKind(enum.Enum):
    """What an operator does with a record, and thus how the runtime calls its function."""

    SOURCE = "source"
    """Produces records: a function that returns an iterable, or a class with `read` and `snapshot`."""
    MAP = "map"
    """One record for each record."""
    FILTER = "filter"
    """Keeps the records for which it returns true."""
    FLAT_MAP = "flat_map"
    """An iterable of records for each record."""
    PROCESS = "process"
    """`(record, out)`: emits any records, and may have state."""
    CONNECT = "connect"
    """Like PROCESS, with two inputs."""
    SINK = "sink"
    """Emits nothing; may return a result at the end."""
    INVOKABLE = "invokable"
    """A vertex of its own, `async def invokable(task)`: it writes its partitions and reads its gates itself."""


@final
@dataclass(frozen=True, slots=True)
class ChainedEdge:
    """An edge inside a chain.

    Attributes:
        source: name of the operator that emits.
        target: name of the operator that is called.
        input_number: of the target, from 1.
        side_output: tag of the records; empty is the main output.
        is_keyed: whether the records are partitioned by a key of the target, so that it may use keyed state.
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
        kind: `concrete`, `unknown` (a request that any slot serves) or `any` (a slot that serves every request).
        cpu_cores: of a concrete profile.
        memory_bytes: of a concrete profile.
    """

    kind: str = "unknown"
    cpu_cores: float = 0.0
    memory_bytes: int = 0


UNKNOWN_PROFILE: Final = ResourceProfile("unknown")
ANY_PROFILE: Final = ResourceProfile("any")


def sum_profiles(profiles: Sequence[ResourceProfile]) -> ResourceProfile:
    """The sum of profiles; unknown if one of them is."""
    if any(profile.kind != "concrete" for profile in profiles):
        return UNKNOWN_PROFILE
    return ResourceProfile(
        "concrete", sum(profile.cpu_cores for profile in profiles), sum(profile.memory_bytes for profile in profiles)
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSize:
    """The size of a source's input, from which its parallelism can be decided.

    Attributes:
        bytes: of all records; None: unknown.
        splits: number of pieces, of which a subtask reads at least one; None: unknown.

    Raises:
        ConfigError: a negative number.
    """

    bytes: int | None = None
    splits: int | None = None

    def __post_init__(self) -> None:
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
        max_parallelism: number of key groups, and the largest possible parallelism.
        slot_sharing_group: index into `JobGraph.slot_sharing_groups`; vertices of one group may share slots.
        co_location_group: subtask i of each member runs in the same slot; None: no group.
        operators: names of the chained operators, head first.
        invokable: what a subtask runs, as `package.module:attribute`; empty in a graph that is only planned.
        parameters: plain data for it; if compiled from a stream graph, of each operator, by its name.
        profile: what a subtask needs.
        is_source: whether it reads nothing from other vertices.
        functions: what each of `operators` runs, as `package.module:attribute`; may be empty.
        kinds: of each of `operators`.
        chained: how records get from one of `operators` to the next.
        supports_concurrent_attempts: whether two attempts of one subtask may run at the same time.
        source_size: of a source, if known.
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
        operator: which operator of the producer's chain writes it; empty: the last.
        side_output: tag of its records; empty is the main output.
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
        input_number: of the consumer, from 1; the edges of a union share one.
        is_forward: whether the job set forward: then both ends keep the same parallelism.
        buffer_timeout_s: longest time that a record waits for its buffer to fill; None: until it is full.
        function: of the partitioners `hash` (the key of a record) and `custom` (its channel), as
            `package.module:attribute`.
        operator: which operator of the consumer's chain reads it; empty: the first.
        ordinal: distinguishes edges of the same operators, input and side output.
        channels: parallel channels from each producer to each consumer; of a static graph.
        is_prompt: whether its channels share connections only with other prompt edges.
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
        name: as the user set it, or `default`.
        profile: declared for its slots; else unknown.
    """

    name: str = "default"
    profile: ResourceProfile = UNKNOWN_PROFILE


@final
@dataclass(frozen=True, slots=True)
class JobGraph:
    """A whole job.

    Attributes:
        vertices: in topological order.
        datasets: that they write.
        edges: that they read, in the order of inputs within each consumer.
        slot_sharing_groups: at least one.
        is_dynamic: whether vertices may be `UNDECIDED`.
        checkpoints: when and how they are taken; None: never.
        checkpoint_folder: where they are stored.
        checkpoint_root: as of `JobInformation`.
        keep: how many complete checkpoints are kept.
        latency_interval_s: seconds between a source's latency markers; 0: none.
        uids: the names of operators in checkpoints, if different from their own.

    Raises:
        ConfigError: there is no vertex, an index is invalid or points backwards, two vertices have one name, or a name
            is not printable.
    """

    name: str
    vertices: tuple[JobVertex, ...]
    datasets: tuple[Dataset, ...] = ()
    edges: tuple[JobEdge, ...] = ()
    slot_sharing_groups: tuple[SlotSharingGroup, ...] = (SlotSharingGroup(),)
    is_dynamic: bool = False
    checkpoints: CheckpointSettings | None = None
    checkpoint_folder: str | None = None
    checkpoint_root: str | None = None
    keep: int = DEFAULT_KEEP
    latency_interval_s: float = DEFAULT_LATENCY_INTERVAL_S
    uids: Mapping[str, str] = field(default_factory=dict)
    _inputs: tuple[tuple[JobEdge, ...], ...] = field(init=False, repr=False, compare=False)
    _outputs: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    _consumers: tuple[tuple[JobEdge, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_printable("job", self.name)
        if not self.vertices:
            raise ConfigError(f"job {self.name!r} is empty; add an operator")
        names = set()
        for vertex in self.vertices:
            _require_printable("vertex", vertex.name)
            if vertex.name in names:
                raise ConfigError(f"job {self.name!r} has two vertices named {vertex.name!r}")
            names.add(vertex.name)
            if not (1 <= vertex.parallelism <= vertex.max_parallelism or vertex.parallelism == UNDECIDED):
                raise ConfigError(
                    f"vertex {vertex.name!r}: parallelism {vertex.parallelism}; give 1 to {vertex.max_parallelism}"
                )
            if vertex.parallelism == UNDECIDED and not self.is_dynamic:
                raise ConfigError(f"vertex {vertex.name!r} has no parallelism, but the job is not adaptive")
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
        """The uids of a vertex's operators, by operator."""
        return {name: self.uids[name] for name in self.vertices[vertex].operators if name in self.uids}

    def inputs_of(self, vertex: int) -> tuple[JobEdge, ...]:
        """The edges that a vertex reads, in order."""
        return self._inputs[vertex]

    def outputs_of(self, vertex: int) -> tuple[int, ...]:
        """Indices of the datasets that a vertex writes."""
        return self._outputs[vertex]

    def consumers_of(self, dataset: int) -> tuple[JobEdge, ...]:
        """The edges that read a dataset."""
        return self._consumers[dataset]

    def _index(self) -> None:
        """Builds the tables of the three methods above."""
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
    """Names are printed on terminals, where a control character could do anything."""
    if not name.isprintable():
        raise ConfigError(f"{what} {name!r} has unprintable characters; choose another name")
