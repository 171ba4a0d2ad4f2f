"""The operators of a simulated job, whose results show any lost, repeated or damaged record.

Takes: parameters of a job. Gives: the operators, which `job_of_scenario` combines; `oracle` knows the exact result.

A source creates records `[key, split, number, filler]`. `Numberer` numbers the records of each key; `Sink` adds these
numbers and commits them. A lost or repeated record changes the sum of its key, even if another record compensates the
count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, final

import numpy as np
import trio

from ...base.text.safe_text import type_text
from ...cluster.task.context import OperatorContext
from ...cluster.task.operators import Output
from .network import THIS_HOST
from .situations import happened

SINK: Final = "sink"
NUMBERER: Final = "numberer"

Record = list[Any]

Committed = dict[str, list[list[int]]]
"""The committed `[key, number]` of records, by token."""

MISTAKE: Final = "a mistake of the user's"
FAILED_COMMIT: Final = "a commit that fails"

_LONGEST_PAUSE_S: Final = 3.0
"""Maximum pause of a source on a slow host: longer ones would outlast the slowness."""

_FILLER: Final = bytes(number % 251 for number in range(251 + 3000))


@final
class Outside:
    """The external system, which outlives tasks.

    Attributes:
        committed: committed records of each job, by its name.
        failures: remaining failures of user code, by kind.
    """

    def __init__(self) -> None:
        self.committed: dict[str, Committed] = {}
        self.failures: Counter[str] = Counter()
        self.tokens = 0

    def fails(self, what: str, times: int) -> bool:
        """Whether to fail once more."""
        self.failures[what] += 1
        return self.failures[what] <= times


_OUTSIDE: Final[list[Outside]] = [Outside()]


def outside_world() -> Outside:
    """The external system of the running simulation."""
    return _OUTSIDE[-1]


@contextmanager
def outside() -> Iterator[Outside]:
    """A new external system for the block."""
    _OUTSIDE.append(Outside())
    try:
        yield _OUTSIDE[-1]
    finally:
        _OUTSIDE.pop()


class Source:
    """Creates the records of some splits, the same ones after every restart."""

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
        self._empty_at = -1

    def open(self, context: OperatorContext) -> None:
        """Takes its share of the splits."""
        self._next = dict.fromkeys(self._splits[context.subtask :: context.parallelism], 0)

    def restore(self, states: list[list[list[int]]]) -> None:
        """Continues at the position of the checkpoint."""
        self._next = {split: number for state in states for split, number in state}

    async def read(self) -> list[Record] | None:
        """Returns the next records of the split that is furthest behind; now and then nothing, as a poll does."""
        left = [(number, split) for split, number in self._next.items() if number < self._end]
        if not left:
            return None
        if self._due_s is None:
            pause_s = min(self._pace_s * THIS_HOST.get().slowness, max(self._pace_s, _LONGEST_PAUSE_S))
            self._due_s = trio.current_time() + pause_s
        await trio.sleep_until(self._due_s)  # cancelled when a checkpoint is due, and called again
        self._due_s = None
        first, split = min(left)
        if first % 7 == 3 and self._empty_at != first:
            self._empty_at = first
            happened("reads without records")
            return []
        self._read = split
        self._next[split] = last = min(first + self._batch, self._end)
        return [made(split, number, self._keys) for number in range(first, last)]

    def snapshot(self, unsent: int) -> list[list[int]]:
        """Returns for each split the first record that is not in the checkpoint."""
        return [[split, number - (unsent if split == self._read else 0)] for split, number in self._next.items()]


def made(split: int, number: int, keys: int) -> Record:
    """One record."""
    return [(split * 31 + number * 7) % keys, split, number, _filler(split, number)]


def _filler(split: int, number: int) -> bytes:
    size = 3000 if number % 61 == 17 else (split + number * 13) % 50
    return _FILLER[number % 251 : number % 251 + size]


def is_whole(record: Record) -> bool:
    """Whether every byte of a record is unchanged."""
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


def packed(record: Record) -> int:
    """A record as a number, which `Unpacked` turns back."""
    return int(record[1]) << 32 | int(record[2])


class Unpacked:
    """Takes arrays of numbers, also of those that a checkpoint had in flight."""

    takes_arrays = True

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def process_batch(self, numbers: Any, out: Output) -> None:
        """Some records."""
        if not isinstance(numbers, np.ndarray):
            raise TypeError(f"an operator that takes arrays got {type_text(numbers)}")
        happened("operators that take arrays")
        out.collect_batch([made(each >> 32, each & 0xFFFFFFFF, self._keys) for each in numbers.tolist()])


def tupled(record: Record) -> tuple[Any, ...]:
    """A record that the format makes a list of."""
    return tuple(record)


def head_of(record: Any) -> Any:
    """Its key: a tuple, as long as the record is one."""
    return record[:1]


def listed(record: Any) -> Record:
    """A record as the format gives it."""
    if not isinstance(record, list):
        raise TypeError(f"a record that came over the network is {type_text(record)}")
    return record


class Both:
    """The operator with two inputs. Each subtask takes its share of a broadcast input."""

    def __init__(self, is_broadcast: bool) -> None:
        self._is_broadcast = is_broadcast

    def open(self, context: OperatorContext) -> None:
        """Its part."""
        self._context = context

    def process1(self, record: Record, out: Output) -> None:
        """Handles a record of the first input."""
        out.collect(record)

    def process2(self, record: Record, out: Output) -> None:
        """Handles a record of the second input."""
        if not self._is_broadcast or part_of(record, self._context.parallelism) == self._context.subtask:
            out.collect(record)


class Part:
    """Follows a broadcast or a custom partitioner: keeps the records of its own share.

    Args:
        must: whether records of other shares are an error.
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
    """Fails at one record, a few times."""

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
    """Counts the records of each key, adds their numbers, and commits them."""

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
        """Returns all sums."""
        self._has_finished = True
        return [[key, *found] for key, found in sorted(self._sums.items())]

    def prepare_commit(self) -> dict[str, Any] | None:
        """Returns the records since the last call."""
        rows, self._rows = self._rows, []
        _OUTSIDE[-1].tokens += 1
        return {"token": str(_OUTSIDE[-1].tokens), "rows": rows} if rows else None

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """Makes committables visible."""
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
