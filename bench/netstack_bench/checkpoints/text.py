"""Terminal output of `checkpoints`: settings, a table of all points, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from netstack.base.units import format_count, format_duration, format_size, three_digits

from .. import console
from ..labels import buffers_of
from .figures import Point, verdicts
from .spec import SINKS, CheckpointsSpec

COLUMNS: Final = (
    "complete",
    "p50 ms",
    "max ms",
    "reaching ms",
    "aligning ms",
    "writing ms",
    "besides ms",
    "channel state",
    "records/s",
    "lost",
)
"""Heads of the figures of a point, in the order of `cells`."""


def settings_line(spec: CheckpointsSpec) -> str:
    """The settings in a line."""
    parts = [
        f"{spec.channels} sources to {SINKS} sinks",
        f"a barrier every {format_duration(spec.interval_s, space=' ')}",
        f"{format_size(spec.record_bytes, space=' ')} records of {spec.keys:,} keys",
        buffers_of(spec),
    ]
    if "timed" in spec.modes:
        parts.append(f"timed: unaligned after {format_duration(spec.aligned_timeout_s, space=' ')}")
    return ", ".join(parts)


def cells(point: Point) -> list[str]:
    """The figures of a point as text; medians unless the head says otherwise."""
    return [
        f"{point['checkpoints']}" + (f" of {point['checkpoints'] + point['aborted']}" if point["aborted"] else ""),
        _digits(point["duration_ms"], "p50"),
        _digits(point["duration_ms"], "max"),
        _digits(point["start_delay_ms"], "p50"),
        _digits(point["alignment_ms"], "p50"),
        _digits(point["state_write_ms"], "p50"),
        _digits(point["besides_writing_ms"], "p50"),
        "" if point["channel_state_bytes"] is None else state_size(point["channel_state_bytes"]["p50"]),
        "" if point["records_per_s"] is None else format_count(point["records_per_s"]),
        "" if point["throughput_lost"] is None else f"{point['throughput_lost'] * 100:.1f} %",
    ]


def state_size(size_bytes: float) -> str:
    """`1.2 MB`: three digits, in thousands."""
    return f"{format_count(size_bytes)}{'' if abs(size_bytes) >= 999.5 else ' '}B"


def print_result(spec: CheckpointsSpec, modes: Mapping[str, Sequence[Point]], out: Console) -> None:
    """Prints the table by pressure, so that modes are below each other, and the verdicts."""
    out.print(escape(settings_line(spec)), soft_wrap=True)
    table = console.table(("pressure", "mode"), COLUMNS)
    table.columns[0].justify = "right"
    for number, pressure in enumerate(spec.pressures):
        for place, (mode, points) in enumerate(modes.items()):
            if number < len(points):
                table.add_row("" if place else f"{pressure:g}", mode, *cells(points[number]))
    out.print(table)
    out.print()
    for sentence in verdicts(spec, modes):
        out.print(escape(sentence), soft_wrap=True)


def _digits(figure: Mapping[str, Any] | None, name: str) -> str:
    return "" if figure is None else three_digits(figure[name])
