"""What an edge over the network becomes; datasets that are shared; parallelism that is decided later."""

from __future__ import annotations

import pytest
from job_shapes import job_graph

from netstack.base.errors import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.graph.job_generator import generate_job, pattern_of
from netstack.schedule.graph.job_graph import UNDECIDED, DistributionPattern, JobGraph, ResourceProfile
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import (
    ExchangeMode,
    GlobalExchangeMode,
    Partitioner,
    StreamEdge,
    StreamGraph,
    StreamNode,
    StreamSettings,
)

F = "jobs:function"
Kind = ResultPartitionType
Mode = GlobalExchangeMode


def made(job: StreamEnvironment) -> JobGraph:
    return job_graph(job.stream_graph())


def two(partitioner: str, **settings: object) -> JobGraph:
    """A source and a sink with one edge between them that is not chained."""
    job = StreamEnvironment(settings=StreamSettings(**settings), buffer_timeout_s=None)  # type: ignore[arg-type]
    stream = getattr(job.source(F, name="source"), partitioner)
    (stream(F) if partitioner in ("key_by", "partition_custom") else stream()).sink(F, name="sink").start_new_chain()
    return made(job)


@pytest.mark.parametrize(
    ("partitioner", "pattern", "text"),
    [
        ("forward", DistributionPattern.POINTWISE, "forward"),
        ("rescale", DistributionPattern.POINTWISE, "rescale"),
        ("rebalance", DistributionPattern.ALL_TO_ALL, "rebalance"),
        ("shuffle", DistributionPattern.ALL_TO_ALL, "shuffle"),
        ("global_", DistributionPattern.ALL_TO_ALL, "global"),
        ("key_by", DistributionPattern.ALL_TO_ALL, "hash"),
        ("partition_custom", DistributionPattern.ALL_TO_ALL, "custom"),
        ("broadcast", DistributionPattern.ALL_TO_ALL, "broadcast"),
    ],
)
def test_the_pattern_of_each_partitioner(partitioner: str, pattern: DistributionPattern, text: str) -> None:
    job = two(partitioner)
    (edge,) = job.edges
    assert (edge.pattern, edge.partitioner, edge.is_forward) == (pattern, text, text == "forward")
    assert job.datasets[0].is_broadcast is (text == "broadcast")
    assert edge.function == (F if text in ("hash", "custom") else "")
    assert pattern_of(Partitioner(text)) is pattern


@pytest.mark.parametrize(
    ("mode", "forward", "rescale", "rebalance"),
    [
        (Mode.ALL_EDGES_PIPELINED, *[Kind.PIPELINED_BOUNDED] * 3),
        (Mode.ALL_EDGES_BLOCKING, *[Kind.BLOCKING] * 3),
        (Mode.FORWARD_EDGES_PIPELINED, Kind.PIPELINED_BOUNDED, Kind.BLOCKING, Kind.BLOCKING),
        (Mode.POINTWISE_EDGES_PIPELINED, Kind.PIPELINED_BOUNDED, Kind.PIPELINED_BOUNDED, Kind.BLOCKING),
        (Mode.ALL_EDGES_HYBRID_FULL, *[Kind.HYBRID_FULL] * 3),
        (Mode.ALL_EDGES_HYBRID_SELECTIVE, *[Kind.HYBRID_SELECTIVE] * 3),
    ],
)
def test_the_result_under_each_global_mode(mode: Mode, forward: Kind, rescale: Kind, rebalance: Kind) -> None:
    actual = [two(name, exchange_mode=mode).datasets[0].type for name in ("forward", "rescale", "rebalance")]
    assert actual == [forward, rescale, rebalance]


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (ExchangeMode.PIPELINED, Kind.PIPELINED_BOUNDED),
        (ExchangeMode.BATCH, Kind.BLOCKING),
        (ExchangeMode.HYBRID_FULL, Kind.HYBRID_FULL),
        (ExchangeMode.HYBRID_SELECTIVE, Kind.HYBRID_SELECTIVE),
    ],
)
def test_the_mode_of_an_edge_comes_first(mode: ExchangeMode, kind: Kind) -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True, exchange_mode=Mode.ALL_EDGES_PIPELINED_APPROXIMATE))
    job.source(F).rebalance().exchange(mode).sink(F)
    assert made(job).datasets[0].type is kind


