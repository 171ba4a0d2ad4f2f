"""`exchange(df, key="user")`: a DataFrame's rows through netstack's channels, inside a barrier stage.

Takes: a DataFrame, its key. Gives: a DataFrame with the same rows and schema, where each key is in one partition: that
of its key group, as Flink counts.

    from netstack.spark import ExchangeStatistics, exchange, plain_errors

    told = ExchangeStatistics(spark)
    by_user = exchange(df, key="user", buffer_timeout_s=None, statistics=told)
    with plain_errors():
        by_user.write.parquet("by-user")
    told.frame().show()

It is the instrument that shows what a shuffle's credits do, not a faster shuffle: rows go to Python and back, which
`df.repartition` spares them, and the stage needs a slot for each of its partitions at once.

Rules: nothing runs before an action, and every action runs the exchange again, as any DataFrame's plan. Behind the
barrier stage is a shuffle of Spark's that moves no row to another partition (`boundary`), so that every action and
every plan works, and Spark runs the stage again when an executor was lost. With `boundary=False` rows are never stored:
they pass from task to task while the stage runs, as much of them at a time as the network buffers hold.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any, Final

from ..config import NetworkConfig
from ..control.build import own_build
from ..errors import ConfigError
from ..keygroups import check_parallelism, default_max_parallelism
from ..runtime.authentication import Secret
from .boundary import end_stage
from .columns import PlainColumns
from .driver import Driver, driver_of
from .exchange_statistics import ExchangeStatistics
from .exchange_task import ExchangeJob, exchange_batches, tell_nobody
from .ship import ship

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
    boundary: bool = True,
    profile: Any = None,
    statistics: ExchangeStatistics | None = None,
    **network: Any,
) -> Any:
    """A DataFrame's rows, each in the partition that owns its key.

    Args:
        df: its partitions are the producers. Where they cannot be (a `union`, a `coalesce`), or nobody knows how many
            there will be (adaptive execution, Spark Connect), its rows are dealt to all slots first. On a cluster the
            package is sent to the executors; what it needs (trio, numpy, msgpack, lz4, pyarrow) has to be in their
            Python.
        key: a column, or several: of numbers, text, bytes, dates, decimals. By its name, dots and all, or in backticks
            as Spark quotes one; `spark.sql.caseSensitive` holds.
        into: the first so many partitions of the result get rows; at most as many as `df` has, which is the default.
        max_parallelism: key groups; Flink's default for `into` if not given.
        buffer_timeout_s: longest a row waits for its network buffer to fill; None waits for full ones.
        batch_bytes: about how large the Arrow batches are that travel.
        ports: first and last port a task may listen on; None is any.
        boundary: ends the stage behind the exchange. False spares the rows that shuffle; then only what runs all tasks
            works (`write`, `collect`, `count`, `foreachPartition`), and a lost executor fails the action.
        profile: a `ResourceProfile` for the stage's tasks, instead of the session's settings.
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
    driver = driver_of(spark)
    is_case_sensitive = spark.conf.get("spark.sql.caseSensitive") == "true"
    columns = PlainColumns(df.schema)
    keys = columns.keys([key] if isinstance(key, str) else key, is_case_sensitive=is_case_sensitive)
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
        build=own_build(),
    )
    job.config(2, into or 2, has_gate=True)  # refuses what cannot be before anything runs
    check_session(driver)
    frame, tasks = _straight(driver, df, into, profile)
    frame = columns.plain(frame)
    ship(spark)
    tell = tell_nobody if statistics is None else statistics.accumulator.add
    profiled = {} if profile is None else {"profile": profile}
    with driver.archives_first():
        made = frame.mapInArrow(functools.partial(exchange_batches, job, tell), frame.schema, barrier=True, **profiled)
    made = columns.restored(made)
    return end_stage(made, tasks) if boundary else made


def check_session(driver: Driver) -> None:
    """Whether a session can run barrier stages.

    Raises:
        ConfigError: it cannot.
    """
    is_local = (driver.setting("spark.master") or "").startswith("local")
    if driver.setting(_DYNAMIC) == "true" and not is_local:
        raise ConfigError(f"barrier stages do not work with {_DYNAMIC}=true: set it to false for this session")
    if driver.setting(_CHECK) is None:
        warnings.warn(
            f"{_CHECK} is not set: with too few slots a stage waits ten minutes until it fails; set it to 1s",
            stacklevel=3,
        )


def _straight(driver: Driver, df: Any, into: int | None, profile: Any) -> tuple[Any, int]:
    """The DataFrame as a barrier stage may read it, and how many partitions it then has."""
    layout, slots = driver.layout(df), driver.slots(profile)
    if layout.has_barrier:
        raise ConfigError(
            "exchange: the DataFrame comes straight from another exchange or barrier stage, and two of them in one"
            " stage would wait for each other: leave out boundary=False, or put a shuffle or a table between them"
        )
    if not layout.is_straight or layout.partitions is None:
        df, partitions = df.repartition(slots), slots
    else:
        partitions = layout.partitions
    if partitions > slots:
        raise ConfigError(
            f"exchange: the DataFrame has {partitions} partitions and the session {slots} slots, and a barrier stage"
            " runs all its tasks at once: read it in fewer (spark.sql.files.maxPartitionBytes,"
            f" spark.range(..., numPartitions={slots}), or df.repartition({slots})), or start more workers"
        )
    if into is not None and into > partitions:
        raise ConfigError(f"exchange: into={into}, and the DataFrame has {partitions} partitions: give at most as many")
    return df, partitions
