"""Credit: never beyond what a receiver can have, announced exactly once, in time, and not in driblets."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from netstack.exchange.credit.receiving import ReceiveCredit
from netstack.exchange.credit.sending import MAX_CREDIT, SendCredit


@pytest.mark.parametrize("count", [0, -1, MAX_CREDIT, 2**32 - 1])
def test_a_grant_no_receiver_can_give_is_refused_and_changes_nothing(count: int) -> None:
    credit = SendCredit(1)
    with pytest.raises(RemoteProtocolError, match=f"{count} credits announced on top of 1") as caught:
        credit.grant(count)
    assert caught.value.code is ErrorCode.CREDIT_VIOLATION
    assert (credit.available, credit.granted) == (1, 1)


@given(st.integers(0, 5), st.lists(st.integers(0, 3)))
def test_what_is_spent_never_exceeds_what_was_granted(initial: int, steps: list[int]) -> None:
    credit, left = SendCredit(initial), initial
    for step in steps:
        if step:
            credit.grant(step)
            left += step
        elif left:
            credit.spend()
            left -= 1
        else:
            with pytest.raises(LocalProtocolError, match="a buffer was sent without credit"):
                credit.spend()
        assert credit.available == left


def test_the_largest_sum_is_accepted() -> None:
    credit = SendCredit(1)
    credit.grant(MAX_CREDIT - 1)
    assert credit.available == credit.granted == MAX_CREDIT


def test_a_sender_with_credit_is_told_in_one_go() -> None:
    credit = ReceiveCredit(4)
    assert [credit.add(1) for _ in range(5)] == [False, False, False, False, True]
    assert credit.take() == 5
    assert [credit.add(1) for _ in range(9)] == [False] * 9


def test_a_sender_without_credit_is_told_at_once() -> None:
    credit = ReceiveCredit(1)
    assert not credit.use()
    assert credit.add(1)
    assert not credit.add(1), "it is scheduled already"
    assert credit.take() == 2


def test_spending_makes_an_announcement_due() -> None:
    credit = ReceiveCredit(2)
    assert not credit.add(1)
    assert not credit.use()
    assert credit.use()
    assert credit.take() == 1


@given(st.integers(0, 5), st.lists(st.sampled_from(["send", "announce", "block", 1, 2, 3])))
def test_law(initial: int, steps: list[str | int]) -> None:
    """Nothing is announced twice, each announcement is scheduled once, and a sender in need never waits in vain."""
    receiver, sender = ReceiveCredit(initial), SendCredit(initial)
    scheduled = False
    reserved = initial
    sent = 0
    for step in steps:
        became_due = False
        if step == "announce":
            if scheduled:
                scheduled = False
                if count := receiver.take():
                    sender.grant(count)
        elif step == "block":  # what is not used yet is void at both ends
            receiver.forget()
            sender.forget()
            reserved = sent
        elif step == "send":
            if sender.available:
                sender.available -= 1
                sent += 1
                became_due = receiver.use()
        else:
            assert isinstance(step, int)
            reserved += step
            became_due = receiver.add(step)
        assert not (became_due and scheduled)
        scheduled = scheduled or became_due
        assert sender.available + receiver.unannounced + sent == reserved
        assert receiver.announced == sender.granted == sender.available + sent
        assert receiver.used == sent
        if not sender.available and receiver.unannounced:
            assert scheduled


@pytest.mark.parametrize(
    ("backlog", "unannounced", "short"),
    [(0, 2, False), (1, 2, False), (3, 2, True), (9, 2, True), (9, 0, False), (0, 3, False)],
)
def test_a_sender_is_short_when_it_may_soon_be_out_of_credit(backlog: int, unannounced: int, short: bool) -> None:
    credit = ReceiveCredit(4)
    assert not credit.use()
    if unannounced:
        assert not credit.add(unannounced)
    assert credit.is_short_for(backlog) is short


def test_what_is_scheduled_for_a_short_sender_is_scheduled_once() -> None:
    credit = ReceiveCredit(3)
    credit.add(2)
    assert credit.is_short_for(3)
    credit.is_scheduled = True
    assert not credit.is_short_for(3)
    assert not credit.add(5), "the scheduled announcement will carry it"
    assert credit.take() == 7
    assert not credit.is_short_for(10), "there is nothing more to tell"
