"""Charts as SVG: values by category, percentile curves, points with their frontier, series over time or counts.

Positions and ticks are in the caller's units of the horizontal axis (a logarithm, a number of nines, seconds).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Literal

from .svg import UNIT_PX, Plot, Series, axes, below_px, facets_attribute, grouped, names, nice_ticks, point

_MOST_DIRECT_LABELS: Final = 8
_LONGEST_DIRECT_LABEL: Final = 26  # letters; longer ones would take the space of the curves
_DODGE_PX: Final = 7.0
_LABEL_ROWS: Final = 4
_TEXT_PX: Final = 6.6  # of one letter at 12 px, on average
_LINE_PX: Final = 15.0
_TICK_PX: Final = 34.0  # least distance of labels below the axis


@dataclass(frozen=True, slots=True)
class Frontier:
    """The staircase that no mark of a group beats: most to the right, least in height.

    `corners` are (position, value) from left to right, with the label at their end; `facets` are its filter choices.
    """

    group: str
    label: str
    corners: tuple[tuple[float, float], ...]
    dash: int = 0
    facets: str = ""


@dataclass(frozen=True, slots=True)
class Upright:
    """A line from bottom to top at one position, with lines of text above it."""

    at: float
    label: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """The description of a chart.

    `span` has the ends of the horizontal axis, `below` its (position, label) ticks, `domain` the least and greatest
    value before rounding. With `bare`, lines have no marks and the script shows the values at the pointer. A mark that
    is None is skipped and the line continues. `expected` has the (position, value) points of a thin dashed line.

    With `categories` positions are 0, 1, 2 ...: lines lie side by side, and a mark that is None interrupts its line.
    `guides` and `facets` have for each category a value to mark with a short line, or None, and the filter choices.
    """

    title: str
    axis: str
    span: tuple[float, float]
    below: Sequence[tuple[float, str]]
    series: Sequence[Series]
    scale: Literal["linear", "log"]
    domain: tuple[float, float]
    tick: Callable[[float], str]
    unit: str = ""
    frontiers: Sequence[Frontier] = ()
    bare: bool = False
    upright: Upright | None = None
    expected: Sequence[tuple[float, float]] = ()
    categories: bool = False
    guides: Sequence[float | None] = ()
    facets: Sequence[str] = ()


def by_category(labels: Sequence[str]) -> dict[str, Any]:
    """The horizontal axis of a `Plane` of categories."""
    below = [(float(place), label) for place, label in enumerate(labels)]
    return {"categories": True, "span": (-0.5, len(labels) - 0.5), "below": below}


def draw_plane(plane: Plane, *, width: int, height: int, direct_labels: bool) -> str:
    """The chart as one SVG element of this size; it scales with its container."""
    ticks = nice_ticks(plane.scale, *plane.domain)
    longest = max((len(series.label) for series in plane.series), default=0)
    direct = direct_labels and 0 < len(plane.series) <= _MOST_DIRECT_LABELS and longest <= _LONGEST_DIRECT_LABEL
    plot = Plot(
        left=14 + 7.2 * max(len(plane.tick(tick)) for tick in ticks),
        right=width - (14 + 7.8 * longest if direct else 14),
        top=14 + (UNIT_PX if plane.unit else 0) + (_LINE_PX * len(plane.upright.label) if plane.upright else 0),
        bottom=height - below_px(plane.axis, width),
        scale=plane.scale,
        low=ticks[0],
        high=ticks[-1],
        width=width,
    )
    first, last = plane.span

    def place(at: float) -> float:
        return plot.left + (at - first) / (last - first) * (plot.right - plot.left)

    unit_px = (plot.right - plot.left) / (last - first)
    dodge_px = min(_DODGE_PX, 0.5 * unit_px / max(len(plane.series), 1)) if plane.categories else 0.0
    drawn, ends = [], []
    for number, series in enumerate(plane.series):
        dodge = (number - (len(plane.series) - 1) / 2) * dodge_px  # equal values and whiskers must not overlap
        parts, path, pen_down = [], "", False
        for at, mark in zip(series.places, series.marks, strict=True):
            if mark is None or (plane.scale == "log" and mark.value <= 0):
                pen_down = pen_down and not plane.categories
                continue
            x, y = place(at) + dodge, plot.y(mark.value)
            path += f"{'L' if pen_down else 'M'}{x:.1f} {y:.1f}"
            parts.append("" if plane.bare else point(mark, series.look[2], x, plot))
            end, pen_down = (x, y, series), True
        if parts:
            ends.append(end)
            drawn.append(grouped(series, [f'<path class="line" d="{path}"/>' if series.joined else "", *parts]))
    guides = (
        [
            _guide(place(at), 0.36 * unit_px, value, facets, plot)
            for (at, _), value, facets in zip(
                plane.below, plane.guides, plane.facets or [""] * len(plane.below), strict=True
            )
            if value is not None
        ]
        if plane.guides
        else []
    )
    stairs = [_frontier(frontier, place, plot, row % _LABEL_ROWS) for row, frontier in enumerate(plane.frontiers)]
    facts = _plot_facts(plot, first, last, plane) if plane.bare else ""
    below = [(place(at), label) for at, label in plane.below]
    least_px = min((right[0] - left[0] for left, right in itertools.pairwise(below)), default=_TICK_PX)
    every = 1 if plane.categories else math.ceil(_TICK_PX / least_px)
    expected = "L".join(f"{place(at):.1f} {plot.y(value):.1f}" for at, value in plane.expected)
    return "".join(
        (
            f'<svg viewBox="0 0 {width} {height}" role="img" data-scale="{plane.scale}"{facts}'
            f' aria-label="{escape(plane.title)}"'
            ' xmlns="http://www.w3.org/2000/svg">',
            f"<title>{escape(plane.title)}</title>",
            *axes(plot, ticks, plane.tick, below[::every], plane.axis, plane.facets, unit=plane.unit),
            *guides,
            f'<path class="expected" d="M{expected}"/>' if expected else "",
            _upright(plane.upright, place(plane.upright.at), plot) if plane.upright else "",
            *stairs,
            *drawn,
            *(names(ends, plot) if direct else ()),
            "</svg>",
        )
    )


def pareto(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points with no lower point to their right, from left to right."""
    best: list[tuple[float, float]] = []
    for at, value in sorted(points, key=lambda each: (-each[0], each[1])):
        if not best or value < best[-1][1]:
            best.append((at, value))
    return tuple(reversed(best))


