"""Where every subtask of a job would run on given TaskManagers: for plans, before anything is deployed.

Takes: a job graph, the number of slots of each TaskManager, a load-balance mode. Gives: TaskManager and slot of every
subtask as arrays, and the number of tasks on each TaskManager.

Rules: all slots are free, alike and known from the start, TaskManager by TaskManager; so the plan is what the scheduler
does on a cluster that waits for the job. A job that is too large for that, but has stages with blocking results between
them, is planned stage by stage: each has all slots for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ..errors import ConfigError
from .arrays import IndexArray, index_array
from .balancing import task_balanced
from .free_slots import FreeSlots
from .job_graph import JobGraph
from .slot_groups import slots_by_group
from .slot_matching import match_balanced
from .slot_sharing import ExecutionSlotSharingGroups, local_input_preferred
from .slots import LoadBalanceMode, Location, PhysicalSlot, SlotRequest
from .union_find import UnionFind


@final
@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """A plan for one job.

    Attributes:
        mode: how tasks were spread.
        groups: which subtasks share a slot.
        taskmanager_of_group: the TaskManager of each execution slot sharing group, from 0.
        slot_of_group: which slot of that TaskManager, from 0.
        stages: the slot sharing groups that run at the same time, stage by stage; one stage if all of them do.
        tasks: how many tasks each TaskManager has, in all stages together.
        slots_used: how many of its slots each TaskManager gives.
    """

    mode: LoadBalanceMode
    groups: ExecutionSlotSharingGroups
    taskmanager_of_group: IndexArray
    slot_of_group: IndexArray
    stages: tuple[tuple[int, ...], ...]
    tasks: IndexArray
    slots_used: IndexArray

    def taskmanagers_of(self, vertex: int) -> IndexArray:
        """The TaskManager of each subtask of a vertex."""
        return self.taskmanager_of_group[self.groups.of_vertex[vertex]]

    def slots_of(self, vertex: int) -> IndexArray:
        """Which slot of its TaskManager each subtask of a vertex is in."""
        return self.slot_of_group[self.groups.of_vertex[vertex]]


def place(
    graph: JobGraph, slots_per_taskmanager: Sequence[int], mode: LoadBalanceMode = LoadBalanceMode.NONE
) -> Placement:
    """Plans a job.

    Args:
        graph: the job, all parallelisms known.
        slots_per_taskmanager: how many slots each TaskManager has, in the order in which they register.
        mode: how to spread tasks.

    Raises:
        ConfigError: there are not enough slots, a parallelism is undecided, or vertices are co-located that can never
            share slots.
    """
    stages = _stages(graph, slots_per_taskmanager)
    groups = task_balanced(graph) if mode is LoadBalanceMode.TASKS else local_input_preferred(graph)
    loads = groups.loads()
    taskmanager, slot = np.empty_like(loads), np.empty_like(loads)
    for stage in stages:
        members = np.flatnonzero(np.isin(groups.slot_sharing_group, stage))
        taskmanager[members], slot[members] = _assign(loads[members], slots_per_taskmanager, mode)
    count = len(slots_per_taskmanager)
    used = np.unique(np.stack((taskmanager, slot)), axis=1)[0]
    return Placement(
        mode,
        groups,
        taskmanager,
        slot,
        stages,
        index_array(np.bincount(taskmanager, weights=loads, minlength=count)),
        index_array(np.bincount(used, minlength=count)),
    )


def _stages(graph: JobGraph, slots_per_taskmanager: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Slot sharing groups that run at the same time: all, or where that is too much, those with a pipelined exchange.

    Raises:
        ConfigError: a stage takes more slots than there are.
    """
    available, required = sum(slots_per_taskmanager), slots_by_group(graph)
    if sum(required) <= available:
        return (tuple(range(len(required))),)
    connected = UnionFind(len(required))
    for edge in graph.edges:
        dataset = graph.datasets[edge.dataset]
        if not dataset.type.is_blocking:
            producer, consumer = graph.vertices[dataset.producer], graph.vertices[edge.consumer]
            connected.join(producer.slot_sharing_group, consumer.slot_sharing_group)
    stages = tuple(tuple(stage) for stage in connected.sets())
    largest = max(sum(required[group] for group in stage) for stage in stages)
    if largest > available:
        raise ConfigError(
            f"job {graph.name!r} takes {largest} slots at once, and {len(slots_per_taskmanager)} TaskManagers have"
            f" {available}; give it more slots, or a lower parallelism"
        )
    return stages


def _assign(loads: IndexArray, slots: Sequence[int], mode: LoadBalanceMode) -> tuple[IndexArray, IndexArray]:
    """A TaskManager and one of its slots for each group of tasks; there are enough."""
    taskmanager, slot = np.empty_like(loads), np.empty_like(loads)
    if mode is LoadBalanceMode.NONE:
        taskmanager[:] = np.repeat(np.arange(len(slots)), slots)[: loads.size]
        slot[:] = np.concatenate([np.arange(count) for count in slots])[: loads.size]
        return taskmanager, slot
    offered = [
        PhysicalSlot(Location(str(number)), index) for number, count in enumerate(slots) for index in range(count)
    ]
    requests = [SlotRequest(group, load=load) for group, load in enumerate(loads.tolist())]
    if mode is LoadBalanceMode.TASKS:
        chosen = [(match.request.group, match.slot) for match in match_balanced(requests, offered)]
    else:
        chosen = _spread(requests, offered, slots)
    for group, given in chosen:
        taskmanager[group], slot[group] = int(given.location.taskmanager), given.index
    return taskmanager, slot


def _spread(
    requests: Sequence[SlotRequest], offered: Sequence[PhysicalSlot], slots: Sequence[int]
) -> list[tuple[int, PhysicalSlot]]:
    """Each group, in order, to the TaskManager with the smallest share of its slots in use."""
    free = FreeSlots(offered)
    chosen = []
    for request in requests:
        slot = free.choose(request, LoadBalanceMode.SLOTS)
        assert slot is not None  # there are at least as many as requests, and any will do
        free.remove(slot)
        free.set_load(slot.location.taskmanager, (slot.index + 1) / slots[int(slot.location.taskmanager)])
        chosen.append((request.group, slot))
    return chosen
