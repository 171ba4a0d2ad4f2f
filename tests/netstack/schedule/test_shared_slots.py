from dataclasses import replace

import pytest

from netstack import LocalProtocolError
from netstack.schedule.job_graph import UNKNOWN_PROFILE, JobGraph, JobVertex, ResourceProfile, SlotSharingGroup
from netstack.schedule.shared_slots import LogicalSlot, SharedSlots, Subtask
from netstack.schedule.slot_sharing import local_input_preferred
from netstack.schedule.slots import Location, PhysicalSlot, SlotRequest

SLOT = PhysicalSlot(Location("a"), 0)
FIRST, SECOND = Subtask(0, 0), Subtask(1, 0)


def shared(*profiles, declared=UNKNOWN_PROFILE):
    vertices = tuple(JobVertex(f"v{number}", 1, profile=profile) for number, profile in enumerate(profiles))
    graph = JobGraph("job", vertices, slot_sharing_groups=(SlotSharingGroup("default", declared),))
    return SharedSlots(graph, local_input_preferred(graph))


def test_two_subtasks_of_a_group_ask_for_one_slot_and_share_it():
    slots = shared(UNKNOWN_PROFILE, UNKNOWN_PROFILE)
    assert slots.allocate([FIRST, SECOND]) == ([], [SlotRequest(0, load=2)])
    assert slots.slot_of(FIRST) is None
    assert slots.fulfil(0, SLOT) == [LogicalSlot(FIRST, SLOT), LogicalSlot(SECOND, SLOT)]
    assert slots.slot_of(SECOND) == SLOT


def test_the_slot_is_released_once_with_the_last_share():
    slots = shared(UNKNOWN_PROFILE, UNKNOWN_PROFILE)
    slots.allocate([FIRST, SECOND])
    slots.fulfil(0, SLOT)
    assert slots.release(FIRST) is None
    assert slots.release(FIRST) is None
    assert slots.release(SECOND) == SLOT
    assert slots.release(SECOND) is None
    assert slots.allocate([FIRST])[1] == [SlotRequest(0, load=2)]


def test_losing_the_slot_fails_everybody_who_shares_it():
    slots = shared(UNKNOWN_PROFILE, UNKNOWN_PROFILE)
    slots.allocate([FIRST, SECOND])
    slots.fulfil(0, SLOT)
    assert slots.lose(0) == [FIRST, SECOND]
    assert slots.lose(0) == []
    assert slots.slot_of(FIRST) is None


def test_whoever_comes_later_shares_the_slot_that_is_there():
    slots = shared(UNKNOWN_PROFILE, UNKNOWN_PROFILE)
    slots.allocate([FIRST])
    slots.fulfil(0, SLOT)
    assert slots.allocate([SECOND]) == ([LogicalSlot(SECOND, SLOT)], [])


def test_who_stops_waiting_cancels_the_request_and_a_late_slot_is_not_wanted():
    slots = shared(UNKNOWN_PROFILE)
    slots.allocate([FIRST])
    assert slots.release(FIRST) == 0
    assert slots.fulfil(0, SLOT) == []


@pytest.mark.parametrize(
    ("declared", "profiles", "expected"),
    [
        (UNKNOWN_PROFILE, ("small", "small"), ResourceProfile("concrete", 1.0, 20)),
        (UNKNOWN_PROFILE, ("small", "unknown"), UNKNOWN_PROFILE),
        (ResourceProfile("concrete", 4.0, 99), ("small", "unknown"), ResourceProfile("concrete", 4.0, 99)),
    ],
)
def test_what_a_slot_must_offer(declared, profiles, expected):
    small = ResourceProfile("concrete", 0.5, 10)
    given = (small if name == "small" else UNKNOWN_PROFILE for name in profiles)
    _, requests = shared(*given, declared=declared).allocate([FIRST])
    assert requests == [SlotRequest(0, expected, 2)]


def test_preferences_go_with_the_request():
    _, requests = shared(UNKNOWN_PROFILE).allocate([FIRST], {0: (SLOT.location,)})
    assert requests[0].preferred == (SLOT.location,)


def test_mistakes_are_refused():
    slots = shared(UNKNOWN_PROFILE)
    slots.allocate([FIRST])
    with pytest.raises(LocalProtocolError, match="subtask 0 of 'v0' has a slot already"):
        slots.allocate([FIRST])
    slots.fulfil(0, SLOT)
    with pytest.raises(LocalProtocolError, match="group 0 has a slot already"):
        slots.fulfil(0, replace(SLOT, index=1))
