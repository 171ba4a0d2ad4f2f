"""The progress that TaskManagers report about a job's vertices: what is kept of a report, and what counts.

Takes: `JobProgress.vertices` of each TaskManager, untrusted; the places of the job's tasks. Gives: sums of records and
the latencies of each vertex.

Rules: of a report only the known numbers of the job's own vertices are kept. A report counts for the vertices of which
a task was last deployed to that TaskManager.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ...schedule.topology.execution_graph import ExecutionGraph
from ..task.latency import MERGED, merged_rows

ProgressByVertex = dict[int, dict[str, Any]]
"""By job vertex: `records_in`, `records_out` and, as in `TaskLatencies.rows`, `latencies`."""

_NUMBERS: Final = ("records_in", "records_out")


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
    return progress


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
