"""Results as DataFrames: a row for each node of each run, and aggregates for each setting.

`node_frame` has the rows, `per_setting` the throughput and the percentiles of the merged histograms, over nodes and
repeats. The histograms are those of `netstack_bench.histogram`, sparse: bucket b < 2,048 has the value b ns; above
that, every power of two has 1,024 buckets. `UPPER_NS` is the upper edge of a bucket in SQL.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ...grid import run_kind
from .spec import SparkSpec

if TYPE_CHECKING:
    import pyarrow as pa

_RENAMED: Final = {"records": "asked_records", "seconds": "asked_seconds"}  # a run has measured figures of these names
_WIDE: Final = frozenset({"asked_records", "link_bytes_per_s"})
DISCIPLINES: Final = {"throughput": "full speed", "latency": "fixed rate"}
"""The discipline of a run, by kind. Figures of different disciplines are not comparable."""


def _column_type(name: str, hint: Any) -> str:
    kinds = {kind for kind in (hint, *typing.get_args(hint)) if isinstance(kind, type)}
    if bool in kinds:
        return "boolean"
    if float in kinds:
        return "double"
    if int in kinds:
        return "bigint" if name in _WIDE else "int"
    return "string"


def _settings() -> dict[str, str]:
    """The column and type of every field of a spec."""
    hints = typing.get_type_hints(SparkSpec)
    names = {field.name: _RENAMED.get(field.name, field.name) for field in dataclasses.fields(SparkSpec)}
    return {column: _column_type(column, hints[name]) for name, column in names.items()}


SETTING_COLUMNS: Final[Mapping[str, str]] = _settings()
KEYS: Final = tuple(SETTING_COLUMNS)
"""The columns of a setting. NULL is no timeout, and for a rate full speed."""

UPPER_NS: Final = (
    "CASE WHEN b < 2048 THEN cast(b as bigint)"
    " ELSE shiftleft(cast(b - shiftleft(shiftright(b, 10) - 1, 10) + 1 as bigint), shiftright(b, 10) - 1) - 1 END"
)

NODE_SCHEMA: Final = ", ".join(
    (
        "sweep_id string not null",
        "run_id string not null",
        "repeat int not null",
        "started_at timestamp",
        "discipline string",
        "command string",
        "master string",
        "spark_version string",
        "version string",
        "rank int not null",
        "host string",
        "hostname string",
        "pid bigint",
        "python string",
        "build string",
        "netstack_build string",
        "cpu string",
        "cpus int",
        "kernel string",
        "congestion_control string",
        "load double",
        "kind string not null",
        "error string",
        *(f"{name} {kind}" for name, kind in SETTING_COLUMNS.items()),
        "sources int",
        "sinks int",
        "records bigint",
        "bytes bigint",
        "seconds double",
        "records_per_s double",
        "payload_mb_per_s double",
        "local_records_per_s double",
        "cpu_s double",
        "clock_offset_us double",
        "clock_uncertainty_us double",
        "latency_max_us double",
        "hist array<struct<b:int,n:bigint>>",
    )
)
"""The schema of the rows of nodes; it is the same for every sweep, so that sweeps can be queried together."""

AGGREGATE_SCHEMA: Final = ", ".join(
    (
        "sweep_id string",
        "discipline string",
        "netstack_build string",
        *(f"{name} {kind}" for name, kind in SETTING_COLUMNS.items()),
        "runs bigint",
        "records_per_s double",
        "payload_mb_per_s double",
        "slowest_share double",
        "samples bigint",
        "p50_us double",
        "p90_us double",
        "p99_us double",
        "p999_us double",
        "max_us double",
    )
)
"""The schema of `per_setting`."""

_PERCENTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))


def node_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Returns the rows of nodes as a table of `NODE_SCHEMA`; missing columns are NULL."""
    import pyarrow as pa

    types = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}
    types |= {"boolean": pa.bool_(), "timestamp": pa.timestamp("us", "UTC")}
    types["array<struct<b:int,n:bigint>>"] = pa.list_(pa.struct([("b", pa.int32()), ("n", pa.int64())]))
    columns = [column.split() for column in NODE_SCHEMA.split(", ")]
    fields = [pa.field(name, types[kind], nullable=not others) for name, kind, *others in columns]
    dated = [{**row, "started_at": _moment(row.get("started_at"))} for row in rows]
    return pa.Table.from_pylist(dated, pa.schema(fields))


