"""Throughput against the number of receive buffers: how many buffers a link needs, and the cost of having fewer.

Takes: an `Analysis`. Gives: one `BufferCurve` for each link and kind of record on which more than one number of buffers
was measured, and the sentences that sum them up.

Rules: a gate's receive buffers are channels x exclusive + floating. The rate is that of the link where one was given,
else the best that the same records reached at any round trip. What arrives is counted on the wire, headers and length
prefixes included, because that is what a link's rate and a buffer's size count.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from netstack.base.units import counted, format_size, three_digits

from ..figure import Figure
from ..labels import setting, setting_name, setting_text
from ..spec import RunSpec
from ..store import Row
from .charts import timeout_label
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
