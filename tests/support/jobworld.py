"""Operators of the jobs that system tests run: importable by this name in the TaskManagers' processes too."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import trio

from netstack import CheckpointSettings, NetworkConfig, RestartSettings, StreamEnvironment, StreamSettings

KEYS = 17


def pipelines(
    *names: str,
    count: int = 6_000,
    per_s: float = 3_000.0,
    parallelism: int = 1,
    is_chained: bool = True,
    network: NetworkConfig | None = None,
) -> StreamEnvironment:
    """Independent pipelines, each in a slot sharing group of its own; `count` numbers of each subtask of a source."""
    settings = StreamSettings(
        checkpoints=CheckpointSettings(interval_s=0.1),
        restart=RestartSettings(kind="fixed_delay", delay_s=0.05),
        is_chaining_enabled=is_chained,
        network=network,
    )
    job = StreamEnvironment("pipelines", parallelism=parallelism, max_parallelism=128, settings=settings)
    for name in names:
        source = job.source("jobworld:Numbers", name=f"source-{name}", parameters={"count": count, "per_s": per_s})
        same = source.set_parallelism(1).slot_sharing_group(name).map("jobworld:same", name=f"same-{name}")
        same.set_parallelism(1).key_by("jobworld:key_of").sink("jobworld:Count", name=f"count-{name}")
    return job


def two_pipelines(count: int = 6_000, per_s: float = 3_000.0) -> StreamEnvironment:
    """As a command line names it."""
    return pipelines("a", "b", count=count, per_s=per_s)


def resumed_pipeline() -> StreamEnvironment:
    """One that is counted on two TaskManagers, whose connections go on after a cut."""
    network = NetworkConfig(memory_bytes=8 << 20, resume_grace_s=20.0)
    return pipelines("a", count=12_000, parallelism=2, network=network)


def three_pipelines() -> StreamEnvironment:
    """One more, and short."""
    return pipelines("a", "b", "c", count=1_000)


def counting(sink: str = "count") -> StreamEnvironment:
    """Two subtasks count 4,000 numbers each; its last checkpoint stays."""
    settings = StreamSettings(
        checkpoints=CheckpointSettings(interval_s=0.2),
        restart=RestartSettings(kind="fixed_delay", delay_s=0.2),
        retain="always",
    )
    job = StreamEnvironment("on spark", parallelism=2, max_parallelism=128, settings=settings)
    numbers = job.source("jobworld:Numbers", name="numbers", parameters={"count": 4000, "per_s": 1000.0})
    numbers.key_by("jobworld:key_of").sink("jobworld:Count", name=sink)
    return job


def long_records() -> list[bytes]:
    """A source of one record, longer than a network buffer."""
    return [bytes(70_000)]


class Numbers:
    """A source at a given pace: subtask i of n makes i, i + n, i + 2n, ..."""

    def __init__(self, count: int, per_s: float) -> None:
        self.count = count
        self.pause_s = 20 / per_s
        self.next = 0

    def open(self, context: Any) -> None:
        self.subtask, self.step = context.subtask, context.parallelism

    async def read(self) -> list[int] | None:
        await trio.sleep(self.pause_s)
        if self.next >= self.count:
            return None
        first, self.next = self.next, min(self.next + 20, self.count)
        return [number * self.step + self.subtask for number in range(first, self.next)]

    def snapshot(self, unsent: int) -> int:
        return self.next - unsent

    def restore(self, states: list[int]) -> None:
        (self.next,) = states


class Count:
    """Counts by key, in state that the runtime keeps; tells its process."""

    def open(self, context: Any) -> None:
        self.counts = context.keyed_state("counts", 0)
        self.sums = context.keyed_state("sums", 0)
        self.attempt = context.attempt

    def process(self, number: int, out: Any) -> None:
        self.counts[key_of(number)] += 1
        self.sums[key_of(number)] += number

    def finish(self, out: Any) -> dict[str, Any]:
        return {
            "counts": [[key, self.counts[key], self.sums[key]] for key in sorted(self.counts)],
            "attempt": self.attempt,
            "pid": os.getpid(),
        }


def key_of(number: int) -> int:
    return number % KEYS


def expected(count: int) -> list[list[int]]:
    """What sinks must have counted of the numbers below `count`."""
    return [[key, len(range(key, count, KEYS)), sum(range(key, count, KEYS))] for key in range(KEYS)]


def same(number: int) -> int:
    return number


def fail_at_once(number: int) -> int:
    raise ValueError(f"I do not like {number}")


class SlowCount(Count):
    """Takes 2 ms a record, and computes nothing meanwhile."""

    def process(self, number: int, out: Any) -> None:
        time.sleep(0.002)
        super().process(number, out)


def held_back_by_its_sink() -> StreamEnvironment:
    """A source that gives what is taken, and one slow subtask behind it."""
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=0.5, unaligned=True))
    network = NetworkConfig(memory_bytes=8 << 20, segment_size_bytes=1024)  # rates are seen within a second or two
    job = StreamEnvironment("held back", parallelism=1, settings=dataclasses.replace(settings, network=network))
    numbers = job.source("jobworld:Numbers", name="numbers", parameters={"count": 10**9, "per_s": 1e5})
    numbers.key_by("jobworld:key_of").sink("jobworld:SlowCount", name="count")
    return job