def node_frame(spark: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Returns the rows of nodes as a DataFrame of `NODE_SCHEMA`."""
    return spark.createDataFrame(node_table(rows), NODE_SCHEMA)


def per_setting(nodes: Any) -> Any:
    """Aggregates a DataFrame of `NODE_SCHEMA`, of one or several sweeps, over nodes and repeats.

    The result, of `AGGREGATE_SCHEMA`, has for each sweep and setting `runs` (their number), `samples` (the sum),
    `max_us` (the maximum), and the medians over the repeats of `records_per_s` and `payload_mb_per_s` (sums over the
    nodes), `slowest_share` (the slowest node's rate divided by the fastest's), and `p50_us` to `p999_us`. The
    percentiles of a repeat are those of its nodes' merged histograms, as in the table of runs; NULL without samples.
    """
    from pyspark.sql import (
        Window,
        functions as F,  # noqa: N812 - everybody's name for it
    )

    run, keys = ["sweep_id", "run_id", "repeat"], ["sweep_id", "discipline", "netstack_build", *KEYS]
    well = nodes.where("error is null and kind = 'ok'")
    buckets = (
        well.select(*run, F.inline("hist"))
        .groupBy(*run, (F.expr(UPPER_NS) / 1000).alias("us"))
        .agg(F.sum("n").alias("n"))
    )
    of_run = Window.partitionBy(*run)
    ranked = buckets.withColumns({"upto": F.sum("n").over(of_run.orderBy("us")), "samples": F.sum("n").over(of_run)})
    latency = ranked.groupBy(*run).agg(
        F.max("samples").alias("samples"),
        *(
            F.expr(f"min(CASE WHEN upto >= ceil({part} * samples - 1e-9) THEN us END)").alias(f"{name}_us")
            for name, part in _PERCENTILES
        ),
        F.max("us").alias("max_us"),
    )
    runs = well.groupBy(*run, *keys[1:]).agg(
        F.sum("records_per_s").alias("records_per_s"),
        F.sum("payload_mb_per_s").alias("payload_mb_per_s"),
        (F.min("records_per_s") / F.max("records_per_s")).alias("slowest_share"),
        F.max("latency_max_us").alias("longest"),
    )
    shares = ("records_per_s", "payload_mb_per_s", "slowest_share")
    latencies = [f"{name}_us" for name, _ in _PERCENTILES]
    joined = runs.join(latency, run, "left").withColumns(
        {name: F.least(name, "longest") for name in (*latencies, "max_us")}  # least() leaves NULL out
    )
    groups = joined.groupBy(*keys).agg(
        F.count("*").alias("runs"),
        *(F.median(name).alias(name) for name in shares),
        F.sum("samples").alias("samples"),
        *(F.median(name).alias(name) for name in latencies),
        F.max("max_us").alias("max_us"),
    )
    return groups.orderBy(*keys)


def with_sweep(
    rows: Iterable[Mapping[str, Any]], sweep_id: str, repeat: int, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns the rows of a run's nodes with the columns of the sweep, the repeat and the settings."""
    common = {"sweep_id": sweep_id, "repeat": repeat, "discipline": discipline(settings.get("rate_per_s"))}
    requested = {_RENAMED.get(name, name): value for name, value in settings.items()}
    return [{**{key: requested.get(key) for key in KEYS}, **row, **common} for row in rows]


def discipline(rate_per_s: float | None) -> str:
    """Returns the discipline of a run with this rate; None is full speed."""
    return DISCIPLINES[run_kind(rate_per_s)]


def _moment(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value
