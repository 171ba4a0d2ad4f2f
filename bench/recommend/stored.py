"""The answer of results that exist: the same rules, the pairs are the repeats of one pass over the grid.

Takes: an `Analysis`. Gives: an `Answer` for each of its lines that has throughput at two timeouts or more.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..report.points import Analysis, Line, row_latency
from ..run_table import bottleneck_name
from ..store import Row
from .answer import Answer, Goal, Point, answer


def stored_answers(analysis: Analysis, goal: Goal) -> dict[Line, Answer]:
    """What the rows say of each line, in the order of the lines."""
    found = {line: answer(_points(analysis, line), goal, analysis.reference) for line in analysis.lines}
    return {line: each for line, each in found.items() if each is not None}


def _points(analysis: Analysis, line: Line) -> list[Point]:
    there = _by_repeat(analysis.runs("throughput", line, analysis.reference))
    points = []
    for timeout_s in analysis.timeouts:
        here = _by_repeat(analysis.runs("throughput", line, timeout_s))
        pairs = [
            (float(there[repeat]["payload_mb_per_s"]), float(row["payload_mb_per_s"]))
            for repeat, row in here.items()
            if repeat in there
        ]
        latencies = [row_latency(row, "p99") for row in analysis.runs("latency", line, timeout_s)]
        if pairs:
            names = [name for row in here.values() if (name := bottleneck_name(row))]
            points.append(
                Point(
                    timeout_s,
                    pairs,
                    [value for value in latencies if value],
                    max(sorted(set(names)), key=names.count, default=""),
                )
            )
    return points if len(points) > 1 else []


def _by_repeat(rows: Sequence[Row]) -> dict[int, Row]:
    """By their pass over the grid; files of single runs have none."""
    return {
        number if row.get("repeat") is None else int(row["repeat"]): row
        for number, row in enumerate(rows)
        if row.get("payload_mb_per_s")
    }
