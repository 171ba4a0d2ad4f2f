"""States and attempts of many executions at once."""

from __future__ import annotations

import numpy as np
import pytest

from netstack.base.errors import LocalProtocolError
from netstack.schedule.execution import ExecutionInput, Executions, ExecutionState
from netstack.schedule.structures import index_array


def three() -> Executions:
    executions = Executions()
    executions.grow(3)
    return executions


def test_counts_follow_states() -> None:
    executions = three()
    executions.apply(index_array([0, 1]), ExecutionInput.SCHEDULE)
    executions.apply(index_array([1]), ExecutionInput.DEPLOY)
    assert [executions.state(subtask).value for subtask in range(3)] == ["scheduled", "deploying", "created"]
    assert executions.count(ExecutionState.SCHEDULED, ExecutionState.DEPLOYING) == 2
    assert executions.producing(index_array([0, 1, 2])).tolist() == [True, True, False]
    assert executions.on_taskmanager(index_array([0, 1, 2])).tolist() == [False, True, False]
    assert executions.in_state(index_array([0, 1, 2]), ExecutionState.DEPLOYING).tolist() == [1]
    assert executions.not_in_state(index_array([0, 1, 2]), ExecutionState.CREATED).tolist() == [0, 1]
    assert executions.allowed(index_array([0, 1, 2]), ExecutionInput.DEPLOY).tolist() == [0]


def test_an_illegal_input_changes_nothing() -> None:
    executions = three()
    executions.apply(index_array([0]), ExecutionInput.SCHEDULE)
    with pytest.raises(LocalProtocolError, match="scheduled"):
        executions.apply(index_array([1, 0]), ExecutionInput.SCHEDULE)
    assert executions.count(ExecutionState.CREATED) == 2


def test_a_reset_is_the_next_attempt() -> None:
    executions = three()
    every = index_array([0, 1, 2])
    executions.apply(every, ExecutionInput.CANCEL)
    assert executions.are_all_terminal
    assert not executions.are_all_finished
    executions.apply(index_array([1]), ExecutionInput.RESET)
    assert executions.attempts.tolist() == [0, 1, 0]
    assert executions.terminal(every).tolist() == [True, False, True]
    attempts = np.array([0, 0, 0], np.uint32)
    assert executions.current(every, attempts).tolist() == [True, False, True]
    assert executions.current(index_array([-1, 7, 2]), attempts).tolist() == [False, False, True]
