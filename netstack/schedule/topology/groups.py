"""Partition groups: which partitions have the same consumers, for every edge of a topology, in arrays.

Rules: one group number stands for a ConsumedPartitionGroup (the partitions) and its ConsumerVertexGroup (their
consumers). The partitions of a group have consecutive numbers. An all-to-all edge is one group, whatever its
parallelism; nothing here is stored per pair of producer and consumer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np

from ...base.ids import ResultPartitionType
from ..structures import NOTHING, FlagArray, GrowingArray, IndexArray, distinct, expand_ranges, index_array, offsets_of
from .distribution import InputInfo

_TYPES = tuple(ResultPartitionType)
_IS_BLOCKING = np.array([type.is_blocking for type in _TYPES])
_MUST_BE_PIPELINED = np.array([type.must_be_pipelined for type in _TYPES])
_COLUMNS = (
    "edge", "dataset", "partition_start", "partition_stop", "consumer_start", "consumer_stop", "unfinished",
    "type_code", "consumers",
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True, eq=False)
class EdgeGroups:
    """The groups of one edge.

    Attributes:
        groups: how many it has.
        group_of_consumer: by the consumer's index; None: there is one group, of all consumers.
        row_of_partition: where the groups of a partition begin in `partition_groups`; None: there is one group.
        partition_groups: group numbers, by the producer's index.
    """

    first_group: int
    groups: int
    group_of_consumer: IndexArray | None = None
    row_of_partition: IndexArray | None = None
    partition_groups: IndexArray = field(default_factory=lambda: NOTHING)

    def consumed_by(self, index: int) -> int:
        """The group that one consumer reads."""
        if self.group_of_consumer is None:
            return self.first_group
        return int(self.group_of_consumer[index])

    def all_consumed_by(self, indices: IndexArray) -> IndexArray:
        """The group of each of several consumers."""
        if self.group_of_consumer is None:
            return np.full(indices.size, self.first_group, np.int32)
        return self.group_of_consumer[indices]

    def distinct_consumed_by(self, indices: IndexArray) -> IndexArray:
        """The groups that any of several consumers reads, each once, ascending."""
        if self.group_of_consumer is None:
            return np.full(min(indices.size, 1), self.first_group, np.int32)
        return distinct(self.group_of_consumer[indices])

    def of_partition(self, index: int) -> tuple[int, ...]:
        """The groups that contain one producer's partition."""
        if self.row_of_partition is None:
            return (self.first_group,)
        return tuple(self.partition_groups[self.row_of_partition[index] : self.row_of_partition[index + 1]].tolist())

    def of_partitions(self, indices: IndexArray) -> IndexArray:
        """The groups of several producers' partitions, one after the other."""
        if self.row_of_partition is None:
            return np.full(min(indices.size, 1), self.first_group, np.int32)
        rows = expand_ranges(self.row_of_partition[indices], self.row_of_partition[indices + 1])
        return self.partition_groups[rows]

    def distinct_of_partitions(self, indices: IndexArray) -> IndexArray:
        """The groups of several producers' partitions, each once, ascending."""
        groups = self.of_partitions(indices)
        return groups if groups.size < 2 else distinct(groups)


