"""Writes and reads the Parquet tables of sweeps, wherever Spark can write.

    runs         a row for each run: settings, figures, pairs, hosts, and the session (`netstack_bench.store`)
    node_runs    a row for each node of each run, with its histogram (`frames.NODE_SCHEMA`)
    timeline     back-pressure and idle time of every task over time
    aggregates   over nodes and repeats of a setting (`frames.per_setting`)

Rules: tables are partitioned by `sweep_id`. A sweep replaces its own partitions, so it can be written again. A row has
the `schema_version` that wrote it. `read_table` also reads older versions: missing columns are NULL, narrower ones are
widened; the next sweep that is written rewrites them in this form. A column may be added or widened, never renamed or
dropped. In a folder that the executors do not share with the driver, Spark loses the rows without an error; therefore
`check_tables` writes a probe and reads it back, before anything is measured.
"""

from __future__ import annotations

import secrets
import tempfile
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from netstack.base.errors import ConfigError
from netstack.spark.classic import ClassicDriver
from netstack.spark.failures import explain_storage, spark_errors

from ...histogram import PERCENTILES
from ...store import COLUMNS, STRUCTS, arrow_table, reason
from .frames import AGGREGATE_SCHEMA, DISCIPLINES, NODE_SCHEMA, node_frame, per_setting

RUNS: Final = "runs"
NODES: Final = "node_runs"
TIMELINE: Final = "timeline"
AGGREGATES: Final = "aggregates"

SCHEMA_VERSION: Final = 5
"""The version of all tables; rows of version 1 have no such column.

2. `node_runs.latency_max_us`, `runs.round_trip_latency_us_*`; percentiles of `aggregates` are medians of the runs'.
3. `runs.settings_one_way`.
4. Rates and latencies of runs, `hosts` and nodes are those between nodes (of all channels before); `connections` and
   `local_*` are new.
5. `hosts` has the build, Python, kernel, CPUs and congestion control of each; `node_runs.kernel`,
   `node_runs.congestion_control`.
"""

_SPARK_COLUMNS: Final = {
    "engine_kind": "string",
    "settings_nodes": "int",
    "settings_sources_per_node": "int",
    "settings_sinks_per_node": "int",
    "settings_relay": "boolean",
    "settings_one_way": "boolean",
    "spark_master": "string",
    "spark_version": "string",
    "spark_java": "string",
    "spark_executors": "int",
    "spark_hosts": "int",
    "spark_session_s": "double",
    "spark_scheduling_s": "double",
    "connections": "int",
    "local_records": "bigint",
    "local_records_per_s": "double",
    "local_payload_mb_per_s": "double",
    **{
        f"{of}_us_{name}": "double"
        for of in ("round_trip_latency", "local_latency", "local_round_trip_latency")
        for name in (*PERCENTILES, "max")
    },
}
"""Columns of `runs` that some engines do not have."""


def _type_of(kind: str) -> str:
    """The Spark type of a column or field of `netstack_bench.store`."""
    if kind.startswith("list<"):
        return f"array<{_type_of(kind[5:-1])}>"
    if kind in STRUCTS:
        return f"struct<{', '.join(f'{name}: {_type_of(each)}' for name, each in STRUCTS[kind].items())}>"
    return {"int64": "bigint", "float64": "double", "bool": "boolean"}.get(kind, kind)


_OWN: Final = {name: _type_of(kind) for name, kind in COLUMNS.items() if name not in ("started_at", "kind", "timeline")}
SCHEMAS: Final = {
    RUNS: "sweep_id string, started_at timestamp, discipline string, command string, "
    + ", ".join(f"`{name}` {kind}" for name, kind in (_OWN | _SPARK_COLUMNS).items()),
    NODES: NODE_SCHEMA,
    TIMELINE: "sweep_id string, run_id string, repeat bigint, discipline string, host_netstack_build string, "
    + ", ".join(f"{name} {_type_of(kind)}" for name, kind in STRUCTS["sample"].items()),
    AGGREGATES: AGGREGATE_SCHEMA,
}
"""The schemas of the tables, without `schema_version`."""


