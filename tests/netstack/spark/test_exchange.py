"""Exchanges of real DataFrames in a real session: the rows, their places, and what is left after a failure."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
from spark.workers import listening, silent

from netstack.base import build
from netstack.base.errors import ConfigError
from netstack.exchange.keygroups import key_group, operator_index
from netstack.spark import ExchangeStatistics, SparkFailed, exchange, plain_errors

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.xdist_group("spark")]  # one JVM for all of them

EVERY_TYPE = (
    "id",
    "if(id % 11 = 0, null, concat('Schlüssel-', id % 97)) as user",
    "cast(id % 5 as tinyint) as small",
    "cast(id * 1.25 as float) as ratio",
    "id % 2 = 0 as even",
    "cast(if(id % 3 = 0, null, id / 7) as decimal(20, 4)) as price",
    "cast(cast(id as string) as binary) as raw",
    "timestamp_seconds(id * 3607) as at",
    "timestamp_ntz'2026-11-22 10:00:00' + make_dt_interval(0, 0, 0, id) as naive",
    "date_add(date'2026-01-01', cast(id % 365 as int)) as day",
    "if(id % 4 = 0, null, array(id, null, id + 1)) as list",
    "map('k', id, 'l', null) as pairs",
    "named_struct('a', id, 'b', named_struct('c', cast(id as string), 'd', if(id % 2 = 0, null, id))) as nested",
    "repeat('x', cast(id % 300 as int)) as text",
)


def checksums(frame: Any, key: str) -> dict[Any, tuple[int, int]]:
    """Count and sum of hashes of the rows of each key: independent of order."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    columns = [F.to_json(F.struct(name)) if name == "pairs" else F.col(name) for name in frame.columns]
    hashed = F.sum(F.xxhash64(*columns).cast("decimal(38,0)"))
    rows = frame.groupBy(key).agg(F.count("*").alias("n"), hashed.alias("s")).collect()
    return {row[key]: (row["n"], int(row["s"])) for row in rows}


