"""Counts the channels and connections of a placed job: local and remote, by edge and by process.

Rules: a channel is a pair of a producer and a consumer subtask of an edge. The consumer's process dials the
producer's, once for all channels between the two in that direction, and once more for those of prompt edges. A process
is a slot, or a whole TaskManager. No table has the size of the number of channels: all-to-all edges are counted by
process, pointwise ones by subtask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from ..graph.job_graph import DistributionPattern, JobEdge, JobGraph
from ..slots.placement import Placement
from ..structures import FlagArray, IndexArray, index_array
from ..topology.distribution import pointwise_consumers, pointwise_partitions


@final
@dataclass(frozen=True, slots=True, eq=False)
class EdgeChannels:
    """The channels of one edge.

    Attributes:
        local: channels within one process.
        connections: pairs of processes that remote channels connect, by direction.
        within: how many of these are of one TaskManager.
        per_consumer: channels of each consumer subtask.
        per_producer: subpartitions of each producer subtask.
    """

    channels: int
    local: int
    connections: int
    within: int
    per_consumer: IndexArray
    remote_per_consumer: IndexArray
    per_producer: IndexArray

    @property
    def remote(self) -> int:
        """Channels between different processes."""
        return self.channels - self.local


@final
@dataclass(frozen=True, slots=True, eq=False)
class JobChannels:
    """The channels of a job.

    Attributes:
        edges: of each edge, in the order of `JobGraph.edges`.
        dialled: connections that each process opens, over all edges.
        accepted: connections that each process accepts.
        within: connections between processes of one TaskManager, which use shared memory.
    """

    edges: tuple[EdgeChannels, ...]
    dialled: IndexArray
    accepted: IndexArray
    within: int

    @property
    def connections(self) -> int:
        """All connections: one for each pair of processes, direction and class (bulk or prompt)."""
        return int(self.dialled.sum())

    @property
    def tcp_connections(self) -> int:
        """Connections between processes of different TaskManagers."""
        return self.connections - self.within


def count_channels(job: JobGraph, placement: Placement, taskmanagers: int, processes: int = 1) -> JobChannels:
    """Counts the channels and connections of a job whose parallelisms are all known.

    Args:
        job: the job.
        placement: where its subtasks run.
        taskmanagers: number of TaskManagers.
        processes: of each TaskManager: 1, or one for each slot.
    """
    places = [placement.processes_of(vertex, processes) for vertex in range(len(job.vertices))]
    of_class = {is_prompt: _Counted(taskmanagers * processes, processes) for is_prompt in (False, True)}
    edges = []
    for edge in job.edges:
        producers, consumers = places[job.datasets[edge.dataset].producer], places[edge.consumer]
        edges.append(of_class[edge.is_prompt].add(edge, producers, consumers))
    bulk, prompt = (each.per_process() for each in of_class.values())
    dialled, accepted, within = (here + there for here, there in zip(bulk, prompt, strict=True))
    return JobChannels(tuple(edges), index_array(dialled), index_array(accepted), int(within.sum()))


@final
class _Counted:
    """Which processes connect, over several edges of one class."""

    def __init__(self, count: int, of_taskmanager: int) -> None:
        self._count = count
        self._of_taskmanager = of_taskmanager
        self._all_to_all: list[tuple[FlagArray, FlagArray]] = []
        self._pairs: list[npt.NDArray[np.int64]] = []

    def add(self, edge: JobEdge, producers: IndexArray, consumers: IndexArray) -> EdgeChannels:
        if edge.pattern is DistributionPattern.ALL_TO_ALL:
            return self._add_all_to_all(producers, consumers, edge.channels)
        return self._add_pointwise(producers, consumers)

    def _add_all_to_all(self, producers: IndexArray, consumers: IndexArray, channels: int) -> EdgeChannels:
        by_producer = np.bincount(producers, minlength=self._count)
        by_consumer = np.bincount(consumers, minlength=self._count)
        writes, reads = by_producer > 0, by_consumer > 0
        self._all_to_all.append((writes, reads))
        return EdgeChannels(
            channels=producers.size * consumers.size * channels,
            local=int(by_producer @ by_consumer) * channels,
            connections=int(writes.sum()) * int(reads.sum()) - int((writes & reads).sum()),
            within=int((self._sums(writes) * self._sums(reads)).sum()) - int((writes & reads).sum()),
            per_consumer=np.full(consumers.size, producers.size * channels, np.int32),
            remote_per_consumer=index_array((producers.size - by_producer[consumers]) * channels),
            per_producer=np.full(producers.size, consumers.size * channels, np.int32),
        )

    def _add_pointwise(self, producers: IndexArray, consumers: IndexArray) -> EdgeChannels:
        start, stop = pointwise_consumers(producers.size, consumers.size)
        if producers.size >= consumers.size:
            producer, consumer = np.arange(producers.size, dtype=np.int32), start
        else:
            producer = pointwise_partitions(producers.size, consumers.size)[0]
            consumer = np.arange(consumers.size, dtype=np.int32)
        is_remote = producers[producer] != consumers[consumer]
        # A pair of processes as one number; the product of two counts needs 64 bits.
        pairs = np.unique(
            consumers[consumer][is_remote].astype(np.int64) * self._count + producers[producer][is_remote]
        )
        self._pairs.append(pairs)
        return EdgeChannels(
            channels=producer.size,
            local=int((~is_remote).sum()),
            connections=pairs.size,
            within=int(self._is_within(pairs).sum()),
            per_consumer=index_array(np.bincount(consumer, minlength=consumers.size)),
            remote_per_consumer=index_array(np.bincount(consumer[is_remote], minlength=consumers.size)),
            per_producer=index_array(stop - start),
        )

    def per_process(self) -> tuple[IndexArray, IndexArray, IndexArray]:
        """To how many others each process connects, how many connect to it, and to how many of its TaskManager.

        Processes that read the same all-to-all edges connect to the same others, except themselves: they share one
        row. Pointwise edges are added pair by pair.
        """
        row_of, rows = self._rows()
        pairs = np.unique(np.concatenate([np.empty(0, np.int64), *self._pairs]))
        consumer, producer = pairs // self._count, pairs % self._count
        is_new = ~rows[row_of[consumer], producer]
        numbers = np.arange(self._count)
        is_own = rows[row_of, numbers]
        dialled = rows.sum(axis=1)[row_of] - is_own + np.bincount(consumer[is_new], minlength=self._count)
        readers = np.bincount(row_of, minlength=rows.shape[0])
        accepted = readers @ rows - is_own + np.bincount(producer[is_new], minlength=self._count)
        within = np.bincount(consumer[is_new & self._is_within(pairs)], minlength=self._count)
        size = self._of_taskmanager
        for distance in range(1, size):  # to each other process of the same TaskManager
            within += rows[row_of, numbers - numbers % size + (numbers + distance) % size]
        return index_array(dialled), index_array(accepted), index_array(within)

    def _sums(self, flags: FlagArray) -> npt.NDArray[np.int64]:
        """The number of processes of each TaskManager for which a flag is set."""
        counts: npt.NDArray[np.int64] = flags.reshape(-1, self._of_taskmanager).sum(axis=1)
        return counts

    def _is_within(self, pairs: npt.NDArray[np.int64]) -> FlagArray:
        """Which pairs are of one TaskManager."""
        size = self._of_taskmanager
        counts: FlagArray = pairs // self._count // size == pairs % self._count // size
        return counts

    def _rows(self) -> tuple[IndexArray, FlagArray]:
        """The row of each process, and for each row the processes that it reads from over all-to-all edges."""
        if not self._all_to_all:
            return np.zeros(self._count, np.int32), np.zeros((1, self._count), np.bool_)
        reads = np.stack([reads for _, reads in self._all_to_all])
        writes = np.stack([writes for writes, _ in self._all_to_all])
        signatures, row_of = np.unique(reads, axis=1, return_inverse=True)
        rows = np.stack([np.logical_or.reduce(writes[signature], axis=0) for signature in signatures.T])
        return index_array(row_of.ravel()), rows
