import numpy as np
import pytest
from group_views import consumed_partition_group, consumer_vertex_group
from job_shapes import job_of

from netstack import ConfigError
from netstack.schedule.graph.job_graph import UNDECIDED
from netstack.schedule.structures import index_array
from netstack.schedule.topology.distribution import InputInfo, Piece
from netstack.schedule.topology.execution_graph import ExecutionGraph


def test_subtasks_and_partitions_are_counted_through():
    topology = ExecutionGraph(job_of("a(2) -all,blocking-> b(3) -all,blocking-> c(1)"))
    assert (topology.subtask_count, topology.partition_count, len(topology.groups)) == (6, 5, 2)
    assert topology.vertex_of_subtask.tolist() == [0, 0, 1, 1, 1, 2]
    assert topology.subtasks_of(1) == range(2, 5)
    assert topology.subtask(1, 2) == 4
    assert topology.place_of(4) == (1, 2)
    assert topology.partitions_of(1) == range(2, 5)
    assert topology.producer_of_partition.tolist() == [0, 1, 2, 3, 4]
    assert topology.partitions_of_subtask(3) == (3,)
    assert topology.partitions_of_subtask(5) == ()
    assert topology.initialised == (0, 1, 2)


def test_an_all_to_all_edge_is_one_group_with_two_faces():
    topology = ExecutionGraph(job_of("a(3) -all,blocking-> b(2)"))
    assert [topology.consumed_groups(subtask) for subtask in topology.subtasks_of(1)] == [(0,), (0,)]
    assert [topology.groups_of_partition(partition) for partition in range(3)] == [(0,)] * 3
    consumed, consumers = consumed_partition_group(topology.groups, 0), consumer_vertex_group(topology.groups, 0)
    assert (consumed.partitions, consumed.consumers, consumed.dataset, consumed.edge) == (range(3), 2, 0, 0)
    assert (consumers.subtasks, consumers.partitions) == ((3, 4), 3)
    assert consumed.number == consumers.number
    assert consumed.type is consumers.type is topology.job.datasets[0].type


@pytest.mark.parametrize(
    ("producers", "consumers", "expected"),
    [
        (5, 2, [(range(2), (5,)), (range(2, 5), (6,))]),
        (2, 5, [(range(1), (2, 3, 4)), (range(1, 2), (5, 6))]),
        (2, 2, [(range(1), (2,)), (range(1, 2), (3,))]),
    ],
)
def test_a_pointwise_edge_has_as_many_groups_as_its_narrow_end(producers, consumers, expected):
    topology = ExecutionGraph(job_of(f"a({producers}) -pointwise,blocking-> b({consumers})"))
    assert [
        (
            consumed_partition_group(topology.groups, group).partitions,
            consumer_vertex_group(topology.groups, group).subtasks,
        )
        for group in range(len(topology.groups))
    ] == expected


def test_a_dataset_that_two_edges_read_has_a_group_for_each():
    topology = ExecutionGraph(job_of("a(2) -all,blocking=x-> b(2); a -all,blocking=x-> c(3)"))
    assert topology.partition_count == 2
    assert topology.groups_of_partition(1) == (0, 1)
    assert topology.produced_groups(0) == (0, 1)
    assert topology.edges_of(0) == (0, 1)


def test_consumers_that_read_the_same_range_share_a_group():
    topology = ExecutionGraph(job_of("a(4) -pointwise,blocking-> b(4)", is_dynamic=True))
    topology.initialise(0)
    ranges = [range(1), range(1), range(1, 3), range(3, 4)]
    topology.initialise(1, [InputInfo.of_pieces([(Piece(each, range(1)),) for each in ranges])])
    assert [
        (
            tuple(consumed_partition_group(topology.groups, group).partitions),
            consumer_vertex_group(topology.groups, group).subtasks,
        )
        for group in range(len(topology.groups))
    ] == [((0,), (4, 5)), ((1, 2), (6,)), ((3,), (7,))]
    assert [topology.consumed_groups(subtask) for subtask in range(4, 8)] == [(0,), (0,), (1,), (2,)]


