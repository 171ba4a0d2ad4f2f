"""Pipelined regions: subtasks that are scheduled together and fail together.

Rules:
- Each logical region is divided by itself. If it contains an all-to-all edge of any type, it is one region: pipelined
  subtasks run together, and blocking ones would wait for each other in a cycle. Otherwise subtasks are joined along
  pointwise edges that must be pipelined, and regions on a cycle are merged.
- Regions are numbered by their first subtask, so in topological order; regions added later get higher numbers.
- The work is linear in subtasks and groups; an all-to-all edge is never expanded into pairs.
"""

from __future__ import annotations

from typing import final

import numpy as np

from ...base.errors import ConfigError
from ..graph.job_graph import DistributionPattern
from ..graph.slot_groups import acyclic_logical_regions
from ..structures import (
    NOTHING,
    Batches,
    GrowingArray,
    IndexArray,
    connected_components,
    distinct,
    expand_ranges,
    index_array,
    strongly_connected_components,
)
from .execution_graph import ExecutionGraph

_FEW = 16


@final
class Regions:
    """The regions of a topology.

    Args:
        topology: its present subtasks are divided at once; call `extend` after it has grown.

    Raises:
        ConfigError: see `extend`.
    """

    def __init__(self, topology: ExecutionGraph) -> None:
        self._topology = topology
        self._logical_of = [0] * len(topology.job.vertices)
        self._logical = acyclic_logical_regions(topology.job)
        for number, vertices in enumerate(self._logical):
            for vertex in vertices:
                self._logical_of[vertex] = number
        self._converted: set[int] = set()
        self._vertices_seen = 0
        self._region_of = GrowingArray()
        self._members = GrowingArray()
        self._offsets = GrowingArray()
        self._offsets.extend([0])
        self.extend()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def region_of(self) -> IndexArray:
        """The region of every subtask, by its number."""
        return self._region_of.view

    def members(self, region: int) -> IndexArray:
        """The subtasks of a region, ascending."""
        offsets = self._offsets.view
        return self._members.view[offsets[region] : offsets[region + 1]]

    def sizes(self) -> IndexArray:
        """Number of subtasks of each region."""
        return np.diff(self._offsets.view)

    def members_of_all(self, regions: IndexArray) -> Batches:
        """The subtasks of several regions: a batch for each, in the order given."""
        offsets = self._offsets.view
        starts, stops = offsets[regions], offsets[regions + 1]
        bounds = np.concatenate([[0], np.cumsum(stops - starts)])
        return Batches(self._members.view[expand_ranges(starts, stops)], index_array(bounds))

    def of_subtasks(self, subtasks: IndexArray) -> IndexArray:
        """The regions of several subtasks, each once, ascending."""
        if _FEW * subtasks.size < len(self):
            return distinct(self._region_of.view[subtasks])
        # For many subtasks, marking is several times faster than sorting.
        is_met = np.zeros(len(self), np.bool_)
        is_met[self._region_of.view[subtasks]] = True
        return index_array(np.flatnonzero(is_met))

    def extend(self) -> range:
        """Divides the subtasks that the topology has got since the last call.

        Returns:
            Numbers of the new regions.

        Raises:
            ConfigError: only a part of a logical region was initialised, or subtasks that must share a slot are in
                different regions.
        """
        vertices = self._topology.initialised[self._vertices_seen :]
        if not vertices:
            return range(len(self), len(self))
        touched = sorted({self._logical_of[vertex] for vertex in vertices})
        self._require_whole(touched, set(vertices))
        first = len(self._region_of)
        label = self._divide(touched, first)
        # The smallest subtask of a region is its label, so sorted labels number regions in topological order.
        labels, region = np.unique(label, return_inverse=True)
        before = len(self)
        members = index_array(np.argsort(region, kind="stable")) + np.int32(first)
        sizes = np.bincount(region, minlength=labels.size)
        self._region_of.extend(region + before)
        self._members.extend(members)
        self._offsets.extend(np.cumsum(sizes) + first)
        self._vertices_seen += len(vertices)
        self._converted.update(touched)
        self._check_co_location(set(vertices))
        return range(before, len(self))

    def _require_whole(self, touched: list[int], new: set[int]) -> None:
        """Checks that logical regions are initialised as a whole."""
        names = self._topology.job.vertices
        for number in touched:
            missing = [names[vertex].name for vertex in self._logical[number] if vertex not in new]
            if missing:
                raise ConfigError(
                    f"vertices {missing} must run at the same time as vertices that were just initialised:"
                    " initialise all vertices of a pipelined region in one go"
                )

    def _divide(self, touched: list[int], first: int) -> IndexArray:
        """The smallest subtask of the region of each new subtask, both counted from `first`."""
        topology = self._topology
        inside = [
            [edge for vertex in self._logical[number] for edge in topology.inputs_of(vertex) if self._is_inside(edge)]
            for number in touched
        ]
        ones: list[IndexArray] = [NOTHING]
        others: list[IndexArray] = [NOTHING]
        pointwise: list[int] = []
        for number, edges in zip(touched, inside, strict=True):
            if any(topology.job.edges[edge].pattern is DistributionPattern.ALL_TO_ALL for edge in edges):
                together = self._subtasks_of_logical(number)
                ones.append(np.full(together.size, together[0], np.int32))
                others.append(together)
                continue
            for edge in edges:
                if topology.type_of(edge).must_be_pipelined:
                    one, other = self._joined_by(edge)
                    ones.append(one)
                    others.append(other)
                else:
                    pointwise.append(edge)
        count = topology.subtask_count - first
        label = connected_components(count, np.concatenate(ones) - first, np.concatenate(others) - first)
        return self._without_cycles(label, pointwise, first) if pointwise else label

    def _without_cycles(self, label: IndexArray, edges: list[int], first: int) -> IndexArray:
        """Merges regions that wait for each other over these pointwise edges.

        A group is a node between its producers and consumers, so the graph stays linear in size.
        """
        topology, groups = self._topology, self._topology.groups
        sources: list[IndexArray] = []
        targets: list[IndexArray] = []
        for edge in edges:
            numbers = _as_array(topology.groups_of_edge(edge))
            node = numbers + np.int32(label.size)
            producers = topology.producer_of_partition[groups.partitions_of_all(numbers)] - first
            sources.append(label[producers])
            targets.append(np.repeat(node, groups.partition_stop[numbers] - groups.partition_start[numbers]))
            sources.append(np.repeat(node, groups.consumer_stop[numbers] - groups.consumer_start[numbers]))
            targets.append(label[groups.consumers_of_all(numbers) - first])
        nodes = label.size + len(groups)
        merged = strongly_connected_components(nodes, np.concatenate(sources), np.concatenate(targets))
        return merged[label]

    def _joined_by(self, edge: int) -> tuple[IndexArray, IndexArray]:
        """Pairs of subtasks that a pointwise pipelined edge joins: each member of a group with its first consumer."""
        groups = self._topology.groups
        numbers = _as_array(self._topology.groups_of_edge(edge))
        hub = groups.consumers[groups.consumer_start[numbers]]
        partitions = groups.partition_stop[numbers] - groups.partition_start[numbers]
        consumers = groups.consumer_stop[numbers] - groups.consumer_start[numbers]
        producers = self._topology.producer_of_partition[groups.partitions_of_all(numbers)]
        return (
            np.concatenate([np.repeat(hub, partitions), np.repeat(hub, consumers)]),
            np.concatenate([producers, groups.consumers_of_all(numbers)]),
        )

    def _subtasks_of_logical(self, number: int) -> IndexArray:
        return np.concatenate([_as_array(self._topology.subtasks_of(vertex)) for vertex in self._logical[number]])

    def _is_inside(self, edge: int) -> bool:
        """Whether both ends of an edge are in one logical region."""
        job = self._topology.job
        producer, consumer = job.datasets[job.edges[edge].dataset].producer, job.edges[edge].consumer
        return self._logical_of[producer] == self._logical_of[consumer]

    def _check_co_location(self, new: set[int]) -> None:
        """Checks that subtasks that must share a slot run at the same time."""
        first_of_group: dict[str, int] = {}
        for vertex in sorted(new):
            name = self._topology.job.vertices[vertex].co_location_group
            if name is None:
                continue
            other = first_of_group.setdefault(name, vertex)
            one_subtasks, other_subtasks = self._topology.subtasks_of(other), self._topology.subtasks_of(vertex)
            pairs = min(len(one_subtasks), len(other_subtasks))
            one_region = self._region_of.view[one_subtasks.start : one_subtasks.start + pairs]
            other_region = self._region_of.view[other_subtasks.start : other_subtasks.start + pairs]
            differ = np.flatnonzero(one_region != other_region)
            if differ.size:
                vertices = self._topology.job.vertices
                raise ConfigError(
                    f"subtask {differ[0]} of {vertices[other].name!r} and of {vertices[vertex].name!r} share"
                    f" co-location group {name!r} but are in different pipelined regions: connect them by"
                    " pipelined edges"
                )


def _as_array(numbers: range) -> IndexArray:
    return np.arange(numbers.start, numbers.stop, dtype=np.int32)
