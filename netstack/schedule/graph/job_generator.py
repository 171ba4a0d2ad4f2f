"""Compiles a stream graph into a job graph: a vertex for each chain, a dataset for each result over the network.

Rules: vertices are in topological order. Time and memory grow with operators and edges, never with parallelism.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import final

from ...errors import ConfigError
from ...ids import ResultPartitionType
from ...keygroups import default_max_parallelism
from ..structures import UnionFind
from .chaining import Chain, Chaining
from .edges import (
    buffer_timeout_s,
    check_result_types,
    pattern_of,
    result_type,
    sharing_key,
    unchained_partitioner,
)
from .job_graph import (
    UNDECIDED,
    UNKNOWN_PROFILE,
    ChainedEdge,
    Dataset,
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorKind,
    ResourceProfile,
    SourceSize,
)
from .slot_groups import with_slot_sharing_groups
from .stream_graph import Partitioner, StreamEdge, StreamGraph, StreamNode


@final
@dataclass(frozen=True, slots=True)
class GeneratedJob:
    """A job graph and its chaining.

    Attributes:
        job: the job graph for the scheduler.
        chaining: which operators each vertex runs, and why.
    """

    job: JobGraph
    chaining: Chaining


def generate_job(graph: StreamGraph) -> GeneratedJob:
    """Chains the operators of a stream graph, and turns the remaining edges into datasets.

    Raises:
        ConfigError: a blocking result of an operator with a buffer timeout of its own; a result that no task can write;
            a pipelined edge in a dynamic graph; forward edges between different parallelisms; impossible groups.
    """
    chaining = Chaining(graph)
    vertices = [_vertex(chaining, chain) for chain in chaining.chains]
    datasets, edges = _network(chaining)
    if graph.settings.is_dynamic:
        vertices = _forward_groups(chaining, vertices, datasets, edges)
    has_invokables = any(node.kind is OperatorKind.INVOKABLE for node in graph.nodes)  # latency markers confuse them
    job = JobGraph(
        graph.name,
        tuple(vertices),
        datasets,
        edges,
        is_dynamic=graph.settings.is_dynamic,
        checkpoints=graph.settings.checkpoints,
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
    return GeneratedJob(job, chaining)


def job_graph(graph: StreamGraph) -> JobGraph:
    """The job graph of a stream graph. Raises as `generate_job`."""
    return generate_job(graph).job


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
        profile=_sum(nodes),
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


def _sum(nodes: list[StreamNode]) -> ResourceProfile:
    """The sum of all members' profiles; unknown if one is."""
    profiles = [node.profile for node in nodes]
    if any(profile.kind != "concrete" for profile in profiles):
        return UNKNOWN_PROFILE
    return ResourceProfile(
        "concrete",
        sum(profile.cpu_cores for profile in profiles),
        sum(profile.memory_bytes for profile in profiles),
    )


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
