"""Laws of chaining: every operator runs in exactly one chain, every edge is either in a chain or in the job graph."""

from __future__ import annotations

from hypothesis import given, strategies as st

from netstack.schedule.graph.chaining import Chaining
from netstack.schedule.graph.job_generator import generate_job
from netstack.schedule.graph.slot_groups import required_slots
from netstack.schedule.graph.stream_graph import (
    ChainingStrategy,
    ExchangeMode,
    Partitioner,
    StreamEdge,
    StreamGraph,
    StreamNode,
)

_PARTITIONERS = [Partitioner.FORWARD, Partitioner.FORWARD, Partitioner.REBALANCE, Partitioner.BROADCAST]


@st.composite
def graphs(draw: st.DrawFn) -> StreamGraph:
    count = draw(st.integers(1, 12))
    nodes: list[StreamNode] = []
    edges: list[StreamEdge] = []
    for index in range(count):
        sources = draw(st.lists(st.integers(0, index - 1), max_size=3)) if index else []
        nodes.append(
            StreamNode(
                name=f"o{index}",
                parallelism=draw(st.integers(1, 2)),
                slot_sharing_group=draw(st.sampled_from(["default", "default", "default", "other"])),
                strategy=draw(st.sampled_from([*ChainingStrategy, ChainingStrategy.ALWAYS, ChainingStrategy.ALWAYS])),
                is_source=not sources,
                is_legacy_source=not sources and draw(st.booleans()),
                is_yielding=draw(st.booleans()),
                buffer_timeout_s=None,
            )
        )
        for source in sources:
            partitioner = draw(st.sampled_from(_PARTITIONERS))
            if nodes[source].parallelism != nodes[index].parallelism and partitioner is Partitioner.FORWARD:
                partitioner = Partitioner.RESCALE
            edges.append(
                StreamEdge(
                    source=source,
                    target=index,
                    partitioner=partitioner,
                    mode=draw(st.sampled_from([ExchangeMode.UNDEFINED, ExchangeMode.UNDEFINED, ExchangeMode.BATCH])),
                    input_number=draw(st.integers(1, 2)),
                )
            )
    return StreamGraph(name="drawn", nodes=tuple(nodes), edges=tuple(edges))


@given(graphs())
def test_chains_partition_the_operators(graph: StreamGraph) -> None:
    chaining = Chaining(graph)
    members = [node for chain in chaining.chains for node in (*chain.nodes, *chain.sources)]
    assert sorted(members) == list(range(len(graph.nodes)))
    for number, chain in enumerate(chaining.chains):
        assert {chaining.chain_of[node] for node in (*chain.nodes, *chain.sources)} == {number}
        assert chain.nodes[0] == chain.head
        assert len({(graph.nodes[node].parallelism, graph.nodes[node].slot_sharing_group) for node in chain.nodes}) == 1


@given(graphs())
def test_every_edge_is_in_a_chain_or_in_the_job_graph(graph: StreamGraph) -> None:
    made = generate_job(graph)
    chained = [edge for edge in graph.edges if made.chaining.is_chained(edge)]
    assert len(chained) + len(made.job.edges) == len(graph.edges)
    assert sum(len(chain.nodes) + len(chain.sources) - 1 for chain in made.chaining.chains) == len(chained)
    for edge in graph.edges:
        reported = made.chaining.explain(edge)
        assert reported.is_chained == all(condition.holds or condition.is_waived for condition in reported.conditions)
        assert bool(reported.deciding)
        assert reported.is_chained == (edge in chained)
        if reported.is_chained:
            assert made.chaining.chain_of[edge.source] == made.chaining.chain_of[edge.target]


@given(graphs())
def test_slots_are_enough_for_every_vertex_and_never_more_than_all_subtasks(graph: StreamGraph) -> None:
    job = generate_job(graph).job
    slots = required_slots(job)
    assert max(vertex.parallelism for vertex in job.vertices) <= slots
    assert slots <= sum(vertex.parallelism for vertex in job.vertices)
