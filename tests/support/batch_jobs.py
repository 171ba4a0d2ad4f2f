"""Batch jobs that tests run in real processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import trio
from cluster_jobs import Collect, endless, same

from netstack.base.config import MIB, NetworkConfig
from netstack.exchange.keygroups import key_group
from netstack.schedule import StreamEnvironment
from netstack.schedule.graph.settings import AdaptiveSettings, RestartSettings, SpeculationSettings
from netstack.schedule.graph.stream_graph import GlobalExchangeMode, StreamSettings

NUMBERS = 4000


def numbers(context: Any, count: int = NUMBERS) -> Iterator[int]:
    yield from range(context.subtask, count, context.parallelism)


def tens(number: int) -> int:
    return number % 10


def skewed(context: Any) -> Iterator[int]:
    """Keys of the first 16 of 128 key groups come forty times, the others once."""
    for number in range(4000):
        yield from [number] * (40 if key_group(number, 128) < 16 else 1)


def skewed_sums(*, is_rounded: bool) -> StreamEnvironment:
    """Either shared out by subpartitions (as Flink 1.15 did), or cut by bytes."""
    adaptive = AdaptiveSettings(data_volume_per_task_bytes=22_000, is_rounded=is_rounded)
    settings = StreamSettings(is_batch=True, is_dynamic=True, adaptive=adaptive)
    job = StreamEnvironment("skewed", settings=settings)
    source = job.source(skewed, name="numbers").set_parallelism(1)
    source.key_by(same).process(Sums, name="sums").set_max_parallelism(128).sink(
        Collect, name="result"
    ).set_parallelism(1)
    return job


class Sums:
    """The sum of each key; waits for a file before it ends, if it is to."""

    def __init__(self, gate: str = "") -> None:
        self.sums: dict[int, int] = {}
        self.gate = gate

    async def process(self, number: int, out: Any) -> None:
        self.sums[number % 10] = self.sums.get(number % 10, 0) + number
        while self.gate and not await trio.Path(self.gate).exists():  # noqa: ASYNC110 - another process makes it
            await trio.sleep(0.01)

    def finish(self, out: Any) -> None:
        for key, total in self.sums.items():
            out.collect([key, total])


class SlowWhereFirst(Sums):
    """Like `Sums`, but in the process that was the first to run one it gets nowhere."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        mine = Path(f"{mark}.{os.getpid()}")
        mine.write_text(str(os.getpid()))
        with contextlib.suppress(FileExistsError):
            os.link(mine, mark)
        self.is_stuck = Path(mark).read_text() == str(os.getpid())

    async def process(self, number: int, out: Any) -> None:
        if self.is_stuck:
            await trio.sleep(600.0)
        await super().process(number, out)


def slow_sums(mark: str, speculation: SpeculationSettings) -> StreamEnvironment:
    """Three that sum; wherever the first of them begins is a slow place from then on."""
    settings = StreamSettings(is_batch=True, speculation=speculation)
    job = StreamEnvironment("sums", parallelism=3, settings=settings)
    summed = job.source(numbers, name="numbers").key_by(tens).process(SlowWhereFirst, name="sums", mark=mark)
    summed.sink(Collect, name="result").set_parallelism(1)
    return job


def behind_a_slow_line(count: int = 900_000) -> StreamEnvironment:
    """Three that make numbers, three that sum up a third of them each, from files that are not compressed."""
    speculation = SpeculationSettings(check_interval_s=0.5, baseline_lower_bound_s=2.0, baseline_ratio=0.5)
    network = NetworkConfig(memory_bytes=16 * MIB, shuffle_compression="none")
    settings = StreamSettings(is_batch=True, speculation=speculation, network=network)
    job = StreamEnvironment("behind a slow line", parallelism=3, settings=settings)
    numbers = job.source("batch_jobs:numbers", name="numbers", parameters={"count": count})
    summed = numbers.rebalance().process("batch_jobs:Sums", name="sums")
    summed.sink("cluster_jobs:Collect", name="result").set_parallelism(1)
    return job


def slow_line_totals(count: int = 900_000) -> list[tuple[int, int]]:
    """What its results sum up to."""
    return [(key, sum(range(key, count, 10))) for key in range(10)]


def never_sealed() -> StreamEnvironment:
    """Writes to files for ever; fails with its slot."""
    settings = StreamSettings(is_batch=True, restart=RestartSettings(kind="none"))
    job = StreamEnvironment("never sealed", settings=settings)
    job.source(endless, name="endless").key_by(tens).sink(Collect, name="result")
    return job


def keeps(dataset: str, count: int = NUMBERS) -> StreamEnvironment:
    """Leaves the numbers behind, by their last digit."""
    job = StreamEnvironment("keeps", parallelism=3, settings=StreamSettings(is_batch=True))
    kept = job.source(numbers, name="numbers", parameters={"count": count}).key_by(tens).persist(dataset)
    kept.sink(Collect, name="result").set_parallelism(2)
    return job


