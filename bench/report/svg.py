"""Line charts as SVG text: a category axis of buffer timeouts, a linear or a logarithmic value axis.

Takes: a `Chart` of categories and series of marks. Gives: one `<svg>` element, complete without a script.

Rules: colours and dashes come from the page's style sheet by class (so both colour schemes work); shapes differ by
series, so no meaning hangs on colour alone; every mark carries a `<title>` and its text for the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Mark:
    """One measured point.

    Attributes:
        value: where it stands.
        low: least of the repeats.
        high: most of the repeats.
        told: the text of the tooltip; lines are separated by newlines.
        hollow: drawn empty, for a value that is only a bound.
    """

    value: float
    low: float
    high: float
    told: str
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One line: `hue` picks the colour, `dash` the stroke, `shape` the marker; `number` ties it to the legend."""

    label: str
    number: int
    hue: int
    dash: int
    shape: int
    marks: tuple[Mark | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What to draw.

    Attributes:
        title: for those who hear the page.
        categories: labels of the horizontal axis.
        axis: name of the horizontal axis.
        series: the lines.
        scale: `log` needs values above 0.
        domain: least and most value, before rounding to ticks.
        tick: value to text on the vertical axis.
        guides: for each category a value to mark with a short line, or None.
    """

    title: str
    categories: Sequence[str]
    axis: str
    series: Sequence[Series]
    scale: Literal["linear", "log"]
    domain: tuple[float, float]
    tick: Callable[[float], str]
    guides: Sequence[float | None] = ()


SHAPES: Final = 8
_MARKER_PX: Final = 4.6
_DODGE_PX: Final = 7.0
_MOST_DIRECT_LABELS: Final = 8
_LABEL_GAP_PX: Final = 14.0


def draw(chart: Chart, *, width: int, height: int, direct_labels: bool) -> str:
    """The chart as one SVG element of this size; it scales with its container.

    Args:
        chart: what to draw.
        width: in CSS pixels at which text has its designed size.
        height: likewise.
        direct_labels: name the lines at their right end, where there is room.
    """
    direct = direct_labels and 0 < len(chart.series) <= _MOST_DIRECT_LABELS
    longest = max((len(series.label) for series in chart.series), default=0)
    ticks = nice_ticks(chart.scale, *chart.domain)
    plot = _Plot(
        left=14 + 6.4 * max(len(chart.tick(tick)) for tick in ticks),
        right=width - (14 + 6.2 * min(longest, 22) if direct else 10),
        top=12,
        bottom=height - 46,
        scale=chart.scale,
        low=ticks[0],
        high=ticks[-1],
        slots=len(chart.categories),
    )
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(chart.title)}"'
        ' xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(chart.title)}</title>",
        *_axes(chart, plot, ticks),
        *(_guide(plot, slot, value) for slot, value in enumerate(chart.guides) if value is not None),
        *(_series(series, plot, len(chart.series), place) for place, series in enumerate(chart.series)),
        *(_direct_labels(chart.series, plot) if direct else ()),
        "</svg>",
    ]
    return "".join(parts)


def marker(shape: int, x: float, y: float, size: float = _MARKER_PX) -> str:
    """The element of one of eight shapes, centred at a place; all have about the same weight for the eye."""
    shape %= SHAPES
    if shape == 0:
        return f'<circle class="m" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}"/>'
    if shape == 1:
        half = size * 0.9
        return f'<rect class="m" x="{x - half:.1f}" y="{y - half:.1f}" width="{2 * half:.1f}" height="{2 * half:.1f}"/>'
    up, down, sides = _polygon(3, -90), _polygon(3, 90), {3: _polygon(4, 0), 5: _polygon(5, -90), 6: _polygon(6, 0)}
    corners, scale = {2: (up, 1.3), 4: (down, 1.3), 3: (sides[3], 1.25), 5: (sides[5], 1.15), 6: (sides[6], 1.1)}.get(
        shape, (_PLUS, 1.15)
    )
    points = " ".join(f"{x + scale * size * dx:.1f},{y + scale * size * dy:.1f}" for dx, dy in corners)
    return f'<polygon class="m" points="{points}"/>'


def nice_ticks(scale: Literal["linear", "log"], low: float, high: float) -> list[float]:
    """Round values that enclose the domain: from 0 in even steps, or powers of ten (1-2-5 when there are few).

    Args:
        scale: `linear` starts at 0 whatever `low` says; `log` needs both above 0.
        low: least value to show.
        high: most value to show.
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
class _Plot:
    """The rectangle of the curves and how values map into it."""

    left: float
    right: float
    top: float
    bottom: float
    scale: str
    low: float
    high: float
    slots: int

    def x(self, slot: int, dodge: float = 0.0) -> float:
        return self.left + (slot + 0.5) * (self.right - self.left) / self.slots + dodge

    def y(self, value: float) -> float:
        if self.scale == "log":
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.bottom - part * (self.bottom - self.top)


def _axes(chart: Chart, plot: _Plot, ticks: Sequence[float]) -> list[str]:
    parts = []
    for tick in ticks:
        y = plot.y(tick)
        kind = "base" if tick == ticks[0] else "grid"
        parts.append(f'<line class="{kind}" x1="{plot.left:.1f}" x2="{plot.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{plot.left - 7:.1f}" y="{y + 4:.1f}" text-anchor="end">{_text(chart, tick)}</text>'
        )
    for slot, label in enumerate(chart.categories):
        parts.append(
            f'<text class="tick" x="{plot.x(slot):.1f}" y="{plot.bottom + 19:.1f}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    middle = (plot.left + plot.right) / 2
    parts.append(
        f'<text class="axis" x="{middle:.1f}" y="{plot.bottom + 39:.1f}" text-anchor="middle">'
        f"{escape(chart.axis)}</text>"
    )
    return parts


def _text(chart: Chart, tick: float) -> str:
    return escape(chart.tick(tick))


def _guide(plot: _Plot, slot: int, value: float) -> str:
    """A short line across one category, where the value would be."""
    if not plot.low <= value <= plot.high:
        return ""
    half = 0.36 * (plot.right - plot.left) / plot.slots
    x, y = plot.x(slot), plot.y(value)
    return f'<line class="guide" x1="{x - half:.1f}" x2="{x + half:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _series(series: Series, plot: _Plot, count: int, place: int) -> str:
    """The line through the medians, broken where a point is missing, with whiskers from least to most."""
    step = min(_DODGE_PX, 0.5 * (plot.right - plot.left) / plot.slots / count)
    dodge = (place - (count - 1) / 2) * step  # side by side: equal values and their whiskers stay apart
    path, pen_down = [], False
    for slot, mark in enumerate(series.marks):
        if mark is not None:
            path.append(f"{'L' if pen_down else 'M'}{plot.x(slot, dodge):.1f} {plot.y(mark.value):.1f}")
        pen_down = mark is not None
    parts = [f'<path class="line" d="{"".join(path)}"/>']
    for slot, mark in enumerate(series.marks):
        if mark is None:
            continue
        x, y = plot.x(slot, dodge), plot.y(mark.value)
        whisker = ""
        if mark.high > mark.low:
            top, bottom = plot.y(mark.high), plot.y(mark.low)
            ends = "".join(f"M{x - 3:.1f} {end:.1f}h6" for end in (top, bottom))
            whisker = f'<path class="whisker" d="M{x:.1f} {top:.1f}V{bottom:.1f}{ends}"/>'
        told = escape(mark.told)
        parts.append(
            f'<g class="pt{" hollow" if mark.hollow else ""}" tabindex="0" role="img" aria-label="{told}"'
            f' data-told="{told}"><title>{told}</title>'
            f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="13"/>{whisker}{marker(series.shape, x, y)}</g>'
        )
    return f'<g class="series h{series.hue} d{series.dash}" data-series="{series.number}">{"".join(parts)}</g>'


def _direct_labels(series: Sequence[Series], plot: _Plot) -> list[str]:
    """Names at the right end of the lines, moved apart until they do not touch, tied to their line by a hair."""
    ends = []
    for each in series:
        placed = [mark for mark in each.marks if mark is not None]
        if placed and each.marks[-1] is not None:
            ends.append((plot.y(placed[-1].value), each))
    ends.sort(key=lambda end: end[0])
    heights = spread_out([height for height, _ in ends], _LABEL_GAP_PX, plot.top, plot.bottom)
    x = plot.right + 10
    return [
        f'<g class="name h{each.hue}" data-series="{each.number}">'
        f'<path class="hair" d="M{plot.x(plot.slots - 1) + 8:.1f} {at:.1f}L{x - 3:.1f} {y:.1f}"/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}">{escape(each.label)}</text></g>'
        for y, (at, each) in zip(heights, ends, strict=True)
    ]


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places at least `gap` apart, in the same order, each as near as one sweep brings it to where it wants to be.

    Args:
        wanted: places in rising order.
        gap: least distance.
        low: nothing goes above this edge.
        high: nothing goes below this edge, as long as there is room.
    """
    places: list[float] = []
    for place in wanted:
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
