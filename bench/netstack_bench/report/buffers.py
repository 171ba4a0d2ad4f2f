"""Throughput against the number of receive buffers: how many buffers a link needs, and the cost of having fewer.

Takes: an `Analysis`. Gives: one `BufferCurve` for each link and kind of record on which more than one number of buffers
was measured, and the sentences that sum them up.

Rules: a gate's receive buffers are channels x exclusive + floating. The rate is that of the link where one was given,
else the best that the same records reached at any round trip. What arrives is counted on the wire, headers and length
prefixes included, because that is what a link's rate and a buffer's size count.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any, Final

from netstack.base.units import counted, format_size, three_digits

from ..charts.page import both_sizes, chart_grid, figure, heads, legend, numbered, table
from ..charts.svg import Mark, Plane, Series, Upright, draw_plane, facets_attribute
from ..labels import Figure, setting, setting_name, setting_text
from ..spec import RunSpec
from ..store import Row
from .charts import timeout_label
from .filters import Filters
from .points import Analysis, facet, row_kind

ENOUGH: Final = 0.9
"""The fraction of the rate that counts as reached."""

_MOST_FINDINGS: Final = 3
_OWN: Final = frozenset({"exclusive_buffers", "floating_buffers", "round_trip_s", "link_bytes_per_s"})


@dataclass(frozen=True, slots=True)
class Link:
    """The settings that all points of a curve share.

    `link_bytes_per_s` is the rate limit of the connection, None without one; `extras` are other settings in which the
    rows differ, as (name, text).
    """

    round_trip_s: float
    link_bytes_per_s: int | None
    record_bytes: int
    channels: int
    timeout_s: float | None
    segment_bytes: int
    extras: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """The link, for the title of a chart."""
        parts = [f"{timeout_label(self.round_trip_s)} round trip" if self.round_trip_s else "bare transport"]
        if self.link_bytes_per_s is not None:
            parts.append(setting_text("link_bytes_per_s", self.link_bytes_per_s))
        return ", ".join(parts)

    @property
    def words(self) -> str:
        """The workload, for the subtitle of a chart."""
        parts = [
            f"{format_size(self.record_bytes, space=' ')} records",
            counted(self.channels, "channel"),
            f"timeout {timeout_label(self.timeout_s)}",
            f"buffers of {format_size(self.segment_bytes, space=' ')}",
            *(f"{setting_name(name)} {text}" for name, text in self.extras if name != "segment_size_bytes"),
        ]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class BufferPoint:
    """One number of buffers, measured: exclusive ones of each channel, floating and total ones of the gate.

    `wire` and `payload` are MB/s, `rows` its runs.
    """

    exclusive: int
    floating: int
    total: int
    wire: Figure
    payload: Figure
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class BufferCurve:
    """The points of one link, by exclusive, then floating buffers, and the rate of the link, or the best reached."""

    link: Link
    points: tuple[BufferPoint, ...]
    rate_bytes_per_s: float

    @property
    def product_bytes(self) -> float:
        """Bandwidth-delay product: the bytes in flight when the link is full; 0 without a delay."""
        return self.rate_bytes_per_s * self.link.round_trip_s

    @property
    def product_buffers(self) -> float:
        """The same in buffers: fewer cannot fill the link."""
        return self.product_bytes / self.link.segment_bytes

    @property
    def totals(self) -> list[int]:
        """The measured numbers of buffers, ascending."""
        return sorted({point.total for point in self.points})

    @property
    def rate_text(self) -> str:
        """The configured rate, or the best measured one."""
        if self.link.link_bytes_per_s is not None:
            return setting_text("link_bytes_per_s", self.link.link_bytes_per_s)
        return f"{three_digits(self.rate_bytes_per_s / 1e6)} MB/s"

    def expected_mb_per_s(self, buffers: float) -> float:
        """The upper bound on throughput: a sender can have all buffers in flight once per round trip."""
        if not self.link.round_trip_s:
            return self.rate_bytes_per_s / 1e6
        return min(self.rate_bytes_per_s, buffers * self.link.segment_bytes / self.link.round_trip_s) / 1e6

    def reached(self, point: BufferPoint) -> float:
        """Throughput as a fraction of the rate."""
        return point.wire.median * 1e6 / self.rate_bytes_per_s

    def of_exclusive(self, exclusive: int) -> dict[int, BufferPoint]:
        """The points of one line by their number of buffers."""
        return {point.total: point for point in self.points if point.exclusive == exclusive}


def buffer_curves(analysis: Analysis) -> list[BufferCurve]:
    """Every curve with two points or more, the longest link last."""
    extras = [name for name in analysis.varying if name not in _OWN]
    groups: dict[Link, dict[tuple[int, int], list[Row]]] = {}
    for row in analysis.good:
        if row_kind(row) == "throughput":
            buffers = setting(row, "exclusive_buffers"), setting(row, "floating_buffers")
            groups.setdefault(_link(row, extras), {}).setdefault(buffers, []).append(row)
    points = {link: _points(link, rows) for link, rows in groups.items()}
    curves = [
        BufferCurve(link, tuple(measured), float(link.link_bytes_per_s or _best(link, points) * 1e6))
        for link, measured in points.items()
        if len(measured) > 1
    ]
    return sorted((curve for curve in curves if curve.rate_bytes_per_s), key=_order)


def buffer_findings(curves: Sequence[BufferCurve]) -> list[tuple[str, str, str]]:
    """One sentence for each of the longest links, about its fastest kind of record."""
    fastest: dict[tuple[float, int | None], BufferCurve] = {}
    for curve in curves:
        link = curve.link.round_trip_s, curve.link.link_bytes_per_s
        if link not in fastest or _top(curve) > _top(fastest[link]):
            fastest[link] = curve
    return [_finding(curve) for curve in list(fastest.values())[-_MOST_FINDINGS:]]


def buffers_text(count: float) -> str:
    """`32`, `3.1`, `1,200`."""
    return three_digits(float(f"{count:.2g}") if count < 10 else round(count))


def bytes_text(size: float) -> str:
    """`1 MiB`, `312 KiB`: three digits."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{three_digits(size / factor)} {unit}"
    return f"{three_digits(size)} B"


