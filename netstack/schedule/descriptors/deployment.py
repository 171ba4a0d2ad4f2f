"""Makes the task deployment descriptors of a job: shared parts once, the rest from arrays, one descriptor at a time.

Rules:
- The list of shuffle descriptors of a group is made for its first consumer, and again after it was invalidated.
- In a streaming job every partition that must be pipelined has a known location. Otherwise a location may be unknown:
  once it is known, later consumers get it in a further list, and deployed consumers in an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ...base.errors import LocalProtocolError
from ...base.ids import ResultPartitionType
from ..execution import Executions
from ..failover.release import PartitionTracker
from ..instructions import Deploy
from ..structures import FlagArray, IndexArray, index_array
from ..topology.execution_graph import ExecutionGraph
from .blob_store import BlobKind, DescriptorCache, Offloader
from .descriptors import (
    ExecutionAttemptId,
    GatePiece,
    InputGateDescriptor,
    MaybeOffloaded,
    PartitionDescriptor,
    TaskDeploymentDescriptor,
)
from .information import JobInformation, TaskInformation
from .shuffle import (
    UNKNOWN,
    ShuffleDescriptors,
    TaskManagerLocation,
    announceable,
    compress,
    execution_name,
    partition_name,
)


@final
@dataclass(frozen=True, slots=True)
class _Output:
    """A dataset that subtasks of one vertex write."""

    execution: str
    dataset: str
    type: ResultPartitionType
    subpartitions: list[int]
    max_parallelism: int

    def partition(self, position: int, index: int, attempt: int) -> PartitionDescriptor:
        return PartitionDescriptor(
            partition_name(self.execution, self.dataset, index, attempt),
            self.subpartitions[position],
            self.type,
            self.dataset,
            self.max_parallelism,
        )


@final
class Deployment:
    """The descriptors of one job.

    Args:
        executions: their states and attempts.
        tracker: places of partitions.
        locations: by place number of `tracker`; it grows.
        offloader: for large parts.
        only_finished: whether only finished partitions of hybrid results are announced.
        life: see `execution_name`.
    """

    def __init__(
        self,
        information: JobInformation,
        topology: ExecutionGraph,
        executions: Executions,
        tracker: PartitionTracker,
        locations: Sequence[TaskManagerLocation],
        offloader: Offloader,
        *,
        only_finished: bool,
        life: int = 0,
    ) -> None:
        self._job_id = information.job_id
        self.execution = execution_name(information.job_id, life)
        self._topology = topology
        self._executions = executions
        self._tracker = tracker
        self._locations = locations
        self._offloader = offloader
        self._only_finished = only_finished
        self.cache = DescriptorCache(offloader)
        job = topology.job
        self._may_be_unknown = information.reports_first_output or any(
            dataset.type.is_blocking or dataset.type.is_hybrid for dataset in job.datasets
        )
        self._job_information = offloader.information(BlobKind.JOB_INFORMATION, information.pack())
        self._task_information: dict[int, MaybeOffloaded] = {}
        # By group with unknown partitions: what its cached lists contain, what its deployed consumers received, and
        # which groups may have an update for them.
        self._announced: dict[int, FlagArray] = {}
        self._sent: dict[int, FlagArray] = {}
        self._changed: set[int] = set()

    def descriptors(self, deploy: Deploy) -> Iterator[tuple[int, bytes]]:
        """Each subtask of an instruction with its serialised descriptor.

        Raises:
            LocalProtocolError: the location of a partition that must be pipelined is unknown, in a streaming job.
            BlobError: a list must be offloaded and cannot be.
        """
        slots = iter(deploy.slots)
        attempts = iter(deploy.attempts.tolist())
        for vertex, indices in self._topology.by_vertex(deploy.subtasks):
            first = self._topology.subtasks_of(vertex).start
            task_information = self._information_of(vertex)
            gates = zip(*[self._gates(edge, indices) for edge in self._topology.inputs_of(vertex)], strict=True)
            outputs = [self._output(dataset, indices) for dataset in self._topology.outputs_of(vertex)]
            for position, index in enumerate(indices.tolist()):
                attempt, slot = next(attempts), next(slots)
                descriptor = TaskDeploymentDescriptor(
                    ExecutionAttemptId(self._job_id, vertex, index, attempt),
                    f"{slot.location.taskmanager}/{slot.index}",
                    self._job_information,
                    task_information,
                    deploy.restore,
                    tuple(output.partition(position, index, attempt) for output in outputs),
                    next(gates, ()),
                )
                yield first + index, descriptor.pack()

    def invalidate(self, groups: IndexArray) -> None:
        """Drops the lists of groups whose partitions were released, or whose producers were reset."""
        numbers = groups.tolist()
        self.cache.invalidate(numbers)
        for group in numbers:
            self._announced.pop(group, None)
            self._sent.pop(group, None)

    def on_moved(self, groups: IndexArray) -> None:
        """Drops the lists of groups whose partitions have moved; deployed consumers keep reading at the old place."""
        self.cache.invalidate(groups.tolist())
        for group in groups.tolist():
            self._announced.pop(group, None)

    def on_produced(self, subtasks: IndexArray) -> None:
        """Notes subtasks that got a slot or have finished: their partitions may be announced to deployed consumers."""
        if self._sent:
            self._changed.update(self._sent.keys() & set(self._topology.produced_by_all(subtasks).tolist()))

    def updates(self) -> list[tuple[int, bytes]]:
        """For each group with newly known partitions, a compressed list for its deployed consumers; returned once."""
        result = []
        for group in sorted(self._changed & self._sent.keys()):
            is_known = self._announceable(group)
            new = index_array(np.flatnonzero(is_known & ~self._sent[group]))
            if new.size:
                result.append((group, compress(self._describe(group, new, is_known[new]).serialised())))
                self._sent[group] |= is_known
            if self._sent[group].all():
                del self._sent[group]
        self._changed.clear()
        return result

    def clear(self) -> None:
        """Deletes everything of the job from the store."""
        self.cache.clear()
        self._announced.clear()
        self._sent.clear()
        self._offloader.discard(self._job_information)
        for information in self._task_information.values():
            self._offloader.discard(information)
        self._task_information.clear()

    def _information_of(self, vertex: int) -> MaybeOffloaded:
        information = self._task_information.get(vertex)
        if information is None:
            task = TaskInformation.of(self._topology.job, vertex, self._topology.parallelism_of)
            information = self._offloader.information(BlobKind.TASK_INFORMATION, task.pack())
            self._task_information[vertex] = information
        return information

    def _output(self, dataset: int, indices: IndexArray) -> _Output:
        """What several producers of a dataset have in common."""
        job = self._topology.job
        limits = [job.vertices[job.edges[edge].consumer].max_parallelism for edge in self._topology.edges_of(dataset)]
        return _Output(
            self.execution,
            job.datasets[dataset].name,
            job.datasets[dataset].type,
            self._topology.subpartition_counts(dataset)[indices].tolist(),
            max(limits, default=1),
        )

    def _gates(self, edge: int, indices: IndexArray) -> Iterator[InputGateDescriptor]:
        """The input gate of each of several consumers for an edge."""
        topology, groups = self._topology, self._topology.groups
        read = topology.job.edges[edge]
        dataset = read.dataset
        described = topology.job.datasets[dataset]
        consumed = topology.connection(edge).all_consumed_by(indices)
        distinct = np.unique(consumed).tolist()
        shared = {group: self._lists(group) for group in distinct}
        sizes = {group: len(groups.partitions_of(group)) for group in distinct}
        starts = groups.partition_start[consumed] - np.int32(topology.partitions_of(dataset).start)
        for pieces, group in zip(self._pieces(edge, indices, starts), consumed.tolist(), strict=True):
            yield InputGateDescriptor(
                described.name, described.type, sizes[group], pieces, shared[group], read.is_prompt
            )

    def _pieces(self, edge: int, indices: IndexArray, group_starts: IndexArray) -> Iterator[tuple[GatePiece, ...]]:
        """What each of several consumers reads, relative to the first partition of its group."""
        reads = self._topology.input_info(edge)
        first, stop = reads.offsets[indices], reads.offsets[indices + 1]
        if np.all(stop - first == 1):
            columns = (
                reads.partition_start[first] - group_starts,
                reads.partition_stop[first] - group_starts,
                reads.subpartition_start[first],
                reads.subpartition_stop[first],
            )
            yield from (((a, b, c, d),) for a, b, c, d in zip(*(column.tolist() for column in columns), strict=True))
            return
        for index, start in zip(indices.tolist(), group_starts.tolist(), strict=True):
            yield tuple(
                (
                    piece.partitions.start - start,
                    piece.partitions.stop - start,
                    piece.subpartitions.start,
                    piece.subpartitions.stop,
                )
                for piece in reads.pieces_of(index)
            )

    def _lists(self, group: int) -> tuple[MaybeOffloaded, ...]:
        """The lists of a group for a consumer that is deployed now."""
        lists = self.cache.lists(group)
        if lists is None:
            is_known = self._announceable(group)
            every = index_array(np.arange(is_known.size))
            consumers = int(self._topology.groups.consumer_stop[group] - self._topology.groups.consumer_start[group])
            lists = self.cache.put(group, self._describe(group, every, is_known), consumers)
            if not is_known.all():
                self._announced[group] = is_known
                self._sent.setdefault(group, is_known.copy())
        elif group in self._announced:
            is_known = self._announceable(group)
            new = index_array(np.flatnonzero(is_known & ~self._announced[group]))
            if new.size:
                lists = self.cache.add(group, self._describe(group, new, is_known[new]))
                self._announced[group] |= is_known
        return lists

    def _announceable(self, group: int) -> FlagArray:
        """Whether each partition of a group may be announced.

        Raises:
            LocalProtocolError: not all may, though the job is a streaming job and they must be pipelined.
        """
        partitions = self._topology.groups.partitions_of(group)
        rows = slice(partitions.start, partitions.stop)
        result_type = self._topology.groups.type_of(group)
        is_produced = self._topology.is_finished[rows]
        is_alive = self._executions.producing(self._topology.producer_of_partition[rows])
        is_known = announceable(result_type, is_produced, self._tracker.is_registered[rows], is_alive)
        if result_type.is_hybrid and self._only_finished:
            is_known = is_known & is_produced
        if result_type.must_be_pipelined and not self._may_be_unknown and not is_known.all():
            partition = partitions[int(np.argmin(is_known))]
            raise LocalProtocolError(
                f"{self._describe_producer(partition, result_type)} has no location, but its consumers are deployed:"
                " a streaming job deploys producers with or before their consumers"
            )
        return is_known

    def _describe_producer(self, partition: int, result_type: ResultPartitionType) -> str:
        producer = int(self._topology.producer_of_partition[partition])
        vertex, index = self._topology.place_of(producer)
        name = self._topology.job.vertices[vertex].name
        state = self._executions.state(producer).value
        return f"{result_type.value} partition {index} of {name!r}, whose producer is {state},"

    def _describe(self, group: int, positions: IndexArray, is_known: FlagArray) -> ShuffleDescriptors:
        dataset = int(self._topology.groups.dataset[group])
        partitions = positions + np.int32(self._topology.groups.partition_start[group])
        producers = self._topology.producer_of_partition[partitions]
        return ShuffleDescriptors.of(
            self.execution,
            self._topology.job.datasets[dataset].name,
            self._locations,
            index=positions,
            partition=partitions - np.int32(self._topology.partitions_of(dataset).start),
            attempt=self._executions.attempts[producers],
            # Both sides are uint32: since NumPy 2.5 an int32 array no longer takes a number of 32 bits beside it.
            taskmanager=np.where(is_known, self._tracker.places[partitions].astype(np.uint32), np.uint32(UNKNOWN)),
        )
