"""`ExchangeStatistics`: counters of the channels and tasks of an exchange, for the newest run of its stage.

Each task reports its counters through a Spark accumulator when it ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

from ..exchange.inbound.statistics import GateStatistics
from .drivers import driver_of

_FEWEST: Final = 3
_MUCH: Final = 0.2  # share of the time of all tasks

_Row = TypeVar("_Row", "ExchangeChannel", "ExchangeTask")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeChannel:
    """Counters of one channel.

    Attributes:
        stage: Spark's id of the stage.
        attempt: the attempt of the stage; a later one has a greater number.
        producer: the partition of the input DataFrame.
        consumer: the partition of the result.
        is_local: whether producer and consumer are the same task.
        batches: the Arrow batches that were sent.
        bytes: the bytes that were sent, with length prefixes.
        buffers: the network buffers that were sent.
        announced_credit: the credit that the consumer announced, in buffers; 0 for a local channel.
        announcements: the messages that announced credit.
        backlog_announcements: the messages in which the producer announced a backlog without credit.
    """

    stage: int
    attempt: int
    producer: int
    consumer: int
    is_local: bool
    rows: int
    batches: int
    bytes: int
    buffers: int
    announced_credit: int
    announcements: int
    backlog_announcements: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTask:
    """Counters of one task.

    Attributes:
        stage: Spark's id of the stage.
        attempt: the attempt of the stage; a later one has a greater number.
        task: the task's partition.
        host: the address at which other tasks reach it.
        build: `compiled`, or `python` and the reason.
        rows_in: the rows that it read from the input DataFrame.
        rows_out: the rows that it added to the result.
        seconds: the time from the exchange of addresses to its end.
        soft_backpressured_s: the time its writer waited for a network buffer between records.
        hard_backpressured_s: the time its writer waited for a network buffer within a record.
        idle_s: the time its reader waited for data.
        held_up_s: the writer's waits by consumer: each wait counts for the task with the longest queue, which, or the
            link to which, is slow.
        memory_bytes: the memory of its network buffers.
        peak_process_bytes: the peak memory of its Python process.
        bytes_sent: the bytes sent over TCP.
        bytes_received: the bytes received over TCP.
    """

    stage: int
    attempt: int
    task: int
    host: str
    build: str
    rows_in: int
    rows_out: int
    seconds: float
    soft_backpressured_s: float
    hard_backpressured_s: float
    idle_s: float
    held_up_s: tuple[float, ...]
    memory_bytes: int
    peak_process_bytes: int
    bytes_sent: int
    bytes_received: int


@final
class ExchangeStatistics:
    """The counters of the newest run of an exchange; every action on its DataFrame is a run.

    Args:
        spark: the session.

    Raises:
        ConfigError: the session is one of Spark Connect, which has no accumulators.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self.accumulator = driver_of(spark).collected_lists()
        """Tasks add lists of `ExchangeTask` and `ExchangeChannel` to it."""

    def channels(self) -> list[ExchangeChannel]:
        """Returns the channels of the newest run, by producer and consumer; empty before the first run."""
        return sorted(self._newest(ExchangeChannel), key=lambda each: (each.producer, each.consumer))

    def tasks(self) -> list[ExchangeTask]:
        """Returns the tasks of the newest run."""
        return sorted(self._newest(ExchangeTask), key=lambda each: each.task)

    def build(self) -> str:
        """Returns the build of the tasks: `compiled`, or `python` and the reason; with the hosts if they differ."""
        hosts_of: dict[str, list[str]] = {}
        for each in self.tasks():
            hosts_of.setdefault(each.build, []).append(each.host)
        if len(hosts_of) < 2:
            return next(iter(hosts_of), "")
        return "; ".join(f"{words} on {', '.join(dict.fromkeys(hosts))}" for words, hosts in hosts_of.items())

    def slowest(self) -> str:
        """Returns a sentence about the task that all others wait for, with its host; empty if there is none.

        It needs three tasks: of two, either may be the slow one.
        """
        tasks = self.tasks()
        if len(tasks) < _FEWEST:
            return ""
        held_s = [sum(column) for column in zip(*(each.held_up_s for each in tasks), strict=True)]
        worst = max(range(len(held_s)), key=held_s.__getitem__)
        others_s = max((each for task, each in enumerate(held_s) if task != worst), default=0.0)
        seconds = sum(each.seconds for each in tasks)
        if held_s[worst] < max(_MUCH * seconds, 2 * others_s):
            return ""
        return (
            f"the tasks waited {held_s[worst]:.1f} s of their {seconds:.1f} s to send to task {worst} on"
            f" {tasks[worst].host}: that host, or the link to it, is slower than the others"
        )

    def frame(self) -> Any:
        """Returns `channels` as a DataFrame."""
        types = {"int": "bigint", "bool": "boolean"}
        schema = ", ".join(f"{field.name} {types[str(field.type)]}" for field in dataclasses.fields(ExchangeChannel))
        return self._spark.createDataFrame([dataclasses.astuple(each) for each in self.channels()], schema)

    def _newest(self, kind: type[_Row]) -> list[_Row]:
        rows = [each for each in self.accumulator.value if isinstance(each, kind)]
        newest = max(((each.stage, each.attempt) for each in rows), default=None)
        return [each for each in rows if (each.stage, each.attempt) == newest]


def channels_of(
    gate: GateStatistics, stage: int, attempt: int, consumer: int, counts: Iterable[tuple[int, int]]
) -> list[ExchangeChannel]:
    """Returns the channels of a task's input gate, in the order of producers.

    Args:
        gate: the statistics of the gate.
        stage: Spark's id of the stage.
        attempt: the attempt of the stage.
        consumer: the task.
        counts: (rows, batches) of each channel.
    """
    return [
        ExchangeChannel(
            stage=stage,
            attempt=attempt,
            producer=channel.channel_index,
            consumer=consumer,
            is_local=channel.is_local,
            rows=rows,
            batches=batches,
            bytes=channel.bytes,
            buffers=channel.buffers,
            announced_credit=channel.announced_credit,
            announcements=channel.announcements,
            backlog_announcements=channel.backlog_announcements,
        )
        for channel, (rows, batches) in zip(gate.channels, counts, strict=True)
    ]
