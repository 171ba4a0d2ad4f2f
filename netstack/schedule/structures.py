"""Data structures without any job in them: growing arrays, lists of lists in two arrays, disjoint sets, components.

Rules: a view of a growing array is invalid after an addition; take it again. The label of a component is its smallest
node; sets come in the order of their smallest members. Nothing is recursive. Tarjan's algorithm runs uncut, about half
a microsecond a node: it runs when a scheduler is made, and only on edges that may lie on a cycle.
"""

from __future__ import annotations

from collections import Counter
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
    """An array to which elements can be appended, in amortised constant time."""

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

_FEW = 32
"""Up to so many values Python's sets and dicts take a tenth of the time of `np.unique`."""


def distinct(values: IndexArray) -> IndexArray:
    """The distinct values, ascending."""
    return index_array(sorted(set(values.tolist()))) if values.size <= _FEW else np.unique(values)


def tally(values: NDArray[Any]) -> list[tuple[int, int]]:
    """Each distinct value with its number of occurrences, ascending."""
    if values.size <= _FEW:
        return sorted(Counter(values.tolist()).items())
    found, counts = np.unique(values, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


def one_batch(subtasks: IndexArray) -> Batches:
    """One batch of all these subtasks; no batch when there are none."""
    return Batches(subtasks, index_array([0, subtasks.size] if subtasks.size else [0]))


def single_batches(subtasks: IndexArray) -> Batches:
    """A batch of its own for each subtask."""
    return Batches(subtasks, np.arange(subtasks.size + 1, dtype=np.int32))


def expand_ranges(starts: IndexArray, stops: IndexArray) -> IndexArray:
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


@final
class UnionFind:
    """Disjoint sets of the numbers 0 to n - 1; at first each is alone."""

    __slots__ = ("_parents",)

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def find(self, item: int) -> int:
        """The smallest member of an item's set."""
        parents = self._parents
        while parents[item] != item:
            parents[item] = parents[parents[item]]
            item = parents[item]
        return item

    def join(self, one: int, other: int) -> None:
        """Merges two sets."""
        first, second = self.find(one), self.find(other)
        self._parents[max(first, second)] = min(first, second)

    def sets(self) -> list[list[int]]:
        """All sets, ordered by their smallest members; each ascends."""
        members: dict[int, list[int]] = {}
        for item in range(len(self._parents)):
            members.setdefault(self.find(item), []).append(item)
        return list(members.values())


_TRIM_ROUNDS = 32  # enough for a graph with few cycles; Tarjan handles the rest


def connected_components(nodes: int, one: IndexArray, other: IndexArray) -> IndexArray:
    """The component label of each node of an undirected graph, whose edges join `one` and `other`."""
    label = np.arange(nodes, dtype=np.int32)
    while True:
        at_one, at_other = label[one], label[other]
        differ = np.flatnonzero(at_one != at_other)
        if not differ.size:
            return label
        one, other = one[differ], other[differ]
        high, low = np.maximum(at_one, at_other)[differ], np.minimum(at_one, at_other)[differ]
        np.minimum.at(label, high, low)
        while True:
            jumped = label[label]
            if np.array_equal(jumped, label):
                break
            label = jumped


def strongly_connected_components(nodes: int, source: IndexArray, target: IndexArray) -> IndexArray:
    """The component label of each node of a directed graph with edges from `source` to `target` (Tarjan 1972)."""
    label = np.arange(nodes, dtype=np.int32)
    own = source != target
    source, target = _without_loose_ends(nodes, source[own], target[own])
    if not source.size:
        return label
    kept, ends = np.unique(np.concatenate([source, target]), return_inverse=True)
    order = np.argsort(ends[: source.size], kind="stable")
    offsets = offsets_of(index_array(np.bincount(ends[: source.size], minlength=kept.size)))
    component = _tarjan(offsets.tolist(), ends[source.size :][order].tolist())
    least = np.full(kept.size, nodes, np.int32)
    np.minimum.at(least, component, kept)
    label[kept] = least[component]
    return label


def _without_loose_ends(nodes: int, source: IndexArray, target: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Drops edges that cannot lie on a cycle: removes nodes without incoming or without outgoing edges, in rounds."""
    for _ in range(_TRIM_ROUNDS):
        through = np.zeros(nodes, bool)
        through[source] = True
        into = np.zeros(nodes, bool)
        into[target] = True
        through &= into
        stay = through[source] & through[target]
        if stay.all():
            break
        source, target = source[stay], target[stay]
    return source, target


def _tarjan(offsets: list[int], targets: list[int]) -> IndexArray:
    """The component number of each node; node n leads to targets[offsets[n]:offsets[n+1]]."""
    nodes = len(offsets) - 1
    visited_at = [0] * nodes  # from 1; 0 is not visited
    low = [0] * nodes
    component = [-1] * nodes
    next_edge = offsets[:-1]
    open_nodes: list[int] = []
    turns = components = 0
    for root in range(nodes):
        if visited_at[root]:
            continue
        path = [root]
        while path:
            node = path[-1]
            if not visited_at[node]:
                turns += 1
                visited_at[node] = low[node] = turns
                open_nodes.append(node)
            edge = next_edge[node]
            if edge < offsets[node + 1]:
                next_edge[node] = edge + 1
                target = targets[edge]
                if not visited_at[target]:
                    path.append(target)
                elif component[target] < 0 and visited_at[target] < low[node]:
                    low[node] = visited_at[target]
                continue
            path.pop()
            if path and low[node] < low[path[-1]]:
                low[path[-1]] = low[node]
            if low[node] == visited_at[node]:
                while True:
                    member = open_nodes.pop()
                    component[member] = components
                    if member == node:
                        break
                components += 1
    return index_array(component)
