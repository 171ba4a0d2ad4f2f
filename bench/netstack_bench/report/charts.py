"""The report's two charts from an analysis: throughput and latency against the buffer timeout; tabs and views.

Takes: an `Analysis`. Gives: HTML figures, each with its tabs, in a wide and a narrow drawing, and their shared legend.

Rules: the tabs of one chart share one value axis where they share a unit, so that switching shows the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Final

from netstack.base.units import format_count, format_duration, three_digits

from ..charts.page import both_sizes, distinct, legend as charts_legend
from ..charts.svg import Look, Mark, Plane, Series, by_category, draw_plane, facets_attribute
from ..labels import Figure
from .filters import Filters
from .points import Analysis, Line, micro

PERCENTILES: Final = (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p999", "p99.9"))

_LINEAR_UP_TO: Final = 25.0  # times between the most and the least, beyond which the low lines would lie on the axis


def legend(analysis: Analysis, filters: Filters) -> str:
    """A button for each line; a plain legend without the script."""
    return charts_legend(
        (number, style, line.label, filters.line(line)) for number, (line, style) in enumerate(styles(analysis).items())
    )


def styles(analysis: Analysis) -> dict[Line, Look]:
    """(hue, dash, shape) of each line: the hue stands for record size and further settings, the dash for channels.

    With several sweeps in one page hue and shape stand for the settings, and the dash for the sweep. No two lines look
    alike as long as there are looks left (`look.LOOKS`).
    """
    sweeps = sorted({line.sweep for line in analysis.lines})
    if len(sweeps) > 1:
        places = {work: place for place, work in enumerate(dict.fromkeys(line.work for line in analysis.lines))}
        wishes = [(places[line.work], sweeps.index(line.sweep), places[line.work]) for line in analysis.lines]
    else:
        works = list(dict.fromkeys((line.record_bytes, line.extras) for line in analysis.lines))
        counts = sorted({line.channels for line in analysis.lines})
        wishes = [
            (works.index((line.record_bytes, line.extras)), counts.index(line.channels), number)
            for number, line in enumerate(analysis.lines)
        ]
    return dict(zip(analysis.lines, distinct(wishes), strict=True))


def throughput_figure(analysis: Analysis, filters: Filters) -> str:
    """Records per second and payload against the timeout."""
    panels = []
    for name, tab, unit in (("records_per_s", "records/s", "records/s"), ("payload_mb_per_s", "payload MB/s", "MB/s")):
        read = partial(analysis.throughput, name=name)
        write = format_count if name == "records_per_s" else three_digits
        values = _values(analysis, read)
        if not values:
            continue
        scale = "linear" if max(values) <= _LINEAR_UP_TO * min(values) else "log"
        title = (
            f"Throughput in {unit} against buffer timeout, {scale} scale; one line per record size and channel count"
        )
        panels.append((tab, _drawings(analysis, filters, title, read, scale, values, write, unit=unit)))
    note = "Median of the runs without a rate limit. Higher is better."
    return tabbed("throughput", "Throughput against buffer timeout", note, panels)


def latency_figure(analysis: Analysis, filters: Filters) -> str:
    """Percentiles against the timeout, on one logarithmic axis."""
    reads = {tab: partial(analysis.latency, name=name) for name, tab in PERCENTILES}
    every = [value for read in reads.values() for value in _values(analysis, read)]
    panels = []
    for tab, read in reads.items():
        if _values(analysis, read):
            title = (
                f"Latency {tab} against buffer timeout, logarithmic scale; one line per record size and channel count"
            )
            panels.append((tab, _drawings(analysis, filters, title, read, "log", every, micro, unit=tab, guided=True)))
    rates = " and ".join(f"{rate:,.0f}" for rate in analysis.latency_rates)
    note = f"Open loop at {rates} records/s; lower is better. Grey dashes: the timeout itself."
    if analysis.has_round_trips:
        note += " Where records are relayed back: the round trip."
    if any(itertools.starmap(analysis.cut_short, analysis.points)):
        note += " Hollow marks: a lower bound (see notes)."
    return tabbed("latency", "Latency against buffer timeout", note, panels)


def timeout_label(timeout_s: float | None) -> str:
    """`10 ms`, `0` or `none`, for axes and column headers."""
    return format_duration(timeout_s, space=" ").replace("us", "µs")


def _values(analysis: Analysis, read: Callable[[Line, float | None], Figure | None]) -> list[float]:
    figures = itertools.starmap(read, analysis.points)
    return [bound for figure in figures if figure for bound in (figure.low, figure.high) if bound > 0]


def _drawings(
    analysis: Analysis,
    filters: Filters,
    title: str,
    read: Callable[[Line, float | None], Figure | None],
    scale: str,
    values: list[float],
    write: Callable[[float], str],
    *,
    unit: str,
    guided: bool = False,
) -> str:
    series = []
    places = tuple(map(float, range(len(analysis.timeouts))))
    for number, (line, look) in enumerate(styles(analysis).items()):
        marks: list[Mark | None] = []
        for timeout in analysis.timeouts:
            figure = read(line, timeout)
            if figure is None or (scale == "log" and figure.low <= 0):
                marks.append(None)
                continue
            hollow = guided and analysis.cut_short(line, timeout)
            value = write(figure.median)
            kept = analysis.kept(line, timeout) if not guided and timeout != analysis.reference else None
            tooltip = (
                f"{line.label}, timeout {timeout_label(timeout)}",
                f"{unit} {'at least ' if hollow else ''}{value}" if guided else f"{value} {unit}",
                figure.spread(write),
                "" if kept is None else f"{kept:.0%} of that at {timeout_label(analysis.reference)}",
            )
            marks.append(Mark(figure.median, figure.low, figure.high, tooltip, hollow, filters.timeout(timeout)))
        series.append(Series(line.label, number, look, places, tuple(marks), filters.line(line)))
    plane = Plane(
        **by_category([timeout_label(timeout) for timeout in analysis.timeouts]),
        title=title,
        axis="buffer timeout",
        series=series,
        scale="log" if scale == "log" else "linear",
        domain=(min(values), max(values)),
        tick=write,
        unit=f"latency, {unit}" if guided else unit,
        guides=[timeout * 1e6 if timeout else None for timeout in analysis.timeouts] if guided else (),
        facets=[filters.timeout(timeout) for timeout in analysis.timeouts],
    )
    return both_sizes(partial(draw_plane, plane))


def tabbed(name: str, title: str, note: str, panels: Sequence[tuple[str, str]]) -> str:
    """A figure with its tabs: radio buttons and the style sheet, so they work without a script."""
    if not panels:
        return f'<figure class="card"><h2>{title}</h2><p class="note">No such run succeeded.</p></figure>'
    caption = f'<h2>{title}</h2><span class="note">{escape(note)}</span>'
    drawn = "".join(panel(number, svg) for number, (_, svg) in enumerate(panels, 1))
    return (
        f'<figure class="card" id="{name}"><figcaption>{caption}</figcaption>'
        f"<fieldset>{tabs(name, [tab for tab, _ in panels])}{drawn}</fieldset></figure>"
    )


def tabs(name: str, labels: Sequence[str]) -> str:
    """The radio buttons that choose one of the panels behind them in the same fieldset, at any depth."""
    picks = "".join(
        f'<input class="pick" type="radio" name="{name}" id="{name}-{number}"{" checked" if number == 1 else ""}>'
        for number in range(1, len(labels) + 1)
    )
    heads = "".join(f'<label for="{name}-{number}">{escape(label)}</label>' for number, label in enumerate(labels, 1))
    return f'<legend class="vh">What to show</legend>{picks}<div class="tabs">{heads}</div>'


def panel(number: int, content: str) -> str:
    """The panel of the tab with this number, from 1."""
    return f'<div class="panel p{number}">{content}</div>'


@dataclass(frozen=True, slots=True)
class View:
    """The part of one point: label, filter tokens, HTML."""

    label: str
    facets: str
    content: str


def views(name: str, entries: Sequence[View], first: int = 0) -> str:
    """The views of the section `name` (at least one), of which number `first` is open."""
    options = "".join(
        f'<option value="{number}"{" selected" if number == first else ""}>{escape(view.label)}</option>'
        for number, view in enumerate(entries)
    )
    choose = (
        f'<div class="pickview" hidden><label for="{name}-view">Setting</label>'
        f'<button type="button" data-step="-1" aria-label="Previous setting">&lsaquo;</button>'
        f'<select id="{name}-view">{options}</select>'
        f'<button type="button" data-step="1" aria-label="Next setting">&rsaquo;</button></div>'
    )
    parts = "".join(
        f'<details class="view"{" open" if number == first else ""}{facets_attribute(view.facets)}>'
        f"<summary>{escape(view.label)}</summary>{view.content}</details>"
        for number, view in enumerate(entries)
    )
    return f'<div class="views">{choose if len(entries) > 1 else ""}{parts}<p class="none note" hidden></p></div>'
