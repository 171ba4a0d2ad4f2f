"""The commands `netstack-bench exchange` and `streams`: they print a table, or one JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from netstack.base.units import format_count, format_duration, format_size, three_digits
from netstack.cli.values import COUNT, DURATION, SIZE, SIZES

from ... import console
from ...flags import flag, json_flag

_master_flag = flag("--master", None, "Spark's master.", default="local[2]", metavar="URL")


@click.command(short_help="Repartition a DataFrame with netstack and with Spark's own shuffle.")
@flag("--rows", COUNT, "Rows of the DataFrame.", default=2_000_000)
@flag("--most-bytes", SIZE, "Greatest size of the DataFrame.", default="512MiB")
@flag("--record-sizes", SIZES, "Sizes of a row.", default="16,128,1KiB")
@flag("--keys", COUNT, "Number of distinct keys.", default=10_000)
@flag("--buffer-timeout", DURATION, "Buffer timeout of netstack's exchange.", default="100ms")
@flag("--repeats", COUNT, "Passes of each way, by turns, after a warm-up.", default=3)
@_master_flag
@flag("--partitions", COUNT, "Input and output partitions; default: N of local[N], else 2.")
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


@click.command(short_help="Read streams in Spark from netstack and from Spark's own sources.")
@flag("--rows", COUNT, "Rows of a micro-batch, 16 bytes each.", default=100_000)
@flag("--batches", COUNT, "Micro-batches after a warm-up.", default=10)
@_master_flag
@json_flag
def streams(rows: int, batches: int, master: str, as_json: bool) -> int:
    """Reads rows in streaming queries from a netstack Publisher, Spark's rate source, Parquet files, and a socket."""
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
