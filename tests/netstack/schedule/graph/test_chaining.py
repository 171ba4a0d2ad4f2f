"""When two operators run in one thread, what the chains are called, and why."""

from __future__ import annotations

import itertools

import pytest
from job_shapes import job_graph

from netstack.base.errors import ConfigError
from netstack.schedule.graph.chaining import Chaining
from netstack.schedule.graph.job_generator import generate_job
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import (
    ChainingStrategy,
    ExchangeMode,
    Partitioner,
    StreamEdge,
    StreamGraph,
    StreamNode,
    StreamSettings,
)

F = "jobs:function"


def names(job: StreamEnvironment) -> list[str]:
    return [vertex.name for vertex in job_graph(job.stream_graph()).vertices]


def refused(job: StreamEnvironment, source: str, target: str) -> list[str]:
    (reported,) = Chaining(job.stream_graph()).explain_between(source, target)
    assert not reported.is_chained
    return [condition.number for condition in reported.deciding]


def test_a_change_of_the_slot_sharing_group_breaks_the_chain_and_later_operators_inherit_it() -> None:
    job = StreamEnvironment()
    stream = job.source(F).map(F).filter(F).slot_sharing_group("group_03").map(F)
    stream.filter(F, name="other").slot_sharing_group("group_04").map(F).sink(F)
    assert names(job) == ["source -> map", "filter -> map 2", "other -> map 3 -> sink"]
    groups = job_graph(job.stream_graph())
    assert [groups.slot_sharing_groups[vertex.slot_sharing_group].name for vertex in groups.vertices] == [
        "default",
        "group_03",
        "group_04",
    ]
    assert refused(job, "map", "filter") == ["C3"]


def test_a_change_of_parallelism_breaks_the_chain() -> None:
    job = StreamEnvironment(parallelism=2)
    job.source(F).set_parallelism(1).map(F).sink(F, name="print")
    assert names(job) == ["source", "map -> print"]
    assert refused(job, "source", "map") == ["C8", "C10"]


@pytest.mark.parametrize(("parallelism", "vertices"), [((4, 10, 20), 3), ((5, 5, 5), 1)])
def test_three_operators(parallelism: tuple[int, int, int], vertices: int) -> None:
    job = StreamEnvironment()
    first, second, third = parallelism
    job.source(F).set_parallelism(first).map(F).set_parallelism(second).sink(F).set_parallelism(third)
    assert len(names(job)) == vertices


def test_the_word_count() -> None:
    job = StreamEnvironment(parallelism=2)
    job.source(F).set_parallelism(1).flat_map(F).key_by(F).process(F, name="sum").sink(F)
    assert names(job) == ["source", "flat_map", "sum -> sink"]
    assert refused(job, "flat_map", "sum") == ["C10"]


@pytest.mark.parametrize(("up", "down"), list(itertools.product(ChainingStrategy, ChainingStrategy)))
@pytest.mark.parametrize("is_source", [True, False])
def test_every_pair_of_strategies(up: ChainingStrategy, down: ChainingStrategy, is_source: bool) -> None:
    job = StreamEnvironment()
    stream = job.source(F, name="first")
    if not is_source:
        stream = stream.rebalance().map(F, name="second")
    stream.chaining_strategy(up).map(F, name="last").chaining_strategy(down)
    wanted = up is not ChainingStrategy.NEVER and (
        down is ChainingStrategy.ALWAYS or (down is ChainingStrategy.HEAD_WITH_SOURCES and is_source)
    )
    chaining = Chaining(job.stream_graph())
    (reported,) = chaining.explain_between("first" if is_source else "second", "last")
    assert reported.is_chained is wanted
    assert {condition.number for condition in reported.deciding if not condition.holds} <= {"C6", "C7"}
    assert len(chaining.chains) == (1 if wanted else 2) + (0 if is_source else 1)


