"""What is known of a plan's partitions before it runs, against the RDDs that Spark makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from netstack.spark import exchange, plain_errors
from netstack.spark.classic import ClassicDriver, is_straight

pytestmark = [pytest.mark.java, pytest.mark.whole, pytest.mark.xdist_group("spark")]

ROWS = 100


@contextmanager
def settings(spark: Any, **values: str) -> Iterator[None]:
    names = {name.replace("_", "."): value for name, value in values.items()}
    before = {name: spark.conf.get(name) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def frames(spark: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """A frame for each kind of plan node that is not executed as rows, or has other partitions than its child."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    numbers = spark.range(0, ROWS, 1, 2)
    keyed = numbers.selectExpr("id", "id % 3 as k")
    few = spark.range(0, 3, 1, 1).selectExpr("id as k2")
    counts = keyed.groupBy("k").count().withColumnRenamed("k", "k2")
    stored = str(folder / "parquet")
    keyed.repartition(2).write.mode("overwrite").partitionBy("k").parquet(stored)
    numbers.createOrReplaceTempView("numbers")
    few.createOrReplaceTempView("few")
    spark.read.parquet(stored).createOrReplaceTempView("stored")
    for how in ("inner", "left", "leftsemi", "leftanti"):
        yield f"broadcast {how}", keyed.join(F.broadcast(few), F.expr("k = k2"), how).select("id")
    for how in ("inner", "left", "right", "full", "leftsemi", "leftanti"):
        yield f"nested loop {how}, right", keyed.join(F.broadcast(few), F.expr("id < k2 + 50"), how).select("*")
        yield f"nested loop {how}, left", F.broadcast(keyed).join(few, F.expr("id < k2 + 50"), how).select("*")
    yield "broadcast of a shuffle", keyed.join(F.broadcast(counts), F.expr("k = k2")).select("id")
    twice = keyed.join(F.broadcast(counts.toDF("a", "b")), F.expr("k = a"))
    yield "reused broadcast", twice.join(F.broadcast(counts.toDF("c", "d")), F.expr("k = c")).select("id")
    ordered = numbers.orderBy("id").select(F.monotonically_increasing_id().alias("m"), "id")
    yield "reused sort", ordered.alias("x").join(ordered.alias("y"), F.expr("x.m = y.m")).select("x.id")
    yield "subquery", spark.sql("select id from numbers where id >= (select min(k2) from few)")
    yield "exists", spark.sql("select id from numbers where id in (select k2 from few) or id > 2")
    yield "columnar", spark.sql("select id from stored")
    yield "pruned", spark.sql("select id from stored join few on stored.k = few.k2 where few.k2 < 2")
    yield "cached join", keyed.join(F.broadcast(few), F.expr("k = k2")).select("id").cache()
    yield "broadcast of cached", keyed.join(F.broadcast(few.cache()), F.expr("k = k2")).select("id")
    yield "command", spark.sql("show tables").selectExpr("length(tableName) as id")
    yield (
        "recursion",
        spark.sql("with recursive r(id) as (select 0L union all select id + 1 from r where id < 99) select id from r"),
    )
    yield "union", numbers.union(numbers)
    yield "coalesce", numbers.repartition(4).coalesce(2)
    yield "limit", numbers.limit(7)
    yield "one partition", numbers.selectExpr("id", "row_number() over (order by id) as n")


def jobs(spark: Any) -> int:
    return int(spark.sparkContext._jsc.sc().statusStore().jobsList(None).size())


@pytest.mark.long
def test_a_layout_agrees_with_the_rdds_of_its_plan_and_runs_nothing(spark: Any, tmp_path: Path) -> None:
    driver = ClassicDriver(spark)
    unknown = set()
    with settings(spark, spark_sql_adaptive_enabled="false", spark_sql_shuffle_partitions="2"):
        try:
            for name, frame in frames(spark, tmp_path):
                before = jobs(spark)
                layout = driver.layout(frame)
                assert jobs(spark) == before, f"{name}: the layout ran a job"
                rdd = frame._jdf.queryExecution().toRdd()
                if layout.is_straight:
                    assert (layout.partitions, True) == (rdd.getNumPartitions(), is_straight(rdd)), name
                else:
                    unknown.add(name)
        finally:
            spark.catalog.clearCache()
    unmatched = {f"nested loop {how}" for how in ("left, left", "right, right", "full, left", "full, right")}
    existing = {"nested loop leftsemi, left", "nested loop leftanti, left"}
    assert unknown == {*unmatched, *existing, "pruned", "recursion", "union", "coalesce", "limit"}


@pytest.mark.parametrize("adaptive", ["false", "true"])
def test_a_plan_with_broadcasts_is_exchanged(spark: Any, adaptive: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    left = spark.range(0, ROWS, 1, 2).selectExpr("id", "id % 3 as k")
    right = spark.range(3).selectExpr("id as k2")
    with settings(spark, spark_sql_adaptive_enabled=adaptive), plain_errors():
        assert exchange(left.join(right, left.k == right.k2), key="id").count() == ROWS
        outer = left.join(F.broadcast(right.selectExpr("k2 + 200 as k2")), F.expr("id > k2"), "full")
        assert exchange(outer, key="id").count() == ROWS + 3
