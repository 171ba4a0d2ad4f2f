"""Finds the answer with few runs: bisection over a list of timeouts, each repeated until its judgement is clear.

Bisection needs that throughput and latency both grow with the timeout. A step has three repeats at least, each of a run
at the reference timeout, one at this timeout, and a paced one for latency. Afterwards the points that keep the answer
open are repeated, up to `MOST_REPEATS` or the end of the time. Points that stay open are doubts of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..interval import ENOUGH_REPEATS
from .answer import Answer, Goal, Point, answer, most_named

LADDER_S: Final[tuple[float, ...]] = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
FIRST_REPEATS: Final = 4
"""Repeats of a step that stays open; then bisection follows the median, and repeats the step later if it matters."""

MOST_REPEATS: Final = 12


@dataclass(frozen=True, slots=True)
class Sample:
    """One repeat of a point: payload at the reference timeout, and at this timeout right before or after.

    `bottleneck` is the side that limits the throughput; empty where unknown.
    """

    reference_mb_per_s: float
    mb_per_s: float
    p99_us: float
    bottleneck: str = ""


class Search:
    """One search over timeouts, the shortest first; the last is the reference. `has_time` allows another repeat."""

    def __init__(
        self,
        measure: Callable[[float], Sample],
        goal: Goal,
        ladder_s: Sequence[float] = LADDER_S,
        has_time: Callable[[], bool] = lambda: True,
    ) -> None:
        self._measure = measure
        self._goal = goal
        self._ladder_s = ladder_s
        self._has_time = has_time
        self._samples: dict[float, list[Sample]] = {}
        self._is_unfinished = True

    def run(self) -> Answer | None:
        """Measures until the answer has no doubts, or the time is over.

        Returns:
            The answer; None where there was no time for one repeat.
        """
        low, high = -1, len(self._ladder_s)  # timeouts up to `low` reach a bound of latency, those from `high` do not
        wants_short = self._goal.p99_us is not None
        while high - low > 1:
            middle = (low + high) // 2
            point = self._settle(self._ladder_s[middle])
            if point is None:
                break
            judged = point.judged(self._goal)
            is_reached = point.leans(self._goal) if judged == "open" else judged == "meets"
            if is_reached == wants_short:
                low = middle
            else:
                high = middle
        self._is_unfinished = high - low > 1
        result = self.answer()
        while result is not None and self._again(result.unclear):
            result = self.answer()
        return result

    def answer(self) -> Answer | None:
        """The answer by the samples so far; a search that was cut short is a doubt."""
        result = answer([self._point(timeout_s) for timeout_s in self._samples], self._goal, self._ladder_s[-1])
        if result is None or not self._is_unfinished:
            return result
        return replace(
            result, doubts=(*result.doubts, "the search ended before all timeouts in question were measured")
        )

    def _settle(self, timeout_s: float) -> Point | None:
        """Repeats a point until its judgement is clear, `FIRST_REPEATS` times at most; None without time for one."""
        while len(self._samples.get(timeout_s, ())) < FIRST_REPEATS:
            samples = self._samples.get(timeout_s, [])
            if len(samples) >= ENOUGH_REPEATS and self._point(timeout_s).judged(self._goal) != "open":
                break
            if not self._repeat(timeout_s):
                break
        return self._point(timeout_s) if timeout_s in self._samples else None

    def _again(self, unclear: Sequence[Point]) -> bool:
        """Repeats the unclear point with the fewest repeats; False if there is none, or no time."""
        least = min(unclear, key=lambda point: len(point.pairs), default=None)
        if least is None or len(least.pairs) >= MOST_REPEATS:
            return False
        assert least.timeout_s is not None
        return self._repeat(least.timeout_s)

    def _repeat(self, timeout_s: float) -> bool:
        if not self._has_time():
            return False
        self._samples.setdefault(timeout_s, []).append(self._measure(timeout_s))
        return True

    def _point(self, timeout_s: float) -> Point:
        samples = self._samples[timeout_s]
        return Point(
            timeout_s,
            [(sample.reference_mb_per_s, sample.mb_per_s) for sample in samples],
            [sample.p99_us for sample in samples],
            most_named([sample.bottleneck for sample in samples]),
        )
