"""The command `netstack-bench shuffle`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from statistics import median
from typing import Any

import click
from rich.console import Console

from netstack.base.config import SHUFFLE_COMPRESSIONS
from netstack.cli.values import COUNT, SIZE

from .. import console
from ..flags import flag, flags, json_flag, list_flag
from .measure import ShuffleSpec, measure
from .rows import MODES


@click.command(short_help="Shuffle of a batch job: pipelined, hybrid, blocking; rate, disk, memory.")
@flags(
    flag("--bytes", SIZE, "Size of all rows together.", "size_bytes", default="256MiB"),
    list_flag("--mode", tuple(MODES), "How the stages exchange rows; by default all.", "modes"),
    flag("--producers", COUNT, "Subtasks that make rows.", default=2),
    flag("--consumers", COUNT, "Subtasks that receive rows.", default=2),
    flag("--taskmanagers", COUNT, "Number of TaskManagers, processes of this machine.", default=2),
    flag("--slots", COUNT, "Slots of each TaskManager; with 1 the second stage waits for the first.", default=2),
    flag("--repeats", COUNT, "Runs of each mode, by turns.", default=3),
    list_flag("--compression", SHUFFLE_COMPRESSIONS, "Compression of stored data; by default all.", "compressions"),
    click.option(
        "--half/--no-half",
        "is_halved",
        default=True,
        show_default=True,
        help="Also run modes that store data with half of the slots.",
    ),
    click.option(
        "--spark/--no-spark", "with_spark", show_default=True, help="Also run PySpark's shuffle of the same rows."
    ),
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
    """Measures the shuffle between two stages of a batch job, beside the rate of the disk and PySpark's shuffle.

    Exit code 1 if a row is lost or reaches the wrong consumer. For each range of keys the number of rows and a sum that
    does not depend on their order are compared with those of the generated rows.
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
