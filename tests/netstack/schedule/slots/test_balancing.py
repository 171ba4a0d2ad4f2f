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
from netstack.schedule.slots.slot_sharing import task_balanced


def graph_of(*vertices):
    """Vertices as (parallelism, slot sharing group, co-location group), in one pipelined region."""
    made = tuple(
        JobVertex(f"v{index}", parallelism, slot_sharing_group=group, co_location_group=co_location)
        for index, (parallelism, group, co_location) in enumerate(vertices)
    )
    datasets = tuple(Dataset(f"d{index}", index, ResultPartitionType.PIPELINED_BOUNDED) for index in range(len(made)))
    edges = tuple(JobEdge(index, index + 1, DistributionPattern.ALL_TO_ALL) for index in range(len(made) - 1))
    groups = tuple(SlotSharingGroup(f"g{number}") for number in range(1 + max(group for _, group, _ in vertices)))
    return JobGraph("job", made, datasets, edges, groups)


def test_the_cursor_goes_on_where_the_last_narrow_vertex_ended():
    groups = task_balanced(graph_of(*((parallelism, 0, None) for parallelism in (1, 4, 4, 2, 3))))
    assert [slots.tolist() for slots in groups.of_vertex] == [[0], [0, 1, 2, 3], [0, 1, 2, 3], [1, 2], [3, 0, 1]]
    assert groups.loads().tolist() == [4, 4, 3, 3]


def test_slot_sharing_groups_do_not_influence_each_other():
    groups = task_balanced(graph_of((1, 0, None), (2, 0, None), (3, 0, None), (1, 1, None), (2, 1, None), (2, 1, None)))
    assert groups.count == 5
    assert groups.slot_sharing_group.tolist() == [0, 0, 0, 1, 1]
    assert groups.loads().tolist() == [2, 2, 2, 3, 2]
    assert groups.of_vertex[4].tolist() == groups.of_vertex[5].tolist() == [3, 4]


def test_co_located_subtasks_share_a_slot_index_by_index():
    groups = task_balanced(
        graph_of((1, 0, None), (2, 0, "a"), (2, 0, "a"), (1, 0, None), (4, 0, "a"), (4, 0, "a"), (3, 0, "b"))
    )
    v0, v1, v2, v3, v4, v5, v6 = (slots.tolist() for slots in groups.of_vertex)
    assert v1 == v2 == v4[:2] == v5[:2] == [1, 2]
    assert v4 == v5 == [1, 2, 0, 3]
    assert v0 == [0]
    assert v3 == [3]
    assert v6 == [0, 3, 1]  # the least loaded ones: loads were 3, 4, 4, 3


def test_six_and_three_fill_slots_with_two_and_one():
    assert task_balanced(graph_of((6, 0, None), (3, 0, None))).loads().tolist() == [2, 2, 2, 1, 1, 1]


def test_undecided_parallelism_is_refused():
    graph = JobGraph("job", (JobVertex("a", UNDECIDED),), is_dynamic=True)
    with pytest.raises(ConfigError, match="'a' has no parallelism"):
        task_balanced(graph)
