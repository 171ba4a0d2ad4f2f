"""Waiting times: in total, the longest, and per second of the last minute.

Takes: the begin and end of each wait, in seconds of one monotonic clock. Gives: `WaitStatistics`.

Rules:
- There is no timer: a wait costs two calls, and a snapshot computes the rest.
- The last minute is the current 5-second span and the 11 before it, so 55 to 60 s; a younger meter covers its own age.
  Spans begin at multiples of 5 s of the clock.
- A wait in progress counts up to now.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final, final

SPAN_S: Final = 5.0
SPANS: Final = 12


@dataclass(frozen=True, slots=True)
class WaitStatistics:
    """A snapshot of one kind of waiting.

    Attributes:
        total_s: seconds waited since the meter was created.
        ms_per_s: milliseconds waited per second of the last minute (55 to 60 s): 0 to 1000.
    """

    total_s: float
    ms_per_s: float
    longest_s: float


@final
class WaitMeter:
    """Accumulates waiting times. 400 bytes; `begin` and `end` are O(1)."""

    __slots__ = ("_before_s", "_began_s", "_longest_s", "_made_s", "_span", "_total_s", "_waiters", "count")

    def __init__(self, now_s: float) -> None:
        self.count = 0
        """The number of waits begun."""
        self._made_s = now_s
        self._total_s = 0.0
        self._longest_s = 0.0
        self._began_s = now_s
        self._waiters = 0
        self._span = int(now_s // SPAN_S)
        self._before_s = array("d", bytes(8 * SPANS))  # [k % SPANS]: the total when span k began

    def begin(self, now_s: float) -> None:
        """Begins a wait. The time of several concurrent waits counts once."""
        if not self._waiters:
            self._began_s = now_s
            self.count += 1
        self._waiters += 1

    def end(self, now_s: float) -> None:
        """Ends a wait begun by `begin`."""
        self._roll(now_s)
        self._waiters -= 1
        if not self._waiters:
            waited = now_s - self._began_s
            self._total_s += waited
            if waited > self._longest_s:
                self._longest_s = waited

    def total_s(self, now_s: float) -> float:
        """Seconds waited since the meter was created."""
        return self._total_s + self._current_s(now_s)

    def longest_s(self, now_s: float) -> float:
        """The longest single wait."""
        return max(self._longest_s, self._current_s(now_s))

    def ms_per_s(self, now_s: float) -> float:
        """Milliseconds waited per second of the last minute: 0 to 1000."""
        self._roll(now_s)
        oldest = self._span - SPANS + 1
        length = now_s - max(oldest * SPAN_S, self._made_s)
        if length <= 0.0:
            return 0.0
        waited = self.total_s(now_s) - self._before_s[oldest % SPANS]
        return min(1000.0, 1000.0 * waited / length)

    def statistics(self, now_s: float) -> WaitStatistics:
        """A snapshot; O(1)."""
        return WaitStatistics(self.total_s(now_s), self.ms_per_s(now_s), self.longest_s(now_s))

    def _current_s(self, now_s: float) -> float:
        return now_s - self._began_s if self._waiters else 0.0

    def _roll(self, now_s: float) -> None:
        """Records, for each span begun since the last call, the total at its start."""
        span = int(now_s // SPAN_S)
        if span <= self._span:
            return
        for begun in range(max(self._span + 1, span - SPANS + 1), span + 1):
            self._before_s[begun % SPANS] = self._total_s + max(0.0, self._current_s(begun * SPAN_S))
        self._span = span
