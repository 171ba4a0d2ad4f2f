"""Schedules pipelined regions: all subtasks of a region at once, when everything it reads from others is there.

Takes: a topology, its regions, and what finished. Gives: one batch per region, in topological order.

Rules:
- A region is scheduled when every group it reads from outside is consumable. Of a blocking type that is: complete; of
  one that can be pipelined: the producers' regions are scheduled.
- Of a group that the region itself produces in part, only the partitions of other regions count.
- Whole arrays of candidates are tested at once: a complete all-to-all group wakes 10,000 regions in one event.
"""

from __future__ import annotations

from typing import final

import numpy as np

from ..graph.job_graph import DistributionPattern
from ..structures.arrays import NOTHING, Batches, FlagArray, GrowingArray, IndexArray, index_array, one_batch
from ..topology.regions import Regions
from ..topology.topology import Topology
from .strategy import taken_in_rounds

_NO_BATCHES = one_batch(NOTHING)


@final
class RegionScheduling:
    """The strategy of streaming jobs, and of batch jobs that are not adaptive.

    Args:
        topology: of the job.
        regions: of that topology; extend them before `extend` is called here.
    """

    def __init__(self, topology: Topology, regions: Regions) -> None:
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
        """See `SchedulingStrategy`."""
        regions_before, groups_before = len(self._is_scheduled), len(self._is_cross_region)
        self._is_scheduled.extend_with(False, len(self._regions) - regions_before)
        self._is_cross_region.extend_with(False, len(self._topology.groups) - groups_before)
        self._new = np.concatenate(
            [self._new, np.arange(regions_before, len(self._regions), dtype=np.int32)], dtype=np.int32
        )
        for edge in np.unique(self._topology.groups.edge[groups_before:]).tolist():
            self._find_cross_region(edge)

    def start(self) -> Batches:
        """See `SchedulingStrategy`: regions that read nothing from others."""
        candidates, self._new = self._new, NOTHING
        # Results that may be consumed early are not produced yet, so what waits for them is found by the rounds.
        return self._schedule(candidates)

    def on_finished(self, subtask: int) -> Batches:
        """See `SchedulingStrategy`."""
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
        """See `SchedulingStrategy`: the regions of these, each as a whole."""
        regions = self._regions.of_subtasks(subtasks)
        self._is_scheduled.view[regions] = False
        return self._schedule(regions)

    def _schedule(self, candidates: IndexArray) -> Batches:
        taken = taken_in_rounds(candidates, self._is_scheduled.view, self._consumable, self._reading_early)
        return self._regions.members_of_all(taken) if taken.size else _NO_BATCHES

    def _consumable(self, candidates: IndexArray) -> IndexArray:
        """Those of ascending candidates whose inputs from outside are all consumable."""
        topology, region_of = self._topology, self._regions.region_of
        groups, producer_of = topology.groups, topology.producer_of_partition
        # By position, not by region: an event that concerns few must not cost what all of them would.
        is_waiting = np.zeros(candidates.size, np.bool_)
        subtasks = np.sort(self._regions.members_of_all(candidates).subtasks)
        for vertex, indices in topology.by_vertex(subtasks):
            region = region_of[indices + np.int32(topology.subtasks_of(vertex).start)]
            position = np.searchsorted(candidates, region)
            for edge in topology.inputs_of(vertex):
                if self._must_be_pipelined(edge):
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
        """Whether all partitions of each group are consumable."""
        groups = self._topology.groups
        if self._is_blocking(edge):
            complete: FlagArray = groups.unfinished[group] == 0
            return complete
        distinct, position = np.unique(group, return_inverse=True)
        producers = self._topology.producer_of_partition[groups.partitions_of_all(distinct)]
        sizes = groups.partition_stop[distinct] - groups.partition_start[distinct]
        is_running = self._is_scheduled.view[self._regions.region_of[producers]]
        consumable: FlagArray = np.logical_and.reduceat(is_running, np.cumsum(sizes) - sizes)[position]
        return consumable

    def _waiting_for_others(self, edge: int, group: IndexArray, region: IndexArray) -> IndexArray:
        """Of regions that read groups which they produce in part: those that miss a partition of another region."""
        groups = self._topology.groups
        partitions = groups.partitions_of_all(group)
        reader = np.repeat(region, groups.partition_stop[group] - groups.partition_start[group])
        producing = self._regions.region_of[self._topology.producer_of_partition[partitions]]
        is_there = (
            self._topology.is_finished[partitions] if self._is_blocking(edge) else self._is_scheduled.view[producing]
        )
        waiting: IndexArray = reader[(producing != reader) & ~is_there]
        return waiting

    def _reading_early(self, regions: IndexArray) -> IndexArray:
        """Regions that may read what these have not finished."""
        if not self._has_early_results:
            return NOTHING
        topology = self._topology
        produced = topology.produced_by_all(np.sort(self._regions.members_of_all(regions).subtasks))
        early = produced[~topology.groups.are_blocking(produced) & ~topology.groups.must_be_pipelined(produced)]
        return self._regions.of_subtasks(topology.groups.consumers_of_all(early))

    def _find_cross_region(self, edge: int) -> None:
        """Marks the groups of one edge. All-to-all edges have none: inside a region its ends would be one region."""
        topology, region_of = self._topology, self._regions.region_of
        if topology.job.edges[edge].pattern is DistributionPattern.ALL_TO_ALL or self._must_be_pipelined(edge):
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

    def _must_be_pipelined(self, edge: int) -> bool:
        job = self._topology.job
        return job.datasets[job.edges[edge].dataset].type.must_be_pipelined

    def _is_blocking(self, edge: int) -> bool:
        job = self._topology.job
        return job.datasets[job.edges[edge].dataset].type.is_blocking
