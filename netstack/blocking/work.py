"""What stands in a blocking writer's queue and is not a record of its own: a batch, an event, a flush, the end.

Takes: an action. Gives: its outcome, to who waits for it; or nothing, to who does not.

Rules: what was not begun can be withdrawn; what was begun is waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import trio


@final
class Work:
    """One action; its error is raised where it is awaited, else where it runs.

    Attributes:
        records: how many it writes.
        bytes: how many of theirs it holds.
        is_begun: whether it runs, ran, or was withdrawn.
        done: set when it is over.
        error: why it failed.
    """

    __slots__ = ("_action", "_is_awaited", "bytes", "done", "error", "is_begun", "records")

    def __init__(
        self, action: Callable[[], Awaitable[None]], *, is_awaited: bool = False, records: int = 0, bytes: int = 0
    ) -> None:
        self._action = action
        self._is_awaited = is_awaited
        self.records = records
        self.bytes = bytes
        self.is_begun = False
        self.done = trio.Event()
        self.error: BaseException | None = None

    async def run(self) -> None:
        """Does it, unless it was withdrawn."""
        if not self.is_begun:
            self.is_begun = True
            try:
                await self._action()
            except trio.Cancelled:
                raise
            except BaseException as error:  # of an event that cannot be encoded, say: its own, and the writer goes on
                if not self._is_awaited:
                    raise
                self.error = error
            self.done.set()

    def fail(self, error: BaseException) -> None:
        """It cannot be done any more."""
        self.error = error
        self.done.set()

    async def wait(self) -> None:
        """Waits until it is done. Cancellation before it was begun withdraws it; what was begun is waited for."""
        try:
            await self.done.wait()
        except trio.Cancelled:
            if not self.is_begun:
                self.is_begun = True
                raise
            with trio.CancelScope(shield=True):
                await self.done.wait()
        if self.error is not None:
            raise self.error
