"""Holds a consumer back: at most so many records a second, which is what makes back-pressure visible.

Takes: a rate, and how many records are about to be taken. Gives: a wait until it is their turn.

Rules: turns are spread evenly. A consumer that fell behind does not catch up, but for the grain of the sleep: otherwise
a late wake-up, which is the rule, would lower the rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import trio

from .pacing import clock_ns

GRAIN_NS: Final = 10_000_000
"""How far ahead of its turns a consumer may be before it sleeps, and how late one may be made up for."""


@final
class Throttle:
    """At most `rate_per_s` records a second.

    Attributes:
        step_records: an array is best taken in parts of this many, so that turns stay even.
    """

    __slots__ = ("_free_ns", "_interval_ns", "_now_ns", "step_records")

    def __init__(self, rate_per_s: float, *, now_ns: Callable[[], int] = clock_ns) -> None:
        self._interval_ns = 1e9 / rate_per_s
        self._now_ns = now_ns
        self._free_ns = 0.0  # when the next record may be taken
        self.step_records = max(1, int(GRAIN_NS / self._interval_ns))

    async def turn(self, records: int) -> None:
        """Waits until this many records may be taken.

        A checkpoint only when it waits. Cancellation: the turn counts as taken.
        """
        now = self._now_ns()
        free = max(self._free_ns, now - GRAIN_NS)
        self._free_ns = free + records * self._interval_ns
        ahead = self._free_ns - now
        if ahead > GRAIN_NS:
            await trio.sleep((ahead - GRAIN_NS) / 1e9)
