"""Placement for plans: the TaskManager and slot of every subtask, before anything is deployed.

Rules: the free slots are alike and known in advance, so a plan does what the JobManager and the job's scheduler do. A
job with blocking results is planned in stages, each with all slots for itself: a consumer of a blocking result comes
after its producer and prefers its TaskManager. Only the first stage of such a job is certain, because which slots are
free for the others depends on which tasks end first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from ...base.errors import ConfigError
from ...base.units import counted
from ..graph.job_graph import JobGraph
from ..graph.slot_groups import slots_by_group
from ..structures import IndexArray, UnionFind, index_array
from ..topology.execution_graph import ExecutionGraph
from ..topology.regions import Regions
from .shared_slots import InputPreferences
from .slot_matching import FreeSlots, match_balanced
from .slot_sharing import ExecutionSlotSharingGroups, local_input_preferred, task_balanced
from .slots import LoadBalanceMode, Location, PhysicalSlot, SlotRequest

_NOWHERE: Final = -1


@final
@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where a job would run.

    Attributes:
        mode: how tasks were spread.
        groups: which subtasks share a slot.
        taskmanager_of_group: the TaskManager of each execution slot sharing group, from 0.
        slot_of_group: the slot of that TaskManager, from 0.
        stages: the slot sharing groups that run at the same time, stage by stage.
        tasks: number of tasks on each TaskManager, all stages together.
        slots_used: number of slots used of each TaskManager.
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

    def processes_of(self, vertex: int, processes: int) -> IndexArray:
        """The process of each subtask of a vertex, counted over all TaskManagers.

        Args:
            vertex: index of the vertex.
            processes: of each TaskManager: 1, or one for each slot.
        """
        if processes == 1:
            return self.taskmanagers_of(vertex)
        return self.taskmanagers_of(vertex) * processes + self.slots_of(vertex)

    def slots_of(self, vertex: int) -> IndexArray:
        """The slot of its TaskManager in which each subtask of a vertex runs."""
        return self.slot_of_group[self.groups.of_vertex[vertex]]


class NotEnoughSlots(ConfigError):
    """A job needs more slots at once than there are."""


def place(
    graph: JobGraph,
    slots_per_taskmanager: Sequence[int],
    mode: LoadBalanceMode = LoadBalanceMode.NONE,
    *,
    used: Sequence[int] = (),
) -> Placement:
    """Plans a job.

    Args:
        graph: the job, all parallelisms known.
        slots_per_taskmanager: number of free slots of each TaskManager, in the order in which they register.
        mode: how to spread tasks.
        used: number of slots of each TaskManager that other jobs hold; none if not given. Mode SLOTS counts them.

    Raises:
        NotEnoughSlots: a stage needs more slots than there are.
        ConfigError: a parallelism is undecided, or co-located vertices can never share slots.
    """
    mode = deciding_mode(graph, mode)
    stages = _stages(graph, slots_per_taskmanager)
    groups = task_balanced(graph) if mode is LoadBalanceMode.TASKS else local_input_preferred(graph)
    loads = groups.loads()
    in_order = _order(graph, groups)
    others = list(used) or [0] * len(slots_per_taskmanager)
    taskmanager, slot = np.full_like(loads, _NOWHERE), np.full_like(loads, _NOWHERE)
    for number, stage in enumerate(stages):
        members = index_array(in_order[np.isin(groups.slot_sharing_group[in_order], stage)])
        preferred: dict[int, tuple[Location, ...]] = {}
        if number and mode is not LoadBalanceMode.TASKS:
            preferred = _StagePreferences(graph, groups, taskmanager).of_stage(stage)
        taskmanager[members], slot[members] = _assign(
            members, loads[members], preferred, slots_per_taskmanager, others, mode
        )
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


def deciding_mode(graph: JobGraph, mode: LoadBalanceMode) -> LoadBalanceMode:
    """The mode that decides where the subtasks of a job go: `mode`, except that TASKS is NONE where results are kept.

    TASKS places all subtasks of a job at once, so that each TaskManager has equally many. The subtasks of a job that
    keeps results run one after the other, on the slots that become free, and those of a dynamic job do not exist yet.
    """
    keeps_results = graph.is_dynamic or not all(dataset.type.must_be_pipelined for dataset in graph.datasets)
    return LoadBalanceMode.NONE if mode is LoadBalanceMode.TASKS and keeps_results else mode


def can_take_turns(graph: JobGraph, available: int) -> bool:
    """Whether a job that is too large for a placement runs nevertheless: region after region, as slots become free.

    Not a job whose results are all pipelined, because its sources may never end, nor one of `may_hold_slots`.
    """
    if all(dataset.type.must_be_pipelined for dataset in graph.datasets):
        return False
    if may_hold_slots(graph):
        return False
    group_of = np.concatenate(local_input_preferred(graph).of_vertex)
    pairs = np.unique(np.stack((Regions(ExecutionGraph(graph)).region_of, group_of)), axis=1)
    return int(np.bincount(pairs[0]).max()) <= available


def may_hold_slots(graph: JobGraph) -> bool:
    """Whether a task may hold a slot while it waits for a producer that needs a slot: both in one slot sharing group.

    A consumer of a hybrid result starts before all producers have ended, in the slot of the producer that it shares.
    """
    return any(
        graph.datasets[edge.dataset].type.is_hybrid
        and graph.vertices[edge.consumer].slot_sharing_group
        == graph.vertices[graph.datasets[edge.dataset].producer].slot_sharing_group
        for edge in graph.edges
    )


def _order(graph: JobGraph, groups: ExecutionSlotSharingGroups) -> IndexArray:
    """The groups in the order in which they request slots: region by region, each in the order of its subtasks."""
    group_of = np.concatenate(groups.of_vertex)
    if not graph.is_dynamic:  # regions of a dynamic job appear one after the other
        group_of = group_of[np.argsort(Regions(ExecutionGraph(graph)).region_of, kind="stable")]
    return index_array(np.argsort(np.unique(group_of, return_index=True)[1]))


def _stages(graph: JobGraph, slots_per_taskmanager: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Slot sharing groups that run at the same time, stage by stage.

    Raises:
        NotEnoughSlots: a stage needs more slots than there are.
    """
    required, available = slots_by_group(graph), sum(slots_per_taskmanager)
    connected, level = _levels(graph, len(required))
    stages: list[list[int]] = []
    free, last_level = 0, -1
    for own in sorted(connected, key=lambda own: (level[own[0]], own[0])):
        size = sum(required[group] for group in own)
        if size > available:
            count = len(slots_per_taskmanager)
            raise NotEnoughSlots(
                f"job {graph.name!r} needs {counted(size, 'slot')} at once, but {counted(count, 'TaskManager')}"
                f" {'has' if count == 1 else 'have'} {available:,}; add slots, or lower its parallelism"
            )
        if size > free or level[own[0]] != last_level:
            stages.append([])
            free, last_level = available, level[own[0]]
        stages[-1] += own
        free -= size
    return tuple(tuple(sorted(stage)) for stage in stages)


