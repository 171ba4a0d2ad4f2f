"""Tables of a run over hosts: the matrix before it, hosts and pairs after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from netstack.base.units import counted, format_count, format_latency, three_digits

from ... import console
from .matrix import Matrix
from .result import FACTS
from .spec import MeshSpec

_MOST_PAIRS: Final = 36  # more are not readable in a terminal
_TASKS: Final = ("sources", "relays", "sinks")


def print_matrix(spec: MeshSpec, out: Console, *, channels: bool = True) -> None:
    """Prints which subtask runs where.

    Without `channels` it omits the channels from source to sink, which differ between the runs of a sweep.
    """
    tasks = [task for task in _TASKS if task != "relays" or spec.relay]
    table = console.table(("host", *tasks), ())
    for row in Matrix(spec).as_rows():
        table.add_row(escape(row["address"]), *(_numbers(row[task]) for task in tasks))
    out.print(table)
    ends = f"{counted(spec.sources, 'source')} to {counted(spec.sinks, 'relay' if spec.relay else 'sink')}"
    back = " and back" if spec.relay else ""
    each = f", {counted(spec.channels, 'channel')} from each to each" if channels else ""
    out.print(f"all-to-all: {ends}{back}{each}")


def print_hosts(result: Mapping[str, Any], out: Console) -> None:
    """Prints the tables of hosts and pairs."""
    hosts, pairs = result.get("hosts"), result.get("pairs")
    if not hosts or not pairs:
        return
    out.print()
    out.print(_hosts(hosts))
    if any(name in row for row in hosts for name in FACTS):
        out.print()
        out.print(_facts(hosts))
    if result.get("connections"):
        opened = counted(result["connections"], "connection")
        out.print(f"all channels between hosts were on {opened}, both directions together")
    out.print()
    if len(pairs) > _MOST_PAIRS:
        out.print(f"{len(pairs)} pairs of hosts; --json lists them")
    else:
        out.print(_pairs(pairs))


def _hosts(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = console.table(
        ("host",),
        ("sources", "sinks", "records/s", "payload MB/s", "CPU s", "back-pressured ms/s", "idle ms/s", "clock us"),
    )
    for row in rows:
        offset, unsure = row["clock_offset_us"], row["clock_uncertainty_us"]
        table.add_row(
            escape(str(row["host"])),
            str(row["sources"]),
            str(row["sinks"]),
            _cell(row["records_per_s"], format_count),
            _cell(row["payload_mb_per_s"], three_digits),
            _cell(row["cpu_s"], three_digits),
            _cell(row["backpressured_ms_per_s"], three_digits),
            _cell(row["idle_ms_per_s"], three_digits),
            f"{offset:,.0f} \u00b1 {unsure:,.0f}",
        )
    return table


def _facts(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = console.table(("host", *FACTS.values()), ())
    for row in rows:
        table.add_row(escape(str(row["host"])), *(escape(_cell(row.get(name), str)) for name in FACTS))
    return table


def _pairs(rows: Sequence[Mapping[str, Any]]) -> Table:
    back = any("round_trip_latency_us" in row for row in rows)
    kind = "round_trip_latency_us" if back else "latency_us"
    name = "round trip" if back else "latency"
    heads = ("records/s", "payload MB/s", f"{name} p50", f"{name} p99", f"{name} max")
    table = console.table(("from", "by way of" if back else "to"), heads if back else (*heads, "\u00b1"))
    for row in rows:
        latency = row[kind]
        cells = [
            escape(str(row["source_host"])),
            escape(str(row["sink_host"])) + (" (local)" if row["is_local"] else ""),
            _cell(row["records_per_s"], format_count),
            _cell(row["payload_mb_per_s"], three_digits),
            *(_cell(latency[name], format_latency) for name in ("p50", "p99", "max")),
        ]
        unsure = row["latency_uncertainty_us"]
        table.add_row(*cells, *(() if back else ("" if row["is_local"] else _cell(unsure, format_latency),)))
    return table


def _numbers(subtasks: Sequence[int]) -> str:
    if not subtasks:
        return "\u2013"
    first, last = subtasks[0], subtasks[-1]
    return f"{len(subtasks)}: #{first}" + (f" to #{last}" if last > first else "")


def _cell(value: Any, write: Any) -> str:
    return "\u2013" if value is None else str(write(value))
