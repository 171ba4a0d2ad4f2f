"""Sentences for the top of the page on the spread between repeats of the same settings; none where repeats agree."""

from __future__ import annotations

import statistics
from typing import Final

from netstack.units import format_duration

from .points import Analysis

_APART: Final = 0.25
"""Repeats disagree if their range exceeds this fraction of the median."""


def noise_warnings(analysis: Analysis) -> list[str]:
    """The points at which repeats disagree, by kind of figure."""
    warnings = []
    for what, read in (("throughput", analysis.throughput), ("median latency", analysis.latency)):
        spreads = [
            ((figure.high - figure.low) / figure.median, f"{line.words}, timeout {format_duration(timeout, space=' ')}")
            for line, timeout in analysis.points
            if (figure := read(line, timeout)) is not None and figure.count > 1 and figure.median
        ]
        wide = [each for each in spreads if each[0] > _APART]
        if wide:
            worst, where = max(wide)
            middle = statistics.median(spread for spread, _ in wide)
            warnings.append(
                f"Repeats disagree about {what} at {len(wide)} of {len(spreads)} points: their range is {middle:.0%}"
                f" of the median there, {worst:.0%} at worst ({where}). Smaller differences are not significant."
            )
    return warnings
