"""The command `netstack-bench shuffle`.

Takes: flags. Gives: a table, or one JSON document, on standard output; an exit code.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from netstack.cli.values import COUNT, SIZE

from .. import console
from ..flags import json_flag
from .measure import ShuffleSpec, measure
from .rows import MODES


@click.command(short_help="Rows of 100 bytes from every producer to every consumer: pipelined, hybrid, blocking.")
@click.option("--bytes", "size_bytes", type=SIZE, default="256MiB", show_default=True, help="Of all rows.")
@click.option(
    "--mode", "modes", type=click.Choice([*MODES]), multiple=True, help="May be given several times; all if not given."
)
@click.option("--producers", type=COUNT, default=2, show_default=True)
@click.option("--consumers", type=COUNT, default=2, show_default=True)
@click.option("--taskmanagers", type=COUNT, default=2, show_default=True, help="Processes on this machine.")
@click.option("--slots", type=COUNT, default=2, show_default=True, help="Of each; with 1 the second stage waits.")
@click.option("--repeats", type=COUNT, default=3, show_default=True, help="Of each mode, by turns.")
@json_flag
def shuffle(modes: tuple[str, ...], as_json: bool, **settings: int) -> int:
    """An all-to-all between two stages of a batch job on TaskManagers, and the disk's own rate beside it.

    Exit code 1 when a row is lost or comes to the wrong consumer.
    """
    errors = console.err()
    result = measure(
        ShuffleSpec(modes=modes or tuple(MODES), **settings), lambda what: errors.print(what, soft_wrap=True)
    )
    if as_json:
        console.print_json(result)
    else:
        print_shuffle(result, console.out())
    return 0 if result["delivered"] else 1


def print_shuffle(result: Mapping[str, Any], console: Console) -> None:
    """The figures as a table."""
    settings, disk = result["settings"], result["disk"]
    console.print(
        f"{result['rows']:,} rows of {result['row_bytes']} bytes, {settings['producers']} to {settings['consumers']} on"
        f" {settings['taskmanagers']} TaskManagers of {settings['slots']} slots, medians of {settings['repeats']};"
        f" one process writes {disk['write_bytes_per_s'] / 1e6:,.0f} MB/s and reads"
        f" {disk['read_bytes_per_s'] / 1e6:,.0f} MB/s",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("exchange", "MB/s", "seconds", "on disk", "memory", "complete"):
        table.add_column(name, justify="left" if name == "exchange" else "right")
    for mode, runs in result["modes"].items():
        table.add_row(
            mode,
            f"{median(run['bytes_per_s'] for run in runs) / 1e6:,.0f}",
            f"{median(run['duration_s'] for run in runs):.2f}",
            f"{max(run['peak_disk_bytes'] for run in runs) / 1e6:,.0f} MB",
            f"{max(run['peak_memory_growth_bytes'] for run in runs) / 1e6:,.0f} MB",
            "yes" if all(run["delivered"] for run in runs) else "[red]NO[/]",
        )
    console.print(table)