def test_two_sources_become_inputs_of_one_vertex() -> None:
    job = StreamEnvironment()
    left, right = job.source(F, name="left"), job.source(F, name="right")
    join = left.connect(right, F, name="join").chaining_strategy(ChainingStrategy.HEAD_WITH_SOURCES)
    join.map(F)
    made = generate_job(job.stream_graph())
    (vertex,) = made.job.vertices
    assert vertex.name == "join [left, right] -> map"
    assert vertex.operators == ("join", "map", "left", "right")
    assert vertex.is_source
    assert not made.job.edges
    (reported,) = made.chaining.explain_between("left", "join")
    assert reported.is_chained
    assert reported.is_source_input
    assert [condition.number for condition in reported.conditions if condition.is_waived] == ["C1"]
    assert "C1 is waived" in str(reported)


def test_a_source_with_two_outputs_or_a_legacy_one_is_no_input_of_a_chain() -> None:
    job = StreamEnvironment()
    left, right = job.source(F, name="left"), job.source(F, name="right", is_legacy=True)
    left.connect(right, F, name="join").chaining_strategy(ChainingStrategy.HEAD_WITH_SOURCES)
    left.rebalance().sink(F)
    assert names(job) == ["left", "right", "join", "sink"]
    assert refused(job, "left", "join") == ["C1"]
    assert refused(job, "right", "join") == ["C1", "C7"]


def test_one_of_two_inputs_is_a_chained_source() -> None:
    job = StreamEnvironment()
    left = job.source(F, name="left").rebalance().map(F)
    left.connect(job.source(F, name="right"), F, name="join").chaining_strategy(ChainingStrategy.HEAD_WITH_SOURCES)
    made = job_graph(job.stream_graph())
    assert [vertex.name for vertex in made.vertices] == ["left", "map", "join [right]"]
    assert [(edge.consumer, edge.input_number) for edge in made.edges] == [(1, 1), (2, 1)]
    assert not made.vertices[2].is_source


@pytest.mark.parametrize("is_legacy", [True, False])
def test_a_yielding_operator_is_not_chained_behind_a_legacy_source(is_legacy: bool) -> None:
    job = StreamEnvironment()
    job.source(F, is_legacy=is_legacy).map(F).process(F, name="waits").yields().sink(F)
    if is_legacy:
        assert names(job) == ["source -> map", "waits -> sink"]
        assert refused(job, "map", "waits") == ["C5"]
    else:
        assert names(job) == ["source -> map -> waits -> sink"]


def test_a_chain_begun_behind_a_legacy_source_may_yield() -> None:
    job = StreamEnvironment()
    job.source(F, is_legacy=True).map(F).start_new_chain().process(F, name="waits").yields()
    assert names(job) == ["source", "map -> waits"]


def test_conditions_of_the_job_and_of_the_node() -> None:
    off = StreamEnvironment(settings=StreamSettings(is_chaining_enabled=False))
    off.source(F).sink(F)
    assert refused(off, "source", "sink") == ["C2"]

    separate = StreamEnvironment(settings=StreamSettings(chains_different_max_parallelism=False))
    separate.source(F).set_max_parallelism(64).sink(F)
    assert refused(separate, "source", "sink") == ["C9"]

    without = StreamGraph(
        name="iteration",
        nodes=(StreamNode(name="head", is_source=True, has_operator=False), StreamNode(name="map")),
        edges=(StreamEdge(source=0, target=1),),
    )
    (reported,) = Chaining(without).explain_between("head", "map")
    assert [condition.number for condition in reported.deciding] == ["C4"]
    assert reported.reason == "not chained: C4 head has no operator"


def test_different_max_parallelism_is_chained_and_the_least_counts() -> None:
    job = StreamEnvironment()
    job.source(F).set_max_parallelism(64).map(F).set_max_parallelism(32).sink(F)
    (vertex,) = job_graph(job.stream_graph()).vertices
    assert vertex.max_parallelism == 32


def test_a_union_is_not_chained() -> None:
    job = StreamEnvironment()
    job.source(F, name="a").union(job.source(F, name="b")).map(F)
    assert names(job) == ["a", "b", "map"]
    assert refused(job, "a", "map") == ["C1", "C11"]


