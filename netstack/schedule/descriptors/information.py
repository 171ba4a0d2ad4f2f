"""Job information and task information: the documents that all tasks of a job, or all subtasks of a vertex, share.

Rules: plain data; functions are names. Gates and partitions of a descriptor are in the order of `inputs` and `outputs`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, final

import msgpack

from ...base.config import DEFAULT_LATENCY_INTERVAL_S
from ...base.errors import ConfigError, ErrorCode, RemoteProtocolError
from ...base.text.bounded_msgpack import unpack_document
from ...base.text.safe_text import type_text
from ..checkpoint.instructions import CheckpointSettings
from ..graph.job_graph import (
    DEFAULT_KEEP,
    ChainedEdge,
    DistributionPattern,
    JobEdge,
    JobGraph,
    OperatorKind,
)

WITH_HEADS: Final = " with heads"
"""Follows the format of records in flight that have the heads of Flink's stream records."""


def in_flight_format(format: str, *, has_heads: bool) -> str:
    """The name in checkpoints of how records in flight are encoded: their format, and whether each has a head."""
    return f"{format}{WITH_HEADS}" if has_heads else format


@final
@dataclass(frozen=True, slots=True)
class EdgeId:
    """The identity of an edge between two operators, independent of chaining, parallelism and attempts.

    Attributes:
        source: name of the operator that emits.
        target: name of the operator that reads.
        input_number: of the target, from 1.
        side_output: tag of the records; empty is the main output.
        ordinal: distinguishes edges that are otherwise equal.
    """

    source: str
    target: str
    input_number: int = 1
    side_output: str = ""
    ordinal: int = 0

    def partition(self, producer: int, format: str = "msgpack") -> str:
        """The key of the in-flight data of one producer subtask in a checkpoint; `format` is that of its records."""
        values = [self.source, self.target, self.input_number, self.side_output, self.ordinal, producer, format]
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def of_partition(cls, name: str) -> tuple[Self, int, str]:
        """The edge, the producer subtask and the format of a key made by `partition`.

        Raises:
            ValueError: `partition` did not make it.
        """
        *edge, producer, format = json.loads(name)
        return cls(*edge), int(producer), str(format)

    def __str__(self) -> str:
        side = f" ({self.side_output})" if self.side_output else ""
        return f"{self.source}{side} -> {self.target}"


