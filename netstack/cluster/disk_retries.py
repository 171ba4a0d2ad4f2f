"""Repeats writes to a disk that is full or broken until they succeed.

Takes: a write. Gives: its result, and the reason of each failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from ..base.errors import NetstackError

T = TypeVar("T")

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""Maximum pause between two tries to access a disk."""


async def until_stored(
    write: Callable[[], Awaitable[T]], waits: Callable[[str], None], errors: type[NetstackError] = NetstackError
) -> T:
    """Repeats a write until it succeeds.

    Args:
        write: performs the write.
        waits: called with the reason after each failure, and with "" after the success.
        errors: raised by a write that may succeed later; others end the retries.

    Cancellation: a write in progress is completed first.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            with trio.CancelScope(shield=True):
                written = await write()
        except errors as error:
            waits(f"{error}; next try in {pause_s:g} s")
        else:
            waits("")
            return written
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
