"""Records in flight go through a checkpoint: user code sees after it what it would have seen without it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import trio
from task.task_functions import SlowNumbers
from task.tasks import SMALL, run_to_its_end, running
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import StateMismatch
from netstack.cluster.jobmanager.job_master.savepoints import SavepointContents
from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.checkpoint.storage import CheckpointStorage
from netstack.schedule.graph.stream_builder import DataStream

COUNT = 120
MANY = 12_000
"""Numbers of which arrays are sent from their own memory."""
FLINK = NetworkConfig.flink(segment_size_bytes=1024, memory_bytes=4 << 20)


class Order(NamedTuple):
    user: str
    number: int


class Values(SlowNumbers):
    """Its numbers as records of some kind."""

    def __init__(self, kind: str) -> None:
        is_long = kind == "long array"
        super().__init__(MANY if is_long else COUNT, pause_s=0.0001, at_once=1_000 if is_long else 10)
        self.kind = kind

    async def read(self) -> Any:
        numbers = await super().read()
        if numbers is None:
            return None
        match self.kind:
            case "array" | "long array":
                return np.array(numbers, np.int64)
            case "tuple":
                return [(f"u{number % 7}", (number, float(number)), {"n": number}) for number in numbers]
            case "named":
                return [Order(f"u{number % 7}", number) for number in numbers]
            case "int":
                return numbers
            case "text":
                return [f"{number}" for number in numbers]
            case "bytes":
                return [b"%d" % number for number in numbers]
        raise AssertionError(self.kind)


def user(order: Any) -> Any:
    return order[:1]


def user_of(order: Any) -> Any:
    return order.user


def itself(record: Any) -> Any:
    return record


def last_digit(record: Any, channels: int) -> int:
    return int(str(record)[-1]) % channels


class Keeps:
    """Keeps what it has seen; slowly, so that records are in flight."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def process(self, record: Any, out: Any) -> None:
        await trio.sleep(0.001)
        self.seen.append(record)

    def snapshot(self) -> list[Any]:
        return self.seen

    def restore(self, states: list[list[Any]]) -> None:
        self.seen = [record for state in states for record in state]

    def finish(self, out: Any) -> list[Any]:
        return self.seen


class KeepsArrays(Keeps):
    takes_arrays = True

    async def process_batch(self, array: Any, out: Any) -> None:
        assert isinstance(array, np.ndarray)
        await trio.sleep(0.001 * len(array))
        self.seen += array.tolist()


class Counts:
    """Counts by key, and in which subtask."""

    def open(self, context: Any) -> None:
        self.counts = context.keyed_state("counts", 0)
        self.subtask = context.subtask

    async def process(self, record: Any, out: Any) -> None:
        await trio.sleep(0.001)
        self.counts[tuple(record[:1]) if isinstance(record, list) else record] += 1

    def finish(self, out: Any) -> list[Any]:
        return [[key, count] for key, count in self.counts.items()]


def job_of(
    folder: Path, kind: str, format: str, edge: str, operator: Any, parallelism: int, key: Any = None
) -> StreamEnvironment:
    settings = StreamSettings(checkpoints=CheckpointSettings(unaligned=True), checkpoint_folder=str(folder))
    job = StreamEnvironment("job", parallelism=2, max_parallelism=64, settings=settings)
    stream: DataStream = job.source(Values, name="values", parameters={"kind": kind}).with_format(format)
    if edge == "key_by":
        stream = stream.key_by(key)
    elif edge == "custom":
        stream = stream.partition_custom(last_digit)
    else:
        stream = stream.rebalance()
    stream.sink(operator, name="keeps").set_parallelism(parallelism)
    return job


async def restarted(before: StreamEnvironment, after: StreamEnvironment, folder: Path, config: NetworkConfig) -> Any:
    """The results of a job that is cut with records in flight, and goes on as another one."""
    async with running(before, config=config) as run:
        await trio.sleep(0.02)
        await run.checkpoint(1, unaligned=True)
    contents = SavepointContents.of(CheckpointStorage(folder).snapshots(1))
    assert contents.in_flight
    return (await run_to_its_end(after, restore=1, config=config)).result("keeps")


