"""The measured jobs and their functions, which TaskManagers import by name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import trio

from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.graph.settings import RestartSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings

RESULT: Final = "count"
"""The operator whose result is the number of records and their time."""

PIPELINES: Final = ("left", "right")


class Idle:
    """A source without records."""

    async def read(self) -> None:
        """Blocks forever."""
        await trio.sleep_forever()

    def snapshot(self, unsent: int) -> None:
        """Returns no state."""


class Once:
    """A source of a given number of records in one batch."""

    def __init__(self, count: int) -> None:
        self._left = count

    async def read(self) -> list[int]:
        """Returns all records in the first call, then blocks."""
        if not self._left:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        count, self._left = self._left, 0
        return [*range(count)]

    def snapshot(self, unsent: int) -> None:
        """Returns no state."""


class Slow:
    """A source of a hundred numbers per second."""

    def __init__(self) -> None:
        self._next = 0

    async def read(self) -> list[int]:
        """The next number."""
        await trio.sleep(0.01)
        self._next += 1
        return [self._next]

    def snapshot(self, unsent: int) -> int:
        """Returns the position."""
        return self._next - unsent

    def restore(self, states: list[int]) -> None:
        """Continues from a position."""
        self._next = max(states)


def ignore(record: Any) -> None:
    """Does nothing."""


def numbers(count: int) -> Iterator[int]:
    """The records of the chain."""
    return iter(range(count))


def add(record: int) -> int:
    """An operator with almost no work, so that the cost between operators is measured."""
    return record + 1


class Counted:
    """A sink that counts records from the first one on."""

    def __init__(self) -> None:
        self._records = 0
        self._began_s = 0.0

    def process(self, record: Any) -> None:
        """Counts a record."""
        if not self._records:
            self._began_s = time.monotonic()
        self._records += 1

    def finish(self) -> dict[str, float]:
        """Returns the number of records and their time."""
        return {"records": self._records, "seconds": time.monotonic() - self._began_s}


def wide(tasks: int) -> StreamEnvironment:
    """A job without records: half of the tasks are sources, each the only input of one sink."""
    job = StreamEnvironment(f"{tasks} tasks", parallelism=tasks // 2)
    job.source(Idle).rescale().sink(ignore)
    return job


def all_to_all(parallelism: int) -> StreamEnvironment:
    """A job whose sources send one record to each sink, and nothing more."""
    name = f"{parallelism} x {parallelism} tasks"
    job = StreamEnvironment(name, parallelism=parallelism, max_parallelism=max(parallelism, 128))
    job.source(Once, parameters={"count": parallelism}).rebalance().sink(ignore)
    return job


def two_pipelines(checkpoint_s: float) -> StreamEnvironment:
    """A job of two endless pipelined regions with two tasks and one slot each."""
    settings = StreamSettings(
        checkpoints=CheckpointSettings(interval_s=checkpoint_s),
        restart=RestartSettings(kind="fixed_delay", delay_s=0.0),
    )
    job = StreamEnvironment("two pipelines", settings=settings)
    for name in PIPELINES:
        source = job.source(Slow, name=f"{name} source").slot_sharing_group(name)
        source.rescale().sink(ignore, name=f"{name} sink")
    return job


def chain(records: int, operators: int, *, is_chained: bool, is_spread: bool) -> StreamEnvironment:
    """A source, operators with almost no work, and a counting sink.

    With `is_chained` all are one task; with `is_spread` neighbours are in different slots.
    """
    job = StreamEnvironment("chain", settings=StreamSettings(is_chaining_enabled=is_chained))
    stream = job.source(numbers, parameters={"count": records})
    groups = ("even", "odd") if is_spread else ("even", "even")
    stream.slot_sharing_group(groups[0])
    for number in range(1, operators + 1):
        stream = stream.map(add).slot_sharing_group(groups[number % 2])
    stream.sink(Counted, name=RESULT).slot_sharing_group(groups[(operators + 1) % 2])
    return job


def in_one_process(records: int, operators: int) -> float:
    """Records per second of the same functions in a loop, without netstack."""
    stream: Iterable[int] = numbers(records)
    for _ in range(operators):
        stream = map(add, stream)
    counted = Counted()
    for record in stream:
        counted.process(record)
    result = counted.finish()
    return result["records"] / result["seconds"]
