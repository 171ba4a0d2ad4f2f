"""The report's section on buffers: a chart for each link, a shared legend, and a table of all points.

Takes: `BufferCurve`s. Gives: one HTML section; empty without a curve.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import Final

from netstack.base.units import format_size, three_digits

from ..charts.look import legend, numbered
from ..charts.page import both_sizes, chart_grid, figure, heads, table
from ..charts.plane import Plane, Upright, draw_plane
from ..charts.svg import Mark, Series, facets_attribute
from ..labels import setting_text
from .buffers import BufferCurve, BufferPoint, backpressure, buffers_text, bytes_text
from .charts import timeout_label
from .filters import Filters

_FIRST_SERIES: Final = 1000  # the lines of the other charts count from 0
_MOST_OPEN: Final = 6  # charts; more are folded
_BENDS: Final = 10  # segments of the expected line between two corners
_INSET: Final = 0.03  # free part of the width at both ends, so that marks are not on the axis
_HEADROOM: Final = 2.5


def buffers_section(curves: Sequence[BufferCurve], filters: Filters) -> str:
    """Throughput against the number of receive buffers of the gate."""
    if not curves:
        return ""
    series = {exclusive: number for number, exclusive in enumerate(_exclusives(curves))}
    figures = [_figure(curve, series, filters) for curve in curves]
    return (
        '<section id="buffers" aria-labelledby="buffers-head">'
        '<h2 id="buffers-head">Buffers</h2>'
        '<p class="note">Throughput against the receive buffers of the gate (channels &times; exclusive + floating), in'
        " MB/s on the wire: headers and length prefixes included. A line for each number of exclusive buffers a"
        " channel.</p>"
        f"{_legend(series, filters)}{chart_grid(figures, _MOST_OPEN)}"
        f'<div class="card buffers-table">{_table(curves, filters)}</div></section>'
    )


def _exclusives(curves: Sequence[BufferCurve]) -> list[int]:
    return sorted({point.exclusive for curve in curves for point in curve.points})


def _legend(series: dict[int, int], filters: Filters) -> str:
    looks = numbered(len(series))
    return legend(
        (_FIRST_SERIES + number, looks[number], _label(exclusive), filters.settings({"exclusive_buffers": exclusive}))
        for exclusive, number in series.items()
    )


def _facets(curve: BufferCurve, filters: Filters) -> str:
    link = curve.link
    names = {
        "record_bytes": link.record_bytes,
        "channels": link.channels,
        "buffer_timeout_s": link.timeout_s,
        "round_trip_s": link.round_trip_s,
        "link_bytes_per_s": link.link_bytes_per_s,
    }
    return " ".join(filter(None, (filters.settings(names), filters.of(dict(link.extras)))))


def _label(exclusive: int) -> str:
    return f"{exclusive:,} exclusive"


def _figure(curve: BufferCurve, series: dict[int, int], filters: Filters) -> str:
    chart = _chart(curve, series, filters)
    drawn = both_sizes(partial(draw_plane, chart))
    note = escape(curve.link.words)
    if curve.link.round_trip_s:
        note += (
            ". Thin dashes: the upper bound, min(rate, buffers &times; size &divide; round trip)."
            " Vertical: the bandwidth-delay product."
        )
    label = curve.link.label
    return figure(escape(label[:1].upper() + label[1:]), drawn, note, level=3, facets=_facets(curve, filters))


def _chart(curve: BufferCurve, series: dict[int, int], filters: Filters) -> Plane:
    totals, counts = curve.totals, [float(total) for total in curve.totals]
    looks = numbered(len(series))
    lines = []
    for exclusive in _exclusives([curve]):
        points = curve.of_exclusive(exclusive)
        marks = tuple(_mark(curve, points[total], filters) if total in points else None for total in totals)
        number, facets = series[exclusive], filters.settings({"exclusive_buffers": exclusive})
        places = tuple(map(math.log2, totals))
        lines.append(Series(_label(exclusive), _FIRST_SERIES + number, looks[number], places, marks, facets))
    highest = max(point.wire.high for point in curve.points)
    upright, expected = None, list[tuple[float, float]]()
    if curve.link.round_trip_s:
        product = f"bandwidth-delay product: {buffers_text(curve.product_buffers)} buffers"
        size = format_size(curve.link.segment_bytes, space=" ")
        formula = f"= {curve.rate_text} \u00d7 {timeout_label(curve.link.round_trip_s)} \u00f7 {size}"
        upright = Upright(math.log2(curve.product_buffers), (product, formula))
        counts.append(curve.product_buffers)
        expected = expectation(curve, _HEADROOM * highest)  # a rate far out of reach would flatten the curves
        highest = max(highest, *(value for _, value in expected))
    first = math.floor(math.log2(min(counts)) + 1e-9)
    last = max(math.ceil(math.log2(max(counts)) - 1e-9), first + 1)
    inset = (last - first) * _INSET / (1 - 2 * _INSET)
    return Plane(
        title=f"Throughput in MB/s against receive buffers of the gate, {curve.link.label}; one line per number of"
        " exclusive buffers",
        axis="receive buffers of the gate",
        span=(first - inset, last + inset),
        below=[(float(power), f"{2**power:,}") for power in range(first, last + 1)],
        series=lines,
        scale="linear",
        domain=(0.0, highest),
        unit="MB/s on the wire",
        tick=three_digits,
        upright=upright,
        expected=expected,
    )


def expectation(curve: BufferCurve, most_mb_per_s: float) -> list[tuple[float, float]]:
    """(log2 of the number of buffers, upper bound in MB/s), bent between its corners; cut off at `most_mb_per_s`."""
    rate = curve.rate_bytes_per_s / 1e6
    top = min(rate, most_mb_per_s)
    knee, ends = curve.product_buffers * top / rate, (float(curve.totals[0]), float(curve.totals[-1]))
    corners = sorted(at for at in {knee, ends[0], *(ends[1:] if top == rate else ())} if at <= knee or top == rate)
    counts = corners[:1]
    for at, after in itertools.pairwise(corners):
        counts += [at * (after / at) ** (step / _BENDS) for step in range(1, _BENDS + 1)]
    return [(math.log2(count), curve.expected_mb_per_s(count)) for count in counts]


def _mark(curve: BufferCurve, point: BufferPoint, filters: Filters) -> Mark:
    channels = f"{curve.link.channels:,} \u00d7 " if curve.link.channels > 1 else ""
    waited, most = backpressure(point), three_digits(curve.expected_mb_per_s(point.total))
    tooltip = (
        f"{point.total:,} buffers: {channels}{point.exclusive:,} exclusive + {point.floating:,} floating",
        f"{three_digits(point.wire.median)} MB/s, {curve.reached(point):.0%} of {curve.rate_text}",
        f"{three_digits(point.payload.median)} MB/s of payload",
        point.wire.spread(three_digits),
        f"expected at most {most} MB/s" if curve.link.round_trip_s else "",
        "" if waited is None else f"producer back-pressured {waited:.0%} of the time",
    )
    facets = filters.settings({"floating_buffers": point.floating})
    return Mark(point.wire.median, point.wire.low, point.wire.high, tooltip, facets=facets)


def _table(curves: Sequence[BufferCurve], filters: Filters) -> str:
    links = [curve.link for curve in curves]
    several = len({(link.record_bytes, link.channels, link.timeout_s, link.extras) for link in links}) > 1
    words = ["round trip", "link rate", *(["work"] if several else [])]
    counts = "exclusive", "floating", "buffers", "product"
    figures = "expected MB/s", "MB/s", "reached", "payload MB/s", "back-pressured"
    rows = (
        f"<tr{facets_attribute(_point_facets(curve, point, filters))}>{''.join(_cells(curve, point, several))}</tr>"
        for curve in curves
        for point in curve.points
    )
    head = heads(*words, *counts, *figures, left=len(words))
    return table(head, rows, "sortable", "Throughput by number of buffers")


def _point_facets(curve: BufferCurve, point: BufferPoint, filters: Filters) -> str:
    own = filters.settings({"exclusive_buffers": point.exclusive, "floating_buffers": point.floating})
    return " ".join(filter(None, (_facets(curve, filters), own)))


def _cells(curve: BufferCurve, point: BufferPoint, several: bool) -> list[str]:
    link = curve.link
    rate = link.link_bytes_per_s
    cells = [
        _cell(timeout_label(link.round_trip_s), link.round_trip_s, left=True),
        _cell("\u2013" if rate is None else setting_text("link_bytes_per_s", rate), rate, left=True),
    ]
    if several:
        cells.append(_cell(link.words, link.words, left=True))
    waited = backpressure(point)
    product = curve.product_buffers if link.round_trip_s else None
    expected = curve.expected_mb_per_s(point.total) if link.round_trip_s else None
    return [
        *cells,
        _cell(f"{point.exclusive:,}", point.exclusive),
        _cell(f"{point.floating:,}", point.floating),
        _cell(f"{point.total:,}", point.total),
        _cell("\u2013" if product is None else f"{buffers_text(product)} ({bytes_text(curve.product_bytes)})", product),
        _cell("\u2013" if expected is None else three_digits(expected), expected),
        _cell(three_digits(point.wire.median), point.wire.median),
        _cell(f"{curve.reached(point):.0%}", curve.reached(point)),
        _cell(three_digits(point.payload.median), point.payload.median),
        _cell("\u2013" if waited is None else f"{waited:.0%}", waited),
    ]


def _cell(text: str, sort: float | str | None, *, left: bool = False) -> str:
    return f'<td{" class=l" if left else ""} data-v="{"" if sort is None else escape(str(sort))}">{escape(text)}</td>'