def _levels(graph: JobGraph, group_count: int) -> tuple[list[list[int]], dict[int, int]]:
    """Slot sharing groups that must run at the same time, and by the first of each the number of stages before them."""
    connected = UnionFind(group_count)
    edges = []
    for edge in graph.edges:
        dataset = graph.datasets[edge.dataset]
        ends = graph.vertices[dataset.producer].slot_sharing_group, graph.vertices[edge.consumer].slot_sharing_group
        edges.append(ends)
        if not dataset.type.is_blocking:
            connected.join(*ends)
    if not any(dataset.type.is_blocking for dataset in graph.datasets):
        for group in range(1, group_count):
            connected.join(0, group)
    together = connected.sets()
    level = {own[0]: 0 for own in together}
    before_after = {(connected.find(producer), connected.find(consumer)) for producer, consumer in edges}
    for _ in together:  # at most as many rounds as the longest path has steps; a cycle of groups ends there too
        levels = dict(level)
        for before, after in before_after:
            if before != after:
                level[after] = max(level[after], levels[before] + 1)
        if level == levels:
            break
    return together, level


@final
class _StagePreferences:
    """The preferred locations of groups that read results of earlier stages."""

    def __init__(self, graph: JobGraph, groups: ExecutionSlotSharingGroups, taskmanager: IndexArray) -> None:
        self._graph = graph
        self._inputs = InputPreferences(graph)
        self._groups = [groups_.tolist() for groups_ in groups.of_vertex]
        self._parallelisms = [vertex.parallelism for vertex in graph.vertices]
        self._taskmanager = taskmanager

    def of_stage(self, stage: Sequence[int]) -> dict[int, tuple[Location, ...]]:
        """For each group of a stage, the preferences of its members one after the other."""
        wishes: dict[int, tuple[Location, ...]] = {}
        for number, vertex in enumerate(self._graph.vertices):
            if vertex.slot_sharing_group in stage:
                for subtask, group in enumerate(self._groups[number]):
                    result = self._inputs.of(number, subtask, self._parallelisms, self._located)
                    wishes[group] = wishes.get(group, ()) + result
        return wishes

    def _located(self, vertex: int, subtask: int) -> Location | None:
        taskmanager = int(self._taskmanager[self._groups[vertex][subtask]])
        return None if taskmanager == _NOWHERE else Location(str(taskmanager))


