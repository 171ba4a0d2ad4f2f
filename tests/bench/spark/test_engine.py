"""Runs as barrier jobs of a real session in local mode: what they give, how they fail, what is left of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bench.grid import Grid
from bench.processes import MeasurementFailed
from bench.spark.engine import SparkEngine
from bench.spark.frames import KEYS, NODE_SCHEMA, UPPER_NS, column_names, node_frame, per_setting
from bench.spark.settings import SparkSettings
from bench.spark.spec import SparkSpec
from bench.spark.sweep import NODES, SETTINGS, Recorder, run_sweep, write_tables
from bench.store import Store

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.xdist_group("spark")]  # one JVM for all of them

LOCAL = SparkSettings(master="local[2]")


def python_workers() -> set[int]:
    """Processes that Spark's Python daemon forked for tasks."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found


def test_a_run_gives_the_document_of_every_engine_and_a_row_of_every_node(spark: Any) -> None:
    nodes: list[dict[str, Any]] = []
    engine = SparkEngine(spark, LOCAL, on_nodes=nodes.extend)
    document = engine.run_once(SparkSpec(nodes=2, seconds=0.5, rate_per_s=500.0, buffer_timeout_s=0.005, warmup_s=0.05))
    assert document["delivered"]
    assert document["engine_kind"] == "spark"
    assert document["spark"]["nodes"] == 2
    assert document["latency_us"]["p50"] < 100_000
    assert [row["rank"] for row in nodes] == [0, 1]
    assert sum(row["records"] for row in nodes) == document["records"]
    assert sum(bucket["n"] for row in nodes for bucket in row["hist"]) == document["latency_samples"]
    frame = node_frame(spark, [{**row, "sweep_id": "s", "repeat": 0} for row in nodes])
    assert frame.columns == column_names()


def test_too_few_slots_are_one_sentence_and_the_next_run_works(spark: Any) -> None:
    patient = dataclasses.replace(LOCAL, grace_s=60.0)
    engine = SparkEngine(spark, patient)
    with pytest.raises(MeasurementFailed, match="needs 3 slots") as caught:
        engine.run_once(SparkSpec(nodes=3, seconds=0.3))
    assert "\n" not in str(caught.value)
    assert engine.run_once(SparkSpec(nodes=2, records=100))["delivered"]


def test_a_killed_node_is_one_sentence_and_the_next_run_works(spark: Any) -> None:
    engine = SparkEngine(spark, LOCAL)
    before = python_workers()

    def kill_one() -> None:
        time.sleep(2.0)  # well inside the run of 20 s
        for pid in sorted(python_workers(), reverse=True)[:1]:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        with pytest.raises(MeasurementFailed) as caught:
            engine.run_once(SparkSpec(nodes=2, seconds=20.0))
    finally:
        killer.join()
    assert "\n" not in str(caught.value)
    assert engine.run_once(SparkSpec(nodes=2, records=100))["delivered"]
    assert len(python_workers()) <= max(len(before), 3)


def test_a_frozen_node_ends_the_run_at_the_deadline_and_the_next_one_works(spark: Any) -> None:
    patience = dataclasses.replace(LOCAL, start_timeout_s=1.0, setup_timeout_s=1.0, grace_s=2.0)
    stopped: list[int] = []

    def freeze() -> None:
        time.sleep(1.5)
        for pid in sorted(python_workers())[1:]:  # the first is the daemon that forks them
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    freezer = threading.Thread(target=freeze)
    freezer.start()
    try:
        with pytest.raises(MeasurementFailed, match="a node is silent: no result after 5 s"):
            SparkEngine(spark, patience).run_once(SparkSpec(nodes=2, seconds=2.0))
    finally:
        freezer.join()
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert SparkEngine(spark, LOCAL).run_once(SparkSpec(nodes=2, records=100))["delivered"]


def test_a_sweep_from_a_notebook_is_a_data_frame(spark: Any, tmp_path: Path) -> None:
    settings = {
        "timeouts_s": (None, 0.0),
        "record_sizes": (8,),
        "channels": (1,),
        "seconds": 0.2,
        "repeats": 2,
        "latency_seconds": 0,
    }
    frame = run_sweep(spark, settings, folder=tmp_path / "one")
    assert frame.count() == 2 * 2 * 2  # timeouts x repeats x nodes
    found = per_setting(frame).collect()
    assert len(found) == 2  # NULL is a timeout of its own
    assert {row["runs"] for row in found} == {2}
    assert all(row["samples"] > 50 and 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"] for row in found)
    again = run_sweep(spark, settings, folder=tmp_path / "one")
    assert again.count() == frame.count()  # nothing was measured twice


def test_sweeps_lie_beside_each_other_in_one_table(spark: Any, tmp_path: Path) -> None:
    grid = Grid(timeouts_s=(0.0,), record_sizes=(8,), channels=(1,)).with_spec(SparkSpec, nodes=2)
    runs = grid.plan()
    for name in ("first", "second"):
        with Store(tmp_path / name) as store:
            recorder = Recorder(store.folder, None)
            for run in runs:
                recorder.begin(run)
                recorder.add([_node(rank, run.spec.run_id) for rank in range(2)])
                recorder.end(run, {"error": None, "started_at": "2026-01-01T00:00:00Z"})
            aggregates, folder = write_tables(spark, recorder, tmp_path / "warehouse")
            assert aggregates.count() == len(runs)
    nodes = spark.read.parquet(str(folder / NODES))
    assert {row["sweep_id"] for row in nodes.select("sweep_id").distinct().collect()} == {"first", "second"}
    assert nodes.count() == 2 * len(runs) * 2
    settings = spark.read.parquet(str(folder / SETTINGS))
    assert settings.where("sweep_id = 'first'").count() == len(runs)
    assert set(KEYS) < set(settings.columns)


def test_the_buckets_of_sql_are_those_of_the_histogram(spark: Any) -> None:
    import numpy as np

    from bench.histogram import Histogram

    values = [0, 1, 2047, 2048, 4095, 4096, 70_000, 10**9, 2**40 + 12345]
    told = []
    for value in values:
        histogram = Histogram()
        histogram.record_many(np.array([value]))
        (bucket,) = histogram.to_dict()["buckets"]
        told.append((bucket, 1, value))
    rows = spark.createDataFrame(told, "b int, n bigint, value bigint").selectExpr(f"{UPPER_NS} as upper", "value")
    for row in rows.collect():
        assert row["value"] <= row["upper"] <= row["value"] * 1.001


def test_every_column_of_a_row_has_a_type() -> None:
    assert len(column_names()) == len(NODE_SCHEMA.split(", "))


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