def reads(dataset: str, parallelism: int = 4, gate: str = "") -> StreamEnvironment:
    """Sums up what another job has left."""
    job = StreamEnvironment("reads", parallelism=parallelism, settings=StreamSettings(is_batch=True))
    summed = job.dataset(dataset).key_by(tens).process(Sums, name="sums", gate=gate)
    summed.sink(Collect, name="result").set_parallelism(1)
    return job


class Halves:
    """Numbers in two halves; the second is read when a file is there."""

    def __init__(self, gate: str) -> None:
        self.gate = trio.Path(gate)
        self.left = 2

    async def read(self) -> list[int] | None:
        if not self.left:
            return None
        while self.left == 1 and not await self.gate.exists():  # noqa: ASYNC110 - another process makes it
            await trio.sleep(0.01)
        self.left -= 1
        return [*range(40_000)]

    def snapshot(self, unsent: int) -> int:
        return self.left


class Counted:
    """How many came; makes a file when the first has come."""

    def __init__(self, seen: str) -> None:
        self.seen = Path(seen)
        self.count = 0

    def process(self, number: int) -> None:
        if not self.count:
            self.seen.touch()
        self.count += 1

    def finish(self) -> int:
        return self.count


def halves(mode: GlobalExchangeMode, gate: str, seen: str) -> StreamEnvironment:
    """Two that make numbers, two that count them."""
    job = StreamEnvironment("halves", parallelism=2, settings=StreamSettings(is_batch=True, exchange_mode=mode))
    job.source(Halves, name="numbers", parameters={"gate": gate}).rebalance().sink(Counted, name="counts", seen=seen)
    return job


def either(gate: str) -> StreamEnvironment:
    """A source that ends at once and one that waits for a file, which the reader of both makes at its first record."""
    settings = StreamSettings(is_batch=True, scheduling="next_stage_on_first_output", input_constraint="any")
    job = StreamEnvironment("either", settings=settings)
    first = job.source(numbers, name="first", parameters={"count": 10})
    second = job.source(Halves, name="second", parameters={"gate": gate})
    first.rebalance().union(second.rebalance()).sink(Counted, name="both", seen=gate)
    return job


class Parts:
    """Numbers, of which it is known beforehand how many there are."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.left = True

    @staticmethod
    def estimated_bytes(count: int) -> int:
        return 5 * count

    @staticmethod
    def splits(count: int) -> int:
        return 7

    def open(self, context: Any) -> None:
        self.numbers = [*numbers(context, self.count)]

    def read(self) -> list[int] | None:
        if not self.left:
            return None
        self.left = False
        return self.numbers

    def snapshot(self, unsent: int) -> bool:
        return self.left


def told() -> StreamEnvironment:
    """A source whose parallelism nobody sets."""
    job = StreamEnvironment("told", settings=StreamSettings(is_batch=True, is_dynamic=True))
    parts = job.source(Parts, name="parts", parameters={"count": NUMBERS})
    parts.key_by(tens).process(Sums, name="sums").sink(Collect, name="result").set_parallelism(1)
    return job


def reads_adaptively(dataset: str, volume: int) -> StreamEnvironment:
    """Like `reads`, with as many subtasks as the dataset has bytes."""
    settings = StreamSettings(
        is_batch=True, is_dynamic=True, adaptive=AdaptiveSettings(data_volume_per_task_bytes=volume)
    )
    job = StreamEnvironment("reads", settings=settings)
    job.dataset(dataset).key_by(tens).process(Sums, name="sums").sink(Collect, name="result").set_parallelism(1)
    return job


def packed(number: int) -> bytes:
    return bytes(msgpack.packb(number))


def expected() -> list[list[int]]:
    return [[key, sum(range(key, NUMBERS, 10))] for key in range(10)]


def sums(
    parallelism: int,
    gate: str = "",
    mode: GlobalExchangeMode = GlobalExchangeMode.ALL_EDGES_BLOCKING,
    scheduling: str | None = None,
    constraint: str = "any",
    network: NetworkConfig | None = None,
) -> StreamEnvironment:
    """Three stages with files between them."""
    restart = RestartSettings(kind="fixed_delay", delay_s=0.05, attempts=5)
    settings = StreamSettings(
        is_batch=True,
        restart=restart,
        exchange_mode=mode,
        scheduling=scheduling,
        input_constraint=constraint,
        network=network,
    )
    job = StreamEnvironment("sums", parallelism=parallelism, settings=settings)
    summed = job.source(numbers, name="numbers").key_by(tens).process(Sums, name="sums", gate=gate)
    summed.sink(Collect, name="result").set_parallelism(1)
    return job
