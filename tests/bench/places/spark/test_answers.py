"""The answers of tables of sweeps are those of the same rows in a results folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from connect_server import ConnectServer, needs_connect

from netstack_bench.decision.goal import Goal
from netstack_bench.grid import Grid
from netstack_bench.places.spark import compare, recommend, register_views, regressions
from netstack_bench.places.spark.tables import RUNS, SCHEMAS, run_frame
from netstack_bench.report.answers import decide
from netstack_bench.report.points import Analysis
from netstack_bench.store import Row

pytestmark = [pytest.mark.java, pytest.mark.whole, pytest.mark.xdist_group("spark")]  # one JVM for all of them

Rows = Callable[..., list[Row]]


def table(spark: Any, rows: list[Row], sweep_id: str) -> Any:
    return run_frame(spark, rows, sweep_id=sweep_id, command="")


def test_tables_are_asked_as_folders_are(spark: Any, fake_rows: Rows) -> None:
    grid = Grid(record_sizes=(8,), channels=(1,), repeats=3, seconds=1.0)
    rows = fake_rows(grid, noise=0.01)
    reported = decide(Analysis(rows), Goal(p99_us=20_000.0))[""].main
    before = table(spark, rows, "one")
    (actual,) = recommend(before, p99_s=0.02).collect()
    assert actual.buffer_timeout_s == reported.chosen.timeout_s
    assert (actual.is_reached, actual.is_decided) == (reported.is_reached, reported.is_decided)
    assert reported.chosen.share.range is not None
    assert actual.kept_low == pytest.approx(reported.chosen.share.range.low)
    assert actual.paragraph == reported.sentence()

    # A sweep of another hour, on a machine half as fast: pairs of a pass are still pairs, so the answer gets sharper.
    later = [{**row, "started_at": "2026-12-01T00:00:00Z"} for row in fake_rows(grid, noise=0.01, faster=0.5)]
    both = before.unionByName(table(spark, later, "two"))
    (sharper,) = recommend(both, p99_s=0.02).collect()
    assert sharper.kept_high - sharper.kept_low < actual.kept_high - actual.kept_low

    worse = regressions(both, datetime(2026, 11, 25, tzinfo=UTC)).collect()
    assert {(each.metric, each.verdict) for each in worse} == {("records_per_s", "worse")}
    assert len(worse) == 5
    assert all(each.low < each.change < each.high < 0 for each in worse)
    assert {each.verdict for each in compare(before, before).collect()} == {"same"}


def test_tables_are_asked_in_sql(
    spark: Any, fake_rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = Grid(timeouts_s=(0.1, 0.0), record_sizes=(8,), channels=(1,), repeats=3, seconds=1.0)
    other = Grid(timeouts_s=(0.1, 0.0), record_sizes=(64,), channels=(1,), repeats=3, seconds=1.0)
    for month, (sweep, asked, faster) in enumerate(
        (("first", grid, 1.0), ("other", other, 1.0), ("later", grid, 0.5)), start=1
    ):
        rows = [
            {**row, "started_at": f"2026-0{month}-01T00:00:00Z"} for row in fake_rows(asked, noise=0.01, faster=faster)
        ]
        runs = table(spark, rows, sweep)
        runs.drop("timeline").write.mode("append").partitionBy("sweep_id").parquet(str(tmp_path / RUNS))
    for name in SCHEMAS.keys() - {RUNS}:
        (tmp_path / name).mkdir()
    assert "netstack_aggregates" in register_views(spark, str(tmp_path))
    worse = spark.sql("select distinct sweep_id, since, metric from netstack_changes where verdict = 'worse'").collect()
    assert list(map(tuple, worse)) == [("later", "first", "records_per_s")]  # the one between has no point in common
    page = (Path(__file__).parents[4] / "tools/docs/pages/how-to/spark.md").read_text()
    (block,) = (each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "register_views" in each)
    exec(block.replace("s3a://bench/warehouse", str(tmp_path)), {"spark": spark})
    assert "records_per_s" in capsys.readouterr().out
    answers = spark.sql("select sweep_id, mb_per_s from netstack_recommendations join netstack_runs using (sweep_id)")
    assert {row.sweep_id for row in answers.distinct().collect()} == {"first", "other", "later"}


@pytest.mark.long
@pytest.mark.xdist_group("connect")
@needs_connect
def test_a_client_of_spark_connect_evaluates_tables(
    connect_server: ConnectServer, fake_rows: Rows, tmp_path: Path
) -> None:
    grid = Grid(timeouts_s=(0.1, 0.0), record_sizes=(8,), channels=(1,), repeats=3, seconds=1.0)
    (tmp_path / "rows.json").write_text(json.dumps(fake_rows(grid, noise=0.01)))
    connect_server.run_client("tables", tmp_path)
