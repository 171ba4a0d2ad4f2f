"""The job of a simulation: records that can be told apart, counted twice; what is wrong with one shows in the result.

Takes: a `Scenario`. Gives: the job, and the operators by name; `oracle` knows the only right result.

A source makes records `[key, split, number, filler]`. `Numberer` gives each record of a key its number; `Sink` adds
those numbers up, and commits them. So a record that is lost or repeated anywhere changes the sum of its key, also when
another one makes up for the count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, final

import trio

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.config import NetworkConfig
from netstack.schedule.graph.adaptive_settings import AdaptiveSettings
from netstack.schedule.graph.restart_settings import RestartSettings
from netstack.schedule.graph.speculation_settings import SpeculationSettings
from netstack.schedule.graph.stream_builder import DataStream, OperatorStream, StreamEnvironment
from netstack.schedule.graph.stream_graph import GlobalExchangeMode, StreamSettings
from netstack.task.context import OperatorContext
from netstack.task.operators import Output

from .checked import checked_job
from .network import THIS_HOST
from .scenario import ADAPTIVE, BLOCKING, CHECKED, HYBRID, SELECTIVE, STREAMING, TWO_SOURCES, Scenario
from .situations import happened

SINK: Final = "sink"
NUMBERER: Final = "numberer"
SEGMENTS: Final = 1024
"""Of a job's own network."""

Record = list[Any]

Committed = dict[str, list[list[int]]]
"""What a sink has made visible: `[key, number]` of records, by a token."""

MISTAKE: Final = "a mistake of the user's"
FAILED_COMMIT: Final = "a commit that fails"

_MODES: Final = {
    STREAMING: GlobalExchangeMode.ALL_EDGES_PIPELINED,
    BLOCKING: GlobalExchangeMode.ALL_EDGES_BLOCKING,
    ADAPTIVE: GlobalExchangeMode.ALL_EDGES_BLOCKING,
    HYBRID: GlobalExchangeMode.ALL_EDGES_HYBRID_FULL,
    SELECTIVE: GlobalExchangeMode.ALL_EDGES_HYBRID_SELECTIVE,
}
_FILLER: Final = bytes(number % 251 for number in range(251 + 3000))


@final
class Outside:
    """What there is outside of jobs, and outlives their tasks.

    Attributes:
        committed: of each job, by its name.
        failures: of users' code, by what failed.
        tokens: that were given out.
    """

    def __init__(self) -> None:
        self.committed: dict[str, Committed] = {}
        self.failures: Counter[str] = Counter()
        self.tokens = 0

    def fails(self, what: str, times: int) -> bool:
        """Whether it is to fail once more."""
        self.failures[what] += 1
        return self.failures[what] <= times


_OUTSIDE: Final[list[Outside]] = [Outside()]


@contextmanager
def outside() -> Iterator[Outside]:
    """A world of its own for the block."""
    _OUTSIDE.append(Outside())
    try:
        yield _OUTSIDE[-1]
    finally:
        _OUTSIDE.pop()


class Source:
    """Makes the records of some splits, the same ones whenever it starts again."""

    can_be_interrupted = True

    def __init__(self, records: int, keys: int, pace_s: float, batch: int, first_split: int, splits: int) -> None:
        self._end = records
        self._keys = keys
        self._pace_s = pace_s
        self._batch = batch
        self._splits = range(first_split, first_split + splits)
        self._next: dict[int, int] = {}
        self._read: int | None = None
        self._due_s: float | None = None

    def open(self, context: OperatorContext) -> None:
        """Its part of the splits."""
        self._next = dict.fromkeys(self._splits[context.subtask :: context.parallelism], 0)

    def restore(self, states: list[list[list[int]]]) -> None:
        """Goes on where the checkpoint was."""
        self._next = {split: number for state in states for split, number in state}

    async def read(self) -> list[Record] | None:
        """The next few of the split that is behind."""
        left = [(number, split) for split, number in self._next.items() if number < self._end]
        if not left:
            return None
        if self._due_s is None:
            self._due_s = trio.current_time() + self._pace_s * THIS_HOST.get().slowness
        await trio.sleep_until(self._due_s)  # cancelled when a checkpoint is due, and called again
        self._due_s = None
        first, split = min(left)
        self._read = split
        self._next[split] = last = min(first + self._batch, self._end)
        return [made(split, number, self._keys) for number in range(first, last)]

    def snapshot(self, unsent: int) -> list[list[int]]:
        """Of each split the number of the first record that is not in the checkpoint."""
        return [[split, number - (unsent if split == self._read else 0)] for split, number in self._next.items()]


def made(split: int, number: int, keys: int) -> Record:
    """One record."""
    return [(split * 31 + number * 7) % keys, split, number, _filler(split, number)]


def _filler(split: int, number: int) -> bytes:
    size = 3000 if number % 61 == 17 else (split + number * 13) % 50
    return _FILLER[number % 251 : number % 251 + size]


def is_whole(record: Record) -> bool:
    """Whether every byte is as it was made."""
    return bool(record[3] == _filler(record[1], record[2]))


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


