"""The buffer timeout's clock: one task per TaskManager that calls back at deadlines, and sleeps when there are none.

Takes: (deadline, callback). Gives: calls, in order of their deadlines.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import final

import trio

from .signal import Signal


@final
class Flusher:
    """Calls back once at each deadline; idle without deadlines, so an idle TaskManager costs no CPU."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._earlier = Signal()

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        """Registers a call; `deadline_s` is of trio's clock."""
        heapq.heappush(self._heap, (deadline_s, next(self._order), callback))
        if self._heap[0][0] == deadline_s:
            self._earlier.wake()

    async def run(self) -> None:
        """Runs until cancelled. A callback must not raise."""
        heap = self._heap
        while True:
            if not heap:
                await self._earlier.wait()
                continue
            with trio.move_on_at(heap[0][0]):
                await self._earlier.wait()
            now = trio.current_time()
            while heap and heap[0][0] <= now:
                heapq.heappop(heap)[2]()