def _assign(
    groups: IndexArray,
    loads: IndexArray,
    preferred: Mapping[int, tuple[Location, ...]],
    slots: Sequence[int],
    used: Sequence[int],
    mode: LoadBalanceMode,
) -> tuple[IndexArray, IndexArray]:
    """A TaskManager and one of its slots for each group; there are enough slots."""
    if mode is not LoadBalanceMode.TASKS and not any(preferred.values()):
        taskmanagers = np.repeat(np.arange(len(slots)), slots)
        indices = np.concatenate([np.arange(count) for count in slots])
        if mode is LoadBalanceMode.SLOTS:
            # A TaskManager's slot n is taken when n of its slots are in use: that load decides the order of slots.
            # The job gets the chosen slots TaskManager by TaskManager.
            before, total = np.asarray(used), np.asarray(used) + slots
            share = (indices + before[taskmanagers]) / total[taskmanagers]
            turn = np.sort(np.lexsort((taskmanagers, share))[: groups.size])
            taskmanagers, indices = taskmanagers[turn], indices[turn]
        return index_array(taskmanagers[: groups.size]), index_array(indices[: groups.size])
    requests = [
        SlotRequest(group, load=load, preferred=preferred.get(group, ()))
        for group, load in zip(groups.tolist(), loads.tolist(), strict=True)
    ]
    offered = [
        PhysicalSlot(Location(str(number)), index) for number, count in enumerate(slots) for index in range(count)
    ]
    if mode is LoadBalanceMode.TASKS:
        matched = {match.request.group: match.slot for match in match_balanced(requests, offered)}
        chosen = [matched[request.group] for request in requests]
    else:
        chosen = _choose(requests, offered, slots, mode)
    return (
        index_array([int(slot.location.taskmanager) for slot in chosen]),
        index_array([slot.index for slot in chosen]),
    )


def _choose(
    requests: Sequence[SlotRequest], offered: Sequence[PhysicalSlot], slots: Sequence[int], mode: LoadBalanceMode
) -> list[PhysicalSlot]:
    """The best slot for each request, one after the other."""
    free = FreeSlots(offered)
    chosen = []
    for request in requests:
        slot = free.choose(request, mode)
        assert slot is not None  # there are as many slots as requests, and any slot serves any request
        free.remove(slot)
        if mode is LoadBalanceMode.SLOTS:
            free.set_load(slot.location.taskmanager, (slot.index + 1) / slots[int(slot.location.taskmanager)])
        chosen.append(slot)
    return chosen
