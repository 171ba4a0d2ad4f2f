"""Distribution patterns: the partitions and subpartitions of an input that each subtask of its consumer reads.

Rules: ranges are half open, [start, stop). With more producers than consumers the last consumers read the surplus
partitions; with fewer, the first producers serve the surplus consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from ...base.errors import ConfigError
from ..graph.job_graph import UNDECIDED, DistributionPattern, JobGraph
from ..structures import IndexArray, index_array, offsets_of

UNBOUNDED: Final = 1 << 30
"""More subtasks than any vertex has."""


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of an input: some subpartitions of each of some partitions.

    Attributes:
        partitions: indices of the partitions in their dataset, equal to those of their producers.
        subpartitions: indices in each of those.
    """

    partitions: range
    subpartitions: range


@final
@dataclass(frozen=True, slots=True, eq=False)
class InputInfo:
    """What each subtask of a vertex reads from one input: usually one piece, several where skewed data were cut.

    Attributes:
        offsets: subtask k reads the pieces `offsets[k]` to `offsets[k + 1]`.
        partition_start: by piece.
        partition_stop: by piece.
        subpartition_start: by piece.
        subpartition_stop: by piece.
    """

    offsets: IndexArray
    partition_start: IndexArray
    partition_stop: IndexArray
    subpartition_start: IndexArray
    subpartition_stop: IndexArray

    @classmethod
    def of_pieces(cls, pieces: Sequence[Sequence[Piece]]) -> InputInfo:
        """Builds it from the pieces of each subtask. Raises ConfigError if a subtask has no piece, or an empty one."""
        flat = [piece for of_subtask in pieces for piece in of_subtask]
        if not all(pieces) or not all(piece.partitions and piece.subpartitions for piece in flat):
            raise ConfigError("a subtask has nothing to read: give every subtask pieces that are not empty")
        return cls(
            offsets_of(index_array([len(of_subtask) for of_subtask in pieces])),
            index_array([piece.partitions.start for piece in flat]),
            index_array([piece.partitions.stop for piece in flat]),
            index_array([piece.subpartitions.start for piece in flat]),
            index_array([piece.subpartitions.stop for piece in flat]),
        )

    @property
    def parallelism(self) -> int:
        """Number of subtasks that read."""
        return self.offsets.size - 1

    def pieces_of(self, subtask: int) -> tuple[Piece, ...]:
        """What one subtask reads, by its index in the vertex."""
        return tuple(
            Piece(
                range(int(self.partition_start[piece]), int(self.partition_stop[piece])),
                range(int(self.subpartition_start[piece]), int(self.subpartition_stop[piece])),
            )
            for piece in range(int(self.offsets[subtask]), int(self.offsets[subtask + 1]))
        )

    def partition_ranges(self) -> tuple[IndexArray, IndexArray]:
        """First partition and one past the last of each subtask: two arrays, by subtask."""
        first = self.offsets[:-1]
        return np.minimum.reduceat(self.partition_start, first), np.maximum.reduceat(self.partition_stop, first)


def pointwise_partitions(producers: int, consumers: int) -> tuple[IndexArray, IndexArray]:
    """The partitions that each consumer of a pointwise edge reads: start and stop, by consumer."""
    consumer = np.arange(consumers, dtype=np.int64)
    start = consumer * producers // consumers
    stop = (consumer + 1) * producers // consumers if producers >= consumers else start + 1
    return index_array(start), index_array(stop)


def pointwise_consumers(producers: int, consumers: int) -> tuple[IndexArray, IndexArray]:
    """The consumers of each partition of a pointwise edge: start and stop, by partition."""
    partition = np.arange(producers, dtype=np.int64)
    if producers >= consumers:
        start = ((partition + 1) * consumers - 1) // producers
        return index_array(start), index_array(start + 1)
    start = (partition * consumers + producers - 1) // producers
    stop = ((partition + 1) * consumers + producers - 1) // producers
    return index_array(start), index_array(stop)


def static_input(pattern: DistributionPattern, producers: int, consumers: int, channels: int = 1) -> InputInfo:
    """The input of a static graph: `channels` subpartitions for each consumer of a partition.

    Consumer k takes subpartition k modulo the consumers of its partition, k counting through the whole vertex. So with
    2 producers and 5 consumers, pointwise, consumer 3 reads the second subpartition of its partition, not the first.
    """
    start, stop = _partitions(pattern, producers, consumers)
    consumer = np.arange(consumers, dtype=np.int32)
    subpartition = consumer % _sharers(pattern, producers, consumers, start)
    return InputInfo(_one_piece_each(consumers), start, stop, subpartition * channels, (subpartition + 1) * channels)


