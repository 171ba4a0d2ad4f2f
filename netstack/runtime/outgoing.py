"""The life of our direction of a connection as a table: (state, input) -> next state; every pair is there.

Takes: inputs named by `OutgoingInput`. Gives: states to `pump`; `tools/render_states.py` renders the table into
DESIGN.md.
"""

from __future__ import annotations

import enum
from typing import Final


class OutgoingState(enum.Enum):
    """How far our direction is; ever further, never back."""

    OPEN = "open"
    """What is ready is sent."""
    LEAVING = "leaving"
    """What is ready is sent, then our goodbye."""
    SAID_GOODBYE = "said_goodbye"
    """Our goodbye is the last frame; what is before it is still sent."""
    ENDED = "ended"
    """Nothing more is sent: our direction is closed, or the stream takes nothing any more. The peer may still send."""
    CLOSING = "closing"
    """Over, found by another thread: the loop ends its tasks as soon as it comes to it. Nothing is read or sent."""
    CLOSED = "closed"
    """Nothing goes either way."""


class OutgoingInput(enum.Enum):
    """What can happen to it."""

    LEAVE = "leave"
    GOODBYE = "goodbye is queued"
    END = "end, or the stream takes no more"
    CLOSE_SOON = "close, in another thread"
    CLOSE = "close, or broken"


_ORDER: Final = tuple(OutgoingState)

OUTGOING_TRANSITIONS: Final[dict[tuple[OutgoingState, OutgoingInput], OutgoingState]] = {
    (state, what): _ORDER[max(position, least)]
    for position, state in enumerate(_ORDER)
    for least, what in enumerate(OutgoingInput, 1)
}
