"""When bytes that were not announced yet are flushed: at once, with what else is due about then, or by the clock.

Takes: the buffer timeout; which slot got its first unflushed byte; what left a slot. Gives: the time of its flush.

`LeadingEdge` is ours. A record gains nothing by waiting on a channel that was quiet for the whole timeout: it is
flushed at once. After that a channel is flushed at most once a timeout, so that on a busy one records wait half of it
on average. What many channels may cost is bounded twice. A writer has a budget of flushes at once: beyond it a record
waits for the timeout. And deadlines lie on a grid, so that a writer wakes up `TICKS` times a timeout at most, and once
in `SHORTEST_TICK_S`.

`Periodic` is Flink's: a clock of the writer flushes everything once a timeout, whatever came when. There it is a thread
that sleeps for the timeout, so that its period is longer by what the system wakes it late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from .partition import PartitionHost

TICKS: Final = 16
"""Deadlines of a writer in one timeout: a flush may come by such a part of it earlier than it had to."""

SHORTEST_TICK_S: Final = 0.000_25
"""And between two of its deadlines, unless the timeout is shorter: each may wake the loop."""

EARLY_PER_S: Final = 1000.0
"""Flushes at once that a writer may make in a second: each may be a system call here and a wake-up there."""

EARLY_BURST: Final = 32.0
"""And in a moment, after it made none for a while."""

OVERSLEEP_S: Final = 60e-6
"""What a thread that sleeps is woken late, as a rule: 50 us of a timer's slack, and the way to a processor."""

AT_ONCE: Final = -1.0


@final
class Periodic:
    """Once a period, from the making of the writer on."""

    __slots__ = ("_began", "_host", "_period_s")

    def __init__(self, host: PartitionHost, timeout_s: float) -> None:
        """The first period begins; `timeout_s`, of the buffers, is above 0."""
        self._host = host
        self._period_s = timeout_s + OVERSLEEP_S
        self._began = host.now()

    def due(self, slot: int, is_quiet: bool) -> float:
        """When the period ends, on the clock of `PartitionHost.now`: then a slot is flushed, whatever came when."""
        now = self._host.now()
        return self._began + (1 + (now - self._began) // self._period_s) * self._period_s

    def on_left(self, slot: int) -> None:
        """The bytes of a slot have left; the period stays what it is."""


@final
class LeadingEdge:
    """At once after a quiet timeout, then a timeout after what left last."""

    __slots__ = ("_budget", "_host", "_left_at", "_looked_at", "_timeout_s", "_width_s")

    def __init__(self, host: PartitionHost, timeout_s: float, slots: int) -> None:
        """Every slot has been quiet for ever; `timeout_s`, of the buffers, is above 0."""
        self._host = host
        self._timeout_s = timeout_s
        self._width_s = min(timeout_s, max(timeout_s / TICKS, SHORTEST_TICK_S))
        self._left_at = [float("-inf")] * slots
        self._budget = EARLY_BURST
        self._looked_at = host.ticks()

    def due(self, slot: int, is_quiet: bool) -> float:
        """When to flush a slot that has its first unflushed byte: on the clock of `PartitionHost.now`, or `AT_ONCE`.

        At once if the slot was quiet for the timeout and the budget lasts; else on the grid, within the timeout.

        Args:
            slot: which.
            is_quiet: whether nothing was written to it since its bytes last left.
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
        """All bytes of a slot were flushed, or left with a full buffer, or before an event: it is quiet from now on."""
        self._left_at[slot] = self._host.ticks()

    def _may_flush(self, ticks: float) -> bool:
        """Takes one flush from the budget."""
        budget = min(EARLY_BURST, self._budget + (ticks - self._looked_at) * EARLY_PER_S)
        self._looked_at = ticks
        if budget < 1:
            self._budget = budget
            return False
        self._budget = budget - 1
        return True


FlushTimes = Periodic | LeadingEdge
"""Of one writer."""
