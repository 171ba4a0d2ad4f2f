"""Runs as barrier jobs of a real session in local mode: what they give, how they fail, what is left of them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import signal
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from process_tree import python_workers
from spark.workers import listening, silent

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from netstack.base.errors import ConfigError
from netstack.spark.drivers import driver_of
from netstack.spark.exchange_frame import check_session
from netstack.spark.interruptible import JobTooSlow
from netstack.spark.settings import SparkSettings
from netstack_bench.grid import Grid
from netstack_bench.histogram import Histogram
from netstack_bench.places.conversation import MeasurementFailed
from netstack_bench.places.spark.engine import SparkEngine
from netstack_bench.places.spark.frames import KEYS, NODE_SCHEMA, UPPER_NS, node_frame, per_setting, with_sweep
from netstack_bench.places.spark.spec import SparkSpec
from netstack_bench.places.spark.sweep import Recorder, run_sweep
from netstack_bench.places.spark.tables import (
    AGGREGATES,
    NODES,
    RUNS,
    SCHEMAS,
    TIMELINE,
    check_tables,
    read_table,
    table_url,
    write_tables,
)
from netstack_bench.places.spark.workload import frame_of
from netstack_bench.rows import InputError
from netstack_bench.store import Store, flatten, read_rows

pytestmark = [pytest.mark.java, pytest.mark.whole, pytest.mark.xdist_group("spark")]  # one JVM for all of them

ROOT = Path(__file__).resolve().parents[4]
LOCAL = SparkSettings(master="local[2]")


def test_a_run_gives_the_document_of_every_engine_and_a_row_of_every_node(spark: Any) -> None:
    nodes: list[dict[str, Any]] = []
    engine = SparkEngine(spark, LOCAL, on_nodes=nodes.extend)
    document = engine(SparkSpec(nodes=2, seconds=0.5, rate_per_s=500.0, buffer_timeout_s=0.005, warmup_s=0.05))
    assert document["delivered"]
    assert document["engine_kind"] == "spark"
    assert document["spark"]["executors"] == 2
    assert document["spark"]["hosts"] == 1
    assert document["spark"]["scheduling_s"] > 0
    assert document["latency_us"]["p50"] > 0
    assert [row["rank"] for row in nodes] == [0, 1]
    assert sum(row["records"] for row in nodes) == document["records"]
    assert sum(bucket["n"] for row in nodes for bucket in row["hist"]) == document["latency_samples"]
    assert [os.getsid(row["pid"]) for row in nodes] == [row["pid"] for row in nodes], "they share the JVM's share"
    frame = node_frame(spark, [{**row, "sweep_id": "s", "repeat": 0} for row in nodes])
    assert frame.columns == [column.split()[0] for column in NODE_SCHEMA.split(", ")]


def test_sparks_pages_tell_which_run_a_job_is_and_how_fast_the_last_one_was(spark: Any) -> None:
    engine = SparkEngine(spark, LOCAL)
    for _ in range(2):
        engine(SparkSpec(nodes=2, records=2000, buffer_timeout_s=0.01))
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)  # the newest first
    newer, older = (jobs.apply(index).description().get() for index in range(2))
    assert re.search(r", run 1: 8 B records, 1 channels, timeout 10ms$", older)
    assert re.search(
        r", run 2: 8 B records, 1 channels, timeout 10ms; the run before: [0-9.]+ ?[kM]? records/s$", newer
    )


def test_one_way_is_what_two_processes_do(spark: Any) -> None:
    nodes: list[dict[str, Any]] = []
    engine = SparkEngine(spark, LOCAL, on_nodes=nodes.extend)
    document = engine(SparkSpec(nodes=2, records=3000, one_way=True))
    assert document["delivered"]
    assert document["records"] == 3000
    assert [(row["sources"], row["sinks"], row["records"]) for row in nodes] == [(1, 0, 0), (0, 1, 3000)]
    assert {name for name, value in document["cpu_s_per_gb"].items() if value} == {"producer", "consumer", "total"}


def test_too_few_slots_are_one_sentence_and_the_next_run_works(spark: Any) -> None:
    patient = dataclasses.replace(LOCAL, grace_s=60.0)
    engine = SparkEngine(spark, patient)
    with pytest.raises(MeasurementFailed, match="needs 3 slots") as caught:
        engine(SparkSpec(nodes=3, seconds=0.3))
    assert "\n" not in str(caught.value)
    assert engine(SparkSpec(nodes=2, records=100))["delivered"]


@pytest.mark.long
def test_a_killed_node_is_one_sentence_and_the_next_run_works(spark: Any) -> None:
    engine = SparkEngine(spark, LOCAL)

    over = threading.Event()

    def kill_one() -> None:
        while not over.wait(2.0):
            with contextlib.suppress(ValueError, ProcessLookupError):
                os.kill(max(listening().values()), signal.SIGKILL)  # others are idle workers of earlier tests

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        with pytest.raises(MeasurementFailed) as caught:
            engine(SparkSpec(nodes=2, seconds=20.0))
    finally:
        over.set()
        killer.join()
    assert "\n" not in str(caught.value)
    assert engine(SparkSpec(nodes=2, records=100))["delivered"]
    assert silent()


@pytest.mark.long  # it ends by limits of a second
def test_a_frozen_node_ends_the_run_at_the_deadline_and_the_next_one_works(spark: Any) -> None:
    patience = dataclasses.replace(LOCAL, start_timeout_s=1.0, setup_timeout_s=1.0, grace_s=2.0)
    stopped: list[int] = []

    def freeze() -> None:
        time.sleep(1.5)
        for pid in python_workers():
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    freezer = threading.Thread(target=freeze)
    freezer.start()
    try:
        with pytest.raises(MeasurementFailed, match="nodes are silent: no result after 5 s"):
            SparkEngine(spark, patience)(SparkSpec(nodes=2, seconds=2.0))
    finally:
        freezer.join()
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert SparkEngine(spark, LOCAL)(SparkSpec(nodes=2, records=100))["delivered"]


def test_a_sweep_from_a_notebook_is_a_data_frame(spark: Any, tmp_path: Path) -> None:
    settings = {
        "timeouts_s": (None, 0.0),
        "record_sizes": (8,),
        "channels": (1,),
        "seconds": 0.3,
        "repeats": 2,
        "latency_seconds": 0,
    }
    frame = run_sweep(spark, settings, folder=tmp_path / "one")
    assert frame.count() == 2 * 2 * 2  # timeouts x repeats x nodes
    actual = per_setting(frame).collect()
    assert len(actual) == 2  # NULL is a timeout of its own
    assert {row["runs"] for row in actual} == {2}
    assert all(row["samples"] > 0 and 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"] for row in actual)
    for row in actual:  # one p99 of a setting, wherever it stands
        reported = [
            each for each in read_rows(tmp_path / "one") if each["settings_buffer_timeout_s"] == row["buffer_timeout_s"]
        ]
        for name in ("p50", "p99", "p999"):
            median = statistics.median(each[f"latency_us_{name}"] for each in reported)
            assert row[f"{name}_us"] == pytest.approx(median, rel=1e-12)
    again = run_sweep(spark, settings, folder=tmp_path / "one")
    assert again.count() == frame.count()  # nothing was measured twice


def test_a_sweep_of_the_users_rows(spark: Any, tmp_path: Path) -> None:
    df = spark.range(0, 2000, 1, 2).selectExpr("id", "concat('user-', id % 50) as user", "timestamp_seconds(id) as at")
    settings = {"timeouts_s": (0.01,), "channels": (2,), "seconds": 0.3, "latency_rate_per_s": 500.0}
    frame = run_sweep(spark, settings, data=df, key="user", folder=tmp_path / "rows")
    assert {row["kind"] for row in frame.collect()} == {"ok"}
    reported = read_rows(tmp_path / "rows")
    assert all(row["delivered"] and row["latency_samples"] and row["settings_record_bytes"] > 20 for row in reported)
    assert {(row["input_name"], row["input_rows"], row["settings_key_column"]) for row in reported} == {
        ("a DataFrame", 2000, "user")
    }
    page = (tmp_path / "rows" / "report.html").read_text()
    assert "2,000 rows of a DataFrame" in page
    with pytest.raises(ConfigError, match="used other rows of a DataFrame"):
        run_sweep(spark, settings, data=df.limit(7), key="user", folder=tmp_path / "rows")
    df.createOrReplaceTempView("clicks")
    assert frame_of(spark, "clicks").count() == 2000
    with pytest.raises(ConfigError, match=r"--input nowhere: .*nowhere"):
        frame_of(spark, "nowhere")
    with pytest.raises(InputError, match="no column 'usr'"):
        run_sweep(spark, settings, data=df, key="usr")


def test_urls_that_spark_reads_are_input_and_others_are_one_sentence(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,n\nann,1\nbob,2\n")
    url = (tmp_path / "rows.csv").as_uri()
    for name in (url, url.replace("file:///", "file:/"), str(tmp_path / "*.csv").replace("/", "file:///", 1)):
        assert sorted(map(tuple, frame_of(spark, name).collect())) == [("ann", 1), ("bob", 2)]
    for name, says in (
        ("s3a://bucket/rows.parquet", "no file system for this scheme: add its package"),
        ("s3://bucket/rows.parquet", "no file system for this scheme: add its package"),
        ("hdfs://127.0.0.1:9/rows.parquet", "Connection refused"),
        ("http://127.0.0.1:9/rows.csv", "cannot list files there"),
        ("file:///nowhere/rows.csv", "Path does not exist: file:/nowhere/rows.csv$"),
        ("no table", "Syntax error"),
    ):
        with pytest.raises(ConfigError, match=rf"^--input {name}: .*{says}") as caught:
            frame_of(spark, name)
        assert "\n" not in str(caught.value)


def test_the_documents_notebook_runs(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "tools/docs/pages/how-to/spark.md").read_text(), re.DOTALL)
    (block,) = (each for each in blocks if "run_sweep" in each)
    shorter = block.replace("(None, 0.1, 0.0)", "(0.0,)").replace('"seconds": 1.0', '"seconds": 0.2, "channels": (1,)')
    shorter = shorter.replace("(8, 1024)", "(8,)")
    assert shorter.count("(8,)") == shorter.count("0.2") == 1
    names = {"spark": spark, "df": spark.range(500).selectExpr("id", "id % 7 as user")}
    exec(shorter, names)
    reported = capsys.readouterr().out
    assert "avg(payload_mb_per_s)" in reported
    assert "p99_us" in reported
    assert names["nodes"].count() == 4  # throughput and latency, 2 nodes


def test_a_session_that_lacks_a_property_is_told_and_works_all_the_same() -> None:
    class Lacking:
        def setting(self, name: str) -> None:
            return None

    lacking: Any = Lacking()
    with pytest.warns(UserWarning, match="maxConcurrentTasksCheck.interval is not set"):
        check_session(lacking)


def test_a_python_that_is_not_there_ends_the_sweep_with_one_sentence(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
    settings = {"timeouts_s": (0.0,), "record_sizes": (8,), "channels": (1,), "seconds": 0.3, "repeats": 3}
    reported = (
        r"1 of 6 runs failed.*a worker has no Python at /nowhere/python: set PYSPARK_PYTHON.*the others were not tried"
    )
    with pytest.warns(UserWarning, match=reported):
        run_sweep(spark, settings)


def test_a_failed_run_is_in_the_frame_with_its_error_and_not_in_the_aggregates(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any, **__: Any) -> None:
        raise JobTooSlow(7.0, has_begun=False)

    monkeypatch.setattr("netstack_bench.places.spark.engine.run_job", late)
    settings = {"timeouts_s": (0.0,), "record_sizes": (8,), "channels": (1,), "seconds": 0.2, "latency_seconds": 0}
    with pytest.warns(UserWarning, match=r"1 of 1 runs failed, .*MeasurementFailed: .* never began"):
        frame = run_sweep(spark, settings)
    rows = frame.collect()
    assert [(row["rank"], row["kind"]) for row in rows] == [(0, "lost"), (1, "lost")]
    assert "no result after 7 s" in rows[0]["error"]
    assert per_setting(frame).count() == 0


def test_percentiles_of_a_run_are_those_of_its_merged_histogram_and_of_a_setting_their_medians(spark: Any) -> None:
    """Few samples and far apart: where interpolation would show."""
    merged, rows = [Histogram(), Histogram(), Histogram()], []
    samples_ns = [900, 1_000, 5_000, 70_000, 70_100, 2_000_000, 900_000_000]
    for repeat, rank in itertools.product(range(3), range(2)):
        part = Histogram()
        for value_ns in samples_ns[rank :: 2 + repeat]:
            part.record(value_ns * (repeat + 1))
        merged[repeat].merge(part)
        reported = part.to_dict()
        hist = [
            {"b": bucket, "n": count} for bucket, count in zip(reported["buckets"], reported["counts"], strict=True)
        ]
        row = {"run_id": "r", "rank": rank, "kind": "ok", "hist": hist, "records_per_s": 1.0}
        rows += with_sweep([{**row, "latency_max_us": reported["max_ns"] / 1000}], "s", repeat, SparkSpec().as_dict())
    (actual,) = per_setting(node_frame(spark, rows)).collect()
    assert actual["samples"] == sum(each.count for each in merged)
    summaries = [each.summary_us() for each in merged]
    for name in ("p50", "p90", "p99", "p999"):
        assert actual[f"{name}_us"] == statistics.median(each[name] for each in summaries)
    assert actual["max_us"] == max(each["max"] for each in summaries)


def test_a_setting_that_does_not_exist_is_refused_before_anything_runs(spark: Any) -> None:
    with pytest.raises(ConfigError, match=r"'record_size'; it has .*record_sizes"):
        run_sweep(spark, {"record_size": (8,)})


@pytest.mark.long
def test_sweeps_lie_beside_each_other_in_tables(spark: Any, tmp_path: Path) -> None:
    grid = Grid(timeouts_s=(None, 0.0), record_sizes=(8,), channels=(1,)).with_spec(SparkSpec, nodes=2)
    url = table_url(str(tmp_path / "warehouse"))
    check_tables(spark, url, 2)
    names = [kept_sweep(tmp_path / place / "sweep", grid, url, spark) for place in ("a", "b")]
    before = {table: rows_of(spark, url, table, names[0]) for table in SCHEMAS}
    for table in SCHEMAS:
        make_older(tmp_path / "warehouse" / table / f"sweep_id={names[0]}")
    assert {row["schema_version"] for row in rows_of(spark, url, RUNS, names[0])} == {None}
    names.append(kept_sweep(tmp_path / "b" / "sweep", grid, url, spark))
    assert names[0] != names[1] == names[2]  # of folders with one name; the last one was written again
    for table, rows in before.items():  # widened again, on the disk
        assert rows_of(spark, url, table, names[0]) == [
            {**row, **{name: None for name in YOUNG if name in row}} for row in rows
        ]
    nodes, runs = (spark.read.parquet(f"{url}/{table}") for table in (NODES, RUNS))
    assert {row["sweep_id"] for row in nodes.select("sweep_id").distinct().collect()} == set(names)
    assert nodes.count() == 2 * len(grid.plan()) * 2
    assert runs.count() == 2 * len(grid.plan())
    assert set(KEYS) < set(nodes.columns)
    assert {"credit", "debloat_s", "checksum", "consume_rate_per_s", "batch_records", "warmup_s"} < set(KEYS)
    assert dict(runs.dtypes)["started_at"] == dict(nodes.dtypes)["started_at"] == "timestamp"
    assert {row["command"] for row in runs.select("command").distinct().collect()} == {"the command"}
    assert {row["discipline"] for row in runs.select("discipline").collect()} == {"full speed", "fixed rate"}
    slowest = spark.read.parquet(f"{url}/{AGGREGATES}").where("discipline = 'full speed'")
    assert slowest.where(f"sweep_id = '{names[0]}'").count() == 2
    assert spark.read.parquet(f"{url}/{TIMELINE}").count() == 2 * len(grid.plan())
    assert not list((tmp_path / "warehouse").glob("_probe*"))
    again = read_rows(tmp_path / "warehouse" / RUNS / f"sweep_id={names[0]}")
    assert [row["settings_buffer_timeout_s"] for row in again] == [run.spec.buffer_timeout_s for run in grid.plan()]


def test_tables_that_cannot_be_written_are_refused(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for url in ("nosuch://bucket/tables", table_url(str(tmp_path / "file"))):
        with pytest.raises(ConfigError, match=f"--warehouse {url}: Spark cannot write there") as caught:
            check_tables(spark, url, 2)
        assert "\n" not in str(caught.value)


YOUNG = ("latency_max_us", "latency_us_p9999", "overdraft_buffers", "p999_us")
"""Columns that tables of older versions do not have."""


def rows_of(spark: Any, url: str, table: str, sweep_id: str) -> list[dict[str, Any]]:
    actual = read_table(spark, url, table).where(f"sweep_id = '{sweep_id}'")
    return [row.asDict(recursive=True) for row in actual.collect()]


def make_older(partition: Path) -> None:
    """As a version before this one wrote it: some columns were not there, numbers were narrower."""
    (file,) = partition.glob("part-*.parquet")
    table = pq.ParquetFile(file).read()
    table = table.drop_columns([name for name in ("schema_version", *YOUNG) if name in table.schema.names])
    narrow = [each.with_type(pa.int32()) if each.type == pa.int64() else each for each in table.schema]
    pq.write_table(table.cast(pa.schema(narrow)), file, use_deprecated_int96_timestamps=True)  # as Spark does
    file.with_name(f".{file.name}.crc").unlink()


def kept_sweep(folder: Path, grid: Grid, url: str, spark: Any) -> str:
    """A sweep that nobody measured, in the tables; its name there."""
    with Store(folder) as store:
        recorder = Recorder(store, None)
        for run in grid.plan():
            recorder.begin(run)
            recorder.add([_node(rank, run.spec.run_id) for rank in range(2)])
            row = {"run_id": run.spec.run_id, "repeat": run.repeat, "error": None, "delivered": True, "kind": run.kind}
            sample = {"t_s": 0.1, "host": "a", "task": "source-0", "records": 7}
            reported = {"settings": run.spec.as_dict(), "started_at": "2026-01-01T00:00:00Z", "timeline": [sample]}
            store.append(flatten({**row, **reported}))
            recorder.end(run, row)
        nodes = recorder.rows()
        write_tables(spark, url, sweep_id=recorder.sweep_id, command="the command", runs=store.rows(), nodes=nodes)
        return recorder.sweep_id


def test_workers_leave_the_folder_they_start_in_out_of_their_path(spark: Any) -> None:
    context = spark.sparkContext

    def is_safe() -> bool:
        (actual,) = context.parallelize([0], 1).map(lambda _: sys.flags.safe_path).collect()
        return bool(actual)

    with driver_of(spark).archives_first():
        assert is_safe()
    assert not is_safe()
    assert "PYTHONSAFEPATH" not in context.environment
    assert not [place for place in sys.path if "netstack-" in place and place.endswith(".zip")]  # not the driver


def test_the_buckets_of_sql_are_those_of_the_histogram(spark: Any) -> None:
    import numpy as np

    from netstack_bench.histogram import Histogram

    values = [0, 1, 2047, 2048, 4095, 4096, 70_000, 10**9, 2**40 + 12345]
    reported = []
    for value in values:
        histogram = Histogram()
        histogram.record_many(np.array([value]))
        (bucket,) = histogram.to_dict()["buckets"]
        reported.append((bucket, 1, value))
    rows = spark.createDataFrame(reported, "b int, n bigint, value bigint").selectExpr(f"{UPPER_NS} as upper", "value")
    for row in rows.collect():
        assert row["value"] <= row["upper"] <= row["value"] * 1.001


def _node(rank: int, run_id: str) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "rank": rank,
        "host": f"10.0.0.{rank}",
        "kind": "ok",
        "records": 10,
        "records_per_s": 5,
        "payload_mb_per_s": 0.1,
        "hist": [{"b": 100, "n": 9}, {"b": 5000, "n": 1}],
    }
