"""Slot sharing: which subtasks share a slot, so that exchanges stay local, or balanced, or as placed by the user.

An execution slot sharing group (ESSG) is the set of subtasks that occupy one slot.

Rules:
- Two subtasks of one vertex never share a slot, nor do vertices of different slot sharing groups.
- Subtask i of every member of a co-location group is in the same slot.
- By default vertices are added in topological order, each in two passes, so that a subtask without a good fit does not
  take the slot that fits a sibling better. Groups made earlier never change, so a dynamic graph may grow at any time.
  Candidates belong to a consumed partition group and are used up, so an all-to-all exchange costs one step per subtask.
- Balanced (FLIP-370): a slot sharing group has as many slots as its widest vertex has subtasks. A vertex as wide puts
  subtask i into slot i; a narrower one continues where the last narrow one ended: without co-location two slots of a
  group differ by at most one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ...base.errors import ConfigError
from ..graph.job_graph import JobGraph
from ..graph.slot_groups import check_co_location, slots_by_group
from ..structures import NOTHING, IndexArray, index_array
from ..topology.distribution import static_input


@final
@dataclass(frozen=True, slots=True, eq=False)
class ConsumedPartitions:
    """The partitions that the subtasks of one vertex read over one edge.

    Attributes:
        producer: index of the vertex that writes them.
        first: the first partition of each subtask.
        last: the last one; before the first if a subtask reads nothing. Subtasks with the same range share one consumed
            partition group.
    """

    producer: int
    first: IndexArray
    last: IndexArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class ExecutionSlotSharingGroups:
    """The ESSGs of a job, numbered in the order in which slots are requested.

    Attributes:
        of_vertex: for each vertex, the group of each of its subtasks; empty for one without subtasks.
        slot_sharing_group: of each group, the slot sharing group of its vertices.
        taskmanagers: of each group, the only TaskManager whose slots it accepts; empty: all groups accept any.
    """

    of_vertex: tuple[IndexArray, ...]
    slot_sharing_group: IndexArray
    taskmanagers: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of slots when the whole job runs at once."""
        return len(self.slot_sharing_group)

    def loads(self) -> IndexArray:
        """Number of tasks of each group."""
        loads = np.zeros(self.count, np.int32)
        for groups in self.of_vertex:
            np.add.at(loads, groups, 1)  # a group may have several subtasks of a vertex
        return loads

    def members(self, group: int) -> tuple[tuple[int, int], ...]:
        """The subtasks of one group, as (vertex, subtask), in topological order."""
        return tuple(
            (vertex, int(subtask))
            for vertex, groups in enumerate(self.of_vertex)
            for subtask in np.flatnonzero(groups == group)
        )


