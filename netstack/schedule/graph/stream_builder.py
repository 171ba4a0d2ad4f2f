"""The API for writing a job: sources, operators on streams, and partitioning between operators.

    job = StreamEnvironment("words", parallelism=4)
    lines = job.source(read_lines).set_parallelism(1)
    lines.flat_map(split).key_by(word).process(Count).sink(show)
    graph = job.stream_graph()

Rules: nothing runs here, and nothing is imported by name. `cluster.task.operators` documents how functions and classes
are called. An operator without a name gets the name of its kind: `map`, `map 2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, final

from ...base.errors import ConfigError
from ...base.function_names import Named, name_of
from ...base.setting_types import check_types
from .job_graph import UNDECIDED, OperatorKind, ResourceProfile
from .slot_groups import inherited_group
from .stream_graph import (
    DEFAULT_BUFFER_TIMEOUT_S,
    KEPT_DATASET,
    ChainingStrategy,
    ExchangeMode,
    Partitioner,
    StreamEdge,
    StreamGraph,
    StreamNode,
    StreamSettings,
)


@final
@dataclass(slots=True)
class _Operator:
    """One operator of a job that is being written; None: not set."""

    node: StreamNode
    parallelism: int | None = None
    group: str | None = None


@final
@dataclass(frozen=True, slots=True)
class _Output:
    """How records leave an operator: an edge whose target is set when an operator reads it."""

    edge: StreamEdge
    is_partitioned: bool = False


@final
@dataclass(slots=True)
class StreamEnvironment:
    """A job that is being written.

    Attributes:
        name: of the job.
        parallelism: of operators that do not set their own; None or -1: 1, or undecided in a dynamic graph.
        max_parallelism: of operators that do not set their own; None: decided for each chain.
        buffer_timeout_s: of operators that do not set their own; ignored in batch jobs and for blocking results.
        settings: of the whole job.
        group_profiles: what the slots of a slot sharing group offer, by its name.
    """

    name: str = "job"
    parallelism: int | None = None
    max_parallelism: int | None = None
    buffer_timeout_s: float | None = DEFAULT_BUFFER_TIMEOUT_S
    settings: StreamSettings = field(default_factory=StreamSettings)
    group_profiles: dict[str, ResourceProfile] = field(default_factory=dict)
    _operators: list[_Operator] = field(default_factory=list, init=False, repr=False)
    _outputs: list[_Output] = field(default_factory=list, init=False, repr=False)
    _names: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        check_types(self, f"job {self.name!r}: ")

    def source(
        self,
        function: Named,
        *,
        name: str = "",
        is_legacy: bool = False,
        parameters: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> OperatorStream:
        """Adds an operator that produces records.

        Parameters of the function are keyword arguments, as for `map`; `parameters` takes those with names used here.

        Args:
            function: produces them.
            name: unique in the job.
            is_legacy: it emits at any time, so no yielding operator may be chained to it.
            parameters: plain data for the function.
            more: as `parameters`.

        Raises:
            ConfigError: the function has no importable name, or the operator's name is taken.
        """
        node = StreamNode(
            name=self._free_name(name, "source"),
            kind=OperatorKind.SOURCE,
            function=name_of(function),
            is_source=True,
            is_legacy_source=is_legacy,
            parameters={**(parameters or {}), **more},
        )
        return self.add(node)

    def dataset(self, dataset_id: str, *, name: str = "") -> OperatorStream:
        """Adds a source that reads the dataset which another job kept under this id (`DataStream.persist`).

        Args:
            dataset_id: of the dataset.
            name: of the operator, unique in the job.

        Raises:
            ConfigError: the operator's name is taken. At submission: there is no such dataset.
        """
        return self.source(KEPT_DATASET, name=name or dataset_id, parameters={"dataset": dataset_id})

    def invokable(self, function: Named, *inputs: DataStream, name: str = "", **parameters: Any) -> OperatorStream:
        """Adds a vertex that reads its gates and writes its partitions itself: `async def invokable(task)`.

        Args:
            function: see `cluster.task.invokable`.
            inputs: in the order of its gates; without any it is a source.
            name: unique in the job.
            parameters: plain data for the function.

        Raises:
            ConfigError: the function has no importable name, or the operator's name is taken.
        """
        for stream in inputs:
            stream._check_job(self)
        node = StreamNode(
            name=self._free_name(name, "invokable"),
            kind=OperatorKind.INVOKABLE,
            function=name_of(function),
            is_source=not inputs,
            strategy=ChainingStrategy.NEVER,
            parameters=dict(parameters),
        )
        return self.add(node, *inputs)

    def add(self, node: StreamNode, *inputs: DataStream) -> OperatorStream:
        """Adds an operator given as data; each stream is an input of its own.

        Its parallelism and slot sharing group must be set afterwards: those of the node are ignored.

        Raises:
            ConfigError: its name is taken.
        """
        index = len(self._operators)
        self._operators.append(_Operator(node))
        self._names.add(self._free_name(node.name, "operator"))
        for number, stream in enumerate(inputs, 1):
            self._outputs += (
                replace(each, edge=replace(each.edge, target=index, input_number=number)) for each in stream._outputs
            )
        return OperatorStream(self, index)

    def stream_graph(self) -> StreamGraph:
        """The checked job, with defaults applied.

        Raises:
            ConfigError: it is not a valid job; see `StreamGraph`.
        """
        nodes: list[StreamNode] = []
        inputs: list[list[int]] = [[] for _ in self._operators]
        for output in self._outputs:
            inputs[output.edge.target].append(output.edge.source)
        for operator, sources in zip(self._operators, inputs, strict=True):
            nodes.append(self._decided(operator, [nodes[source].slot_sharing_group for source in sources]))
        return StreamGraph(
            name=self.name,
            nodes=tuple(nodes),
            edges=tuple(self._edge(nodes, output) for output in self._outputs),
            settings=self.settings,
            group_profiles=dict(self.group_profiles),
            buffer_timeout_s=None if self.settings.is_batch else self.buffer_timeout_s,
        )

    def _decided(self, operator: _Operator, groups: Sequence[str]) -> StreamNode:
        node = operator.node
        default = UNDECIDED if self.settings.is_dynamic else 1
        set_ones = (each for each in (operator.parallelism, self.parallelism) if each not in (None, UNDECIDED))
        parallelism = next(set_ones, default)
        return replace(
            node,
            parallelism=parallelism,
            max_parallelism=self.max_parallelism if node.max_parallelism is None else node.max_parallelism,
            slot_sharing_group=inherited_group(operator.group, groups),
        )

    def _edge(self, nodes: Sequence[StreamNode], output: _Output) -> StreamEdge:
        edge = output.edge
        is_equal = nodes[edge.source].parallelism == nodes[edge.target].parallelism
        partitioner = edge.partitioner
        if not output.is_partitioned:
            forward = Partitioner.FORWARD_UNSPECIFIED if self.settings.is_dynamic else Partitioner.FORWARD
            partitioner = forward if is_equal else Partitioner.REBALANCE
        elif partitioner is Partitioner.FORWARD_CONSECUTIVE_HASH and not (is_equal and self.settings.is_dynamic):
            partitioner = Partitioner.HASH
        return replace(edge, partitioner=partitioner)

    def _free_name(self, name: str, kind: str) -> str:
        if name in self._names:
            raise ConfigError(f"job {self.name!r} already has an operator {name!r}; choose another name")
        if name:
            return name
        number, free = 1, kind
        while free in self._names:
            number += 1
            free = f"{kind} {number}"
        return free


class DataStream:
    """A stream of records, and how it is partitioned among the subtasks of the next operator."""

    __slots__ = ("_environment", "_outputs")

    def __init__(self, environment: StreamEnvironment, outputs: tuple[_Output, ...]) -> None:
        self._environment = environment
        self._outputs = outputs

    # Operators.

    def map(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """One record for each record."""
        return self._then(OperatorKind.MAP, function, name, parameters)

    def filter(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """Keeps the records for which the function returns true."""
        return self._then(OperatorKind.FILTER, function, name, parameters)

    def flat_map(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """Any number of records for each record: the function returns an iterable."""
        return self._then(OperatorKind.FLAT_MAP, function, name, parameters)

    def process(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """A function `(record, out)`, or a class with `process(record, out)` and state."""
        return self._then(OperatorKind.PROCESS, function, name, parameters)

    def sink(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """Consumes the records at the end of the job."""
        return self._then(OperatorKind.SINK, function, name, parameters)

    def connect(self, other: DataStream, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """An operator with two inputs: this stream and another."""
        return self._then(OperatorKind.CONNECT, function, name, parameters, other)

    def union(self, *others: DataStream) -> DataStream:
        """Merges this stream with others, in no particular order, without an operator."""
        for other in others:
            other._check_job(self._environment)
        return DataStream(
            self._environment, self._outputs + tuple(output for other in others for output in other._outputs)
        )

    # Partitioning and exchange.

    def key_by(self, function: Named | None = None, *, is_consecutive: bool = False) -> DataStream:
        """Partitions by the key group of each record's key.

        Args:
            function: returns the key of a record; None: the record is its own key. If it has an attribute
                `key_batch(array)`, that returns the keys of an array of records as an array.
            is_consecutive: the records are already partitioned by this key, so a dynamic graph may chain.
        """
        hashed = Partitioner.FORWARD_CONSECUTIVE_HASH if is_consecutive else Partitioner.HASH
        return self.partition_by(hashed, "" if function is None else name_of(function, what="key"))

    def partition_custom(self, function: Named) -> DataStream:
        """Partitions by a function `(record, channels)` that returns the subtask of a record: 0 to channels - 1."""
        return self.partition_by(Partitioner.CUSTOM, name_of(function, what="partitioner"))

    def partition_by(self, partitioner: Partitioner, function: str = "") -> DataStream:
        """Partitions by any partitioner; the other methods are short forms."""
        changed = self._changed(partitioner=partitioner, function=function)
        return DataStream(self._environment, tuple(replace(each, is_partitioned=True) for each in changed._outputs))

    def forward(self) -> DataStream:
        """Sends records to the subtask of the same index; both operators need the same parallelism."""
        return self.partition_by(Partitioner.FORWARD)

    def rebalance(self) -> DataStream:
        """Sends records to all subtasks in turn."""
        return self.partition_by(Partitioner.REBALANCE)

    def rescale(self) -> DataStream:
        """Sends the records of each subtask to a few subtasks in turn."""
        return self.partition_by(Partitioner.RESCALE)

    def shuffle(self) -> DataStream:
        """Sends each record to a random subtask."""
        return self.partition_by(Partitioner.SHUFFLE)

    def global_(self) -> DataStream:
        """Sends all records to the first subtask."""
        return self.partition_by(Partitioner.GLOBAL)

    def broadcast(self) -> DataStream:
        """Sends every record to every subtask."""
        return self.partition_by(Partitioner.BROADCAST)

    def exchange(self, mode: ExchangeMode) -> DataStream:
        """Sets whether records are exchanged while they are produced, or when all are complete."""
        return self._changed(mode=mode)

    def persist(self, dataset_id: str) -> DataStream:
        """Keeps the records as a dataset beyond the end of the job; `dataset` reads it in other jobs.

        They stay on the TaskManagers that wrote them until `netstack datasets --release`, or until a successful job
        keeps a dataset of the same id. The exchange must be blocking.
        """
        return self._changed(dataset_id=dataset_id)

    def with_format(self, format: str) -> DataStream:
        """Sets the record format on the network: bytes, str, int64, float64, msgpack, arrow."""
        return self._changed(format=format)

    def with_buffer_timeout(self, timeout_s: float | None) -> DataStream:
        """Sets the longest time that a record of this stream waits for its buffer to fill; overrides the operator's.

        Args:
            timeout_s: None: until the buffer is full.
        """
        return self._changed(buffer_timeout_s=timeout_s)

    def prompt(self, yes: bool = True) -> DataStream:
        """Gives the stream connections apart from bulk streams, so that its few records do not queue behind many.

        Not for blocking exchanges. `with_buffer_timeout` still decides how long records wait for their buffer.
        """
        return self._changed(is_prompt=yes)

    def with_channels(self, channels: int) -> DataStream:
        """Sets several channels between each pair of subtasks; both operators must be invokables."""
        return self._changed(channels=channels)

    def _changed(self, **changes: Any) -> DataStream:
        changed = (replace(each, edge=replace(each.edge, **changes)) for each in self._outputs)
        return DataStream(self._environment, tuple(changed))

    def _check_job(self, environment: StreamEnvironment) -> None:
        if self._environment is not environment:
            raise ConfigError(
                f"a stream of job {self._environment.name!r} cannot be joined to one of {environment.name!r}"
            )

    def _then(
        self, kind: OperatorKind, function: Named, name: str, parameters: Mapping[str, Any], *others: DataStream
    ) -> OperatorStream:
        for other in others:
            other._check_job(self._environment)
        environment = self._environment
        node = StreamNode(
            name=environment._free_name(name, kind.value),
            kind=kind,
            function=name_of(function),
            parameters=dict(parameters),
        )
        return environment.add(node, self, *others)


@final
class OperatorStream(DataStream):
    """The output stream of an operator, and the operator's settings."""

    __slots__ = ("_operator",)

    def __init__(self, environment: StreamEnvironment, index: int) -> None:
        super().__init__(environment, (_Output(StreamEdge(source=index, target=-1)),))
        self._operator = environment._operators[index]

    def side_output(self, tag: str) -> DataStream:
        """The records that the operator emits under a tag instead of its main output."""
        if not tag:
            raise ConfigError(f"operator {self._operator.node.name!r}: a side output needs a tag")
        return self._changed(side_output=tag)

    def uid(self, uid: str) -> Self:
        """Sets the operator's name in checkpoints, so that it may be renamed; by default it is the operator's name."""
        return self._set(uid=uid)

    def set_parallelism(self, parallelism: int) -> Self:
        """Sets the number of subtasks; -1: as if it were not set, as in Flink."""
        parallelism = replace(self._operator.node, parallelism=parallelism).parallelism  # checks and converts it
        if parallelism < 1 and parallelism != UNDECIDED:
            raise ConfigError(
                f"operator {self._operator.node.name!r}: parallelism {parallelism}; give at least 1, or -1 for the"
                " default"
            )
        self._operator.parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Sets the number of key groups, which is the largest possible parallelism."""
        return self._set(max_parallelism=max_parallelism)

    def slot_sharing_group(self, name: str) -> Self:
        """Sets the group whose members may share slots; by default that of its inputs, and one for all pipelines."""
        self._operator.group = name
        return self

    def co_location_group(self, name: str) -> Self:
        """Puts its subtask i into the slot of subtask i of the other members."""
        return self._set(co_location_group=name)

    def disable_chaining(self) -> Self:
        """Never chains it to another operator."""
        return self.chaining_strategy(ChainingStrategy.NEVER)

    def start_new_chain(self) -> Self:
        """Does not chain it to its inputs."""
        return self.chaining_strategy(ChainingStrategy.HEAD)

    def chaining_strategy(self, strategy: ChainingStrategy) -> Self:
        """Sets which operators it may be chained to."""
        return self._set(strategy=strategy)

    def set_buffer_timeout(self, timeout_s: float | None) -> Self:
        """Sets the longest time that a record it emits waits for its buffer to fill; None: until it is full."""
        return self._set(buffer_timeout_s=timeout_s)

    def yields(self) -> Self:
        """Declares that it waits for other operators' mail while it processes a record."""
        return self._set(is_yielding=True)

    def emits_at_end_only(self) -> Self:
        """Declares that it emits nothing before the end of its input, so its output is blocking."""
        return self._set(emits_at_end_only=True)

    def set_profile(self, profile: ResourceProfile) -> Self:
        """Sets the resources that one of its subtasks needs."""
        return self._set(profile=profile)

    def supports_concurrent_attempts(self, yes: bool = True) -> Self:
        """Declares whether two attempts of a subtask may run at the same time (see `StreamNode`); needed for sinks."""
        return self._set(supports_concurrent_attempts=yes)

    def _set(self, **changes: Any) -> Self:
        self._operator.node = replace(self._operator.node, **changes)
        return self