def test_every_type_arrives_whole_in_the_partition_of_its_key(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    df = spark.range(0, 6_000, 1, 2).selectExpr(*EVERY_TYPE)
    reported = ExchangeStatistics(spark)
    out = exchange(
        df,
        key="user",
        boundary=False,
        statistics=reported,
        buffer_timeout_s=None,
        exclusive_buffers_per_channel=1,
        checksum=True,
    )
    assert out.schema == df.schema
    with plain_errors():
        assert checksums(out, "user") == checksums(df.repartition(2, "user"), "user")
    channels, tasks = reported.channels(), reported.tasks()
    assert reported.build().partition(":")[0] == build.kind
    assert [(each.producer, each.consumer, each.is_local) for each in channels] == [
        (0, 0, True),
        (0, 1, False),
        (1, 0, False),
        (1, 1, True),
    ]
    assert sum(each.rows for each in channels) == sum(each.rows_out for each in tasks) == 6_000
    assert reported.frame().where("not is_local and announced_credit > 0").count() == 2
    with plain_errors():
        places = out.select("user", F.spark_partition_id().alias("p")).distinct().collect()
    assert len(places) == 98  # every key is in one
    assert all(row["p"] == operator_index(key_group(row["user"], 128), 2, 128) for row in places)
    assert reported.channels()[0].stage != channels[0].stage  # an action runs the exchange again


@pytest.mark.whole
def test_several_keys_into_one_partition_without_credit(spark: Any) -> None:
    df = spark.range(0, 3000, 1, 2).selectExpr("id % 7 as a", "cast(id % 3 as decimal(9, 2)) as b", "id")
    out = exchange(df, key=("a", "b"), into=1, credit_based=False, heartbeat_interval_s=None, buffer_timeout_s=0.0)
    with plain_errors():
        assert checksums(out, "a") == checksums(df, "a")
        assert [len(rows) for rows in out.rdd.glom().collect()] == [3000, 0]


@pytest.mark.whole
def test_what_cannot_work_is_refused_before_anything_runs(spark: Any) -> None:
    df = spark.range(0, 10, 1, 2).selectExpr("id", "array(id) as list")
    for refused, says in (
        ({"key": "user"}, "no column 'user'"),
        ({"key": "list"}, "cannot be a key"),
        ({"key": "id.x"}, r"no column 'id.x'; it has id, list; to use a field of a struct, add it as a column"),
        ({"key": df.id}, "is no name: give the names of columns"),
        ({"key": "id", "into": 0}, "into=0; the least is 1"),
        ({"key": "id", "into": 3}, "into=3, and the DataFrame has 2 partitions"),
        ({"key": "id", "credit": False}, "no setting 'credit'"),
        ({"key": "id", "max_parallelism": 0}, "max_parallelism=0; give 1"),
        ({"key": "id", "max_parallelism": 1}, "2 subpartitions cannot share 1 key groups"),
        ({"key": "id", "buffer_timeout_s": -1}, "buffer_timeout_s=-1; give 0"),
        ({"key": "id", "ports": 7100}, r"ports=7100: give the first and the last port"),
        ({"key": "id", "ports": (7110, 7100)}, "the lower one first"),
        ({"key": "id", "segment_size_bytes": 1}, "segment_size_bytes=1"),
    ):
        with pytest.raises(ConfigError, match=says):
            exchange(df, **refused)
    with pytest.raises(ConfigError, match=r"takes a DataFrame of Spark, not a builtins\.list"):
        exchange([1, 2], key="id")
    with pytest.raises(ConfigError, match="200 partitions and the session 2 slots"):
        exchange(spark.range(0, 10, 1, 200), key="id")
    with pytest.raises(ConfigError, match="straight from another exchange"):
        exchange(exchange(df, key="id", boundary=False).where("id > 1"), key="id")
    with pytest.raises(ConfigError, match="call exchange in foreachBatch"):
        exchange(spark.readStream.format("rate").load(), key="value")
    months = df.selectExpr("id", "array(make_ym_interval(0, 1)) as months")
    with pytest.raises(ConfigError, match="'months' has year-month intervals"):
        exchange(months, key="id")


@pytest.mark.whole
def test_whatever_takes_some_of_its_partitions_works_behind_the_stage(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    df = spark.range(0, 100, 1, 2)
    out = exchange(df, key="ID")
    with plain_errors():
        assert len(out.take(3)) == 3
        assert out.limit(60).count() == 60
        assert out.coalesce(1).union(out).union(df).groupBy("id").count().where("count = 3").count() == 100
        assert exchange(out, key="id").count() == 100  # one behind the other
        nothing = exchange(df.limit(0), key="id")  # no partition
        assert (nothing.first(), nothing.count(), nothing.union(out).count()) == (None, 0, 100)
        places = {row[0]: row[1] for row in out.select("id", F.spark_partition_id()).collect()}
    assert places == {key: operator_index(key_group(key, 128), 2, 128) for key in range(100)}
    with pytest.raises(SparkFailed, match=r"all its tasks or none.*boundary=False"), plain_errors():
        exchange(df, key="id", boundary=False).first()


@pytest.mark.long
def test_inputs_that_a_barrier_stage_cannot_read_are_dealt_to_all_slots(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    df = spark.range(0, 100, 1, 2)
    rdd = spark.sparkContext.parallelize(range(50), 1).map(lambda number: (number,))
    frames = {
        "union": df.where("id < 50").union(df.where("id >= 50")),
        "coalesce": spark.range(0, 100, 1, 4).coalesce(2),
        "cached union": df.union(df).distinct().unionByName(df.limit(0)).cache(),
        "rdd": spark.createDataFrame(rdd.union(rdd), "id bigint"),
        "limit": df.limit(100),
        "join": df.join(df.withColumnRenamed("id", "other"), on=[df.id < 0], how="left").select("id"),
    }
    settings = {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "5"}
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        frames["shuffled, adaptive"] = df.groupBy(F.expr("id % 100").alias("id")).count().select("id")
        with plain_errors():
            for name, frame in frames.items():
                assert exchange(frame, key="id").count() == 100, name
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        for shuffled in (df.groupBy(F.expr("id % 100").alias("id")).count(), df.repartition(5)):
            with pytest.raises(ConfigError, match=r"^exchange: .* 5 partitions"):
                exchange(shuffled, key="id")
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
        frames["cached union"].unpersist()


@pytest.mark.whole
def test_columns_that_python_cannot_be_given_as_they_are(spark: Any) -> None:
    df = spark.range(0, 100, 1, 2).selectExpr(
        "id % 7 as `a.b`",
        "id as `ti``ck`",
        "make_ym_interval(cast(id as int), 3) as span",
        "cast(if(id % 2 = 0, null, make_ym_interval(0, cast(-id as int))) as interval month) as months",
        "id as Twice",
        "-id as twice",
    )
    for out in (exchange(df, key=("`a.b`", "ti`ck")), exchange(df, key=["span", "months"])):
        assert out.schema == df.schema
        with plain_errors():
            assert out.exceptAll(df).count() == df.exceptAll(out).count() == 0


@pytest.mark.long
def test_a_failed_task_a_killed_one_and_a_cancelled_job_leave_nothing_and_say_one_sentence(spark: Any) -> None:
    context = spark.sparkContext
    fails = spark.range(0, 1000, 1, 2).selectExpr("id", "raise_error(concat('no number: ', id)) as x")
    with pytest.raises(SparkFailed, match="no number: ") as caught, plain_errors():
        exchange(fails, key="id").collect()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    endless = exchange(spark.range(0, 10**11, 1, 2), key="id", boundary=False)

    def in_the_middle(action: Any) -> threading.Thread:
        def act() -> None:
            until_s = time.monotonic() + 30
            while len(listening()) < 2 and time.monotonic() < until_s:
                time.sleep(0.1)
            time.sleep(0.5)
            try:
                action()
            except BaseException:
                context.cancelAllJobs()  # else it would never end
                raise

        thread = threading.Thread(target=act)
        thread.start()
        return thread

    for action, says in (
        (lambda: os.kill(max(listening().values()), signal.SIGKILL), "ended in the middle of the run|ConnectionLost"),
        (lambda: context.cancelAllJobs(), "cancelled"),
    ):
        assert silent()
        thread = in_the_middle(action)
        with pytest.raises(SparkFailed, match=says) as caught, plain_errors():
            endless.write.format("noop").mode("overwrite").save()
        thread.join()
        assert "\n" not in str(caught.value)
    assert silent()
    with plain_errors():
        assert exchange(spark.range(0, 100, 1, 2), key="id").count() == 100
