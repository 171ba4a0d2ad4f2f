"""Callbacks of the core turned into something a task can wait for.

Takes: `wake()` from a synchronous callback. Gives: `await wait()`.

Waking is not a promise: another task may have been faster. So a waiter checks its condition, waits, and checks again;
between the check and the wait nothing else runs (one thread), so no wake-up is lost.
"""

from __future__ import annotations

from typing import final

import trio


@final
class Signal:
    """Wakes every task that waits at the moment."""

    __slots__ = ("_lot",)

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        """Wakes all waiters; costs next to nothing when there are none."""
        if self._lot:
            self._lot.unpark_all()

    async def wait(self) -> None:
        """Waits for the next `wake`. Cancellation: nothing changed."""
        await self._lot.park()
