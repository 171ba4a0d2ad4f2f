"""Measures `netstack.spark.exchange` beside Spark's own shuffle, and proves that both give the same rows.

`measure` returns one document with the seconds of each, for each size of rows, by turns in one session. All read the
same DataFrame and write to a sink that drops the rows (`noop`); no plan is cached. For each size the rows are compared
once, by their number and the sum of their hashes for every key. The first pass is a warm-up and does not count.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from netstack.spark import ExchangeStatistics, exchange, plain_errors

from ...experiment import with_facts
from ...spec import Settings, refuse_below

LEAST_BYTES: Final = 16  # a key and a number, 8 bytes each
KINDS: Final = ("exchange", "exchange_ended", "repartition")
"""`exchange` with `boundary=False`, `exchange` with the shuffle that ends its stage, and Spark's `repartition`."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSpec(Settings):
    """The settings of a measurement; each field is a flag of the command.

    The DataFrame has fewer `rows` if they would exceed `most_bytes`. Each of the `partitions` is a task.
    """

    rows: int = 2_000_000
    most_bytes: int = 512 * 1024 * 1024
    record_sizes: tuple[int, ...] = (16, 128, 1024)
    keys: int = 10_000
    partitions: int = 2
    buffer_timeout_s: float | None = 0.1
    repeats: int = 3

    def __post_init__(self) -> None:
        refuse_below(
            ("--rows", self.rows, 1),
            ("--record-sizes", min(self.record_sizes, default=0), LEAST_BYTES),
            ("--keys", self.keys, 1),
            ("--partitions", self.partitions, 1),
            ("--repeats", self.repeats, 1),
        )

    def rows_of(self, record_bytes: int) -> int:
        """Returns the number of rows of a size."""
        return max(1, min(self.rows, self.most_bytes // record_bytes))


def measure(spark: Any, spec: ExchangeSpec, on_progress: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Measures all sizes in one session with a slot for each partition, and returns the document.

    Raises:
        SparkFailed: a job failed; the text is one sentence.
    """
    with plain_errors():
        sizes = [_measure(spark, spec, record_bytes, on_progress) for record_bytes in spec.record_sizes]
    figures = {
        "sizes": sizes,
        "delivered": all(size["delivered"] for size in sizes),
        "spark": {"master": str(spark.sparkContext.master), "version": str(spark.version)},
    }
    return with_facts(spec, figures)


def _measure(spark: Any, spec: ExchangeSpec, record_bytes: int, on_progress: Callable[[str], None]) -> dict[str, Any]:
    rows = spec.rows_of(record_bytes)
    df = _frame(spark, spec, rows, record_bytes)
    counters = ExchangeStatistics(spark)
    ours = functools.partial(exchange, df, key="key", buffer_timeout_s=spec.buffer_timeout_s, statistics=counters)
    frames = {
        "exchange": ours(boundary=False),
        "exchange_ended": ours(),
        "repartition": df.repartition(spec.partitions, "key"),
    }
    on_progress(f"proving {rows:,} rows of {record_bytes} B")
    delivered = len({frozenset(_checksums(frame).items()) for frame in frames.values()}) == 1
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(spec.repeats + 1):
        on_progress(f"{rows:,} rows of {record_bytes} B, pass {turn} of {spec.repeats}")
        for kind in KINDS if turn % 2 else KINDS[::-1]:
            began_s = time.monotonic()
            frames[kind].write.format("noop").mode("overwrite").save()
            if turn:
                seconds[kind].append(time.monotonic() - began_s)
    tasks, channels = counters.tasks(), counters.channels()
    figures: dict[str, Any] = {
        kind: {
            "seconds": statistics.median(each),
            "spread_s": [min(each), max(each)],
            "rows_per_s": rows / statistics.median(each),
            "payload_mb_per_s": rows * record_bytes / statistics.median(each) / 1e6,
        }
        for kind, each in seconds.items()
    }
    return {
        "record_bytes": record_bytes,
        "rows": rows,
        "delivered": delivered and sum(each.rows for each in channels) == rows,
        **figures,
        "ratio": figures["exchange"]["rows_per_s"] / figures["repartition"]["rows_per_s"],
        "tasks_s": max(each.seconds for each in tasks),
        "network_memory_bytes": max(each.memory_bytes for each in tasks),
        "peak_process_bytes": max(each.peak_process_bytes for each in tasks),
        "channels": [asdict(each) for each in channels],
        "slowest": counters.slowest(),
        "build": counters.build(),
    }


def _frame(spark: Any, spec: ExchangeSpec, rows: int, record_bytes: int) -> Any:
    columns = [f"pmod(xxhash64(id), {spec.keys}) as key", "id"]
    rest = record_bytes - LEAST_BYTES
    if rest:
        columns.append(f"cast(rpad(cast(id as string), {rest}, 'payload ') as binary) as payload")
    return spark.range(0, rows, 1, spec.partitions).selectExpr(*columns)


def _checksums(frame: Any) -> Mapping[int, tuple[int, int]]:
    """(rows, sum of their hashes) of each key; the order of rows does not matter."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    hashed = F.sum(F.xxhash64(*frame.columns).cast("decimal(38,0)"))
    sums = frame.groupBy("key").agg(F.count("*").alias("n"), hashed.alias("s")).collect()
    return {row["key"]: (row["n"], int(row["s"])) for row in sums}
