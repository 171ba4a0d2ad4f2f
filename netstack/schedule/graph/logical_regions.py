"""Logical pipelined regions: vertices of a job that have to run at the same time.

Takes: a job graph. Gives: sets of vertices, in topological order.

Rules: edges that must be pipelined join, whatever their pattern. Regions of which each waits for the other are one
when asked for: subtasks of both will wait for each other as well.
"""

from __future__ import annotations

from ..structures.arrays import index_array
from ..structures.strongly_connected import connected_components, strongly_connected_components
from .job_graph import JobGraph


def logical_regions(job: JobGraph) -> tuple[tuple[int, ...], ...]:
    """Vertices joined by edges that must be pipelined; each region ascending, regions by their first vertex."""
    return _as_sets(_joined(job))


def acyclic_logical_regions(job: JobGraph) -> tuple[tuple[int, ...], ...]:
    """The same, and regions that depend on each other in a circle are one."""
    joined = _joined(job)
    source = index_array([joined[job.datasets[edge.dataset].producer] for edge in job.edges])
    target = index_array([joined[edge.consumer] for edge in job.edges])
    merged = strongly_connected_components(len(job.vertices), source, target)
    return _as_sets([int(merged[region]) for region in joined])


def _joined(job: JobGraph) -> list[int]:
    """The first vertex of the region of each."""
    pipelined = [edge for edge in job.edges if job.datasets[edge.dataset].type.must_be_pipelined]
    one = index_array([job.datasets[edge.dataset].producer for edge in pipelined])
    other = index_array([edge.consumer for edge in pipelined])
    joined: list[int] = connected_components(len(job.vertices), one, other).tolist()
    return joined


def _as_sets(region_of: list[int]) -> tuple[tuple[int, ...], ...]:
    members: dict[int, list[int]] = {}
    for vertex, region in enumerate(region_of):
        members.setdefault(region, []).append(vertex)
    return tuple(tuple(vertices) for vertices in members.values())
