"""Latency percentiles as curves, for each setting.

Takes: an `Analysis`. Gives: one HTML section; empty where no run has a latency.

Rules: the horizontal axis counts nines (90, 99, 99.9 ... are equally far apart), its last tick is the longest latency
of the run. A chart for each line with a curve for each buffer timeout; with a single timeout one chart with a curve for
each line. All charts share their axes. A percentile that rests on less than one record is hollow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Final

from ..charts.page import both_sizes, chart_grid, distinct, figure, legend
from ..charts.svg import Look, Mark, Plane, Series, draw_plane
from ..grid import Kind
from ..histogram import PERCENTILES
from .charts import styles, timeout_label
from .filters import Filters
from .points import Analysis, Line, micro

_FIRST_SERIES: Final = 2000
_MOST_OPEN: Final = 4  # charts; more are folded
_TICKS: Final = {"p50": "50", "p90": "90", "p99": "99", "p999": "99.9", "p9999": "99.99"}
_NOTES: Final = {
    "latency": "Open loop at {rates} records/s.",
    "throughput": "Sampled under full load: mostly the time spent in queues.",
}


@dataclass(frozen=True, slots=True)
class _Curve:
    line: Line
    timeout_s: float | None
    number: int
    style: Look
    label: str
    facets: str


def percentiles_section(analysis: Analysis, filters: Filters) -> str:
    """Every measured percentile, for each setting a curve."""
    kind = _kind(analysis)
    if kind is None:
        return ""
    names = [name for name in PERCENTILES if _values(analysis, kind, (name,))]
    if len(names) < 2:
        return ""
    every = _curves(analysis, kind, filters)
    figures = [
        _figure(analysis, kind, names, title, curves, filters.line(line) if line else "")
        for title, line, curves in _groups(analysis, every)
    ]
    back = " Where records are relayed back: the round trip." if analysis.has_round_trips else ""
    rates = " and ".join(f"{rate:,.0f}" for rate in analysis.latency_rates)
    return (
        '<section id="percentiles" aria-labelledby="percentiles-head">'
        '<h2 id="percentiles-head">Latency percentiles</h2>'
        f'<p class="note">{_NOTES[kind].format(rates=rates)}{back} Each tick to the right is ten times rarer than'
        " the one before. Lower and flatter is better. Hollow marks: less than one record lies above.</p>"
        f"{_legend(analysis, every, filters)}{chart_grid(figures, _MOST_OPEN)}</section>"
    )


def nines(fraction: float) -> float:
    """The position of a percentile on the axis: 0.9 at 1, 0.99 at 2, 0.999 at 3."""
    return -math.log10(1 - fraction)


def _kind(analysis: Analysis) -> Kind | None:
    """The runs whose latency is drawn: those at a rate, else those under load."""
    kinds: tuple[Kind, ...] = ("latency", "throughput")
    return next((kind for kind in kinds if _values(analysis, kind, ("p50",))), None)


def _values(analysis: Analysis, kind: Kind, names: Sequence[str]) -> list[float]:
    figures = [analysis.latency(*point, name, kind=kind) for point in analysis.points for name in names]
    return [bound for figure in figures if figure for bound in (figure.low, figure.high) if bound > 0]


def _curves(analysis: Analysis, kind: Kind, filters: Filters) -> list[_Curve]:
    looks = styles(analysis)
    sweeps = sorted({line.sweep for line in analysis.lines})
    several = len(analysis.timeouts) > 1
    looks_of_timeouts = distinct(
        (number, sweep, number) for number in range(len(analysis.timeouts)) for sweep in range(len(sweeps))
    )
    curves = []
    for place, line in enumerate(analysis.lines):
        for number, timeout in enumerate(analysis.timeouts):
            if analysis.latency(line, timeout, kind=kind) is None:
                continue
            facets = filters.point(line, timeout)
            if several:
                sweep = sweeps.index(line.sweep)
                style = looks_of_timeouts[number * len(sweeps) + sweep]
                label = f"{timeout_label(timeout)}{f' · {line.sweep}' if line.sweep else ''}"
                series = _FIRST_SERIES + number * len(sweeps) + sweep
                curves.append(_Curve(line, timeout, series, style, label, facets))
            else:
                curves.append(_Curve(line, timeout, _FIRST_SERIES + place, looks[line], line.label, facets))
    return curves


def _groups(analysis: Analysis, curves: list[_Curve]) -> list[tuple[str, Line | None, list[_Curve]]]:
    if len(analysis.timeouts) < 2:
        timeout = "".join(timeout_label(each) for each in analysis.timeouts)
        return [(f"Buffer timeout {timeout}", None, curves)]
    works = dict.fromkeys(curve.line.work for curve in curves)
    return [(work.label, work, [curve for curve in curves if curve.line.work == work]) for work in works]


def _legend(analysis: Analysis, curves: Sequence[_Curve], filters: Filters) -> str:
    entries: dict[int, tuple[int, Look, str, str]] = {}
    for curve in curves:
        label = curve.label
        facets = curve.facets
        if len(analysis.timeouts) > 1:
            label = f"timeout {label}"
            own = {"sweep": curve.line.sweep} if curve.line.sweep else {}
            facets = " ".join(filter(None, (filters.timeout(curve.timeout_s), filters.of(own))))
        entries[curve.number] = curve.number, curve.style, label, facets
    return legend(entries[number] for number in sorted(entries))


def _figure(
    analysis: Analysis,
    kind: Kind,
    names: Sequence[str],
    title: str,
    curves: Sequence[_Curve],
    facets: str,
) -> str:
    places = [nines(PERCENTILES[name]) for name in names]
    end = math.floor(places[-1] + 1e-9) + 1.0
    ticks = [(nines(PERCENTILES[name]), label) for name, label in _TICKS.items() if name in names]
    every = [*names, "max"]
    values = _values(analysis, kind, every)
    series = []
    for curve in curves:
        marks = tuple(_mark(analysis, kind, curve, name) for name in every)
        series.append(Series(curve.label, curve.number, curve.style, (*places, end), marks, curve.facets))
    plane = Plane(
        title=f"Latency by percentile, {title}, logarithmic scale; one curve per setting",
        axis="percentile of the records, %",
        span=(places[0], end),
        below=[*ticks, (end, "max")],
        series=series,
        scale="log",
        domain=(min(values), max(values)),
        tick=micro,
        unit="latency",
    )
    drawn = both_sizes(partial(draw_plane, plane), direct=len(analysis.timeouts) > 1)
    return figure(escape(title), drawn, level=3, facets=facets)


def _mark(analysis: Analysis, kind: Kind, curve: _Curve, name: str) -> Mark | None:
    figure = analysis.latency(curve.line, curve.timeout_s, name, kind=kind)
    if figure is None:
        return None
    samples = [row.get("latency_samples") for row in analysis.runs(kind, curve.line, curve.timeout_s)]
    known = [count for count in samples if count is not None]
    above = statistics.median(known) * (1 - PERCENTILES.get(name, 0.0)) if known else math.inf
    head = f"p{100 * PERCENTILES[name]:g}" if name in PERCENTILES else "longest"
    is_hollow = name != "max" and above < 1
    tooltip = (
        f"{curve.line.label}, timeout {timeout_label(curve.timeout_s)}",
        f"{head} {micro(figure.median)}",
        figure.spread(micro),
        f"of {statistics.median(known):,.0f} records: less than one lies above" if is_hollow else "",
    )
    return Mark(figure.median, figure.low, figure.high, tooltip, is_hollow)
