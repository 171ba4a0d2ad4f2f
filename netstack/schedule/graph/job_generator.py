"""Compiles a stream graph into a job graph: a vertex for each chain, a dataset for each result over the network.

Rules: vertices are in topological order. Time and memory grow with operators and edges, never with parallelism.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final, final

from ...base.errors import ConfigError
from ...base.ids import ResultPartitionType
from ...exchange.keygroups import default_max_parallelism
from ..structures import UnionFind
from .chaining import Chain, Chaining
from .job_graph import (
    UNDECIDED,
    ChainedEdge,
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorKind,
    SourceSize,
    sum_profiles,
)
from .slot_groups import with_slot_sharing_groups
from .stream_graph import (
    KEPT_DATASET,
    ExchangeMode,
    GlobalExchangeMode,
    Partitioner,
    StreamEdge,
    StreamGraph,
    StreamNode,
    Unset,
)

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
    """Rejects a job with a result that no task can write. Raises ConfigError if a result is PIPELINED_APPROXIMATE."""
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


@final
@dataclass(frozen=True, slots=True)
class GeneratedJob:
    """A job graph and its chaining.

    Attributes:
        chaining: which operators each vertex runs, and why.
        warning: why the job takes no checkpoints although its settings ask for them; empty if it does as they say.
    """

    job: JobGraph
    chaining: Chaining
    warning: str = ""


def generate_job(graph: StreamGraph) -> GeneratedJob:
    """Chains the operators of a stream graph, and turns the remaining edges into datasets.

    A batch job that keeps results takes no checkpoints, whatever its settings say.

    Raises:
        ConfigError: a blocking result of an operator with a buffer timeout of its own; a result that no task can write;
            a pipelined edge in a dynamic graph; forward edges between different parallelisms; impossible groups; a
            streaming job that takes checkpoints and keeps results.
    """
    chaining = Chaining(graph)
    vertices = [_vertex(chaining, chain) for chain in chaining.chains]
    datasets, edges = _network(chaining)
    if graph.settings.is_dynamic:
        vertices = _forward_groups(chaining, vertices, datasets, edges)
    without_checkpoints = _why_without_checkpoints(graph, chaining)
    has_invokables = any(node.kind is OperatorKind.INVOKABLE for node in graph.nodes)  # latency markers confuse them
    job = JobGraph(
        graph.name,
        tuple(vertices),
        datasets,
        edges,
        is_dynamic=graph.settings.is_dynamic,
        checkpoints=None if without_checkpoints else graph.settings.checkpoints,
        checkpoint_folder=graph.settings.checkpoint_folder,
        keep=graph.settings.keep,
        latency_interval_s=0.0 if has_invokables else graph.settings.latency_interval_s,
        uids={node.name: node.uid for node in graph.nodes if node.uid},
    )
    check_result_types(job)
    names = [graph.nodes[chain.head].slot_sharing_group for chain in chaining.chains]
    job = with_slot_sharing_groups(
        job, names, is_default_shared=graph.settings.is_default_group_shared, profiles=graph.group_profiles
    )
    return GeneratedJob(job, chaining, without_checkpoints)


def _why_without_checkpoints(graph: StreamGraph, chaining: Chaining) -> str:
    """Why a batch job takes no checkpoints that its settings ask for; empty if it takes them, or they do not.

    A result that is kept is read again from its start after a failure. State of a checkpoint that has counted a part of
    it would count that part twice, and records before it that the checkpoint has behind it would be missing.

    Raises:
        ConfigError: a streaming job takes checkpoints and keeps or reads a result.
    """
    if graph.settings.checkpoints is None:
        return ""
    kept = [
        f"edge {graph.describe(edge)} is {kind.value}"
        for edge in chaining.network_edges()
        if (kind := result_type(graph, edge)).is_blocking or kind.is_hybrid
    ]
    kept += [f"source {node.name!r} reads a kept dataset" for node in graph.nodes if node.function == KEPT_DATASET]
    if not kept:
        return ""
    more = f" (so are or do {len(kept) - 1} more)" if len(kept) > 1 else ""
    cause = f"{kept[0]}{more}, which is read again from its start after a failure, whatever a checkpoint has counted"
    if graph.settings.is_batch:
        return (
            f"job {graph.name!r} runs without the checkpoints of its settings: {cause}. A failure runs again only what"
            " lost its results, and two-phase sinks commit at the end; remove `checkpoints` from the settings"
        )
    raise ConfigError(
        f"job {graph.name!r} cannot take checkpoints: {cause}. Remove `checkpoints` from the settings, or use the"
        " exchange mode PIPELINED and sources that can continue"
    )


def _vertex(chaining: Chaining, chain: Chain) -> JobVertex:
    nodes = [chaining.graph.nodes[index] for index in (*chain.nodes, *chain.sources)]
    head = nodes[0]
    functions = tuple(node.function for node in nodes)
    name = chaining.name(chain)
    return JobVertex(
        name=name,
        parallelism=head.parallelism,
        max_parallelism=_max_parallelism(nodes, head.parallelism),
        co_location_group=_co_location_group(name, nodes),
        operators=tuple(node.name for node in nodes),
        invokable=functions[0] if len(nodes) == 1 else "",
        parameters={node.name: dict(node.parameters) for node in nodes if node.parameters},
        profile=sum_profiles([node.profile for node in nodes]),
        is_source=len(chain.sources) == len(chaining.graph.inputs_of(chain.head)),
        functions=functions if any(functions) else (),
        kinds=tuple(node.kind for node in nodes),
        chained=_chained(chaining, chain),
        supports_concurrent_attempts=all(node.may_run_twice for node in nodes),
        source_size=_source_size([node for node in nodes if node.is_source]),
    )


def _source_size(sources: list[StreamNode]) -> SourceSize | None:
    """The sizes of all sources of a chain together; unknown if one is."""
    sizes = [source.source_size for source in sources if source.source_size is not None]
    if not sizes or len(sizes) < len(sources):
        return None
    lengths = [size.bytes for size in sizes if size.bytes is not None]
    splits = [size.splits for size in sizes if size.splits is not None]
    return SourceSize(
        bytes=sum(lengths) if len(lengths) == len(sizes) else None,
        splits=max(splits) if len(splits) == len(sizes) else None,
    )


def _chained(chaining: Chaining, chain: Chain) -> tuple[ChainedEdge, ...]:
    """The edges inside a chain, in the order of its operators."""
    graph = chaining.graph
    return tuple(
        ChainedEdge(
            graph.nodes[node].name,
            graph.nodes[edge.target].name,
            edge.input_number,
            edge.side_output,
            edge.partitioner is Partitioner.FORWARD_CONSECUTIVE_HASH,
        )
        for node in (*chain.nodes, *chain.sources)
        for edge in graph.outputs_of(node)
        if chaining.is_chained(edge)
    )


def _max_parallelism(nodes: list[StreamNode], parallelism: int) -> int:
    """The smallest that a member sets; else Flink's default for the parallelism."""
    asked = [node.max_parallelism for node in nodes if node.max_parallelism is not None]
    return min(asked) if asked else default_max_parallelism(max(1, parallelism))


