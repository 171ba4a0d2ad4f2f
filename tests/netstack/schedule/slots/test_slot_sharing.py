import pytest

from netstack import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_graph import (
    UNDECIDED,
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    SlotSharingGroup,
)
from netstack.schedule.slots.slot_sharing import (
    ConsumedPartitions,
    LocalInputPreferred,
    consumed_partitions,
    local_input_preferred,
)
from netstack.schedule.structures import index_array

ALL = DistributionPattern.ALL_TO_ALL
POINTWISE = DistributionPattern.POINTWISE


def chain(*parallelisms, pattern=ALL, groups=None, co_located=None, dynamic=False):
    vertices = tuple(
        JobVertex(
            f"v{index}",
            parallelism,
            max_parallelism=32_768,
            slot_sharing_group=groups[index] if groups else 0,
            co_location_group=co_located[index] if co_located else None,
        )
        for index, parallelism in enumerate(parallelisms)
    )
    datasets = tuple(
        Dataset(f"d{index}", index, ResultPartitionType.PIPELINED_BOUNDED) for index in range(len(vertices) - 1)
    )
    edges = tuple(JobEdge(index, index + 1, pattern) for index in range(len(datasets)))
    sharing = tuple(SlotSharingGroup(f"g{number}") for number in range(max(groups, default=0) + 1 if groups else 1))
    return JobGraph("job", vertices, datasets, edges, sharing, dynamic)


def sets(groups):
    return [set(groups.members(group)) for group in range(groups.count)]


def test_a_consumer_goes_where_its_producer_is():
    groups = local_input_preferred(chain(2, 3, pattern=POINTWISE))
    assert sets(groups) == [{(0, 0), (1, 0)}, {(0, 1), (1, 2)}, {(1, 1)}]


def test_co_location_wins_over_inputs():
    strategy = LocalInputPreferred(chain(2, 2, co_located=("loop", "loop")))
    strategy.add(0, 2)
    strategy.add(1, 2, [ConsumedPartitions(0, index_array([1, 0]), index_array([1, 0]))])
    assert sets(strategy.groups()) == [{(0, 0), (1, 0)}, {(0, 1), (1, 1)}]


def test_without_co_location_the_same_edges_cross():
    strategy = LocalInputPreferred(chain(2, 2))
    strategy.add(0, 2)
    strategy.add(1, 2, [ConsumedPartitions(0, index_array([1, 0]), index_array([1, 0]))])
    assert sets(strategy.groups()) == [{(0, 0), (1, 1)}, {(0, 1), (1, 0)}]


def test_without_edges_subtasks_of_one_slot_sharing_group_pair_up():
    graph = JobGraph("job", (JobVertex("a", 2), JobVertex("b", 2)))
    assert sets(local_input_preferred(graph)) == [{(0, 0), (1, 0)}, {(0, 1), (1, 1)}]


def test_vertices_of_different_slot_sharing_groups_never_share():
    groups = local_input_preferred(chain(2, 2, groups=(0, 1)))
    assert groups.count == 4
    assert groups.slot_sharing_group.tolist() == [0, 0, 1, 1]


def test_slots_of_the_chain_1_4_4_2_3():
    assert local_input_preferred(chain(1, 4, 4, 2, 3)).loads().tolist() == [5, 4, 3, 2]


def test_a_rescale_from_6_to_3_lands_in_every_second_slot():
    groups = local_input_preferred(chain(6, 3, pattern=POINTWISE))
    assert groups.of_vertex[1].tolist() == [0, 2, 4]


def test_the_second_pass_does_not_take_what_fits_a_sibling():
    # Consumer 0 has no producer in its own slot sharing group; consumer 1 has.
    graph = JobGraph("job", (JobVertex("a", 1), JobVertex("b", 2)))
    strategy = LocalInputPreferred(graph)
    strategy.add(0, 1)
    nothing_then_all = ConsumedPartitions(0, index_array([0, 0]), index_array([-1, 0]))
    assert strategy.add(1, 2, [nothing_then_all]).tolist() == [1, 0]


def test_candidates_are_used_up_by_all_consumers_of_a_group():
    # Input 0 is looked at first and has one producer; whoever comes second must look at input 1.
    graph = JobGraph("job", (JobVertex("a", 1), JobVertex("b", 3), JobVertex("c", 2)))
    strategy = LocalInputPreferred(graph)
    strategy.add(0, 1)
    strategy.add(1, 3)
    inputs = [
        ConsumedPartitions(0, index_array([0, 0]), index_array([0, 0])),
        ConsumedPartitions(1, index_array([0, 2]), index_array([0, 2])),
    ]
    assert strategy.add(2, 2, inputs).tolist() == [0, 2]


def test_a_later_vertex_never_changes_what_was_there():
    graph = chain(3, 5, 4, dynamic=True)
    strategy = LocalInputPreferred(graph)
    before = [strategy.add(vertex, graph.vertices[vertex].parallelism).tolist() for vertex in range(2)]
    strategy.add(2, 4, consumed_partitions(graph, 2, [3, 5, 4]))
    assert [groups.tolist() for groups in strategy.groups().of_vertex[:2]] == before


def test_a_vertex_without_parallelism_has_no_slots():
    with pytest.raises(ConfigError, match="'v1' has no parallelism"):
        local_input_preferred(chain(1, UNDECIDED, dynamic=True))


def test_co_located_vertices_of_different_slot_sharing_groups_are_refused():
    with pytest.raises(ConfigError, match="'loop'"):
        local_input_preferred(chain(2, 2, groups=(0, 1), co_located=("loop", "loop")))


def test_ten_thousand_to_ten_thousand_is_a_step_per_subtask():
    groups = local_input_preferred(chain(10_000, 10_000))
    assert groups.count == 10_000
    assert (groups.loads() == 2).all()
