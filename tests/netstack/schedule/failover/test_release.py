import pytest
from job_shapes import job_of

from netstack.schedule.failover.release import PartitionRelease
from netstack.schedule.structures import index_array
from netstack.schedule.topology.execution_graph import ExecutionGraph
from netstack.schedule.topology.regions import Regions


class Job:
    def __init__(self, text, **options):
        self.topology = ExecutionGraph(job_of(text, **options))
        self.regions = Regions(self.topology)
        self.release = PartitionRelease(self.topology, self.regions)

    def finish(self, subtask):
        """Groups and partitions that go."""
        release = self.release.on_finished(subtask)
        return list(release.groups), release.partitions.tolist()

    def reset(self, *subtasks):
        self.release.on_reset(index_array(subtasks))

    def grow(self, vertex, parallelism):
        self.topology.decide(vertex, parallelism)
        self.topology.initialise(vertex)
        self.regions.extend()
        self.release.extend()


NOTHING = ([], [])


def test_a_partition_goes_when_its_consumer_has_finished():
    job = Job("a(1) -all,blocking-> b(1)")
    assert job.finish(0) == NOTHING
    assert job.finish(1) == ([0], [0])
    assert job.finish(1) == NOTHING


def test_a_region_of_two_has_finished_when_both_have():
    job = Job("a(1) -all,blocking-> b(1) -all,pipelined-> c(1)")
    assert [job.finish(subtask) for subtask in range(3)] == [NOTHING, NOTHING, ([0], [0])]


def test_a_group_goes_as_a_whole_with_the_last_of_its_consumers():
    job = Job("a(2) -all,blocking-> b(2)")
    assert [job.finish(subtask) for subtask in range(4)] == [NOTHING, NOTHING, NOTHING, ([0], [0, 1])]


def test_a_reset_consumer_is_needed_again():
    job = Job("a(1) -all,blocking-> b(2)")
    assert job.finish(1) == NOTHING
    job.reset(1)
    assert job.finish(2) == NOTHING
    assert job.finish(1) == ([0], [0])


def test_a_reset_of_what_has_not_finished_changes_nothing():
    job = Job("a(1) -all,blocking-> b(2)")
    job.reset(1, 2)
    assert job.finish(1) == NOTHING
    assert job.finish(2) == ([0], [0])
    job.reset(1, 2)
    assert job.finish(1) == NOTHING
    assert job.finish(2) == ([0], [0])


def test_a_reset_of_half_a_region_makes_it_unfinished():
    job = Job("a(1) -all,blocking-> b(1) -all,pipelined-> c(1); a -all,blocking-> d(1)")
    assert job.finish(1) == NOTHING
    assert job.finish(2) == ([0], [0])
    job.reset(2)
    assert job.finish(2) == ([0], [0])


@pytest.mark.parametrize("type", ["pipelined", "pipelined_bounded", "pipelined_approximate", "blocking_persistent"])
def test_what_others_release_or_what_stays_is_left_alone(type):
    job = Job(f"a(1) -all,{type}-> b(1)")
    assert [job.finish(subtask) for subtask in range(2)] == [NOTHING, NOTHING]


@pytest.mark.parametrize("type", ["hybrid_full", "hybrid_selective"])
def test_hybrid_results_are_released_as_blocking_ones(type):
    job = Job(f"a(1) -all,{type}-> b(1)")
    assert [job.finish(subtask) for subtask in range(2)] == [NOTHING, ([0], [0])]


def test_pointwise_groups_go_one_by_one():
    job = Job("a(4) -pointwise,blocking-> b(2)")
    assert job.finish(5) == ([1], [2, 3])
    assert job.finish(4) == ([0], [0, 1])


def test_a_partition_that_two_edges_read_goes_with_the_second():
    job = Job("a(2) -all,blocking=x-> b(1); a -pointwise,blocking=x-> c(2)")
    assert job.finish(2) == ([0], [])
    assert job.finish(4) == ([2], [1])
    assert job.finish(3) == ([1], [0])


def test_both_pointwise_edges_of_a_partition_count():
    job = Job("a(2) -pointwise,blocking=x-> b(1); a -pointwise,blocking=x-> c(2)")
    assert job.finish(3) == ([1], [])
    assert job.finish(2) == ([0], [0])
    assert job.finish(4) == ([2], [1])


def test_what_was_counted_stays_when_the_topology_grows():
    job = Job("a(2) -all,blocking-> b(2) -all,blocking-> c(-1)", is_dynamic=True)
    job.grow(0, 2)
    job.grow(1, 2)
    assert [job.finish(subtask) for subtask in range(3)] == [NOTHING] * 3
    job.grow(2, 1)
    assert job.finish(3) == ([0], [0, 1])
    assert job.finish(4) == ([1], [2, 3])


def test_nothing_goes_before_all_its_readers_exist():
    job = Job("a(1) -all,blocking=x-> b(1); a -all,blocking=x-> c(-1)", is_dynamic=True)
    job.grow(0, 1)
    job.grow(1, 1)
    assert job.finish(1) == ([0], [])
    job.grow(2, 1)
    assert job.finish(2) == ([1], [0])


def test_a_wide_group_is_released_by_the_last_of_its_consumers():
    job = Job("a(400) -all,blocking-> b(400)")
    releases = [job.finish(subtask) for subtask in range(400, 800)]
    assert releases[:-1] == [NOTHING] * 399
    assert releases[-1] == ([0], list(range(400)))
