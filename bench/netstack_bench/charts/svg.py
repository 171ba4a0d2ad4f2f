"""The parts of charts as SVG: axes, marks, lines and their names.

Colours and dashes are classes of the page's style sheet (for both colour schemes); shapes differ by series, so that
colour alone has no meaning; every mark has a `<title>` and its text for the pointer.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal, TypeAlias


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
