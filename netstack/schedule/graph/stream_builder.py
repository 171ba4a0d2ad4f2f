"""The way to write a job: sources, operators on streams, and how records get from one to the next.

Takes: names of functions, or functions that have one. Gives: a `StreamGraph`.

    job = StreamEnvironment("words", parallelism=4)
    lines = job.source(read_lines).set_parallelism(1)
    lines.flat_map(split).key_by(word).process(Count).sink(show)
    graph = job.stream_graph()

Rules: nothing runs here and nothing is imported. What functions and classes are called with: `task.operators`. An
operator without a name is called after what it does: `map`, `map 2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, final

from ...errors import ConfigError
from ...function_names import Named, name_of
from .job_graph import DEFAULT_FORMAT, UNDECIDED, OperatorKind, ResourceProfile
from .slot_groups import inherited_group
from .stream_graph import (
    DEFAULT_BUFFER_TIMEOUT_S,
    KEPT_DATASET,
    UNSET,
    ChainingStrategy,
    ExchangeMode,
    Partitioner,
    StreamEdge,
    StreamGraph,
    StreamNode,
    StreamSettings,
    Unset,
)


@final
@dataclass(slots=True)
class _Operator:
    """One operator while the job is written; None is what nobody said."""

    node: StreamNode
    parallelism: int | None = None
    group: str | None = None


@final
@dataclass(frozen=True, slots=True)
class _Way:
    """How records leave one operator; None is what nobody said."""

    source: int
    partitioner: Partitioner | None = None
    mode: ExchangeMode = ExchangeMode.UNDEFINED
    side_output: str = ""
    function: str = ""
    dataset_id: str | None = None
    format: str = DEFAULT_FORMAT
    buffer_timeout_s: float | Unset | None = UNSET
    channels: int = 1
    is_prompt: bool = False


@final
@dataclass(slots=True)
class StreamEnvironment:
    """A job that is being written.

    Attributes:
        name: of the job.
        parallelism: of operators that do not set their own; None is 1, or undecided in a dynamic graph.
        max_parallelism: likewise; None leaves it to the chain.
        buffer_timeout_s: of operators that do not set their own; not used in batch, where nothing waits for time, nor
            for results that are read when complete.
        settings: what holds for the whole job.
        group_profiles: what the slots of a slot sharing group offer, by its name.
    """

    name: str = "job"
    parallelism: int | None = None
    max_parallelism: int | None = None
    buffer_timeout_s: float | None = DEFAULT_BUFFER_TIMEOUT_S
    settings: StreamSettings = field(default_factory=StreamSettings)
    group_profiles: dict[str, ResourceProfile] = field(default_factory=dict)
    _operators: list[_Operator] = field(default_factory=list, init=False, repr=False)
    _ways: list[tuple[_Way, int, int]] = field(default_factory=list, init=False, repr=False)
    _names: set[str] = field(default_factory=set, init=False, repr=False)

    def source(
        self,
        function: Named,
        *,
        name: str = "",
        is_legacy: bool = False,
        parameters: Mapping[str, Any] | None = None,
    ) -> OperatorStream:
        """An operator that makes records.

        Args:
            function: what makes them.
            name: unique in the job.
            is_legacy: it emits whenever it likes, so no yielding operator may be chained to it.
            parameters: plain data for the function.

        Raises:
            ConfigError: the function has no name another process could find, or the operator's name is taken.
        """
        node = StreamNode(
            name=self._free_name(name, "source"),
            kind=OperatorKind.SOURCE,
            function=name_of(function),
            is_source=True,
            is_legacy_source=is_legacy,
            parameters=dict(parameters or {}),
        )
        return self.add(node)

    def dataset(self, dataset_id: str, *, name: str = "") -> OperatorStream:
        """The records that another job has kept under this name (`DataStream.persist`).

        Args:
            dataset_id: the name.
            name: of the operator, unique in the job.

        Raises:
            ConfigError: the operator's name is taken. When the job is submitted: there is no such dataset.
        """
        return self.source(KEPT_DATASET, name=name or dataset_id, parameters={"dataset": dataset_id})

    def invokable(self, function: Named, *inputs: DataStream, name: str = "", **parameters: Any) -> OperatorStream:
        """A vertex that writes its partitions and reads its gates itself: `async def invokable(task)`.

        Args:
            function: see `task.invokable`.
            inputs: what it reads, in the order of its gates; without any it is a source.
            name: unique in the job.
            parameters: plain data for the function.

        Raises:
            ConfigError: the function has no name another process could find, or the operator's name is taken.
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
        """An operator that is data already; each stream is an input of its own.

        Its parallelism and slot sharing group are still to be set: those of the node do not count.

        Raises:
            ConfigError: its name is taken.
        """
        index = len(self._operators)
        self._operators.append(_Operator(node))
        self._names.add(self._free_name(node.name, "operator"))
        for number, stream in enumerate(inputs, 1):
            self._ways.extend((way, index, number) for way in stream._ways)
        return OperatorStream(self, index)

    def stream_graph(self) -> StreamGraph:
        """The job, checked; what nobody said is decided here.

        Raises:
            ConfigError: it is no job; see `StreamGraph`.
        """
        nodes: list[StreamNode] = []
        inputs: list[list[int]] = [[] for _ in self._operators]
        for way, target, _ in self._ways:
            inputs[target].append(way.source)
        for operator, sources in zip(self._operators, inputs, strict=True):
            nodes.append(self._decided(operator, [nodes[source].slot_sharing_group for source in sources]))
        return StreamGraph(
            name=self.name,
            nodes=tuple(nodes),
            edges=tuple(self._edge(nodes, way, target, number) for way, target, number in self._ways),
            settings=self.settings,
            group_profiles=dict(self.group_profiles),
            buffer_timeout_s=None if self.settings.is_batch else self.buffer_timeout_s,
        )

    def _decided(self, operator: _Operator, groups: Sequence[str]) -> StreamNode:
        node = operator.node
        default = UNDECIDED if self.settings.is_dynamic else 1
        parallelism = next((given for given in (operator.parallelism, self.parallelism) if given is not None), default)
        return replace(
            node,
            parallelism=parallelism,
            max_parallelism=self.max_parallelism if node.max_parallelism is None else node.max_parallelism,
            slot_sharing_group=inherited_group(operator.group, groups),
        )

    def _edge(self, nodes: Sequence[StreamNode], way: _Way, target: int, number: int) -> StreamEdge:
        is_equal = nodes[way.source].parallelism == nodes[target].parallelism
        partitioner = way.partitioner
        if partitioner is None:
            forward = Partitioner.FORWARD_UNSPECIFIED if self.settings.is_dynamic else Partitioner.FORWARD
            partitioner = forward if is_equal else Partitioner.REBALANCE
        elif partitioner is Partitioner.FORWARD_CONSECUTIVE_HASH and not (is_equal and self.settings.is_dynamic):
            partitioner = Partitioner.HASH
        return StreamEdge(
            source=way.source,
            target=target,
            partitioner=partitioner,
            mode=way.mode,
            input_number=number,
            side_output=way.side_output,
            function=way.function,
            dataset_id=way.dataset_id,
            format=way.format,
            buffer_timeout_s=way.buffer_timeout_s,
            channels=way.channels,
            is_prompt=way.is_prompt,
        )

    def _free_name(self, name: str, kind: str) -> str:
        if name in self._names:
            raise ConfigError(f"job {self.name!r} has an operator {name!r} already; choose another name")
        if name:
            return name
        number, free = 1, kind
        while free in self._names:
            number += 1
            free = f"{kind} {number}"
        return free


