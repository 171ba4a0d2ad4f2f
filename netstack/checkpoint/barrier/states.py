"""The exactly-once barrier handlers as one table: (state, input) -> what is done, and the next state.

Takes: inputs named by `Input`. Gives: steps to `handler`. A missing key is a protocol error.

Reading it: W and C only align. AW, AC, UW and UC begin aligned and turn unaligned when a barrier comes unaligned or the
checkpoint becomes too old. Abbreviations: W waits for a first barrier, C collects the others, A aligned so far,
U unaligned. "Last" inputs complete the set of channels that were open when the checkpoint began here; "late" ones do
not, and find it older than its timeout.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class State(enum.Enum):
    """Where the checkpoint stands."""

    W = "waiting"
    C = "collecting"
    AW = "waiting, aligned so far"
    AC = "collecting, aligned so far"
    UW = "waiting, unaligned"
    UC = "collecting, unaligned"


class Input(enum.Enum):
    """What can happen to it."""

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
    """What is done about it; "the channel" is the one the input came from."""

    BLOCK = "note that the channel's producer waits"
    RESUME = "resume every producer that waits"
    DROP = "drop the channel: its end leaves nothing to resume"
    REMEMBER = "remember the channel's announced barrier"
    FORGET = "forget the channel's announced barrier: it has come"
    PRIORITIZE = "move the channel's announced barrier to the front"
    TURN = "turn unaligned: move every remembered barrier to the front, no timeout any more"
    TIMED_OUT = "note that time was the reason"
    CAPTURE = "capture what comes in front of the missing barriers"
    STOP = "stop capturing"
    TRIGGER = "trigger the checkpoint as it came"
    TRIGGER_UNALIGNED = "trigger the checkpoint, unaligned"


class Step(NamedTuple):
    """One entry: the actions in their order, and the state after them."""

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
    # Aligned so far, no barrier yet; announcements and ends may have come.
    (State.AW, Input.BARRIER): Step(_ARRIVED, State.AC),
    (State.AW, Input.LATE_BARRIER): Step((*_ARRIVED, Action.TIMED_OUT, Action.TURN, *_BEGIN), State.UC),
    (State.AW, Input.LAST_BARRIER): Step((*_ARRIVED, *_TRIGGER), State.AW),
    (State.AW, Input.UNALIGNED): Step((Action.FORGET, Action.TURN, *_BEGIN), State.UC),
    (State.AW, Input.LAST_UNALIGNED): Step((Action.FORGET, Action.TURN, *_BEGIN, *_FINISH), State.AW),
    (State.AW, Input.END): Step((Action.DROP,), State.AW),
    (State.AW, Input.LATE_END): Step((Action.DROP,), State.AW),  # with nothing to begin: its timer will turn it
    (State.AW, Input.ANNOUNCEMENT): Step((Action.REMEMBER,), State.AW),
    (State.AW, Input.TIMEOUT): Step((Action.TIMED_OUT, Action.TURN), State.UW),
    (State.AW, Input.ABORT): Step((Action.RESUME,), State.AW),
    # Aligned so far, some barriers are here and their producers wait.
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
    # Unaligned before the first barrier: those that were announced are on their way past the data.
    (State.UW, Input.BARRIER): Step((Action.BLOCK, *_BEGIN), State.UC),
    (State.UW, Input.LAST_BARRIER): Step((Action.BLOCK, *_BEGIN, *_FINISH), State.AW),
    (State.UW, Input.UNALIGNED): Step(_BEGIN, State.UC),
    (State.UW, Input.LAST_UNALIGNED): Step((*_BEGIN, *_FINISH), State.AW),
    (State.UW, Input.END): Step((Action.DROP,), State.UW),
    (State.UW, Input.ANNOUNCEMENT): Step((Action.PRIORITIZE,), State.UW),
    (State.UW, Input.ABORT): Step((Action.RESUME,), State.AW),
    # Triggered; what comes in front of the missing barriers is captured. A producer whose barrier came aligned, at its
    # place or moved to the front, waits nevertheless.
    (State.UC, Input.BARRIER): Step((Action.BLOCK,), State.UC),
    (State.UC, Input.LAST_BARRIER): Step((Action.BLOCK, *_FINISH), State.AW),
    (State.UC, Input.UNALIGNED): Step(_KEEP, State.UC),
    (State.UC, Input.LAST_UNALIGNED): Step(_FINISH, State.AW),
    (State.UC, Input.END): Step((Action.DROP,), State.UC),
    (State.UC, Input.LAST_END): Step((Action.DROP, *_FINISH), State.AW),
    (State.UC, Input.ANNOUNCEMENT): Step((Action.PRIORITIZE,), State.UC),
    (State.UC, Input.ABORT): Step(_FINISH, State.AW),
}