def test_a_selective_broadcast_is_kept_in_full() -> None:
    assert two("broadcast", exchange_mode=Mode.ALL_EDGES_HYBRID_SELECTIVE).datasets[0].type is Kind.HYBRID_FULL


def test_what_comes_at_the_end_only_is_blocking() -> None:
    job = StreamEnvironment()
    job.source(F).map(F).emits_at_end_only().set_buffer_timeout(None).rebalance().sink(F)
    assert made(job).datasets[0].type is Kind.BLOCKING


@pytest.mark.parametrize("of", ["operator", "edge"])
def test_blocking_results_take_no_buffer_timeout(of: str) -> None:
    job = StreamEnvironment()
    source = job.source(F)
    if of == "operator":
        source.set_buffer_timeout(0.1).exchange(ExchangeMode.BATCH).sink(F)
    else:
        source.exchange(ExchangeMode.BATCH).with_buffer_timeout(0.1).sink(F)
    graph = job.stream_graph()
    with pytest.raises(ConfigError, match=r"'source' -> 'sink' is blocking, .* 0\.1 s"):
        job_graph(graph)


def test_blocking_results_ignore_a_timeout_that_nobody_set_for_them() -> None:
    """The job's own holds for the pipelined edge behind them."""
    job = StreamEnvironment(buffer_timeout_s=0.5)
    job.source(F).exchange(ExchangeMode.BATCH).map(F).rebalance().sink(F)
    assert [edge.buffer_timeout_s for edge in made(job).edges] == [None, 0.5]
    nodes = (StreamNode(name="a", is_source=True), StreamNode(name="b"))
    job_of_data = StreamGraph(
        name="data", nodes=nodes, edges=(StreamEdge(source=0, target=1, mode=ExchangeMode.BATCH),)
    )
    assert [edge.buffer_timeout_s for edge in job_graph(job_of_data).edges] == [None]


def test_a_result_that_no_task_can_write_is_refused() -> None:
    """Also where only one of several edges is left to the job's mode; what is chained writes no result."""
    job = StreamEnvironment("a job", settings=StreamSettings(exchange_mode=Mode.ALL_EDGES_PIPELINED_APPROXIMATE))
    source = job.source(F, name="numbers")
    source.map(F)
    assert not made(job).datasets
    source.exchange(ExchangeMode.PIPELINED).rebalance().sink(F)
    source.rebalance().sink(F)
    with pytest.raises(ConfigError, match=r"'a job': .* 'numbers.*' is pipelined_approximate"):
        made(job)


def test_only_what_is_read_while_it_is_made_can_be_prompt() -> None:
    job = StreamEnvironment()
    source = job.source(F)
    source.rebalance().prompt().sink(F)
    source.rebalance().exchange(ExchangeMode.HYBRID_FULL).prompt().sink(F)
    source.rebalance().sink(F)
    assert [edge.is_prompt for edge in made(job).edges] == [True, True, False]
    source.exchange(ExchangeMode.BATCH).prompt().sink(F, name="late")
    with pytest.raises(ConfigError, match="'source' -> 'late' is blocking"):
        job_graph(job.stream_graph())


def test_buffer_timeouts_reach_the_edges() -> None:
    job = StreamEnvironment(buffer_timeout_s=0.5)
    job.source(F).rebalance().map(F).set_buffer_timeout(0.0).rebalance().map(F).set_buffer_timeout(
        None
    ).rebalance().sink(F)
    assert [edge.buffer_timeout_s for edge in made(job).edges] == [0.5, 0.0, None]


def test_a_dataset_with_a_name_is_kept() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True))
    job.source(F).rebalance().persist("words").sink(F)
    (dataset,) = made(job).datasets
    assert (dataset.name, dataset.type, dataset.operator) == ("words", Kind.BLOCKING_PERSISTENT, "source")
    job = StreamEnvironment()
    job.source(F).rebalance().persist("words").sink(F)
    graph = job.stream_graph()
    with pytest.raises(ConfigError, match=r"blocking result .* dataset 'words'"):
        job_graph(graph)


def test_two_datasets_cannot_be_kept_under_one_name() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True))
    source = job.source(F)
    source.rebalance().persist("words").sink(F)
    source.rescale().persist("words").sink(F)
    graph = job.stream_graph()
    with pytest.raises(ConfigError, match="2 datasets named 'words'"):
        job_graph(graph)


