"""Throughput against latency: a mark for each setting, and the frontier of the best ones.

Takes: an `Analysis`. Gives: one HTML figure; empty with fewer than two points.

Rules: a point's throughput comes from the runs without a rate, its latency from those with one (or, where there are
none, from the samples under load). Each record size of each sweep has a frontier of its own. A setting is on the
frontier when no other of its group has both more throughput and less latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

from netstack.base.units import format_count, format_size, three_digits

from ..charts.page import both_sizes
from ..charts.svg import Frontier, Mark, Plane, Series, draw_plane, nice_ticks, pareto
from ..grid import Kind
from ..labels import Figure
from .charts import legend, styles, tabbed, timeout_label
from .filters import Filters
from .points import Analysis, Line, micro

_WIDE_PX: Final = (1160, 430)
_NARROW_PX: Final = (350, 380)
_RATES: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("records_per_s", "records/s", format_count),
    ("payload_mb_per_s", "MB/s", three_digits),
)
_LATENCIES: Final = ("p50", "p99")
_LEAST_POINTS: Final = 2
_LINEAR_UP_TO: Final = 8.0  # times between the most and the least throughput
_MARGIN: Final = 1.08  # of the horizontal axis, so that marks do not stand on its ends

_Point = tuple[Line, float | None, Figure, Figure]


def frontier_section(analysis: Analysis, filters: Filters) -> str:
    """Latency (p50, p99) against throughput (records, payload), each pair a tab."""
    kinds: tuple[Kind, ...] = ("latency", "throughput")
    kind = next((each for each in kinds if len(_points(analysis, each, "p50", "records_per_s")) >= _LEAST_POINTS), None)
    if kind is None:
        return ""
    panels = []
    for rate, unit, write in _RATES:
        for percentile in _LATENCIES:
            points = _points(analysis, kind, percentile, rate)
            if len(points) >= _LEAST_POINTS:
                plane = _plane(analysis, filters, points, percentile, unit, write)
                drawn = both_sizes(partial(draw_plane, plane), _WIDE_PX, _NARROW_PX, direct=False)
                panels.append((f"{percentile} · {unit}", drawn))
    where = "at a fixed rate" if kind == "latency" else "under full load"
    note = (
        f"A mark for each setting: throughput at full speed, latency {where}. The best are at the lower right. The"
        " staircase is the frontier of each record size: no measured setting is both faster and lower in latency."
    )
    drawn = tabbed("frontier", "Throughput against latency", note, panels)
    return f'<section>{legend(analysis, filters)}<div class="charts one">{drawn}</div></section>'


def _points(analysis: Analysis, kind: Kind, percentile: str, rate: str) -> list[_Point]:
    points = []
    for line, timeout in analysis.points:
        throughput = analysis.throughput(line, timeout, rate)
        latency = analysis.latency(line, timeout, percentile, kind=kind)
        if throughput and latency and throughput.median > 0 and latency.low > 0:
            points.append((line, timeout, throughput, latency))
    return points


def _plane(
    analysis: Analysis,
    filters: Filters,
    points: list[_Point],
    percentile: str,
    unit: str,
    write: Callable[[float], str],
) -> Plane:
    rates = [throughput.median for _, _, throughput, _ in points]
    is_log = max(rates) > _LINEAR_UP_TO * min(rates)
    scale = math.log10 if is_log else float
    ticks = nice_ticks("log" if is_log else "linear", min(rates) / _MARGIN, max(rates) * _MARGIN)
    series = []
    groups: dict[str, list[tuple[float, float]]] = {}
    for number, (line, look) in enumerate(styles(analysis).items()):
        mine = [each for each in points if each[0] == line]
        if not mine:
            continue
        group = _group(line)
        marks = tuple(_mark(each, filters, group, percentile, unit, write) for each in mine)
        places = tuple(scale(each[2].median) for each in mine)
        series.append(Series(line.label, number, look, places, marks, filters.line(line), joined=False))
        groups.setdefault(group, []).extend((scale(each[2].median), each[3].median) for each in mine)
    sweeps = sorted({line.sweep for line in analysis.lines})
    frontiers = []
    for group, marked in groups.items():
        size, sweep = next((line.record_bytes, line.sweep) for line in analysis.lines if _group(line) == group)
        label = f"{format_size(size, space=' ')}{f' · {sweep}' if sweep else ''}"
        named = {"record_bytes": size, **({"sweep": sweep} if sweep else {})}
        frontiers.append(Frontier(group, label, pareto(marked), sweeps.index(sweep) % 4, filters.settings(named)))
    latencies = [bound for *_, latency in points for bound in (latency.low, latency.high)]
    return Plane(
        title=f"Latency {percentile} against throughput in {unit}; one mark per setting, with the frontier",
        axis=f"throughput, {unit}",
        span=(scale(ticks[0]), scale(ticks[-1])),
        below=[(scale(tick), write(tick)) for tick in ticks],
        series=series,
        scale="log",
        domain=(min(latencies), max(latencies)),
        tick=micro,
        unit=f"latency, {percentile}",
        frontiers=frontiers,
    )


def _group(line: Line) -> str:
    return f"{line.record_bytes}{line.sweep}"


def _mark(
    point: _Point, filters: Filters, group: str, percentile: str, unit: str, write: Callable[[float], str]
) -> Mark:
    line, timeout, throughput, latency = point
    tooltip = (
        f"{line.label}, timeout {timeout_label(timeout)}",
        f"{write(throughput.median)} {unit}",
        f"{percentile} {micro(latency.median)}",
        latency.spread(micro),
    )
    facets = filters.timeout(timeout)
    tag = timeout_label(timeout) if facets else ""  # only where timeouts differ
    return Mark(latency.median, latency.low, latency.high, tooltip, facets=facets, group=group, tag=tag)