NUMBERS = [1_000_000 * source + number for source in range(2) for number in range(COUNT)]
EXPECTED = {
    "array": NUMBERS,
    "long array": [1_000_000 * source + number for source in range(2) for number in range(MANY)],
    "int": NUMBERS,
    "text": [str(number) for number in NUMBERS],
    "bytes": [b"%d" % number for number in NUMBERS],
    "tuple": [[f"u{number % 7}", [number, float(number)], {"n": number}] for number in NUMBERS],
}


@pytest.mark.parametrize("config", [SMALL, FLINK], ids=["own profile", "flink's profile"])
@pytest.mark.parametrize("parallelism", [2, 1, 3])
@pytest.mark.parametrize(
    ("kind", "format", "edge", "operator"),
    [
        ("array", "int64", "rebalance", KeepsArrays),
        ("array", "int64", "key_by", KeepsArrays),
        ("array", "int64", "custom", Keeps),
        ("long array", "int64", "rebalance", KeepsArrays),
        ("long array", "int64", "key_by", KeepsArrays),
        ("long array", "int64", "custom", KeepsArrays),
        ("int", "float64", "rebalance", Keeps),
        ("text", "str", "custom", Keeps),
        ("bytes", "bytes", "rebalance", Keeps),
        ("tuple", "msgpack", "rebalance", Keeps),
    ],
)
async def test_each_record_is_seen_once_and_as_on_the_wire(
    autojump_clock: MockClock,
    tmp_path: Path,
    kind: str,
    format: str,
    edge: str,
    operator: Any,
    parallelism: int,
    config: NetworkConfig,
) -> None:
    """Arrays were read as lists, heads as records, and 4,227 of 3,000 records were counted."""
    before, after = (job_of(tmp_path, kind, format, edge, operator, each) for each in (2, parallelism))
    seen = [record for part in await restarted(before, after, tmp_path, config) for record in part]
    expected: list[Any] = EXPECTED[kind]
    if format == "float64":
        assert all(type(record) is float for record in seen)
    assert sorted(seen, key=repr) == sorted(map(float, expected) if format == "float64" else expected, key=repr)


@pytest.mark.parametrize("parallelism", [2, 1, 5])
@pytest.mark.parametrize(
    ("kind", "format", "key"), [("tuple", "msgpack", user), ("int", "float64", itself), ("int", "float64", None)]
)
async def test_a_key_has_one_owner_whatever_the_format_makes_of_the_record(
    autojump_clock: MockClock, tmp_path: Path, kind: str, format: str, key: Any, parallelism: int
) -> None:
    """Ints were sent to the owner of the int, and their state moved with that of the float."""
    before, after = (job_of(tmp_path, kind, format, "key_by", Counts, each, key) for each in (2, parallelism))
    actual = await restarted(before, after, tmp_path, SMALL)
    owners = Counter(repr(key) for part in actual for key, _ in part)
    assert set(owners.values()) == {1}
    counts = {repr(key): count for part in actual for key, count in part}
    if kind == "tuple":
        assert counts == Counter(repr((f"u{number % 7}",)) for number in NUMBERS)
    else:
        assert counts == {repr(float(number)): 1 for number in NUMBERS}


async def test_a_key_function_that_needs_what_the_format_drops_is_called_only_where_records_move(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    jobs = [job_of(tmp_path, "named", "msgpack", "key_by", Keeps, each, user_of) for each in (2, 3)]
    actual = await restarted(jobs[0], jobs[0], tmp_path, SMALL)
    assert sorted(number for part in actual for _, number in part) == NUMBERS
    with pytest.raises(StateMismatch, match=r"keeps .*chk-00000001: .*user_of fails for record 0"):
        await run_to_its_end(jobs[1], restore=1)


async def test_records_in_flight_of_another_profile_are_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    job = job_of(tmp_path, "text", "str", "rebalance", Keeps, 2)
    await restarted(job, job, tmp_path, SMALL)
    with pytest.raises(StateMismatch, match=r"written as str, .* as str with heads: keep"):
        await run_to_its_end(job, restore=1, config=FLINK)