def test_ranges_may_overlap_and_come_back():
    topology = ExecutionGraph(job_of("a(3) -pointwise,blocking-> b(4)", is_dynamic=True))
    topology.initialise(0)
    ranges = [range(2, 3), range(2), range(1, 3), range(2, 3)]
    topology.initialise(1, [InputInfo.of_pieces([(Piece(each, range(1)),) for each in ranges])])
    assert [consumer_vertex_group(topology.groups, group).subtasks for group in range(3)] == [(3, 6), (4,), (5,)]
    assert [topology.groups_of_partition(partition) for partition in range(3)] == [(1,), (1, 2), (0, 2)]
    assert topology.produced_by_all(index_array([1, 2])).tolist() == [0, 1, 2]


def test_unfinished_partitions_are_counted_down_and_up():
    topology = ExecutionGraph(job_of("a(2) -all,blocking-> b(2)"))
    assert topology.finish(0) == ()
    assert not topology.is_complete(0)
    assert topology.finish(0) == ()
    assert topology.finish(1) == (0,)
    assert topology.is_complete(0)
    assert topology.is_finished.tolist() == [True, True]
    assert topology.reset(index_array([1, 2])).tolist() == [1]
    assert topology.is_finished.tolist() == [True, False]
    assert not topology.is_complete(0)
    assert topology.reset(index_array([1])).size == 0
    assert topology.groups.unfinished.tolist() == [1]
    assert topology.finish(1) == (0,)


def test_pointwise_groups_are_counted_one_by_one():
    topology = ExecutionGraph(job_of("a(4) -pointwise,blocking-> b(2)"))
    assert topology.finish(0) == ()
    assert topology.finish(1) == (0,)
    topology.reset(index_array([0, 1, 2]))
    assert topology.groups.unfinished.tolist() == [2, 2]


def test_a_pipelined_result_is_never_finished():
    topology = ExecutionGraph(job_of("a(1) -all,pipelined-> b(1)"))
    assert topology.finish(0) == ()
    assert not topology.is_finished.any()


def test_groups_of_many_subtasks_at_once():
    topology = ExecutionGraph(job_of("a(4) -pointwise,blocking-> b(2) -all,blocking-> c(2)"))
    assert topology.consumed_by_all(index_array([4, 5, 6, 7])).tolist() == [0, 1, 2]
    assert topology.produced_by_all(index_array([0, 1, 2, 4])).tolist() == [0, 1, 2]
    assert topology.consumed_by_all(index_array([0])).size == 0
    assert [(vertex, indices.tolist()) for vertex, indices in topology.by_vertex(index_array([1, 3, 4, 7]))] == [
        (0, [1, 3]),
        (1, [0]),
        (2, [1]),
    ]


def test_subpartitions_of_a_static_job_are_one_for_each_consumer():
    topology = ExecutionGraph(job_of("a(2) -pointwise,blocking-> b(5) -all,blocking-> c(3)"))
    assert topology.subpartition_counts(0).tolist() == [3, 2]
    assert topology.subpartition_counts(1).tolist() == [3] * 5
    assert topology.input_info(0).pieces_of(3) == (Piece(range(1, 2), range(1, 2)),)
    assert topology.input_info(0) is topology.input_info(0)


def test_a_result_that_nobody_reads_has_one_subpartition():
    job = job_of("a(2) -all,blocking-> b(2)")
    unread = type(job)(job.name, job.vertices[:1], job.datasets)
    assert ExecutionGraph(unread).subpartition_counts(0).tolist() == [1, 1]


def test_a_dynamic_job_begins_without_subtasks_and_gets_them_vertex_by_vertex():
    text = "a(6); b(4); a -pointwise,blocking-> c(-1); b -pointwise,blocking-> c"
    topology = ExecutionGraph(job_of(text, is_dynamic=True, max_parallelism=128))
    assert topology.subtask_count == 0
    assert (topology.initialise(0), topology.initialise(1)) == (range(6), range(6, 10))
    assert not topology.is_initialised(2)
    assert topology.parallelism_of(2) == UNDECIDED
    assert topology.subpartition_counts(0).tolist() == [22] * 6
    assert topology.subpartition_counts(1).tolist() == [32] * 4
    for subtask in range(9):
        assert topology.finish(subtask) == ()
    topology.decide(2, 10)
    assert topology.initialise(2) == range(10, 20)
    assert topology.consumed_groups(12) == (1, 6)
    assert [topology.is_complete(group) for group in range(len(topology.groups))] == [True] * 9 + [False]
    assert topology.finish(9) == (9,)


