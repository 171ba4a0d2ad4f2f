"""The stream graph: a job as its author wrote it, one node for every operator, one edge for every connection.

`job_generator` compiles it into a job graph.

Rules: a node is identified by its index in `StreamGraph.nodes`; every edge goes from a lower index to a higher one. A
union is not a node: its streams are several edges with one input number.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from ...base.config import DEFAULT_LATENCY_INTERVAL_S, NetworkConfig
from ...base.errors import ConfigError
from ...base.setting_types import check_types
from ...exchange.record.formats import FORMATS
from ..checkpoint.instructions import CheckpointSettings
from .job_graph import (
    DEFAULT_FORMAT,
    DEFAULT_KEEP,
    UNDECIDED,
    UNKNOWN_PROFILE,
    OperatorKind,
    ResourceProfile,
    SourceSize,
)
from .settings import AdaptiveSettings, RestartSettings, SpeculationSettings

KEPT_DATASET: Final = "netstack.cluster.task.kept_dataset:KeptDataset"
"""The source that reads a dataset which another job kept."""

DEFAULT_GROUP: Final = "default"
"""The slot sharing group of operators that set none."""


class ChainingStrategy(enum.Enum):
    """Which operators an operator may be chained to."""

    ALWAYS = "always"
    """To its input and to its outputs."""
    NEVER = "never"
    """To no other operator."""
    HEAD = "head"
    """To its outputs only: it begins a chain."""
    HEAD_WITH_SOURCES = "head_with_sources"
    """Like HEAD, and sources that it reads become inputs of its chain."""


class ExchangeMode(enum.Enum):
    """How the records of one edge are exchanged."""

    UNDEFINED = "undefined"
    """The job's `GlobalExchangeMode` decides."""
    PIPELINED = "pipelined"
    """While they are produced."""
    BATCH = "batch"
    """When all of them are complete."""
    HYBRID_FULL = "hybrid_full"
    """Both are possible; kept until the scheduler releases them."""
    HYBRID_SELECTIVE = "hybrid_selective"
    """Both are possible; kept until they were consumed once."""


class GlobalExchangeMode(enum.Enum):
    """How the records of edges without a mode of their own are exchanged."""

    ALL_EDGES_PIPELINED = "all_edges_pipelined"
    ALL_EDGES_PIPELINED_APPROXIMATE = "all_edges_pipelined_approximate"
    ALL_EDGES_BLOCKING = "all_edges_blocking"
    FORWARD_EDGES_PIPELINED = "forward_edges_pipelined"
    """Forward edges are pipelined, all others blocking."""
    POINTWISE_EDGES_PIPELINED = "pointwise_edges_pipelined"
    """Forward and rescale edges are pipelined, all others blocking."""
    ALL_EDGES_HYBRID_FULL = "all_edges_hybrid_full"
    ALL_EDGES_HYBRID_SELECTIVE = "all_edges_hybrid_selective"


class Partitioner(enum.Enum):
    """Which subtask gets a record."""

    FORWARD = "forward"
    """The subtask of the same index."""
    FORWARD_UNSPECIFIED = "forward_unspecified"
    """Not set, in a dynamic graph: forward where it is chained, otherwise rescale."""
    FORWARD_CONSECUTIVE_HASH = "forward_consecutive_hash"
    """By a key that partitions the records already, in a dynamic graph: forward where it is chained, else hash."""
    RESCALE = "rescale"
    """The few nearest subtasks in turn."""
    REBALANCE = "rebalance"
    """All subtasks in turn."""
    SHUFFLE = "shuffle"
    """A random subtask."""
    GLOBAL = "global"
    """The first subtask."""
    HASH = "hash"
    """The subtask that owns the key group of the record's key."""
    BROADCAST = "broadcast"
    """All subtasks."""
    CUSTOM = "custom"
    """The subtask that a function chooses."""


class Unset(enum.Enum):
    """The type of `UNSET`."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""Not set: an edge uses the setting of the writing operator, an operator that of the job."""

