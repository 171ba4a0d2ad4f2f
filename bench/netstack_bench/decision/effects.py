"""What a timeout keeps of the throughput at the reference: least squares over blocked runs.

The logarithm of a rate is the sum of its pass over the workload (the machine at that time), of its timeout in this
workload, and of noise. A pass in which only some timeouts were measured counts as far as it has two of them. The noise
is estimated from all timeouts and workloads together, so a few passes suffice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from ..interval import Interval, t_quantile

LOOKS: Final = (2, 3, 4, 6, 8, 12, 16, 24)
"""Numbers of passes after which the experiment looks at its intervals; it ends after the last."""

AT_A_LOOK: Final = 0.99
"""Confidence of an interval at one look. Over all eight looks together it is 95 % (Pocock's boundary, 0.9884)."""


@dataclass(frozen=True, slots=True)
class Run:
    """One throughput run: its timeout, its pass over the workload, and its payload in MB/s."""

    timeout_s: float | None
    passed: Hashable
    mb_per_s: float


@dataclass(frozen=True, slots=True)
class Share:
    """The estimated share of the throughput at the reference; `range` is None while the noise is unknown."""

    middle: float
    range: Interval | None

    @property
    def text(self) -> str:
        """`93 % (88 to 97)`."""
        if self.range is None or self.range.high - self.range.low < 0.005:
            return f"{self.middle:.0%}".replace("%", " %")
        return f"{100 * self.middle:.0f} % ({100 * self.range.low:.0f} to {100 * self.range.high:.0f})"


@final
class Effects:
    """The estimates of several workloads, each with its runs."""

    def __init__(self, workloads: Mapping[Hashable, Sequence[Run]], reference_s: float | None) -> None:
        self._reference_s = reference_s
        self._fits = {name: _Fit(runs, reference_s) for name, runs in workloads.items()}
        self._degrees = sum(fit.degrees for fit in self._fits.values())
        squares = sum(fit.squares for fit in self._fits.values())
        self._variance = squares / self._degrees if self._degrees else 0.0

    def timeouts(self, name: Hashable) -> Collection[float | None]:
        """The timeouts of a workload that can be compared with the reference."""
        return self._fits[name].effects.keys()

    def share(self, timeout_s: float | None, names: Sequence[Hashable], judgements: int = 1) -> Share | None:
        """The geometric mean over these workloads; None where one of them cannot be compared.

        `judgements` are made at once: the ranges of all hold together (Bonferroni).
        """
        if timeout_s == self._reference_s:
            return Share(1.0, Interval(1.0, 1.0, 1.0))
        effects = [self._fits[name].effects.get(timeout_s) for name in names]
        known = [each for each in effects if each is not None]
        if not known or len(known) < len(effects):
            return None
        middle = sum(effect for effect, _ in known) / len(known)
        if not self._degrees:
            return Share(math.exp(middle), None)
        error = math.sqrt(self._variance * sum(factor for _, factor in known)) / len(known)
        half = t_quantile(1 - (1 - AT_A_LOOK) / judgements, self._degrees) * error
        return Share(math.exp(middle), Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half)))


class _Fit:
    """One workload: the effect of each timeout, and the factor of the noise in its variance."""

    def __init__(self, runs: Sequence[Run], reference_s: float | None) -> None:
        joined = _joined(runs, reference_s)
        passes = {each: place for place, each in enumerate(dict.fromkeys(run.passed for run in joined))}
        others = dict.fromkeys(run.timeout_s for run in joined if run.timeout_s != reference_s)
        columns = {timeout_s: len(passes) + place for place, timeout_s in enumerate(others)}
        design = np.zeros((len(joined), len(passes) + len(columns)))
        figures = np.array([math.log(run.mb_per_s) for run in joined])
        for place, run in enumerate(joined):
            design[place, passes[run.passed]] = 1.0
            if run.timeout_s in columns:
                design[place, columns[run.timeout_s]] = 1.0
        self.effects: dict[float | None, tuple[float, float]] = {}
        self.degrees, self.squares = 0, 0.0
        if not joined:
            return
        inverse = np.linalg.inv(design.T @ design)
        solution = inverse @ design.T @ figures
        self.squares = float(np.sum((figures - design @ solution) ** 2))
        self.degrees = len(joined) - design.shape[1]
        self.effects = {t: (float(solution[place]), float(inverse[place, place])) for t, place in columns.items()}


def _joined(runs: Sequence[Run], reference_s: float | None) -> list[Run]:
    """The runs that share a pass with the reference, or with a timeout that does, and so on."""
    timeouts: set[float | None] = {reference_s}
    passes: set[Hashable] = set()
    size = -1
    while size != len(timeouts) + len(passes):
        size = len(timeouts) + len(passes)
        passes |= {run.passed for run in runs if run.timeout_s in timeouts}
        timeouts |= {run.timeout_s for run in runs if run.passed in passes}
    return [run for run in runs if run.passed in passes and run.mb_per_s > 0]
