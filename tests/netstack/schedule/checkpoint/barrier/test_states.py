"""The table of the barrier handlers: what is in it, what is not, and what every entry keeps."""

from __future__ import annotations

from netstack.schedule.checkpoint.barrier.states import TRANSITIONS, Action, Input, State

WAITING = {State.W, State.AW, State.UW}
LAST = {Input.LAST_BARRIER, Input.LAST_UNALIGNED, Input.LAST_END}
LATE = {Input.LATE_BARRIER, Input.LATE_END}


def test_what_is_missing_is_missing_on_purpose() -> None:
    missing = {(state, what) for state in State for what in Input} - TRANSITIONS.keys()
    only_aligned = {(state, what) for state in (State.W, State.C) for what in (Input.UNALIGNED, Input.LAST_UNALIGNED)}
    no_time = {(state, what) for state in (State.W, State.C, State.UW, State.UC) for what in (*LATE, Input.TIMEOUT)}
    ends_alone = {(state, Input.LAST_END) for state in WAITING}
    assert missing == only_aligned | no_time | ends_alone


def test_every_state_is_reached_and_left() -> None:
    assert {step.following for step in TRANSITIONS.values()} == set(State)
    aligned = {State.W, State.C}
    assert all((state in aligned) == (step.following in aligned) for (state, _), step in TRANSITIONS.items())
    for state in State:
        idle = State.W if state in aligned else State.AW
        assert TRANSITIONS[state, Input.ABORT].following is idle


def test_every_action_is_used() -> None:
    assert {action for step in TRANSITIONS.values() for action in step.actions} == set(Action)


def test_each_checkpoint_is_triggered_once_and_everybody_resumed_at_its_end() -> None:
    for (state, what), step in TRANSITIONS.items():
        triggers = [each for each in step.actions if each in (Action.TRIGGER, Action.TRIGGER_UNALIGNED)]
        begins = state is not State.UC and (what in LAST or step.following is State.UC)
        assert len(triggers) == begins
        ends = what in LAST or what is Input.ABORT
        assert (Action.RESUME in step.actions) == ends
        if ends:
            assert step.actions[-1] is Action.RESUME
            assert step.following in (State.W, State.AW)


def test_a_capture_begins_before_the_trigger_and_ends_with_the_checkpoint() -> None:
    for (state, what), step in TRANSITIONS.items():
        actions = step.actions
        assert (Action.CAPTURE in actions) == (Action.TRIGGER_UNALIGNED in actions)
        if Action.CAPTURE in actions:
            assert actions.index(Action.CAPTURE) < actions.index(Action.TRIGGER_UNALIGNED)
        captures = state is State.UC or Action.CAPTURE in actions
        assert (Action.STOP in actions) == (captures and step.following is not State.UC)
        turns = state in (State.AW, State.AC) and step.following in (State.UW, State.UC)
        assert (Action.TURN in actions) == (turns or (what is Input.LAST_UNALIGNED and state in (State.AW, State.AC)))


def test_aligned_barriers_block_and_unaligned_ones_do_not() -> None:
    for (_, what), step in TRANSITIONS.items():
        aligned = what in (Input.BARRIER, Input.LATE_BARRIER, Input.LAST_BARRIER)
        assert (Action.BLOCK in step.actions) == aligned
