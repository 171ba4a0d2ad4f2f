"""Scheduling strategies: the protocol, and the strategies for pipelined regions and for adaptive batch jobs.

The slots of a returned batch are requested together, and it is deployed when it has all of them.

Rules:
- A strategy returns a subtask at most once until it is restarted. It reads the topology, after the event was applied
  there. Batches are in topological order. Whole arrays of candidates are tested at once: a complete all-to-all group
  can make 10,000 regions ready in one event.
- A pipelined region is scheduled when every group that it reads from outside is consumable. A blocking group is
  consumable when complete; one that can be pipelined when the producers' regions are scheduled. Of a group that the
  region itself produces in part, only the partitions of other regions count.
- Vertexwise scheduling (adaptive batch jobs) applies the same to single subtasks. Added subtasks are considered at the
  next event.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol, final

import numpy as np

from ...base.ids import ResultPartitionType
from ..graph.job_graph import DistributionPattern
from ..structures import (
    NOTHING,
    Batches,
    FlagArray,
    GrowingArray,
    IndexArray,
    distinct,
    index_array,
    one_batch,
    single_batches,
)
from ..topology.execution_graph import ExecutionGraph
from ..topology.regions import Regions


class SchedulingStrategy(Protocol):
    """Decides which subtasks are deployed when."""

    def extend(self) -> None:
        """Extends it to a topology and regions that have grown; new subtasks are considered at the next event."""

    def start(self) -> Batches:
        """Starts the job.

        Returns:
            Subtasks without unmet inputs, in topological order.
        """

    def on_finished(self, subtask: int) -> Batches:
        """Handles the end of a subtask; `ExecutionGraph.finish` was called before.

        Returns:
            What can be deployed because of it, in topological order.
        """

    def restart(self, subtasks: IndexArray) -> Batches:
        """Restarts subtasks that were canceled and reset; `ExecutionGraph.reset` was called before.

        Returns:
            Those that can be deployed at once; the others follow when their inputs are available.
        """


def schedule_in_rounds(
    candidates: IndexArray,
    is_scheduled: FlagArray,
    consumable: Callable[[IndexArray], IndexArray],
    reading_early: Callable[[IndexArray], IndexArray],
) -> IndexArray:
    """Schedules the candidates that are ready, then those that are ready because of these, and so on.

    Args:
        candidates: ascending.
        is_scheduled: by candidate; set for the scheduled ones.
        consumable: returns those ascending candidates whose inputs are all consumable.
        reading_early: returns the candidates that may read unfinished results of the scheduled ones, ascending.

    Returns:
        The scheduled ones, ascending.
    """
    taken: list[IndexArray] = []
    while candidates.size:
        ready = consumable(candidates[~is_scheduled[candidates]])
        if not ready.size:
            break
        is_scheduled[ready] = True
        taken.append(ready)
        candidates = reading_early(ready)
    return np.sort(np.concatenate(taken)) if taken else NOTHING


_NO_BATCHES = one_batch(NOTHING)


@final
class RegionScheduling:
    """The strategy of streaming jobs, and of batch jobs that are not adaptive.

    Args:
        regions: of that topology; extend them before `extend` is called here.
    """

    def __init__(self, topology: ExecutionGraph, regions: Regions) -> None:
        self._topology = topology
        self._regions = regions
        self._is_scheduled = GrowingArray(np.bool_)
        self._is_cross_region = GrowingArray(np.bool_)
        self._new = NOTHING
        self._has_early_results = any(
            not dataset.type.is_blocking and not dataset.type.must_be_pipelined for dataset in topology.job.datasets
        )
        self.extend()

    def extend(self) -> None:
        """Implements `SchedulingStrategy`."""
        regions_before, groups_before = len(self._is_scheduled), len(self._is_cross_region)
        self._is_scheduled.extend_with(False, len(self._regions) - regions_before)
        self._is_cross_region.extend_with(False, len(self._topology.groups) - groups_before)
        self._new = np.concatenate(
            [self._new, np.arange(regions_before, len(self._regions), dtype=np.int32)], dtype=np.int32
        )
        for edge in np.unique(self._topology.groups.edge[groups_before:]).tolist():
            self._find_cross_region(edge)

    def start(self) -> Batches:
        """Implements `SchedulingStrategy`: regions that read nothing from others."""
        candidates, self._new = self._new, NOTHING
        # The rounds find the regions that may read results early.
        return self._schedule(candidates)

    def on_finished(self, subtask: int) -> Batches:
        """Implements `SchedulingStrategy`."""
        groups = [
            group
            for group in self._topology.produced_groups(subtask)
            if self._topology.is_complete(group) or self._is_cross_region.view[group]
        ]
        if not groups and not self._new.size:
            return _NO_BATCHES
        woken = self._topology.groups.consumers_of_all(index_array(groups))
        candidates = np.union1d(self._regions.of_subtasks(woken), self._new)
        self._new = NOTHING
        return self._schedule(candidates)

    def restart(self, subtasks: IndexArray) -> Batches:
        """Implements `SchedulingStrategy`: restarts the regions of these subtasks as a whole."""
        regions = self._regions.of_subtasks(subtasks)
        self._is_scheduled.view[regions] = False
        return self._schedule(regions)

    def _schedule(self, candidates: IndexArray) -> Batches:
        taken = schedule_in_rounds(candidates, self._is_scheduled.view, self._consumable, self._reading_early)
        return self._regions.members_of_all(taken) if taken.size else _NO_BATCHES

    def _consumable(self, candidates: IndexArray) -> IndexArray:
        topology, region_of = self._topology, self._regions.region_of
        groups, producer_of = topology.groups, topology.producer_of_partition
        # Indexed by position, not by region: the cost follows the candidates, not all regions.
        is_waiting = np.zeros(candidates.size, np.bool_)
        subtasks = np.sort(self._regions.members_of_all(candidates).subtasks)
        for vertex, indices in topology.by_vertex(subtasks):
            region = region_of[indices + np.int32(topology.subtasks_of(vertex).start)]
            position = np.searchsorted(candidates, region)
            for edge in topology.inputs_of(vertex):
                if self._topology.type_of(edge).must_be_pipelined:
                    continue
                group = topology.connection(edge).all_consumed_by(indices)
                is_cross = self._is_cross_region.view[group]
                is_outside = region_of[producer_of[groups.partition_start[group]]] != region
                is_missing = ~is_cross & is_outside & ~self._are_consumable(edge, group)
                is_waiting[position[is_missing]] = True
                if is_cross.any():
                    waiting = self._waiting_for_others(edge, group[is_cross], region[is_cross])
                    is_waiting[np.searchsorted(candidates, waiting)] = True
        return candidates[~is_waiting]

    def _are_consumable(self, edge: int, group: IndexArray) -> FlagArray:
        groups = self._topology.groups
        if self._topology.type_of(edge).is_blocking:
            complete: FlagArray = groups.unfinished[group] == 0
            return complete
        region_of, producer_of = self._regions.region_of, self._topology.producer_of_partition

        def is_running(partitions: IndexArray) -> FlagArray:
            return self._is_scheduled.view[region_of[producer_of[partitions]]]

        return groups.over_partitions(group, is_running, np.logical_and)

    def _waiting_for_others(self, edge: int, group: IndexArray, region: IndexArray) -> IndexArray:
        """Of regions that produce a part of the groups they read: those that lack a partition of another."""
        groups = self._topology.groups
        partitions = groups.partitions_of_all(group)
        reader = np.repeat(region, groups.partition_stop[group] - groups.partition_start[group])
        producing = self._regions.region_of[self._topology.producer_of_partition[partitions]]
        is_there = (
            self._topology.is_finished[partitions]
            if self._topology.type_of(edge).is_blocking
            else self._is_scheduled.view[producing]
        )
        waiting: IndexArray = reader[(producing != reader) & ~is_there]
        return waiting

    def _reading_early(self, regions: IndexArray) -> IndexArray:
        """Regions that may read unfinished results of these."""
        if not self._has_early_results:
            return NOTHING
        topology = self._topology
        produced = topology.produced_by_all(np.sort(self._regions.members_of_all(regions).subtasks))
        early = produced[~topology.groups.are_blocking(produced) & ~topology.groups.must_be_pipelined(produced)]
        return self._regions.of_subtasks(topology.groups.consumers_of_all(early))

    def _find_cross_region(self, edge: int) -> None:
        """Marks the groups of an edge that have producers in several regions, one of them a consumer's own.

        All-to-all edges have none: an all-to-all edge inside a region makes it one region.
        """
        topology, region_of = self._topology, self._regions.region_of
        if (
            topology.job.edges[edge].pattern is DistributionPattern.ALL_TO_ALL
            or self._topology.type_of(edge).must_be_pipelined
        ):
            return
        own = topology.groups_of_edge(edge)
        number = np.arange(own.start, own.stop, dtype=np.int32)
        groups, count = topology.groups, np.int64(len(self._regions))
        sizes = groups.partition_stop[number] - groups.partition_start[number]
        producing = region_of[topology.producer_of_partition[groups.partitions_of_all(number)]]
        starts = np.cumsum(sizes) - sizes
        is_several = np.minimum.reduceat(producing, starts) != np.maximum.reduceat(producing, starts)
        consumers = groups.consumer_stop[number] - groups.consumer_start[number]
        consuming = region_of[groups.consumers_of_all(number)]
        own_too = np.isin(
            np.repeat(number, consumers) * count + consuming, np.repeat(number, sizes) * count + producing
        )
        is_own_too = np.zeros(number.size, np.bool_)
        is_own_too[np.repeat(number, consumers)[own_too] - own.start] = True
        self._is_cross_region.view[number] = is_several & is_own_too


class HybridConsumption(enum.Enum):
    """When a hybrid result of a dynamic job counts as consumable."""

    UNFINISHED_PRODUCERS = "unfinished_producers"
    """All its producers are scheduled."""
    ONLY_FINISHED_PRODUCERS = "only_finished_producers"
    """One of its producers has finished; only finished partitions are read."""
    ALL_PRODUCERS_FINISHED = "all_producers_finished"
    """All its producers have finished, as for a blocking result."""


@final
class VertexwiseScheduling:
    """Schedules every subtask by itself.

    Args:
        hybrid: when hybrid results count as consumable.
    """

    def __init__(
        self, topology: ExecutionGraph, hybrid: HybridConsumption = HybridConsumption.UNFINISHED_PRODUCERS
    ) -> None:
        self._topology = topology
        self._hybrid = hybrid
        self._is_scheduled = GrowingArray(np.bool_)
        self._new = NOTHING
        self.extend()

    def extend(self) -> None:
        """Implements `SchedulingStrategy`."""
        before, now = len(self._is_scheduled), self._topology.subtask_count
        self._is_scheduled.extend_with(False, now - before)
        self._new = np.concatenate([self._new, np.arange(before, now, dtype=np.int32)], dtype=np.int32)

    def start(self) -> Batches:
        """Implements `SchedulingStrategy`: subtasks without inputs, and those that may run beside them."""
        candidates, self._new = self._new, NOTHING
        return self._schedule(candidates)

    def on_finished(self, subtask: int) -> Batches:
        """Implements `SchedulingStrategy`."""
        groups = [group for group in self._topology.produced_groups(subtask) if self._may_be_ready(group)]
        if not groups and not self._new.size:
            return _NO_BATCHES
        woken = self._topology.groups.consumers_of_all(index_array(groups))
        candidates = np.union1d(woken, self._new)
        self._new = NOTHING
        return self._schedule(candidates)

    def restart(self, subtasks: IndexArray) -> Batches:
        """Implements `SchedulingStrategy`."""
        candidates = distinct(subtasks)
        self._is_scheduled.view[candidates] = False
        return self._schedule(candidates)

    def _may_be_ready(self, group: int) -> bool:
        """Whether the end of a producer can have made a group consumable."""
        rule = self._rule(self._topology.groups.type_of(group))
        return rule is HybridConsumption.ONLY_FINISHED_PRODUCERS or self._topology.is_complete(group)

    def _rule(self, type: ResultPartitionType) -> HybridConsumption:
        """The rule that applies to a partition type."""
        if type.is_blocking:
            return HybridConsumption.ALL_PRODUCERS_FINISHED
        # A result that must be pipelined never finishes before its consumers run.
        return self._hybrid if type.is_hybrid else HybridConsumption.UNFINISHED_PRODUCERS

    def _schedule(self, candidates: IndexArray) -> Batches:
        taken = schedule_in_rounds(candidates, self._is_scheduled.view, self._consumable, self._reading_early)
        return single_batches(taken) if taken.size else _NO_BATCHES

    def _reading_early(self, subtasks: IndexArray) -> IndexArray:
        """Subtasks that may read results of these before they are complete."""
        produced = self._topology.produced_by_all(subtasks)
        early = produced[~self._topology.groups.are_blocking(produced)]
        return distinct(self._topology.groups.consumers_of_all(early))

    def _consumable(self, candidates: IndexArray) -> IndexArray:
        topology = self._topology
        consumable: list[IndexArray] = [NOTHING]
        for vertex, indices in topology.by_vertex(candidates):
            is_ready = np.ones(indices.size, np.bool_)
            for edge in topology.inputs_of(vertex):
                is_ready &= self._are_consumable(edge, topology.connection(edge).all_consumed_by(indices))
            consumable.append(indices[is_ready] + np.int32(topology.subtasks_of(vertex).start))
        return np.concatenate(consumable)

    def _are_consumable(self, edge: int, group: IndexArray) -> FlagArray:
        topology, groups = self._topology, self._topology.groups
        rule = self._rule(topology.type_of(edge))
        if rule is HybridConsumption.ALL_PRODUCERS_FINISHED:
            complete: FlagArray = groups.unfinished[group] == 0
            return complete
        if rule is HybridConsumption.ONLY_FINISHED_PRODUCERS:
            begun: FlagArray = groups.unfinished[group] < groups.partition_stop[group] - groups.partition_start[group]
            return begun
        is_scheduled, producer_of = self._is_scheduled.view, topology.producer_of_partition
        return groups.over_partitions(group, lambda each: is_scheduled[producer_of[each]], np.logical_and)
