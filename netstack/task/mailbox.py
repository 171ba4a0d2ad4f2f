"""Messages to a task that is busy: it looks between two records.

Takes: callbacks of timers, of the coordinator, of gates and pools. Gives: one attribute to look at, and something to
wait for.

Rules: one task waits. What was posted runs in that task, between two records, in order; while it awaits a source, at
once. `wake` only says that it should look again; `alert` and `post` also say that there is something to do before the
next record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, final

import trio

from ..wakeup import Signal


@final
class Mailbox:
    """The messages to one task.

    Attributes:
        is_urgent: whether something is to be done before the next record.
    """

    __slots__ = ("_is_serving", "_mail", "_reading", "_signal", "is_urgent")

    def __init__(self) -> None:
        self.is_urgent = False
        self._mail: list[Callable[[], None]] = []
        self._signal = Signal()
        self._reading: trio.CancelScope | None = None
        self._is_serving = False

    def post(self, action: Callable[[], None]) -> None:
        """Has the task run `action` between two records; it must not wait, nor call what the user wrote."""
        if self._is_serving:
            action()
        else:
            self._mail.append(action)
        self.alert()

    def alert(self) -> None:
        """Something is to be done between two records: a priority event came."""
        self.is_urgent = True
        self.wake()
        if self._reading is not None:
            self._reading.cancel()

    def wake(self) -> None:
        """Something may have changed for the task that waits: data came, or a buffer."""
        self._signal.wake()

    def open(self) -> None:
        """Runs what was posted so far."""
        self.is_urgent = False
        mail, self._mail = self._mail, []
        for action in mail:
            action()

    async def wait(self) -> None:
        """Waits for the next `wake`, `alert` or `post`; not if something is urgent. Cancellation: nothing changed."""
        if not self.is_urgent:
            await self._signal.wait()

    async def serving(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits `call` to its end. What is posted meanwhile runs at once, and is urgent behind it."""
        self._is_serving = True
        try:
            return await call()
        finally:
            self._is_serving = False

    async def unless_urgent(self, call: Callable[[], Awaitable[Any]]) -> tuple[bool, Any]:
        """Awaits `call`, which is cancelled when something becomes urgent.

        Returns:
            Whether it came to its end, and what it gave.
        """
        with trio.CancelScope() as scope:
            self._reading = scope
            try:
                return True, await call()
            finally:
                self._reading = None
        return False, None
