"""The operators of a job that combines features (`feature_job`), written as users write theirs.

Takes: parameters of a job, and where marks and commits outlive tasks: memory (a simulation) or a folder (real
processes). Gives: operators and key functions.

Each record has a number of its own. `Middle` checks the type and value of every record, and fails once when half of
them have come; `Sink` counts the numbers.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import trio

from ...cluster.task.context import OperatorContext
from ...cluster.task.operators import Output
from .features import KEYS, NUMBERS
from .operators import FAILED_COMMIT, outside_world

MISTAKE: Final = "half of the records have come"
"""The mark that `Middle` leaves then, and its error."""

KILLED: Final = "a process was killed"
"""The mark that is made on real processes when that has been done."""


class Order(NamedTuple):
    """A record that users write as a named tuple."""

    name: str
    number: int


def made(format: str, number: int) -> Any:
    """The record of a number, as a source emits it."""
    name = f"k{number % KEYS}"
    match format:
        case "bytes":
            return b"%08d" % number
        case "str":
            return f"{number:06d} € {name}"
        case "int64":
            return number
        case "float64":  # users write whole numbers as they come
            return number if number % 5 == 0 else float(number)
        case "msgpack":
            return [name, number]
        case "tuples":
            return (name, number)
        case "named tuples":
            return Order(name, number)
        case "maps":
            return {"name": name, "number": number}
        case _:
            import pyarrow as pa  # an extra

            return pa.RecordBatch.from_pylist([{"name": name, "number": number}])


def number_of(format: str, record: Any) -> int:
    """The number of a record that came over the network. Raises TypeError or ValueError for a damaged one."""
    match format:
        case "bytes":
            number, whole = int(record), type(record) is bytes
        case "str":
            number = int(record[:6])
            whole = record == made(format, number)
        case "int64":
            number, whole = record, type(record) is int
        case "float64":
            number, whole = int(record), type(record) is float
        case "maps":
            number = record["number"]
            whole = record == made(format, number)
        case "arrow":
            number = record.column("number")[0].as_py()
            whole = record.equals(made(format, number))
        case _:
            number = record[1]
            whole = type(record) is list and record == [*made(format, number)]
    if not whole:
        raise TypeError(f"{format}: {record!r} is not what a network makes of {made(format, number)!r}")
    return number


# Keys, as a user of each format writes them.


def key_of_bytes(record: bytes) -> bytes:
    """Its last digit."""
    return record[-1:]


def key_of_str(record: str) -> str:
    """Its last characters."""
    return record[-2:]


def key_of_int64(record: int) -> int:
    """A few keys."""
    return record % KEYS


def key_of_float64(record: float) -> float:
    """The record itself."""
    return record


def key_of_msgpack(record: list[Any]) -> Any:
    """A field."""
    return record[0]


def key_of_tuples(record: tuple[Any, ...]) -> Any:
    """A part of the tuple."""
    return record[:1]


def key_of_named_tuples(record: Order) -> str:
    """A field by name."""
    return record.name


def key_of_maps(record: dict[str, Any]) -> str:
    """A field by name."""
    return str(record["name"])


def key_of_arrow(record: Any) -> str:
    """A column of the first row."""
    return str(record.column("name")[0].as_py())


def to_subtask(record: Any, channels: int) -> int:
    """The custom partitioner."""
    return len(repr(record)) % channels


class World:
    """What outlives tasks: marks of failures, and commits."""

    def __init__(self, folder: str, job: str) -> None:
        self._folder = folder
        self._job = job

    def is_first(self, what: str) -> bool:
        """Whether this is asked for the first time."""
        if not self._folder:
            return outside_world().fails(f"{what} of {self._job}", 1)
        try:
            os.close(os.open(Path(self._folder) / what, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    async def wait_for_kill(self) -> None:
        """On real processes: waits until one has been killed. No sink commits before that, however slow the machine."""
        if self._folder:
            self.is_first(MISTAKE)
            while not (Path(self._folder) / KILLED).exists():  # noqa: ASYNC110 - another process makes it
                await trio.sleep(0.02)

    def commit(self, token: str, numbers: list[int]) -> None:
        """Makes numbers visible, once for a token."""
        if not self._folder:
            outside_world().committed.setdefault(self._job, {})[token] = [[number, 1] for number in numbers]
            return
        path = Path(self._folder) / f"commit-{token}"
        path.with_suffix(".part").write_text(json.dumps(numbers))
        path.with_suffix(".part").rename(path)

    def token(self) -> str:
        """A name for a commit, like no other."""
        if self._folder:
            return os.urandom(8).hex()
        outside_world().tokens += 1
        return str(outside_world().tokens)


def committed(folder: str) -> Counter[int]:
    """How often each number was committed by real processes."""
    paths = [path for path in Path(folder).glob("commit-*") if path.suffix != ".part"]
    return Counter(number for path in paths for number in json.loads(path.read_text()))


class Source:
    """Emits the numbers of its splits, a few at a time."""

    can_be_interrupted = True

    def __init__(self, format: str, arrays: bool, pace_s: float, first_split: int, splits: int) -> None:
        self._format = format
        self._arrays = arrays
        self._pace_s = pace_s
        self._splits = range(first_split, first_split + splits)

    def open(self, context: OperatorContext) -> None:
        """Takes its share of the splits."""
        self._left = [
            split * 1000 + number
            for split in self._splits[context.subtask :: context.parallelism]
            for number in range(NUMBERS)
        ]

    def restore(self, states: list[list[int]]) -> None:
        """Continues with what was not sent."""
        self._left = [number for state in states for number in state]

    async def read(self) -> Any:
        """The next records."""
        if not self._left:
            return None
        await trio.sleep(self._pace_s)
        numbers, self._left = self._left[:5], self._left[5:]
        self._last = numbers
        records = [made(self._format, number) for number in numbers]
        if not self._arrays or self._format not in ("bytes", "int64", "float64"):
            return records
        if self._format == "bytes":
            return np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)
        return np.array(records, self._format)

    def snapshot(self, unsent: int) -> list[int]:
        """What was not sent."""
        return [*(self._last[len(self._last) - unsent :] if unsent else ()), *self._left]


class Split:
    """Sends every second record to a side output."""

    def __init__(self) -> None:
        self._is_odd = False

    def process(self, record: Any, out: Output) -> None:
        """One record."""
        self._is_odd = not self._is_odd
        if self._is_odd:
            out.collect_to("odd", record)
        else:
            out.collect(record)


class _Middle:
    """Checks records and passes their numbers on; counts keys where the edge is keyed."""

    def __init__(self, format: str, job: str, world: str, records: int, fails: bool, shares: bool, keyed: bool) -> None:
        self._format = format
        self._world = World(world, job)
        self._half = records // 2
        self._fails = fails
        self._shares = shares
        self._keyed = keyed
        self._count = 0

    def open(self, context: OperatorContext) -> None:
        """Its subtask and its state."""
        self._context = context
        if self._keyed:
            self._seen = context.keyed_state("seen", 0)

    def snapshot(self) -> int:
        """How many came."""
        return self._count

    def restore(self, states: list[int]) -> None:
        """Continues with the count of the checkpoint."""
        self._count = sum(states)

    async def finish(self, _out: Output) -> None:
        """Waits for the failure that others make."""
        if not self._fails:
            await self._world.wait_for_kill()

    def _one(self, record: Any, out: Output) -> None:
        number = number_of(self._format, record)
        self._count += 1
        if self._count >= self._half and self._world.is_first(MISTAKE) and self._fails:
            raise RuntimeError(MISTAKE)
        if self._shares and number % self._context.parallelism != self._context.subtask:
            return
        if self._keyed:
            key = _KEYS[self._format](tuple(record) if self._format == "tuples" else record)
            self._seen[key] += 1
        out.collect(number)


class Middle(_Middle):
    """Takes records."""

    def process(self, record: Any, out: Output) -> None:
        """One record."""
        self._one(record, out)


class MiddleOfTwo(_Middle):
    """Takes the records of two inputs."""

    def process1(self, record: Any, out: Output) -> None:
        """One record of the first input."""
        self._one(record, out)

    def process2(self, record: Any, out: Output) -> None:
        """One record of the second input."""
        self._one(record, out)


class MiddleOfArrays(_Middle):
    """Takes arrays of bytes and numbers, and lists of everything else."""

    takes_arrays = True

    def process_batch(self, records: Any, out: Output) -> None:
        """Some records."""
        if self._format in ("bytes", "int64", "float64"):
            if not isinstance(records, np.ndarray):
                raise TypeError(f"an operator that takes arrays got {type(records).__name__}: {records!r:.80}")
            records = [bytes(row) for row in records] if self._format == "bytes" else records.tolist()
        for record in records:
            self._one(record, out)


class Sink:
    """Counts every number."""

    def open(self, context: OperatorContext) -> None:
        """Its counts."""
        self._counts = context.keyed_state("counts", 0)

    def process(self, number: int) -> None:
        """One number."""
        self._counts[number] += 1

    def finish(self) -> list[list[int]]:
        """All counts."""
        return [[*each] for each in sorted(self._counts.items())]


class TwoPhaseSink(Sink):
    """Counts every number, and commits it."""

    def __init__(self, job: str, world: str, fails: bool) -> None:
        self._world = World(world, job)
        self._fails = fails
        self._new: list[int] = []

    def process(self, number: int) -> None:
        """One number."""
        super().process(number)
        self._new.append(number)

    def prepare_commit(self) -> dict[str, Any] | None:
        """The numbers since the last call."""
        numbers, self._new = self._new, []
        return {"token": self._world.token(), "numbers": numbers} if numbers else None

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """Makes them visible; the first commit of a job with checkpoints fails before it is done."""
        if self._fails and self._world.is_first("a commit"):
            raise OSError(FAILED_COMMIT)
        for each in committables:
            self._world.commit(each["token"], each["numbers"])


KEY_FUNCTIONS: Final[Mapping[str, Any]] = {
    "bytes": key_of_bytes,
    "str": key_of_str,
    "int64": key_of_int64,
    "float64": key_of_float64,
    "msgpack": key_of_msgpack,
    "tuples": key_of_tuples,
    "named tuples": key_of_named_tuples,
    "maps": key_of_maps,
    "arrow": key_of_arrow,
}
_KEYS: Final[Mapping[str, Any]] = {
    **KEY_FUNCTIONS,
    "named tuples": key_of_msgpack,  # they are lists behind the network
}