@final
class LocalInputPreferred:
    """The default strategy: a subtask shares the slot of one of its producers, if there is room.

    Args:
        graph: the job; parallelism is passed vertex by vertex, so it may be undecided here. Co-location has been
            checked.
    """

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._of_vertex: list[IndexArray] = [NOTHING] * len(graph.vertices)
        self._slot_sharing_group: list[int] = []
        self._by_slot_sharing_group: list[list[int]] = [[] for _ in graph.slot_sharing_groups]
        self._bound: dict[str, list[int]] = {}

    def add(self, vertex: int, parallelism: int, inputs: Sequence[ConsumedPartitions] = ()) -> IndexArray:
        """Places the subtasks of one vertex, and returns their groups.

        Args:
            vertex: its index. Its producers must have been added before.
            parallelism: number of its subtasks, at least 1.
            inputs: what they consume, in the order of the vertex's inputs.
        """
        name = self._graph.vertices[vertex].co_location_group
        bound = self._bound.get(name, []) if name is not None else []
        chosen = bound[:parallelism]
        chosen += [-1] * (parallelism - len(chosen))
        # Groups that already have a subtask of this vertex.
        holding = bytearray(len(self._slot_sharing_group))
        for group in bound[:parallelism]:
            holding[group] = 1
        self._follow_inputs(vertex, chosen, holding, inputs)
        self._fill_up(vertex, chosen, holding)
        if name is not None and len(bound) < parallelism:
            self._bound[name] = chosen
        self._of_vertex[vertex] = index_array(chosen)
        return self._of_vertex[vertex]

    def groups(self) -> ExecutionSlotSharingGroups:
        """All groups so far."""
        return ExecutionSlotSharingGroups(tuple(self._of_vertex), index_array(self._slot_sharing_group))

    def _follow_inputs(
        self, vertex: int, chosen: list[int], holding: bytearray, inputs: Sequence[ConsumedPartitions]
    ) -> None:
        """The first pass: subtasks that find room beside one of their producers."""
        mine = self._graph.vertices[vertex].slot_sharing_group
        candidates = [
            _Candidates(self._of_vertex[given.producer].tolist(), given.first.tolist(), given.last.tolist())
            for given in inputs
            if self._graph.vertices[given.producer].slot_sharing_group == mine
        ]
        for subtask, group in enumerate(chosen):
            if group >= 0:
                continue
            for consumed in candidates:
                group = consumed.pop(subtask, holding)
                if group >= 0:
                    holding[group] = 1
                    chosen[subtask] = group
                    break

    def _fill_up(self, vertex: int, chosen: list[int], holding: bytearray) -> None:
        """The second pass: the oldest group with room for each remaining subtask, then new groups."""
        mine = self._graph.vertices[vertex].slot_sharing_group
        existing = self._by_slot_sharing_group[mine]
        oldest = iter([group for group in existing if not holding[group]])
        for subtask, group in enumerate(chosen):
            if group >= 0:
                continue
            chosen[subtask] = next(oldest, -1)
            if chosen[subtask] < 0:
                chosen[subtask] = len(self._slot_sharing_group)
                existing.append(chosen[subtask])
                self._slot_sharing_group.append(mine)


@final
class _Candidates:
    """The producers' groups of one input, used up separately in each consumed partition group."""

    __slots__ = ("_first", "_last", "_next", "_producers")

    def __init__(self, producers: list[int], first: list[int], last: list[int]) -> None:
        self._producers = producers
        self._first = first
        self._last = last
        self._next: dict[tuple[int, int], int] = {}

    def pop(self, subtask: int, holding: bytearray) -> int:
        """The next candidate with room, or -1; each candidate is visited once."""
        consumed = self._first[subtask], self._last[subtask]
        at = self._next.get(consumed, consumed[0])
        group = -1
        while group < 0 and at <= consumed[1]:
            if not holding[self._producers[at]]:
                group = self._producers[at]
            at += 1
        self._next[consumed] = at
        return group


def consumed_partitions(graph: JobGraph, vertex: int, parallelisms: Sequence[int]) -> list[ConsumedPartitions]:
    """What the subtasks of a vertex read, edge by edge, with even distribution."""
    consumed = []
    for edge in graph.inputs_of(vertex):
        producer = graph.datasets[edge.dataset].producer
        producers, consumers = parallelisms[producer], parallelisms[vertex]
        start, stop = static_input(edge.pattern, producers, consumers).partition_ranges()
        consumed.append(ConsumedPartitions(producer, start, stop - 1))
    return consumed


def local_input_preferred(graph: JobGraph) -> ExecutionSlotSharingGroups:
    """The default strategy for a job whose parallelisms are all known.

    Raises:
        ConfigError: a parallelism is undecided, or co-located vertices can never share slots.
    """
    slots_by_group(graph)  # rejects undecided parallelisms
    check_co_location(graph)
    strategy = LocalInputPreferred(graph)
    parallelisms = [vertex.parallelism for vertex in graph.vertices]
    for vertex, parallelism in enumerate(parallelisms):
        strategy.add(vertex, parallelism, consumed_partitions(graph, vertex, parallelisms))
    return strategy.groups()


