"""A restart waits for its tasks and for its delay, and for nothing that a newer one has taken over."""

from __future__ import annotations

import numpy as np

from netstack.schedule.execution import ExecutionVersions
from netstack.schedule.failover.restart import Restarts
from netstack.schedule.structures import index_array


def begun(*starts: tuple[list[int], list[bool]]) -> tuple[Restarts, ExecutionVersions, list[int]]:
    versions, restarts = ExecutionVersions(), Restarts()
    versions.grow(6)
    restarts.grow(6)
    timers = [
        restarts.begin(versions.bump(index_array(subtasks)), np.array(is_running, np.bool_))
        for subtasks, is_running in starts
    ]
    return restarts, versions, timers


def ready(restarts: Restarts) -> list[list[int]]:
    return [recorded.subtasks.tolist() for recorded in restarts.take_ready()]


def test_both_conditions_in_either_order() -> None:
    restarts, _, (timer,) = begun(([0, 1, 2], [True, True, False]))
    assert restarts.mark_due(timer)
    restarts.on_stopped(index_array([0]))
    assert ready(restarts) == []
    restarts.on_stopped(index_array([1, 5]))
    assert ready(restarts) == [[0, 1, 2]]
    assert not restarts.mark_due(timer)
    assert len(restarts) == 0
    restarts, _, (timer,) = begun(([0], [True]))
    restarts.on_stopped(index_array([0]))
    assert ready(restarts) == []
    restarts.mark_due(timer)
    assert ready(restarts) == [[0]]


def test_a_newer_restart_takes_over() -> None:
    restarts, versions, (old, new) = begun(([0, 1], [True, True]), ([1, 2], [True, False]))
    assert restarts.mark_due(old)
    restarts.on_stopped(index_array([0]))
    (recorded,) = restarts.take_ready()
    assert versions.current(recorded).tolist() == [0]
    restarts.mark_due(new)
    assert ready(restarts) == []
    restarts.on_stopped(index_array([1]))
    assert ready(restarts) == [[1, 2]]


def test_a_job_that_gives_up_forgets_them() -> None:
    restarts, _, (timer,) = begun(([0], [True]))
    restarts.clear()
    restarts.on_stopped(index_array([0]))
    assert not restarts.mark_due(timer)
    assert ready(restarts) == []
