"""The spread between repeats of the same settings, and how to read the figures in view of it.

Takes: an `Analysis`. Gives: sentences for the top of the page; none where repeats agree.
"""

from __future__ import annotations

import statistics
from typing import Final

from netstack.units import format_duration

from ..figure import Figure
from .points import Analysis

_APART: Final = 0.25
"""Repeats disagree if their range exceeds this fraction of the median."""


def noise_warnings(analysis: Analysis) -> list[str]:
    """The points at which repeats disagree, by kind of figure."""
    told = []
    for what, name, kind in (("throughput", "records_per_s", "throughput"), ("median latency", "p50", "latency")):
        found: list[tuple[float, str]] = []
        points = 0
        for line in analysis.lines:
            for timeout in analysis.timeouts:
                figure = (
                    analysis.throughput(line, timeout, name)
                    if kind == "throughput"
                    else analysis.latency(line, timeout, name)
                )
                if figure is None or figure.count < 2 or not figure.median:
                    continue
                points += 1
                spread = _spread(figure)
                if spread > _APART:
                    found.append((spread, f"{line.words}, timeout {format_duration(timeout, space=' ')}"))
        if found:
            worst, where = max(found)
            middle = statistics.median(spread for spread, _ in found)
            told.append(
                f"Repeats disagree about {what} at {len(found)} of {points} points: their range is {middle:.0%}"
                f" of the median there, {worst:.0%} at worst ({where}). Smaller differences are not significant."
            )
    return told


def _spread(figure: Figure) -> float:
    return (figure.high - figure.low) / figure.median
