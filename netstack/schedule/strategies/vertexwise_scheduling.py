"""Schedules subtasks one by one, each when everything it reads is there: the strategy of adaptive batch jobs.

Takes: a topology, what counts as being there, and what finished. Gives: one batch per subtask, in topological order.

Rules: as `region_scheduling`, per subtask. Subtasks that were added are considered at the next event. Whole arrays of
candidates are tested at once.
"""

from __future__ import annotations

import enum
from typing import final

import numpy as np

from ...ids import ResultPartitionType
from ..structures.arrays import (
    NOTHING,
    Batches,
    FlagArray,
    GrowingArray,
    IndexArray,
    index_array,
    one_batch,
    single_batches,
)
from ..topology.topology import Topology
from .strategy import taken_in_rounds

_NO_BATCHES = one_batch(NOTHING)


class HybridConsumption(enum.Enum):
    """When a result that is spilled while it may be consumed counts as consumable."""

    UNFINISHED_PRODUCERS = "unfinished_producers"
    """When all its producers are scheduled."""
    ONLY_FINISHED_PRODUCERS = "only_finished_producers"
    """When one of its producers has finished; only what is finished is read."""
    ALL_PRODUCERS_FINISHED = "all_producers_finished"
    """When all are, as a blocking one."""


@final
class VertexwiseScheduling:
    """Every subtask by itself.

    Args:
        topology: of the job.
        hybrid: when hybrid results count as consumable.
    """

    def __init__(self, topology: Topology, hybrid: HybridConsumption = HybridConsumption.UNFINISHED_PRODUCERS) -> None:
        self._topology = topology
        self._hybrid = hybrid
        self._is_scheduled = GrowingArray(np.bool_)
        self._new = NOTHING
        self.extend()

    def extend(self) -> None:
        """See `SchedulingStrategy`."""
        before, now = len(self._is_scheduled), self._topology.subtask_count
        self._is_scheduled.extend_with(False, now - before)
        self._new = np.concatenate([self._new, np.arange(before, now, dtype=np.int32)], dtype=np.int32)

    def start(self) -> Batches:
        """See `SchedulingStrategy`: subtasks that read nothing, and what may run beside them."""
        candidates, self._new = self._new, NOTHING
        return self._schedule(candidates)

    def on_finished(self, subtask: int) -> Batches:
        """See `SchedulingStrategy`."""
        groups = [group for group in self._topology.produced_groups(subtask) if self._may_be_ready(group)]
        if not groups and not self._new.size:
            return _NO_BATCHES
        woken = self._topology.groups.consumers_of_all(index_array(groups))
        candidates = np.union1d(woken, self._new)
        self._new = NOTHING
        return self._schedule(candidates)

    def restart(self, subtasks: IndexArray) -> Batches:
        """See `SchedulingStrategy`."""
        candidates = np.unique(subtasks)
        self._is_scheduled.view[candidates] = False
        return self._schedule(candidates)

    def _may_be_ready(self, group: int) -> bool:
        """Whether the end of a producer can have made a group consumable."""
        rule = self._rule(self._topology.groups.type_of(group))
        return rule is HybridConsumption.ONLY_FINISHED_PRODUCERS or self._topology.is_complete(group)

    def _rule(self, type: ResultPartitionType) -> HybridConsumption:
        """What counts for a type."""
        if type.is_blocking:
            return HybridConsumption.ALL_PRODUCERS_FINISHED
        # What must be pipelined is never finished before its consumers run.
        return self._hybrid if type.is_hybrid else HybridConsumption.UNFINISHED_PRODUCERS

    def _schedule(self, candidates: IndexArray) -> Batches:
        taken = taken_in_rounds(candidates, self._is_scheduled.view, self._consumable, self._reading_early)
        return single_batches(taken) if taken.size else _NO_BATCHES

    def _reading_early(self, subtasks: IndexArray) -> IndexArray:
        """Those that may read results of these before they are complete."""
        produced = self._topology.produced_by_all(subtasks)
        early = produced[~self._topology.groups.are_blocking(produced)]
        return np.unique(self._topology.groups.consumers_of_all(early))

    def _consumable(self, candidates: IndexArray) -> IndexArray:
        """Those of ascending candidates whose inputs are all consumable."""
        topology = self._topology
        found: list[IndexArray] = [NOTHING]
        for vertex, indices in topology.by_vertex(candidates):
            is_ready = np.ones(indices.size, np.bool_)
            for edge in topology.inputs_of(vertex):
                is_ready &= self._are_consumable(edge, topology.connection(edge).all_consumed_by(indices))
            found.append(indices[is_ready] + np.int32(topology.subtasks_of(vertex).start))
        return np.concatenate(found)

    def _are_consumable(self, edge: int, group: IndexArray) -> FlagArray:
        """Whether each group is consumable."""
        topology, groups = self._topology, self._topology.groups
        rule = self._rule(topology.job.datasets[topology.job.edges[edge].dataset].type)
        if rule is HybridConsumption.ALL_PRODUCERS_FINISHED:
            complete: FlagArray = groups.unfinished[group] == 0
            return complete
        if rule is HybridConsumption.ONLY_FINISHED_PRODUCERS:
            begun: FlagArray = groups.unfinished[group] < groups.partition_stop[group] - groups.partition_start[group]
            return begun
        distinct, position = np.unique(group, return_inverse=True)
        producers = topology.producer_of_partition[groups.partitions_of_all(distinct)]
        sizes = groups.partition_stop[distinct] - groups.partition_start[distinct]
        is_running = self._is_scheduled.view[producers]
        consumable: FlagArray = np.logical_and.reduceat(is_running, np.cumsum(sizes) - sizes)[position]
        return consumable