class Both:
    """The operator with two inputs. Of one that is broadcast each subtask takes its part."""

    def __init__(self, is_broadcast: bool) -> None:
        self._is_broadcast = is_broadcast

    def open(self, context: OperatorContext) -> None:
        """Its part."""
        self._context = context

    def process1(self, record: Record, out: Output) -> None:
        """A record of the first."""
        out.collect(record)

    def process2(self, record: Record, out: Output) -> None:
        """A record of the second."""
        if not self._is_broadcast or part_of(record, self._context.parallelism) == self._context.subtask:
            out.collect(record)


class Part:
    """Behind a broadcast, or a partitioner of the user's: every record is in one subtask's part.

    Args:
        must: whether no other records may come.
    """

    def __init__(self, must: bool) -> None:
        self._must = must

    def open(self, context: OperatorContext) -> None:
        """Its part."""
        self._context = context

    def process(self, record: Record, out: Output) -> None:
        """One record."""
        if part_of(record, self._context.parallelism) == self._context.subtask:
            out.collect(record)
        elif self._must:
            raise AssertionError(f"record {record[:3]} came to subtask {self._context.subtask}")


def part_of(record: Record, channels: int) -> int:
    """The partitioner."""
    return int(record[1] * 5 + record[2]) % channels


def halves(record: Record, out: Output) -> None:
    """Two outputs."""
    if record[2] % 2:
        out.collect_to("odd", record)
    else:
        out.collect(record)


class Mistake:
    """Fails at a record, a few times."""

    def __init__(self, what: str, number: int, times: int) -> None:
        self._what = what
        self._number = number
        self._times = times

    def process(self, record: Record, out: Output) -> None:
        """One record."""
        if record[2] == self._number and _OUTSIDE[-1].fails(self._what, self._times):
            happened("mistakes of users")
            raise ValueError(MISTAKE)
        out.collect(record)


class Numberer:
    """Numbers the records of each key, from 1."""

    def __init__(self, is_adaptive: bool) -> None:
        self._is_adaptive = is_adaptive

    def open(self, context: OperatorContext) -> None:
        """Its numbers."""
        self._counts = context.keyed_state("counts", 0)
        if self._is_adaptive and context.parallelism > 1:
            happened("parallelism above 1 that was decided when the input was there")

    def process(self, record: Record, out: Output) -> None:
        """One record."""
        key = key_of(record)
        self._counts[key] = number = self._counts[key] + 1
        out.collect([key, number, is_whole(record)])


class Sink:
    """Counts the records of each key, adds up their numbers, and commits them."""

    def __init__(self, job: str, bad_commits: int) -> None:
        self._job = job
        self._bad_commits = bad_commits
        self._rows: list[list[int]] = []
        self._has_finished = False

    def open(self, context: OperatorContext) -> None:
        """Its sums."""
        self._sums = context.keyed_state("sums", list)

    async def process(self, record: list[Any], out: Output) -> None:
        """One record."""
        key, number, whole = record
        count, total, damaged = self._sums[key] or (0, 0, 0)
        self._sums[key] = [count + 1, total + number, damaged + (not whole)]
        self._rows.append([key, number])
        slowness = THIS_HOST.get().slowness
        if slowness > 1.0:
            await trio.sleep(0.001 * slowness)

    def finish(self, out: Output) -> list[list[int]]:
        """All sums are the result."""
        self._has_finished = True
        return [[key, *found] for key, found in sorted(self._sums.items())]

    def prepare_commit(self) -> dict[str, Any] | None:
        """What has come since the last time."""
        rows, self._rows = self._rows, []
        _OUTSIDE[-1].tokens += 1
        return {"token": str(_OUTSIDE[-1].tokens), "rows": rows} if rows else None

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """It is visible outside."""
        if _OUTSIDE[-1].fails(f"commit of {self._job}", self._bad_commits):
            happened("commits that fail")
            raise OSError(FAILED_COMMIT)
        committed = _OUTSIDE[-1].committed.setdefault(self._job, {})
        for each in committables:
            if each["token"] in committed:
                happened("commits that were made before")
            committed[each["token"]] = each["rows"]
        if self._has_finished:
            happened("commits behind the end of the input")


def job(scenario: Scenario, name: str, widths: tuple[int, ...]) -> StreamEnvironment:
    """The job of a scenario.

    Args:
        scenario: see there.
        name: of the job.
        widths: its parallelism, in place of `scenario.parallelism`; the splits of sources stay.
    """
    if scenario.movement == CHECKED:
        return checked_job(
            name,
            sources=scenario.parallelism[0],
            sinks=scenario.parallelism[-1],
            records=scenario.records,
            pace_s=scenario.pace_s,
            batch=scenario.batch,
            checkpoints=_checkpoints(scenario),
            network=network(scenario) if scenario.own_network else None,
        )
    return _Writer(scenario, name, widths).written()


