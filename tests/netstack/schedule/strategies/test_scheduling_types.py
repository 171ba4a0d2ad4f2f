import pytest
from job_shapes import job_of

from netstack import ConfigError
from netstack.schedule.strategies.scheduling_types import (
    EagerScheduling,
    InputConstraint,
    LazyScheduling,
    SchedulingType,
)
from netstack.schedule.structures import index_array
from netstack.schedule.topology.execution_graph import ExecutionGraph

FIRST, COMPLETE = SchedulingType.NEXT_STAGE_ON_FIRST_OUTPUT, SchedulingType.NEXT_STAGE_ON_COMPLETE_OUTPUT


def lazy(text, type=FIRST, constraint=InputConstraint.ANY):
    topology = ExecutionGraph(job_of(text))
    return LazyScheduling(topology, type, constraint)


def test_eager_is_everything_in_one_call():
    strategy = EagerScheduling(ExecutionGraph(job_of("a(2) -all,pipelined-> b(2)")))
    assert strategy.start().tolist() == [[0, 1, 2, 3]]
    assert strategy.on_finished(0).tolist() == []
    assert strategy.restart(index_array([3, 1])).tolist() == [[1, 3]]


JOB = "v1(2); v2(2); v1 -pointwise,pipelined-> v3(2); v2 -all,blocking-> v3"


def test_any_input_is_enough():
    strategy = lazy(JOB)
    assert strategy.start().tolist() == [[0], [1], [2], [3]]
    assert strategy.on_first_output(0).tolist() == [[4]]
    assert strategy.on_first_output(0).tolist() == []
    assert strategy.on_finished(2).tolist() == []
    assert strategy.on_finished(3).tolist() == [[5]]


def test_all_inputs_are_needed():
    strategy = lazy(JOB, constraint=InputConstraint.ALL)
    assert strategy.start().tolist() == [[0], [1], [2], [3]]
    assert strategy.on_first_output(0).tolist() == []
    assert strategy.on_finished(2).tolist() == []
    assert strategy.on_finished(3).tolist() == [[4]]
    assert strategy.on_first_output(1).tolist() == [[5]]


@pytest.mark.parametrize("constraint", InputConstraint)
def test_after_a_restart_nothing_is_consumable(constraint):
    strategy = lazy(JOB, constraint=constraint)
    strategy.start()
    strategy.on_first_output(0)
    strategy.on_finished(2)
    strategy.on_finished(3)
    assert strategy.restart(index_array(range(6))).tolist() == [[0], [1], [2], [3]]
    assert strategy.on_finished(2).tolist() == []
    assert strategy.on_first_output(0).tolist() == ([[4]] if constraint is InputConstraint.ANY else [])


def test_any_partition_makes_an_input_of_many_consumable():
    strategy = lazy("a(3) -all,pipelined-> b(2)")
    strategy.start()
    assert strategy.on_first_output(1).tolist() == [[3], [4]]
    assert strategy.on_first_output(0).tolist() == []


def test_a_blocking_partition_waits_for_its_whole_dataset():
    strategy = lazy("a(2) -pointwise,blocking-> b(2)")
    strategy.start()
    assert strategy.on_first_output(0).tolist() == []
    assert strategy.on_finished(0).tolist() == []
    assert strategy.on_finished(1).tolist() == [[2], [3]]


def test_complete_output_counts_for_pipelined_results_too():
    strategy = lazy("a(2) -pointwise,pipelined-> b(2)", COMPLETE)
    strategy.start()
    assert strategy.on_first_output(0).tolist() == []
    assert strategy.on_finished(0).tolist() == []
    assert strategy.on_finished(1).tolist() == [[2], [3]]


def test_a_producer_that_ends_without_a_first_output_counts_as_having_had_it():
    strategy = lazy("a(1) -all,pipelined-> b(1)")
    strategy.start()
    assert strategy.on_finished(0).tolist() == [[1]]


def test_all_at_once_is_not_lazy():
    with pytest.raises(ConfigError, match="use EagerScheduling"):
        lazy("a(1)", SchedulingType.ALL_AT_ONCE)
