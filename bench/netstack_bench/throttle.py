"""Limits a consumer to a rate, to create backpressure.

Turns are evenly spread. A late consumer does not catch up, except within the grain of the sleep: late wake-ups are the
rule and would otherwise lower the rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import trio

from .pacing import clock_ns

GRAIN_NS: Final = 10_000_000
"""The lead over its turns at which a consumer sleeps, and the limit of what it may catch up."""


@final
class Throttle:
    """Limits a consumer to `rate_per_s` records per second; arrays should be taken in parts of `step_records`."""

    __slots__ = ("_free_ns", "_interval_ns", "_now_ns", "step_records")

    def __init__(self, rate_per_s: float, *, now_ns: Callable[[], int] = clock_ns) -> None:
        self._interval_ns = 1e9 / rate_per_s
        self._now_ns = now_ns
        self._free_ns = 0.0  # when the next record may be taken
        self.step_records = max(1, int(GRAIN_NS / self._interval_ns))

    async def turn(self, records: int) -> None:
        """Waits until this many records may be taken; a checkpoint only if it waits.

        Cancellation: the turn is used up.
        """
        now = self._now_ns()
        free = max(self._free_ns, now - GRAIN_NS)
        self._free_ns = free + records * self._interval_ns
        ahead = self._free_ns - now
        if ahead > GRAIN_NS:
            await trio.sleep((ahead - GRAIN_NS) / 1e9)
