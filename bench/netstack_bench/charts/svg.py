"""Charts as SVG, and their parts: axes, marks, lines and their names.

Colours and dashes are classes of the page's style sheet (for both colour schemes); shapes differ by series, so that
colour alone has no meaning; every mark has a `<title>` and its text for the pointer. Positions and ticks are in the
caller's units of the horizontal axis (a logarithm, a number of nines, seconds).
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Mark:
    """One measured point with the range of its repeats and its tooltip (lines; empty ones are left out).

    `hollow` is drawn empty, for a value that is only a bound. `facets` are its filter choices. `tag` is shown while it
    is on the frontier of its `group`.
    """

    value: float
    low: float
    high: float
    tooltip: tuple[str, ...] = ()
    hollow: bool = False
    facets: str = ""
    group: str = ""
    tag: str = ""


Look: TypeAlias = tuple[int, int, int]
"""(hue, dash, shape): classes of the style sheet, and the mark."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: the positions of its marks, and whether a line joins them; `number` connects it with the legend."""

    label: str
    number: int
    look: Look
    places: tuple[float, ...]
    marks: tuple[Mark | None, ...]
    facets: str = ""
    joined: bool = True


SHAPES: Final = 8
_MARKER_PX: Final = 4.6
_TAG_PX: Final = 48.0
_LABEL_GAP_PX: Final = 14.0
_AXIS_LINE_PX: Final = 14.0
_AXIS_LETTER_PX: Final = 7.2  # at 12 px, on average
UNIT_PX: Final = 18.0
"""Space above the plot for the name of the vertical axis."""


def marker(shape: int, x: float, y: float) -> str:
    """The element of one of eight shapes of similar visual weight, centred at a position."""
    shape, size = shape % SHAPES, _MARKER_PX
    if shape == 0:
        return f'<circle class="m" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}"/>'
    if shape == 1:
        half = size * 0.9
        return f'<rect class="m" x="{x - half:.1f}" y="{y - half:.1f}" width="{2 * half:.1f}" height="{2 * half:.1f}"/>'
    corners, scale = _POLYGONS[shape]
    points = " ".join(f"{x + scale * size * dx:.1f},{y + scale * size * dy:.1f}" for dx, dy in corners)
    return f'<polygon class="m" points="{points}"/>'


def nice_ticks(scale: Literal["linear", "log"], low: float, high: float) -> list[float]:
    """Round values that enclose the domain: from 0 in even steps, or powers of ten (1-2-5 when there are few).

    `linear` starts at 0 whatever `low` is; `log` needs both above 0.
    """
    if scale == "linear":
        high = high if high > 0 else 1.0
        rough = high / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
        return [step * number for number in range(math.ceil(high / step - 1e-9) + 1)]
    steps = (1.0,) if high / low > 30 else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [factor * 10.0**decade for decade in decades for factor in steps]
    first = max(number for number, tick in enumerate(ticks) if tick <= low * 1.0001)
    last = min(number for number, tick in enumerate(ticks) if tick >= high * 0.9999)
    return ticks[first : max(last, first + 1) + 1]


@dataclass(frozen=True, slots=True)
class Plot:
    """The rectangle of the curves, and the mapping of values into it."""

    left: float
    right: float
    top: float
    bottom: float
    scale: str
    low: float
    high: float
    width: float = 0.0  # of the whole drawing; 0 if there is nothing to the right of the plot

    def y(self, value: float) -> float:
        """The height of a value."""
        if self.scale == "log":
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.bottom - part * (self.bottom - self.top)


def facets_attribute(facets: str) -> str:
    """The HTML attribute with the filter choices of an element, such as ` data-f="0-1 1-0"`; empty without choices."""
    return f' data-f="{facets}"' if facets else ""


def below_px(axis: str, width: int) -> float:
    """Space below the plot for labels and the name of the horizontal axis."""
    return 46 + _AXIS_LINE_PX * (len(_lines(axis, width)) - 1)


def _lines(axis: str, width: float) -> list[str]:
    return textwrap.wrap(axis, max(12, int(width / _AXIS_LETTER_PX))) or [""]


