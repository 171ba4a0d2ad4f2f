"""Results as DataFrames: a row for every node of every run, and what Spark SQL makes of them.

Takes: rows of nodes, settings of runs. Gives: `NODE_SCHEMA` rows; per setting, over nodes and repeats: throughput and
the percentiles of the merged histograms; Parquet partitioned by sweep.

The histograms are those of `bench.histogram`, sparse: bucket b < 2,048 holds the value b ns; beyond, every power of two
has 1,024 buckets. `UPPER_NS` is a bucket's upper edge, the same in Python and SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

KEYS: Final = (
    "buffer_timeout_s",
    "record_bytes",
    "channels",
    "exclusive_buffers",
    "floating_buffers",
    "segment_size_bytes",
    "emit",
    "rate_per_s",
    "nodes",
    "sources_per_node",
    "sinks_per_node",
)
"""What makes a setting; NULL is `none` for a timeout and `as fast as it goes` for a rate."""

UPPER_NS: Final = (
    "CASE WHEN b < 2048 THEN cast(b as bigint)"
    " ELSE shiftleft(cast(b - shiftleft(shiftright(b, 10) - 1, 10) + 1 as bigint), shiftright(b, 10) - 1) - 1 END"
)

NODE_SCHEMA: Final = ", ".join(
    (
        "sweep_id string not null",
        "run_id string not null",
        "repeat int not null",
        "started_at string",
        "rank int not null",
        "host string",
        "hostname string",
        "pid bigint",
        "python string",
        "build string",
        "cpus int",
        "load double",
        "kind string not null",
        "error string",
        "buffer_timeout_s double",
        "record_bytes int",
        "channels int",
        "exclusive_buffers int",
        "floating_buffers int",
        "segment_size_bytes int",
        "emit string",
        "rate_per_s double",
        "nodes int",
        "sources_per_node int",
        "sinks_per_node int",
        "sources int",
        "sinks int",
        "records bigint",
        "bytes bigint",
        "seconds double",
        "records_per_s double",
        "payload_mb_per_s double",
        "cpu_s double",
        "clock_offset_us double",
        "clock_uncertainty_us double",
        "hist array<struct<b:int,n:bigint>>",
    )
)
"""Of a node's row; every column is there in every sweep, so that sweeps can be queried together."""

_PERCENTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))


def node_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows of nodes as a table of `NODE_SCHEMA`; what a row does not have is NULL."""
    import pyarrow as pa

    types = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}
    types["array<struct<b:int,n:bigint>>"] = pa.list_(pa.struct([("b", pa.int32()), ("n", pa.int64())]))
    columns = [column.split() for column in NODE_SCHEMA.split(", ")]
    fields = [pa.field(name, types[kind], nullable=not others) for name, kind, *others in columns]
    return pa.Table.from_pylist([dict(row) for row in rows], pa.schema(fields))


def node_frame(spark: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """The rows of nodes as a DataFrame of `NODE_SCHEMA`."""
    return spark.createDataFrame(node_table(rows), NODE_SCHEMA)


def column_names() -> list[str]:
    """The columns of `NODE_SCHEMA`, in order."""
    return [column.split()[0] for column in NODE_SCHEMA.split(", ")]


def per_setting(nodes: Any) -> Any:
    """Over nodes and repeats, by sweep and setting.

    Args:
        nodes: a DataFrame of `NODE_SCHEMA`, of one sweep or of many.

    Returns:
        A DataFrame: `sweep_id`, `KEYS`, `runs`, `records_per_s` and `payload_mb_per_s` (the median over repeats of the
        sum over nodes), `slowest_share` (the slowest node's part of the fastest's), `samples`, `p50_us` to `p999_us`
        and `max_us` of the merged histograms (NULL without samples).
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    keys = ["sweep_id", *KEYS]
    well = nodes.where("error is null and kind = 'ok'")
    runs = well.groupBy(*keys, "run_id", "repeat").agg(
        F.sum("records_per_s").alias("records_per_s"),
        F.sum("payload_mb_per_s").alias("payload_mb_per_s"),
        (F.min("records_per_s") / F.max("records_per_s")).alias("slowest_share"),
    )
    throughput = runs.groupBy(*keys).agg(
        F.count("*").alias("runs"),
        F.median("records_per_s").alias("records_per_s"),
        F.median("payload_mb_per_s").alias("payload_mb_per_s"),
        F.median("slowest_share").alias("slowest_share"),
    )
    buckets = (
        well.select(*keys, F.inline("hist"))
        .groupBy(*keys, (F.expr(UPPER_NS) / 1000).alias("us"))
        .agg(F.sum("n").alias("n"))
    )
    wanted = F.array(*(F.lit(part) for _, part in _PERCENTILES))
    latency = buckets.groupBy(*keys).agg(
        F.sum("n").alias("samples"),
        F.percentile("us", wanted, F.col("n")).alias("p"),
        F.max("us").alias("max_us"),
    )
    latency = latency.select(
        *(F.col(key).alias(f"_{key}") for key in keys),
        "samples",
        *(F.col("p")[at].alias(f"{name}_us") for at, (name, _) in enumerate(_PERCENTILES)),
        "max_us",
    )
    condition = None  # NULL is a value of some keys, which a plain join would drop
    for key in keys:
        equal = F.col(key).eqNullSafe(F.col(f"_{key}"))
        condition = equal if condition is None else condition & equal
    joined = throughput.join(latency, condition, "left").drop(*(f"_{key}" for key in keys))
    return joined.orderBy(*keys)


def write_partition(rows: pa.Table, warehouse: Path, table: str, sweep_id: str) -> Path:
    """A sweep's rows as one partition of a Parquet table, whole or not at all; replaces an earlier one of the sweep.

    Written by the driver: executors on other hosts would write to disks of their own, without an error.

    Args:
        rows: have a column `sweep_id`, which becomes the name of the folder.
        warehouse: folder of the tables.
        table: which.
        sweep_id: whose rows.

    Returns:
        The folder of the table: `spark.read.parquet` of it, or `pyarrow.dataset`, reads all sweeps together.

    Raises:
        OSError: it cannot be written.
    """
    import pyarrow.parquet as parquet

    folder = warehouse / table / f"sweep_id={sweep_id}"
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / "_part-0.parquet"
    parquet.write_table(rows.drop_columns(["sweep_id"]), aside)
    aside.rename(folder / "part-0.parquet")
    return folder.parent


def with_sweep(
    rows: Iterable[Mapping[str, Any]], sweep_id: str, repeat: int, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of one run's nodes, with what is common to them."""
    common = {"sweep_id": sweep_id, "repeat": repeat}
    return [{**{key: settings.get(key) for key in KEYS}, **row, **common} for row in rows]
