"""The page of `checkpoints`: duration and channel state against the pressure. External text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, Final, Literal

from netstack.base.units import format_duration, format_latency

from ..charts.page import both_sizes, callout, figure, heads, legend, notes, swatch, table
from ..charts.svg import Look, Mark, Plane, Series, by_category, draw_plane
from ..experiment import Page
from .figures import GOAL_MS, Point, verdicts
from .spec import MODES, SINKS, CheckpointsSpec
from .text import COLUMNS, cells, settings_line, state_size

_LEAST_MS: Final = 1.0
_STYLE: Final = "td .swatch { width: 34px; height: 16px; vertical-align: -3px; margin-right: 6px; }"
_AXIS: Final = "backpressure: reduction of the sinks' rate"

_Points = Mapping[str, Sequence[Point]]


def build_page(spec: CheckpointsSpec, result: Mapping[str, Any]) -> Page:
    """The page of the command's document."""
    modes: _Points = result["modes"]
    findings = [f"{text[:1].upper()}{text[1:].removesuffix('.')}." for text in verdicts(spec, modes)]
    return Page(
        heading="How long does a checkpoint take under backpressure?",
        about=settings_line(spec),
        parts=[
            notes("Findings", findings),
            callout("Warnings", result["warnings"]),
            _charts(spec, modes),
            _table(spec, modes),
        ],
        remarks=_notes(spec, result),
        style=_STYLE,
    )


def _charts(spec: CheckpointsSpec, modes: _Points) -> str:
    label = legend((number, _look(mode), mode, "") for number, mode in enumerate(modes))
    figures = [
        figure(
            "Duration",
            both_sizes(
                partial(
                    draw_plane,
                    _chart(
                        spec,
                        modes,
                        "duration_ms",
                        "log",
                        lambda ms: format_latency(ms * 1e3),
                        guides=_goal(spec, modes),
                    ),
                )
            ),
            "From the trigger until the checkpoint is complete; median, whiskers to the longest. Grey dashes:"
            f" {GOAL_MS:g} ms and the time to write the state, the goal for unaligned ones.",
        ),
        figure(
            "Channel state",
            both_sizes(partial(draw_plane, _chart(spec, modes, "channel_state_bytes", "linear", state_size))),
            "In-flight data in the checkpoint; median, whiskers to the largest.",
        ),
    ]
    return f'<section aria-label="Charts">{label}<div class="charts">{"".join(figures)}</div></section>'


def _chart(
    spec: CheckpointsSpec,
    modes: _Points,
    name: str,
    scale: Literal["linear", "log"],
    write: Callable[[float], str],
    guides: Sequence[float | None] = (),
) -> Plane:
    series = []
    high = _LEAST_MS
    for number, (mode, points) in enumerate(modes.items()):
        marks: list[Mark | None] = [None] * len(spec.pressures)
        for place, each in enumerate(points):
            if each[name] is not None:
                middle, most = each[name]["p50"], each[name]["max"]
                head = f"{mode}, pressure {each['pressure']:g}"
                figures = f"{write(middle)}, at most {write(most)}", f"{each['checkpoints']} checkpoints"
                marks[place] = Mark(middle, middle, most, (head, *figures))
                high = max(high, most)
        series.append(Series(mode, number, _look(mode), tuple(map(float, range(len(marks)))), tuple(marks)))
    return Plane(
        **by_category([f"{pressure:g}" for pressure in spec.pressures]),
        title=f"{name.rpartition('_')[0].replace('_', ' ')} against backpressure, {scale} scale; one line per mode",
        axis=_AXIS,
        series=series,
        scale=scale,
        domain=(_LEAST_MS, max(high, *(guide or 0.0 for guide in guides), 10 * _LEAST_MS)),
        tick=write,
        unit=name.rpartition("_")[0].replace("_", " "),
        guides=guides,
    )


def _goal(spec: CheckpointsSpec, modes: _Points) -> list[float | None]:
    points = modes.get("unaligned", ())
    goals = [GOAL_MS + each["state_write_ms"]["p50"] if each["state_write_ms"] else None for each in points]
    return goals + [None] * (len(spec.pressures) - len(goals))


def _look(mode: str) -> Look:
    modes: tuple[str, ...] = MODES
    number = modes.index(mode)
    return number, number, number


def _table(spec: CheckpointsSpec, modes: _Points) -> str:
    rows = []
    for number, pressure in enumerate(spec.pressures):
        for mode, points in modes.items():
            if number < len(points):
                figures = "".join(f"<td>{escape(cell)}</td>" for cell in cells(points[number]))
                name = f'<td class="l">{swatch(*_look(mode))} {mode}</td>'
                rows.append(f'<tr><th scope="row">{pressure:g}</th>{name}{figures}</tr>')
    head = heads("pressure", left=0) + heads("mode", *map(escape, COLUMNS))
    return f'<section class="card"><h2>All figures</h2>{table(head, rows)}</section>'


def _notes(spec: CheckpointsSpec, result: Mapping[str, Any]) -> list[str]:
    full = result["undisturbed_records_per_s"]
    return [
        f"{spec.channels} sources in one process write at full speed to {SINKS} sinks in another, by key group,"
        " over TCP. Sinks count by key.",
        f"Without a limit, the sinks took {full:,.0f} records/s. At pressure p they take (1 - p) times as many, so that"
        " records fill every buffer in front of them.",
        "An aligned barrier waits behind them. An unaligned one overtakes them, and they become part of the checkpoint."
        f" A timed one is aligned until it is {format_duration(spec.aligned_timeout_s, space=' ')} old.",
        "Reaching: the checkpoint's age when its first barrier arrives at the slower sink. Aligning: from then to the"
        " last barrier. Waiting in the sink's own buffers is in neither.",
        "Writing: of the slowest task's state file and of the manifest, synchronised to the disk. Besides: the rest of"
        " the duration.",
        "Lost: throughput with checkpoints compared with that without, in alternating stretches of one run.",
    ]
