import pytest
from job_shapes import job_of

from netstack.schedule.strategies.strategy import RegionScheduling
from netstack.schedule.structures import index_array
from netstack.schedule.topology.execution_graph import ExecutionGraph
from netstack.schedule.topology.regions import Regions


class Scheduled:
    """A job under region scheduling; subtasks have names such as a0."""

    def __init__(self, text, **options):
        self.topology = ExecutionGraph(job_of(text, **options))
        self.regions = Regions(self.topology)
        self.strategy = RegionScheduling(self.topology, self.regions)

    def start(self):
        return self.names(self.strategy.start())

    def finish(self, name):
        self.topology.finish(self.number(name))
        return self.names(self.strategy.on_finished(self.number(name)))

    def restart(self, *names):
        subtasks = index_array([self.number(name) for name in names])
        self.topology.reset(subtasks)
        return self.names(self.strategy.restart(subtasks))

    def grow(self, name, parallelism):
        vertex = self.vertex(name)
        self.topology.decide(vertex, parallelism)
        self.topology.initialise(vertex)
        self.regions.extend()
        self.strategy.extend()

    def vertex(self, name):
        return [vertex.name for vertex in self.topology.job.vertices].index(name)

    def number(self, name):
        return self.topology.subtask(self.vertex(name[:-1]), int(name[-1]))

    def names(self, batches):
        return [
            " ".join(f"{self.topology.job.vertices[vertex].name}{index}" for vertex, index in places)
            for places in ([self.topology.place_of(subtask) for subtask in batch] for batch in batches.tolist())
        ]


def test_pipelines_start_at_once_and_sinks_when_the_whole_shuffle_is_there():
    job = Scheduled("src(2) -pointwise,pipelined-> map(2) -all,blocking-> sink(2)")
    assert job.start() == ["src0 map0", "src1 map1"]
    assert job.finish("src0") == []
    assert job.finish("map0") == []
    assert job.finish("map1") == ["sink0", "sink1"]
    assert job.finish("map1") == []


@pytest.mark.parametrize("type", ["blocking", "blocking_persistent"])
def test_partitions_count_not_datasets(type):
    job = Scheduled(f"a(2) -pointwise,{type}-> b(2)")
    assert job.start() == ["a0", "a1"]
    assert job.finish("a0") == ["b0"]
    assert job.finish("a1") == ["b1"]


def test_a_group_that_the_consumer_produces_in_part_counts_only_what_others_produce():
    job = Scheduled("x(4) -pointwise,pipelined-> y(3) -pointwise,blocking-> z(2); x -pointwise,pipelined-> z")
    # z1 reads y1 of the other region and y2 of its own.
    assert job.start() == ["x0 x1 y0 y1 z0"]
    assert job.finish("y0") == []
    assert job.finish("y1") == ["x2 x3 y2 z1"]


def test_several_inputs_are_all_needed():
    job = Scheduled("a(1); b(2); a -all,blocking-> c(1); b -all,blocking-> c")
    assert job.start() == ["a0", "b0", "b1"]
    assert [job.finish(name) for name in ("b0", "a0", "b1")] == [[], [], ["c0"]]


@pytest.mark.parametrize("type", ["hybrid_full", "hybrid_selective", "pipelined_approximate"])
def test_what_can_be_pipelined_is_consumable_when_its_producers_are_scheduled(type):
    job = Scheduled(f"a(2) -all,{type}-> b(2) -all,{type}-> c(1)")
    assert job.start() == ["a0", "a1", "b0", "b1", "c0"]


def test_early_results_follow_a_blocking_one_when_that_is_complete():
    job = Scheduled("a(1); d(1); a -all,blocking-> b(1) -all,hybrid_full-> c(1); d -all,hybrid_full-> c")
    assert job.start() == ["a0", "d0"]
    assert job.finish("d0") == []
    assert job.finish("a0") == ["b0", "c0"]


def test_a_long_chain_of_early_results_is_followed_without_recursion():
    names = [f"v{index}" for index in range(1200)]
    text = f"{names[0]}(1)" + "".join(f" -all,hybrid_full-> {name}(1)" for name in names[1:])
    topology = ExecutionGraph(job_of(text))
    assert len(RegionScheduling(topology, Regions(topology)).start()) == 1200


def test_a_restart_tries_exactly_the_regions_that_were_reset():
    job = Scheduled("a(1) -all,blocking-> b(1)")
    job.start()
    assert job.finish("a0") == ["b0"]
    assert job.restart("b0") == ["b0"]
    assert job.restart("a0", "b0") == ["a0"]
    assert job.finish("a0") == ["b0"]


def test_added_regions_are_considered_at_the_next_event():
    job = Scheduled("a(2) -all,blocking-> b(-1) -all,blocking-> c(-1)", is_dynamic=True)
    job.grow("a", 2)
    assert job.start() == ["a0", "a1"]
    assert job.finish("a0") == []
    job.topology.finish(job.number("a1"))
    job.grow("b", 3)
    assert job.finish("a1") == ["b0", "b1", "b2"]


def test_the_headline_job_starts_its_sinks_in_one_event():
    topology = ExecutionGraph(job_of("source(10000) -all,blocking-> sink(10000)"))
    strategy = RegionScheduling(topology, Regions(topology))
    assert len(strategy.start()) == 10_000
    for subtask in range(10_000):
        topology.finish(subtask)
    assert strategy.on_finished(0).subtasks.tolist() == list(range(10_000, 20_000))
