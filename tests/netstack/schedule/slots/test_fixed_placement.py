"""Subtasks that are placed one by one: who shares a slot, and what cannot be placed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netstack.base.errors import ConfigError
from netstack.schedule.graph.job_graph import JobGraph, JobVertex, SlotSharingGroup
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.slot_sharing import FixedPlacement
from netstack.schedule.slots.slots import LoadBalanceMode

JOB = JobGraph("job", (JobVertex("a", 3), JobVertex("b", 2)))


def test_the_nth_of_each_vertex_on_a_taskmanager_share_its_nth_slot() -> None:
    groups = FixedPlacement({"a": ("x", "y", "x"), "b": ("y", "y")}).groups(JOB)
    assert [each.tolist() for each in groups.of_vertex] == [[0, 1, 2], [1, 3]]
    assert groups.taskmanagers == ("x", "y", "x", "y")
    assert groups.loads().tolist() == [1, 2, 1, 1]


@pytest.mark.parametrize(("slots", "groups"), [(1, [[0, 1, 0], [1, 1]]), (2, [[0, 1, 2], [1, 3]])])
def test_subtasks_of_a_vertex_share_slots_if_there_are_fewer(slots: int, groups: list[list[int]]) -> None:
    made = FixedPlacement({"a": ("x", "y", "x"), "b": ("y", "y")}, slots).groups(JOB)
    assert [each.tolist() for each in made.of_vertex] == groups
    assert made.loads().sum() == 5


@pytest.mark.parametrize(
    ("job", "places", "message"),
    [
        (JOB, {"a": ("x", "x", "x")}, "vertex 'b' has 2 subtasks, but 0 places"),
        (JOB, {"a": ("x",), "b": ("x", "x")}, "vertex 'a' has 3 subtasks, but 1 places"),
        (replace(JOB, is_dynamic=True), {}, "job 'job' cannot be placed"),
        (replace(JOB, slot_sharing_groups=(SlotSharingGroup("a"), SlotSharingGroup("b"))), {}, "cannot be placed"),
    ],
)
def test_what_cannot_be_placed(job: JobGraph, places: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FixedPlacement(places).groups(job)


def test_placed_tasks_are_not_balanced_as_well() -> None:
    with pytest.raises(ConfigError, match="mode `tasks` cannot spread them"):
        SchedulerSettings(placement=FixedPlacement({}), mode=LoadBalanceMode.TASKS)
