from collections import Counter

import pytest

from netstack import ConfigError
from netstack.schedule.graph.job_graph import ANY_PROFILE, UNKNOWN_PROFILE, ResourceProfile
from netstack.schedule.slots.slot_matching import can_serve, map_resources

SMALL = ResourceProfile("concrete", 1.0, 1 << 30)
BIG = ResourceProfile("concrete", 2.0, 2 << 30)
PROFILES = {"s": SMALL, "b": BIG, "U": UNKNOWN_PROFILE, "*": ANY_PROFILE}


def mapping(requests, slots):
    return map_resources([PROFILES[one] for one in requests], [PROFILES[one] for one in slots])


def named(counts):
    names = {profile: name for name, profile in PROFILES.items()}
    return {names[profile]: count for profile, count in counts.items() if count}


def reserved(found):
    names = {profile: name for name, profile in PROFILES.items()}
    return {names[request]: named(slots) for request, slots in found._reserved.items()}


@pytest.mark.parametrize(
    ("slot", "request_", "fits"),
    [("b", "s", False), ("s", "s", True), ("*", "b", True), ("s", "U", True), ("*", "U", True), ("s", "b", False)],
)
def test_profiles_must_be_equal_unless_one_side_is_open(slot, request_, fits):
    assert can_serve(PROFILES[slot], PROFILES[request_]) is fits


def test_exact_pairs_leave_the_rest_flexible():
    actual = mapping("ssb", "bsss")
    assert reserved(actual) == {"s": {"s": 2}, "b": {"b": 1}}
    assert named(+actual._flexible) == {"s": 1}


def test_a_request_without_a_slot_of_its_profile_is_infeasible():
    assert mapping("ssb", "sss") is None
    assert mapping("sUb", "bbb") is None


def test_unknown_requests_take_what_is_left():
    actual = mapping("UUsb", "bbb*ss")
    assert reserved(actual)["s"] == {"s": 1}
    assert reserved(actual)["b"] == {"b": 1}
    assert sum(reserved(actual)["U"].values()) == 2
    assert sum((+actual._flexible).values()) == 2


def test_concrete_requests_come_before_unknown_ones_for_slots_of_any_profile():
    actual = mapping("UUssbb", "bs****")
    assert reserved(actual) == {"U": {"*": 2}, "s": {"s": 1, "*": 1}, "b": {"b": 1, "*": 1}}
    assert (+actual._flexible) == {}


def test_nothing_to_map():
    assert mapping("", "s") is None
    assert mapping("s", "") is None
    assert mapping("ss", "s") is None


def test_taking_a_flexible_slot_gives_a_reserved_one_back():
    actual = mapping("Ub", "bs*")  # U is served by s, so * is flexible
    assert reserved(actual) == {"U": {"s": 1}, "b": {"b": 1}}
    actual.take(UNKNOWN_PROFILE, ANY_PROFILE)
    assert named(+actual._flexible) == {"s": 1}
    assert not actual.allows(BIG, SMALL)
    assert actual.allows(BIG, BIG)


def test_a_slot_another_request_depends_on_is_not_allowed():
    actual = mapping("Ub", "bs")
    assert not actual.allows(UNKNOWN_PROFILE, BIG)
    assert actual.allows(UNKNOWN_PROFILE, SMALL)


@pytest.mark.parametrize(("requests", "slots", "what"), [("*", "s", "any"), ("s", "U", "unknown")])
def test_profiles_on_the_wrong_side_are_refused(requests, slots, what):
    with pytest.raises(ConfigError, match=what):
        mapping(requests, slots)


def test_counts_are_kept():
    actual = mapping("UUsb", "bbb*ss")
    total = Counter(+actual._flexible)
    for slots in actual._reserved.values():
        total += Counter(slots)
    assert total == Counter(PROFILES[one] for one in "bbb*ss")
