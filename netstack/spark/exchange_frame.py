"""`exchange(df, key="user")`: sends a DataFrame's rows through netstack's channels, inside a barrier stage.

The result has the same rows and schema. All rows of a key are in one partition, that of Flink's key group.

    from netstack.spark import ExchangeStatistics, exchange, plain_errors

    statistics = ExchangeStatistics(spark)
    by_user = exchange(df, key="user", buffer_timeout_s=None, statistics=statistics)
    with plain_errors():
        by_user.write.parquet("by-user")
    statistics.frame().show()

`exchange` is an instrument that shows the credits of a shuffle. It is slower than `df.repartition`: rows go to Python
and back, and the stage needs a slot for each of its partitions at once.

Rules: nothing runs before an action, but for the count of the slots by Spark Connect, and every action runs the
exchange again, like any DataFrame. After the barrier stage Spark shuffles the rows, each into its own partition
(`end_stage`): then every action works, and Spark repeats the stage when an executor was lost. With `boundary=False`
rows are never stored: they pass from task to task while the stage runs, as many at a time as the network buffers hold.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from collections.abc import Sequence
from typing import Any, Final, final

from ..base.config import NetworkConfig
from ..base.errors import ConfigError
from ..base.units import counted
from ..cluster.control.build import own_build
from ..exchange.keygroups import check_parallelism, default_max_parallelism
from ..exchange.outbound.flush_times import check_buffer_timeout
from ..network.connection.authentication import Secret
from .driver import Driver
from .drivers import driver_of
from .end_stage import end_stage
from .exchange_statistics import ExchangeStatistics
from .exchange_task import ExchangeJob, exchange_batches, ignore_statistics
from .ports import check_ports
from .ship import ship

_NUMBERS: Final = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double")
_MONTHS: Final = ("interval year to month", "interval year", "interval month")
_DAY_TIME: Final = ("interval day", "interval hour", "interval minute", "interval second")
_KEY_KINDS: Final = {*_NUMBERS, *_MONTHS, "string", "binary", "date", "timestamp", "timestamp_ntz", "void"}
_KEY_FAMILIES: Final = ("decimal", "varchar", "char", "time(", *_DAY_TIME)
_CALENDAR: Final = re.compile(r"(?<![\w`])interval(?=[,>]|$)")  # of make_interval: months, days and microseconds


@final
class PlainColumns:
    """The columns of one DataFrame, converted for `mapInArrow`, and back.

    `mapInArrow` looks columns up by names that may have no dots, so the columns get plain names. Spark's Arrow batches
    have no year-month intervals, so these become numbers of months.

    Args:
        schema: the schema of the DataFrame.

    Raises:
        ConfigError: a column has calendar intervals, or year-month intervals inside of another type.
    """

    def __init__(self, schema: Any) -> None:
        self._names = [str(field.name) for field in schema]
        self._kinds = [str(field.dataType.simpleString()) for field in schema]
        for name, kind in zip(self._names, self._kinds, strict=True):
            if kind not in _MONTHS and any(each in kind for each in _MONTHS):
                raise ConfigError(
                    f"exchange: column {name!r} has year-month intervals inside of {kind}, which Spark cannot pass to"
                    " Python: convert them to numbers of months"
                )
            if _CALENDAR.search(kind):
                raise ConfigError(
                    f"exchange: column {name!r} of type {kind} has calendar intervals, which Spark cannot pass to"
                    " Python: make them with make_dt_interval or make_ym_interval, or convert them to numbers"
                )

    def keys(self, keys: Sequence[str], *, is_case_sensitive: bool) -> tuple[str, ...]:
        """Returns the plain names of the key columns.

        Args:
            keys: names of columns, with or without backticks.
            is_case_sensitive: `spark.sql.caseSensitive`.

        Raises:
            ConfigError: there is no such column, there are several, or its type cannot be a key.
        """
        if not keys:
            raise ConfigError("exchange: give at least one column as the key")
        return tuple(self._key(key, is_case_sensitive) for key in keys)

    def plain(self, df: Any) -> Any:
        """Returns the DataFrame with plain names and numbers of months."""
        plain = df.toDF(*(f"c{place}" for place in range(len(self._names))))
        whole = f"cast({{0}} as {_MONTHS[0]})"
        return self._with_months(plain, f"int(extract(year from {whole}) * 12 + extract(month from {whole}))")

    def restored(self, plain: Any) -> Any:
        """Converts a DataFrame back from the form that `plain` returns."""
        return self._with_months(plain, "cast(make_ym_interval(0, {0}) as {1})").toDF(*self._names)

    def _with_months(self, plain: Any, expression: str) -> Any:
        """Replaces the year-month columns by an expression of their name and type."""
        if not set(self._kinds) & set(_MONTHS):
            return plain
        named = [(f"c{place}", kind) for place, kind in enumerate(self._kinds)]
        return plain.selectExpr(
            *(f"{expression.format(name, kind)} as {name}" if kind in _MONTHS else name for name, kind in named)
        )

    def _key(self, key: str, is_case_sensitive: bool) -> str:
        if not isinstance(key, str):
            raise ConfigError(f"exchange: key {key!r} is no name: give the names of columns")
        wanted = key[1:-1].replace("``", "`") if len(key) > 2 and key[0] == key[-1] == "`" else key
        places = [
            place
            for place, name in enumerate(self._names)
            if name == wanted or (not is_case_sensitive and name.casefold() == wanted.casefold())
        ]
        if not places:
            hint = "; to use a field of a struct, add it as a column (withColumn)" if "." in key else ""
            raise ConfigError(f"exchange: the DataFrame has no column {key!r}; it has {', '.join(self._names)}{hint}")
        if len(places) > 1:
            raise ConfigError(f"exchange: several columns are named {key!r}: rename all but one")
        kind = self._kinds[places[0]]
        if kind not in _KEY_KINDS and not kind.startswith(_KEY_FAMILIES):
            raise ConfigError(f"exchange: column {key!r} of type {kind} cannot be a key: add a column of a simple type")
        return f"c{places[0]}"


_DYNAMIC: Final = "spark.dynamicAllocation.enabled"
_CHECK: Final = "spark.scheduler.barrier.maxConcurrentTasksCheck.interval"
_SETTINGS: Final = frozenset(field.name for field in dataclasses.fields(NetworkConfig)) - {
    "memory_bytes",  # computed from the others
    "dialect",  # both ends are netstack
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
    """Repartitions a DataFrame by key through netstack's channels.

    Args:
        df: the DataFrame; each of its partitions is a producer. If its plan cannot be part of a barrier stage (`union`,
            `coalesce`) or the number of partitions is unknown (adaptive execution, Spark Connect), its rows are first
            repartitioned over all slots. On a cluster the package is shipped to the executors; its dependencies (trio,
            numpy, msgpack, lz4, pyarrow) must be installed there.
        key: names of one or several columns of numbers, text, bytes, dates, times, intervals or decimals, with or
            without backticks. A dot is part of the name. `spark.sql.caseSensitive` applies. As in Spark, 0.0 and -0.0
            are one key.
        into: the number of partitions of the result that get rows; at most the number of partitions of `df`, which is
            the default.
        max_parallelism: the number of key groups; by default Flink's for `into`.
        buffer_timeout_s: the longest time a row waits for its network buffer to fill; None waits for full buffers.
        batch_bytes: the approximate size of the Arrow batches on the channels.
        ports: first and last port a task may listen on; None is any port.
        boundary: ends the stage with a shuffle after the exchange. Without it rows are not stored; then only actions on
            all partitions work (`write`, `collect`, `count`, `foreachPartition`), and a lost executor fails the action.
        profile: a `ResourceProfile` for the stage's tasks, instead of the session's settings.
        statistics: receives the counters of every channel after each action.
        network: settings of `NetworkConfig`: `exclusive_buffers_per_channel`, `credit_based`, `segment_size_bytes`, ...

    Returns:
        A DataFrame of the same schema. Spark does not know its partitioning: work on each partition (`mapInArrow`,
        `foreachPartition`) needs no shuffle, but `groupBy` adds one.

    Raises:
        ConfigError: a setting, a key or the session is not supported.

    An action raises Spark's errors; `plain_errors` turns them into one sentence.
    """
    if not hasattr(df, "sparkSession"):
        kind = type(df)
        raise ConfigError(f"exchange takes a DataFrame of Spark, not a {kind.__module__}.{kind.__qualname__}")
    spark = df.sparkSession
    driver = driver_of(spark)
    is_case_sensitive = spark.conf.get("spark.sql.caseSensitive") == "true"
    columns = PlainColumns(df.schema)
    names = key if isinstance(key, (list, tuple)) else (key,)
    keys = columns.keys(names, is_case_sensitive=is_case_sensitive)
    unknown = sorted(set(network) - _SETTINGS)
    if unknown:
        raise ConfigError(f"exchange has no setting {unknown[0]!r}; it has {', '.join(sorted(_SETTINGS))}")
    if df.isStreaming:
        raise ConfigError("exchange: a streaming DataFrame has no barrier stages: call exchange in foreachBatch")
    if into is not None and into < 1:
        raise ConfigError(f"into={into}; the least is 1")
    _check_groups(into or 1, max_parallelism)
    check_buffer_timeout(buffer_timeout_s)
    check_ports(ports)
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
    job.config(2, into or 2, has_gate=True)  # refuses wrong settings before anything runs
    check_session(driver)
    ship(spark)
    frame, tasks = _straight(driver, df, into, profile)
    _check_groups(into or tasks or 1, max_parallelism)
    frame = columns.plain(frame)
    report = ignore_statistics if statistics is None else statistics.accumulator.add
    profiled = {} if profile is None else {"profile": profile}
    with driver.archives_first():
        batches = functools.partial(exchange_batches, job, report)
        result = columns.restored(frame.mapInArrow(batches, frame.schema, barrier=True, **profiled))
    return end_stage(result, tasks) if boundary and tasks else result


def check_session(driver: Driver) -> None:
    """Checks that a session can run barrier stages; warns about a missing property.

    Raises:
        ConfigError: the session cannot run them.
    """
    is_local = (driver.setting("spark.master") or "").startswith("local")
    if driver.setting(_DYNAMIC) == "true" and not is_local:
        raise ConfigError(f"barrier stages do not work with {_DYNAMIC}=true: set it to false for this session")
    if driver.setting(_CHECK) is None:
        warnings.warn(
            f"{_CHECK} is not set: with too few slots a stage fails after ten minutes; set it to 1s"
            " (SparkSettings.properties() has all properties)",
            stacklevel=3,
        )


def _check_groups(parts: int, max_parallelism: int | None) -> None:
    check_parallelism(parts, default_max_parallelism(parts) if max_parallelism is None else max_parallelism)


def _straight(driver: Driver, df: Any, into: int | None, profile: Any) -> tuple[Any, int]:
    """Returns the DataFrame in a form that a barrier stage can read, and the number of its partitions."""
    layout, slots = driver.layout(df), driver.slots(profile)
    if layout.has_barrier:
        raise ConfigError(
            "exchange: the DataFrame comes straight from another exchange or barrier stage, and two of them in one"
            " stage would wait for each other: leave out boundary=False there, or repartition between them"
        )
    if not layout.is_straight or layout.partitions is None:
        df, partitions = df.repartition(slots), slots
    else:
        partitions = layout.partitions
    if partitions > slots:
        raise ConfigError(
            f"exchange: the DataFrame has {partitions} partitions and the session {counted(slots, 'slot')}, and a"
            f" barrier stage runs all its tasks at once: give it fewer partitions (df.repartition({slots}),"
            f" numPartitions={slots}, spark.sql.files.maxPartitionBytes), or start more workers"
        )
    if into is not None and 0 < partitions < into:
        raise ConfigError(f"exchange: into={into}, and the DataFrame has {partitions} partitions: lower into")
    return df, partitions
