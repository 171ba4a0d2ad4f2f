"""The sequential experiment: a first pass over a grid, then more passes over what keeps the answer open.

It ends when the answer is decided, after the last of `LOOKS`, or when the time is over. Between two looks nothing is
decided, because a range that is looked at after every run would be too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from ..grid import Grid, PlannedRun
from ..interval import ENOUGH_REPEATS
from ..spec import RunSpec
from .goal import LOOKS, Answer

DEFAULT_BUDGET_S: Final = 180.0
_LONGEST_ADVICE_S: Final = 3600.0
_FASTEST: Final = 0.5  # of the expected length, at which runs are always counted
_SPARE: Final = 1.2  # the estimate of the passes that are needed has an error of its own


@final
@dataclass(frozen=True, slots=True)
class Budget:
    """The time at which an experiment has to end, by the clock `now`; `close_s` is needed after its last run.

    Without `covers_first_pass` the first pass is made whole, however long it takes.
    """

    ends_s: float
    now: Callable[[], float]
    close_s: float = 0.0
    covers_first_pass: bool = True


@final
class Experiment:
    """One experiment over the points of a grid.

    `ask` gives the answer of the runs so far, None without a question; `measure` makes runs. `finished` are the keys of
    runs that were made before.
    """

    def __init__(
        self,
        grid: Grid,
        ask: Callable[[], Answer | None],
        measure: Callable[[Sequence[PlannedRun]], None],
        budget: Budget,
        *,
        finished: Iterable[tuple[str, int]] = (),
        together: int = 1,
    ) -> None:
        self._grid = grid
        self._ask = ask
        self._measure = measure
        self._budget = budget
        self._finished = set(finished)
        self._repeat = max((repeat for _, repeat in self._finished), default=0)
        self._together = together
        self._spent_s = 0.0
        self._expected_s = 0.0
        self.is_out_of_time = False

    def run(self) -> None:
        """Measures until the answer is decided, or the time is over."""
        first = [run for run in self._grid.one_pass(0) if run.key not in self._finished]
        if not self._all(first, bounded=self._budget.covers_first_pass):
            return
        before = None
        while (found := self._ask()) is not None and not found.is_decided:
            state = [(each.timeout_s, each.passes) for each in found.contested]
            if state == before:
                return  # runs fail: more of them would not help
            before, passes = state, min(passes for _, passes in state)
            look = next((each for each in LOOKS if each > passes), None)
            if look is None:
                return
            for _ in range(look - passes):
                self._repeat += 1
                if not self._all(self._grid.one_pass(self._repeat, _wanted(found)), bounded=True):
                    return

    @property
    def _slower(self) -> float:
        """How many times as long as expected the runs take."""
        return max(_FASTEST, self._spent_s / self._expected_s) if self._expected_s else 1.0

    def _all(self, runs: Sequence[PlannedRun], *, bounded: bool) -> bool:
        """Makes these runs; False if there is no time for all."""
        for start in range(0, len(runs), self._together):
            some = runs[start : start + self._together]
            began_s = self._budget.now()
            close_s = max(1.0, self._slower) * self._budget.close_s
            if bounded and began_s + self._slower * _length(some) + close_s > self._budget.ends_s:
                self.is_out_of_time = True
                return False
            self._measure(some)
            self._spent_s += self._budget.now() - began_s
            self._expected_s += _length(some)
        return True


def _length(runs: Sequence[PlannedRun]) -> float:
    return sum(run.expected_s for run in runs)


def _wanted(found: Answer) -> Callable[[RunSpec], bool]:
    """Selects the runs of a further pass: throughput at the reference and at the contested timeouts.

    With a bound of the p99 it is latency too, else that of the chosen timeout, for its range.
    """
    lacks_latency = len(found.chosen.p99_us) < ENOUGH_REPEATS
    contested = {each.timeout_s for each in found.contested}

    def wants(spec: RunSpec) -> bool:
        if spec.rate_per_s is None:
            return spec.buffer_timeout_s in contested or spec.buffer_timeout_s == found.reference_s
        if found.goal.p99_us is not None:
            return spec.buffer_timeout_s in contested
        return lacks_latency and spec.buffer_timeout_s == found.chosen.timeout_s

    return wants


def continued(arguments: Sequence[str], folder: Path, asked: Answer | None, *, is_fixed: bool) -> list[str]:
    """The arguments of the command that continues an experiment in its folder.

    A fixed design gets as many passes as the open answer needs, at least one more than it had.
    """
    again = _without(arguments, "--output", "--budget" if not is_fixed else "--repeats")
    if is_fixed:
        again += ["--repeats", str(_passes_wanted(asked))]
    elif asked is not None:
        wanted_s = DEFAULT_BUDGET_S if asked.cost_s is None else min(asked.cost_s * _SPARE, _LONGEST_ADVICE_S)
        again += ["--budget", f"{max(3, math.ceil(wanted_s / 60) + 1)}min"]
    return [*again, "--output", str(folder)]


def _passes_wanted(asked: Answer | None) -> int:
    if asked is None:
        return ENOUGH_REPEATS
    passes = asked.chosen.passes
    return max(ENOUGH_REPEATS, passes + (asked.passes_needed or passes))


def _without(arguments: Sequence[str], *flags: str) -> list[str]:
    """The arguments without these flags and their values."""
    kept, skip = [], False
    for word in arguments:
        if skip:
            skip = False
        elif word in flags:
            skip = True
        elif not word.startswith(tuple(f"{flag}=" for flag in flags)):
            kept.append(word)
    return kept
