"""Groups of a topology as objects, which nothing but tests makes: one view for each of a group's two faces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from netstack.base.ids import ResultPartitionType
from netstack.schedule.topology.groups import GroupTable


@final
@dataclass(frozen=True, slots=True)
class ConsumedPartitionGroup:
    """The partitions that the same subtasks consume over one edge; equal when the number is.

    Attributes:
        number: of the group in its topology.
        partitions: numbers of the partitions, in order of their producers.
        type: of their dataset.
        dataset: index in the job graph.
        edge: index in the job graph.
        consumers: how many subtasks read them.
    """

    number: int
    partitions: range
    type: ResultPartitionType
    dataset: int
    edge: int
    consumers: int


@final
@dataclass(frozen=True, slots=True)
class ConsumerVertexGroup:
    """The subtasks that consume the same partitions over one edge; equal when the number is.

    Attributes:
        number: of the group in its topology: that of their ConsumedPartitionGroup.
        subtasks: numbers of the subtasks, in order.
        type: of the dataset they consume.
        partitions: how many partitions they read.
    """

    number: int
    subtasks: tuple[int, ...]
    type: ResultPartitionType
    partitions: int


def consumed_partition_group(groups: GroupTable, group: int) -> ConsumedPartitionGroup:
    """Its partitions."""
    return ConsumedPartitionGroup(
        group,
        groups.partitions_of(group),
        groups.type_of(group),
        int(groups.dataset[group]),
        int(groups.edge[group]),
        len(groups.consumers_of(group)),
    )


def consumer_vertex_group(groups: GroupTable, group: int) -> ConsumerVertexGroup:
    """Its consumers."""
    return ConsumerVertexGroup(
        group, tuple(groups.consumers_of(group).tolist()), groups.type_of(group), len(groups.partitions_of(group))
    )
