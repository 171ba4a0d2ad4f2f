"""The execution graph of a job in arrays: subtasks, their partitions, and who consumes them.

Rules:
- Subtasks are numbered through all vertices in the order of their initialisation, which is topological. Partitions are
  numbered through all datasets in the same way; group numbers are those of `groups`.
- A partition is finished when its producer is, except for types that must be pipelined: there it is not tracked.
- Arrays taken from here are invalid after `initialise`; take them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from ...base.errors import ConfigError
from ...base.ids import ResultPartitionType
from ..graph.job_graph import UNDECIDED, DistributionPattern, JobGraph
from ..structures import NOTHING, FlagArray, GrowingArray, IndexArray, distinct
from .distribution import UNBOUNDED, InputInfo, count_subpartitions, dynamic_input, static_input
from .groups import EdgeGroups, GroupTable


@final
class ExecutionGraph:
    """All subtasks that exist so far.

    Args:
        job: the job. All vertices of a static job are initialised at once; in a dynamic job none is.
        most_decided: the most subtasks that a vertex whose parallelism is decided at run time can get.

    Attributes:
        groups: which subtasks consume which partitions.
    """

    def __init__(self, job: JobGraph, *, most_decided: int = UNBOUNDED) -> None:
        self.job = job
        self._most_decided = most_decided
        self.groups = GroupTable()
        self._inputs: list[list[int]] = [[] for _ in job.vertices]
        self._outputs: list[list[int]] = [[] for _ in job.vertices]
        self._edges_of_dataset: list[list[int]] = [[] for _ in job.datasets]
        for number, edge in enumerate(job.edges):
            self._inputs[edge.consumer].append(number)
            self._edges_of_dataset[edge.dataset].append(number)
        for number, dataset in enumerate(job.datasets):
            self._outputs[dataset.producer].append(number)
        self._decided = [vertex.parallelism for vertex in job.vertices]
        self._initialised: list[int] = []
        self._subtasks: list[range | None] = [None] * len(job.vertices)
        self._partitions: list[range | None] = [None] * len(job.datasets)
        self._connections: list[EdgeGroups | None] = [None] * len(job.edges)
        self._reads: list[InputInfo | None] = [None] * len(job.edges)
        self._subpartitions: list[IndexArray | None] = [None] * len(job.datasets)
        self._vertex_of = GrowingArray()
        self._dataset_of = GrowingArray()
        self._producer_of = GrowingArray()
        self._is_finished = GrowingArray(np.bool_)
        if not job.is_dynamic:
            for vertex in range(len(job.vertices)):
                self.initialise(vertex)

    # -------------------------------------------------------------------------------------------------- growth

    def decide(self, vertex: int, parallelism: int) -> None:
        """Sets the parallelism of a vertex that is not initialised yet; its producers' subpartitions depend on it.

        Raises:
            ConfigError: it is initialised, has another parallelism already, or this is more than its maximum.
        """
        known, most = self._decided[vertex], self.job.vertices[vertex].max_parallelism
        name = self.job.vertices[vertex].name
        if self._subtasks[vertex] is not None or known not in (UNDECIDED, parallelism):
            raise ConfigError(f"vertex {name!r} already has parallelism {known}; it cannot become {parallelism}")
        if not 1 <= parallelism <= most:
            raise ConfigError(f"vertex {name!r}: parallelism {parallelism}; give 1 to {most}")
        self._decided[vertex] = parallelism

    def initialise(self, vertex: int, reads: Sequence[InputInfo] | None = None) -> range:
        """Creates the subtasks and partitions of a vertex, and the groups that it consumes.

        Args:
            vertex: its index; its parallelism is decided and everything that it reads is initialised.
            reads: what its subtasks read, in the order of `inputs_of`; None: an even distribution.

        Returns:
            Numbers of the new subtasks.

        Raises:
            ConfigError: it is initialised already, its parallelism or a producer is missing, or `reads` does not fit.
        """
        name, parallelism = self.job.vertices[vertex].name, self._decided[vertex]
        if self._subtasks[vertex] is not None:
            raise ConfigError(f"vertex {name!r} is already initialised")
        if parallelism == UNDECIDED:
            raise ConfigError(f"vertex {name!r} has no parallelism yet: call decide first")
        inputs = self._inputs[vertex]
        for edge in inputs:
            if self._partitions[self.job.edges[edge].dataset] is None:
                producer = self.job.vertices[self.job.datasets[self.job.edges[edge].dataset].producer].name
                raise ConfigError(f"vertex {name!r} reads from {producer!r}, which is not initialised yet")
        if reads is not None and [read.parallelism for read in reads] != [parallelism] * len(inputs):
            raise ConfigError(f"vertex {name!r} needs {len(inputs)} inputs for each of {parallelism} subtasks")
        subtasks = range(self.subtask_count, self.subtask_count + parallelism)
        self._vertex_of.extend_with(vertex, parallelism)
        self._subtasks[vertex] = subtasks
        self._initialised.append(vertex)
        for dataset in self._outputs[vertex]:
            self._partitions[dataset] = range(self.partition_count, self.partition_count + parallelism)
            self._dataset_of.extend_with(dataset, parallelism)
            self._producer_of.extend(np.arange(subtasks.start, subtasks.stop, dtype=np.int32))
            self._is_finished.extend_with(False, parallelism)
        for position, edge in enumerate(inputs):
            self._connect(edge, subtasks, reads[position] if reads is not None else None)
        return subtasks

    def _connect(self, edge: int, subtasks: range, reads: InputInfo | None) -> None:
        dataset = self.job.edges[edge].dataset
        type = self.job.datasets[dataset].type
        partitions = self.partitions_of(dataset)
        self._reads[edge] = reads
        if self.job.edges[edge].pattern is DistributionPattern.ALL_TO_ALL:
            connection = self.groups.connect_all(edge, dataset, type, partitions, subtasks)
        else:
            connection = self.groups.connect_ranges(edge, dataset, type, partitions, subtasks, self.input_info(edge))
        self._connections[edge] = connection
        finished = np.flatnonzero(self._is_finished.view[partitions.start : partitions.stop])
        # A dynamic graph connects consumers after their producers have finished.
        if finished.size:
            self._count_unfinished(connection, finished.astype(np.int32), -1)

    # ---------------------------------------------------------------------------------------- vertices, subtasks

    @property
    def subtask_count(self) -> int:
        """Subtasks so far."""
        return len(self._vertex_of)

    @property
    def initialised(self) -> tuple[int, ...]:
        """Indices of the vertices that have subtasks, in the order of their initialisation."""
        return tuple(self._initialised)

    def is_initialised(self, vertex: int) -> bool:
        """Whether a vertex has subtasks."""
        return self._subtasks[vertex] is not None

    def parallelism_of(self, vertex: int) -> int:
        """Number of its subtasks; `UNDECIDED` if that is open."""
        return self._decided[vertex]

    def inputs_of(self, vertex: int) -> tuple[int, ...]:
        """Indices of the edges that a vertex reads, in order."""
        return tuple(self._inputs[vertex])

    def outputs_of(self, vertex: int) -> tuple[int, ...]:
        """Indices of the datasets that a vertex writes."""
        return tuple(self._outputs[vertex])

    def type_of(self, edge: int) -> ResultPartitionType:
        """The result type of the dataset that an edge reads."""
        return self.job.datasets[self.job.edges[edge].dataset].type

    def edges_of(self, dataset: int) -> tuple[int, ...]:
        """Indices of the edges that read a dataset."""
        return tuple(self._edges_of_dataset[dataset])

    def subtasks_of(self, vertex: int) -> range:
        """Numbers of a vertex's subtasks. Raises ConfigError if it is not initialised."""
        subtasks = self._subtasks[vertex]
        if subtasks is None:
            raise ConfigError(f"vertex {self.job.vertices[vertex].name!r} is not initialised: it has no subtasks yet")
        return subtasks

    def subtask(self, vertex: int, index: int) -> int:
        """The number of one subtask. Raises ConfigError if there is no such vertex or subtask."""
        if not 0 <= vertex < len(self._subtasks):
            raise ConfigError(f"no vertex {vertex}: job {self.job.name!r} has {len(self._subtasks)}")
        subtasks = self.subtasks_of(vertex)
        if not 0 <= index < len(subtasks):
            raise ConfigError(f"vertex {self.job.vertices[vertex].name!r} has {len(subtasks)} subtasks, no {index}")
        return subtasks[index]

    @property
    def vertex_of_subtask(self) -> IndexArray:
        """The vertex of every subtask, by its number."""
        return self._vertex_of.view

    def place_of(self, subtask: int) -> tuple[int, int]:
        """The vertex of a subtask and its index there. Raises ConfigError if there is no such subtask."""
        if not 0 <= subtask < self.subtask_count:
            raise ConfigError(f"no subtask {subtask}: job {self.job.name!r} has {self.subtask_count} so far")
        vertex = int(self._vertex_of.view[subtask])
        return vertex, subtask - self.subtasks_of(vertex).start

    def by_vertex(self, subtasks: IndexArray) -> Iterator[tuple[int, IndexArray]]:
        """Splits ascending numbers of subtasks by vertex: (vertex, indices in it)."""
        position = 0
        while position < subtasks.size:
            vertex = int(self._vertex_of.view[subtasks[position]])
            own = self.subtasks_of(vertex)
            stop = int(subtasks.searchsorted(own.stop))
            yield vertex, subtasks[position:stop] - np.int32(own.start)
            position = stop

    # ---------------------------------------------------------------------------------------------- partitions

    @property
    def partition_count(self) -> int:
        """Partitions so far."""
        return len(self._dataset_of)

    def partitions_of(self, dataset: int) -> range:
        """Numbers of a dataset's partitions, in the order of their producers.

        Raises:
            ConfigError: its producer is not initialised.
        """
        partitions = self._partitions[dataset]
        if partitions is None:
            raise ConfigError(f"dataset {self.job.datasets[dataset].name!r} has no partitions yet")
        return partitions

    @property
    def dataset_of_partition(self) -> IndexArray:
        """The dataset of every partition, by its number."""
        return self._dataset_of.view

    @property
    def producer_of_partition(self) -> IndexArray:
        """The subtask that writes each partition, by its number."""
        return self._producer_of.view

    @property
    def is_finished(self) -> FlagArray:
        """Whether all data of each partition were produced, by partition."""
        return self._is_finished.view

    def partitions_of_subtask(self, subtask: int) -> tuple[int, ...]:
        """Numbers of the partitions that a subtask writes, by dataset."""
        vertex, index = self.place_of(subtask)
        return tuple(self.partitions_of(dataset)[index] for dataset in self._outputs[vertex])

    def subpartition_counts(self, dataset: int) -> IndexArray:
        """Subpartitions of each partition of a dataset, by producer; fixed by the first call, on deployment.

        A static graph has one for each consumer, a dynamic one as many as the consumers may need.
        """
        known = self._subpartitions[dataset]
        if known is None:
            producers, readers = len(self.partitions_of(dataset)), self._edges_of_dataset[dataset]
            known = count_subpartitions(self.job, readers, producers, self._decided, self._most_decided)
            self._subpartitions[dataset] = known
        return known

    # -------------------------------------------------------------------------------------------------- groups

    def input_info(self, edge: int) -> InputInfo:
        """What each consumer of an edge reads.

        Raises:
            ConfigError: a dynamic graph's consumer has more subtasks than the partitions have subpartitions.
        """
        known = self._reads[edge]
        if known is None:
            known = self._reads[edge] = self._even_input(edge)
        return known

    def _even_input(self, edge: int) -> InputInfo:
        dataset, pattern = self.job.edges[edge].dataset, self.job.edges[edge].pattern
        producers, consumers = len(self.partitions_of(dataset)), self._decided[self.job.edges[edge].consumer]
        if not self.job.is_dynamic:
            return static_input(pattern, producers, consumers, self.job.edges[edge].channels)
        subpartitions = int(self.subpartition_counts(dataset)[0])
        is_broadcast = self.job.datasets[dataset].is_broadcast
        return dynamic_input(pattern, producers, consumers, subpartitions, is_broadcast=is_broadcast)

    def connection(self, edge: int) -> EdgeGroups:
        """The groups of an edge. Raises ConfigError if its consumer is not initialised."""
        connection = self._connections[edge]
        if connection is None:
            consumer = self.job.vertices[self.job.edges[edge].consumer].name
            raise ConfigError(f"edge {edge} is not connected: its consumer {consumer!r} is not initialised")
        return connection

    def groups_of_edge(self, edge: int) -> range:
        """Numbers of an edge's groups; none while its consumer is not initialised."""
        connection = self._connections[edge]
        if connection is None:
            return range(0)
        return range(connection.first_group, connection.first_group + connection.groups)

    def consumed_groups(self, subtask: int) -> tuple[int, ...]:
        """The group that a subtask reads on each input, in order."""
        vertex, index = self.place_of(subtask)
        return tuple(self.connection(edge).consumed_by(index) for edge in self._inputs[vertex])

    def groups_of_partition(self, partition: int) -> tuple[int, ...]:
        """The groups that contain a partition: usually one for each edge that reads its dataset."""
        dataset = int(self._dataset_of.view[partition])
        index = partition - self.partitions_of(dataset).start
        groups: list[int] = []
        for edge in self._edges_of_dataset[dataset]:
            connection = self._connections[edge]
            if connection is not None:
                groups += connection.of_partition(index)
        return tuple(groups)

    def produced_groups(self, subtask: int) -> tuple[int, ...]:
        """The groups of all partitions that a subtask writes."""
        partitions = self.partitions_of_subtask(subtask)
        return tuple(group for partition in partitions for group in self.groups_of_partition(partition))

    def consumed_by_all(self, subtasks: IndexArray) -> IndexArray:
        """The groups that any of several subtasks reads, each once; `subtasks` ascends."""
        groups = [
            self.connection(edge).distinct_consumed_by(indices)
            for vertex, indices in self.by_vertex(subtasks)
            for edge in self._inputs[vertex]
        ]
        return np.concatenate(groups) if groups else NOTHING

    def produced_by_all(self, subtasks: IndexArray) -> IndexArray:
        """The groups that any of several subtasks writes, each once; `subtasks` ascends."""
        groups = [
            connection.distinct_of_partitions(indices)
            for vertex, indices in self.by_vertex(subtasks)
            for dataset in self._outputs[vertex]
            for edge in self._edges_of_dataset[dataset]
            if (connection := self._connections[edge]) is not None
        ]
        return np.concatenate(groups) if groups else NOTHING

    # ----------------------------------------------------------------------------------------------- progress

    def finish(self, subtask: int) -> tuple[int, ...]:
        """Marks the partitions of a subtask as finished; idempotent.

        Returns:
            The groups whose data became complete.
        """
        complete: list[int] = []
        unfinished = self.groups.unfinished
        for partition in self.partitions_of_subtask(subtask):
            if not self._tracks(partition) or self._is_finished.view[partition]:
                continue
            self._is_finished.view[partition] = True
            for group in self.groups_of_partition(partition):
                unfinished[group] -= 1
                if unfinished[group] == 0:
                    complete.append(group)
        return tuple(complete)

    def reset(self, subtasks: IndexArray) -> IndexArray:
        """Marks the partitions of subtasks as unfinished: the subtasks run again.

        Returns:
            The partitions that were finished, ascending within each dataset.
        """
        lost: list[IndexArray] = []
        for vertex, indices in self.by_vertex(distinct(subtasks)):
            for dataset in self._outputs[vertex]:
                own = self.partitions_of(dataset)
                was = indices[self._is_finished.view[own.start : own.stop][indices]]
                if not was.size:
                    continue
                lost.append(was + np.int32(own.start))
                self._is_finished.view[lost[-1]] = False
                for edge in self._edges_of_dataset[dataset]:
                    connection = self._connections[edge]
                    if connection is not None:
                        self._count_unfinished(connection, was, 1)
        return np.concatenate(lost) if lost else NOTHING

    def is_complete(self, group: int) -> bool:
        """Whether all data of a group were produced."""
        return bool(self.groups.unfinished[group] == 0)

    def _tracks(self, partition: int) -> bool:
        """Whether the completion of a partition is tracked."""
        return not self.job.datasets[int(self._dataset_of.view[partition])].type.must_be_pipelined

    def _count_unfinished(self, connection: EdgeGroups, indices: IndexArray, change: int) -> None:
        """Adds `change` (1 or -1) to the unfinished partitions of the groups of some producers."""
        if connection.row_of_partition is None:
            self.groups.unfinished[connection.first_group] += np.int32(change * indices.size)
        else:
            np.add.at(self.groups.unfinished, connection.of_partitions(indices), np.int32(change))