@final
@dataclass(frozen=True, slots=True)
class JobInformation:
    """What all tasks of a job share.

    Attributes:
        job_id: of this execution of the job.
        checkpoints: when and how they are taken; None: never.
        checkpoint_folder: where they are stored.
        checkpoint_root: a folder above it, below which no link is followed; None: links may lead there.
        keep: how many complete checkpoints are kept.
        builds: the build of each package that has functions of the job, by name.
        code: packages that were sent with the job, and their blobs.
        uids: the names of operators in checkpoints, if different from their own.
        reports_first_output: whether tasks report the first records of a partition, because its consumers are deployed
            then.
        latency_interval_s: seconds between a source's latency markers; 0: none.
    """

    job_id: str
    name: str = "job"
    operators: tuple[str, ...] = ()
    checkpoints: CheckpointSettings | None = None
    checkpoint_folder: str | None = None
    keep: int = DEFAULT_KEEP
    builds: Mapping[str, str] = field(default_factory=dict)
    code: tuple[tuple[str, str], ...] = ()
    reports_first_output: bool = False
    uids: Mapping[str, str] = field(default_factory=dict)
    latency_interval_s: float = DEFAULT_LATENCY_INTERVAL_S
    checkpoint_root: str | None = None

    def state_id(self, operator: str) -> str:
        """The name of an operator in checkpoints."""
        return self.uids.get(operator, operator)

    def kept_edge(self, edge: EdgeId) -> EdgeId:
        """The identity of an edge in checkpoints: with the uids of its operators."""
        return dataclasses.replace(edge, source=self.state_id(edge.source), target=self.state_id(edge.target))

    @classmethod
    def of(
        cls,
        job_id: str,
        job: JobGraph,
        *,
        builds: Mapping[str, str] | None = None,
        code: Sequence[tuple[str, str]] = (),
        reports_first_output: bool = False,
    ) -> Self:
        """The information of an execution of a job."""
        operators = tuple(name for vertex in job.vertices for name in vertex.operators or (vertex.name,))
        return cls(
            job_id,
            job.name,
            operators,
            job.checkpoints,
            job.checkpoint_folder,
            job.keep,
            dict(builds or {}),
            tuple(code),
            reports_first_output,
            dict(job.uids),
            job.latency_interval_s,
            job.checkpoint_root,
        )

    def pack(self) -> bytes:
        """Returns msgpack bytes."""
        values = [getattr(self, each.name) for each in dataclasses.fields(self)]
        packed: bytes = msgpack.packb(values, default=dataclasses.asdict)
        return packed

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parses what `pack` returned. Raises RemoteProtocolError if the bytes are no such document."""
        try:
            values = unpack_document(data)
            job_id, name, operators, checkpoints, folder, keep, builds, code, tells, uids, interval_s, root = values
            return cls(
                _text(job_id),
                _text(name),
                tuple(map(_text, operators)),
                None if checkpoints is None else CheckpointSettings(**checkpoints),
                None if folder is None else _text(folder),
                int(keep),
                {_text(package): _text(build) for package, build in builds.items()},
                tuple((_text(package), _text(blob)) for package, blob in code),
                bool(tells),
                {_text(operator): _text(uid) for operator, uid in uids.items()},
                float(interval_s),
                None if root is None else _text(root),
            )
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException, RecursionError) as error:
            raise _malformed("job", error) from error


@final
@dataclass(frozen=True, slots=True)
class OperatorInformation:
    """One operator of a chain.

    Attributes:
        name: unique in the job.
        kind: how its function is called.
        function: `package.module:attribute`; may be empty.
    """

    name: str
    kind: OperatorKind = OperatorKind.PROCESS
    function: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class InputInformation:
    """One input gate of a task.

    Attributes:
        edge: that it reads.
        partitioner: how its records chose their channel, such as `hash`.
        function: the partitioner's function: for `hash` the key of a record; empty without.
        is_pointwise: whether each of them writes to a part of the consumers only.
    """

    edge: EdgeId
    partitioner: str = "rebalance"
    function: str = ""
    format: str = "msgpack"
    producers: int = 1
    is_pointwise: bool = False


@final
@dataclass(frozen=True, slots=True)
class OutputInformation:
    """One partition that a task writes.

    Attributes:
        edge: that reads it; the first of several.
        partitioner: how a record chooses its channel, such as `hash`.
        function: the partitioner's function; empty without.
        buffer_timeout_s: longest time that a record waits for its buffer to fill; None: until it is full.
    """

    edge: EdgeId
    partitioner: str = "rebalance"
    function: str = ""
    format: str = "msgpack"
    buffer_timeout_s: float | None = 0.1


@final
@dataclass(frozen=True, slots=True)
class TaskInformation:
    """What all subtasks of a vertex share.

    Attributes:
        max_parallelism: number of key groups.
        operators: of the chain: the head first, then every operator after the one that it reads; sources that are
            inputs of the chain come last.
        chained: how records get from one to the next.
        inputs: of every gate.
        outputs: of every partition.
    """

    name: str
    parallelism: int = 1
    max_parallelism: int = 128
    operators: tuple[OperatorInformation, ...] = ()
    chained: tuple[ChainedEdge, ...] = ()
    inputs: tuple[InputInformation, ...] = ()
    outputs: tuple[OutputInformation, ...] = ()

    @property
    def is_invokable(self) -> bool:
        """Whether it runs one invokable, which reads its gates and writes its partitions itself."""
        return len(self.operators) == 1 and self.operators[0].kind is OperatorKind.INVOKABLE

    @classmethod
    def of(cls, job: JobGraph, vertex: int, parallelism_of: Callable[[int], int]) -> Self:
        """The information of a vertex.

        Args:
            job: its job.
            vertex: its index.
            parallelism_of: the decided parallelism of a vertex, by its index.
        """
        plan = job.vertices[vertex]
        return cls(
            plan.name,
            parallelism_of(vertex),
            plan.max_parallelism,
            _operators(job, vertex),
            plan.chained,
            tuple(_input(job, edge, parallelism_of) for edge in job.inputs_of(vertex)),
            tuple(_output(job, dataset) for dataset in job.outputs_of(vertex)),
        )

    def pack(self) -> bytes:
        """Returns msgpack bytes. Raises ConfigError if a parameter is not plain data."""
        try:
            packed: bytes = msgpack.packb(self, default=_packable)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"vertex {self.name!r}: its parameters are not plain data: {error}") from error
        return packed

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parses what `pack` returned. Raises RemoteProtocolError if the bytes are no such document."""
        try:
            name, parallelism, max_parallelism, operators, chained, inputs, outputs = unpack_document(data)
            return cls(
                _text(name),
                int(parallelism),
                int(max_parallelism),
                tuple(
                    OperatorInformation(_text(each), OperatorKind(kind), _text(function), dict(parameters))
                    for each, kind, function, parameters in operators
                ),
                tuple(
                    ChainedEdge(_text(source), _text(target), int(number), _text(side), bool(is_keyed))
                    for source, target, number, side, is_keyed in chained
                ),
                tuple(_parsed_input(*each) for each in inputs),
                tuple(_parsed_output(*each) for each in outputs),
            )
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException, RecursionError) as error:
            raise _malformed("task", error) from error


