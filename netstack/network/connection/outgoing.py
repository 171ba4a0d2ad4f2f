"""The state machine of the sending direction of a connection: (state, input) -> next state, complete.

Takes: inputs named by `OutgoingInput`. Gives: states to `pump`; `tools/render_states.py` renders the table into
DESIGN.md.
"""

from __future__ import annotations

import enum
from typing import Final


class OutgoingState(enum.Enum):
    """The state of the sending direction; it only moves forward."""

    OPEN = "open"
    """Ready data is sent."""
    LEAVING = "leaving"
    """Ready data is sent, then our goodbye."""
    SAID_GOODBYE = "said_goodbye"
    """Our goodbye is queued as the last frame; earlier frames are still sent."""
    ENDED = "ended"
    """Nothing more is sent: we closed our direction, or the stream accepts no more data. The peer may still send."""
    CLOSING = "closing"
    """Another thread found that the connection is over, and the loop has yet to end its tasks. Nothing is read or sent.
    """
    CLOSED = "closed"
    """Nothing is sent or received."""


class OutgoingInput(enum.Enum):
    """The inputs of the state machine."""

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