def _finding(curve: BufferCurve) -> tuple[str, str, str]:
    link = curve.link
    size = format_size(link.segment_bytes, space=" ")
    if not link.round_trip_s:
        best = max(curve.points, key=curve.reached)
        least = min((point.total for point in curve.points if curve.reached(point) >= ENOUGH), default=best.total)
        few = _few(curve, least)
        less = "" if few is None else f"; {few:,} reached {_best_at(curve, few):.0%}"
        sentence = f"reached {_best_at(curve, least):.0%} of {curve.rate_text} without a round trip{less}"
        return "Buffers", f"{least:,} \u00d7 {size}", f"{sentence} ({link.words})"
    rate = "the link" if link.link_bytes_per_s is not None else curve.rate_text
    round_trip = timeout_label(link.round_trip_s)
    product = f"{bytes_text(curve.product_bytes)} = {curve.rate_text} \u00d7 {round_trip}"
    sentence = f"needed to fill {rate} (bandwidth-delay product {product}); {_reached(curve)}"
    return f"Buffers at {round_trip} round trip", f"{buffers_text(curve.product_buffers)} \u00d7 {size}", sentence


def _reached(curve: BufferCurve) -> str:
    enough = _enough(curve)
    few = _few(curve, enough)
    parts = [] if few is None else [f"with {few:,} buffers it reached {_best_at(curve, few):.0%}"]
    if enough is not None:
        lowest = min(curve.reached(point) for point in curve.points if point.total >= enough)
        parts.append(f"from {enough:,} on {'' if parts else 'it reached '}{lowest:.0%}")
    elif few != curve.totals[-1]:
        parts.append(f"with {curve.totals[-1]:,}, the highest number measured, {_best_at(curve, curve.totals[-1]):.0%}")
    return ", ".join(parts)


def _enough(curve: BufferCurve) -> int | None:
    """The least number of buffers from which on every point reached the rate; None if the greatest did not."""
    enough = None
    for total in reversed(curve.totals):
        if any(curve.reached(point) < ENOUGH for point in curve.points if point.total == total):
            break
        enough = total
    return enough


def _few(curve: BufferCurve, enough: int | None) -> int | None:
    """An instructive number that is too small: the default, else about a third of the need, else the smallest."""
    short = [total for total in curve.totals if enough is None or total < enough]
    if not short:
        return None
    default = RunSpec()
    usual = curve.link.channels * default.exclusive_buffers + default.floating_buffers
    if usual in short:
        return usual
    third = [total for total in short if total <= (curve.product_buffers or enough or short[-1]) / 3]
    return third[-1] if third else short[0]


def _best_at(curve: BufferCurve, total: int) -> float:
    return max(curve.reached(point) for point in curve.points if point.total == total)


def _top(curve: BufferCurve) -> float:
    return max(point.wire.median for point in curve.points)


def _link(row: Row, extras: Iterable[str]) -> Link:
    return Link(
        float(setting(row, "round_trip_s")),
        setting(row, "link_bytes_per_s"),
        row["settings_record_bytes"],
        row["settings_channels"],
        setting(row, "buffer_timeout_s"),
        setting(row, "segment_size_bytes"),
        tuple((name, setting_text(name, facet(row, name))) for name in extras),
    )


def _points(link: Link, groups: Mapping[tuple[int, int], list[Row]]) -> list[BufferPoint]:
    points = []
    for (exclusive, floating), rows in sorted(groups.items()):
        payload = Figure.of(row.get("payload_mb_per_s") for row in rows)
        wire = Figure.of(row.get("wire_mb_per_s") for row in rows) or payload
        if wire is not None and payload is not None:
            total = link.channels * exclusive + floating
            points.append(BufferPoint(exclusive, floating, total, wire, payload, tuple(rows)))
    return points


def _best(link: Link, points: Mapping[Link, Sequence[BufferPoint]]) -> float:
    return max(
        point.wire.median
        for other, measured in points.items()
        if _work(other) == _work(link) and other.link_bytes_per_s is None
        for point in measured
    )


def _work(link: Link) -> tuple[Any, ...]:
    return link.record_bytes, link.channels, link.timeout_s, link.segment_bytes, link.extras


def _order(curve: BufferCurve) -> tuple[Any, ...]:
    link = curve.link
    timeout = float("inf") if link.timeout_s is None else link.timeout_s
    return link.round_trip_s, link.link_bytes_per_s or 0, link.record_bytes, link.channels, timeout, link.extras


def backpressure(point: BufferPoint) -> float | None:
    """The fraction of time that the producer waited for buffers; None if the rows lack it."""
    waits = [
        (row["backpressured_ms_per_s_soft"] + row["backpressured_ms_per_s_hard"]) / 1000
        for row in point.rows
        if row.get("backpressured_ms_per_s_soft") is not None and row.get("backpressured_ms_per_s_hard") is not None
    ]
    return statistics.median(waits) if waits else None


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