@final
class _Writer:
    """Writes the job of a scenario down."""

    def __init__(self, scenario: Scenario, name: str, widths: tuple[int, ...]) -> None:
        is_streaming = scenario.movement == STREAMING
        self._scenario = scenario
        self._widths = widths
        self._splits = 0
        self._is_adaptive = scenario.movement == ADAPTIVE
        settings = StreamSettings(
            is_batch=not is_streaming,
            is_dynamic=self._is_adaptive,
            adaptive=AdaptiveSettings(max_parallelism=4, data_volume_per_task_bytes=2000)
            if self._is_adaptive
            else None,
            speculation=_SPECULATION if scenario.speculates else None,
            exchange_mode=_MODES[scenario.movement],
            checkpoints=_checkpoints(scenario) if is_streaming else None,
            restart=RestartSettings(kind=scenario.restart, delay_s=0.2, max_delay_s=3.0)
            if scenario.restart == "exponential"
            else RestartSettings(kind=scenario.restart, delay_s=0.2),
            network=network(scenario) if scenario.own_network else None,
        )
        self._environment = StreamEnvironment(name, max_parallelism=32, settings=settings)

    def written(self) -> StreamEnvironment:
        scenario = self._scenario
        stream: DataStream = self._source("source", 0, scenario.records)
        for number, stage in enumerate(scenario.stages):
            stream = self._staged(stream, f"{stage}-{number}", stage, number + 1)
        numbered = stream.key_by(f"{__name__}:key_of").process(
            f"{__name__}:Numberer", name=NUMBERER, is_adaptive=self._is_adaptive
        )
        counted = (
            self._wide(numbered, -2)
            .key_by(f"{__name__}:key_of")
            .sink(f"{__name__}:Sink", name=SINK, job=self._environment.name, bad_commits=scenario.bad_commits)
        )
        counted.set_parallelism(self._widths[-1]).disable_chaining()
        return self._environment

    def _source(self, name: str, place: int, records: int) -> OperatorStream:
        scenario = self._scenario
        splits = scenario.parallelism[place]
        made = self._environment.source(
            f"{__name__}:Source",
            name=name,
            parameters={
                "records": records,
                "keys": scenario.keys,
                "pace_s": scenario.pace_s,
                "batch": scenario.batch,
                "first_split": self._splits,
                "splits": splits,
            },
        )
        self._splits += splits
        timeout_s = 0.02 if scenario.movement == STREAMING else None
        return made.set_buffer_timeout(timeout_s).set_parallelism(self._widths[place])

    def _staged(self, stream: DataStream, name: str, stage: str, place: int) -> DataStream:
        other = self._source(f"{name}-other", place, self._scenario.records // 2) if stage in TWO_SOURCES else stream
        match stage:
            case "filter":
                made = stream.filter(f"{__name__}:two_thirds", name=name)
            case "double":
                made = stream.flat_map(f"{__name__}:twice", name=name)
            case "rebalance":
                made = stream.rebalance().map(f"{__name__}:same", name=name)
            case "rescale":
                made = stream.rescale().map(f"{__name__}:same", name=name)
            case "union":
                made = stream.union(other).map(f"{__name__}:same", name=name)
            case "connect":
                is_broadcast = self._scenario.keys > 1
                second = other.broadcast() if is_broadcast else other.rebalance()
                made = stream.rebalance().connect(second, f"{__name__}:Both", name=name, is_broadcast=is_broadcast)
            case "broadcast":
                made = stream.broadcast().process(f"{__name__}:Part", name=name, must=False)
            case "custom":
                parted = stream.partition_custom(f"{__name__}:part_of")
                made = parted.process(f"{__name__}:Part", name=name, must=True)
            case "side":
                split = self._wide(stream.process(f"{__name__}:halves", name=name), place)
                both = split.union(split.side_output("odd"))
                made = both.map(f"{__name__}:same", name=f"{name}-both")
            case "mistake":
                number = self._scenario.records // 3
                made = stream.process(
                    f"{__name__}:Mistake", name=name, number=number, times=2, what=f"{name} of {self._environment.name}"
                )
            case _:
                made = stream.map(f"{__name__}:same", name=name)
        return self._wide(made, place)

    def _wide(self, stream: OperatorStream, place: int) -> OperatorStream:
        """As wide as the scenario says; the custom partitioner's parts are those of a parallelism that is known."""
        is_open = self._is_adaptive and "custom" not in self._scenario.stages
        return stream if is_open else stream.set_parallelism(self._widths[place])


_SPECULATION: Final = SpeculationSettings(
    baseline_lower_bound_s=1.0,
    check_interval_s=0.25,
    baseline_ratio=0.3,
    baseline_multiplier=1.1,
    block_slow_node_duration_s=3.0,
)


def _checkpoints(scenario: Scenario) -> CheckpointSettings:
    return CheckpointSettings(
        interval_s=scenario.interval_s,
        timeout_s=20.0,
        unaligned=scenario.mode != "aligned",
        aligned_timeout_s=0.05 if scenario.mode == "timed" else 0.0,
    )


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
