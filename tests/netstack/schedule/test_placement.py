import pytest

from netstack import ConfigError
from netstack.ids import ResultPartitionType
from netstack.schedule.job_graph import Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex, SlotSharingGroup
from netstack.schedule.placement import place
from netstack.schedule.slots import LoadBalanceMode

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


@pytest.mark.parametrize(("mode", "tasks"), [(NONE, [9, 5]), (SLOTS, [8, 6]), (TASKS, [7, 7])])
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
    with pytest.raises(ConfigError, match=r"takes 30 slots at once, and 2 TaskManagers have 29"):
        place(chain(10, 20, apart=True), [15, 14])
    assert place(chain(10, 20, apart=True), [15, 15]).slots_used.tolist() == [15, 15]


def test_stages_with_blocking_results_between_them_use_the_same_slots():
    placement = place(chain(4, 4, type=ResultPartitionType.BLOCKING, apart=True), [2, 2])
    assert placement.stages == ((0,), (1,))
    assert placement.tasks.tolist() == [4, 4]
    assert placement.slots_used.tolist() == [2, 2]
    assert placement.taskmanagers_of(1).tolist() == [0, 0, 1, 1]


def test_with_room_for_all_stages_each_has_its_own_slots():
    placement = place(chain(2, 2, type=ResultPartitionType.BLOCKING, apart=True), [2, 2])
    assert placement.stages == ((0, 1),)
    assert placement.slots_used.tolist() == [2, 2]


def test_a_stage_must_fit():
    with pytest.raises(ConfigError, match="takes 5 slots at once"):
        place(chain(4, 5, type=ResultPartitionType.BLOCKING, apart=True), [2, 2])


@pytest.mark.parametrize("mode", LoadBalanceMode)
def test_ten_thousand_by_ten_thousand(mode):
    placement = place(chain(10_000, 10_000), [100] * 100, mode)
    assert set(placement.tasks.tolist()) == {200}
