"""The latencies of a job: from the producer of each edge, and from each source to each vertex.

Takes: measured latencies and queued markers of each vertex. Gives: rows with quantiles.

Rules: a marker in the queue of an edge counts for that edge with the time since it was forwarded, and for the way from
its source to every vertex behind the edge with its whole age. Both are lower bounds of what will be measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

from ....schedule.graph.job_graph import JobGraph
from ...task.latency import summary_us
from ...task.queued import Queued
from ..job_master.job_master import JobMaster
from ..progress import edges_at, merged_latencies, queued_by_vertex

MOST_WORK: Final = 1 << 16
"""About how many ages of queued markers count for all vertices together; of more, evenly chosen ones."""


def job_latencies(master: JobMaster) -> list[tuple[str, dict[str, Any]]]:
    """Returns the latencies at each vertex that a marker goes to: the vertex's name and a row of `vertex_latencies`."""
    vertices = master.scheduler.topology.job.vertices
    return [(vertices[number].name, row) for number, rows in vertex_latencies(master).items() for row in rows]


def vertex_latencies(master: JobMaster) -> dict[int, list[dict[str, Any]]]:
    """Returns the latencies to each vertex: from the producer of each input, and from each more distant source.

    Returns:
        By vertex: `from` (name of the vertex), `input` (its number; None for a source) and what `summary_us` returns.
    """
    placed = master.tasks.placed_vertices()
    job = master.scheduler.topology.job
    return named_latencies(
        job, merged_latencies(master.progress, placed), queued_by_vertex(job, master.progress, placed)
    )


def named_latencies(
    job: JobGraph, measured: Mapping[int, Mapping[str, Sequence[int]]], queued: Mapping[int, Queued]
) -> dict[int, list[dict[str, Any]]]:
    """Returns the latencies to each vertex, see `vertex_latencies`.

    Args:
        job: the job.
        measured: the rows of `TaskLatencies.rows` of each vertex, merged.
        queued: the queued markers of each vertex.
    """
    waiting = _waiting(job, queued)
    return {
        vertex: _rows(job, vertex, measured.get(vertex, {}), waiting[vertex]) for vertex in range(len(job.vertices))
    }


def _waiting(job: JobGraph, queued: Mapping[int, Queued]) -> list[dict[str, list[int]]]:
    """The ages of waiting markers by vertex and row name."""
    reached = _reached(job)
    own: list[tuple[int, int, str]] = []  # age, the vertex in front of which the marker is queued, name
    waiting: list[dict[str, list[int]]] = [{} for _ in job.vertices]
    for vertex, rows in queued.items():
        for place, source, edge_us, age_us in rows["markers"]:
            for consumer, number in edges_at(job, vertex, place):
                waiting[consumer].setdefault(f"input {number}", []).append(edge_us)
                own.append((age_us, consumer, f"source {source}"))
    work = sum(reached[vertex].bit_count() for _, vertex, _ in own)
    own.sort(reverse=True)  # so that the oldest one is kept
    lists: dict[int, list[int]] = {}
    for age_us, vertex, name in own[:: -(-work // MOST_WORK) or 1]:
        if vertex not in lists:
            lists[vertex] = [each for each, bit in enumerate(bin(reached[vertex])[:1:-1]) if bit == "1"]
        for each in lists[vertex]:
            waiting[each].setdefault(name, []).append(age_us)
    return waiting


def _reached(job: JobGraph) -> list[int]:
    """For each vertex the bits of the vertex and of all that read from it, directly or not."""
    masks = [0] * len(job.vertices)
    consumers = [
        {edge.consumer for dataset in job.outputs_of(vertex) for edge in job.consumers_of(dataset)}
        for vertex in range(len(job.vertices))
    ]
    for vertex in reversed(range(len(job.vertices))):  # they are in topological order
        masks[vertex] = reduce(or_, (masks[each] for each in consumers[vertex]), 1 << vertex)
    return masks


def _rows(
    job: JobGraph, vertex: int, measured: Mapping[str, Sequence[int]], waiting: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    producers = [job.datasets[edge.dataset].producer for edge in job.inputs_of(vertex)]
    rows = []
    for name in sorted({*measured, *waiting}):
        what, _, digits = name.partition(" ")
        number = int(digits) if digits.isdecimal() else -1
        values, ages = measured.get(name, ()), waiting.get(name, ())
        if not (values or ages) or not 0 <= number < len(producers if what == "input" else job.vertices):
            continue
        origin = producers[number] if what == "input" else number
        if what == "input" or origin not in producers:
            label = job.vertices[origin].name
            rows.append({"from": label, "input": number if what == "input" else None, **summary_us(values, ages)})
    return rows
