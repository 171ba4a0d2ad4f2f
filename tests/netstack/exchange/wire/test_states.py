"""The table of connection states: complete in the sense that every state can be left and reached."""

from __future__ import annotations

from netstack.exchange.wire.states import TRANSITIONS, Input, State


def test_every_state_can_be_closed() -> None:
    assert all(TRANSITIONS[state, Input.CLOSE] is State.CLOSED for state in State)


def test_every_state_is_reached_from_the_first() -> None:
    reached = {next(iter(State))}
    while new := {TRANSITIONS[state, what] for state, what in TRANSITIONS if state in reached} - reached:
        reached |= new
    assert reached == set(State)


def test_nothing_leads_out_of_closed() -> None:
    assert {following for (state, _), following in TRANSITIONS.items() if state is State.CLOSED} == {State.CLOSED}


def test_every_input_is_used() -> None:
    assert {what for _, what in TRANSITIONS} == set(Input)
