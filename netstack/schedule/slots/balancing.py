"""Which subtasks share a slot when tasks are to be balanced: every slot gets about as many as any other (FLIP-370).

Takes: a job graph whose parallelism is decided. Gives: execution slot sharing groups. Edges are ignored; only the
number of tasks counts.

Rules:
- A slot sharing group has as many slots as its widest vertex has subtasks; groups do not influence each other.
- A vertex as wide as that fills slot i with subtask i. A narrower one goes on where the last narrow one ended. So
  without co-location two slots of a group never differ by more than one task.
"""

from __future__ import annotations

from typing import final

import numpy as np

from ..graph.job_graph import JobGraph
from ..graph.slot_groups import check_co_location, slots_by_group
from ..structures.arrays import NOTHING, IndexArray, index_array
from .slot_sharing import ExecutionSlotSharingGroups


def task_balanced(graph: JobGraph) -> ExecutionSlotSharingGroups:
    """Puts every subtask of a job into a slot, evenly; the groups of one slot sharing group are numbered in a row.

    Raises:
        ConfigError: a parallelism is undecided, or vertices are co-located that can never share slots.
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
        """The slots of a vertex that is free to go anywhere."""
        width = len(self._loads)
        if parallelism == width:
            slots = np.arange(width, dtype=np.int32)
        else:
            slots = index_array((self._cursor + np.arange(parallelism)) % width)
            self._cursor = (self._cursor + parallelism) % width
        self._loads[slots] += 1
        return slots

    def add_co_located(self, parallelism: int, name: str) -> IndexArray:
        """The slots of a member of a co-location group: those of the members before, then the least loaded ones."""
        bound = self._bound.get(name, NOTHING)[:parallelism]
        if len(bound) < parallelism:
            # Each choice takes its slot out of the choice, so choosing one by one is choosing from one sorted list.
            others = np.setdiff1d(np.arange(len(self._loads), dtype=np.int32), bound)
            others = others[np.argsort(self._loads[others], kind="stable")]
            bound = np.concatenate((bound, others[: parallelism - len(bound)]))
            self._bound[name] = bound
        self._loads[bound] += 1
        if parallelism != len(self._loads):
            self._cursor = int(np.argmin(self._loads))
        return bound
