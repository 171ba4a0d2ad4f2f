"""`exchange(df, key="user")`: a DataFrame's rows through netstack's channels, inside a barrier stage.

Takes: a DataFrame, its key. Gives: a DataFrame with the same rows and schema, where each key is in one partition: that
of its key group, as Flink counts.

    from netstack.spark import ExchangeStatistics, exchange, plain_errors

    told = ExchangeStatistics(spark)
    by_user = exchange(df, key="user", buffer_timeout_s=None, statistics=told)
    with plain_errors():
        by_user.write.parquet("by-user")
    told.frame().show()

Rules: nothing runs before an action, and every action runs the exchange again, as any DataFrame's plan. The stage needs
a slot for each of the DataFrame's partitions at once. Rows are never stored: they pass from task to task while the
stage runs, as much of them at a time as the network buffers hold.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any, Final

from ..config import NetworkConfig
from ..errors import ConfigError
from ..keygroups import check_parallelism, default_max_parallelism
from ..runtime.authentication import Secret
from .exchange_statistics import ExchangeStatistics
from .exchange_task import ExchangeJob, exchange_batches
from .ship import imports_from_zip, ship

_NUMBERS: Final = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double")
_KEYS_MAY_BE: Final = {*_NUMBERS, "string", "binary", "date", "timestamp", "timestamp_ntz", "void"}
_DYNAMIC: Final = "spark.dynamicAllocation.enabled"
_CHECK: Final = "spark.scheduler.barrier.maxConcurrentTasksCheck.interval"
_SETTINGS: Final = frozenset(field.name for field in dataclasses.fields(NetworkConfig)) - {
    "memory_bytes",  # follows from the others
    "dialect",  # both ends are ours
}


def exchange(
    df: Any,
    *,
    key: str | Sequence[str],
    into: int | None = None,
    max_parallelism: int | None = None,
    buffer_timeout_s: float | None = 0.1,
    batch_bytes: int = 256 * 1024,
    ports: tuple[int, int] | None = None,
    statistics: ExchangeStatistics | None = None,
    **network: Any,
) -> Any:
    """A DataFrame's rows, each in the partition that owns its key.

    Args:
        df: its partitions are the producers. On a cluster the package is sent to the executors; what it needs (trio,
            numpy, msgpack, lz4, pyarrow) has to be in their Python.
        key: a column, or several: of numbers, text, bytes, dates, decimals.
        into: the first so many partitions of the result get rows; at most as many as `df` has, which is the default.
        max_parallelism: key groups; Flink's default for `into` if not given.
        buffer_timeout_s: longest a row waits for its network buffer to fill; None waits for full ones.
        batch_bytes: about how large the Arrow batches are that travel.
        ports: first and last port a task may listen on; None is any.
        statistics: told what every channel carried, when an action has run.
        network: of `NetworkConfig`: `exclusive_buffers_per_channel`, `credit_based`, `segment_size_bytes`, ...

    Returns:
        A DataFrame of the same schema. Spark does not know how it is partitioned: work on each partition
        (`mapInArrow`, `foreachPartition`) needs no shuffle, `groupBy` adds one.

    Raises:
        ConfigError: a setting, a key or a session that cannot work.

    An action raises what Spark raises; `plain_errors` makes one sentence of it.
    """
    spark = df.sparkSession
    keys = (key,) if isinstance(key, str) else tuple(key)
    _check_keys(df, keys)
    unknown = sorted(set(network) - _SETTINGS)
    if unknown:
        raise ConfigError(f"exchange has no setting {unknown[0]!r}; it has {', '.join(sorted(_SETTINGS))}")
    if into is not None:
        check_parallelism(into, max_parallelism or default_max_parallelism(into))
    if batch_bytes < 1:
        raise ConfigError(f"batch_bytes={batch_bytes}; the least is 1")
    job = ExchangeJob(
        keys=keys,
        into=into,
        max_parallelism=max_parallelism,
        buffer_timeout_s=buffer_timeout_s,
        batch_bytes=batch_bytes,
        network=network,
        token=Secret.generate().reveal(),
        ports=ports,
    )
    job.config(2, into or 2, has_gate=True)  # refuses what cannot be before anything runs
    check_session(spark)
    _check_plan(df, into)
    told = statistics or ExchangeStatistics(spark)
    ship(spark.sparkContext)
    task = functools.partial(exchange_batches, job, told.accumulator.add)
    with imports_from_zip(spark.sparkContext):
        return df.mapInArrow(task, df.schema, barrier=True)


def check_session(spark: Any) -> None:
    """Whether a session can run barrier stages.

    Raises:
        ConfigError: it cannot.
    """
    context = spark.sparkContext
    config = context.getConf()
    if config.get(_DYNAMIC, "false") == "true" and not str(context.master).startswith("local"):
        raise ConfigError(f"barrier stages do not work with {_DYNAMIC}=true: set it to false for this session")
    if config.get(_CHECK) is None:
        warnings.warn(
            f"{_CHECK} is not set: with too few slots a stage waits ten minutes until it fails; set it to 1s",
            stacklevel=3,
        )


def _check_keys(df: Any, keys: tuple[str, ...]) -> None:
    if not keys:
        raise ConfigError("exchange: give at least one column as the key")
    types = {field.name: field.dataType.simpleString() for field in df.schema}
    for key in keys:
        if key not in types:
            raise ConfigError(f"exchange: the DataFrame has no column {key!r}; it has {', '.join(types)}")
        if df.columns.count(key) > 1:
            raise ConfigError(f"exchange: two columns are called {key!r}: rename one of them")
        if types[key] not in _KEYS_MAY_BE and not types[key].startswith(("decimal", "varchar", "char")):
            raise ConfigError(
                f"exchange: column {key!r} of type {types[key]} cannot be a key; make one of its fields a column"
            )


def _check_plan(df: Any, into: int | None) -> None:
    """What can be known of the DataFrame's partitions before anything runs."""
    plan = df._jdf.queryExecution().executedPlan()
    text = plan.toString()
    if _has_barrier(plan):
        raise ConfigError(
            "exchange: the DataFrame comes straight from another exchange or barrier stage, and two of them in one"
            " stage would wait for each other: put a shuffle, df.localCheckpoint() or a table between them"
        )
    if "Exchange" in text or "AdaptiveSparkPlan" in text:
        return  # counting its partitions would run a part of it
    partitions = df._jdf.queryExecution().toRdd().getNumPartitions()
    context = df.sparkSession.sparkContext
    cores = int(context.getConf().get("spark.task.cpus", "1"))
    slots = context.defaultParallelism // cores
    if partitions > slots:
        raise ConfigError(
            f"exchange: the DataFrame has {partitions} partitions and the session {slots} slots, and a barrier stage"
            " runs all its tasks at once: read it in fewer (spark.sql.files.maxPartitionBytes,"
            f" spark.range(..., numPartitions={slots}), or df.repartition({slots})), or start more workers"
        )
    if into is not None and into > partitions:
        raise ConfigError(f"exchange: into={into}, and the DataFrame has {partitions} partitions: give at most as many")


def _has_barrier(plan: Any) -> bool:
    """Whether the last stage of a physical plan is one with a barrier."""
    name = str(plan.nodeName())
    if "Exchange" in name:
        return False
    if name in ("MapInArrow", "MapInPandas") and plan.isBarrier():
        return True
    children = plan.children()
    return any(_has_barrier(children.apply(index)) for index in range(children.size()))
