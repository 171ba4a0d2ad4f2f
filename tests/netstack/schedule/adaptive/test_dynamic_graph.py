import pytest

from netstack import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.adaptive.dynamic_graph import DynamicGraph, forward_groups
from netstack.schedule.adaptive.parallelism import Decision, decide, explain
from netstack.schedule.graph.job_graph import (
    UNDECIDED,
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    SourceSize,
)
from netstack.schedule.graph.settings import AdaptiveSettings
from netstack.schedule.topology.distribution import dynamic_input
from netstack.schedule.topology.execution_graph import ExecutionGraph

ALL, POINTWISE = DistributionPattern.ALL_TO_ALL, DistributionPattern.POINTWISE
BLOCKING = ResultPartitionType.BLOCKING


def job(vertices, edges):
    """Vertices as (name, parallelism) or (name, parallelism, maximum), edges as (producer, consumer, pattern, ...)."""
    made = tuple(JobVertex(*vertex) for vertex in vertices)
    datasets = tuple(Dataset(f"d{number}", edge[0], BLOCKING) for number, edge in enumerate(edges))
    return JobGraph(
        "job",
        made,
        datasets,
        tuple(JobEdge(number, edge[1], edge[2], *edge[3:]) for number, edge in enumerate(edges)),
        is_dynamic=True,
    )


def ten(inputs, max_parallelism, source):
    return Decision(
        10, tuple(dynamic_input(one.pattern, one.sizes.partitions, 10, one.sizes.subpartitions) for one in inputs)
    )


def never(inputs, max_parallelism, source):
    raise AssertionError("nothing to decide")


def finish(graph, topology, vertex, size):
    """All subtasks of a vertex write `size` bytes into each subpartition of each of their datasets."""
    for dataset in topology.outputs_of(vertex):
        for partition, count in enumerate(topology.subpartition_counts(dataset).tolist()):
            graph.record(dataset, partition, [size] * count)


def test_a_sink_waits_for_both_sources():
    topology = ExecutionGraph(job([("s1", 6), ("s2", 4), ("sink", UNDECIDED)], [(0, 2, POINTWISE), (1, 2, POINTWISE)]))
    graph = DynamicGraph(topology, ten)
    assert graph.grow() == (0, 1)
    assert [topology.subpartition_counts(dataset).tolist() for dataset in (0, 1)] == [[22] * 6, [32] * 4]
    finish(graph, topology, 0, 100)
    assert graph.grow() == ()
    assert topology.parallelism_of(2) == UNDECIDED
    finish(graph, topology, 1, 100)
    assert graph._sizes[0].total_bytes + graph._sizes[1].total_bytes == 26_000
    assert graph.grow() == (2,)
    assert topology.parallelism_of(2) == 10
    assert graph.grow() == ()


def test_a_decided_sink_is_initialised_at_the_start():
    topology = ExecutionGraph(job([("source", 8), ("sink", 8)], [(0, 1, ALL)]))
    assert DynamicGraph(topology, never).grow() == (0, 1)
    assert topology.subpartition_counts(0).tolist() == [8] * 8


def test_a_forward_target_gets_the_parallelism_of_its_group():
    topology = ExecutionGraph(job([("map", 5), ("sink", UNDECIDED)], [(0, 1, POINTWISE, "forward", 1, True)]))
    graph = DynamicGraph(topology, never)
    assert graph.grow() == (0, 1)
    assert topology.parallelism_of(1) == 5
    assert topology.subpartition_counts(0).tolist() == [26] * 5
    finish(graph, topology, 0, 100)
    assert graph._sizes[0].total_bytes == 13_000
    pieces = [topology.input_info(0).pieces_of(subtask) for subtask in range(5)]
    assert [(list(one[0].partitions), len(one[0].subpartitions)) for one in pieces] == [([k], 26) for k in range(5)]


def test_one_decision_settles_the_whole_forward_group():
    edges = [(0, 1, ALL, "hash"), (1, 2, POINTWISE, "forward", 1, True)]
    topology = ExecutionGraph(job([("source", 2), ("map", UNDECIDED, 64), ("sink", UNDECIDED, 12)], edges))
    asked = []

    def decider(inputs, max_parallelism, source):
        asked.append(max_parallelism)
        return ten(inputs, max_parallelism, None)

    graph = DynamicGraph(topology, decider)
    assert graph.grow() == (0,)
    finish(graph, topology, 0, 100)
    assert graph.grow() == (1, 2)
    assert asked == [12]
    assert topology.parallelism_of(2) == 10


def test_a_result_consumed_twice_counts_twice():
    vertices = (JobVertex("source", 1), JobVertex("sink", UNDECIDED, max_parallelism=16))
    edges = (JobEdge(0, 1, ALL, "hash", 1), JobEdge(0, 1, ALL, "hash", 2))
    graph_ = JobGraph("job", vertices, (Dataset("d", 0, BLOCKING),), edges, is_dynamic=True)
    topology = ExecutionGraph(graph_)
    settings = AdaptiveSettings(data_volume_per_task_bytes=400)
    graph = DynamicGraph(
        topology, lambda inputs, most, source: decide(inputs, settings, max_parallelism=most, source=source)
    )
    graph.grow()
    finish(graph, topology, 0, 100)
    assert graph.grow() == (1,)
    assert topology.parallelism_of(1) == 8


