"""From asyncio through the door of `netstack.blocking`: an async function of trio's, awaited as one of asyncio's.

Takes: a portal, an async function for its thread. Gives: what it returns or raises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..blocking.portal import Portal

R = TypeVar("R")


async def through(portal: Portal[Any], action: Callable[[], Awaitable[R]], what: str) -> R:
    """Runs an async function in the portal's thread.

    Raises:
        LocalProtocolError: the thread is over, or ended meanwhile.
        BaseException: what the function raised.

    Cancellation: cancels the function and waits for its end; if it had come to its end by then, its result is dropped.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # a loop that was closed has nobody left to tell
            loop.call_soon_threadsafe(ended.set)

    started = portal.start(action, what=what, on_end=tell)
    try:
        await ended.wait()
    except asyncio.CancelledError:
        started.cancel()
        await _in_any_case(ended)
        with contextlib.suppress(BaseException):
            started.outcome()
        raise
    return started.outcome()


async def _in_any_case(ended: asyncio.Event) -> None:
    """Waits however often it is cancelled: the function is on its way out."""
    while not ended.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await ended.wait()
