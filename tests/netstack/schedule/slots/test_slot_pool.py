import pytest

from netstack import LocalProtocolError
from netstack.schedule.graph.job_graph import ResourceProfile
from netstack.schedule.slots.slot_pool import SlotPool, SlotPoolSettings
from netstack.schedule.slots.slots import LoadBalanceMode, Location, PhysicalSlot, SlotRequest

SMALL = ResourceProfile("concrete", 1.0, 1 << 30)
BIG = ResourceProfile("concrete", 2.0, 2 << 30)


def slots(*counts, first=0):
    return [
        PhysicalSlot(Location(f"tm{first + number}"), index)
        for number, count in enumerate(counts)
        for index in range(count)
    ]


def requests(*loads):
    return [SlotRequest(group, load=load) for group, load in enumerate(loads)]


def groups(matches):
    return [match.request.group for match in matches]


def taskmanagers(matches):
    return [match.slot.location.taskmanager for match in matches]


def test_slots_that_are_there_are_given_at_once():
    pool = SlotPool()
    assert pool.offer(slots(2, 2), 0.0) == []
    matches = pool.request(requests(1, 1, 1), 1.0)
    assert taskmanagers(matches) == ["tm0", "tm0", "tm1"]
    assert pool.free == 1


def test_slots_that_come_later_serve_requests_in_order():
    pool = SlotPool()
    assert pool.request(requests(1, 1, 1), 0.0) == []
    assert groups(pool.offer(slots(2), 1.0)) == [0, 1]
    assert [request.group for request in pool.pending] == [2]
    assert groups(pool.offer(slots(2, first=1), 2.0)) == [2]
    assert pool.free == 1


def test_mode_slots_spreads_over_taskmanagers():
    pool = SlotPool(LoadBalanceMode.SLOTS)
    pool.offer(slots(2, 4), 0.0)
    assert taskmanagers(pool.request(requests(1, 1, 1, 1), 0.0)) == ["tm0", "tm1", "tm1", "tm0"]


def test_balancing_waits_until_requests_are_stable_and_slots_are_enough():
    pool = SlotPool(LoadBalanceMode.TASKS)
    assert pool.offer(slots(2, 2), 0.0) == []
    assert pool.request(requests(2, 2, 1), 1.0) == []
    assert pool.advance(1.019) == []
    assert pool.next_deadline_s() == pytest.approx(1.02)
    assert pool.request([SlotRequest(3)], 1.019) == []
    assert pool.advance(1.03) == []
    matches = pool.advance(1.04)
    assert len(matches) == 4
    assert sorted(taskmanagers(matches)) == ["tm0", "tm0", "tm1", "tm1"]


def test_five_requests_and_four_slots_fulfil_nothing_and_the_fifth_slot_all():
    pool = SlotPool(LoadBalanceMode.TASKS)
    pool.request(requests(1, 1, 1, 1, 1), 0.0)
    assert pool.offer(slots(2, 2), 1.0) == []
    assert pool.free == 4
    assert len(pool.offer(slots(1, first=2), 2.0)) == 5
    assert pool.pending == ()


def test_balancing_counts_tasks_of_slots_that_are_held():
    pool = SlotPool(LoadBalanceMode.TASKS)
    pool.offer(slots(2), 0.0)
    pool.request([SlotRequest(0, load=3)], 0.0)
    assert taskmanagers(pool.advance(1.0)) == ["tm0"]
    pool.offer(slots(2, first=1), 1.0)
    pool.request([SlotRequest(1), SlotRequest(2)], 1.0)
    assert taskmanagers(pool.advance(2.0)) == ["tm1", "tm1"]


def test_a_slot_lost_while_waiting_only_lowers_the_count():
    pool = SlotPool(LoadBalanceMode.TASKS)
    pool.offer(slots(2), 0.0)
    pool.request(requests(1, 1), 0.0)
    assert pool.lose(slots(2)[1:]) == []
    assert pool.advance(1.0) == []
    assert len(pool.offer(slots(1, first=1), 2.0)) == 2


def test_a_slot_lost_after_it_was_given_fails_its_group():
    pool = SlotPool()
    pool.offer(slots(2, 1), 0.0)
    pool.request(requests(1, 1, 1), 0.0)
    assert [request.group for request in pool.lose(slots(2))] == [0, 1]
    assert pool.lose(slots(2)) == []
    assert pool.free == 0


def test_late_slots_stay_free_and_are_given_back_after_a_while():
    pool = SlotPool(settings=SlotPoolSettings(idle_timeout_s=50.0))
    pool.request(requests(1), 0.0)
    assert groups(pool.offer(slots(2), 1.0)) == [0]
    assert pool.next_deadline_s() == 51.0
    assert pool.idle(50.9) == []
    assert pool.idle(51.0) == slots(2)[1:]
    assert pool.free == 0


def test_a_released_slot_serves_who_waits():
    pool = SlotPool()
    pool.offer(slots(1), 0.0)
    pool.request(requests(1, 1), 0.0)
    assert groups(pool.release(slots(1)[0], 1.0)) == [1]
    with pytest.raises(LocalProtocolError, match="slot 0 of tm9 is not held"):
        pool.release(slots(1, first=9)[0], 1.0)


def test_a_request_that_waits_too_long_is_withdrawn():
    pool = SlotPool(settings=SlotPoolSettings(request_timeout_s=300.0))
    pool.request(requests(1, 1), 0.0)
    pool.cancel([1], 1.0)
    assert pool.next_deadline_s() == 300.0
    assert pool.timed_out(299.0) == []
    assert [request.group for request in pool.timed_out(300.0)] == [0]
    assert pool.pending == ()
    assert pool.next_deadline_s() is None


def test_the_time_of_a_request_that_may_wait_begins_anew():
    pool = SlotPool(settings=SlotPoolSettings(request_timeout_s=300.0))
    pool.request(requests(1, 1), 0.0)
    assert [request.group for request in pool.timed_out(400.0, [0, 7])] == [1]
    assert pool.next_deadline_s() == 700.0
    assert pool.timed_out(699.0) == []
    assert [request.group for request in pool.timed_out(700.0)] == [0]


def test_what_could_be_served_if_slots_came_free():
    pool = SlotPool()
    pool.offer([PhysicalSlot(Location("a"), 0, SMALL), PhysicalSlot(Location("a"), 1, BIG)], 0.0)
    assert pool.interchangeable_slots() is None
    held = [match.slot for match in pool.request([SlotRequest(0, SMALL), SlotRequest(1, SMALL), SlotRequest(2)], 0.0)]
    assert [request.group for request in pool.pending] == [1]
    assert pool.could_serve([1])
    assert not pool.could_serve([1], held[:1])
    assert pool.could_serve([1], held[1:])
    pool.lose(held[:1])
    assert not pool.could_serve([1])
    assert pool.interchangeable_slots() is None  # the slot that is left does not do for who waits
    pool.cancel([1], 0.0)
    assert pool.interchangeable_slots() == 1


def test_profiles_decide_who_is_served():
    pool = SlotPool()
    pool.request([SlotRequest(0, BIG), SlotRequest(1, SMALL)], 0.0)
    assert groups(pool.offer([PhysicalSlot(Location("a"), 0, SMALL)], 0.0)) == [1]


def test_asking_twice_is_refused():
    pool = SlotPool()
    pool.request(requests(1), 0.0)
    with pytest.raises(LocalProtocolError, match="group 0 already waits"):
        pool.request(requests(1), 0.0)
