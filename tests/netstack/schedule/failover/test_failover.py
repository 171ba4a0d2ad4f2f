import numpy as np
import pytest
from job_shapes import job_of

from netstack import ConfigError
from netstack.schedule.recovery import RegionFailover
from netstack.schedule.structures import index_array
from netstack.schedule.topology.execution_graph import ExecutionGraph
from netstack.schedule.topology.regions import Regions


class Job:
    """Vertices of parallelism 1 are named by their vertex."""

    def __init__(self, text):
        self.topology = ExecutionGraph(job_of(text))
        self.failover = RegionFailover(self.topology, Regions(self.topology))
        self.is_tracked = np.ones(self.topology.partition_count, np.bool_)

    def names(self):
        return [vertex.name for vertex in self.topology.job.vertices]

    def partition(self, name):
        """The first result of a vertex."""
        return self.topology.partitions_of_subtask(self.names().index(name))[0]

    def lose(self, *names):
        for name in names:
            self.is_tracked[self.partition(name)] = False

    def restarts(self, failed, missing=None):
        actual = self.failover.subtasks_to_restart(
            index_array([self.names().index(failed)]),
            self.is_tracked,
            None if missing is None else self.partition(missing),
        )
        return " ".join(self.names()[subtask] for subtask in actual.tolist())


SIX = (
    "v1(1); v2(1); v3(1); v1 -all,blocking=x-> v4(1); v2 -all,blocking=x-> v4;"
    "v1 -all,blocking=x-> v5(1); v2 -all,blocking=x-> v5; v3 -all,blocking-> v6(1)"
)


@pytest.mark.parametrize(
    ("failed", "missing", "expected"),
    [
        ("v1", None, "v1 v4 v5"),
        ("v4", None, "v4"),
        ("v4", "v1", "v1 v4 v5"),
        ("v6", "v3", "v3 v6"),
        ("v6", None, "v6"),
        ("v3", None, "v3 v6"),
    ],
)
def test_consumers_of_what_restarts_restart_and_producers_of_what_is_missing(failed, missing, expected):
    assert Job(SIX).restarts(failed, missing) == expected


def test_a_missing_partition_is_only_missing_for_one_computation():
    job = Job(SIX)
    job.restarts("v6", "v3")
    assert job.restarts("v6") == "v6"


@pytest.mark.parametrize(
    ("failed", "lost", "expected"),
    [
        ("v3", ["v1"], "v1 v3"),
        ("v2", ["v1"], "v1 v2 v3"),
        ("v1", ["v1"], "v1 v3"),
        ("v3", ["v1", "v2"], "v1 v2 v3"),
        ("v2", ["v1", "v2"], "v1 v2 v3"),
        ("v1", ["v1", "v2"], "v1 v2 v3"),
    ],
)
def test_lost_partitions_are_produced_again(failed, lost, expected):
    job = Job("v1(1); v2(1); v1 -all,blocking-> v3(1); v2 -all,blocking-> v3")
    job.lose(*lost)
    assert job.restarts(failed) == expected


@pytest.mark.parametrize(("missing", "expected"), [(None, "v3 v4 v5 v6"), ("v2", "v1 v2 v3 v4 v5 v6")])
def test_pipelined_pairs_restart_together(missing, expected):
    job = Job(
        "v1(1) -all,pipelined-> v2(1) -all,blocking-> v3(1) -all,pipelined-> v4(1) -all,blocking-> v5(1)"
        " -all,pipelined-> v6(1)"
    )
    assert job.restarts("v3", missing) == expected


@pytest.mark.parametrize(("failed", "expected"), [("v5", "v3 v4 v5 v6"), ("v6", "v6"), ("v3", "v3 v4 v5 v6")])
def test_selective_hybrid_results_cannot_be_read_again(failed, expected):
    job = Job(
        "v1(1); v2(1); v3(1); v4(1); v1 -all,hybrid_full-> v5(1); v2 -all,blocking-> v5;"
        "v3 -all,hybrid_selective-> v5; v4 -all,pipelined-> v5; v5 -all,hybrid_full-> v6(1)"
    )
    assert job.restarts(failed) == expected


@pytest.mark.parametrize(("failed", "expected"), [("v1", "v1 v2 v3 v4"), ("v2", "v2 v4"), ("v4", "v4")])
def test_approximate_results_do_not_need_their_producer(failed, expected):
    job = Job(
        "v1(1) -all,pipelined_approximate=x-> v2(1); v1 -all,pipelined_approximate=x-> v3(1);"
        "v2 -all,pipelined_approximate-> v4(1); v3 -all,pipelined_approximate-> v4"
    )
    assert job.restarts(failed) == expected


def test_losses_cascade_through_many_stages():
    job = Job("v0(1)" + "".join(f" -all,blocking-> v{index}(1)" for index in range(1, 300)))
    job.lose(*(f"v{index}" for index in range(299)))
    assert len(job.restarts("v299").split()) == 300


def test_the_headline_job_restarts_one_source_and_every_sink():
    job = Job("source(10000) -all,blocking-> sink(10000)")
    actual = job.failover.subtasks_to_restart(index_array([0]), job.is_tracked)
    assert actual.size == 10_001
    assert job.failover.subtasks_to_restart(index_array([10_000]), job.is_tracked).tolist() == [10_000]


def test_several_that_failed_together():
    job = Job(SIX)
    actual = job.failover.subtasks_to_restart(index_array([3, 5]), job.is_tracked)
    assert [job.names()[subtask] for subtask in actual.tolist()] == ["v4", "v6"]


def test_what_does_not_exist_is_refused():
    job = Job("a(1) -all,blocking-> b(1)")
    with pytest.raises(ConfigError, match="no subtask 2"):
        job.failover.subtasks_to_restart(index_array([2]), job.is_tracked)
    with pytest.raises(ConfigError, match="2 elements for 1 partitions"):
        job.failover.subtasks_to_restart(index_array([0]), np.ones(2, np.bool_))
