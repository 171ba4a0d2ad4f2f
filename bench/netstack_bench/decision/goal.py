"""What is wanted of a buffer timeout, and the figures of one timeout that are compared with it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from netstack.base.units import format_duration, format_latency, three_digits

from ..interval import Interval
from .effects import AT_A_LOOK, Share

DEFAULT_KEPT: Final = 0.9
"""The part of the throughput that the answer without a goal keeps."""

MARGIN: Final = 0.05
"""Of the throughput: so much the truth may lie on the other side of `kept` with 95 % confidence."""

Judgement = Literal["meets", "misses", "open"]


@dataclass(frozen=True, slots=True)
class Goal:
    """An upper bound of the p99, a lower bound of the payload (10^6 bytes a second), or neither.

    Without them it is the shortest timeout with the part `kept` of the throughput at the reference timeout.
    """

    p99_us: float | None = None
    mb_per_s: float | None = None
    kept: float = DEFAULT_KEPT

    @classmethod
    def of(cls, p99_s: float | None, mb_per_s: float | None) -> Goal:
        """The goal with a bound of the p99 in seconds, or of the payload."""
        return cls(p99_us=None if p99_s is None else p99_s * 1e6, mb_per_s=mb_per_s)

    @property
    def is_relative(self) -> bool:
        """Whether it is a part of the throughput at the reference."""
        return self.p99_us is None and self.mb_per_s is None

    def __str__(self) -> str:
        if self.p99_us is not None:
            return f"p99 up to {format_latency(self.p99_us)}"
        if self.mb_per_s is not None:
            return f"{three_digits(self.mb_per_s)} MB/s"
        return f"{self.kept:.0%} of the throughput".replace("%", " %")


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """The figures at one buffer timeout, of one workload or of several together.

    `shares` are those of each workload by its name, their ranges all at once. `other` is the one workload that differs,
    with its share and the timeout to set there: `share` leaves it out.
    """

    timeout_s: float | None
    share: Share
    passes: int  # in which it was measured, in every workload
    shares: tuple[tuple[str, Share], ...] = ()
    other: tuple[str, Share, str] | None = None
    mb_per_s: Sequence[float] = ()  # of each throughput run; of several workloads none
    p99_us: Sequence[float] = ()  # of each latency run, of the workload with the longest
    bottleneck: str = ""

    @property
    def label(self) -> str:
        """The timeout as text."""
        return format_duration(self.timeout_s, space=" ")

    @property
    def rate(self) -> Interval | None:
        """The range of the payload rate."""
        return Interval.of(self.mb_per_s, AT_A_LOOK)

    @property
    def p99(self) -> Interval | None:
        """The range of the p99."""
        return Interval.of(self.p99_us, AT_A_LOOK)

    @property
    def rate_middle(self) -> float:
        """The median payload a second; 0 where it is that of several workloads."""
        return statistics.median(self.mb_per_s) if self.mb_per_s else 0.0

    @property
    def p99_middle(self) -> float:
        """The median p99 in microseconds; the timeout where no latency was measured."""
        if self.p99_us:
            return statistics.median(self.p99_us)
        return math.inf if self.timeout_s is None else self.timeout_s * 1e6

    @property
    def rate_text(self) -> str:
        """The payload rate, with its range where it is known."""
        return megabytes(self.rate_middle) if self.rate is None else self.rate.text(megabytes)

    @property
    def p99_text(self) -> str:
        """The p99, with its range where it is known."""
        return format_latency(self.p99_middle) if self.p99 is None else self.p99.text(format_latency)

    def judged(self, goal: Goal) -> Judgement:
        """Compares the figures with the goal."""
        if goal.p99_us is not None:
            p99 = self.p99
            return "open" if p99 is None else _judged(p99.high <= goal.p99_us, p99.low > goal.p99_us)
        if goal.mb_per_s is not None:
            rate = self.rate
            return "open" if rate is None else _judged(rate.low >= goal.mb_per_s, rate.high < goal.mb_per_s)
        share = self.share
        below = sum(each.range is not None and each.range.high < goal.kept for _, each in self.shares)
        if below > (self.other is not None):
            return "misses"
        if share.range is None:
            return "open"
        return _judged(
            share.middle >= goal.kept and share.range.low >= goal.kept - MARGIN,
            share.middle < goal.kept and share.range.high <= goal.kept + MARGIN,
        )

    def leans(self, goal: Goal) -> bool:
        """Compares the estimate with the goal, for figures whose range leaves it open."""
        if goal.p99_us is not None:
            return self.p99_middle <= goal.p99_us
        return self.share.middle >= goal.kept if goal.mb_per_s is None else self.rate_middle >= goal.mb_per_s

    def figure(self, goal: Goal, reference: str) -> str:
        """What is compared with the goal, as the rest of a sentence about the timeout."""
        if goal.p99_us is not None:
            return f"has a p99 of {self.p99_text}"
        if goal.mb_per_s is not None:
            return f"carries {self.rate_text}"
        return f"keeps {self.share.text} of the throughput at {reference}"

    def passes_needed(self, goal: Goal) -> int | None:
        """About how many more passes bring its range to one side of the goal; None while the noise is unknown."""
        if goal.p99_us is not None:
            known, away = self.p99, abs(math.log(goal.p99_us / self.p99_middle))
        elif goal.mb_per_s is not None:
            known, away = self.rate, abs(math.log(goal.mb_per_s / self.rate_middle))
        else:
            known, middle = self.share.range, self.share.middle
            bound = goal.kept - MARGIN if middle >= goal.kept else goal.kept + MARGIN
            away = abs(math.log(middle / bound))
        if known is None or not away:
            return None
        half = math.log(known.high / known.low) / 2
        return max(1, math.ceil(self.passes * ((half / away) ** 2 - 1)))


def megabytes(value: float) -> str:
    """`520 MB/s`."""
    return f"{three_digits(value)} MB/s"


def _judged(meets: bool, misses: bool) -> Judgement:
    return "meets" if meets else "misses" if misses else "open"