def _co_location_group(name: str, nodes: list[StreamNode]) -> str | None:
    groups = {node.co_location_group for node in nodes} - {None}
    if len(groups) > 1:
        raise ConfigError(f"vertex {name!r} chains operators of the co-location groups {', '.join(map(repr, groups))}")
    return groups.pop() if groups else None


def _network(chaining: Chaining) -> tuple[tuple[Dataset, ...], tuple[JobEdge, ...]]:
    """Datasets in the order of their producers, and edges in the order of their consumers and inputs."""
    graph = chaining.graph
    network = sorted(enumerate(chaining.network_edges()), key=lambda item: (chaining.chain_of[item[1].source], item[0]))
    datasets: list[Dataset] = []
    shared: dict[Hashable, int] = {}
    written: dict[int, int] = {}
    edges: list[tuple[tuple[int, int, int], JobEdge]] = []
    alike: Counter[tuple[int, int, int, str]] = Counter()
    for order, edge in network:
        kind = result_type(graph, edge)
        if kind.must_be_pipelined and graph.settings.is_dynamic:
            raise ConfigError(
                f"edge {graph.describe(edge)} is {kind.value}; in a dynamic graph consumers start when their inputs"
                " are complete: use exchange mode BATCH, or a blocking one for the job"
            )
        key = sharing_key(graph, edge, kind)
        index = shared.get(key) if key is not None else None
        if index is None:
            index = len(datasets)
            datasets.append(_dataset(chaining, edge, kind, written.get(edge.source, 0)))
            written[edge.source] = written.get(edge.source, 0) + 1
            if key is not None:
                shared[key] = index
        elif kind.is_hybrid:  # selective results can be consumed once only, and this one has several consumers
            datasets[index] = replace(datasets[index], type=ResultPartitionType.HYBRID_FULL)
        consumer = chaining.chain_of[edge.target]
        likeness = (edge.source, edge.target, edge.input_number, edge.side_output)
        job_edge = _job_edge(graph, edge, index, consumer, alike[likeness], buffer_timeout_s(graph, edge, kind))
        alike[likeness] += 1
        edges.append(((consumer, edge.input_number, order), job_edge))
    _check_names(graph, datasets)
    edges.sort(key=lambda item: item[0])
    return tuple(datasets), tuple(edge for _, edge in edges)