DEFAULT_BUFFER_TIMEOUT_S: Final = 0.1
"""The default of a job."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNode:
    """One operator.

    Attributes:
        name: unique in the job.
        uid: its name in checkpoints, so that it may be renamed; empty: its name. Unique in the job.
        kind: how the runtime calls its function; SOURCE for every source that is not an invokable.
        function: what it runs, as `package.module:attribute`; may be empty in a graph that is only planned.
        has_operator: False: a node without an operator, which is never chained.
        parallelism: number of subtasks; `UNDECIDED` in a dynamic graph where it is not set.
        max_parallelism: number of key groups; None: not set.
        co_location_group: subtask i of each member runs in the same slot; None: no group.
        strategy: which operators it may be chained to.
        is_source: whether it reads nothing.
        is_legacy_source: a source that emits at any time: no yielding operator may be chained to it.
        is_yielding: whether it waits for other operators' mail while it processes a record.
        emits_at_end_only: whether it emits nothing before the end of its input: then its output is blocking.
        buffer_timeout_s: longest time that a record it emits waits for its buffer to fill; None: until it is full;
            UNSET: the job's.
        profile: what one of its subtasks needs.
        parameters: plain data for the function.
        supports_concurrent_attempts: whether two attempts of a subtask may run at the same time (speculation): then its
            side effects must be harmless when they happen twice. None: False for sinks and invokables, else True.
        source_size: of a source, if known; decides its parallelism if that is not set.
    """

    name: str
    kind: OperatorKind = OperatorKind.PROCESS
    function: str = ""
    has_operator: bool = True
    parallelism: int = 1
    max_parallelism: int | None = None
    slot_sharing_group: str = DEFAULT_GROUP
    co_location_group: str | None = None
    strategy: ChainingStrategy = ChainingStrategy.ALWAYS
    is_source: bool = False
    is_legacy_source: bool = False
    is_yielding: bool = False
    emits_at_end_only: bool = False
    buffer_timeout_s: float | Unset | None = UNSET
    profile: ResourceProfile = UNKNOWN_PROFILE
    parameters: Mapping[str, Any] = field(default_factory=dict)
    supports_concurrent_attempts: bool | None = None
    uid: str = ""
    source_size: SourceSize | None = None

    def __post_init__(self) -> None:
        check_types(self, f"operator {self.name!r}: ")
        if self.is_source and self.kind is not OperatorKind.INVOKABLE:
            object.__setattr__(self, "kind", OperatorKind.SOURCE)

    @property
    def state_id(self) -> str:
        """Its name in checkpoints."""
        return self.uid or self.name

    @property
    def may_run_twice(self) -> bool:
        """`supports_concurrent_attempts` with its default applied."""
        if self.supports_concurrent_attempts is not None:
            return self.supports_concurrent_attempts
        return self.kind not in (OperatorKind.SINK, OperatorKind.INVOKABLE)

    @property
    def is_chainable_source(self) -> bool:
        """Whether it can become a source input of a HEAD_WITH_SOURCES chain."""
        return self.is_source and not self.is_legacy_source and self.has_operator


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEdge:
    """One connection of two operators.

    Attributes:
        source: index of the node that writes.
        target: index of the node that reads.
        partitioner: which subtask gets a record.
        mode: how its records are exchanged.
        input_number: of the target, from 1; the streams of a union share one.
        side_output: tag of its records; empty is the main output.
        function: of the partitioners HASH, FORWARD_CONSECUTIVE_HASH and CUSTOM.
        dataset_id: keeps the records under this id beyond the end of the job; None: not kept.
        format: name of the record format, where the edge is not chained.
        buffer_timeout_s: longest time that a record waits for its buffer to fill; None: until it is full; UNSET: the
            writing operator's.
        channels: subpartitions from each producer to each consumer. More than one needs two invokables and rebalance,
            because a partitioner has one channel for each subtask.
        is_prompt: whether its channels use connections apart from bulk edges; no effect on chained edges and within a
            TaskManager.
    """

    source: int
    target: int
    partitioner: Partitioner = Partitioner.FORWARD
    mode: ExchangeMode = ExchangeMode.UNDEFINED
    input_number: int = 1
    side_output: str = ""
    function: str = ""
    dataset_id: str | None = None
    format: str = DEFAULT_FORMAT
    buffer_timeout_s: float | Unset | None = UNSET
    channels: int = 1
    is_prompt: bool = False

    def __post_init__(self) -> None:
        check_types(self)


SCHEDULING_TYPES: Final = ("all_at_once", "next_stage_on_first_output", "next_stage_on_complete_output")
INPUT_CONSTRAINTS: Final = ("any", "all")
RETENTIONS: Final = ("always", "unless_finished", "never")
"""After which ends of a job its checkpoints are kept."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Settings of a whole job.

    Attributes:
        is_batch: whether its inputs end, and its results are used when complete.
        is_dynamic: for batch jobs: whether the parallelism of operators that do not set it is decided at run time.
        is_chaining_enabled: False gives every operator a vertex of its own.
        chains_different_max_parallelism: whether operators with different numbers of key groups may be chained.
        exchange_mode: of the edges without one; None: blocking in batch jobs, otherwise pipelined.
        shares_slots_by_default: whether all vertices of the group `default` may share slots; None: not in a batch job,
            where each pipelined region has a group of its own.
        checkpoints: when and how they are taken; None: never. A job that keeps results takes none (`generate_job`).
        checkpoint_folder: where they are stored; every process of the job must see it. None: in the JobManager's
            folder.
        keep: how many complete checkpoints are kept while the job runs.
        retain: after which ends of the job its checkpoints are kept: `always`, `unless_finished`, or `never`.
            Savepoints are always kept.
        restart: the restart strategy; None: exponential delay with checkpoints, otherwise no restart.
        network: buffers and timeouts of the job's own network on each TaskManager; None shares the TaskManager's.
        adaptive: how parallelism is decided at run time; None: Flink's defaults.
        speculation: for batch jobs: when a task is slow and gets a speculative attempt on another host; None: never.
        scheduling: None schedules pipelined regions (a dynamic job: subtask by subtask); else one of the older types:
            `all_at_once`, `next_stage_on_first_output` or `next_stage_on_complete_output`.
        input_constraint: with the latter two, how many inputs of a subtask must be consumable: `any` or `all`.
        latency_interval_s: seconds between a source's latency markers (`cluster/task/latency`); 0: none. A job with
        invokables
            has none.

    Raises:
        ConfigError: `keep` is below 1, `latency_interval_s` below 0, an unknown `retain`, `scheduling` or
            `input_constraint`, `is_dynamic` without `is_batch`, or speculation in a job that cannot have concurrent
            attempts.
    """

    is_batch: bool = False
    is_dynamic: bool = False
    is_chaining_enabled: bool = True
    chains_different_max_parallelism: bool = True
    exchange_mode: GlobalExchangeMode | None = None
    shares_slots_by_default: bool | None = None
    checkpoints: CheckpointSettings | None = None
    checkpoint_folder: str | None = None
    keep: int = DEFAULT_KEEP
    retain: str = "unless_finished"
    restart: RestartSettings | None = None
    network: NetworkConfig | None = None
    adaptive: AdaptiveSettings | None = None
    speculation: SpeculationSettings | None = None
    scheduling: str | None = None
    input_constraint: str = "any"
    latency_interval_s: float = DEFAULT_LATENCY_INTERVAL_S

    def __post_init__(self) -> None:
        check_types(self)
        if self.keep < 1:
            raise ConfigError(f"keep={self.keep}; give at least 1: a job restarts from its newest checkpoint")
        if not 0 <= self.latency_interval_s < math.inf:
            raise ConfigError(f"latency_interval_s={self.latency_interval_s}; give seconds, or 0 to switch it off")
        allowed = {"retain": RETENTIONS, "input_constraint": INPUT_CONSTRAINTS}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ConfigError(f"{name}={getattr(self, name)!r}; give one of {', '.join(values)}")
        if self.is_dynamic and not self.is_batch:
            raise ConfigError(
                "is_dynamic is for batch jobs: a parallelism is decided when the inputs are complete; set is_batch, or"
                " leave is_dynamic out"
            )
        if self.speculation is not None and (not self.is_batch or self.checkpoints is not None):
            raise ConfigError(
                "speculation is for batch jobs without checkpoints: two attempts of a task read the same finished"
                " results; set is_batch, or leave speculation out"
            )
        if self.scheduling is not None and self.scheduling not in SCHEDULING_TYPES:
            raise ConfigError(f"scheduling={self.scheduling!r}; give one of {', '.join(SCHEDULING_TYPES)}, or None")

    @property
    def restart_settings(self) -> RestartSettings:
        """`restart` with its default applied."""
        if self.restart is not None:
            return self.restart
        return RestartSettings(kind="none" if self.checkpoints is None else "exponential")

    @property
    def global_mode(self) -> GlobalExchangeMode:
        """`exchange_mode` with its default applied."""
        if self.exchange_mode is not None:
            return self.exchange_mode
        return GlobalExchangeMode.ALL_EDGES_BLOCKING if self.is_batch else GlobalExchangeMode.ALL_EDGES_PIPELINED

    @property
    def is_default_group_shared(self) -> bool:
        """`shares_slots_by_default` with its default applied."""
        return not self.is_batch if self.shares_slots_by_default is None else self.shares_slots_by_default


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGraph:
    """All operators of a job.

    Attributes:
        name: for messages.
        nodes: in topological order.
        edges: in the order in which they were made.
        settings: of the whole job.
        group_profiles: what the slots of a group offer, by its name; unknown if not given.
        buffer_timeout_s: default for edges whose own and whose operator's timeout is not set; ignored for blocking
            results.

    Raises:
        ConfigError: an index is invalid or points backwards, two nodes share a name or a uid, an impossible
            parallelism, or a forward edge between different ones.
    """

    name: str
    nodes: tuple[StreamNode, ...]
    edges: tuple[StreamEdge, ...] = ()
    settings: StreamSettings = StreamSettings()
    group_profiles: Mapping[str, ResourceProfile] = field(default_factory=dict)
    buffer_timeout_s: float | None = DEFAULT_BUFFER_TIMEOUT_S
    _inputs: tuple[tuple[StreamEdge, ...], ...] = field(init=False, repr=False, compare=False)
    _outputs: tuple[tuple[StreamEdge, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names: set[str] = set()
        for node in self.nodes:
            if not node.name or node.name in names:
                raise ConfigError(f"job {self.name!r}: operator name {node.name!r} is empty or used twice; rename one")
            names.add(node.name)
            self._check_parallelism(node)
        self._check_uids()
        inputs: list[list[StreamEdge]] = [[] for _ in self.nodes]
        outputs: list[list[StreamEdge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            self._check_edge(edge)
            outputs[edge.source].append(edge)
            inputs[edge.target].append(edge)
        for node, reads in zip(self.nodes, inputs, strict=True):
            if node.is_source and reads:
                raise ConfigError(f"source {node.name!r} has {len(reads)} inputs; a source reads nothing")
            if node.is_legacy_source and not node.is_source:
                raise ConfigError(f"operator {node.name!r} is marked as a legacy source but is not a source")
            if not node.is_source and not reads:
                raise ConfigError(f"operator {node.name!r} has no input but is not a source")
            if not node.is_source and node.kind is OperatorKind.SOURCE:
                raise ConfigError(f"operator {node.name!r} is of kind source but reads another operator")
            if node.kind is OperatorKind.INVOKABLE and node.strategy is not ChainingStrategy.NEVER:
                raise ConfigError(f"operator {node.name!r} is an invokable: give it the chaining strategy never")
        object.__setattr__(self, "_inputs", tuple(map(tuple, inputs)))
        object.__setattr__(self, "_outputs", tuple(map(tuple, outputs)))

    def inputs_of(self, node: int) -> tuple[StreamEdge, ...]:
        """The edges that a node reads."""
        return self._inputs[node]

    def outputs_of(self, node: int) -> tuple[StreamEdge, ...]:
        """The edges that read a node."""
        return self._outputs[node]

    def named(self, name: str) -> int:
        """Index of the node of this name. Raises ConfigError if there is none."""
        for index, node in enumerate(self.nodes):
            if node.name == name:
                return index
        raise ConfigError(f"job {self.name!r} has no operator named {name!r}")

    def describe(self, edge: StreamEdge) -> str:
        """The names of both ends of an edge, for messages."""
        return f"{self.nodes[edge.source].name!r} -> {self.nodes[edge.target].name!r}"

    def _check_uids(self) -> None:
        names: dict[str, str] = {}
        for node in self.nodes:
            other = names.setdefault(node.state_id, node.name)
            if other != node.name:
                raise ConfigError(
                    f"job {self.name!r}: the state of operators {other!r} and {node.name!r} would both be called"
                    f" {node.state_id!r} in checkpoints; give one of them another uid"
                )

    def _check_parallelism(self, node: StreamNode) -> None:
        if node.parallelism == UNDECIDED:
            if not self.settings.is_dynamic:
                raise ConfigError(f"operator {node.name!r} has no parallelism, but the job is not dynamic")
        elif node.parallelism < 1:
            raise ConfigError(f"operator {node.name!r}: parallelism {node.parallelism}; give at least 1")
        if node.max_parallelism is not None and node.max_parallelism < max(1, node.parallelism):
            raise ConfigError(
                f"operator {node.name!r}: parallelism {node.parallelism} is more than its max parallelism"
                f" {node.max_parallelism}"
            )

    def _check_edge(self, edge: StreamEdge) -> None:
        if not 0 <= edge.source < edge.target < len(self.nodes):
            raise ConfigError(f"{edge}: unknown nodes, or a backward edge: nodes must be in topological order")
        if edge.format not in FORMATS:
            raise ConfigError(f"edge {self.describe(edge)}: no record format {edge.format!r}; {', '.join(FORMATS)}")
        if not isinstance(edge.buffer_timeout_s, Unset | None) and edge.buffer_timeout_s < 0:
            raise ConfigError(f"edge {self.describe(edge)}: buffer_timeout_s={edge.buffer_timeout_s}; give at least 0")
        if edge.input_number < 1:
            raise ConfigError(f"edge {self.describe(edge)}: input number {edge.input_number}; inputs count from 1")
        if edge.channels != 1:
            kinds = {self.nodes[edge.source].kind, self.nodes[edge.target].kind}
            if edge.channels < 1 or kinds != {OperatorKind.INVOKABLE} or edge.partitioner is not Partitioner.REBALANCE:
                raise ConfigError(
                    f"edge {self.describe(edge)}: {edge.channels} channels; more than one need two invokables and the"
                    " partitioner rebalance"
                )
        if edge.partitioner in _DYNAMIC_ONLY and not self.settings.is_dynamic:
            raise ConfigError(f"edge {self.describe(edge)}: {edge.partitioner.value} is for dynamic graphs only")
        if edge.partitioner is Partitioner.FORWARD:
            ends = {self.nodes[edge.source].parallelism, self.nodes[edge.target].parallelism} - {UNDECIDED}
            if len(ends) > 1:
                raise ConfigError(
                    f"edge {self.describe(edge)} is forward, but connects {self.nodes[edge.source].parallelism}"
                    f" subtasks to {self.nodes[edge.target].parallelism}; make them equal, or use rebalance or rescale"
                )


_DYNAMIC_ONLY: Final = frozenset({Partitioner.FORWARD_UNSPECIFIED, Partitioner.FORWARD_CONSECUTIVE_HASH})
