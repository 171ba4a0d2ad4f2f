"""Bulks get their slots all together, or wait."""

from __future__ import annotations

import pytest

from netstack.base.errors import LocalProtocolError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_graph import (
    ANY_PROFILE,
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    ResourceProfile,
)
from netstack.schedule.slots.slot_allocation import SlotAllocation
from netstack.schedule.slots.slot_pool import SlotPool, SlotPoolSettings
from netstack.schedule.slots.slot_sharing import local_input_preferred
from netstack.schedule.slots.slots import LoadBalanceMode, Location, PhysicalSlot
from netstack.schedule.structures import Batches, index_array, one_batch, single_batches
from netstack.schedule.topology.execution_graph import ExecutionGraph

JOB = JobGraph(
    "job",
    (JobVertex("source", 2, is_source=True), JobVertex("sink", 2)),
    (Dataset("words", 0, ResultPartitionType.PIPELINED_BOUNDED),),
    (JobEdge(0, 1, DistributionPattern.ALL_TO_ALL),),
)
SETTINGS = SlotPoolSettings(idle_timeout_s=50.0, request_timeout_s=300.0)


def slots(taskmanager: str, *numbers: int) -> list[PhysicalSlot]:
    return [PhysicalSlot(Location(taskmanager), number) for number in numbers]


def allocation(
    bulks: Batches, mode: LoadBalanceMode = LoadBalanceMode.NONE, *, waits_for_running: bool = False
) -> SlotAllocation:
    """Subtasks 0 and 2 share a slot, and so do 1 and 3."""
    pool = SlotPool(mode, SETTINGS)
    made = SlotAllocation(ExecutionGraph(JOB), local_input_preferred(JOB), pool, waits_for_running=waits_for_running)
    made.open(bulks)
    return made


def complete(made: SlotAllocation) -> list[int]:
    taken: list[int] = made.take_complete().tolist()
    return taken


EVERY = index_array([0, 1, 2, 3])


def test_a_bulk_is_complete_when_its_last_slot_is_there() -> None:
    made = allocation(one_batch(EVERY))
    made.request(EVERY, 0.0)
    assert made.missing == 2
    made.offer("a", slots("a", 0), 1.0)
    assert (complete(made), made.missing) == ([], 1)
    made.offer("b", slots("b", 0), 2.0)
    assert complete(made) == [0, 1, 2, 3]
    assert complete(made) == []
    where = made.slots_of(EVERY)
    assert where[0] == where[2] != where[1] == where[3]


def test_requests_may_come_in_parts() -> None:
    made = allocation(one_batch(EVERY))
    made.offer("a", slots("a", 0, 1), 0.0)
    made.request(EVERY[:3], 0.0)
    assert complete(made) == []
    made.request(EVERY[3:], 0.0)
    assert complete(made) == [0, 1, 2, 3]


def test_bulks_of_one_group_share_its_slot() -> None:
    made = allocation(single_batches(EVERY))
    made.request(EVERY, 0.0)
    made.offer("a", slots("a", 0), 0.0)
    assert complete(made) == [0, 2]


def test_who_is_withdrawn_holds_up_nobody() -> None:
    made = allocation(one_batch(EVERY))
    made.request(EVERY, 0.0)
    made.offer("a", slots("a", 0), 0.0)
    made.withdraw(index_array([1, 3]))
    assert complete(made) == [0, 2]
    made.release(index_array([1, 3]), 0.0)
    assert made.missing == 0


def test_a_withdrawn_bulk_asks_for_nothing() -> None:
    made = allocation(one_batch(EVERY))
    made.withdraw(EVERY)
    made.request(EVERY, 0.0)
    assert (made.missing, complete(made)) == (0, [])


def test_slots_come_back_with_the_last_share() -> None:
    made = allocation(one_batch(EVERY))
    made.request(EVERY, 0.0)
    made.offer("a", slots("a", 0, 1), 0.0)
    complete(made)
    made.release(index_array([0]), 1.0)
    assert made.idle(100.0) == []
    made.release(index_array([2]), 1.0)
    assert [slot.index for slot in made.idle(100.0)] == [0]
    # Given back, it may be offered again; the other one is there already.
    made.offer("a", slots("a", 0, 1), 100.0)
    made.open(one_batch(index_array([0])))
    made.request(index_array([0]), 100.0)
    assert complete(made) == [0]
    assert made.next_deadline_s() is None


def test_a_lost_taskmanager_takes_its_subtasks_with_it() -> None:
    made = allocation(one_batch(EVERY))
    made.offer("a", slots("a", 0), 0.0)
    made.request(EVERY, 0.0)
    assert made.lose_taskmanager("a")[0].tolist() == [0, 2]
    assert made.lose_taskmanager("a")[0].tolist() == []
    with pytest.raises(LocalProtocolError, match="0 of 'source' has no slot"):
        made.slots_of(EVERY)
    assert complete(made) == []
    made.offer("b", slots("b", 0), 0.0)
    assert complete(made) == [1, 3]


def test_who_waited_too_long_is_told() -> None:
    made = allocation(one_batch(EVERY))
    made.offer("a", slots("a", 0), 0.0)
    made.request(EVERY, 0.0)
    assert made.timed_out(299.0).tolist() == []
    assert made.next_deadline_s() == 300.0
    assert made.timed_out(300.0).tolist() == [1, 3]
    assert complete(made) == [0, 2]


def test_bulks_that_fit_one_by_one_may_wait_for_each_other() -> None:
    made = allocation(single_batches(EVERY), waits_for_running=True)
    made.offer("a", slots("a", 0), 0.0)
    made.request(EVERY, 0.0)
    assert complete(made) == [0, 2]
    for now_s in (200.0, 400.0, 600.0, 10_000.0):
        assert made.timed_out(now_s).tolist() == []
    made.lose_taskmanager("a")
    assert made.timed_out(10_299.0).tolist() == []
    assert made.timed_out(10_300.0).tolist() == [1, 3]


@pytest.mark.parametrize("profile", [ANY_PROFILE, ResourceProfile("concrete", 1.0, 1)])
def test_a_bulk_that_never_fits_does_not_wait_for_itself(profile: ResourceProfile) -> None:
    made = allocation(one_batch(EVERY), waits_for_running=True)
    made.offer("a", [PhysicalSlot(Location("a"), 0, profile)], 0.0)
    made.request(EVERY, 0.0)
    assert made.timed_out(299.0).tolist() == []
    assert made.timed_out(300.0).tolist() == [1, 3]


def test_slots_of_several_profiles_are_counted_one_by_one() -> None:
    made = allocation(one_batch(EVERY), waits_for_running=True)
    for index, profile in enumerate((ANY_PROFILE, ResourceProfile("concrete", 1.0, 1))):
        made.offer("a", [PhysicalSlot(Location("a"), index, profile)], 0.0)
    made.request(EVERY[:1], 0.0)
    made.request(EVERY[2:3], 0.0)
    assert made.missing == 0
    assert made.timed_out(400.0).tolist() == []


def test_what_is_matched_together_waits_together() -> None:
    for count, late in ((1, [0, 1, 2, 3]), (2, [])):
        made = allocation(single_batches(EVERY), LoadBalanceMode.TASKS, waits_for_running=True)
        made.offer("a", slots("a", *range(count)), 0.0)
        made.request(EVERY, 0.0)
        assert made.timed_out(400.0).tolist() == late
