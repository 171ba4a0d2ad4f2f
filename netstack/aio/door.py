"""Runs async functions of trio for asyncio tasks, through the portal of `netstack.blocking`."""

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
        LocalProtocolError: the thread has ended, or ends meanwhile.
        BaseException: the error raised by the function.

    Cancellation: cancels the function and waits for its end; its result is dropped.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def notify() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(ended.set)

    started = portal.start(action, what=what, on_end=notify)
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
    """Waits for the end of the function, however often the waiting task is cancelled."""
    while not ended.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await ended.wait()
