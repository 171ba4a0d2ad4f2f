"""Work is cut into pieces, and what was superseded meanwhile is left out."""

from __future__ import annotations

from netstack.schedule.deployer import COSTS, WorkKind, WorkQueue
from netstack.schedule.execution import ExecutionVersions
from netstack.schedule.structures import NOTHING, index_array


def queue() -> tuple[WorkQueue, ExecutionVersions]:
    versions = ExecutionVersions()
    versions.grow(10)
    return WorkQueue(versions), versions


def test_pieces_fit_the_budget_and_always_make_progress() -> None:
    work, _ = queue()
    work.add(WorkKind.DEPLOY, NOTHING)
    assert not work
    work.add(WorkKind.DEPLOY, index_array(range(5)))
    work.add(WorkKind.RELEASE, index_array([7]))
    cost = COSTS[WorkKind.DEPLOY]
    kind, subtasks, left = work.take(2 * cost + 1)
    assert (kind, subtasks.tolist(), left) == (WorkKind.DEPLOY, [0, 1], 1)
    _, subtasks, left = work.take(left)
    assert (subtasks.tolist(), left) == ([2], 1 - cost)
    _, subtasks, left = work.take(1000)
    assert (subtasks.tolist(), left) == ([3, 4], 1000 - 2 * cost)
    assert work.take(1000)[0] is WorkKind.RELEASE
    assert len(work) == 0


def test_superseded_subtasks_are_left_out_but_their_slots_are_returned() -> None:
    work, versions = queue()
    work.add(WorkKind.ALLOCATE, index_array([0, 1, 2]))
    work.add(WorkKind.RELEASE, index_array([0, 1]))
    versions.bump(index_array([1]))
    assert work.take(1000)[1].tolist() == [0, 2]
    assert work.take(1000)[1].tolist() == [0, 1]
