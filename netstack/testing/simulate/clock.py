"""The virtual clock of a simulation: it stands still while a task can run and jumps to the next deadline otherwise.

It behaves like `trio.testing.MockClock` with `autojump_threshold=0`, but needs one round of trio's loop per jump
instead of two. Jumps end at whole ticks: everything due within a tick happens in one round, in the seed's order.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, final

import trio

TICK_S: Final = 0.000_25
READS_AT_MOST: Final = 1_000_000
"""Limit of clock reads. Trio reads the clock in each round, so this stops a simulation without progress."""

_NEVER_S: Final = 999_999_999.0


@final
class JumpingClock(trio.abc.Clock):
    """A clock for `trio.run`, if no task waits for sockets or threads.

    Args:
        give_up: called with a reason after `READS_AT_MOST` reads.
    """

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self._now_s = 0.0
        self._give_up = give_up
        self._reads = 0
        self._due: list[list[Any]] = []  # heap of [due_s, order, callback]; a cancelled callback is None
        self._order = itertools.count()

    def start_clock(self) -> None:
        """Does nothing: the clock starts at 0."""

    def current_time(self) -> float:
        """Seconds since the run began."""
        self._reads += 1
        if self._reads == READS_AT_MOST:
            self._give_up(f"no end: tasks have read the clock {READS_AT_MOST} times")
        return self._now_s

    def call_at(self, due_s: float, callback: Callable[[], object]) -> list[Any]:
        """Schedules a callback, at half the cost of a cancel scope with a deadline; it must not raise.

        Returns:
            The entry; set its last item to None to cancel the callback.
        """
        entry = [due_s, next(self._order), callback]
        heapq.heappush(self._due, entry)
        return entry

    async def sleep_until(self, due_s: float) -> None:
        """Sleeps like `trio.sleep_until`, without a cancel scope."""
        if due_s <= self._now_s:
            await trio.lowlevel.checkpoint()
            return
        entry = self.call_at(due_s, partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))

        def abort(_: object) -> trio.lowlevel.Abort:
            entry[2] = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def sleep(self, seconds: float) -> None:
        """Sleeps like `trio.sleep`, without a cancel scope."""
        await self.sleep_until(self._now_s + seconds)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jumps to the deadline or to an earlier callback; trio calls it when no task can run."""
        due = self._due
        while due and due[0][2] is None:
            heapq.heappop(due)
        if due and due[0][0] < deadline:
            deadline = due[0][0]
        if deadline == math.inf:
            return _NEVER_S
        if deadline > self._now_s:
            self._now_s = max(deadline, math.ceil(deadline / TICK_S) * TICK_S)
        while due and due[0][0] <= self._now_s:
            callback = heapq.heappop(due)[2]
            if callback is not None:
                callback()
        return 0.0
