"""The states of a connection as a table: (state, input) -> next state. A missing key is a protocol error.

Takes: inputs named by `Input`. Gives: states to `connection`; `tools/render_states.py` renders the table into
`SPEC.md`, section 3.
"""

from __future__ import annotations

import enum
from typing import Final


class State(enum.Enum):
    """The state of one side of a connection."""

    GREETING = "greeting"
    """Our hello is on its way, the peer's has not arrived."""
    OPEN = "open"
    """Both hellos agree; frames flow."""
    FAREWELL = "farewell"
    """The peer has sent its goodbye; we may still send."""
    CLOSED = "closed"
    """Nothing is sent or received any more."""


class Input(enum.Enum):
    """An input of the state machine."""

    HELLO = "hello received"
    FRAME = "other frame received"
    GOODBYE = "goodbye received"
    END_OF_STREAM = "end of stream"
    CLOSE = "closed by us, or broken"


TRANSITIONS: Final[dict[tuple[State, Input], State]] = {
    (State.GREETING, Input.HELLO): State.OPEN,
    (State.GREETING, Input.CLOSE): State.CLOSED,
    (State.OPEN, Input.FRAME): State.OPEN,
    (State.OPEN, Input.GOODBYE): State.FAREWELL,
    (State.OPEN, Input.CLOSE): State.CLOSED,
    (State.FAREWELL, Input.END_OF_STREAM): State.CLOSED,
    (State.FAREWELL, Input.CLOSE): State.CLOSED,
    (State.CLOSED, Input.CLOSE): State.CLOSED,
}