def table_url(warehouse: str) -> str:
    """Returns the URL of a folder; a path is local, whatever Spark's default file system is."""
    return warehouse.rstrip("/") if "://" in warehouse else Path(warehouse).absolute().as_uri()


def check_tables(spark: Any, url: str, executors: int) -> None:
    """Writes a row from every executor into the folder of tables, reads them back, and deletes them.

    Raises:
        ConfigError: the rows cannot be written, or some are missing afterwards.
    """
    if url.startswith("file:") and str(spark.sparkContext.master).startswith("local"):
        _check_folder(url)  # a first query of Spark takes seconds, and would show no more
        return
    probe = f"{url}/_probe-{secrets.token_hex(4)}"
    try:
        try:
            spark.range(0, executors, 1, executors).write.parquet(probe)
            rows = spark.read.schema("id bigint").parquet(probe).count()
        finally:
            ClassicDriver(spark).remove_folder(probe)
    except spark_errors() as error:
        raise ConfigError(f"--warehouse {url}: Spark cannot write there: {explain_storage(error)}") from error
    if rows != executors:
        raise ConfigError(
            f"--warehouse {url}: the executors do not share this folder with the driver, and their rows are lost: give"
            " a URL that all of them reach, such as s3a:// or hdfs://"
        )


def read_table(spark: Any, url: str, table: str) -> Any:
    """Reads one of `SCHEMAS` in the folder of tables with all its sweeps, older schemas included.

    Raises:
        AnalysisException: the table does not exist; Spark's error.
    """
    return spark.read.schema(f"{SCHEMAS[table]}, schema_version int").parquet(f"{url}/{table}")


def write_tables(
    spark: Any,
    url: str,
    *,
    sweep_id: str,
    command: str,
    runs: Sequence[Mapping[str, Any]],
    nodes: Sequence[Mapping[str, Any]],
) -> None:
    """Writes the sweep's partitions of all tables, and rewrites those of sweeps of older schemas.

    `command` measured the sweep; `runs` are the rows of its results folder, `nodes` those of `sweep.Recorder`.
    """
    of_runs = run_frame(spark, runs, sweep_id=sweep_id, command=command).cache()
    by_node = node_frame(spark, [{**row, "command": command} for row in nodes]).cache()
    _write(of_runs.drop("timeline"), url, RUNS)
    _write(by_node, url, NODES)
    samples = of_runs.selectExpr(
        "sweep_id", "run_id", "repeat", "discipline", "host_netstack_build", "inline(timeline)"
    )
    _write(samples, url, TIMELINE)
    _write(per_setting(by_node), url, AGGREGATES)
    for table in SCHEMAS:
        older = read_table(spark, url, table).where(f"coalesce(schema_version, 1) < {SCHEMA_VERSION}")
        if not older.isEmpty():
            _write(older, url, table)


def run_frame(spark: Any, rows: Sequence[Mapping[str, Any]], *, sweep_id: str, command: str) -> Any:
    """Returns the rows of a results folder as a DataFrame of `runs`, with `timeline`; missing columns are NULL."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    frame = spark.createDataFrame(arrow_table([dict(row) for row in rows]))
    disciplines = F.create_map(*(F.lit(word) for pair in DISCIPLINES.items() for word in pair))
    return frame.select(
        F.lit(sweep_id).alias("sweep_id"),
        F.to_timestamp("started_at").alias("started_at"),
        disciplines[F.col("kind")].alias("discipline"),
        F.lit(command).alias("command"),
        *_OWN,
        *(
            (F.col(name) if name in frame.columns else F.lit(None)).cast(kind).alias(name)
            for name, kind in _SPARK_COLUMNS.items()
        ),
        "timeline",
    )


def _write(frame: Any, url: str, table: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    versioned = frame.withColumn("schema_version", F.lit(SCHEMA_VERSION))
    writer = versioned.coalesce(1).write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy("sweep_id").parquet(f"{url}/{table}")


def _check_folder(url: str) -> None:
    folder = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"--warehouse {url}: Spark cannot write there: {reason(error)}") from None
