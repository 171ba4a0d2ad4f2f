"""The commands `netstack-bench exchange` and `streams`: they print a table, or one JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from netstack.cli.values import COUNT, DURATION, SIZE, SIZES
from netstack.units import format_count, format_duration, format_size, three_digits

from .. import console
from ..flags import json_flag


@click.command(short_help="Measure a DataFrame's way through netstack's channels, beside Spark's own shuffle.")
@click.option("--rows", type=COUNT, default=2_000_000, show_default=True, help="Rows of the DataFrame.")
@click.option("--most-bytes", type=SIZE, default="512MiB", show_default=True, help="Greatest size of the DataFrame.")
@click.option("--record-sizes", type=SIZES, default="16,128,1KiB", show_default=True, help="Sizes of a row.")
@click.option("--keys", type=COUNT, default=10_000, show_default=True, help="Number of distinct keys.")
@click.option("--buffer-timeout", "buffer_timeout_s", type=DURATION, default="100ms", show_default=True)
@click.option("--repeats", type=COUNT, default=3, show_default=True, help="Passes of each, by turns, after a warm-up.")
@click.option("--master", metavar="URL", default="local[2]", show_default=True, help="Spark's master.")
@click.option("--partitions", type=COUNT, help="Input and output partitions; default: N of local[N], else 2.")
@json_flag
def exchange(master: str, partitions: int | None, as_json: bool, **settings: Any) -> int:
    """Repartitions a DataFrame by key, with netstack's exchange and with Spark's repartition, and compares the speed.

    The exit code is 1 if the two give different rows.
    """
    from netstack.spark.session import open_session
    from netstack.spark.settings import SparkSettings

    from .exchange import ExchangeSpec, measure

    where = SparkSettings(master=master, nodes=partitions, shared_hosts=True)
    spec = ExchangeSpec(**settings, partitions=where.node_count)
    errors = console.err()
    with open_session(where) as spark:
        result = measure(spark, spec, lambda what: errors.print(what, soft_wrap=True))
    return console.finish(result, as_json, print_exchange)


def print_exchange(result: Mapping[str, Any], out: Console) -> None:
    """Prints the figures as a table."""
    settings, spark = result["settings"], result["spark"]
    out.print(
        f"Spark {spark['version']} at {spark['master']}, {settings['partitions']} partitions,"
        f" {settings['keys']:,} keys, medians of {settings['repeats']}, tasks' build: {result['sizes'][0]['build']}",
        soft_wrap=True,
    )
    rates = "exchange rows/s", "with boundary", "repartition rows/s"
    table = console.table(("row",), ("rows", *rates, "ratio", "buffers", "peak Python memory", "equal"))
    for size in result["sizes"]:
        table.add_row(
            format_size(size["record_bytes"], space=" "),
            f"{size['rows']:,}",
            format_count(size["exchange"]["rows_per_s"]),
            format_count(size["exchange_ended"]["rows_per_s"]),
            format_count(size["repartition"]["rows_per_s"]),
            f"{three_digits(size['ratio'])} x",
            format_size(size["network_memory_bytes"], space=" "),
            f"{size['peak_process_bytes'] / 1e6:,.0f} MB",
            "yes" if size["delivered"] else "[red]NO[/]",
        )
    out.print(table)
    for slowest in dict.fromkeys(size["slowest"] for size in result["sizes"] if size["slowest"]):
        out.print(escape(slowest), soft_wrap=True)


@click.command(short_help="Measure Spark's stream source netstack, beside Spark's own sources.")
@click.option("--rows", type=COUNT, default=100_000, show_default=True, help="Rows of a micro-batch, 16 bytes each.")
@click.option("--batches", type=COUNT, default=10, show_default=True, help="Micro-batches after a warm-up.")
@click.option("--master", metavar="URL", default="local[2]", show_default=True, help="Spark's master.")
@json_flag
def streams(rows: int, batches: int, master: str, as_json: bool) -> int:
    """Reads rows by streaming queries from a netstack Publisher, Spark's rate source, Parquet files, and a socket."""
    from netstack.spark.session import open_session
    from netstack.spark.settings import SparkSettings

    from .streams import StreamsSpec, measure_streams

    spec = StreamsSpec(rows=rows, batches=batches)
    with open_session(SparkSettings(master=master, shared_hosts=True)) as spark:
        result = measure_streams(spark, spec)
    return console.finish(result, as_json, print_streams)


def print_streams(result: Mapping[str, Any], out: Console) -> None:
    """Prints the figures as a table."""
    table = console.table(("source",), ("rows/s", "micro-batch", "longest"))
    for name, each in result["sources"].items():
        figures = [format_duration(round(each[key], 3)) for key in ("batch_s", "longest_batch_s")]
        table.add_row(name, format_count(each["rows_per_s"]), *figures)
    out.print(table)
