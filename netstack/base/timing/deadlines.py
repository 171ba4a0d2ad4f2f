"""Timed callbacks, mostly for buffer timeouts; one task sleeps until the earliest deadline.

Takes: (deadline, callback). Gives: calls in the order of their deadlines.
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
    """Calls each callback once at its deadline. Without deadlines the task sleeps, so an idle TaskManager uses no CPU.

    On trio's system clock an `Alarm` wakes the task: epoll timeouts are whole milliseconds, so a buffer timeout of 1 ms
    would take 2. On other clocks, and on systems without timerfd, the task uses trio's sleep.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._earlier = Signal()
        self._alarm: Alarm | None = None
        self._now: Callable[[], float] | None = None

    @staticmethod
    def has_timer() -> bool:
        """Whether a kernel timer wakes the task in this event loop."""
        return Alarm.IS_SUPPORTED and type(current_clock()).__name__ == "SystemClock"  # trio has no public name for it

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        """Schedules `callback` for `deadline_s`, in seconds of trio's clock."""
        heapq.heappush(self._heap, (deadline_s, next(self._order), callback))
        if self._heap[0][0] == deadline_s:
            if self._alarm is not None and self._now is not None:
                self._alarm.set(deadline_s - self._now())
            else:
                self._earlier.wake()

    async def run(self) -> None:
        """Runs until cancelled. Callbacks must not raise."""
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
        deadline_s = self._heap[0][0] if self._heap else math.inf
        if self._alarm is not None and self._now is not None:
            self._alarm.set(deadline_s - self._now())
            await self._alarm.wait()
        else:
            with trio.move_on_at(deadline_s):
                await self._earlier.wait()
