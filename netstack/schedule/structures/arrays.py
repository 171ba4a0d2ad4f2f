"""Arrays that grow, and lists of lists in two arrays: what the topology is made of.

Rules: a view of a growing array is invalid after an addition; take it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

IndexArray = NDArray[np.int32]
"""Numbers of subtasks, partitions, groups or regions; int32 is enough for any job."""
FlagArray = NDArray[np.bool_]

_FIRST_ROOM = 16


@final
class GrowingArray:
    """An array to which elements can be appended, in amortised constant time.

    Args:
        dtype: of its elements.
    """

    __slots__ = ("_length", "_room")

    def __init__(self, dtype: DTypeLike = np.int32) -> None:
        self._room: NDArray[Any] = np.empty(0, dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> NDArray[Any]:
        """All elements, writable; valid until the next addition."""
        return self._room[: self._length]

    def extend(self, values: ArrayLike) -> None:
        """Appends an array's elements."""
        added = np.asarray(values, self._room.dtype)
        self._grow(added.size)[:] = added

    def extend_with(self, value: float, count: int) -> None:
        """Appends one value several times."""
        self._grow(count)[:] = value

    def _grow(self, count: int) -> NDArray[Any]:
        start = self._length
        if start + count > self._room.size:
            # Usually the first addition is the only one: a job whose subtasks are all known.
            size = max(start + count, _FIRST_ROOM if start == 0 else 2 * self._room.size)
            room = np.empty(size, self._room.dtype)
            room[:start] = self._room[:start]
            self._room = room
        self._length = start + count
        return self._room[start : self._length]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Several lists of subtasks in two arrays; iterating gives one array per list.

    Attributes:
        subtasks: all lists, one after the other.
        offsets: where each list begins, and the end of the last.
    """

    subtasks: IndexArray
    offsets: IndexArray

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, number: int) -> IndexArray:
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        return self.subtasks[self.offsets[number] : self.offsets[number + 1]]

    def __iter__(self) -> Iterator[IndexArray]:
        for start, stop in pairwise(self.offsets.tolist()):
            yield self.subtasks[start:stop]

    def tolist(self) -> list[list[int]]:
        """The same in plain lists."""
        return [batch.tolist() for batch in self]


def index_array(values: ArrayLike) -> IndexArray:
    """Any numbers as an array of indices."""
    return np.asarray(values, np.int32)


NOTHING: IndexArray = index_array(())
"""No indices."""


def one_batch(subtasks: IndexArray) -> Batches:
    """One batch of all these subtasks; no batch when there are none."""
    return Batches(subtasks, index_array([0, subtasks.size] if subtasks.size else [0]))


def single_batches(subtasks: IndexArray) -> Batches:
    """A batch of its own for each subtask."""
    return Batches(subtasks, np.arange(subtasks.size + 1, dtype=np.int32))


def written_out(starts: IndexArray, stops: IndexArray) -> IndexArray:
    """The numbers of several ranges, one range after the other: [0, 3), [7, 9) gives 0 1 2 7 8."""
    if starts.size == 1:
        return np.arange(int(starts[0]), int(stops[0]), dtype=np.int32)
    lengths = stops - starts
    total = int(lengths.sum())
    if total == 0:
        return NOTHING
    ends = np.cumsum(lengths)
    # Counting from 0 through all ranges, and each range shifted to where it starts.
    numbers = np.arange(total, dtype=np.int32)
    numbers += np.repeat(starts - (ends - lengths).astype(np.int32), lengths)
    return numbers


def offsets_of(counts: IndexArray) -> IndexArray:
    """Where rows of these lengths begin, and the end of the last row."""
    offsets = np.zeros(counts.size + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets
