"""The command `netstack-bench streams`: prints a table, or one JSON document."""

from __future__ import annotations

import click
from rich.table import Table

from netstack.cli.values import COUNT
from netstack.units import format_count, format_duration

from .. import console
from ..flags import json_flag


@click.command(short_help="Measure Spark's stream source netstack, beside Spark's own sources.")
@click.option("--rows", type=COUNT, default=100_000, show_default=True, help="Rows of a micro-batch, 16 bytes each.")
@click.option("--batches", type=COUNT, default=10, show_default=True, help="Micro-batches after a warm-up.")
@click.option("--master", metavar="URL", default="local[2]", show_default=True, help="Spark's master.")
@json_flag
def streams(rows: int, batches: int, master: str, as_json: bool) -> int:
    """Reads rows by streaming queries from a netstack Publisher, Spark's rate source, Parquet files, and a socket."""
    from netstack.spark.session import open_session
    from netstack.spark.settings import SparkSettings

    from .streams import measure_streams

    with open_session(SparkSettings(master=master, shared_hosts=True)) as spark:
        result = measure_streams(spark, rows=rows, batches=batches)
    if as_json:
        console.print_json(result)
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("source", "rows/s", "micro-batch", "longest"):
        table.add_column(name, justify="left" if name == "source" else "right")
    for name, each in result["sources"].items():
        figures = [format_duration(round(each[key], 3)) for key in ("batch_s", "longest_batch_s")]
        table.add_row(name, format_count(each["rows_per_s"]), *figures)
    console.out().print(table)
    return 0
