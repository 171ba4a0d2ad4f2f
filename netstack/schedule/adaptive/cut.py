"""Cuts a row of sizes into stretches for subtasks: each of a volume, or as many as are allowed.

Rules:
- A stretch grows while its bytes stay within the limit; it always takes its first element. A larger limit never gives
  more stretches, so the limit for a wanted number is found by bisection.
- The sizes of a dataset are those that its producers reported. A producer that is reset is forgotten until its next
  attempt has finished. When single sizes are no longer needed, `compact` keeps only their sums.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...base.errors import ConfigError, LocalProtocolError

ByteArray = NDArray[np.int64]


@final
class DatasetSizes:
    """The sizes of one dataset."""

    __slots__ = ("_is_compact", "_name", "_of_partition", "_sums", "partitions", "subpartitions")

    def __init__(self, name: str, partitions: int, subpartitions: int) -> None:
        self._name = name
        self.partitions = partitions
        self.subpartitions = subpartitions
        self._of_partition: dict[int, ByteArray] = {}
        self._sums = np.zeros(subpartitions, np.int64)
        self._is_compact = False

    @property
    def recorded(self) -> int:
        """Number of producers whose reports are counted; after `compact`, all of them."""
        return self.partitions if self._is_compact else len(self._of_partition)

    @property
    def is_complete(self) -> bool:
        """Whether every producer has reported."""
        return self.recorded == self.partitions

    @property
    def total_bytes(self) -> int:
        """The sum of all recorded sizes."""
        return int(self._sums.sum())

    def record(self, partition: int, bytes_written: ArrayLike) -> None:
        """Records the bytes that a finished producer wrote into each subpartition, in place of an earlier attempt's.

        Raises:
            ConfigError: there is no such partition, or it has another number of subpartitions.
        """
        sizes = np.array(bytes_written, np.int64)
        if not 0 <= partition < self.partitions or sizes.shape != (self.subpartitions,):
            raise ConfigError(
                f"dataset {self._name!r}: partition {partition} reports {sizes.size} subpartitions; it has"
                f" {self.partitions} partitions of {self.subpartitions}"
            )
        if not self._is_compact:
            self.forget(partition)
            self._of_partition[partition] = sizes
            self._sums += sizes

    def forget(self, partition: int) -> None:
        """Forgets a producer that restarts, or whose partition is lost."""
        sizes = self._of_partition.pop(partition, None)
        if sizes is not None:
            self._sums -= sizes

    def by_subpartition(self) -> ByteArray:
        """The bytes of each subpartition, summed over all partitions."""
        return self._sums.copy()

    def by_partition(self) -> ByteArray:
        """The bytes of each subpartition of each partition: (partitions, subpartitions).

        Raises:
            LocalProtocolError: a producer has not reported, or only sums are left.
        """
        if len(self._of_partition) != self.partitions:
            raise LocalProtocolError(
                f"dataset {self._name!r}: the sizes of only {len(self._of_partition)} of {self.partitions} partitions"
                " are known; call this after all producers have finished, and before `compact`"
            )
        return np.stack([self._of_partition[partition] for partition in range(self.partitions)])

    def compact(self) -> None:
        """Keeps only sums: every consumer has been initialised. Does nothing while a producer's report is missing."""
        if self.is_complete:
            self._is_compact = True
            self._of_partition.clear()


class Row(Protocol):
    """A sequence that can be cut between any two elements."""

    smallest_bytes: int
    """Size of the smallest element."""
    total_bytes: int
    """Size of all of them."""

    def __len__(self) -> int: ...

    def cut(self, limit_bytes: int) -> list[int]:
        """The first element of each stretch; only single elements may exceed the limit."""


@final
class PlainRow:
    """A row whose elements each add their own size.

    Args:
        sizes: in bytes.
        longest: most elements in a stretch.
    """

    __slots__ = ("_ends", "_longest", "smallest_bytes", "total_bytes")

    def __init__(self, sizes: Sequence[int], longest: int) -> None:
        self._ends = [0]
        for size in sizes:
            self._ends.append(self._ends[-1] + size)
        self._longest = max(longest, 1)
        self.smallest_bytes = min(sizes)
        self.total_bytes = self._ends[-1]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def cut(self, limit_bytes: int) -> list[int]:
        """Implements `Row`."""
        ends, count, longest = self._ends, len(self), self._longest
        starts = []
        start = 0
        while start < count:
            starts.append(start)
            fitting = bisect_right(ends, ends[start] + limit_bytes, start + 1, min(start + longest, count) + 1) - 1
            start = max(fitting, start + 1)
        return starts


