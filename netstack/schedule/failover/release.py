"""The location of each partition of a job, and when the scheduler releases those that it keeps.

Rules:
- A place is the number of a data port: of a TaskManager, or of a slot where each slot is a process. A partition is
  tracked from the moment when its producer has a slot until it is released, its TaskManager is lost, or its producer
  restarts. A lost partition keeps its place: a consumer that is sent there fails and names the partition, and that
  makes its producer restart.
- A group is released when all regions that read it have finished, and again if one of them had to restart.
- A partition that several edges read is released when all its groups were read, and not before all readers exist.
- Partitions that their producer releases, or that outlive the job, are not released here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from ..structures import NOTHING, FlagArray, GrowingArray, IndexArray, distinct, index_array
from ..topology.execution_graph import ExecutionGraph
from ..topology.regions import Regions

NOWHERE: Final = -1


@final
class PartitionTracker:
    """The places of all partitions."""

    __slots__ = ("_attempts", "_is_tracked", "_places")

    def __init__(self) -> None:
        self._places = GrowingArray(np.int32)
        self._attempts = GrowingArray(np.uint32)
        self._is_tracked = GrowingArray(np.bool_)

    def grow(self, count: int) -> None:
        """Adds partitions without a place."""
        self._places.extend_with(NOWHERE, count)
        self._attempts.extend_with(0, count)
        self._is_tracked.extend_with(False, count)

    def __len__(self) -> int:
        return len(self._is_tracked)

    @property
    def places(self) -> IndexArray:
        """The place that has or had each partition, or `NOWHERE`; a view."""
        return self._places.view

    @property
    def attempts(self) -> npt.NDArray[np.uint32]:
        """The producer's attempt of each partition that has a place; a view."""
        return self._attempts.view

    @property
    def is_tracked(self) -> FlagArray:
        """Whether each partition is still there, as far as the scheduler knows; a view."""
        return self._is_tracked.view

    @property
    def is_registered(self) -> FlagArray:
        """Whether each partition has a place that consumers may learn, lost or not."""
        registered: FlagArray = self._places.view != NOWHERE
        return registered

    def track(self, partitions: IndexArray, places: IndexArray, attempts: npt.NDArray[np.uint32]) -> None:
        """Records that partitions are, or will be, in these places."""
        self._places.view[partitions] = places
        self._attempts.view[partitions] = attempts
        self._is_tracked.view[partitions] = True

    def tracked(self, partitions: IndexArray) -> IndexArray:
        """The partitions that are still there."""
        tracked: IndexArray = partitions[self._is_tracked.view[partitions]]
        return tracked

    def release(self, partitions: IndexArray) -> None:
        """Records that partitions are no longer there; their producers keep their state."""
        self._is_tracked.view[partitions] = False

    def forget(self, partitions: IndexArray) -> None:
        """Records that the producers of partitions restart: the partitions have no place until then."""
        self._is_tracked.view[partitions] = False
        self._places.view[partitions] = NOWHERE

    def lose(self, places: range) -> None:
        """Records that all partitions in the places of a TaskManager are lost."""
        numbers = self._places.view
        self._is_tracked.view[(numbers >= places.start) & (numbers < places.stop)] = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """What is no longer needed.

    Attributes:
        groups: all of whose consumers are done: their descriptors are no longer needed.
        partitions: that no edge needs, ascending within each group.
    """

    groups: tuple[int, ...]
    partitions: IndexArray


_KEEP_ALL = Release((), NOTHING)