def _dataset(chaining: Chaining, edge: StreamEdge, kind: ResultPartitionType, number: int) -> Dataset:
    name = chaining.graph.nodes[edge.source].name
    return Dataset(
        name=edge.dataset_id or f"{name}.{number}",
        producer=chaining.chain_of[edge.source],
        type=kind,
        is_broadcast=edge.partitioner is Partitioner.BROADCAST,
        operator=name,
        side_output=edge.side_output,
    )


def _check_names(graph: StreamGraph, datasets: list[Dataset]) -> None:
    name, count = Counter(dataset.name for dataset in datasets).most_common(1)[0] if datasets else ("", 0)
    if count > 1:
        raise ConfigError(f"job {graph.name!r} has {count} datasets named {name!r}; choose different dataset ids")


def _job_edge(
    graph: StreamGraph, edge: StreamEdge, dataset: int, consumer: int, ordinal: int, timeout_s: float | None
) -> JobEdge:
    partitioner = unchained_partitioner(edge)
    return JobEdge(
        dataset=dataset,
        consumer=consumer,
        pattern=pattern_of(partitioner),
        partitioner=partitioner.value,
        input_number=edge.input_number,
        is_forward=partitioner is Partitioner.FORWARD,
        buffer_timeout_s=timeout_s,
        function=edge.function,
        format=edge.format,
        operator=graph.nodes[edge.target].name,
        ordinal=ordinal,
        channels=edge.channels,
        is_prompt=edge.is_prompt,
    )


def _forward_groups(
    chaining: Chaining, vertices: list[JobVertex], datasets: tuple[Dataset, ...], edges: tuple[JobEdge, ...]
) -> list[JobVertex]:
    """Gives all vertices that are joined by forward edges the same parallelism."""
    groups = UnionFind(len(vertices))
    for edge in edges:
        if edge.is_forward:
            groups.join(datasets[edge.dataset].producer, edge.consumer)
    decided = list(vertices)
    for members in groups.sets():
        values = {vertices[member].parallelism for member in members} - {UNDECIDED}
        if len(values) > 1:
            names = ", ".join(repr(vertices[member].name) for member in members)
            raise ConfigError(
                f"job {chaining.graph.name!r}: {names} are joined by forward edges, but have parallelisms"
                f" {sorted(values)}; make them equal, or use rebalance or rescale in between"
            )
        parallelism = values.pop() if values else UNDECIDED
        nodes = [chaining.graph.nodes[node] for member in members for node in chaining.chains[member].nodes]
        most = _max_parallelism(nodes, parallelism)
        for member in members:
            decided[member] = replace(vertices[member], parallelism=parallelism, max_parallelism=most)
    return decided
