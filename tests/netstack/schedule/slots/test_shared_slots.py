from dataclasses import replace

import pytest

from netstack import LocalProtocolError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_graph import (
    UNDECIDED,
    UNKNOWN_PROFILE,
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    ResourceProfile,
    SlotSharingGroup,
)
from netstack.schedule.slots.shared_slots import SharedSlots
from netstack.schedule.slots.slot_sharing import LocalInputPreferred, local_input_preferred
from netstack.schedule.slots.slots import Location, PhysicalSlot, SlotMatch, SlotRequest
from netstack.schedule.structures import index_array
from netstack.schedule.topology.execution_graph import ExecutionGraph

SLOT = PhysicalSlot(Location("a"), 0)
FIRST, SECOND, BOTH = index_array([0]), index_array([1]), index_array([0, 1])


def allocate(slots, subtasks):
    given, requests = slots.allocate(index_array(subtasks))
    return given.tolist(), requests


def fulfil(slots, group, slot=SLOT):
    given, unwanted = slots.fulfil([SlotMatch(SlotRequest(group), slot)])
    return given.tolist(), unwanted


def lose(slots, *groups):
    """Who had a share."""
    had = slots.sharing(index_array(groups)).tolist()
    slots.lose(index_array(groups))
    return had


def shared(*profiles, declared=UNKNOWN_PROFILE):
    vertices = tuple(JobVertex(f"v{number}", 1, profile=profile) for number, profile in enumerate(profiles))
    graph = JobGraph("job", vertices, slot_sharing_groups=(SlotSharingGroup("default", declared),))
    return SharedSlots(ExecutionGraph(graph), local_input_preferred(graph))


def test_two_subtasks_of_a_group_ask_for_one_slot_and_share_it():
    slots = shared(UNKNOWN_PROFILE, UNKNOWN_PROFILE)
    assert allocate(slots, BOTH) == ([], [SlotRequest(0, load=2)])
    assert slots.have_slots(BOTH).tolist() == [False, False]
    assert fulfil(slots, 0) == ([0, 1], [])
    assert slots.slots_of(BOTH) == [SLOT, SLOT]


def test_the_slot_is_released_once_with_the_last_share():
    slots = shared(UNKNOWN_PROFILE, UNKNOWN_PROFILE)
    allocate(slots, BOTH)
    fulfil(slots, 0)
    assert slots.release(FIRST) == ([], [])
    assert slots.release(FIRST) == ([], [])
    assert slots.release(BOTH) == ([SLOT], [])
    assert slots.release(SECOND) == ([], [])
    assert allocate(slots, FIRST)[1] == [SlotRequest(0, load=2, preferred=(SLOT.location,))]


def test_losing_the_slot_fails_everybody_who_shares_it():
    slots = shared(UNKNOWN_PROFILE, UNKNOWN_PROFILE)
    allocate(slots, BOTH)
    fulfil(slots, 0)
    assert lose(slots, 0) == [0, 1]
    assert lose(slots, 0) == []
    with pytest.raises(LocalProtocolError, match="subtask 0 of 'v0' has no slot"):
        slots.slots_of(FIRST)


def test_whoever_comes_later_shares_the_slot_that_is_there():
    slots = shared(UNKNOWN_PROFILE, UNKNOWN_PROFILE)
    slots.allocate(FIRST)
    fulfil(slots, 0)
    assert allocate(slots, SECOND) == ([1], [])


def test_who_stops_waiting_cancels_the_request_and_a_late_slot_is_not_wanted():
    slots = shared(UNKNOWN_PROFILE)
    slots.allocate(FIRST)
    assert slots.release(FIRST) == ([], [0])
    assert fulfil(slots, 0) == ([], [SLOT])


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
    _, requests = shared(*given, declared=declared).allocate(FIRST)
    assert requests == [SlotRequest(0, expected, 2)]


def test_a_group_would_like_to_be_where_it_was():
    slots = shared(UNKNOWN_PROFILE, UNKNOWN_PROFILE)
    allocate(slots, BOTH)
    fulfil(slots, 0)
    lose(slots, 0)
    _, requests = allocate(slots, BOTH)
    assert requests[0].preferred == (SLOT.location,) * 2


def test_a_group_would_like_to_be_where_its_inputs_are():
    graph = JobGraph(
        "job",
        (JobVertex("source", 2), JobVertex("sink", 2, slot_sharing_group=1)),
        (Dataset("d", 0, ResultPartitionType.BLOCKING),),
        (JobEdge(0, 1, DistributionPattern.POINTWISE),),
        (SlotSharingGroup("one"), SlotSharingGroup("other")),
    )
    slots = SharedSlots(ExecutionGraph(graph), local_input_preferred(graph))
    allocate(slots, BOTH)
    for group in (0, 1):
        fulfil(slots, group, PhysicalSlot(Location(f"tm{group}"), 0))
    slots.release(FIRST)  # it has finished; its partition is there
    _, requests = allocate(slots, [2, 3])
    assert [request.preferred for request in requests] == [(Location("tm0"),), (Location("tm1"),)]


def test_producers_that_wait_themselves_do_not_count():
    graph = JobGraph(
        "job",
        (JobVertex("source", 1), JobVertex("sink", 1, slot_sharing_group=1)),
        (Dataset("d", 0, ResultPartitionType.PIPELINED),),
        (JobEdge(0, 1, DistributionPattern.POINTWISE),),
        (SlotSharingGroup("one"), SlotSharingGroup("other")),
    )
    slots = SharedSlots(ExecutionGraph(graph), local_input_preferred(graph))
    slots.allocate(FIRST)
    fulfil(slots, 0)
    lose(slots, 0)
    _, requests = allocate(slots, BOTH)
    assert [request.preferred for request in requests] == [(SLOT.location,), ()]


def test_a_dynamic_job_gets_more_groups():
    graph = JobGraph(
        "job",
        (JobVertex("a", 1), JobVertex("b", UNDECIDED, slot_sharing_group=1)),
        (),
        (),
        (SlotSharingGroup("one"), SlotSharingGroup("other")),
        is_dynamic=True,
    )
    strategy = LocalInputPreferred(graph)
    strategy.add(0, 1)
    topology = ExecutionGraph(graph)
    topology.initialise(0)
    slots = SharedSlots(topology, strategy.groups())
    slots.allocate(FIRST)
    strategy.add(1, 2)
    topology.decide(1, 2)
    topology.initialise(1)
    slots.extend(strategy.groups())
    assert [request.group for request in allocate(slots, [2, 1])[1]] == [2, 1]


def test_mistakes_are_refused():
    slots = shared(UNKNOWN_PROFILE)
    slots.allocate(FIRST)
    with pytest.raises(LocalProtocolError, match="subtask 0 of 'v0' already has a slot"):
        slots.allocate(FIRST)
    fulfil(slots, 0)
    with pytest.raises(LocalProtocolError, match="group 0 already"):
        slots.fulfil([SlotMatch(SlotRequest(0), replace(SLOT, index=1))])
