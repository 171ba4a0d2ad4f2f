import pytest

from netstack import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_graph import (
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    SlotSharingGroup,
)
from netstack.schedule.slots.placement import place
from netstack.schedule.slots.slots import LoadBalanceMode

NONE, SLOTS, TASKS = LoadBalanceMode


def chain(
    *parallelisms, pattern=DistributionPattern.ALL_TO_ALL, type=ResultPartitionType.PIPELINED_BOUNDED, apart=False
):
    vertices = tuple(
        JobVertex(f"v{index}", parallelism, 32_768, slot_sharing_group=index if apart else 0)
        for index, parallelism in enumerate(parallelisms)
    )
    datasets = tuple(Dataset(f"d{index}", index, type) for index in range(len(vertices) - 1))
    edges = tuple(JobEdge(index, index + 1, pattern) for index in range(len(datasets)))
    groups = tuple(SlotSharingGroup(f"g{index}") for index in range(len(vertices) if apart else 1))
    return JobGraph("job", vertices, datasets, edges, groups)


@pytest.mark.parametrize(("mode", "tasks"), [(NONE, [4, 3, 2]), (TASKS, [3, 3, 3])])
def test_six_and_three_on_three_taskmanagers(mode, tasks):
    assert place(chain(6, 3), [2, 2, 2], mode).tasks.tolist() == tasks


@pytest.mark.parametrize(("mode", "tasks"), [(NONE, [9, 5]), (SLOTS, [9, 5]), (TASKS, [7, 7])])
def test_one_four_four_two_three_on_two_taskmanagers(mode, tasks):
    assert place(chain(1, 4, 4, 2, 3), [2, 2], mode).tasks.tolist() == tasks


def test_over_a_rescale_edge_the_default_is_even_too():
    assert place(chain(6, 3, pattern=DistributionPattern.POINTWISE), [2, 2, 2]).tasks.tolist() == [3, 3, 3]


def test_the_example_of_two_taskmanagers_with_two_slots():
    placement = place(chain(4, 4), [2, 2])
    assert placement.taskmanagers_of(0).tolist() == placement.taskmanagers_of(1).tolist() == [0, 0, 1, 1]
    assert placement.slots_of(1).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("mode", "used"), [(NONE, [4, 2]), (SLOTS, [3, 3])])
def test_slots_are_filled_or_spread(mode, used):
    assert place(chain(6), [4, 4], mode).slots_used.tolist() == used


def test_slots_spreads_by_share_not_by_number():
    assert place(chain(6), [2, 6], SLOTS).slots_used.tolist() == [2, 4]


def test_slot_sharing_groups_add_up():
    with pytest.raises(ConfigError, match=r"30 slots at once, .* have 29"):
        place(chain(10, 20, apart=True), [15, 14])
    assert place(chain(10, 20, apart=True), [15, 15]).slots_used.tolist() == [15, 15]


def test_stages_with_blocking_results_between_them_use_the_same_slots():
    placement = place(chain(4, 4, type=ResultPartitionType.BLOCKING, apart=True), [2, 2])
    assert placement.stages == ((0,), (1,))
    assert placement.tasks.tolist() == [4, 4]
    assert placement.slots_used.tolist() == [2, 2]
    assert placement.taskmanagers_of(1).tolist() == [0, 0, 1, 1]


def test_a_stage_would_like_to_be_where_its_inputs_are():
    # Spread slots alone would put the two subtasks of v1 on the first two TaskManagers.
    chained = chain(4, 2, pattern=DistributionPattern.POINTWISE, type=ResultPartitionType.BLOCKING, apart=True)
    placement = place(chained, [1, 1, 1, 1], SLOTS)
    assert placement.taskmanagers_of(0).tolist() == [0, 1, 2, 3]
    assert placement.taskmanagers_of(1).tolist() == [0, 2]
    placement = place(chained, [1, 1, 2, 2])
    assert placement.taskmanagers_of(0).tolist() == [0, 1, 2, 2]
    assert placement.taskmanagers_of(1).tolist() == [0, 2]


def two_inputs(first, second, *, type=ResultPartitionType.BLOCKING):
    """Two sources of one reader, each in a slot sharing group of its own."""
    vertices = tuple(
        JobVertex(f"v{index}", parallelism, slot_sharing_group=index)
        for index, parallelism in enumerate((first, second, 2))
    )
    datasets = (Dataset("d0", 0, type), Dataset("d1", 1, type))
    edges = tuple(JobEdge(index, 2, DistributionPattern.ALL_TO_ALL, input_number=index + 1) for index in range(2))
    return JobGraph("job", vertices, datasets, edges, tuple(SlotSharingGroup(f"g{index}") for index in range(3)))


def test_what_nobody_waits_for_runs_at_once_where_there_is_room():
    assert place(two_inputs(3, 2), [3, 2]).stages == ((0, 1), (2,))
    assert place(two_inputs(3, 2), [3, 1]).stages == ((0,), (1,), (2,))


def test_a_job_without_blocking_results_runs_at_once():
    pipelined = two_inputs(3, 2, type=ResultPartitionType.PIPELINED_BOUNDED)
    assert place(pipelined, [7]).stages == ((0, 1, 2),)
    separate = JobGraph(
        "job", (JobVertex("a", 3), JobVertex("b", 2, slot_sharing_group=1)), (), (), pipelined.slot_sharing_groups[:2]
    )
    with pytest.raises(ConfigError, match="needs 5 slots"):
        place(separate, [4])


def test_a_stage_must_fit():
    with pytest.raises(ConfigError, match="needs 5 slots"):
        place(chain(4, 5, type=ResultPartitionType.BLOCKING, apart=True), [2, 2])


@pytest.mark.parametrize("mode", LoadBalanceMode)
def test_ten_thousand_by_ten_thousand(mode):
    placement = place(chain(10_000, 10_000), [100] * 100, mode)
    assert set(placement.tasks.tolist()) == {200}
