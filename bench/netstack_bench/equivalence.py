"""Whether two figures are equivalent: all the statistics of it.

Takes: the repeats of a figure on both sides, and a margin. Gives: how far they are apart, with an interval, and a
verdict: `within` if the whole interval lies inside the margin, `outside` if all of it lies outside, else `undecided`.

Rules:
- Noise widens the interval, so it can only make a verdict undecided. Fewer than three repeats decide nothing.
- What is undecided is measured again, and looked at again. An interval at one look has the confidence `AT_A_LOOK`; over
  `LOOKS` looks all of them together hold the truth with 95 % (Pocock's boundary). So at most 5 % of the figures whose
  true distance is the margin are ever called within.
- Both sides are taken as independent (Welch). Drift of the machine affects both alike, which makes the interval wider
  than it has to be.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

from .interval import ENOUGH_REPEATS, welch

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
