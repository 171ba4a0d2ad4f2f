"""Charts over two value axes as SVG: percentile curves, points with their frontier, series over time.

Positions and ticks are in the caller's units of the horizontal axis (a logarithm, a number of nines, seconds).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from .svg import UNIT_PX, Plot, Series, axes, below_px, facets_attribute, grouped, names, nice_ticks, point

_MOST_DIRECT_LABELS: Final = 8
_LONGEST_DIRECT_LABEL: Final = 26
_LABEL_ROWS: Final = 4


@dataclass(frozen=True, slots=True)
class Track:
    """A series, the position of its marks, and whether a line joins them."""

    series: Series
    places: tuple[float, ...]
    joined: bool = True


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """What to draw.

    `span` has the ends of the horizontal axis, `below` its (position, label) ticks, `domain` the least and greatest
    value before rounding. With `bare`, lines have no marks and the script shows the values at the pointer.
    """

    title: str
    axis: str
    span: tuple[float, float]
    below: Sequence[tuple[float, str]]
    tracks: Sequence[Track]
    scale: Literal["linear", "log"]
    domain: tuple[float, float]
    tick: Callable[[float], str]
    unit: str = ""
    frontiers: Sequence[Frontier] = ()
    bare: bool = False


def draw_plane(plane: Plane, *, width: int, height: int, direct_labels: bool) -> str:
    """The chart as one SVG element of this size; it scales with its container."""
    ticks = nice_ticks(plane.scale, *plane.domain)
    longest = max((len(track.series.label) for track in plane.tracks), default=0)
    direct = direct_labels and 0 < len(plane.tracks) <= _MOST_DIRECT_LABELS and longest <= _LONGEST_DIRECT_LABEL
    plot = Plot(
        left=14 + 7.2 * max(len(plane.tick(tick)) for tick in ticks),
        right=width - (14 + 7.8 * longest if direct else 14),
        top=14 + (UNIT_PX if plane.unit else 0),
        bottom=height - below_px(plane.axis, width),
        scale=plane.scale,
        low=ticks[0],
        high=ticks[-1],
        width=width,
    )
    first, last = plane.span

    def place(at: float) -> float:
        return plot.left + (at - first) / (last - first) * (plot.right - plot.left)

    drawn, ends = [], []
    for track in plane.tracks:
        positions = [
            (place(at), mark)
            for at, mark in zip(track.places, track.series.marks, strict=True)
            if mark is not None and (plane.scale == "linear" or mark.value > 0)
        ]
        parts = [] if plane.bare else [point(mark, track.series.shape, x, plot) for x, mark in positions]
        if track.joined and positions:
            line = "L".join(f"{x:.1f} {plot.y(mark.value):.1f}" for x, mark in positions)
            parts.insert(0, f'<path class="line" d="M{line}"/>')
        if positions:
            ends.append((positions[-1][0], plot.y(positions[-1][1].value), track.series))
            drawn.append(grouped(track.series, parts))
    stairs = [_frontier(frontier, place, plot, row % _LABEL_ROWS) for row, frontier in enumerate(plane.frontiers)]
    facts = _plot_facts(plot, first, last, plane) if plane.bare else ""
    below = [(place(at), label) for at, label in plane.below]
    return "".join(
        (
            f'<svg viewBox="0 0 {width} {height}" role="img" data-scale="{plane.scale}"{facts}'
            f' aria-label="{escape(plane.title)}"'
            ' xmlns="http://www.w3.org/2000/svg">',
            f"<title>{escape(plane.title)}</title>",
            *axes(plot, ticks, plane.tick, below, plane.axis, unit=plane.unit),
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


def _plot_facts(plot: Plot, first: float, last: float, plane: Plane) -> str:
    box = f"{plot.left:.1f} {plot.right:.1f} {plot.top:.1f} {plot.bottom:.1f}"
    return f' class="bare" data-box="{box}" data-span="{first:g} {last:g} {plot.low:g} {plot.high:g}"'
