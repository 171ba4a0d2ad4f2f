import pytest

from netstack.schedule.graph.job_graph import ResourceProfile
from netstack.schedule.slots.slot_matching import FreeSlots, choose_request, match_balanced
from netstack.schedule.slots.slots import LoadBalanceMode, Location, PhysicalSlot, SlotRequest

SMALL = ResourceProfile("concrete", 1.0, 1 << 30)
BIG = ResourceProfile("concrete", 2.0, 2 << 30)
A, B, C = (Location(name, host) for name, host in (("a", "h1"), ("b", "h1"), ("c", "h2")))


def slots(*counts, profile=None):
    given = {} if profile is None else {"profile": profile}
    return [
        PhysicalSlot(Location(f"tm{number}"), index, **given)
        for number, count in enumerate(counts)
        for index in range(count)
    ]


def requests(*loads):
    return [SlotRequest(group, load=load) for group, load in enumerate(loads)]


def placed(matches):
    return {match.request.group: (match.slot.location.taskmanager, match.slot.index) for match in matches}


def tasks(matches):
    total = {}
    for match in matches:
        name = match.slot.location.taskmanager
        total[name] = total.get(name, 0) + match.request.load
    return total


@pytest.mark.parametrize("mode", [LoadBalanceMode.NONE, LoadBalanceMode.SLOTS])
def test_a_preferred_taskmanager_comes_before_its_host_and_that_before_the_rest(mode):
    free = FreeSlots([PhysicalSlot(C, 0), PhysicalSlot(B, 0), PhysicalSlot(A, 0)])
    request = SlotRequest(0, preferred=(A,))
    order = []
    for _ in range(3):
        slot = free.choose(request, mode)
        order.append(slot.location)
        free.remove(slot)
    assert order == [A, B, C]
    assert free.choose(request, mode) is None


def test_ten_on_the_same_host_weigh_as_much_as_one_on_the_taskmanager():
    # Ten preferences for b, which is full, give a (same host) 10; one for c gives 10 and 1 for the host.
    free = FreeSlots([PhysicalSlot(A, 0), PhysicalSlot(C, 0)])
    request = SlotRequest(0, preferred=(*[B] * 10, C))
    assert free.choose(request, LoadBalanceMode.NONE) == PhysicalSlot(C, 0)
    request = SlotRequest(0, preferred=(*[B] * 12, C))
    assert free.choose(request, LoadBalanceMode.NONE) == PhysicalSlot(A, 0)


def test_without_preferences_none_takes_the_first_and_slots_the_least_used():
    free = FreeSlots(slots(2, 2))
    free.set_load("tm0", 0.5)
    assert free.choose(SlotRequest(0), LoadBalanceMode.SLOTS).location.taskmanager == "tm1"
    assert FreeSlots(slots(2, 2)).choose(SlotRequest(0), LoadBalanceMode.NONE) == slots(1)[0]


def test_of_equally_near_taskmanagers_slots_takes_the_less_used():
    free = FreeSlots([PhysicalSlot(A, 1), PhysicalSlot(B, 0)])
    free.set_load("a", 0.5)
    request = SlotRequest(0, preferred=(A, B))
    assert free.choose(request, LoadBalanceMode.SLOTS) == PhysicalSlot(B, 0)
    assert free.choose(request, LoadBalanceMode.NONE) == PhysicalSlot(A, 1)


def test_a_slot_of_another_profile_is_no_choice_however_near():
    free = FreeSlots([PhysicalSlot(A, 0, BIG), PhysicalSlot(C, 0, SMALL)])
    assert free.choose(SlotRequest(0, SMALL, preferred=(A,)), LoadBalanceMode.NONE).location == C


def test_a_removed_slot_is_gone_and_one_that_comes_back_is_found():
    given = slots(3)
    free = FreeSlots(given)
    assert free.remove(given[1])
    assert not free.remove(given[1])
    assert list(free) == [given[0], given[2]]
    assert free.remove(given[0])
    assert free.remove(given[2])
    assert len(free) == 0
    free.add(given[2])
    assert free.choose(SlotRequest(0), LoadBalanceMode.NONE) == given[2]


def test_a_new_slot_goes_to_the_first_request_that_it_serves():
    pending = [SlotRequest(0, BIG), SlotRequest(1, SMALL), SlotRequest(2)]
    assert choose_request(PhysicalSlot(A, 0, SMALL), pending).group == 1
    assert choose_request(PhysicalSlot(A, 0), pending).group == 0
    assert choose_request(PhysicalSlot(A, 0, SMALL), pending[:1]) is None


def test_six_and_three_on_three_taskmanagers_give_each_three_tasks():
    matches = match_balanced(requests(2, 2, 2, 1, 1, 1), slots(2, 2, 2))
    assert tasks(matches) == {"tm0": 3, "tm1": 3, "tm2": 3}
    assert placed(matches) == {
        0: ("tm0", 0), 1: ("tm1", 0), 2: ("tm2", 0), 3: ("tm0", 1), 4: ("tm1", 1), 5: ("tm2", 1),
    }  # fmt: skip


def test_four_four_three_three_on_two_taskmanagers_give_each_seven():
    assert tasks(match_balanced(requests(4, 4, 3, 3), slots(2, 2))) == {"tm0": 7, "tm1": 7}


def test_tasks_that_are_there_already_count():
    matches = match_balanced(requests(1, 1), slots(2, 2), {"tm0": 2, "elsewhere": 9})
    assert tasks(matches) == {"tm1": 2}


def test_a_big_request_is_not_stranded_by_an_unknown_one():
    big_on_empty, small_on_full = PhysicalSlot(A, 0, BIG), PhysicalSlot(B, 0, SMALL)
    wanted = [SlotRequest(0, load=100), SlotRequest(1, BIG, load=1)]
    matches = match_balanced(wanted, [big_on_empty, small_on_full], {"b": 9})
    assert {match.request.group: match.slot for match in matches} == {0: small_on_full, 1: big_on_empty}


def test_no_slot_is_exactly_small_so_nobody_gets_any():
    wanted = [SlotRequest(0, SMALL), SlotRequest(1), SlotRequest(2, BIG)]
    assert match_balanced(wanted, slots(3, profile=BIG)) == []


def test_too_few_slots_serve_nobody():
    assert match_balanced(requests(1, 1, 1), slots(2)) == []


def test_loads_that_change_for_ever_take_no_memory():
    free = FreeSlots(slots(1, 1))
    for turn in range(1000):
        free.set_load("tm0", turn % 7)
        free.set_load("tm1", turn % 5)
        assert free.choose(SlotRequest(0), LoadBalanceMode.SLOTS).location.taskmanager == (
            "tm0" if turn % 7 <= turn % 5 else "tm1"
        )
    assert sum(map(len, free._least.values())) < 30