def test_vertices_may_be_initialised_in_any_order_that_has_producers_first():
    topology = ExecutionGraph(job_of("a(2) -all,blocking-> c(-1); b(1) -all,blocking-> d(3)", is_dynamic=True))
    assert [topology.initialise(vertex) for vertex in (0, 2, 3)] == [range(2), range(2, 3), range(3, 6)]
    topology.decide(1, 2)
    assert topology.initialise(1) == range(6, 8)
    assert topology.initialised == (0, 2, 3, 1)
    assert topology.place_of(6) == (1, 0)
    assert topology.subtask(1, 1) == 7
    assert [(vertex, indices.tolist()) for vertex, indices in topology.by_vertex(index_array([0, 2, 4, 7]))] == [
        (0, [0]),
        (2, [0]),
        (3, [1]),
        (1, [1]),
    ]


def test_an_all_to_all_group_made_late_counts_what_is_finished_already():
    topology = ExecutionGraph(job_of("a(3) -all,blocking-> b(-1)", is_dynamic=True))
    topology.initialise(0)
    topology.finish(0)
    topology.finish(2)
    topology.decide(1, 2)
    topology.initialise(1)
    assert topology.groups.unfinished.tolist() == [1]


def test_a_decided_consumer_sets_the_subpartitions_of_its_producer():
    topology = ExecutionGraph(job_of("a(8) -all,blocking-> b(-1)", is_dynamic=True))
    topology.initialise(0)
    topology.decide(1, 8)
    topology.decide(1, 8)
    assert topology.subpartition_counts(0).tolist() == [8] * 8


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda topology: topology.subtask(0, 2), "'a' has 2 subtasks, no 2"),
        (lambda topology: topology.subtask(7, 0), "no vertex 7"),
        (lambda topology: topology.place_of(4), "no subtask 4"),
        (lambda topology: topology.initialise(0), "'a' is already initialised"),
        (lambda topology: topology.decide(0, 2), "cannot become"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(broken, message):
    topology = ExecutionGraph(job_of("a(2) -all,blocking-> b(2)"))
    with pytest.raises(ConfigError, match=message):
        broken(topology)


def test_a_dynamic_job_refuses_vertices_out_of_order():
    topology = ExecutionGraph(
        job_of("a(2) -all,blocking-> b(-1) -all,blocking-> c(2)", is_dynamic=True, max_parallelism=4)
    )
    with pytest.raises(ConfigError, match="'c' reads from 'b', which is not initialised"):
        topology.initialise(2)
    with pytest.raises(ConfigError, match="'b' has no parallelism yet"):
        topology.initialise(1)
    with pytest.raises(ConfigError, match="parallelism 5; give 1 to 4"):
        topology.decide(1, 5)
    with pytest.raises(ConfigError, match="'b' is not initialised"):
        topology.subtasks_of(1)
    with pytest.raises(ConfigError, match="has no partitions yet"):
        topology.partitions_of(1)
    topology.initialise(0)
    with pytest.raises(ConfigError, match="its consumer 'b' is not initialised"):
        topology.connection(0)
    assert topology.groups_of_edge(0) == range(0)
    topology.decide(1, 2)
    with pytest.raises(ConfigError, match="needs 1 inputs for each of 2"):
        topology.initialise(1, [])


def test_the_headline_job_is_one_group_in_little_memory():
    topology = ExecutionGraph(job_of("source(10000) -all,blocking-> sink(10000)"))
    assert topology.subtask_count == 20_000
    assert len(topology.groups) == 1
    assert np.array_equal(topology.groups.consumers_of(0), np.arange(10_000, 20_000))