class DataStream:
    """Records on their way to the next operator: which of its subtasks gets each."""

    __slots__ = ("_environment", "_ways")

    def __init__(self, environment: StreamEnvironment, ways: tuple[_Way, ...]) -> None:
        self._environment = environment
        self._ways = ways

    # Operators.

    def map(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """One record for each record."""
        return self._then(OperatorKind.MAP, function, name, parameters)

    def filter(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """The records the function says yes to."""
        return self._then(OperatorKind.FILTER, function, name, parameters)

    def flat_map(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """Any number of records for each record: the function gives an iterable."""
        return self._then(OperatorKind.FLAT_MAP, function, name, parameters)

    def process(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """A function `(record, out)`, or a class with `process(record, out)` and state."""
        return self._then(OperatorKind.PROCESS, function, name, parameters)

    def sink(self, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """Where records leave the job."""
        return self._then(OperatorKind.SINK, function, name, parameters)

    def connect(self, other: DataStream, function: Named, *, name: str = "", **parameters: Any) -> OperatorStream:
        """An operator with two inputs: this stream and another."""
        return self._then(OperatorKind.CONNECT, function, name, parameters, other)

    def union(self, *others: DataStream) -> DataStream:
        """This stream and others as one: records of all, in no order. No operator of its own."""
        for other in others:
            self._check_same_job(other)
        return DataStream(self._environment, self._ways + tuple(way for other in others for way in other._ways))

    # Who gets a record.

    def key_by(self, function: Named, *, is_consecutive: bool = False) -> DataStream:
        """By the key group of its key.

        Args:
            function: the key of a record.
            is_consecutive: the records are partitioned by this key already, so that a dynamic graph may chain.
        """
        hashed = Partitioner.FORWARD_CONSECUTIVE_HASH if is_consecutive else Partitioner.HASH
        return self.partition_by(hashed, name_of(function, what="key"))

    def partition_custom(self, function: Named) -> DataStream:
        """A function chooses."""
        return self.partition_by(Partitioner.CUSTOM, name_of(function, what="partitioner"))

    def partition_by(self, partitioner: Partitioner, function: str = "") -> DataStream:
        """By any partitioner; the methods here are its short forms."""
        return self._changed(partitioner=partitioner, function=function)

    def forward(self) -> DataStream:
        """The subtask of the same index; both operators must have one parallelism."""
        return self.partition_by(Partitioner.FORWARD)

    def rebalance(self) -> DataStream:
        """All subtasks, in turn."""
        return self.partition_by(Partitioner.REBALANCE)

    def rescale(self) -> DataStream:
        """A few subtasks each, in turn."""
        return self.partition_by(Partitioner.RESCALE)

    def shuffle(self) -> DataStream:
        """A random one."""
        return self.partition_by(Partitioner.SHUFFLE)

    def global_(self) -> DataStream:
        """The first subtask."""
        return self.partition_by(Partitioner.GLOBAL)

    def broadcast(self) -> DataStream:
        """Every subtask gets every record."""
        return self.partition_by(Partitioner.BROADCAST)

    def exchange(self, mode: ExchangeMode) -> DataStream:
        """How the records move: while they are made, or when all of them were made."""
        return self._changed(mode=mode)

    def persist(self, dataset_id: str) -> DataStream:
        """Keeps the records under a name beyond the end of the job, for others to read with `dataset`.

        They are on the TaskManagers that wrote them until `netstack datasets --release`, or a job that has ended well
        keeps others under the same name. The exchange must be a blocking one.
        """
        return self._changed(dataset_id=dataset_id)

    def with_format(self, format: str) -> DataStream:
        """How the records become bytes where they go over the network: bytes, str, int64, float64, msgpack, arrow."""
        return self._changed(format=format)

    def with_buffer_timeout(self, timeout_s: float | None) -> DataStream:
        """Longest a record of this stream waits for its buffer to fill, whatever the operator that emits it has set.

        Args:
            timeout_s: None is until it is full.
        """
        return self._changed(buffer_timeout_s=timeout_s)

    def prompt(self, yes: bool = True) -> DataStream:
        """Few records, which shall not stand behind many: they have a connection for such streams alone.

        Not for blocking exchanges. How long a record waits for its buffer is `with_buffer_timeout`, as ever.
        """
        return self._changed(is_prompt=yes)

    def with_channels(self, channels: int) -> DataStream:
        """Several channels from each subtask to each of the next operator's; both operators must be invokables."""
        return self._changed(channels=channels)

    def _changed(self, **changes: Any) -> DataStream:
        return DataStream(self._environment, tuple(replace(way, **changes) for way in self._ways))

    def _check_same_job(self, other: DataStream) -> None:
        other._check_job(self._environment)

    def _check_job(self, environment: StreamEnvironment) -> None:
        if self._environment is not environment:
            raise ConfigError(
                f"a stream of job {self._environment.name!r} cannot be joined to one of {environment.name!r}"
            )

    def _then(
        self, kind: OperatorKind, function: Named, name: str, parameters: Mapping[str, Any], *others: DataStream
    ) -> OperatorStream:
        for other in others:
            self._check_same_job(other)
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
    """What an operator emits; and the operator itself, to be set further."""

    __slots__ = ("_operator",)

    def __init__(self, environment: StreamEnvironment, index: int) -> None:
        super().__init__(environment, (_Way(index),))
        self._operator = environment._operators[index]

    def side_output(self, tag: str) -> DataStream:
        """The records that the operator emits under a tag, instead of the main output."""
        if not tag:
            raise ConfigError(f"operator {self._operator.node.name!r}: a side output needs a tag")
        return self._changed(side_output=tag)

    def uid(self, uid: str) -> Self:
        """What its state is called in checkpoints, so that it may be renamed; without it, as the operator is named."""
        return self._set(uid=uid)

    def set_parallelism(self, parallelism: int) -> Self:
        """Number of subtasks."""
        if parallelism < 1:
            raise ConfigError(f"operator {self._operator.node.name!r}: parallelism {parallelism}; give at least 1")
        self._operator.parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Number of key groups: the operator can never have more subtasks."""
        return self._set(max_parallelism=max_parallelism)

    def slot_sharing_group(self, name: str) -> Self:
        """The operators it may share slots (processes) with; by default as its inputs, and all pipelines share."""
        self._operator.group = name
        return self

    def co_location_group(self, name: str) -> Self:
        """Its subtask i runs in the slot of subtask i of the others."""
        return self._set(co_location_group=name)

    def disable_chaining(self) -> Self:
        """It is chained to nobody."""
        return self.chaining_strategy(ChainingStrategy.NEVER)

    def start_new_chain(self) -> Self:
        """It is not chained to what comes before it."""
        return self.chaining_strategy(ChainingStrategy.HEAD)

    def chaining_strategy(self, strategy: ChainingStrategy) -> Self:
        """Whom it may be chained to."""
        return self._set(strategy=strategy)

    def set_buffer_timeout(self, timeout_s: float | None) -> Self:
        """Longest a record it emits waits for its buffer to fill; None is until it is full."""
        return self._set(buffer_timeout_s=timeout_s)

    def yields(self) -> Self:
        """It waits for other operators' mail while it processes a record."""
        return self._set(is_yielding=True)

    def emits_at_end_only(self) -> Self:
        """It emits nothing before the end of its input, so its output is blocking."""
        return self._set(emits_at_end_only=True)

    def set_profile(self, profile: ResourceProfile) -> Self:
        """What one of its subtasks needs."""
        return self._set(profile=profile)

    def supports_concurrent_attempts(self, yes: bool = True) -> Self:
        """Whether two attempts of a subtask may run at a time; see `StreamNode`. A sink has to say so."""
        return self._set(supports_concurrent_attempts=yes)

    def _set(self, **changes: Any) -> Self:
        self._operator.node = replace(self._operator.node, **changes)
        return self
