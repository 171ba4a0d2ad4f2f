import pytest
from job_shapes import job_of

from netstack.schedule.strategies.strategy import HybridConsumption, VertexwiseScheduling
from netstack.schedule.structures import index_array
from netstack.schedule.topology.execution_graph import ExecutionGraph


def scheduled(text, hybrid=HybridConsumption.UNFINISHED_PRODUCERS, **options):
    topology = ExecutionGraph(job_of(text, **options))
    return topology, VertexwiseScheduling(topology, hybrid)


def finish(topology, strategy, *subtasks):
    for subtask in subtasks:
        topology.finish(subtask)
    return strategy.on_finished(subtasks[-1]).tolist()


def test_each_subtask_follows_its_own_input():
    topology, strategy = scheduled("src(2) -pointwise,blocking-> map(2) -all,blocking-> sink(2)")
    assert strategy.start().tolist() == [[0], [1]]
    assert finish(topology, strategy, 0) == [[2]]
    assert finish(topology, strategy, 1) == [[3]]
    assert finish(topology, strategy, 2) == []
    assert finish(topology, strategy, 3) == [[4], [5]]
    assert finish(topology, strategy, 3) == []


def test_pipelined_consumers_come_with_their_producers():
    _, strategy = scheduled("a(2) -pointwise,pipelined-> b(2) -all,blocking-> c(1)")
    assert strategy.start().tolist() == [[0], [1], [2], [3]]


def test_consumers_added_while_producers_run_are_scheduled_later():
    topology, strategy = scheduled("a(2) -all,blocking-> b(-1)", is_dynamic=True)
    topology.initialise(0)
    strategy.extend()
    assert strategy.start().tolist() == [[0], [1]]
    topology.decide(1, 2)
    topology.initialise(1)
    strategy.extend()
    assert finish(topology, strategy, 0) == []
    assert finish(topology, strategy, 1) == [[2], [3]]


def test_consumers_added_after_their_producers_finished_are_tried_at_the_next_event():
    topology, strategy = scheduled("a(2) -all,blocking-> b(-1)", is_dynamic=True)
    topology.initialise(0)
    strategy.extend()
    strategy.start()
    topology.finish(0)
    topology.finish(1)
    topology.decide(1, 2)
    topology.initialise(1)
    strategy.extend()
    assert strategy.on_finished(1).tolist() == [[2], [3]]


def test_hybrid_results_beside_their_producers():
    _, strategy = scheduled("a(2) -all,hybrid_full-> b(2)")
    assert strategy.start().tolist() == [[0], [1], [2], [3]]


def test_hybrid_results_of_finished_producers_only():
    topology, strategy = scheduled("a(2) -all,hybrid_full-> b(2)", HybridConsumption.ONLY_FINISHED_PRODUCERS)
    assert strategy.start().tolist() == [[0], [1]]
    assert finish(topology, strategy, 1) == [[2], [3]]
    assert finish(topology, strategy, 0) == []


def test_hybrid_results_as_blocking_ones():
    topology, strategy = scheduled("a(2) -all,hybrid_selective-> b(2)", HybridConsumption.ALL_PRODUCERS_FINISHED)
    assert strategy.start().tolist() == [[0], [1]]
    assert finish(topology, strategy, 1) == []
    assert finish(topology, strategy, 0) == [[2], [3]]


@pytest.mark.parametrize("hybrid", HybridConsumption)
def test_downstream_tasks_of_a_wide_job_come_with_one_event(hybrid):
    topology, strategy = scheduled("a(400) -all,hybrid_full-> b(400)", hybrid)
    started = len(strategy.start())
    for subtask in range(400):
        topology.finish(subtask)
    assert started + len(strategy.on_finished(0)) == 800


def test_a_restart_tries_exactly_what_was_reset():
    topology, strategy = scheduled("a(1) -all,blocking-> b(2)")
    strategy.start()
    assert finish(topology, strategy, 0) == [[1], [2]]
    assert strategy.restart(index_array([2])).tolist() == [[2]]
    topology.reset(index_array([0, 1, 2]))
    assert strategy.restart(index_array([2, 0, 1])).tolist() == [[0]]
    assert finish(topology, strategy, 0) == [[1], [2]]
