"""Where a subtask would like to be: where it was before, else near what it reads.

Takes: a job graph, and where subtasks are or were. Gives: locations, each as often as it counts.

Rules: an input that many read, or that comes from many places, is near nothing in particular and does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, final

import numpy as np

from ..graph.job_graph import JobGraph
from .slot_sharing import consumed_partitions
from .slots import Location

MAX_CONSUMERS_TO_CONSIDER: Final = 8
"""A partition group with more consumers than this says nothing about where a consumer should be."""
MAX_LOCATIONS_TO_CONSIDER: Final = 8
"""An input with more known producers than this is near nothing in particular."""


@final
@dataclass(frozen=True, slots=True)
class InputLocations:
    """Where one consumed partition group is.

    Attributes:
        consumers: how many subtasks consume it.
        producers: the locations of its producers that have one.
    """

    consumers: int
    producers: Sequence[Location]


def preferred_locations(state: Location | None, inputs: Iterable[InputLocations]) -> tuple[Location, ...]:
    """Where a subtask would like to be: at its state, else at the input that comes from the fewest places.

    Args:
        state: where its state is (its previous attempt), if anywhere.
        inputs: the partition groups it consumes, in order; of equally good ones the later wins.
    """
    if state is not None:
        return (state,)
    best: tuple[Location, ...] = ()
    for consumed in inputs:
        if consumed.consumers > MAX_CONSUMERS_TO_CONSIDER or len(consumed.producers) > MAX_LOCATIONS_TO_CONSIDER:
            continue
        if consumed.producers and (not best or len(set(consumed.producers)) <= len(set(best))):
            best = tuple(consumed.producers)
    return best


@final
@dataclass(frozen=True, slots=True)
class _Input:
    """One edge: by consumer, the partitions that it reads and how many read the same."""

    producer: int
    first: list[int]
    last: list[int]
    consumers: list[int]


@final
class InputPreferences:
    """What the subtasks of a job read, as far as it matters for their place.

    Args:
        graph: the job.
    """

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._inputs: dict[int, list[_Input]] = {}

    def of(
        self,
        vertex: int,
        subtask: int,
        parallelisms: Sequence[int],
        located: Callable[[int, int], Location | None],
        state: Location | None = None,
    ) -> tuple[Location, ...]:
        """Where a subtask would like to be.

        Args:
            vertex: its vertex.
            subtask: its index.
            parallelisms: of every vertex; those of `vertex` and of what it reads never change.
            located: where a producer is, by vertex and index, if it is anywhere.
            state: where its state is, if anywhere.
        """
        inputs = self._inputs.get(vertex)
        if inputs is None:
            inputs = self._inputs[vertex] = self._read_by(vertex, parallelisms)
        return preferred_locations(state, (self._locations(given, subtask, located) for given in inputs))

    def _locations(self, given: _Input, subtask: int, located: Callable[[int, int], Location | None]) -> InputLocations:
        """Where one input comes from; nobody is asked about one that does not count, nor more than it takes to know."""
        consumers = given.consumers[subtask]
        if consumers > MAX_CONSUMERS_TO_CONSIDER:
            return InputLocations(consumers, ())
        producers = range(given.first[subtask], given.last[subtask] + 1)
        known = filter(None, (located(given.producer, producer) for producer in producers))
        return InputLocations(consumers, tuple(islice(known, MAX_LOCATIONS_TO_CONSIDER + 1)))

    def _read_by(self, vertex: int, parallelisms: Sequence[int]) -> list[_Input]:
        inputs = []
        for consumed in consumed_partitions(self._graph, vertex, parallelisms):
            ranges = np.stack((consumed.first, consumed.last))
            _, inverse, counts = np.unique(ranges, axis=1, return_inverse=True, return_counts=True)
            consumers = counts[inverse.ravel()].tolist()
            inputs.append(_Input(consumed.producer, consumed.first.tolist(), consumed.last.tolist(), consumers))
        return inputs
