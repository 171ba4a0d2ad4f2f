"""The mailbox of a task: actions that it runs between two records.

Takes: callbacks of timers, of the coordinator, of gates and pools. Gives: one attribute to check between records, and a
method to wait.

Rules: only the task waits on its mailbox. Posted actions run in the task, in order, between two records; while the task
awaits a source they run at once. `wake` makes a waiting task check its conditions again. `alert` and `post` also set
`is_urgent`, so that the task handles them before the next record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, final

import trio

from ...base.timing.wakeup import Signal


@final
class Mailbox:
    """The mailbox of one task.

    Attributes:
        is_urgent: whether the task must act before the next record.
    """

    __slots__ = ("_is_serving", "_mail", "_reading", "_signal", "is_urgent")

    def __init__(self) -> None:
        self.is_urgent = False
        self._mail: list[Callable[[], None]] = []
        self._signal = Signal()
        self._reading: trio.CancelScope | None = None
        self._is_serving = False

    def post(self, action: Callable[[], None]) -> None:
        """Makes the task run `action` between two records. The action must neither wait nor call user code."""
        if self._is_serving:
            action()
        else:
            self._mail.append(action)
        self.alert()

    def alert(self) -> None:
        """Makes the task act before its next record, for example because a priority event has arrived."""
        self.is_urgent = True
        self.wake()
        if self._reading is not None:
            self._reading.cancel()

    def wake(self) -> None:
        """Wakes the task if it waits, for example because data or a buffer is available."""
        self._signal.wake()

    def open(self) -> None:
        """Runs the actions posted so far."""
        self.is_urgent = False
        mail, self._mail = self._mail, []
        for action in mail:
            action()

    async def wait(self) -> None:
        """Waits for the next `wake`, `alert` or `post`, unless `is_urgent`. Cancellation: nothing changed."""
        if not self.is_urgent:
            await self._signal.wait()

    async def serving(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits `call`. Actions posted meanwhile run at once; the mailbox is urgent afterwards."""
        self._is_serving = True
        try:
            return await call()
        finally:
            self._is_serving = False

    async def unless_urgent(self, call: Callable[[], Awaitable[Any]]) -> tuple[bool, Any]:
        """Awaits `call`, and cancels it when the mailbox becomes urgent.

        Returns:
            Whether it completed, and its result.
        """
        with trio.CancelScope() as scope:
            self._reading = scope
            try:
                return True, await call()
            finally:
                self._reading = None
        return False, None