def test_equal_blocking_edges_share_a_dataset() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True), parallelism=2)
    source = job.source(F)
    source.rebalance().map(F)
    source.rebalance().map(F)
    source.rebalance().map(F).set_parallelism(3)
    source.rescale().map(F)
    source.side_output("late").rebalance().map(F)
    job = made(job)
    assert [(edge.consumer, job.datasets[edge.dataset].name) for edge in job.edges] == [
        (1, "source.0"),
        (2, "source.0"),
        (3, "source.1"),
        (4, "source.2"),
        (5, "source.3"),
    ]
    assert [dataset.side_output for dataset in job.datasets] == ["", "", "", "late"]


def test_what_is_consumed_once_is_not_shared() -> None:
    job = StreamEnvironment()
    source = job.source(F)
    source.rebalance().map(F)
    source.rebalance().map(F)
    assert len(made(job).datasets) == 2


def test_shared_hybrid_results_are_kept_in_full() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True))
    source = job.source(F)
    source.rebalance().exchange(ExchangeMode.HYBRID_SELECTIVE).map(F)
    source.rebalance().exchange(ExchangeMode.HYBRID_FULL).map(F)
    assert [dataset.type for dataset in made(job).datasets] == [Kind.HYBRID_FULL]


def test_forward_groups_share_what_one_of_them_decided() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True, is_dynamic=True))
    stream = job.source(F, name="a").set_parallelism(5).set_max_parallelism(10)
    stream.forward().map(F, name="b").rebalance().map(F, name="c").map(F, name="d").start_new_chain()
    job = made(job)
    assert [(vertex.name, vertex.parallelism, vertex.max_parallelism) for vertex in job.vertices] == [
        ("a", 5, 10),
        ("b", 5, 10),
        ("c", UNDECIDED, 128),
        ("d", UNDECIDED, 128),
    ]
    assert [edge.partitioner for edge in job.edges] == ["forward", "rebalance", "rescale"]
    assert job.is_dynamic


def test_a_large_forward_group_has_room() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True, is_dynamic=True))
    job.source(F).set_parallelism(500).forward().map(F)
    assert {vertex.max_parallelism for vertex in made(job).vertices} == {1024}


def test_a_forward_group_cannot_have_two_parallelisms() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True, is_dynamic=True))
    job.source(F).set_parallelism(5).forward().map(F).forward().sink(F).set_parallelism(4)
    graph = job.stream_graph()
    with pytest.raises(ConfigError, match=r"forward edges, .* \[4, 5\]"):
        job_graph(graph)


def test_a_consecutive_hash_that_is_not_chained_is_a_hash() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True, is_dynamic=True))
    job.source(F).key_by(F, is_consecutive=True).map(F).start_new_chain()
    assert [edge.partitioner for edge in made(job).edges] == ["hash"]


def test_a_dynamic_graph_is_not_pipelined() -> None:
    settings = StreamSettings(is_batch=True, is_dynamic=True, exchange_mode=Mode.ALL_EDGES_PIPELINED)
    job = StreamEnvironment(settings=settings)
    job.source(F).rebalance().map(F)
    graph = job.stream_graph()
    with pytest.raises(ConfigError, match="is pipelined_bounded; in a dynamic graph"):
        job_graph(graph)


def test_profiles_of_a_chain_add_up() -> None:
    job = StreamEnvironment()
    job.source(F).set_profile(ResourceProfile("concrete", 0.5, 100)).map(F).set_profile(
        ResourceProfile("concrete", 1.0, 200)
    ).sink(F).start_new_chain()
    assert [vertex.profile for vertex in made(job).vertices] == [
        ResourceProfile("concrete", 1.5, 300),
        ResourceProfile("unknown"),
    ]


def test_functions_and_parameters_go_with_the_vertex() -> None:
    job = StreamEnvironment()
    job.source("jobs:read", name="read", parameters={"path": "x"}).map("jobs:split", name="split", by=",")
    (vertex,) = made(job).vertices
    assert vertex.functions == ("jobs:read", "jobs:split")
    assert vertex.parameters == {"read": {"path": "x"}, "split": {"by": ","}}


def test_operators_of_two_co_location_groups_are_no_chain() -> None:
    job = StreamEnvironment()
    job.source(F).co_location_group("a").sink(F).co_location_group("b")
    graph = job.stream_graph()
    with pytest.raises(ConfigError, match="chains operators of the co-location groups"):
        job_graph(graph)


