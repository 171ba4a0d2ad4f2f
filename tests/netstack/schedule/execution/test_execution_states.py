"""The tables of states: complete, and the same for one execution and for an array of them."""

from __future__ import annotations

import numpy as np
import pytest

from netstack.base.errors import LocalProtocolError
from netstack.schedule.execution import (
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    TERMINAL,
    ExecutionInput,
    ExecutionState,
    JobInput,
    JobState,
    JobStatus,
    allows,
    next_job_state,
    next_states,
    state_of,
)

MAIN_ROAD = [
    (ExecutionInput.SCHEDULE, ExecutionState.SCHEDULED),
    (ExecutionInput.DEPLOY, ExecutionState.DEPLOYING),
    (ExecutionInput.INITIALIZE, ExecutionState.INITIALIZING),
    (ExecutionInput.RUN, ExecutionState.RUNNING),
    (ExecutionInput.FINISH, ExecutionState.FINISHED),
]


def codes(*states: ExecutionState) -> np.ndarray:
    return np.array([state.code for state in states], np.uint8)


def test_the_main_road() -> None:
    state = ExecutionState.CREATED
    for what, following in MAIN_ROAD:
        state = EXECUTION_TRANSITIONS[state, what]
        assert state is following


@pytest.mark.parametrize("what", ExecutionInput)
def test_the_array_form_says_the_same(what: ExecutionInput) -> None:
    for state in ExecutionState:
        following = EXECUTION_TRANSITIONS.get((state, what))
        assert allows(codes(state), what)[0] == (following is not None)
        if following is not None:
            assert state_of(int(next_states(codes(state), what)[0])) is following


def test_only_created_is_scheduled_and_only_what_ended_is_reset() -> None:
    for state in ExecutionState:
        assert ((state, ExecutionInput.SCHEDULE) in EXECUTION_TRANSITIONS) == (state is ExecutionState.CREATED)
        assert ((state, ExecutionInput.RESET) in EXECUTION_TRANSITIONS) == (state in TERMINAL)


def test_whatever_has_not_ended_can_fail_and_ends_by_it() -> None:
    for state in set(ExecutionState) - TERMINAL:
        assert EXECUTION_TRANSITIONS[state, ExecutionInput.FAIL] is ExecutionState.FAILED


def test_an_illegal_input_names_state_and_input() -> None:
    with pytest.raises(LocalProtocolError, match=r"running .* 'schedule'"):
        next_states(codes(ExecutionState.CREATED, ExecutionState.RUNNING), ExecutionInput.SCHEDULE)
    with pytest.raises(LocalProtocolError, match=r"job .* finished .* 'start'"):
        next_job_state(JobState.FINISHED, JobInput.START)


def test_no_way_leads_out_of_the_end_of_a_job() -> None:
    assert not [state for state, _ in JOB_TRANSITIONS if state.is_terminal]
    reachable = {JobState.CREATED, *JOB_TRANSITIONS.values()}
    assert reachable == set(JobState)


def test_the_status_of_a_job() -> None:
    status = JobStatus()
    status.change(JobInput.START)
    assert status.is_in(JobState.RUNNING, JobState.FAILED)
    assert not status.is_in(JobState.FAILED)