def task_balanced(graph: JobGraph) -> ExecutionSlotSharingGroups:
    """Spreads the subtasks of a job evenly over slots; the groups of one slot sharing group have consecutive numbers.

    Raises:
        ConfigError: a parallelism is undecided, or co-located vertices can never share slots.
    """
    widths = slots_by_group(graph)
    check_co_location(graph)
    first = np.concatenate(([0], np.cumsum(widths, dtype=np.int64)))
    shares = [_Share(width) for width in widths]
    of_vertex = []
    for vertex in graph.vertices:
        share = shares[vertex.slot_sharing_group]
        if vertex.co_location_group is None:
            slots = share.add(vertex.parallelism)
        else:
            slots = share.add_co_located(vertex.parallelism, vertex.co_location_group)
        of_vertex.append(index_array(slots + first[vertex.slot_sharing_group]))
    return ExecutionSlotSharingGroups(tuple(of_vertex), np.repeat(np.arange(len(widths), dtype=np.int32), widths))


@final
class _Share:
    """The slots of one slot sharing group while it is filled."""

    __slots__ = ("_bound", "_cursor", "_loads")

    def __init__(self, width: int) -> None:
        self._loads = np.zeros(width, np.int32)
        self._cursor = 0
        self._bound: dict[str, IndexArray] = {}

    def add(self, parallelism: int) -> IndexArray:
        """The slots of a vertex without co-location."""
        width = len(self._loads)
        if parallelism == width:
            slots = np.arange(width, dtype=np.int32)
        else:
            slots = index_array((self._cursor + np.arange(parallelism)) % width)
            self._cursor = (self._cursor + parallelism) % width
        self._loads[slots] += 1
        return slots

    def add_co_located(self, parallelism: int, name: str) -> IndexArray:
        """The slots of a co-location group member: those of earlier members, then the least loaded ones."""
        bound = self._bound.get(name, NOTHING)[:parallelism]
        if len(bound) < parallelism:
            # Each chosen slot leaves the candidates, so choosing one by one equals taking from one sorted list.
            others = np.setdiff1d(np.arange(len(self._loads), dtype=np.int32), bound)
            others = others[np.argsort(self._loads[others], kind="stable")]
            bound = np.concatenate((bound, others[: parallelism - len(bound)]))
            self._bound[name] = bound
        self._loads[bound] += 1
        if parallelism != len(self._loads):
            self._cursor = int(np.argmin(self._loads))
        return bound


@final
@dataclass(frozen=True, slots=True)
class FixedPlacement:
    """The TaskManager of every subtask of a static job with one slot sharing group.

    Attributes:
        taskmanagers: by vertex name, the TaskManager of each subtask.
        slots: the most slots of each TaskManager, which the subtasks of a vertex then share; None: one for each.
    """

    taskmanagers: Mapping[str, Sequence[str]]
    slots: int | None = None

    def groups(self, job: JobGraph) -> ExecutionSlotSharingGroups:
        """The ESSGs: the n-th subtask of each vertex on a TaskManager is in slot n of the job there, modulo `slots`.

        Raises:
            ConfigError: a vertex is not placed, or not once per subtask; the job is dynamic or has several slot sharing
                groups.
        """
        if job.is_dynamic or len(job.slot_sharing_groups) > 1:
            raise ConfigError(f"job {job.name!r} cannot be placed: it is dynamic, or has several slot sharing groups")
        numbers: dict[tuple[str, int], int] = {}
        of_vertex = []
        for vertex in job.vertices:
            names = self.taskmanagers.get(vertex.name, ())
            if len(names) != vertex.parallelism:
                raise ConfigError(f"vertex {vertex.name!r} has {vertex.parallelism} subtasks, but {len(names)} places")
            taken: dict[str, int] = {}
            groups = []
            for name in names:
                slot = taken.get(name, 0)
                taken[name] = slot + 1
                groups.append(numbers.setdefault((name, slot % (self.slots or slot + 1)), len(numbers)))
            of_vertex.append(index_array(groups))
        return ExecutionSlotSharingGroups(
            tuple(of_vertex), index_array([0] * len(numbers)), tuple(name for name, _ in numbers)
        )
