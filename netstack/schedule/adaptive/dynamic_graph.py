"""The dynamic graph of an adaptive batch job: which vertices are initialised when, with which parallelism.

Rules:
- `grow` is called before every scheduling decision: at the start, and after tasks have finished. A vertex of known
  parallelism is initialised as soon as its producers are, even before they have written data. Any other vertex waits
  until all its inputs are complete; then the decider sets its parallelism.
- Vertices joined by forward edges form a group: once one of them has a parallelism, the others get the same.
- The number of subpartitions is fixed when the producer is initialised, by what is known of its consumers then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, final

from numpy.typing import ArrayLike

from ...base.errors import ConfigError
from ..graph.job_graph import UNDECIDED, DistributionPattern, JobEdge, JobGraph, SourceSize
from ..structures import UnionFind
from ..topology.execution_graph import ExecutionGraph
from .cut import DatasetSizes
from .parallelism import Decision, ParallelismExplanation
from .skew import VertexInput

Decider: TypeAlias = Callable[[Sequence[VertexInput], int, SourceSize | None], Decision]
"""Decides a vertex by its complete inputs, its largest possible parallelism, and the size of a source."""

_BINDS_INPUTS: Final = frozenset({"hash", "custom"})
_BINDS_KEYS: Final = frozenset({"hash", "custom", "global", "forward"})


@final
class DynamicGraph:
    """The vertices of a dynamic job that are not initialised yet.

    Args:
        topology: of the job; only this class adds to it.
        decide: decides vertices of unknown parallelism.

    Raises:
        ConfigError: vertices joined by forward edges have different parallelisms.
    """

    def __init__(self, topology: ExecutionGraph, decide: Decider) -> None:
        self._topology = topology
        self._job = topology.job
        self._decide = decide
        self._group_of, self._groups = forward_groups(self._job)
        self._sizes: dict[int, DatasetSizes] = {}
        self.explanations: dict[int, ParallelismExplanation] = {}
        """By vertex that was decided at run time."""

    def grow(self) -> tuple[int, ...]:
        """Initialises every vertex that is ready; returns their indices, in topological order."""
        added = tuple(vertex for vertex in range(len(self._job.vertices)) if self._try(vertex))
        for dataset, sizes in self._sizes.items():
            edges = self._job.consumers_of(dataset)
            if added and all(
                edge.pattern is DistributionPattern.ALL_TO_ALL and self._topology.is_initialised(edge.consumer)
                for edge in edges
            ):
                sizes.compact()
        return added

    def record(self, dataset: int, partition: int, bytes_written: ArrayLike) -> None:
        """Records the sizes of a finished producer.

        Args:
            dataset: its index in the job graph.
            partition: the producer's index.
            bytes_written: into each subpartition.

        Raises:
            ConfigError: the dataset has no such partition yet, or it has another number of subpartitions.
        """
        self._sizes_of(dataset).record(partition, bytes_written)

    def forget(self, dataset: int, partition: int) -> None:
        """Forgets the sizes of a producer that restarts, or whose partition is lost."""
        if dataset in self._sizes:
            self._sizes[dataset].forget(partition)

    def _try(self, vertex: int) -> bool:
        topology = self._topology
        if topology.is_initialised(vertex):
            return False
        if topology.parallelism_of(vertex) == UNDECIDED:
            known = [topology.parallelism_of(member) for member in self._groups[self._group_of[vertex]]]
            if max(known) != UNDECIDED:
                topology.decide(vertex, max(known))
        if topology.parallelism_of(vertex) != UNDECIDED:
            datasets = (edge.dataset for edge in self._job.inputs_of(vertex))
            if not all(topology.is_initialised(self._job.datasets[dataset].producer) for dataset in datasets):
                return False
            topology.initialise(vertex)
        else:
            inputs = self._inputs_of(vertex)
            if inputs is None:
                return False
            members = self._groups[self._group_of[vertex]]
            most = min(self._job.vertices[member].max_parallelism for member in members)
            decision = self._decide(inputs, most, self._job.vertices[vertex].source_size)
            topology.decide(vertex, decision.parallelism)
            topology.initialise(vertex, decision.inputs)
            if decision.explanation is not None:
                self.explanations[vertex] = decision.explanation
        for dataset in self._job.outputs_of(vertex):
            topology.subpartition_counts(dataset)
        return True

    def _inputs_of(self, vertex: int) -> list[VertexInput] | None:
        """The inputs of a vertex; None while one of them is incomplete."""
        inputs = []
        for edge in self._job.inputs_of(vertex):
            sizes = self._sizes.get(edge.dataset)
            if sizes is None or not sizes.is_complete:
                return None
            inputs.append(_vertex_input(edge, sizes, self._job.datasets[edge.dataset].is_broadcast))
        return inputs

    def _sizes_of(self, dataset: int) -> DatasetSizes:
        sizes = self._sizes.get(dataset)
        if sizes is None:
            counts = self._topology.subpartition_counts(dataset)
            sizes = DatasetSizes(self._job.datasets[dataset].name, counts.size, int(counts[0]))
            self._sizes[dataset] = sizes
        return sizes


def forward_groups(job: JobGraph) -> tuple[list[int], list[list[int]]]:
    """Vertices that must have the same parallelism: the group of each vertex, and the members of each group.

    Raises:
        ConfigError: members of a group have different parallelisms.
    """
    joined = UnionFind(len(job.vertices))
    for edge in job.edges:
        if edge.is_forward:
            joined.join(job.datasets[edge.dataset].producer, edge.consumer)
    groups = joined.sets()
    group_of = [0] * len(job.vertices)
    for number, members in enumerate(groups):
        decided = [vertex for vertex in members if job.vertices[vertex].parallelism != UNDECIDED]
        for vertex in members:
            group_of[vertex] = number
        for vertex in decided[1:]:
            one, other = job.vertices[decided[0]], job.vertices[vertex]
            if one.parallelism != other.parallelism:
                raise ConfigError(
                    f"vertices {one.name!r} and {other.name!r} are joined by forward edges but have parallelism"
                    f" {one.parallelism} and {other.parallelism}; give them the same"
                )
    return group_of, groups


def _vertex_input(edge: JobEdge, sizes: DatasetSizes, is_broadcast: bool) -> VertexInput:
    return VertexInput(
        sizes,
        edge.pattern,
        is_broadcast,
        edge.input_number,
        binds_keys=edge.partitioner in _BINDS_KEYS,
        binds_inputs=edge.partitioner in _BINDS_INPUTS,
    )
