"""Credit: never below zero, never beyond what a receiver can have, announced exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from netstack.wire.credit import MAX_CREDIT, ReceiveCredit, SendCredit


def test_spending_more_than_there_is_raises() -> None:
    credit = SendCredit(1)
    credit.spend()
    with pytest.raises(LocalProtocolError, match="without credit"):
        credit.spend()
    assert credit.available == 0


@pytest.mark.parametrize("count", [0, -1, MAX_CREDIT, 2**32 - 1])
def test_a_grant_no_receiver_can_give_is_refused_and_changes_nothing(count: int) -> None:
    credit = SendCredit(1)
    with pytest.raises(RemoteProtocolError, match=f"{count} credits announced on top of 1") as caught:
        credit.grant(count)
    assert caught.value.code is ErrorCode.CREDIT_VIOLATION
    assert (credit.available, credit.granted) == (1, 1)


def test_the_largest_sum_is_accepted() -> None:
    credit = SendCredit(1)
    credit.grant(MAX_CREDIT - 1)
    assert credit.available == credit.granted == MAX_CREDIT


@given(st.integers(0, 5), st.lists(st.one_of(st.none(), st.integers(1, 5))))
def test_law(initial: int, steps: list[int | None]) -> None:
    """What was announced arrives; nothing is announced twice; one scheduling for each announcement."""
    receiver, sender = ReceiveCredit(initial), SendCredit(initial)
    scheduled = False
    reserved = initial
    for step in steps:
        if step is None:
            count = receiver.take()
            assert bool(count) is scheduled
            scheduled = False
            if count:
                sender.grant(count)
        else:
            reserved += step
            assert receiver.add(step) is not scheduled
            scheduled = True
        assert sender.available + receiver.unannounced == reserved
        assert receiver.announced == sender.granted == sender.available
