"""The clock of a simulation: it stands still while a task can run, and jumps to the next deadline when none can.

Takes: what is to be called when there is no end, and at moments. Gives: a clock for `trio.run`.

It does what `trio.testing.MockClock` does with `autojump_threshold=0`, in one round of trio's loop for each jump, not
two, and without asking for the statistics of the run. Jumps end at whole ticks: what is due within one tick happens in
one round, in the order that the seed picks.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final, final

import trio

TICK_S: Final = 0.000_25
LOOKS_AT_MOST: Final = 1_000_000
"""At the clock, of all tasks together: trio itself looks in each round, so what goes round and round is stopped."""

_NEVER_S: Final = 999_999_999.0


@final
class JumpingClock(trio.abc.Clock):
    """See the module; not for runs that wait for sockets or threads."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self._now_s = 0.0
        self._give_up = give_up
        self._looks = 0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def start_clock(self) -> None:
        """Nothing moves by itself."""

    def current_time(self) -> float:
        """Seconds since the run began."""
        self._looks += 1
        if self._looks == LOOKS_AT_MOST:
            self._give_up(f"no end: somebody has looked at the clock {LOOKS_AT_MOST} times")
        return self._now_s

    def call_at(self, due_s: float, callback: Callable[[], object]) -> None:
        """Has something called at a moment, which may wake tasks: half of what a scope with a deadline costs, or less.

        It must not raise.
        """
        heapq.heappush(self._due, (due_s, next(self._order), callback))

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Trio asks when no task can run: it is the deadline now, or what is due before it."""
        due = self._due
        if due and due[0][0] < deadline:
            deadline = due[0][0]
        if deadline == math.inf:
            return _NEVER_S
        if deadline > self._now_s:
            self._now_s = max(deadline, math.ceil(deadline / TICK_S) * TICK_S)
        while due and due[0][0] <= self._now_s:
            heapq.heappop(due)[2]()
        return 0.0