def test_two_attempts_of_a_sink_are_only_for_sinks_that_say_so() -> None:
    job = StreamEnvironment()
    source = job.source(F).map(F)
    source.sink(F, name="plain")
    source.rebalance().sink(F, name="twice").supports_concurrent_attempts()
    source.rebalance().map(F).filter(F, name="no sink")
    vertices = {
        vertex.operators[-1]: vertex.supports_concurrent_attempts for vertex in job_graph(job.stream_graph()).vertices
    }
    assert vertices == {"plain": False, "twice": True, "no sink": True}


def test_nothing_is_measured_where_an_invokable_would_read_the_markers() -> None:
    job = StreamEnvironment("job", settings=StreamSettings(latency_interval_s=0.5))
    source = job.source("jobs:read", name="source")
    assert job_graph(job.stream_graph()).latency_interval_s == 0.5
    job.invokable("jobs:run", source, name="reader")
    assert job_graph(job.stream_graph()).latency_interval_s == 0.0


CHECKPOINTS = CheckpointSettings()
KEEPING = [mode for mode in Mode if "BLOCKING" in mode.name or "HYBRID" in mode.name]


def test_every_mode_but_those_with_pipelines_alone_keeps_results() -> None:
    assert {*Mode} - {*KEEPING} == {
        Mode.ALL_EDGES_PIPELINED,
        Mode.ALL_EDGES_PIPELINED_APPROXIMATE,
        Mode.FORWARD_EDGES_PIPELINED,
        Mode.POINTWISE_EDGES_PIPELINED,
    }


@pytest.mark.parametrize("mode", [*KEEPING, Mode.FORWARD_EDGES_PIPELINED, Mode.POINTWISE_EDGES_PIPELINED])
def test_no_checkpoints_where_results_are_kept(mode: Mode) -> None:
    """After a restart state came from the checkpoint, and kept results were read from their start: counted twice."""
    with pytest.raises(ConfigError, match="checkpoints: edge 'source' -> 'sink'"):
        two("rebalance", checkpoints=CHECKPOINTS, exchange_mode=mode)
    assert two("rebalance", checkpoints=CHECKPOINTS, exchange_mode=mode, is_batch=True).checkpoints is None
    assert two("rebalance", exchange_mode=mode).checkpoints is None


@pytest.mark.parametrize("mode", [ExchangeMode.BATCH, ExchangeMode.HYBRID_FULL, ExchangeMode.HYBRID_SELECTIVE])
@pytest.mark.parametrize("is_batch", [False, True])
def test_one_edge_of_a_job_that_keeps_its_results_is_named(mode: ExchangeMode, is_batch: bool) -> None:
    job = StreamEnvironment(
        "half",
        buffer_timeout_s=None,
        settings=StreamSettings(
            checkpoints=CHECKPOINTS, is_batch=is_batch, exchange_mode=GlobalExchangeMode.ALL_EDGES_PIPELINED
        ),
    )
    stream = job.source(F, name="source").rebalance().map(F, name="map")
    stream.rebalance().exchange(mode).sink(F, name="sink")
    if is_batch:
        generated = generate_job(job.stream_graph())
        assert "job 'half' runs without the checkpoints of its settings: edge 'map' -> 'sink' is" in generated.warning
        assert generated.job.checkpoints is None
    else:
        with pytest.raises(ConfigError, match="'half' cannot take checkpoints: edge 'map' -> 'sink'"):
            made(job)


@pytest.mark.parametrize("is_batch", [False, True])
def test_who_takes_checkpoints_reads_no_dataset_that_begins_again(is_batch: bool) -> None:
    settings = StreamSettings(
        checkpoints=CHECKPOINTS, is_batch=is_batch, exchange_mode=GlobalExchangeMode.ALL_EDGES_PIPELINED
    )
    job = StreamEnvironment("reader", settings=settings)
    job.dataset("words").rebalance().sink(F, name="sink")
    if is_batch:
        assert "source 'words' reads a kept dataset" in generate_job(job.stream_graph()).warning
    else:
        with pytest.raises(ConfigError, match=r"'reader' .* source 'words'"):
            made(job)


@pytest.mark.parametrize("is_batch", [False, True])
def test_pipelines_take_the_checkpoints_that_they_ask_for(is_batch: bool) -> None:
    job = two("rebalance", checkpoints=CHECKPOINTS, is_batch=is_batch, exchange_mode=Mode.ALL_EDGES_PIPELINED)
    assert job.checkpoints == CHECKPOINTS
