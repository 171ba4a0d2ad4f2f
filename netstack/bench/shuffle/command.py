"""The command `netstack-bench shuffle`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from statistics import median
from typing import Any

import click
from rich.console import Console

from netstack.cli.values import COUNT, SIZE
from netstack.config import SHUFFLE_COMPRESSIONS

from .. import console
from ..flags import flag, flags, json_flag
from .measure import ShuffleSpec, measure
from .rows import MODES


@click.command(short_help="Rows of 100 bytes from every producer to every consumer: pipelined, hybrid, blocking.")
@flags(
    flag("--bytes", SIZE, "Of all rows.", "size_bytes", default="256MiB"),
    flag("--mode", tuple(MODES), "May be given several times; all if not given.", "modes", multiple=True),
    flag("--producers", COUNT, default=2),
    flag("--consumers", COUNT, default=2),
    flag("--taskmanagers", COUNT, "Processes on this machine.", default=2),
    flag("--slots", COUNT, "Of each; with 1 the second stage waits.", default=2),
    flag("--repeats", COUNT, "Of each mode, by turns.", default=3),
    flag(
        "--compression",
        SHUFFLE_COMPRESSIONS,
        "Of what is kept; may be given several times; all if not given.",
        "compressions",
        multiple=True,
    ),
    click.option("--half/--no-half", "is_halved", default=True, show_default=True, help="Also with half of the slots."),
    click.option("--spark/--no-spark", "with_spark", show_default=True, help="PySpark's shuffle beside it."),
    json_flag,
)
def shuffle(
    modes: tuple[str, ...],
    compressions: tuple[str, ...],
    is_halved: bool,
    with_spark: bool,
    as_json: bool,
    **settings: int,
) -> int:
    """An all-to-all between two stages of a batch job on TaskManagers, the disk's own rate and PySpark's beside it.

    Exit code 1 when a row is lost or comes to the wrong consumer: of each range of keys the number of rows and a sum
    that does not depend on their order are compared with those of the rows that were made.
    """
    errors = console.err()
    compressions = compressions or SHUFFLE_COMPRESSIONS
    spec = ShuffleSpec(modes=modes or tuple(MODES), compressions=compressions, is_halved=is_halved, **settings)
    with contextlib.ExitStack() as stack:
        spark = stack.enter_context(_session(spec.producers)) if with_spark else None
        result = measure(spec, lambda what: errors.print(what, soft_wrap=True), spark)
    return console.finish(result, as_json, print_shuffle)


def _session(producers: int) -> AbstractContextManager[Any]:
    from netstack.spark.session import open_session  # needs Spark
    from netstack.spark.settings import SparkSettings

    return open_session(SparkSettings(master=f"local[{producers}]", is_measured=True))


def print_shuffle(result: Mapping[str, Any], out: Console) -> None:
    """The figures as a table."""
    settings, disk = result["settings"], result["disk"]
    out.print(
        f"{result['rows']:,} rows of {result['row_bytes']} bytes, {settings['producers']} to {settings['consumers']} on"
        f" {settings['taskmanagers']} TaskManagers of {settings['slots']} slots, medians of {settings['repeats']};"
        f" one process writes {disk['write_bytes_per_s'] / 1e6:,.0f} MB/s and reads"
        f" {disk['read_bytes_per_s'] / 1e6:,.0f} MB/s",
        soft_wrap=True,
    )
    heads = "MB/s", "of the disk's", "seconds", "CPU s", "on disk", "compressed", "memory", "complete"
    table = console.table(("exchange",), heads)
    own = min(disk["write_bytes_per_s"], disk["read_bytes_per_s"])
    for mode, runs in result["modes"].items():
        rate = median(run["bytes_per_s"] for run in runs)
        on_disk = [run["peak_disk_bytes"] for run in runs if run["peak_disk_bytes"] is not None]
        shares = [run["compressed_share"] for run in runs if run["compressed_share"] is not None]
        table.add_row(
            mode,
            f"{rate / 1e6:,.0f}",
            f"{rate / own:.2f}",
            f"{median(run['duration_s'] for run in runs):.2f}",
            f"{median(run['cpu_s'] for run in runs):.1f}",
            f"{max(on_disk) / 1e6:,.0f} MB" if on_disk else "",
            f"{median(shares):.0%}" if shares else "",
            f"{max(run['peak_memory_growth_bytes'] for run in runs) / 1e6:,.0f} MB",
            "yes" if all(run["delivered"] for run in runs) else "[red]NO[/]",
        )
    out.print(table)
