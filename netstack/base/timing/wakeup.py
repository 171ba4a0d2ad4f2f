"""Connects synchronous callbacks of the data path to waiting trio tasks.

Takes: `wake()` from a callback. Gives: `await wait()`.

A wake-up can be spurious: another task may have acted first. So a waiter checks its condition, waits, and checks again.
Nothing else runs between the check and the wait (one thread at a time, see `loop_lock`), so no wake-up is lost.
"""

from __future__ import annotations

import contextlib
from threading import get_ident
from typing import final

import trio


@final
class Signal:
    """Wakes all tasks that currently wait."""

    __slots__ = ("_lot", "_thread", "_token")

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()
        self._thread = 0
        self._token: trio.lowlevel.TrioToken | None = None

    def wake(self) -> None:
        """Wakes all waiters, from their event loop or from another thread. Cheap if there are none."""
        if self._lot:
            if get_ident() == self._thread:
                self._lot.unpark_all()
            elif self._token is not None:
                with contextlib.suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._lot.unpark_all, idempotent=True)

    async def wait(self) -> None:
        """Waits for the next `wake`. Cancellation: no effect on other waiters."""
        if not self._lot:
            self._thread = get_ident()
            self._token = trio.lowlevel.current_trio_token()
        await self._lot.park()