@final
class GroupTable:
    """Every group of a topology, as arrays; take the arrays again after the topology has grown.

    Attributes:
        partition_start: number of its first partition, by group.
        partition_stop: one past its last partition, by group.
        consumer_start: where its consumers begin in `consumers`, by group.
        consumer_stop: where they end, by group.
        unfinished: partitions whose data are incomplete, by group.
        type_code: index in `ResultPartitionType`, by group.
        consumers: numbers of subtasks.
    """

    def __init__(self) -> None:
        self._grown = {name: GrowingArray() for name in _COLUMNS}
        self._renew_views()

    def _renew_views(self) -> None:
        self.edge: IndexArray = self._grown["edge"].view
        self.dataset: IndexArray = self._grown["dataset"].view
        self.partition_start: IndexArray = self._grown["partition_start"].view
        self.partition_stop: IndexArray = self._grown["partition_stop"].view
        self.consumer_start: IndexArray = self._grown["consumer_start"].view
        self.consumer_stop: IndexArray = self._grown["consumer_stop"].view
        self.unfinished: IndexArray = self._grown["unfinished"].view
        self.type_code: IndexArray = self._grown["type_code"].view
        self.consumers: IndexArray = self._grown["consumers"].view

    def __len__(self) -> int:
        return self.edge.size

    def connect_all(
        self, edge: int, dataset: int, type: ResultPartitionType, partitions: range, subtasks: range
    ) -> EdgeGroups:
        """Connects every partition with every subtask: one group."""
        first = len(self)
        self._append(
            edge, dataset, type, index_array([partitions.start]), index_array([partitions.stop]),
            index_array([len(subtasks)]), np.arange(subtasks.start, subtasks.stop, dtype=np.int32),
        )  # fmt: skip
        return EdgeGroups(first, 1)

    def connect_ranges(
        self,
        edge: int,
        dataset: int,
        type: ResultPartitionType,
        partitions: range,
        subtasks: range,
        reads: InputInfo,
    ) -> EdgeGroups:
        """Makes one group for all subtasks that read the same partitions, in the order of their first subtasks."""
        start, stop = reads.partition_ranges()
        key = start.astype(np.int64) * (len(partitions) + 1) + stop
        _, first_reader, group = np.unique(key, return_index=True, return_inverse=True)
        rank = np.empty(first_reader.size, np.int32)
        rank[np.argsort(first_reader)] = np.arange(first_reader.size, dtype=np.int32)
        group = rank[group]
        first_reader = np.sort(first_reader)
        start, stop = start[first_reader], stop[first_reader]
        first = len(self)
        self._append(
            edge, dataset, type, start + partitions.start, stop + partitions.start,
            index_array(np.bincount(group, minlength=first_reader.size)),
            index_array(np.argsort(group, kind="stable") + subtasks.start),
        )  # fmt: skip
        partition = expand_ranges(start, stop)
        groups = np.repeat(np.arange(first_reader.size, dtype=np.int32), stop - start)
        counts = index_array(np.bincount(partition, minlength=len(partitions)))
        in_order = groups[np.argsort(partition, kind="stable")] + first
        return EdgeGroups(first, first_reader.size, group + first, offsets_of(counts), index_array(in_order))

    def type_of(self, group: int) -> ResultPartitionType:
        """The partition type of a group."""
        return _TYPES[int(self.type_code[group])]

    def are_blocking(self, groups: IndexArray) -> FlagArray:
        """For each group, whether its partitions can be consumed only when they are complete."""
        return _IS_BLOCKING[self.type_code[groups]]

    def must_be_pipelined(self, groups: IndexArray) -> FlagArray:
        """For each group, whether its producers and consumers must run at the same time."""
        return _MUST_BE_PIPELINED[self.type_code[groups]]

    def partitions_of(self, group: int) -> range:
        """Numbers of its partitions."""
        return range(int(self.partition_start[group]), int(self.partition_stop[group]))

    def consumers_of(self, group: int) -> IndexArray:
        """Numbers of its consumers."""
        return self.consumers[self.consumer_start[group] : self.consumer_stop[group]]

    def over_partitions(
        self, groups: IndexArray, is_set: Callable[[IndexArray], FlagArray], combine: np.ufunc
    ) -> FlagArray:
        """For each group, the flags of its partitions combined by `np.logical_and` or `np.logical_or`."""
        each, position = np.unique(groups, return_inverse=True)
        sizes = self.partition_stop[each] - self.partition_start[each]
        flags = is_set(self.partitions_of_all(each))
        combined: FlagArray = combine.reduceat(flags, np.cumsum(sizes) - sizes)[position]
        return combined

    def partitions_of_all(self, groups: IndexArray) -> IndexArray:
        """Partitions of several groups, one group after the other."""
        return expand_ranges(self.partition_start[groups], self.partition_stop[groups])

    def consumers_of_all(self, groups: IndexArray) -> IndexArray:
        """Consumers of several groups, one group after the other."""
        return self.consumers[expand_ranges(self.consumer_start[groups], self.consumer_stop[groups])]

    def _append(
        self,
        edge: int,
        dataset: int,
        type: ResultPartitionType,
        start: IndexArray,
        stop: IndexArray,
        consumer_counts: IndexArray,
        consumers: IndexArray,
    ) -> None:
        offsets = offsets_of(consumer_counts) + np.int32(self.consumers.size)
        grown = self._grown
        for name, value in (("edge", edge), ("dataset", dataset), ("type_code", _TYPES.index(type))):
            grown[name].extend_with(value, start.size)
        grown["partition_start"].extend(start)
        grown["partition_stop"].extend(stop)
        grown["consumer_start"].extend(offsets[:-1])
        grown["consumer_stop"].extend(offsets[1:])
        grown["unfinished"].extend(stop - start)
        grown["consumers"].extend(consumers)
        self._renew_views()
