"""Who gets which slot: in order of submission, as the mode says, and nobody twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import LocalProtocolError
from netstack.cluster.jobmanager.resource_manager.slot_manager import SlotManager, SlotOffer
from netstack.schedule.slots.slots import LoadBalanceMode, SlotDemand


def cluster(
    mode: LoadBalanceMode = LoadBalanceMode.NONE, wish: SlotDemand | None = None, **taskmanagers: int
) -> SlotManager:
    slots = SlotManager(mode, lambda job_id: wish)
    for name, count in taskmanagers.items():
        slots.register(name, count)
    return slots


def test_mode_none_fills_one_taskmanager_after_the_other() -> None:
    slots = cluster(a=2, b=2)
    slots.job_came("job")
    slots.require("job", 3)
    assert slots.offers() == [SlotOffer("job", "a", (0, 1)), SlotOffer("job", "b", (0,))]
    assert slots.offers() == []


@pytest.mark.parametrize("mode", [LoadBalanceMode.SLOTS, LoadBalanceMode.TASKS])
def test_other_modes_spread(mode: LoadBalanceMode) -> None:
    slots = cluster(mode, SlotDemand((1, 1, 1)), a=4, b=2)
    slots.job_came("job")
    slots.require("job", 3)
    assert slots.offers() == [SlotOffer("job", "a", (0, 1)), SlotOffer("job", "b", (0,))]


def test_tasks_are_balanced_over_all_free_slots_and_those_the_job_has() -> None:
    wishes = [SlotDemand((5, 1))]
    slots = SlotManager(LoadBalanceMode.TASKS, lambda job_id: wishes[-1])
    slots.register("a", 4)
    slots.job_came("job")
    slots.require("job", 2)
    assert slots.offers() == [SlotOffer("job", "a", (0, 1))]
    slots.require("job", 2)
    assert slots.offers() == []  # they are on their way
    slots.register("b", 2)
    # Five tasks are in one of the slots of a, nobody is in the other.
    wishes.append(SlotDemand((4, 2, 1), {"a": 1}, {"a": 5}))
    slots.require("job", 2 + 3)
    assert slots.offers() == [SlotOffer("job", "b", (0, 1))]
    wishes.append(SlotDemand((1,) * 4, {"a": 1, "b": 2}))
    slots.require("job", 4 + 4)
    assert slots.offers() == [SlotOffer("job", "a", (2, 3))]  # all there is
    assert slots.missing("job") == 1


def test_jobs_are_served_in_the_order_of_submission() -> None:
    slots = cluster(a=2)
    slots.job_came("first")
    slots.job_came("second")
    slots.require("second", 1)
    slots.require("first", 2)
    assert slots.offers() == [SlotOffer("first", "a", (0, 1))]
    assert slots.missing("second") == 1
    slots.job_left("first")
    assert slots.offers() == [SlotOffer("second", "a", (0,))]


def test_nobody_gives_back_what_is_another_job_s() -> None:
    slots = cluster(a=1)
    slots.job_came("first")
    slots.require("first", 1)
    slots.offers()
    slots.give_back("second", "a", 0)
    assert (slots.free, slots.used_of("a")) == (0, {0: "first"})
    slots.give_back("first", "a", 0)
    assert slots.free == 1


def test_a_barred_taskmanager_keeps_its_slots_for_others() -> None:
    slots = cluster(a=1)
    slots.job_came("picky")
    slots.job_came("other")
    slots.require("picky", 1)
    slots.offers()
    slots.bar("picky", "a")
    slots.require("picky", 2)
    slots.require("other", 1)
    assert slots.offers() == [SlotOffer("other", "a", (0,))]


def test_names_are_unique_and_what_is_lost_is_gone() -> None:
    slots = cluster(a=1)
    with pytest.raises(LocalProtocolError, match="registered already"):
        slots.register("a", 1)
    slots.lose("a")
    slots.lose("a")
    assert (slots.total, slots.free) == (0, 0)
    assert slots.describe() == "no TaskManager is registered"


@given(
    st.sampled_from(LoadBalanceMode),
    st.lists(
        st.one_of(
            st.tuples(st.just("require"), st.sampled_from("xyz"), st.integers(0, 5)),
            st.tuples(st.just("give"), st.sampled_from("xyz"), st.integers(0, 5)),
            st.tuples(st.just("leave"), st.sampled_from("xyz"), st.just(0)),
            st.tuples(st.just("lose"), st.sampled_from("ab"), st.just(0)),
            st.tuples(st.just("register"), st.sampled_from("ab"), st.integers(1, 4)),
        ),
        max_size=40,
    ),
)
def test_every_slot_has_one_owner_or_is_free(mode: LoadBalanceMode, script: list[tuple[str, str, int]]) -> None:
    slots = SlotManager(mode, lambda job_id: SlotDemand((1,) * wanted[job_id], has(job_id)))
    wanted: dict[str, int] = {}
    offered: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    owned: dict[tuple[str, int], str] = {}
    jobs: set[str] = set()

    def has(job_id: str) -> Counter[str]:
        return Counter(name for (name, _), owner in owned.items() if owner == job_id)

    for what, who, number in script:
        match what:
            case "require":
                slots.job_came(who)
                jobs.add(who)
                slots.require(who, offered[who] + number)
                wanted[who] = number
            case "give":
                for (name, slot), owner in [*owned.items()][number : number + 1]:
                    slots.give_back(who, name, slot)
                    if owner == who:
                        del owned[name, slot]
            case "leave":
                slots.job_left(who)
                jobs.discard(who)
                offered[who] = 0
                owned = {place: owner for place, owner in owned.items() if owner != who}
            case "lose":
                slots.lose(who)
                sizes.pop(who, None)
                owned = {(name, slot): owner for (name, slot), owner in owned.items() if name != who}
            case "register" if who not in sizes:
                slots.register(who, number)
                sizes[who] = number
        for offer in slots.offers():
            assert offer.job_id in jobs
            for slot in offer.slots:
                assert (offer.taskmanager, slot) not in owned
                assert slot < sizes[offer.taskmanager]
                wanted[offer.job_id] -= 1
                offered[offer.job_id] += 1
                owned[offer.taskmanager, slot] = offer.job_id
        assert slots.free == sum(sizes.values()) - len(owned)
        assert not (slots.free and any(slots.missing(job) for job in jobs))


@given(st.lists(st.sampled_from(("need", "need less", "register", "lose", "deliver", "miss", "return")), max_size=60))
def test_offers_and_losses_on_their_way_change_no_job_s_number_of_missing_slots(script: list[str]) -> None:
    """The job declares what it knows, at any time; nothing is offered twice, and nothing that it lacks is forgotten."""
    slots = SlotManager()
    slots.job_came("job")
    under_way: list[tuple[str, int]] = []
    held: list[tuple[str, int]] = []  # lost ones too, until the job hears of it
    delivered = lacks = number = 0
    for what in script:
        match what:
            case "need":
                lacks += 1
            case "need less":
                lacks = max(0, lacks - 1)
            case "register":
                number += 1
                slots.register(str(number), 1 + number % 3)
            case "lose":
                slots.lose(str(number))
            case "deliver" if under_way:
                held.append(under_way.pop(0))
                delivered, lacks = delivered + 1, max(0, lacks - 1)
            case "miss" if under_way:
                slots.lose(under_way.pop()[0])
                slots.missed("job", 1)
                number += 1
            case "return" if held:
                slots.give_back("job", *held.pop(0))
        slots.require("job", delivered + lacks)
        missing = max(0, lacks - len(under_way))
        assert slots.missing("job") == missing
        new = [(offer.taskmanager, slot) for offer in slots.offers() for slot in offer.slots]
        under_way += new
        assert slots.missing("job") == missing - len(new)
        assert not (slots.free and slots.missing("job"))