def test_a_join_is_not_chained_because_of_its_two_inputs_only() -> None:
    job = StreamEnvironment()
    job.source(F, name="a").connect(job.source(F, name="b"), F)
    assert refused(job, "b", "connect") == ["C1"]


def test_a_chain_is_a_tree() -> None:
    job = StreamEnvironment()
    first = job.source(F, name="A")
    first.map(F, name="B").map(F, name="D")
    first.map(F, name="C").rebalance().map(F, name="E")
    made = generate_job(job.stream_graph())
    assert [vertex.name for vertex in made.job.vertices] == ["A -> (B -> D, C)", "E"]
    assert made.job.vertices[0].operators == ("A", "B", "D", "C")
    assert made.chaining.chain_of == (0, 0, 0, 0, 1)


def test_batch_exchange_on_a_forward_edge() -> None:
    job = StreamEnvironment(buffer_timeout_s=None)
    job.source(F).exchange(ExchangeMode.BATCH).sink(F)
    assert names(job) == ["source", "sink"]
    assert refused(job, "source", "sink") == ["C10"]
    job = StreamEnvironment()
    job.source(F).exchange(ExchangeMode.PIPELINED).sink(F)
    assert names(job) == ["source -> sink"]


def test_all_that_is_told_of_an_edge() -> None:
    job = StreamEnvironment()
    job.source(F, name="in").sink(F, name="out")
    (reported,) = Chaining(job.stream_graph()).explain_between("in", "out")
    assert reported.reason == "chained: all conditions hold"
    assert str(reported).splitlines() == [
        f"in -> out: {reported.reason}",
        "  C1  yes    out has 1 input edge",
        "  C2  yes    chaining is on for the job",
        "  C3  yes    slot sharing group is default on both sides",
        "  C4  yes    both have an operator",
        "  C5  yes    out does not yield, and the chain before it begins with in, no legacy source",
        "  C6  yes    in before it has strategy ALWAYS",
        "  C7  yes    out has strategy ALWAYS",
        "  C8  yes    parallelism is 1 on both sides",
        "  C9  yes    max parallelism may differ",
        "  C10 yes    partitioner is forward",
        "  C11 yes    input 1 of out is one stream",
    ]
    with pytest.raises(ConfigError, match="no operator named 'elsewhere'"):
        Chaining(job.stream_graph()).explain_between("in", "elsewhere")


@pytest.mark.whole
def test_a_chain_of_a_hundred_thousand_operators() -> None:
    count = 100_000
    graph = StreamGraph(
        name="long",
        nodes=tuple(StreamNode(name=f"o{index}", is_source=not index) for index in range(count)),
        edges=tuple(StreamEdge(source=index, target=index + 1) for index in range(count - 1)),
    )
    made = generate_job(graph)
    (vertex,) = made.job.vertices
    assert len(vertex.operators) == count
    assert vertex.name.endswith(" -> o99998 -> o99999")
    assert made.chaining.explain(graph.edges[-1]).is_chained


def test_a_wide_tree_inside_one_chain() -> None:
    count = 2_000
    graph = StreamGraph(
        name="wide",
        nodes=tuple(StreamNode(name=f"o{index}", is_source=not index) for index in range(count)),
        edges=tuple(StreamEdge(source=0, target=index) for index in range(1, count)),
    )
    (vertex,) = job_graph(graph).vertices
    assert vertex.name.startswith("o0 -> (o1, o2,")
    assert vertex.name.endswith(", o1999)")


def test_an_edge_of_a_dynamic_graph_may_be_forward_for_a_consecutive_hash_whatever_its_mode() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True, is_dynamic=True))
    job.source(F).key_by(F, is_consecutive=True).exchange(ExchangeMode.BATCH).map(F)
    assert names(job) == ["source -> map"]
    graph = job.stream_graph()
    assert graph.edges[0].partitioner is Partitioner.FORWARD_CONSECUTIVE_HASH
