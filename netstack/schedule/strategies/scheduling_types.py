"""The scheduling types before pipelined regions: all at once, or each stage on first or complete output of its inputs.

Rules:
- Lazy on first output: a pipelined partition is consumable from its first buffer, a blocking one when its whole dataset
  is finished. Lazy on complete output: every type needs the whole dataset.
- An input is consumable when any partition that the subtask reads of it is. ANY needs one such input, ALL needs all.
- Regions replaced the lazy types because these can give a consumer the only slot that its producer needs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import final

import numpy as np

from ...base.errors import ConfigError
from ..graph.job_graph import JobGraph
from ..structures import NOTHING, Batches, FlagArray, GrowingArray, IndexArray, distinct, one_batch, single_batches
from ..topology.execution_graph import ExecutionGraph

_NO_BATCHES = one_batch(NOTHING)


class SchedulingType(enum.Enum):
    """When a stage is deployed, relative to the stage before it."""

    ALL_AT_ONCE = "all_at_once"
    NEXT_STAGE_ON_FIRST_OUTPUT = "next_stage_on_first_output"
    NEXT_STAGE_ON_COMPLETE_OUTPUT = "next_stage_on_complete_output"


class InputConstraint(enum.Enum):
    """How many inputs of a subtask must be consumable."""

    ANY = "any"
    ALL = "all"


def check_scheduling(job: JobGraph, type: SchedulingType) -> None:
    """Rejects jobs that the scheduling type would deadlock.

    Raises:
        ConfigError: a blocking result with ALL_AT_ONCE (its readers would hold their slots until it ends), or a
            pipelined result with NEXT_STAGE_ON_COMPLETE_OUTPUT (its writer and its readers would wait for each other).
    """
    for dataset in job.datasets:
        if type is SchedulingType.ALL_AT_ONCE and dataset.type.is_blocking:
            raise ConfigError(
                f"job {job.name!r}: {dataset.name!r} is {dataset.type.value}, so it is read when complete, but"
                f" scheduling={type.value} deploys its readers at once; give next_stage_on_complete_output, or a"
                " pipelined or hybrid exchange"
            )
        if type is SchedulingType.NEXT_STAGE_ON_COMPLETE_OUTPUT and dataset.type.must_be_pipelined:
            raise ConfigError(
                f"job {job.name!r}: {dataset.name!r} is {dataset.type.value}, so it is read while it is written, but"
                f" scheduling={type.value} deploys its readers afterwards; give all_at_once, or a blocking or hybrid"
                " exchange"
            )


@final
class EagerScheduling:
    """All at once: one batch of every subtask.

    Args:
        topology: of a job whose parallelisms are all known.
    """

    def __init__(self, topology: ExecutionGraph) -> None:
        self._topology = topology
        self._deployed = 0

    def extend(self) -> None:
        """Implements `SchedulingStrategy`."""

    def start(self) -> Batches:
        """Implements `SchedulingStrategy`."""
        self._deployed = self._topology.subtask_count
        return one_batch(np.arange(self._deployed, dtype=np.int32))

    def on_finished(self, subtask: int) -> Batches:
        """Implements `SchedulingStrategy`: schedules subtasks that were added since."""
        added = np.arange(self._deployed, self._topology.subtask_count, dtype=np.int32)
        self._deployed = self._topology.subtask_count
        return one_batch(added)

    def restart(self, subtasks: IndexArray) -> Batches:
        """Implements `SchedulingStrategy`."""
        return one_batch(distinct(subtasks))


@final
class LazyScheduling:
    """Schedules the sources, then each subtask when its inputs are consumable.

    Args:
        type: on which output the next stage is deployed.
        constraint: how many inputs must be consumable.

    Raises:
        ConfigError: `type` is ALL_AT_ONCE.
    """

    def __init__(
        self,
        topology: ExecutionGraph,
        type: SchedulingType = SchedulingType.NEXT_STAGE_ON_FIRST_OUTPUT,
        constraint: InputConstraint = InputConstraint.ANY,
    ) -> None:
        if type is SchedulingType.ALL_AT_ONCE:
            raise ConfigError("LazyScheduling cannot schedule all_at_once: use EagerScheduling")
        self._topology = topology
        self._constraint = constraint
        self._waits_for_all = [
            dataset.type.is_blocking or type is SchedulingType.NEXT_STAGE_ON_COMPLETE_OUTPUT
            for dataset in topology.job.datasets
        ]
        self._is_scheduled = GrowingArray(np.bool_)
        # By partition: whether its producer has finished, or has output where that is enough.
        self._has_output = GrowingArray(np.bool_)
        self._missing = [0] * len(topology.job.datasets)
        self._new = NOTHING
        self.extend()

    def extend(self) -> None:
        """Implements `SchedulingStrategy`."""
        topology = self._topology
        before, now = len(self._is_scheduled), topology.subtask_count
        for dataset in np.unique(topology.dataset_of_partition[len(self._has_output) :]).tolist():
            self._missing[dataset] = len(topology.partitions_of(dataset))
        self._is_scheduled.extend_with(False, now - before)
        self._has_output.extend_with(False, topology.partition_count - len(self._has_output))
        self._new = np.concatenate([self._new, np.arange(before, now, dtype=np.int32)], dtype=np.int32)

    def start(self) -> Batches:
        """Implements `SchedulingStrategy`: subtasks without inputs."""
        candidates, self._new = self._new, NOTHING
        return self._schedule(candidates)

    def on_first_output(self, partition: int) -> Batches:
        """Handles the first buffer of a partition; it has no effect where complete output is needed.

        Returns:
            Subtasks to deploy because of it.
        """
        if self._waits_for_all[int(self._topology.dataset_of_partition[partition])]:
            return _NO_BATCHES
        return self._on_output([partition])

    def on_finished(self, subtask: int) -> Batches:
        """Implements `SchedulingStrategy`."""
        return self._on_output(self._topology.partitions_of_subtask(subtask))

    def restart(self, subtasks: IndexArray) -> Batches:
        """Implements `SchedulingStrategy`: the subtasks' output is void; their inputs count as they are."""
        topology = self._topology
        candidates = distinct(subtasks)
        self._is_scheduled.view[candidates] = False
        for vertex, indices in topology.by_vertex(candidates):
            for dataset in topology.outputs_of(vertex):
                partitions = indices + np.int32(topology.partitions_of(dataset).start)
                self._missing[dataset] += int(np.count_nonzero(self._has_output.view[partitions]))
                self._has_output.view[partitions] = False
        return self._schedule(candidates)

    def _on_output(self, partitions: Iterable[int]) -> Batches:
        topology = self._topology
        candidates = [self._new]
        for partition in partitions:
            dataset = int(topology.dataset_of_partition[partition])
            if self._has_output.view[partition]:
                continue
            if not self._waits_for_all[dataset]:
                # One partition is enough, so only the first of a group matters.
                candidates += [
                    topology.groups.consumers_of(group)
                    for group in topology.groups_of_partition(partition)
                    if not self._has_output.view[_as_slice(topology.groups.partitions_of(group))].any()
                ]
            self._has_output.view[partition] = True
            self._missing[dataset] -= 1
            if self._waits_for_all[dataset] and self._missing[dataset] == 0:
                candidates += [
                    np.arange(topology.subtasks_of(consumer).start, topology.subtasks_of(consumer).stop, dtype=np.int32)
                    for edge in topology.edges_of(dataset)
                    if topology.is_initialised(consumer := topology.job.edges[edge].consumer)
                ]
        self._new = NOTHING
        return self._schedule(distinct(np.concatenate(candidates)))

    def _schedule(self, candidates: IndexArray) -> Batches:
        """Schedules those ascending candidates that are not deployed and whose inputs are consumable."""
        candidates = candidates[~self._is_scheduled.view[candidates]]
        allowed = [NOTHING]
        for vertex, indices in self._topology.by_vertex(candidates):
            inputs = self._topology.inputs_of(vertex)
            own = indices + np.int32(self._topology.subtasks_of(vertex).start)
            if not inputs:
                allowed.append(own)
                continue
            consumable = np.array([self._are_consumable(edge, indices) for edge in inputs])
            holds = consumable.any(axis=0) if self._constraint is InputConstraint.ANY else consumable.all(axis=0)
            allowed.append(own[holds])
        subtasks = np.concatenate(allowed)
        self._is_scheduled.view[subtasks] = True
        return single_batches(subtasks) if subtasks.size else _NO_BATCHES

    def _are_consumable(self, edge: int, indices: IndexArray) -> FlagArray:
        """For each of several consumers, whether it has a consumable partition on one input."""
        dataset = self._topology.job.edges[edge].dataset
        if self._waits_for_all[dataset]:
            return np.full(indices.size, self._missing[dataset] == 0)
        group = self._topology.connection(edge).all_consumed_by(indices)
        has_output = self._has_output.view
        return self._topology.groups.over_partitions(group, lambda each: has_output[each], np.logical_or)


def _as_slice(numbers: range) -> slice:
    return slice(numbers.start, numbers.stop)
