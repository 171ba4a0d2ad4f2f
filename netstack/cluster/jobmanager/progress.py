"""The progress that TaskManagers report about a job's vertices: what is kept of a report, and what counts.

Takes: `JobProgress.vertices` of each TaskManager, untrusted; the places of the job's tasks. Gives: sums of records and
the latencies and queued events of each vertex.

Rules: of a report only the known numbers of the job's own vertices are kept. A report counts for the vertices of which
a task was last deployed to that TaskManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

from ...schedule.checkpoint.instructions import Subtask
from ...schedule.graph.job_graph import JobGraph
from ...schedule.topology.execution_graph import ExecutionGraph
from ..task.latency import MERGED, merged_rows
from ..task.queued import MOST_BARRIERS, MOST_MARKERS, NO_BARRIER, Queued, merged_queued, output_place

ProgressByVertex = dict[int, dict[str, Any]]
"""By job vertex: `records_in`, `records_out`, `latencies` (`TaskLatencies.rows`) and `queued` (`merged_queued`)."""

_NUMBERS: Final = ("records_in", "records_out")

_ROWS: Final = 1 << 14
_LEAST_ROWS: Final = 8


def checked_progress(report: Mapping[Any, Any], topology: ExecutionGraph) -> ProgressByVertex:
    """Returns the known numbers of a report; leaves everything else out."""
    vertices = topology.job.vertices
    progress: ProgressByVertex = {}
    for number in range(len(vertices)):
        row = report.get(str(number))
        if type(row) is not dict:
            continue
        progress[number] = {
            name: value for name in _NUMBERS if type(value := row.get(name)) is int and 0 <= value < 1 << 63
        }
        latencies = row.get("latencies")
        if type(latencies) is dict:
            names = [f"input {each}" for each in range(len(topology.job.inputs_of(number)))]
            names += [f"source {each}" for each in range(len(vertices))]
            progress[number]["latencies"] = merged_rows(
                [{name: latencies[name][: 2 * MERGED]} for name in names if type(latencies.get(name)) is list]
            )
        if type(queued := row.get("queued")) is dict:
            progress[number]["queued"] = _checked_queued(queued, topology, number)
    return progress


def _checked_queued(queued: Mapping[Any, Any], topology: ExecutionGraph, vertex: int) -> Queued:
    job = topology.job
    least, most = output_place(len(job.outputs_of(vertex)) - 1), len(job.inputs_of(vertex))
    limits = _limits(job)
    markers, barriers = queued.get("markers"), queued.get("barriers")
    if type(markers) is list:  # few are looked at, however many there are
        markers = markers[:MOST_MARKERS]
        markers = markers[:: -(-len(markers) // limits["most_markers"]) or 1]
    if type(barriers) is list:
        barriers = barriers[: limits["most_barriers"]]
    rows = merged_queued([{"markers": markers, "barriers": barriers}], **limits)
    return {
        "markers": [
            row
            for row in rows["markers"]
            if least <= row[0] < most and 0 <= row[1] < len(job.vertices) and row[2] >= 0 and row[3] >= 0
        ],
        "barriers": [row for row in rows["barriers"] if least <= row[0] < most and row[1] >= 0 and row[2] >= 0],
    }


def _limits(job: JobGraph) -> dict[str, int]:
    """The most rows of one vertex: of all vertices together about `_ROWS`, for which a loop needs some milliseconds."""
    each = max(_LEAST_ROWS, _ROWS // len(job.vertices))
    return {"most_markers": min(MOST_MARKERS, each), "most_barriers": min(MOST_BARRIERS, each)}


def summed_progress(
    progress: Mapping[str, ProgressByVertex], placed: Collection[tuple[str, int]]
) -> dict[int, dict[str, int]]:
    """Sums the records of each vertex over all TaskManagers.

    Args:
        progress: the last report of each TaskManager.
        placed: TaskManagers and vertices of which a task was last deployed there.
    """
    sums: dict[int, dict[str, int]] = {}
    for taskmanager, vertices in progress.items():
        for vertex, row in vertices.items():
            if (taskmanager, vertex) in placed:
                mine = sums.setdefault(vertex, dict.fromkeys(_NUMBERS, 0))
                for name in _NUMBERS:
                    mine[name] += row.get(name, 0)
    return sums


def merged_latencies(
    progress: Mapping[str, ProgressByVertex], placed: Collection[tuple[str, int]]
) -> dict[int, dict[str, list[int]]]:
    """Merges the latest latencies of each vertex over all TaskManagers; arguments as of `summed_progress`."""
    parts: dict[int, list[Mapping[str, Any]]] = {}
    for taskmanager, vertices in progress.items():
        for vertex, row in vertices.items():
            if "latencies" in row and (taskmanager, vertex) in placed:
                parts.setdefault(vertex, []).append(row["latencies"])
    return {vertex: merged_rows(each) for vertex, each in parts.items()}


def queued_by_vertex(
    job: JobGraph, progress: Mapping[str, ProgressByVertex], placed: Collection[tuple[str, int]]
) -> dict[int, Queued]:
    """Merges the queued events of each vertex over all TaskManagers; arguments as of `summed_progress`."""
    parts: dict[int, list[Queued]] = {}
    for taskmanager, vertices in progress.items():
        for vertex, row in vertices.items():
            if "queued" in row and (taskmanager, vertex) in placed:
                parts.setdefault(vertex, []).append(row["queued"])
    limits = _limits(job)
    return {vertex: merged_queued(each, **limits) for vertex, each in parts.items()}


def edges_at(job: JobGraph, vertex: int, place: int) -> list[tuple[int, int]]:
    """The consumer and input number of the edges at a place of a vertex (`queued`)."""
    if place >= 0:
        return [(vertex, place)]
    dataset = job.outputs_of(vertex)[output_place(place)]
    return [(edge.consumer, job.inputs_of(edge.consumer).index(edge)) for edge in job.consumers_of(dataset)]


def data_ahead(job: JobGraph, queued: Mapping[int, Queued], checkpoint_id: int, waiting: Collection[Subtask]) -> int:
    """The bytes of data in front of the barriers of a checkpoint, in the queues towards subtasks.

    A channel without a queued barrier counts if none of its vertex's subtasks has passed the barriers.

    Args:
        job: the job.
        queued: the queued barriers of each vertex.
        checkpoint_id: the checkpoint.
        waiting: the subtasks that have not acknowledged it.
    """
    counts = Counter(task for task, _ in waiting)
    ahead_bytes = 0
    for vertex, rows in queued.items():
        for place, barrier, size in rows["barriers"]:
            for consumer, _ in edges_at(job, vertex, place):
                count = counts[job.vertices[consumer].name]
                is_ahead = barrier == checkpoint_id or (
                    barrier == NO_BARRIER and count == job.vertices[consumer].parallelism
                )
                if count and is_ahead:
                    ahead_bytes += size
    return ahead_bytes