@final
class PairedRow:
    """A row of combinations of pieces of several inputs; a piece counts once per stretch, however often it occurs.

    The elements of one column in a stretch must be all combinations of some pieces of each input: otherwise a subtask
    would read two pieces together whose combination belongs to another subtask.

    Args:
        columns: the column (subpartition) of each element, ascending; pieces of different columns are different.
        pieces: for each input, the piece in each element.
        sizes: for each input, the bytes of each piece.
        longest: most elements in a stretch.
    """

    __slots__ = ("_columns", "_elements", "_longest", "_sizes", "smallest_bytes", "total_bytes")

    def __init__(
        self, columns: Sequence[int], pieces: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]], longest: int
    ) -> None:
        self._columns = columns
        self._elements = list(zip(*pieces, strict=True))
        self._sizes = sizes
        self._longest = max(longest, 1)
        whole = [sum(of[piece] for piece, of in zip(element, sizes, strict=True)) for element in self._elements]
        self.smallest_bytes = min(whole)
        self.total_bytes = sum(whole)

    def __len__(self) -> int:
        return len(self._elements)

    def cut(self, limit_bytes: int) -> list[int]:
        """Implements `Row`."""
        starts = []
        start = 0
        while start < len(self):
            starts.append(start)
            start = self._stop(start, limit_bytes)
        return starts

    def _stop(self, start: int, limit_bytes: int) -> int:
        """The end of the longest stretch that starts at an element."""
        stop, total, column, combined = start, 0, -1, 0
        here: list[set[int]] = [set() for _ in self._sizes]
        for at in range(start, min(start + self._longest, len(self))):
            if self._columns[at] != column:
                if stop != at:
                    break  # the last column will never have all combinations
                column, combined, here = self._columns[at], 0, [set() for _ in self._sizes]
            for piece, sizes, known in zip(self._elements[at], self._sizes, here, strict=True):
                total += 0 if piece in known else sizes[piece]
                known.add(piece)
            if at > start and total > limit_bytes:
                break
            combined += 1
            if combined == prod(len(known) for known in here):
                stop = at + 1
        return stop


def cut_by_size(row: Row, volume_bytes: int, least: int, most: int) -> list[int] | None:
    """Cuts a row into stretches of a volume each; if their number is illegal, of the nearest legal limit.

    Args:
        row: at least one element.
        volume_bytes: wanted bytes per subtask.
        least: fewest stretches.
        most: most stretches.

    Returns:
        The first element of each stretch; None when no limit gives a legal number.
    """
    starts = row.cut(volume_bytes)
    if len(starts) < least:
        lowest = min(row.smallest_bytes, volume_bytes)
        limit = _largest(lowest, volume_bytes, lambda limit: len(row.cut(limit)) >= least)
        # Several limits give that number; the smallest of them gives the most even stretches.
        count = len(row.cut(limit))
        starts = row.cut(_smallest(lowest, limit, lambda limit: len(row.cut(limit)) == count))
    elif len(starts) > most:
        starts = row.cut(_smallest(volume_bytes, row.total_bytes, lambda limit: len(row.cut(limit)) <= most))
    return starts if least <= len(starts) <= most else None


def cut_by_number(elements: int, stretches: int) -> list[int] | None:
    """Cuts a row into stretches of about equally many elements; None if there are too few elements."""
    if elements < stretches:
        return None
    return [stretch * elements // stretches for stretch in range(stretches)]


def _largest(low: int, high: int, is_legal: Callable[[int], bool]) -> int:
    """The largest legal number of [low, high], if legality ends once; low - 1 if none is legal."""
    while low <= high:
        middle = (low + high) // 2
        if is_legal(middle):
            low = middle + 1
        else:
            high = middle - 1
    return high


def _smallest(low: int, high: int, is_legal: Callable[[int], bool]) -> int:
    """The smallest legal number of [low, high], if legality begins once; high + 1 if none is legal."""
    while low <= high:
        middle = (low + high) // 2
        if is_legal(middle):
            high = middle - 1
        else:
            low = middle + 1
    return low
