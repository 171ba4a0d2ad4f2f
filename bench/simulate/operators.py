"""The job of a simulation: records that can be told apart, counted twice; what is wrong with one shows in the result.

Takes: a `Scenario`. Gives: the job, the operators by name, and the only right result.

A source makes records `[key, split, number, filler]`. `Numberer` gives each record of a key its number; `Sink` adds
those numbers up. So a record that is lost or repeated anywhere changes the sum of its key, also when another one makes
up for the count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import trio

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.config import NetworkConfig
from netstack.schedule.graph.restart_settings import RestartSettings
from netstack.schedule.graph.stream_builder import DataStream, OperatorStream, StreamEnvironment
from netstack.schedule.graph.stream_graph import GlobalExchangeMode, StreamSettings
from netstack.task.context import OperatorContext
from netstack.task.operators import Output

from .checked import EFFECTS, checked_job, verdict
from .history import Event
from .network import THIS_HOST
from .scenario import BLOCKING, CHECKED, STREAMING, Scenario

SINK: Final = "sink"
NUMBERER: Final = "numberer"
SEGMENTS: Final = 1024
"""Of a job's own network."""

Record = list[Any]

_SETTLED_S: Final = 10.0
"""A slow link or disk may hold up so long who is sent off, or reads a state."""


class Source:
    """Makes the records of one split, the same ones whenever it starts again."""

    def __init__(self, records: int, keys: int, pace_s: float, batch: int, first_split: int) -> None:
        self._end = records
        self._keys = keys
        self._pace_s = pace_s
        self._batch = batch
        self._split = first_split
        self._next = 0
        self._due_s: float | None = None

    def open(self, context: OperatorContext) -> None:
        """A subtask, a split."""
        self._split += context.subtask

    def restore(self, states: list[int]) -> None:
        """Goes on where the checkpoint was."""
        (self._next,) = states

    async def read(self) -> list[Record] | None:
        """The next few."""
        if self._next == self._end:
            return None
        if self._due_s is None:
            self._due_s = trio.current_time() + self._pace_s * THIS_HOST.get().slowness
        await trio.sleep_until(self._due_s)  # cancelled when a checkpoint is due, and called again
        self._due_s = None
        first, self._next = self._next, min(self._next + self._batch, self._end)
        return [made(self._split, number, self._keys) for number in range(first, self._next)]

    def snapshot(self, unsent: int) -> int:
        """The number of the first record that is not in the checkpoint."""
        return self._next - unsent


def made(split: int, number: int, keys: int) -> Record:
    """One record."""
    key = (split * 31 + number * 7) % keys
    size = 3000 if number % 61 == 17 else (split + number * 13) % 50
    return [key, split, number, bytes((number + each) % 251 for each in range(size))]


def is_whole(record: Record) -> bool:
    """Whether every byte is as it was made."""
    _, split, number, filler = record
    size = 3000 if number % 61 == 17 else (split + number * 13) % 50
    return len(filler) == size and all(byte == (number + each) % 251 for each, byte in enumerate(filler))


def key_of(record: Record) -> int:
    """Its key."""
    return int(record[0])


def same(record: Record) -> Record:
    """The map."""
    return record


def two_thirds(record: Record) -> bool:
    """The filter."""
    return bool(record[2] % 3)


def twice(record: Record) -> Iterable[Record]:
    """The flat map."""
    return (record, record)


class Numberer:
    """Numbers the records of each key, from 1."""

    def open(self, context: OperatorContext) -> None:
        """Its numbers."""
        self._counts = context.keyed_state("counts", 0)

    def process(self, record: Record, out: Output) -> None:
        """One record."""
        key = key_of(record)
        self._counts[key] = number = self._counts[key] + 1
        out.collect([key, number, is_whole(record)])


class Sink:
    """Counts the records of each key and adds up their numbers."""

    def open(self, context: OperatorContext) -> None:
        """Its sums."""
        self._sums = context.keyed_state("sums", list)
        self._subtask = context.subtask
        self._has_finished = False

    async def process(self, record: list[Any], out: Output) -> None:
        """One record."""
        key, number, whole = record
        count, total, damaged = self._sums[key] or (0, 0, 0)
        self._sums[key] = [count + 1, total + number, damaged + (not whole)]
        slowness = THIS_HOST.get().slowness
        if slowness > 1.0:
            await trio.sleep(0.001 * slowness)

    def finish(self, out: Output) -> list[list[int]]:
        """All sums are the result."""
        self._has_finished = True
        return [[key, *found] for key, found in sorted(self._sums.items())]

    def prepare_commit(self) -> list[Any] | None:
        """The end of the job has an effect outside."""
        if not self._has_finished:
            return None
        self._has_finished = False
        return [self._subtask, f"{self._subtask} at {trio.current_time()}"]

    def commit(self, committables: list[list[Any]]) -> None:
        """This is it."""
        EFFECTS.extend((subtask, name) for subtask, name in committables)


