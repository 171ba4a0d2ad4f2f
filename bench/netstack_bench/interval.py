"""Confidence intervals of repeated figures, and whether two figures are equivalent.

Student's t of the logarithms, because figures of runs differ by factors rather than by amounts. Interleaved runs are
compared in pairs (`of_pairs`), so that drift affects both alike; runs of separate sweeps with `of_ratio` (Welch's
degrees of freedom, rounded down).
"""

from __future__ import annotations

import enum
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

ENOUGH_REPEATS: Final = 3
"""With fewer repeats the noise is unknown."""

PRINTED: Final = 0.95
"""Confidence of a range that is printed beside a figure."""

_TOO_WIDE: Final = 100.0
"""Ends of a range that differ by more than this factor are not printed."""

_NORMAL: Final = 1000
"""Degrees of freedom beyond which Student's t is as good as normal."""

JUDGED: Final = 0.99
"""Confidence of a verdict; higher, because many figures are judged at once."""


@functools.cache
def t_quantile(confidence: float, degrees: int) -> float:
    """The two-sided quantile of Student's t."""
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """The probability of a value between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    degrees = min(degrees, _NORMAL)
    angle = math.atan2(t, math.sqrt(degrees))
    square, term, total = math.cos(angle) ** 2, 1.0, 0.0
    for number in range(degrees % 2 + 2, degrees + 1, 2):
        total += term
        term *= square * (number - 1) / number
    if degrees % 2:
        return (angle + math.sin(angle) * math.cos(angle) * total) * 2 / math.pi
    return math.sin(angle) * total


def welch(a: Sequence[float], b: Sequence[float], confidence: float) -> tuple[float, float]:
    """The difference of the means of `b` and `a`, and half of the width of its interval; infinite with too few."""
    change = statistics.fmean(b) - statistics.fmean(a)
    if min(len(a), len(b)) < ENOUGH_REPEATS:
        return change, math.inf
    parts = [statistics.variance(values) / len(values) for values in (a, b)]
    degrees = min(len(a), len(b)) - 1
    if all(parts):
        shares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
        degrees = int(sum(parts) ** 2 / shares)
    return change, t_quantile(confidence, degrees) * math.sqrt(sum(parts))


@dataclass(frozen=True, slots=True)
class Interval:
    """The geometric mean of a figure and its confidence interval."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float], confidence: float = PRINTED) -> Interval | None:
        """The interval of repeats; None if there are too few or one is not above 0."""
        logs = _logarithms(values)
        if logs is None:
            return None
        return cls._around(
            statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs)), len(logs) - 1, confidence
        )

    @classmethod
    def of_pairs(cls, pairs: Iterable[tuple[float, float]]) -> Interval | None:
        """The interval of second / first, of interleaved runs."""
        return cls.of(b / a if a else 0.0 for a, b in pairs)

    @classmethod
    def of_ratio(cls, a: Iterable[float], b: Iterable[float], confidence: float = PRINTED) -> Interval | None:
        """The interval of `b` / `a`, of independent repeats."""
        here, there = _logarithms(a), _logarithms(b)
        if here is None or there is None:
            return None
        change, half = welch(here, there, confidence)
        return cls(math.exp(change), math.exp(change - half), math.exp(change + half))

    @classmethod
    def _around(cls, middle: float, error: float, degrees: int, confidence: float) -> Interval:
        half = t_quantile(confidence, degrees) * error
        return cls(math.exp(middle), math.exp(middle - half), math.exp(middle + half))

    @property
    def half(self) -> float:
        """Half of the width, in the unit of the figure."""
        return (self.high - self.low) / 2

    @property
    def spread(self) -> float:
        """Half of the width as a part of the middle."""
        return self.half / self.middle

    def text(self, write: Callable[[float], str]) -> str:
        """`4.2 ms (3.9 to 4.5 ms)`, rounded by the width; `write` formats a figure with its unit."""
        if self.high > _TOO_WIDE * self.low:  # three repeats of which one is far off: `0.2 us to 600 s` helps nobody
            return f"{write(float(f'{self.middle:.0e}'))} (repeats differ too much for a range)"
        places = digits_of(self.middle, self.half) - 1
        middle, low, high = (write(float(f"{value:.{places}e}")) for value in (self.middle, self.low, self.high))
        return middle if low == high else f"{middle} ({low} to {high})"

    def percent(self) -> str:
        """A ratio as `92 ± 3 %`."""
        middle, half = 100 * self.middle, 100 * self.half
        if half < 0.05:
            return f"{middle:.0f} %"
        places = max(0, -math.floor(math.log10(half))) if half < 1 else 0
        return f"{middle:.{places}f} \u00b1 {half:.{places}f} %"