def dynamic_input(
    pattern: DistributionPattern,
    producers: int,
    consumers: int,
    subpartitions: int,
    *,
    is_broadcast: bool = False,
    reads_all: bool = False,
) -> InputInfo:
    """The input of a consumer whose parallelism was decided after its producers were deployed.

    Args:
        pattern: of the edge.
        producers: number of producers.
        consumers: number of consumers.
        subpartitions: of each partition.
        is_broadcast: every consumer reads the only subpartition.
        reads_all: with `is_broadcast`: every consumer reads all subpartitions, however many.

    Raises:
        ConfigError: more consumers share a partition than it has subpartitions, or a broadcast partition has several.
    """
    start, stop = _partitions(pattern, producers, consumers)
    if is_broadcast:
        if subpartitions != 1 and not reads_all:
            raise ConfigError(
                f"a broadcast partition has {subpartitions} subpartitions; give it 1, or let every consumer read all"
            )
        whole = np.full(consumers, subpartitions, np.int32)
        return InputInfo(_one_piece_each(consumers), start, stop, np.zeros_like(whole), whole)
    sharers = _sharers(pattern, producers, consumers, start).astype(np.int64)
    if sharers.max() > subpartitions:
        raise ConfigError(
            f"{sharers.max()} consumers share a partition of {subpartitions} subpartitions; give it at least as many"
        )
    share = np.arange(consumers, dtype=np.int64) % sharers
    return InputInfo(
        _one_piece_each(consumers),
        start,
        stop,
        index_array(share * subpartitions // sharers),
        index_array((share + 1) * subpartitions // sharers),
    )


def dynamic_subpartitions(
    pattern: DistributionPattern,
    producers: int,
    consumers: int,
    max_consumers: int,
    *,
    is_broadcast: bool = False,
) -> int:
    """Subpartitions of each partition when its producer is deployed in a dynamic graph.

    Args:
        pattern: of the edge.
        producers: number of producers.
        consumers: of the reading vertex; `UNDECIDED` takes `max_consumers`.
        max_consumers: the most consumers that the reading vertex can get.
        is_broadcast: every consumer reads the same.
    """
    if is_broadcast:
        return 1
    base = max_consumers if consumers == UNDECIDED else consumers
    return base if pattern is DistributionPattern.ALL_TO_ALL else -(-base // producers)


def count_subpartitions(
    job: JobGraph, readers: Sequence[int], producers: int, parallelisms: Sequence[int], most_decided: int = UNBOUNDED
) -> IndexArray:
    """Subpartitions of each partition of one dataset, by producer: as many as its most demanding reader needs.

    Args:
        job: static, or dynamic.
        readers: indices of the edges that read the dataset; without any there is one subpartition.
        producers: number of producers.
        parallelisms: by vertex; `UNDECIDED` only in a dynamic job.
        most_decided: the most subtasks that an undecided vertex can get.
    """
    most = np.ones(producers, np.int32)
    for reader in readers:
        edge = job.edges[reader]
        consumers, limit = parallelisms[edge.consumer], job.vertices[edge.consumer].max_parallelism
        if job.is_dynamic:
            is_broadcast = job.datasets[edge.dataset].is_broadcast
            limit = min(limit, most_decided)
            count = dynamic_subpartitions(edge.pattern, producers, consumers, limit, is_broadcast=is_broadcast)
            most = np.maximum(most, np.int32(count))
        elif edge.pattern is DistributionPattern.ALL_TO_ALL:
            most = np.maximum(most, np.int32(consumers * edge.channels))
        else:
            start, stop = pointwise_consumers(producers, consumers)
            most = np.maximum(most, (stop - start) * np.int32(edge.channels))
    return most


def _partitions(pattern: DistributionPattern, producers: int, consumers: int) -> tuple[IndexArray, IndexArray]:
    if pattern is DistributionPattern.POINTWISE:
        return pointwise_partitions(producers, consumers)
    return np.zeros(consumers, np.int32), np.full(consumers, producers, np.int32)


def _sharers(pattern: DistributionPattern, producers: int, consumers: int, partition: IndexArray) -> IndexArray:
    """How many consumers read the same partition, by consumer; `partition` is the first that each reads."""
    if pattern is DistributionPattern.ALL_TO_ALL:
        return np.full(consumers, consumers, np.int32)
    start, stop = pointwise_consumers(producers, consumers)
    return (stop - start)[partition]


def _one_piece_each(consumers: int) -> IndexArray:
    """Offsets for one piece per subtask."""
    return np.arange(consumers + 1, dtype=np.int32)