def _frontier(frontier: Frontier, place: Callable[[float], float], plot: Plot, row: int) -> str:
    corners = [(place(at), plot.y(value)) for at, value in frontier.corners]
    (first_x, first_y), (last_x, _) = corners[0], corners[-1]
    steps = "".join(f"V{y:.1f}H{x:.1f}" for x, y in corners[1:])
    path = f"M{plot.left:.1f} {first_y:.1f}H{first_x:.1f}{steps}V{plot.top:.1f}"
    return (
        f'<g class="stairs d{frontier.dash}" data-group="{frontier.group}" data-left="{plot.left:.1f}"'
        f' data-top="{plot.top:.1f}"{facets_attribute(frontier.facets)}><path class="frontier" d="{path}"/>'
        f'<text x="{last_x - 4:.1f}" y="{plot.top + 9 + 14 * row:.1f}" text-anchor="end">{escape(frontier.label)}'
        "</text></g>"
    )


def _guide(x: float, half: float, value: float, facets: str, plot: Plot) -> str:
    if not plot.low <= value <= plot.high:
        return ""
    y, ends = plot.y(value), f'x1="{x - half:.1f}" x2="{x + half:.1f}"'
    return f'<line class="guide" {ends} y1="{y:.1f}" y2="{y:.1f}"{facets_attribute(facets)}/>'


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


def _plot_facts(plot: Plot, first: float, last: float, plane: Plane) -> str:
    box = f"{plot.left:.1f} {plot.right:.1f} {plot.top:.1f} {plot.bottom:.1f}"
    return f' class="bare" data-box="{box}" data-span="{first:g} {last:g} {plot.low:g} {plot.high:g}"'