def digits_of(value: float, half: float) -> int:
    """Significant digits of a value that its error allows: one to three."""
    if not half or not value:
        return 3
    return min(3, max(1, math.floor(math.log10(abs(value))) - math.floor(math.log10(half)) + 1))


def _logarithms(values: Iterable[float]) -> Sequence[float] | None:
    logarithms = list(values)
    if len(logarithms) < ENOUGH_REPEATS or not all(math.isfinite(value) and value > 0 for value in logarithms):
        return None
    return [math.log(value) for value in logarithms]


LOOKS: Final = 4
AT_A_LOOK: Final = 0.9818


class Verdict(enum.StrEnum):
    """What the repeats say about a figure."""

    WITHIN = "within"
    OUTSIDE = "outside"
    UNDECIDED = "undecided"


@final
@dataclass(frozen=True, slots=True)
class Equivalence:
    """The distance of two figures: `error`, with the interval from `low` to `high`; 0 means that they are equal.

    A distance is log2 of a ratio, or a difference. The interval is infinite while the noise is unknown.

    - The verdict is `within` if the whole interval lies inside the margin, `outside` if all of it lies outside, else
      `undecided`. Noise widens the interval, so it can only make a verdict undecided.
    - What is undecided is measured again, and looked at again. An interval at one look has the confidence `AT_A_LOOK`;
      over `LOOKS` looks all of them together hold the truth with 95 % (Pocock's boundary). So at most 5 % of the
      figures whose true distance is the margin are ever called within.
    - Both sides are taken as independent (Welch). Drift of the machine affects both alike, which makes the interval
      wider than it has to be.
    """

    error: float
    low: float
    high: float
    margin: float

    @classmethod
    def of_ratio(cls, reference: Sequence[float], measured: Sequence[float], margin: float) -> Equivalence:
        """Compares by log2 of measured / reference; the margin is a part of 1 in either direction: 0.15 is x1.15."""
        most = math.log2(1 + margin)
        if min((*reference, *measured)) > 0:
            return cls._of([math.log2(each) for each in reference], [math.log2(each) for each in measured], most)
        here, there = (max(values) <= 0 for values in (reference, measured))  # 0 in every repeat
        if here and there:
            return cls._of([0.0] * len(reference), [0.0] * len(measured), most)
        error = math.inf if here or sum(measured) > sum(reference) else -math.inf
        is_certain = here != there and min(min(reference), min(measured), 0) == 0 and _is_enough(reference, measured)
        is_apart = is_certain and (min(measured) > 0 if here else min(reference) > 0)
        return cls(error, error, error, most) if is_apart else cls(error, -math.inf, math.inf, most)

    @classmethod
    def of_difference(cls, reference: Sequence[float], measured: Sequence[float], margin: float) -> Equivalence:
        """Compares by measured - reference."""
        return cls._of(reference, measured, margin)

    @classmethod
    def _of(cls, reference: Sequence[float], measured: Sequence[float], margin: float) -> Equivalence:
        error, half = welch(reference, measured, AT_A_LOOK)
        return cls(error, error - half, error + half, margin)

    @property
    def verdict(self) -> Verdict:
        """Whether the interval lies inside the margin, outside of it, or neither."""
        if -self.margin <= self.low and self.high <= self.margin:
            return Verdict.WITHIN
        return Verdict.OUTSIDE if self.low > self.margin or self.high < -self.margin else Verdict.UNDECIDED


def joint(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict about several figures together: within if all are, outside if one is."""
    every = {*verdicts}
    return next((each for each in (Verdict.OUTSIDE, Verdict.UNDECIDED) if each in every), Verdict.WITHIN)


def looks_after(first: int, most: int) -> list[int]:
    """The numbers of repeats at which undecided figures are looked at: at most `LOOKS`, from `first` to `most`."""
    step = max(1, -(-(most - first) // (LOOKS - 1)))
    return [*range(first, most, step), max(first, most)]


def _is_enough(*values: Sequence[float]) -> bool:
    return min(map(len, values)) >= ENOUGH_REPEATS
