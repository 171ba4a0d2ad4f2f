"""Writes that must not be lost: tried again until they are stored, and told while they are not.

Takes: what writes, and whom to tell. Gives: nothing; when it returns, it is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from ..errors import NetstackError

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""Between two tries of what a disk does not take, or give, now."""


async def until_stored(write: Callable[[], Awaitable[None]], waits: Callable[[str], None]) -> None:
    """Writes until that succeeds.

    Args:
        write: raises `NetstackError` when it cannot.
        waits: told why it is not stored yet; told "" when it is.

    Cancellation: a write that has begun ends; it may be stored or not.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            with trio.CancelScope(shield=True):
                await write()
        except NetstackError as error:
            waits(f"{error}; it is tried again in {pause_s:g} s")
        else:
            waits("")
            return
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
