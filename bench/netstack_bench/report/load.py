"""Latency against the rate of records: flat while the system keeps up, steep where it no longer does.

Takes: an `Analysis`. Gives: one HTML figure with a view for each buffer timeout; empty where no point has two rates.

Rules: only open-loop runs. A run that carried less than 98 % of its rate is a hollow mark: its latency grows with its
length, so its value is a lower bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

from netstack.base.units import format_count

from ..charts.page import both_sizes
from ..charts.svg import Mark, Plane, Series, draw_plane
from ..document import RATE_KEPT
from ..labels import Figure
from ..store import Row
from .charts import PERCENTILES, View, legend, styles, tabbed, timeout_label, views
from .filters import Filters
from .points import Analysis, Line, micro, row_latency


def keeps_rate(rows: Sequence[Row]) -> bool:
    """Whether these runs, in the median, carried the rate that was asked."""
    parts = [float(row["records_per_s"]) / float(row["settings_rate_per_s"]) for row in rows]
    return statistics.median(parts) >= RATE_KEPT


@final
@dataclass(frozen=True, slots=True)
class HighestRate:
    """The highest rate that keeps a bound of the p99, and the next one that does not.

    `rate_per_s` is None where no rate keeps it; `next_per_s` is None where all do. Latencies are medians of the runs in
    microseconds.
    """

    rate_per_s: float | None
    p99_us: float | None
    next_per_s: float | None = None
    next_p99_us: float | None = None

    @classmethod
    def of(cls, by_rate: Mapping[float, Sequence[Row]], bound_us: float) -> HighestRate | None:
        """That of measured rates: all lower ones keep it too. None where nothing was measured."""
        kept: tuple[float | None, float | None] = (None, None)
        for rate, rows in sorted(by_rate.items()):
            p99 = Figure.of(row_latency(row, "p99") for row in rows)
            if p99 is None or p99.median > bound_us or not keeps_rate(rows):
                return cls(*kept, rate, None if p99 is None else p99.median)
            kept = rate, p99.median
        return None if kept[0] is None else cls(*kept)

    def sentence(self, bound: str) -> str:
        """In words; `bound` is the goal as text."""
        more = ""
        if self.next_per_s is not None:
            why = "it recorded no latency" if self.next_p99_us is None else f"its p99 is {micro(self.next_p99_us)}"
            more = f"{format_count(self.next_per_s)} records/s does not: {why}"
        if self.rate_per_s is None or self.p99_us is None:
            return f"no rate measured keeps {bound}: {more}"
        text = f"{format_count(self.rate_per_s)} records/s keeps {bound}: its p99 is {micro(self.p99_us)}"
        return f"{text}; {more or 'no higher rate was measured'}"

    def as_dict(self) -> dict[str, Any]:
        """The JSON values."""
        return {
            "records_per_s": self.rate_per_s,
            "p99_us": self.p99_us,
            "next_records_per_s": self.next_per_s,
            "next_p99_us": self.next_p99_us,
        }


_WIDE_PX: Final = (1160, 430)
_NARROW_PX: Final = (350, 380)
_MARGIN: Final = 0.06  # of the horizontal axis, in powers of ten
_NOTE: Final = (
    "Open loop, median of the runs; both axes are logarithmic. Where a line turns upwards the rate is near what this"
    " setting can carry. Hollow marks: the run did not keep its rate, so its latency grows with its length."
)


def load_section(analysis: Analysis, filters: Filters) -> str:
    """A view for each timeout, with a tab for each percentile."""
    entries = [
        View(f"timeout {timeout_label(timeout)}", filters.timeout(timeout), drawn)
        for timeout in analysis.timeouts
        if (drawn := _view(analysis, filters, timeout, len(analysis.timeouts)))
    ]
    if not entries:
        return ""
    return (
        f'<section id="load" aria-label="Latency against rate">{legend(analysis, filters)}'
        f'<div class="charts one">{views("rates", entries)}</div></section>'
    )


def _view(analysis: Analysis, filters: Filters, timeout_s: float | None, count: int) -> str:
    by_line = {line: by_rate for line in analysis.lines if len(by_rate := analysis.by_rate(line, timeout_s)) > 1}
    if not by_line:
        return ""
    values = [
        value
        for by_rate in by_line.values()
        for rows in by_rate.values()
        for row in rows
        for name, _ in PERCENTILES
        if (value := row_latency(row, name))
    ]
    rates = sorted({rate for by_rate in by_line.values() for rate in by_rate})
    panels = []
    for name, tab in PERCENTILES:
        series = [
            _series(number, line, look, by_line[line], name, tab, filters)
            for number, (line, look) in enumerate(styles(analysis).items())
            if line in by_line
        ]
        if not any(mark for each in series for mark in each.marks):
            continue
        plane = Plane(
            title=f"Latency {tab} against the rate of records, buffer timeout {timeout_label(timeout_s)}",
            axis="records/s, open loop",
            span=(math.log10(rates[0]) - _MARGIN, math.log10(rates[-1]) + _MARGIN),
            below=[(math.log10(rate), format_count(rate)) for rate in rates],
            series=series,
            scale="log",
            domain=(min(values), max(values)),
            tick=micro,
            unit=f"latency, {tab}",
        )
        panels.append((tab, both_sizes(partial(draw_plane, plane), _WIDE_PX, _NARROW_PX)))
    head = f"Latency against rate{f', timeout {timeout_label(timeout_s)}' if count > 1 else ''}"
    return tabbed(f"load-{timeout_label(timeout_s).replace(' ', '')}", head, _NOTE, panels) if panels else ""


def _series(
    number: int,
    line: Line,
    look: Any,
    by_rate: Mapping[float, Sequence[Row]],
    name: str,
    tab: str,
    filters: Filters,
) -> Series:
    places: list[float] = []
    marks: list[Mark | None] = []
    for rate, rows in by_rate.items():
        figure = Figure.of(row_latency(row, name) for row in rows)
        places.append(math.log10(rate))
        if figure is None or figure.low <= 0:
            marks.append(None)
            continue
        carried = Figure.of(row.get("records_per_s") for row in rows)
        is_kept = keeps_rate(rows)
        tooltip = (
            f"{line.label}, {format_count(rate)} records/s",
            f"{tab} {micro(figure.median)}",
            figure.spread(micro),
            "" if is_kept or carried is None else f"carried {format_count(carried.median)} records/s",
        )
        marks.append(Mark(figure.median, figure.low, figure.high, tooltip, hollow=not is_kept))
    return Series(line.label, number, look, tuple(places), tuple(marks), filters.line(line))
