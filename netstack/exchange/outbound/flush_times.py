"""Computes when written bytes are flushed: at once, together with others, or periodically.

Takes: the buffer timeout; slots with a first unflushed byte; slots whose bytes left. Gives: flush times.

`LeadingEdge` is our policy. A slot that was quiet for the whole timeout is flushed at once, because its record would
gain nothing by waiting. After that a slot is flushed at most once per timeout, so on a busy channel a record waits
half the timeout on average. Two bounds limit the cost of many channels. A writer has a budget of immediate flushes;
beyond it a record waits for the timeout. Deadlines lie on a grid, so a writer wakes up at most `TICKS` times per
timeout, and at most once in `SHORTEST_TICK_S`.

`Periodic` is Flink's policy: everything is flushed once per timeout. Flink uses a thread that sleeps for the timeout,
so its period is longer by the wake-up delay.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Final, final

from ...base.errors import ConfigError

if TYPE_CHECKING:
    from .host import PartitionHost

TICKS: Final = 16
"""Deadlines of a writer per timeout: a flush may come early by this fraction of the timeout."""

SHORTEST_TICK_S: Final = 0.000_25
"""Minimum seconds between deadlines, unless the timeout is shorter: each may wake the event loop."""

EARLY_PER_S: Final = 1000.0
"""Immediate flushes per second of a writer: each may be a system call here and a wake-up at the consumer."""

EARLY_BURST: Final = 32.0
"""Immediate flushes in a burst, after a pause."""

OVERSLEEP_S: Final = 60e-6
"""The usual wake-up delay of a sleeping thread: 50 us of timer slack, plus scheduling."""

AT_ONCE: Final = -1.0


@final
class Periodic:
    """Flushes once a period, counted from the creation of the writer."""

    __slots__ = ("_began", "_host", "_period_s")

    def __init__(self, host: PartitionHost, timeout_s: float) -> None:
        """Begins the first period; `timeout_s`, the buffer timeout, is above 0."""
        self._host = host
        self._period_s = timeout_s + OVERSLEEP_S
        self._began = host.now()

    def due(self, slot: int, is_quiet: bool) -> float:
        """The end of the present period, on the clock of `PartitionHost.now`, for every slot."""
        now = self._host.now()
        return self._began + (1 + (now - self._began) // self._period_s) * self._period_s

    def on_left(self, slot: int) -> None:
        """Does nothing: the period is fixed."""


@final
class LeadingEdge:
    """Flushes at once after a quiet timeout, else a timeout after the last flush."""

    __slots__ = ("_budget", "_checked_at", "_host", "_left_at", "_timeout_s", "_width_s")

    def __init__(self, host: PartitionHost, timeout_s: float, slots: int) -> None:
        """All slots start quiet; `timeout_s`, the buffer timeout, is above 0."""
        self._host = host
        self._timeout_s = timeout_s
        self._width_s = min(timeout_s, max(timeout_s / TICKS, SHORTEST_TICK_S))
        self._left_at = [float("-inf")] * slots
        self._budget = EARLY_BURST
        self._checked_at = host.ticks()

    def due(self, slot: int, is_quiet: bool) -> float:
        """When to flush a slot with a first unflushed byte: on the clock of `PartitionHost.now`, or `AT_ONCE`.

        At once if the slot was quiet for the timeout and the budget allows it; else on the grid, within the timeout.

        Args:
            slot: the slot.
            is_quiet: whether nothing was written to it since its last flush.
        """
        ticks = self._host.ticks()
        wait_s = timeout_s = self._timeout_s
        if is_quiet:
            quiet_s = ticks - self._left_at[slot]
            if quiet_s < timeout_s:
                wait_s = timeout_s - quiet_s
            elif self._may_flush(ticks):
                return AT_ONCE
        now = self._host.now()
        width_s = self._width_s
        due = (now + wait_s) // width_s * width_s
        return due if due > now else due + width_s

    def on_left(self, slot: int) -> None:
        """Records that a slot has no unflushed bytes: it is quiet from now on."""
        self._left_at[slot] = self._host.ticks()

    def _may_flush(self, ticks: float) -> bool:
        """Takes one flush from the budget, if there is one."""
        budget = min(EARLY_BURST, self._budget + (ticks - self._checked_at) * EARLY_PER_S)
        self._checked_at = ticks
        if budget < 1:
            self._budget = budget
            return False
        self._budget = budget - 1
        return True


FlushTimes = Periodic | LeadingEdge
"""The flush policy of one writer."""


def check_buffer_timeout(buffer_timeout_s: object) -> None:
    """Checks a buffer timeout. Raises ConfigError if it is negative or no number."""
    if buffer_timeout_s is None or (isinstance(buffer_timeout_s, Real) and float(buffer_timeout_s) >= 0):
        return
    raise ConfigError(f"buffer_timeout_s={buffer_timeout_s!r}; give 0, seconds above 0, or None")
