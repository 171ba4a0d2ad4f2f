"""The answer: which measured timeout reaches a goal, with what confidence, and at what cost.

Rules: a point reaches a goal when the whole interval of its figure does (`bench.interval`, 95 %), misses it when none
of the interval does, and is open otherwise. Of points whose throughput is within 3 % it takes the lowest latency.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from netstack.units import format_duration, format_latency, format_size, three_digits

from ..interval import ENOUGH_REPEATS, Interval

DEFAULT_KEPT: Final = 0.9
ALIKE: Final = 0.03
"""A throughput that is higher by less than this part is not worth a longer latency."""

WIDEST: Final = 0.1
"""A figure with a wider half interval, as a part of its middle, decides nothing."""

Judgement = Literal["meets", "misses", "open"]


@dataclass(frozen=True, slots=True)
class Goal:
    """An upper bound of the p99, a lower bound of the payload (10^6 bytes a second), or neither.

    Without them it is the lowest latency with the part `kept` of the throughput at the reference timeout.
    """

    p99_us: float | None = None
    mb_per_s: float | None = None
    kept: float = DEFAULT_KEPT

    @classmethod
    def of(cls, p99_s: float | None, mb_per_s: float | None) -> Goal:
        """The goal with a bound of the p99 in seconds, or of the payload."""
        return cls(p99_us=None if p99_s is None else p99_s * 1e6, mb_per_s=mb_per_s)

    def __str__(self) -> str:
        if self.p99_us is not None:
            return f"p99 up to {format_latency(self.p99_us)}"
        if self.mb_per_s is not None:
            return f"{three_digits(self.mb_per_s)} MB/s"
        return f"{self.kept:.0%} of the throughput"


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """The measurements at one buffer timeout."""

    timeout_s: float | None
    pairs: Sequence[tuple[float, float]]  # payload MB/s (at the reference timeout, here), of runs made by turns
    p99_us: Sequence[float] = ()  # of each latency run
    bottleneck: str = ""  # the side that limits the throughput; empty where unknown
    kept: Interval | None = field(init=False)
    p99: Interval | None = field(init=False)
    rate: Interval | None = field(init=False)

    def __post_init__(self) -> None:
        """Computes the intervals once."""
        object.__setattr__(self, "kept", Interval.of_pairs(self.pairs))
        object.__setattr__(self, "rate", Interval.of(here for _, here in self.pairs))
        object.__setattr__(self, "p99", Interval.of(self.p99_us))

    @property
    def kept_middle(self) -> float:
        """The median of the kept throughput, for any number of repeats."""
        return statistics.median(here / there for there, here in self.pairs)

    @property
    def kept_text(self) -> str:
        """The kept throughput, with its range where there are enough repeats."""
        return f"{self.kept_middle:.0%}" if self.kept is None else self.kept.percent()

    @property
    def rate_text(self) -> str:
        """The payload rate, with its range where there are enough repeats."""
        return _megabytes(self.mb_per_s) if self.rate is None else self.rate.text(_megabytes)

    @property
    def p99_text(self) -> str:
        """The p99, with its range where there are enough repeats."""
        return format_latency(self.promptness) if self.p99 is None else self.p99.text(format_latency)

    @property
    def mb_per_s(self) -> float:
        """The median payload a second."""
        return statistics.median(here for _, here in self.pairs)

    @property
    def promptness(self) -> float:
        """The median p99 in microseconds; the timeout where no latency was measured."""
        if self.p99_us:
            return statistics.median(self.p99_us)
        return math.inf if self.timeout_s is None else self.timeout_s * 1e6

    def judged(self, goal: Goal) -> Judgement:
        """Compares the interval with the goal."""
        if goal.p99_us is not None:
            judgement = self.p99
            return "open" if judgement is None else _judged(judgement.high <= goal.p99_us, judgement.low > goal.p99_us)
        judgement, least = (self.kept, goal.kept) if goal.mb_per_s is None else (self.rate, goal.mb_per_s)
        return "open" if judgement is None else _judged(judgement.low >= least, judgement.high < least)

    def leans(self, goal: Goal) -> bool:
        """Compares the median with the goal, for points whose interval is open."""
        if goal.p99_us is not None:
            return self.promptness <= goal.p99_us
        return self.kept_middle >= goal.kept if goal.mb_per_s is None else self.mb_per_s >= goal.mb_per_s


@dataclass(frozen=True, slots=True)
class Answer:
    """The timeout to set, and the doubts about it."""

    goal: Goal
    point: Point  # where none reaches the goal, the nearest
    reference_s: float | None  # the timeout whose throughput counts as 100 %
    is_reached: bool  # False where that is open
    doubts: tuple[str, ...] = ()  # why the data do not decide; empty where they do
    unclear: tuple[Point, ...] = ()  # the points that need more repeats

    @property
    def is_decided(self) -> bool:
        """Whether there are no doubts."""
        return not self.doubts

    def figures(self, memory_bytes: int | None = None) -> str:
        """The figures of the point, for the middle of a sentence."""
        point = self.point
        parts = []
        if point.timeout_s != self.reference_s:
            parts.append(f"it keeps {point.kept_text} of the throughput at {_timeout(self.reference_s)}")
        parts.append(point.rate_text)
        if point.p99_us:
            parts.append(f"p99 {point.p99_text}")
        if point.bottleneck:
            parts.append(f"bottleneck: {point.bottleneck}")
        if memory_bytes is not None:
            parts.append(f"memory {format_size(memory_bytes, space=' ')}")
        return "; ".join(parts)

    def paragraph(self, memory_bytes: int | None = None) -> str:
        """The whole answer in a few sentences."""
        timeout, figures = _timeout(self.point.timeout_s), self.figures(memory_bytes)
        if self.doubts:
            doubts = "; ".join(self.doubts)
            if self.is_reached or self.point.leans(self.goal):
                return f"The data do not decide ({doubts}). As far as they go, set {timeout}; {figures}."
            return (
                f"The data do not decide ({doubts}). As far as they go, no timeout reaches {self.goal}; nearest is"
                f" {timeout}; {figures}."
            )
        if not self.is_reached:
            return f"No timeout that was measured reaches {self.goal}. Nearest is {timeout}; {figures}."
        return f"Set {timeout}; {figures}."


def answer(points: Sequence[Point], goal: Goal, reference_s: float | None) -> Answer | None:
    """Chooses one of the points of a workload for a goal; None where no point has the runs that the goal needs."""
    known = [point for point in points if point.pairs and (goal.p99_us is None or point.p99_us)]
    if not known:
        return None
    judged = {point.timeout_s: point.judged(goal) for point in known}
    reached = [point for point in known if judged[point.timeout_s] == "meets"]
    open_ones = [point for point in known if judged[point.timeout_s] == "open"]
    if not reached and not open_ones:
        return Answer(goal, _nearest(known, goal), reference_s, False)
    likely = reached or [point for point in open_ones if point.leans(goal)]
    chosen = _best(likely, goal) if likely else _nearest(open_ones, goal)
    doubts = _doubts(chosen, chosen in reached, open_ones, goal)
    return Answer(goal, chosen, reference_s, chosen in reached, tuple(doubts.values()), tuple(doubts))


def most_named(bottlenecks: Sequence[str]) -> str:
    """The most frequent name that is not empty."""
    parts = [name for name in bottlenecks if name]
    return max(sorted(set(parts)), key=parts.count, default="")


def _best(points: Sequence[Point], goal: Goal) -> Point:
    """The highest throughput where latency is bounded, else the lowest latency."""
    if goal.p99_us is None:
        return min(points, key=lambda point: (point.promptness, -point.kept_middle))
    most = max(point.kept_middle for point in points)
    return min((point for point in points if point.kept_middle >= most - ALIKE), key=lambda point: point.promptness)


def _nearest(points: Sequence[Point], goal: Goal) -> Point:
    if goal.p99_us is not None:
        return min(points, key=lambda point: point.promptness)
    return max(points, key=lambda point: point.kept_middle if goal.mb_per_s is None else point.mb_per_s)


def _doubts(chosen: Point, is_reached: bool, open_ones: Sequence[Point], goal: Goal) -> dict[Point, str]:
    """The reasons against a decision, by their point."""
    doubts = {}
    if (repeats := len(chosen.pairs)) < ENOUGH_REPEATS:
        doubts[chosen] = f"points were measured {'once' if repeats == 1 else 'twice'}, so their noise is unknown"
    elif not is_reached:
        doubts[chosen] = f"{_timeout(chosen.timeout_s)} has {_range(chosen, goal)}, the goal is {goal}"
    elif chosen.kept is None or chosen.kept.spread > WIDEST:
        part = "an unknown part of the throughput" if chosen.kept is None else _part(chosen.kept)
        doubts[chosen] = f"{_timeout(chosen.timeout_s)} keeps {part}"
    rivals = [each for each in open_ones if each is not chosen and _is_better(each, chosen, goal)]
    if rivals and repeats >= ENOUGH_REPEATS:
        best = _best(rivals, goal)
        doubts[best] = f"{_timeout(best.timeout_s)} might do: it has {_range(best, goal)}"
    return doubts


def _is_better(one: Point, other: Point, goal: Goal) -> bool:
    """Whether `one` would be the answer if it reached the goal."""
    if goal.p99_us is None:
        return one.promptness < other.promptness
    return one.kept_middle > other.kept_middle + ALIKE


def _range(point: Point, goal: Goal) -> str:
    if goal.p99_us is not None:
        return f"a p99 of {point.p99_text}"
    if goal.mb_per_s is not None:
        return point.rate_text
    return f"{point.kept_middle:.0%} of the throughput" if point.kept is None else _part(point.kept)


def _judged(meets: bool, misses: bool) -> Judgement:
    return "meets" if meets else "misses" if misses else "open"


def _part(kept: Interval) -> str:
    return f"{kept.low:.0%} to {kept.high:.0%} of the throughput"


def _timeout(timeout_s: float | None) -> str:
    return format_duration(timeout_s, space=" ")


def _megabytes(value: float) -> str:
    return f"{three_digits(value)} MB/s"
