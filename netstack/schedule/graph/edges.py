"""From an edge between two chains to distribution pattern, result type, buffer timeout and dataset."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from ...errors import ConfigError
from ...ids import ResultPartitionType
from .job_graph import DistributionPattern, JobGraph
from .stream_graph import ExchangeMode, GlobalExchangeMode, Partitioner, StreamEdge, StreamGraph, Unset

_POINTWISE: Final = frozenset({Partitioner.FORWARD, Partitioner.RESCALE})
_MODES: Final = {
    ExchangeMode.PIPELINED: ResultPartitionType.PIPELINED_BOUNDED,
    ExchangeMode.BATCH: ResultPartitionType.BLOCKING,
    ExchangeMode.HYBRID_FULL: ResultPartitionType.HYBRID_FULL,
    ExchangeMode.HYBRID_SELECTIVE: ResultPartitionType.HYBRID_SELECTIVE,
}
_GLOBAL_MODES: Final = {
    GlobalExchangeMode.ALL_EDGES_PIPELINED: ResultPartitionType.PIPELINED_BOUNDED,
    GlobalExchangeMode.ALL_EDGES_PIPELINED_APPROXIMATE: ResultPartitionType.PIPELINED_APPROXIMATE,
    GlobalExchangeMode.ALL_EDGES_BLOCKING: ResultPartitionType.BLOCKING,
    GlobalExchangeMode.ALL_EDGES_HYBRID_FULL: ResultPartitionType.HYBRID_FULL,
    GlobalExchangeMode.ALL_EDGES_HYBRID_SELECTIVE: ResultPartitionType.HYBRID_SELECTIVE,
}
_PIPELINED_UNDER: Final = {
    GlobalExchangeMode.FORWARD_EDGES_PIPELINED: frozenset({Partitioner.FORWARD}),
    GlobalExchangeMode.POINTWISE_EDGES_PIPELINED: _POINTWISE,
}
_UNCHAINED: Final = {
    Partitioner.FORWARD_UNSPECIFIED: Partitioner.RESCALE,
    Partitioner.FORWARD_CONSECUTIVE_HASH: Partitioner.HASH,
}


def unchained_partitioner(edge: StreamEdge) -> Partitioner:
    """The partitioner of an edge over the network: decides the partitioners that a dynamic graph left open."""
    return _UNCHAINED.get(edge.partitioner, edge.partitioner)


def pattern_of(partitioner: Partitioner) -> DistributionPattern:
    """The distribution pattern of a partitioner: pointwise for forward and rescale, else all to all."""
    return DistributionPattern.POINTWISE if partitioner in _POINTWISE else DistributionPattern.ALL_TO_ALL


def result_type(graph: StreamGraph, edge: StreamEdge) -> ResultPartitionType:
    """The result type of an edge over the network.

    Raises:
        ConfigError: a dataset to be kept whose exchange is not blocking, or a blocking exchange marked as prompt.
    """
    partitioner = unchained_partitioner(edge)
    kind = _MODES.get(edge.mode) or _undefined(graph, edge, partitioner)
    if kind is ResultPartitionType.HYBRID_SELECTIVE and partitioner is Partitioner.BROADCAST:
        kind = ResultPartitionType.HYBRID_FULL  # several consumers read one copy
    if edge.is_prompt and kind.is_blocking:
        raise ConfigError(
            f"edge {graph.describe(edge)} is blocking: it is read when it is complete, so prompt has no effect;"
            " remove prompt, or use exchange mode PIPELINED"
        )
    if edge.dataset_id is not None:
        if not kind.is_blocking:
            raise ConfigError(
                f"edge {graph.describe(edge)}: only a blocking result can be kept as dataset {edge.dataset_id!r}, but"
                f" this one is {kind.value}; use exchange mode BATCH"
            )
        if graph.settings.network is not None:
            raise ConfigError(
                f"edge {graph.describe(edge)}: dataset {edge.dataset_id!r} cannot outlive the job, which has its own"
                " network: remove `network` from the settings"
            )
        return ResultPartitionType.BLOCKING_PERSISTENT
    return kind


def buffer_timeout_s(graph: StreamGraph, edge: StreamEdge, kind: ResultPartitionType) -> float | None:
    """Longest time that a record of an edge waits for its buffer to fill; None: until it is full.

    Raises:
        ConfigError: the exchange is blocking, and its edge or its operator sets a timeout. The job's default timeout
            does not apply to blocking exchanges.
    """
    given = edge.buffer_timeout_s
    if isinstance(given, Unset):
        given = graph.nodes[edge.source].buffer_timeout_s
    if isinstance(given, Unset):
        return None if kind.is_blocking else graph.buffer_timeout_s
    if kind.is_blocking and given is not None:
        raise ConfigError(
            f"edge {graph.describe(edge)} is blocking, so a buffer timeout of {given} s has no effect; set that of"
            f" {graph.nodes[edge.source].name!r} to None"
        )
    return given


def check_result_types(job: JobGraph) -> None:
    """Rejects a job with a result that no task can write.

    Raises:
        ConfigError: a result is PIPELINED_APPROXIMATE.
    """
    for dataset in job.datasets:
        if dataset.type is ResultPartitionType.PIPELINED_APPROXIMATE:
            raise ConfigError(
                f"job {job.name!r}: the result {dataset.name!r} of {job.vertices[dataset.producer].name!r} is"
                f" {dataset.type.value}, which no task can write: a consumer that restarts alone would lose records."
                " Use the exchange mode all_edges_pipelined, or all_edges_hybrid_full, whose results are read again"
            )


def _undefined(graph: StreamGraph, edge: StreamEdge, partitioner: Partitioner) -> ResultPartitionType:
    if graph.nodes[edge.source].emits_at_end_only:
        return ResultPartitionType.BLOCKING
    mode = graph.settings.global_mode
    if mode in _PIPELINED_UNDER:
        is_pipelined = partitioner in _PIPELINED_UNDER[mode]
        return ResultPartitionType.PIPELINED_BOUNDED if is_pipelined else ResultPartitionType.BLOCKING
    return _GLOBAL_MODES[mode]


def sharing_key(graph: StreamGraph, edge: StreamEdge, kind: ResultPartitionType) -> Hashable:
    """Edges with equal keys share one dataset; None: the edge has a dataset of its own.

    Shared results can be consumed again (all hybrid types count as equal), and their edges have the same partitioner,
    consumers, records and name.
    """
    if not (kind.is_reconsumable or kind.is_hybrid):
        return None
    target = graph.nodes[edge.target]
    return (
        edge.source,
        "hybrid" if kind.is_hybrid else kind,
        unchained_partitioner(edge),
        edge.function,
        edge.format,
        target.parallelism,
        target.max_parallelism,
        edge.side_output,
        edge.dataset_id,
        edge.channels,
    )
