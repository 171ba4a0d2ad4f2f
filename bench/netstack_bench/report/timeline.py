"""Back-pressure over time: a line for each task of each host.

Takes: an `Analysis` whose rows have a `timeline`. Gives: one HTML section; empty without such rows.

Rules: one run of each point is shown, the first repeat of its throughput runs (of its latency runs where there are no
others). The most back-pressured run is open. Long series are averaged to the resolution of a screen.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, Final

from netstack.base.units import counted

from ..charts.page import both_sizes, legend as charts_legend, numbered
from ..charts.svg import Mark, Plane, Series, draw_plane, nice_ticks
from ..grid import Kind
from ..store import Row
from .charts import View, panel, tabs, timeout_label, views
from .filters import Filters
from .points import Analysis, Line

_WIDE_PX: Final = (1160, 330)
_NARROW_PX: Final = (350, 300)
_FIRST_SERIES: Final = 3000
_MOST_SAMPLES: Final = 120  # of a line, by the resolution of a screen
_LEAST_SAMPLES: Final = 4  # of a task; fewer make no line
_PARTS: Final = (
    ("backpressured_ms_per_s", "back-pressured", 1000.0),
    ("idle_ms_per_s", "idle", 1000.0),
    ("busy_ms_per_s", "busy", 1000.0),
    ("pool_usage", "pool usage", 1.0),
)

_Task = tuple[str, str]


def timeline_section(analysis: Analysis, filters: Filters) -> str:
    """Back-pressured, idle and busy time and pool usage over the run."""
    runs = [
        (line, timeout, row) for line, timeout in analysis.points if (row := _run(analysis, line, timeout)) is not None
    ]
    if not runs:
        return ""
    known = {
        name for *_, row in runs for sample in row["timeline"] for name, value in sample.items() if value is not None
    }
    parts = [part for part in _PARTS if part[0] in known]
    tasks = sorted({_task(sample) for _, _, row in runs for sample in row["timeline"]})
    numbers = {task: number for number, task in enumerate(tasks)}
    alone = len({host for host, _ in tasks}) == 1
    entries = [
        View(_label(line, timeout, row), filters.point(line, timeout), _view(row, parts, numbers, alone))
        for line, timeout, row in runs
    ]
    waits = [
        statistics.fmean(float(sample.get("backpressured_ms_per_s") or 0.0) for sample in row["timeline"])
        for *_, row in runs
    ]
    most = waits.index(max(waits))
    looks = numbered(len(tasks))
    legend = charts_legend(
        (_FIRST_SERIES + number, looks[number], _name(task, alone), "") for task, number in numbers.items()
    )
    return (
        '<section id="timeline" aria-labelledby="timeline-head"><h2 id="timeline-head">Back-pressure over time</h2>'
        '<p class="note">The fraction of time in which a task waited for output buffers (back-pressured), waited for'
        " input (idle), or worked (busy), and the fraction of its buffers in use. A back-pressured task waits for its"
        " consumers.</p>"
        f'{legend}<div class="charts one"><fieldset class="card">{tabs("over-time", [tab for _, tab, _ in parts])}'
        f"{views('over-time', entries, most)}</fieldset></div></section>"
    )


def _run(analysis: Analysis, line: Line, timeout_s: float | None) -> Row | None:
    kinds: tuple[Kind, ...] = ("throughput", "latency")
    for kind in kinds:
        rows = [row for row in analysis.runs(kind, line, timeout_s) if row.get("timeline")]
        if rows:
            return min(rows, key=lambda row: row.get("repeat") or 0)
    return None


def _label(line: Line, timeout_s: float | None, row: Row) -> str:
    rate = row.get("settings_rate_per_s")
    paced = "" if rate is None else f", at {rate:,.0f} records/s"
    return f"{line.label}, timeout {timeout_label(timeout_s)}{paced}"


def _task(sample: Mapping[str, Any]) -> _Task:
    return str(sample.get("host") or ""), str(sample.get("task") or "")


def _name(task: _Task, alone: bool) -> str:
    host, name = task
    return name or host if alone else " / ".join(filter(None, task))


def _view(row: Row, parts: Sequence[tuple[str, str, float]], numbers: Mapping[_Task, int], alone: bool) -> str:
    last_s = max(float(sample["t_s"]) for sample in row["timeline"])
    drawn = []
    looks = numbered(len(numbers))
    for number, (name, tab, whole) in enumerate(parts, 1):
        present = {task: samples for task in numbers if (samples := _samples(row, task, name, whole))}
        if not present:
            drawn.append(panel(number, '<p class="note">Not measured in this run.</p>'))
            continue
        means = "; ".join(
            f"{_name(task, alone)} {statistics.fmean(value for _, value in samples):.0%}"
            for task, samples in present.items()
        )
        note = f'<p class="note">On average: {escape(means)}.</p>'
        most = max(map(len, present.values()))
        if most < _LEAST_SAMPLES:
            why = f"Too short a run for a line: {counted(most, 'sample')} of each task."
            drawn.append(panel(number, f'<p class="note">{why}</p>{note}'))
            continue
        series = [
            Series(
                _name(task, alone),
                _FIRST_SERIES + numbers[task],
                looks[numbers[task]],
                tuple(at for at, _ in samples),
                tuple(Mark(value, value, value) for _, value in samples),
            )
            for task, samples in present.items()
        ]
        highest = max(1.0, *(value for samples in present.values() for _, value in samples))
        plane = Plane(
            title=f"{tab}, fraction of time, over the seconds of a run; one line per task",
            axis="seconds from the start",
            span=(0.0, last_s),
            below=[(tick, f"{tick:g}") for tick in nice_ticks("linear", 0.0, last_s) if tick <= last_s],
            series=series,
            scale="linear",
            domain=(0.0, highest),
            tick=lambda value: f"{value:.0%}",
            unit="fraction of time" if whole > 1 else "fraction of buffers",
            bare=True,
        )
        drawn.append(panel(number, f"{both_sizes(partial(draw_plane, plane), _WIDE_PX, _NARROW_PX)}{note}"))
    return "".join(drawn)


def _samples(row: Row, task: _Task, name: str, whole: float) -> list[tuple[float, float]]:
    samples = sorted(
        (float(sample["t_s"]), float(sample[name]) / whole)
        for sample in row["timeline"]
        if _task(sample) == task and sample.get(name) is not None
    )
    at_once = -(-len(samples) // _MOST_SAMPLES) or 1
    parts = [samples[first : first + at_once] for first in range(0, len(samples), at_once)]
    return [(part[-1][0], statistics.fmean(value for _, value in part)) for part in parts]
