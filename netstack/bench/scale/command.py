"""The command `netstack-bench scale`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from netstack.cli.values import COUNT, LENGTH
from netstack.units import format_count, format_latency, three_digits

from .. import console
from ..flags import flag, flag_of, flags, json_flag
from .measure import AXES, EMITS, SEGMENT_BYTES, ScaleSpec, measure

_DEFAULT = ScaleSpec()
_TITLES = {
    "channels": f"channels on one connection, buffers of {SEGMENT_BYTES // 1024} KiB",
    "connections": f"connections between two processes, buffers of {SEGMENT_BYTES // 1024} KiB",
    "taskmanagers": "all-to-all among TaskManagers that are processes of this machine",
}
_COUNTS = ("taskmanagers", "parallelism", "connections", "channels")


@click.command(short_help="More channels, connections, TaskManagers: rate, CPU and memory of each.")
@flags(
    flag("--axis", AXES, "What to increase; repeatable, by default all.", "axes", multiple=True),
    flag("--most", COUNT, "Limit of channels, connections and TaskManagers."),
    flag("--emit", EMITS, "How records are emitted; repeatable, by default both.", "emits", multiple=True),
    flag_of(_DEFAULT, "--seconds", LENGTH, "Length of each run."),
    json_flag,
)
def scale(axes: tuple[str, ...], most: int | None, emits: tuple[Any, ...], seconds: float, as_json: bool) -> int:
    """Sends records of 8 bytes at full speed over increasing numbers of channels, connections and TaskManagers.

    CPU is that of all processes together. Memory is the peak of each process, interpreter included; for TaskManagers
    the mean at the end. The default takes about two minutes.

    Exit code 1 if a record did not arrive completely, in order and exactly once, or a point could not be measured.
    """
    spec = ScaleSpec(axes=axes or AXES, most=most, emits=emits or EMITS, seconds=seconds)
    errors = console.err()
    result = measure(spec, lambda text: errors.print(text, soft_wrap=True))
    code = console.finish(result, as_json, print_scale)
    for axis in spec.axes:
        for row in result[axis]:
            if not row["delivered"]:
                errors.print(f"[red]not delivered:[/] {axis} {escape(str(row))}", soft_wrap=True)
    return code


def print_scale(result: Mapping[str, Any], out: Console) -> None:
    """Prints a table for each axis."""
    for axis in (axis for axis in AXES if result.get(axis)):
        rows = result[axis]
        counts = [name for name in _COUNTS if name in rows[0]]
        memories = list(dict.fromkeys(name for row in rows for name in row.get("memory_bytes", {})))
        heads = (*counts, "records/s", "CPU us/1,000", "p50", *(f"MB {name}" for name in memories))
        table = console.table(("by",), heads, title=_TITLES[axis])
        for row in rows:
            parts = [str(row["emit"]), *(f"{row[name]:,}" if name in row else "" for name in counts)]
            if "error" in row:
                table.add_row(*parts, "[red]failed[/]")
                continue
            table.add_row(
                *parts,
                format_count(row["records_per_s"]),
                three_digits(row["cpu_us_per_thousand"] or 0.0),
                "" if row["latency_p50_us"] is None else format_latency(row["latency_p50_us"]),
                *(three_digits(row["memory_bytes"][name] / 1e6) for name in memories),
            )
        out.print(table)