def _operators(job: JobGraph, vertex: int) -> tuple[OperatorInformation, ...]:
    plan = job.vertices[vertex]
    if not plan.operators:  # a job graph made by hand: the vertex is its only operator
        kind = OperatorKind.INVOKABLE if plan.invokable else OperatorKind.PROCESS
        return (OperatorInformation(plan.name, kind, plan.invokable, dict(plan.parameters)),)
    functions = plan.functions or ("",) * len(plan.operators)
    kinds = plan.kinds or (OperatorKind.PROCESS,) * len(plan.operators)
    return tuple(
        OperatorInformation(name, kind, function, dict(plan.parameters.get(name, {})))
        for name, kind, function in zip(plan.operators, kinds, functions, strict=True)
    )


def edge_id(job: JobGraph, edge: JobEdge) -> EdgeId:
    """The identity of an edge of a job."""
    dataset = job.datasets[edge.dataset]
    return EdgeId(
        dataset.operator or job.vertices[dataset.producer].name,
        edge.operator or job.vertices[edge.consumer].name,
        edge.input_number,
        dataset.side_output,
        edge.ordinal,
    )


def _input(job: JobGraph, edge: JobEdge, parallelism_of: Callable[[int], int]) -> InputInformation:
    return InputInformation(
        edge_id(job, edge),
        edge.partitioner,
        edge.function,
        edge.format,
        parallelism_of(job.datasets[edge.dataset].producer),
        edge.pattern is DistributionPattern.POINTWISE,
    )


def _output(job: JobGraph, dataset: int) -> OutputInformation:
    consumers = job.consumers_of(dataset)
    if not consumers:
        made = job.datasets[dataset]
        return OutputInformation(EdgeId(made.operator, "", side_output=made.side_output))
    edge = consumers[0]  # edges that share a dataset agree on everything here
    return OutputInformation(edge_id(job, edge), edge.partitioner, edge.function, edge.format, edge.buffer_timeout_s)


def _parsed_edge(source: object, target: object, number: int, side: object, ordinal: int) -> EdgeId:
    return EdgeId(_text(source), _text(target), int(number), _text(side), int(ordinal))


def _parsed_input(
    edge: Sequence[Any], partitioner: object, function: object, format: object, producers: int, is_pointwise: object
) -> InputInformation:
    return InputInformation(
        _parsed_edge(*edge), _text(partitioner), _text(function), _text(format), int(producers), bool(is_pointwise)
    )


def _parsed_output(
    edge: Sequence[Any], partitioner: object, function: object, format: object, timeout_s: float | None
) -> OutputInformation:
    return OutputInformation(
        _parsed_edge(*edge),
        _text(partitioner),
        _text(function),
        _text(format),
        None if timeout_s is None else float(timeout_s),
    )


def _packable(each: object) -> object:
    if isinstance(each, OperatorKind):
        return each.value
    if dataclasses.is_dataclass(each) and not isinstance(each, type):
        return [getattr(each, name) for name in each.__dataclass_fields__]
    raise TypeError(f"{each!r} is {type_text(each)}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type_text(value)} instead of a text")
    return value


def _malformed(what: str, error: BaseException) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"no {what} information: {error}"[:300])
