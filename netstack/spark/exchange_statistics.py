"""What the channels of an exchange carried, beside its rows.

Takes: rows that tasks tell as they end, through a Spark accumulator. Gives: `ExchangeStatistics`: channels and tasks of
the newest run of the exchange's stage, as objects or as a DataFrame.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

from ..inbound.statistics import GateStatistics
from ..outbound.statistics import ResultPartitionStatistics
from .driver import driver_of

_FEWEST: Final = 3
_MUCH: Final = 0.2  # part of all tasks' time

_Row = TypeVar("_Row", "ExchangeChannel", "ExchangeTask")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeChannel:
    """One channel: from the task that read rows of the DataFrame to the one that has them now.

    Attributes:
        stage: Spark's number of the stage.
        attempt: of the stage; a later one has a greater number.
        producer: partition of the DataFrame that went in.
        consumer: partition of the one that came out.
        is_local: whether both are one task.
        rows: that passed.
        batches: Arrow batches they travelled in.
        bytes: as they travelled, length prefixes included.
        buffers: network buffers they filled.
        announced_credit: buffers that the producer was allowed; 0 for a local channel.
        announcements: messages in which it was.
        backlog_announcements: in which the producer said that it had data and no credit.
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
    """One task.

    Attributes:
        stage: Spark's number of the stage.
        attempt: of the stage; a later one has a greater number.
        task: its partition.
        host: the address other tasks reached it at.
        build: `compiled`, or `python` and why.
        rows_in: rows it read of the DataFrame that went in.
        rows_out: rows it gave to the one that came out.
        seconds: from the exchange of addresses to its end.
        soft_backpressured_s: its writer waited for a network buffer, with none of the record in hand sent.
        hard_backpressured_s: likewise, in the middle of a record.
        idle_s: its reader waited for data.
        held_up_s: of these waits, those in which most of what it had sent waited for this task, by its number: it, or
            the line to it, is slower than others.
        memory_bytes: network buffers it could use.
        peak_process_bytes: the most its Python process ever had in memory, whatever for.
        bytes_sent: over TCP.
        bytes_received: likewise.
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
    """Filled by every action on the exchange's DataFrame: each runs the exchange again, and the newest run counts.

    Args:
        spark: the session.

    Raises:
        ConfigError: it is one of Spark Connect, which has no accumulators.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._told = driver_of(spark).collected_lists()

    @property
    def accumulator(self) -> Any:
        """What tasks add lists of rows to."""
        return self._told

    def channels(self) -> list[ExchangeChannel]:
        """Every channel of the newest run, by producer and consumer; empty before the first."""
        found = self._newest(ExchangeChannel)
        return sorted(found, key=lambda each: (each.producer, each.consumer))

    def tasks(self) -> list[ExchangeTask]:
        """Every task of the newest run."""
        return sorted(self._newest(ExchangeTask), key=lambda each: each.task)

    def build(self) -> str:
        """What the tasks' data path ran: `compiled`, or `python` and why, with the hosts where they differ."""
        found: dict[str, list[str]] = {}
        for each in self.tasks():
            found.setdefault(each.build, []).append(each.host)
        if len(found) < 2:
            return next(iter(found), "")
        return "; ".join(f"{words} on {', '.join(dict.fromkeys(hosts))}" for words, hosts in found.items())

    def slowest(self) -> str:
        """One sentence about a task that holds all others up, with its host; empty where there is none.

        Of two hosts either may be the slow one, so it takes three.
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
            f" {tasks[worst].host}: that host, or the line to it, is slower than the others"
        )

    def frame(self) -> Any:
        """`channels` as a DataFrame."""
        types = {"int": "bigint", "bool": "boolean"}
        schema = ", ".join(f"{field.name} {types[str(field.type)]}" for field in dataclasses.fields(ExchangeChannel))
        return self._spark.createDataFrame([dataclasses.astuple(each) for each in self.channels()], schema)

    def _newest(self, kind: type[_Row]) -> list[_Row]:
        rows = [each for each in self._told.value if isinstance(each, kind)]
        newest = max(((each.stage, each.attempt) for each in rows), default=None)
        return [each for each in rows if (each.stage, each.attempt) == newest]


def channels_of(
    gate: GateStatistics, stage: int, attempt: int, consumer: int, counts: Iterable[tuple[int, int]]
) -> list[ExchangeChannel]:
    """The channels of one task's gate, which are in the order of producers.

    Args:
        gate: its statistics.
        stage: Spark's number.
        attempt: of the stage.
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


def waits_of(partition: ResultPartitionStatistics, gate: GateStatistics | None) -> dict[str, float]:
    """The waits of one task, in seconds."""
    return {
        "soft_backpressured_s": partition.soft_backpressured.total_s,
        "hard_backpressured_s": partition.hard_backpressured.total_s,
        "idle_s": 0.0 if gate is None else gate.idle.total_s,
    }
