"""The clock of a simulation: it stands still while a task can run, and jumps to the next deadline when none can.

Takes: nothing. Gives: a clock for `trio.run`.

It does what `trio.testing.MockClock` does with `autojump_threshold=0`, in one round of trio's loop for each jump instead
of two, and without asking for the statistics of the run. Jumps end at whole ticks: what is due within one tick happens
in one round, in the order that the seed picks.
"""

from __future__ import annotations

import math
from typing import Final, final

import trio

TICK_S: Final = 0.000_25
_NEVER_S: Final = 999_999_999.0


@final
class JumpingClock(trio.abc.Clock):
    """See the module; not for runs that wait for sockets or threads."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def start_clock(self) -> None:
        """Nothing moves by itself."""

    def current_time(self) -> float:
        """Seconds since the run began."""
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Trio asks when no task can run: it is the deadline now."""
        if deadline == math.inf:
            return _NEVER_S
        if deadline > self._now_s:
            self._now_s = max(deadline, math.ceil(deadline / TICK_S) * TICK_S)
        return 0.0
