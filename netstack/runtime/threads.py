"""What blocks runs in a thread, never in the event loop; where time is virtual, it is a plain call.

Takes: a function without arguments. Gives: its result, back in the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import trio

_Result = TypeVar("_Result")


class InThread(Protocol):
    """Runs something that blocks: `in_thread`; in virtual time, a call."""

    def __call__(self, function: Callable[[], _Result]) -> Awaitable[_Result]:
        """Waits for its result, also when cancelled."""


async def in_thread(function: Callable[[], _Result]) -> _Result:
    """Runs something that blocks in a thread.

    Cancellation waits for its end: what it works on, mostly files, is in use until then.
    """
    return await trio.to_thread.run_sync(function)