@final
class PartitionRelease:
    """Counts what is unfinished: subtasks of each region, regions that read each group.

    Args:
        regions: of that topology; extend them before `extend` is called here.
    """

    def __init__(self, topology: ExecutionGraph, regions: Regions) -> None:
        self._topology = topology
        self._regions = regions
        self._is_finished = GrowingArray(np.bool_)
        self._unfinished_subtasks = GrowingArray()
        self._unfinished_readers = GrowingArray()
        self.extend()

    def extend(self) -> None:
        """Extends the counters to a topology that has grown."""
        before = len(self._is_finished)
        new = np.arange(before, self._topology.subtask_count, dtype=np.int32)
        self._is_finished.extend_with(False, new.size)
        self._unfinished_subtasks.extend(self._regions.sizes()[len(self._unfinished_subtasks) :])
        self._unfinished_readers.extend_with(0, len(self._topology.groups) - len(self._unfinished_readers))
        # The readers of a new group are new themselves, so none has finished.
        np.add.at(self._unfinished_readers.view, self._read_by(new), np.int32(1))

    def on_finished(self, subtask: int) -> Release:
        """Counts a finished subtask, once, and returns what is no longer needed."""
        if self._is_finished.view[subtask]:
            return _KEEP_ALL
        self._is_finished.view[subtask] = True
        region = int(self._regions.region_of[subtask])
        self._unfinished_subtasks.view[region] -= 1
        if self._unfinished_subtasks.view[region] > 0:
            return _KEEP_ALL
        members = self._regions.members(region)
        if members.size == 1:
            read = self._topology.consumed_groups(subtask)
        else:
            read = tuple(self._topology.consumed_by_all(members).tolist())
        done = [group for group in read if self._is_read(group)]
        if not done:
            return _KEEP_ALL
        return Release(tuple(done), np.concatenate([self._unneeded(group) for group in done]))

    def on_reset(self, subtasks: IndexArray) -> None:
        """Counts subtasks that restart: their regions are unfinished and need their inputs."""
        again = distinct(subtasks[self._is_finished.view[subtasks]])
        if not again.size:
            return
        self._is_finished.view[again] = False
        regions = self._regions.of_subtasks(again)
        was_finished = regions[self._unfinished_subtasks.view[regions] == 0]
        np.add.at(self._unfinished_subtasks.view, self._regions.region_of[again], np.int32(1))
        members = np.sort(self._regions.members_of_all(was_finished).subtasks)
        np.add.at(self._unfinished_readers.view, self._read_by(members), np.int32(1))

    def _is_read(self, group: int) -> bool:
        """Counts one more reader of a group; returns whether it was the last and the scheduler releases the group."""
        self._unfinished_readers.view[group] -= 1
        type = self._topology.groups.type_of(group)
        return bool(
            self._unfinished_readers.view[group] == 0 and type.is_released_by_scheduler and not type.is_persistent
        )

    def _read_by(self, subtasks: IndexArray) -> IndexArray:
        """The groups that ascending subtasks read: each as often as regions among them read it."""
        topology, region_of, count = self._topology, self._regions.region_of, np.int64(max(len(self._regions), 1))
        groups = [NOTHING]
        for vertex, indices in topology.by_vertex(subtasks):
            region = region_of[indices + np.int32(topology.subtasks_of(vertex).start)]
            for edge in topology.inputs_of(vertex):
                group = topology.connection(edge).all_consumed_by(indices)
                # A group belongs to one edge, so pairs of different edges differ.
                groups.append(index_array(np.unique(group * count + region) // count))
        return np.concatenate(groups)

    def _unneeded(self, group: int) -> IndexArray:
        """The partitions of a group that no other edge has yet to read."""
        topology = self._topology
        partitions = topology.groups.partitions_of(group)
        dataset = int(topology.groups.dataset[group])
        indices = np.arange(len(partitions), dtype=np.int32) + np.int32(
            partitions.start - topology.partitions_of(dataset).start
        )
        is_needed = np.zeros(indices.size, np.bool_)
        for edge in topology.edges_of(dataset):
            if not topology.is_initialised(topology.job.edges[edge].consumer):
                return NOTHING
            connection = topology.connection(edge)
            if connection.row_of_partition is None:
                is_needed |= self._unfinished_readers.view[connection.first_group] > 0
                continue
            rows = connection.row_of_partition[indices + 1] - connection.row_of_partition[indices]
            is_unread = self._unfinished_readers.view[connection.of_partitions(indices)] > 0
            is_needed[np.repeat(np.arange(indices.size), rows)[is_unread]] = True
        return (indices + np.int32(topology.partitions_of(dataset).start))[~is_needed]