def test_undecided_sources_are_decided_first():
    topology = ExecutionGraph(job([("source", UNDECIDED, 8), ("sink", UNDECIDED)], [(0, 1, ALL)]))
    settings = AdaptiveSettings(default_source_parallelism=32)
    graph = DynamicGraph(
        topology, lambda inputs, most, source: decide(inputs, settings, max_parallelism=most, source=source)
    )
    assert graph.grow() == (0,)
    assert topology.parallelism_of(0) == 8


def test_a_source_has_as_many_subtasks_as_it_can_tell():
    settings = AdaptiveSettings(data_volume_per_task_bytes=100, max_parallelism=50)

    def decided(most=128, **size):
        return decide([], settings, max_parallelism=most, source=SourceSize(**size)).parallelism

    assert decided() == decide([], settings).parallelism == 50
    assert [decided(bytes=size) for size in (0, 1, 100, 101, 4_901, 10**9)] == [1, 1, 1, 2, 50, 50]
    assert [decided(splits=splits) for splits in (0, 1, 7, 99)] == [1, 1, 7, 50]
    assert decided(bytes=10**9, splits=3) == decided(bytes=201, splits=9) == 3
    assert decided(most=4, bytes=10**9, splits=9) == 4
    made = explain([], settings, 128, decide([], settings), SourceSize(bytes=201, splits=9))
    assert made.steps == ("a source: max_parallelism 50, at most 128; ceil(201 / 100) = 3; 9 splits: 50",)


def test_what_a_source_tells_decides_it():
    vertex = JobVertex("source", UNDECIDED, source_size=SourceSize(bytes=201, splits=9))
    topology = ExecutionGraph(JobGraph("job", (vertex,), (), (), is_dynamic=True))
    settings = AdaptiveSettings(data_volume_per_task_bytes=100)
    DynamicGraph(topology, lambda inputs, most, source: decide(inputs, settings, source=source)).grow()
    assert topology.parallelism_of(0) == 3


@pytest.mark.parametrize(("most", "vertex", "written"), [(16, 128, 16), (200, 128, 128), (16, 8, 8)])
def test_as_many_subpartitions_are_written_as_there_may_be_subtasks(most, vertex, written):
    made = job(
        [("source", 2), ("all", UNDECIDED, vertex), ("near", UNDECIDED, vertex)], [(0, 1, ALL), (0, 2, POINTWISE)]
    )
    topology = ExecutionGraph(made, most_decided=AdaptiveSettings(max_parallelism=most).most)
    assert DynamicGraph(topology, never).grow() == (0,)
    assert [topology.subpartition_counts(dataset).tolist() for dataset in (0, 1)] == [[written] * 2, [written // 2] * 2]


def test_the_most_is_that_of_sources_too():
    assert AdaptiveSettings(max_parallelism=100, is_rounded=True).most == 64
    assert AdaptiveSettings(max_parallelism=4, default_source_parallelism=9).most == 9


def test_a_lost_partition_is_forgotten():
    topology = ExecutionGraph(job([("s1", 6), ("s2", 4), ("sink", UNDECIDED)], [(0, 2, POINTWISE), (1, 2, POINTWISE)]))
    graph = DynamicGraph(topology, ten)
    graph.grow()
    finish(graph, topology, 0, 100)
    finish(graph, topology, 1, 100)
    graph.grow()
    graph.forget(0, 3)
    graph.forget(1, 9)
    assert graph._sizes[0].recorded == 5
    assert graph._sizes[1].recorded == 4


def test_a_producer_that_runs_again_delays_the_decision():
    topology = ExecutionGraph(job([("source", 2), ("sink", UNDECIDED)], [(0, 1, ALL)]))
    graph = DynamicGraph(topology, ten)
    graph.grow()
    graph.forget(0, 0)  # nothing reported yet
    assert 0 not in graph._sizes
    finish(graph, topology, 0, 100)
    graph.forget(0, 1)
    assert graph.grow() == ()
    graph.record(0, 1, [100] * 128)
    assert graph.grow() == (1,)


def test_sizes_of_all_to_all_datasets_are_compacted_when_all_consumers_are_there():
    topology = ExecutionGraph(job([("source", 2), ("sink", UNDECIDED)], [(0, 1, ALL)]))
    graph = DynamicGraph(topology, ten)
    graph.grow()
    finish(graph, topology, 0, 100)
    graph.grow()
    graph.forget(0, 0)
    assert graph._sizes[0].is_complete


def test_the_partitioner_says_what_belongs_together():
    edges = [
        (0, 3, ALL, "hash", 1), (1, 3, ALL, "rebalance", 2), (2, 3, POINTWISE, "rescale", 2),
    ]  # fmt: skip
    topology = ExecutionGraph(job([("a", 1), ("b", 1), ("c", 1), ("sink", UNDECIDED)], edges))
    seen = []

    def decider(inputs, most, source):
        seen.extend((one.binds_keys, one.binds_inputs, one.input_number) for one in inputs)
        return ten(inputs, most, None)

    graph = DynamicGraph(topology, decider)
    graph.grow()
    for vertex in range(3):
        finish(graph, topology, vertex, 1)
    graph.grow()
    assert seen == [(True, True, 1), (False, False, 2), (False, False, 2)]


def test_a_forward_group_with_two_parallelisms_is_refused():
    with pytest.raises(ConfigError, match="'a' and 'c' are joined by forward edges"):
        forward_groups(
            job(
                [("a", 2), ("b", UNDECIDED), ("c", 3)],
                [(0, 1, POINTWISE, "forward", 1, True), (1, 2, POINTWISE, "forward", 1, True)],
            )
        )