def job(scenario: Scenario) -> StreamEnvironment:
    """The job of a scenario."""
    if scenario.movement == CHECKED:
        return checked_job(
            f"simulated-{scenario.seed}",
            sources=scenario.parallelism[0],
            sinks=scenario.parallelism[-1],
            records=scenario.records,
            pace_s=scenario.pace_s,
            batch=scenario.batch,
            checkpoints=_checkpoints(scenario),
            network=network(scenario) if scenario.own_network else None,
        )
    is_streaming = scenario.movement == STREAMING
    kept = (
        GlobalExchangeMode.ALL_EDGES_BLOCKING
        if scenario.movement == BLOCKING
        else GlobalExchangeMode.ALL_EDGES_HYBRID_FULL
    )
    settings = StreamSettings(
        is_batch=not is_streaming,
        exchange_mode=GlobalExchangeMode.ALL_EDGES_PIPELINED if is_streaming else kept,
        checkpoints=_checkpoints(scenario) if is_streaming else None,
        restart=RestartSettings(kind=scenario.restart, delay_s=0.2, max_delay_s=3.0)
        if scenario.restart == "exponential"
        else RestartSettings(kind=scenario.restart, delay_s=0.2),
        network=network(scenario) if scenario.own_network else None,
    )
    environment = StreamEnvironment(f"simulated-{scenario.seed}", max_parallelism=32, settings=settings)

    def source(name: str, first_split: int, records: int) -> OperatorStream:
        return environment.source(
            f"{__name__}:Source",
            name=name,
            parameters={
                "records": records,
                "keys": scenario.keys,
                "pace_s": scenario.pace_s,
                "batch": scenario.batch,
                "first_split": first_split,
            },
        ).set_buffer_timeout(0.02 if is_streaming else None)

    widths = iter(scenario.parallelism)
    first = next(widths)
    stream: DataStream = source("source", 0, scenario.records).set_parallelism(first)
    splits = first
    for number, stage in enumerate(scenario.stages):
        width = next(widths)
        name = f"{stage}-{number}"
        match stage:
            case "map":
                stream = stream.map(f"{__name__}:same", name=name).set_parallelism(width)
            case "filter":
                stream = stream.filter(f"{__name__}:two_thirds", name=name).set_parallelism(width)
            case "double":
                stream = stream.flat_map(f"{__name__}:twice", name=name).set_parallelism(width)
            case "rebalance":
                stream = stream.rebalance().map(f"{__name__}:same", name=name).set_parallelism(width)
            case "rescale":
                stream = stream.rescale().map(f"{__name__}:same", name=name).set_parallelism(width)
            case _:
                other = source(name, splits, scenario.records // 2).set_parallelism(width)
                splits += width
                stream = stream.union(other).map(f"{__name__}:same", name=f"{name}-both")
    numbered = stream.key_by(f"{__name__}:key_of").process(f"{__name__}:Numberer", name=NUMBERER)
    numbered.set_parallelism(next(widths))
    counted = numbered.key_by(f"{__name__}:key_of").sink(f"{__name__}:Sink", name=SINK)
    counted.set_parallelism(next(widths)).disable_chaining()
    return environment


def _checkpoints(scenario: Scenario) -> CheckpointSettings:
    return CheckpointSettings(
        interval_s=scenario.interval_s,
        timeout_s=20.0,
        unaligned=scenario.mode != "aligned",
        aligned_timeout_s=0.05 if scenario.mode == "timed" else 0.0,
    )


def problems(scenario: Scenario, results: Mapping[str, Any], history: Sequence[Event]) -> str:
    """What is wrong with the results of a job, and with the history of one that has written it; empty: nothing."""
    if scenario.movement == CHECKED:
        found = verdict(
            history,
            results,
            sources=scenario.parallelism[0],
            records=scenario.records,
            aligned=scenario.mode == "aligned",
            settled_s=_SETTLED_S,
        )
        return str(found[0]) if found else ""
    if wrong_effects := effect_problems(scenario):
        return wrong_effects
    sums: dict[int, list[int]] = {}
    for rows in results.get(SINK, {}).values():
        for key, *counted in rows:
            if key in sums:
                return f"key {key} is counted in two sinks"
            sums[key] = counted
    right = expected(scenario)
    wrong = [key for key in {**right, **sums} if right.get(key) != sums.get(key)]
    if not wrong:
        return ""
    key = wrong[0]
    return (
        f"{len(wrong)} keys are wrong: of key {key} (records, sum of numbers, damaged) are {sums.get(key)} instead of"
        f" {right.get(key)}"
    )


def effect_problems(scenario: Scenario, *, is_finished: bool = True) -> str:
    """What is wrong with what sinks have committed: of a job that has finished each has once, of another at most."""
    for subtask in range(scenario.parallelism[-1]):
        names = {name for each, name in EFFECTS if each == subtask}
        if len(names) > 1 or (is_finished and not names):
            return f"{SINK}-{subtask} has committed its end {len(names)} times: {sorted(names)}"
    return ""


def network(scenario: Scenario) -> NetworkConfig:
    """The settings of every TaskManager: small buffers, so that there are many, and records that span them."""
    return NetworkConfig(
        segment_size_bytes=scenario.segment_bytes,
        memory_bytes=SEGMENTS * scenario.segment_bytes,
        heartbeat_interval_s=2.0,
        heartbeat_timeout_s=6.0,
        debloat_target_s=0.2 if scenario.debloats else None,
        debloat_min_buffer_bytes=64,
        connect_timeout_s=5.0,
        sort_buffer_bytes=64 * 1024,
        resume_grace_s=scenario.resume_grace_s,
    )


def expected(scenario: Scenario) -> dict[int, list[int]]:
    """By key: how many records, the sum of their numbers, none damaged."""
    counts: dict[int, int] = {}
    streams = [
        made(split, number, scenario.keys)
        for split in range(scenario.parallelism[0])
        for number in range(scenario.records)
    ]
    splits = scenario.parallelism[0]
    for number, stage in enumerate(scenario.stages):
        if stage == "filter":
            streams = [each for each in streams if two_thirds(each)]
        elif stage == "double":
            streams = [each for each in streams for _ in range(2)]
        elif stage == "union":
            width = scenario.parallelism[number + 1]
            streams += [
                made(split, each, scenario.keys)
                for split in range(splits, splits + width)
                for each in range(scenario.records // 2)
            ]
            splits += width
    for each in streams:
        counts[each[0]] = counts.get(each[0], 0) + 1
    return {key: [count, count * (count + 1) // 2, 0] for key, count in counts.items()}
