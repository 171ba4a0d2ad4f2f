"""Curves over a count as SVG: a horizontal axis of powers of two, an upright line, an expected curve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from .svg import UNIT_PX, Plot, Series, axes, below_px, grouped, names, nice_ticks, point

_TEXT_PX: Final = 6.6  # of one letter at 12 px, on average
_LINE_PX: Final = 15.0
_TICK_PX: Final = 34.0  # least distance of labels below the axis
_BENDS: Final = 10  # segments of a curved line between two points
_INSET: Final = 0.03  # free part of the width at both ends, so that marks are not on the axis


@dataclass(frozen=True, slots=True)
class Upright:
    """A line from bottom to top at one count, with lines of text above it."""

    at: float
    label: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveChart:
    """What to draw.

    `places` are the rising counts (at least 1) at which the marks of each series are. A mark that is None is skipped
    and the line continues. `expected` has the (count, value) corners of a thin dashed line.
    """

    title: str
    axis: str
    places: Sequence[float]
    series: Sequence[Series]
    highest: float
    tick: Callable[[float], str]
    unit: str = ""
    upright: Upright | None = None
    expected: Sequence[tuple[float, float]] = ()


def draw_curves(chart: CurveChart, *, width: int, height: int, direct_labels: bool) -> str:
    """The chart as one SVG element of this size; it scales with its container."""
    ticks = nice_ticks("linear", 0.0, chart.highest)
    longest = max((len(series.label) for series in chart.series), default=0)
    plot = Plot(
        left=14 + 7.2 * max(len(chart.tick(tick)) for tick in ticks),
        right=width - (14 + 7.8 * min(longest, 22) if direct_labels else 10),
        top=14 + (UNIT_PX if chart.unit else 0) + (_LINE_PX * len(chart.upright.label) if chart.upright else 0),
        bottom=height - below_px(chart.axis, width),
        scale="linear",
        low=ticks[0],
        high=ticks[-1],
        width=width,
    )
    first, last = _powers(chart)
    inset = _INSET * (plot.right - plot.left)

    def place(count: float) -> float:
        part = (math.log2(count) - first) / (last - first)
        return plot.left + inset + part * (plot.right - plot.left - 2 * inset)

    every = max(1, math.ceil((last - first) * _TICK_PX / (plot.right - plot.left)))
    below = [(place(2.0**power), f"{2**power:,}") for power in range(first, last + 1, every)]
    ends = []
    drawn = []
    for series in chart.series:
        positions = [(at, mark) for at, mark in zip(chart.places, series.marks, strict=True) if mark is not None]
        if positions:
            marks = [point(mark, series.shape, place(at), plot) for at, mark in positions]
            # Straight from mark to mark, because nothing was measured in between.
            line = "L".join(f"{place(at):.1f} {plot.y(mark.value):.1f}" for at, mark in positions)
            drawn.append(grouped(series, [f'<path class="line" d="M{line}"/>', *marks]))
            ends.append((place(positions[-1][0]), plot.y(positions[-1][1].value), series))
    return "".join(
        (
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(chart.title)}"'
            ' xmlns="http://www.w3.org/2000/svg">',
            f"<title>{escape(chart.title)}</title>",
            *axes(plot, ticks, chart.tick, below, chart.axis, unit=chart.unit),
            f'<path class="expected" d="{_bent(chart.expected, place, plot)}"/>' if chart.expected else "",
            _upright(chart.upright, place(chart.upright.at), plot) if chart.upright else "",
            *drawn,
            *(names(ends, plot) if direct_labels else ()),
            "</svg>",
        )
    )


def _powers(chart: CurveChart) -> tuple[int, int]:
    counts = [*chart.places, *([chart.upright.at] if chart.upright else [])]
    first = math.floor(math.log2(min(counts)) + 1e-9)
    return first, max(math.ceil(math.log2(max(counts)) - 1e-9), first + 1)


def _bent(points: Sequence[tuple[float, float]], place: Callable[[float], float], plot: Plot) -> str:
    steps = [points[0]]
    for (at, value), (next_at, next_value) in itertools.pairwise(points):
        for step in range(1, _BENDS + 1):
            count = at * (next_at / at) ** (step / _BENDS)
            part = (count - at) / (next_at - at)
            steps.append((count, value + part * (next_value - value)))
    return f"M{'L'.join(f'{place(at):.1f} {plot.y(value):.1f}' for at, value in steps)}"


def _upright(upright: Upright, x: float, plot: Plot) -> str:
    parts = [f'<line class="upright" x1="{x:.1f}" x2="{x:.1f}" y1="{plot.top - 4:.1f}" y2="{plot.bottom:.1f}"/>']
    half = _TEXT_PX * max(map(len, upright.label)) / 2
    middle = min(max(x, half + 2), max(plot.right - half, half + 2))
    for number, line in enumerate(reversed(upright.label)):
        y = plot.top - 10 - _LINE_PX * number
        parts.append(
            f'<text class="upright-label" x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">{escape(line)}</text>'
        )
    return "".join(parts)