def axes(
    plot: Plot,
    ticks: Sequence[float],
    write: Callable[[float], str],
    below: Sequence[tuple[float, str]],
    name: str,
    facets: Sequence[str] = (),
    *,
    unit: str = "",
    floor: float | None = None,
) -> list[str]:
    """Lines and labels of both axes.

    `below` has (position, label) of the horizontal axis at the height `floor` (the bottom of the plot by default),
    `facets` the filter choices of its labels.
    """
    parts = []
    low = plot.bottom if floor is None else floor
    if unit:
        parts.append(f'<text class="axis" x="2" y="{plot.top - UNIT_PX + 4:.1f}">{escape(unit)}</text>')
    for tick in ticks:
        y = plot.y(tick)
        kind = "base" if tick == ticks[0] else "grid"
        parts.append(f'<line class="{kind}" x1="{plot.left:.1f}" x2="{plot.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{plot.left - 7:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(write(tick))}</text>'
        )
    for (x, label), choices in zip(below, facets or [""] * len(below), strict=True):
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{low + 19:.1f}" text-anchor="middle"{facets_attribute(choices)}>'
            f"{escape(label)}</text>"
        )
    edge = plot.width or plot.right + 10
    for number, line in enumerate(_lines(name, edge)):
        half = len(line) * _AXIS_LETTER_PX / 2
        middle = min(max((plot.left + plot.right) / 2, half), max(edge - half, half))  # not beyond either edge
        y = low + 39 + _AXIS_LINE_PX * number
        parts.append(f'<text class="axis" x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">{escape(line)}</text>')
    return parts


def grouped(series: Series, parts: Sequence[str]) -> str:
    """A line and its marks as a group, with classes and data attributes."""
    hue, dash, _ = series.look
    kind = f'class="series h{hue} d{dash}" data-series="{series.number}"'
    return f"<g {kind}{facets_attribute(series.facets)}>{''.join(parts)}</g>"


def point(mark: Mark, shape: int, x: float, plot: Plot) -> str:
    """One measured point: whisker, marker and text."""
    y = plot.y(mark.value)
    whisker = ""
    if mark.high > mark.low:
        top, bottom = plot.y(mark.high), plot.y(mark.low)
        ends = "".join(f"M{x - 3:.1f} {end:.1f}h6" for end in (top, bottom))
        whisker = f'<path class="whisker" d="M{x:.1f} {top:.1f}V{bottom:.1f}{ends}"/>'
    text = escape("\n".join(filter(None, mark.tooltip)))
    group = f' data-group="{mark.group}"' if mark.group else ""
    tag = _tag(mark.tag, x, y, plot) if mark.tag else ""
    return (
        f'<g class="pt{" hollow" if mark.hollow else ""}" role="img" aria-label="{text}"'
        f' data-tooltip="{text}"{group}{facets_attribute(mark.facets)}><title>{text}</title>'
        f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="13"/>{whisker}{marker(shape, x, y)}{tag}</g>'
    )


def _tag(text: str, x: float, y: float, plot: Plot) -> str:
    is_left = x > plot.right - _TAG_PX
    at = f'x="{x - 8:.1f}" text-anchor="end"' if is_left else f'x="{x + 8:.1f}"'
    return f'<text class="tag" {at} y="{y + 15:.1f}">{escape(text)}</text>'


def names(ends: Sequence[tuple[float, float, Series]], plot: Plot) -> list[str]:
    """Names at the right ends of lines, moved apart and connected to their lines by hairlines."""
    ordered = sorted(ends, key=lambda end: end[1])
    heights = spread_out([at for _, at, _ in ordered], _LABEL_GAP_PX, plot.top, plot.bottom)
    x = plot.right + 10
    return [
        f'<g class="name h{each.look[0]}" data-series="{each.number}"{facets_attribute(each.facets)}>'
        f'<path class="hair" d="M{from_x + 8:.1f} {at:.1f}L{x - 3:.1f} {y:.1f}"/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}">{escape(each.label)}</text></g>'
        for y, (from_x, at, each) in zip(heights, ordered, strict=True)
    ]


def spread_out(wishes: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart, in the same order, each near its wish (in rising order).

    None is above `low`, and none below `high` as long as there is room.
    """
    places: list[float] = []
    for place in wishes:
        places.append(max(place, low, places[-1] + gap if places else low))
    limit = high
    for number in range(len(places) - 1, -1, -1):
        places[number] = min(places[number], limit)
        limit = places[number] - gap
    return places


def _polygon(corners: int, first_degrees: float) -> list[tuple[float, float]]:
    angles = [math.radians(first_degrees + 360 / corners * number) for number in range(corners)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


_ARM: Final = 0.36
_PLUS: Final = [
    (-_ARM, -1.0), (_ARM, -1.0), (_ARM, -_ARM), (1.0, -_ARM), (1.0, _ARM), (_ARM, _ARM),
    (_ARM, 1.0), (-_ARM, 1.0), (-_ARM, _ARM), (-1.0, _ARM), (-1.0, -_ARM), (-_ARM, -_ARM),
]  # fmt: skip
_POLYGONS: Final = {
    2: (_polygon(3, -90), 1.3),
    3: (_polygon(4, 0), 1.25),
    4: (_polygon(3, 90), 1.3),
    5: (_polygon(5, -90), 1.15),
    6: (_polygon(6, 0), 1.1),
    7: (_PLUS, 1.15),
}
"""Corners and scale of a shape."""

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
