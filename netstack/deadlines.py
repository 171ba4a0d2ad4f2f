"""Calls at deadlines, of buffer timeouts above all, by one task, which sleeps until the next one.

Takes: (deadline, callback). Gives: calls, in order of their deadlines.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import final

import trio
from trio.lowlevel import current_clock

from .alarm import Alarm
from .wakeup import Signal


@final
class Deadlines:
    """Calls back once at each deadline; idle without deadlines, so an idle TaskManager costs no CPU.

    On trio's own clock an `Alarm` wakes it: epoll's timeouts, in whole milliseconds, would make a buffer timeout of
    1 ms one of 2. On any other clock, and where there are no such timers, it sleeps as trio does.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._earlier = Signal()
        self._alarm: Alarm | None = None
        self._now: Callable[[], float] | None = None

    @staticmethod
    def has_timer() -> bool:
        """Whether a timer of the kernel wakes it in this event loop."""
        return Alarm.IS_SUPPORTED and type(current_clock()).__name__ == "SystemClock"  # trio has no public name for it

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        """Registers a call; `deadline_s` is of trio's clock."""
        heapq.heappush(self._heap, (deadline_s, next(self._order), callback))
        if self._heap[0][0] == deadline_s:
            if self._alarm is not None and self._now is not None:
                self._alarm.set(deadline_s - self._now())
            else:
                self._earlier.wake()

    async def run(self) -> None:
        """Runs until cancelled. A callback must not raise."""
        heap = self._heap
        now = self._now = current_clock().current_time
        if self.has_timer():
            self._alarm = Alarm()
        try:
            while True:
                await self._wait()
                now_s = now()
                while heap and heap[0][0] <= now_s:
                    heapq.heappop(heap)[2]()
        finally:
            alarm, self._alarm = self._alarm, None
            if alarm is not None:
                alarm.close()

    async def _wait(self) -> None:
        """Returns at the first deadline, or earlier."""
        deadline_s = self._heap[0][0] if self._heap else math.inf
        if self._alarm is not None and self._now is not None:
            self._alarm.set(deadline_s - self._now())
            await self._alarm.wait()
        else:
            with trio.move_on_at(deadline_s):
                await self._earlier.wait()
