"""The transition table of the exactly-once barrier handler: (state, input) -> actions and next state.

Takes: inputs named by `Input`. Gives: steps to `handler`. A missing key is a protocol error.

W and C are the states of handlers that only align. AW, AC, UW and UC begin aligned and become unaligned when an
unaligned barrier arrives or the checkpoint exceeds its timeout. Letters: W waits for the first barrier, C collects the
others, A is aligned so far, U is unaligned. A "last" input is the last one that the checkpoint needs. A "late" input is
not the last, and arrives after the timeout.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class State(enum.Enum):
    """The state of the handler."""

    W = "waiting"
    C = "collecting"
    AW = "waiting, aligned so far"
    AC = "collecting, aligned so far"
    UW = "waiting, unaligned"
    UC = "collecting, unaligned"


class Input(enum.Enum):
    """An input of the state machine."""

    BARRIER = "aligned barrier"
    LATE_BARRIER = "late aligned barrier"
    LAST_BARRIER = "last aligned barrier"
    UNALIGNED = "unaligned barrier"
    LAST_UNALIGNED = "last unaligned barrier"
    END = "end of a channel"
    LATE_END = "late end of a channel"
    LAST_END = "end of the last channel"
    ANNOUNCEMENT = "announcement"
    TIMEOUT = "timeout"
    ABORT = "abort"


class Action(enum.Enum):
    """An action of a transition; "the channel" is the one that the input came from."""

    BLOCK = "mark the channel's producer as blocked"
    RESUME = "resume every blocked producer"
    DROP = "drop the channel: after its end there is no producer to resume"
    REMEMBER = "store the channel's announced barrier"
    FORGET = "drop the channel's announced barrier: it has arrived"
    PRIORITIZE = "move the channel's announced barrier to the front"
    TURN = "become unaligned: move every stored barrier to the front, cancel the timeout"
    TIMED_OUT = "note that the timeout was the reason"
    CAPTURE = "capture the data before the missing barriers"
    STOP = "stop capturing"
    TRIGGER = "trigger the checkpoint as its barrier says"
    TRIGGER_UNALIGNED = "trigger the checkpoint, unaligned"


class Step(NamedTuple):
    """One transition: the actions in order, and the next state."""

    actions: tuple[Action, ...]
    following: State


_KEEP: Final = ()
_TRIGGER: Final = (Action.TRIGGER, Action.RESUME)
_BEGIN: Final = (Action.CAPTURE, Action.TRIGGER_UNALIGNED)
_FINISH: Final = (Action.STOP, Action.RESUME)
_ARRIVED: Final = (Action.FORGET, Action.BLOCK)

TRANSITIONS: Final[dict[tuple[State, Input], Step]] = {
    # Aligned only.
    (State.W, Input.BARRIER): Step((Action.BLOCK,), State.C),
    (State.W, Input.LAST_BARRIER): Step((Action.BLOCK, *_TRIGGER), State.W),
    (State.W, Input.END): Step((Action.DROP,), State.W),
    (State.W, Input.ANNOUNCEMENT): Step(_KEEP, State.W),
    (State.W, Input.ABORT): Step((Action.RESUME,), State.W),
    (State.C, Input.BARRIER): Step((Action.BLOCK,), State.C),
    (State.C, Input.LAST_BARRIER): Step((Action.BLOCK, *_TRIGGER), State.W),
    (State.C, Input.END): Step((Action.DROP,), State.C),
    (State.C, Input.LAST_END): Step((Action.DROP, *_TRIGGER), State.W),
    (State.C, Input.ANNOUNCEMENT): Step(_KEEP, State.C),
    (State.C, Input.ABORT): Step((Action.RESUME,), State.W),
    # Aligned so far, no barrier yet; announcements and ends may have arrived.
    (State.AW, Input.BARRIER): Step(_ARRIVED, State.AC),
    (State.AW, Input.LATE_BARRIER): Step((*_ARRIVED, Action.TIMED_OUT, Action.TURN, *_BEGIN), State.UC),
    (State.AW, Input.LAST_BARRIER): Step((*_ARRIVED, *_TRIGGER), State.AW),
    (State.AW, Input.UNALIGNED): Step((Action.FORGET, Action.TURN, *_BEGIN), State.UC),
    (State.AW, Input.LAST_UNALIGNED): Step((Action.FORGET, Action.TURN, *_BEGIN, *_FINISH), State.AW),
    (State.AW, Input.END): Step((Action.DROP,), State.AW),
    (State.AW, Input.LATE_END): Step((Action.DROP,), State.AW),  # no barrier yet: the timer makes it unaligned
    (State.AW, Input.ANNOUNCEMENT): Step((Action.REMEMBER,), State.AW),
    (State.AW, Input.TIMEOUT): Step((Action.TIMED_OUT, Action.TURN), State.UW),
    (State.AW, Input.ABORT): Step((Action.RESUME,), State.AW),
    # Aligned so far; some barriers have arrived, and their producers are blocked.
    (State.AC, Input.BARRIER): Step(_ARRIVED, State.AC),
    (State.AC, Input.LATE_BARRIER): Step((*_ARRIVED, Action.TIMED_OUT, Action.TURN, *_BEGIN), State.UC),
    (State.AC, Input.LAST_BARRIER): Step((*_ARRIVED, *_TRIGGER), State.AW),
    (State.AC, Input.UNALIGNED): Step((Action.FORGET, Action.TURN, *_BEGIN), State.UC),
    (State.AC, Input.LAST_UNALIGNED): Step((Action.FORGET, Action.TURN, *_BEGIN, *_FINISH), State.AW),
    (State.AC, Input.END): Step((Action.DROP,), State.AC),
    (State.AC, Input.LATE_END): Step((Action.DROP, Action.TIMED_OUT, Action.TURN, *_BEGIN), State.UC),
    (State.AC, Input.LAST_END): Step((Action.DROP, *_TRIGGER), State.AW),
    (State.AC, Input.ANNOUNCEMENT): Step((Action.REMEMBER,), State.AC),
    (State.AC, Input.TIMEOUT): Step((Action.TIMED_OUT, Action.TURN, *_BEGIN), State.UC),
    (State.AC, Input.ABORT): Step((Action.RESUME,), State.AW),
    # Unaligned before the first barrier: announced barriers are moved past the data.
    (State.UW, Input.BARRIER): Step((Action.BLOCK, *_BEGIN), State.UC),
    (State.UW, Input.LAST_BARRIER): Step((Action.BLOCK, *_BEGIN, *_FINISH), State.AW),
    (State.UW, Input.UNALIGNED): Step(_BEGIN, State.UC),
    (State.UW, Input.LAST_UNALIGNED): Step((*_BEGIN, *_FINISH), State.AW),
    (State.UW, Input.END): Step((Action.DROP,), State.UW),
    (State.UW, Input.ANNOUNCEMENT): Step((Action.PRIORITIZE,), State.UW),
    (State.UW, Input.ABORT): Step((Action.RESUME,), State.AW),
    # Triggered; the data before the missing barriers is captured. The producer of an aligned barrier is blocked, even
    # if the barrier was moved to the front.
    (State.UC, Input.BARRIER): Step((Action.BLOCK,), State.UC),
    (State.UC, Input.LAST_BARRIER): Step((Action.BLOCK, *_FINISH), State.AW),
    (State.UC, Input.UNALIGNED): Step(_KEEP, State.UC),
    (State.UC, Input.LAST_UNALIGNED): Step(_FINISH, State.AW),
    (State.UC, Input.END): Step((Action.DROP,), State.UC),
    (State.UC, Input.LAST_END): Step((Action.DROP, *_FINISH), State.AW),
    (State.UC, Input.ANNOUNCEMENT): Step((Action.PRIORITIZE,), State.UC),
    (State.UC, Input.ABORT): Step(_FINISH, State.AW),
}
