"""The answer of results that exist: the same rules, the pairs are the repeats of one pass over the grid.

Takes: an `Analysis`. Gives: an `Answer` for each of its lines that has throughput at two timeouts or more.
"""

from __future__ import annotations

from ..bottleneck import bottleneck_name
from ..report.points import Analysis, Line, row_latency
from .answer import Answer, Goal, Point, answer, most_named


def stored_answers(analysis: Analysis, goal: Goal) -> dict[Line, Answer]:
    """What the rows say of each line, in the order of the lines."""
    found = {line: answer(_points(analysis, line), goal, analysis.reference) for line in analysis.lines}
    return {line: each for line, each in found.items() if each is not None}


def _points(analysis: Analysis, line: Line) -> list[Point]:
    points = []
    for timeout_s in analysis.timeouts:
        pairs = analysis.pairs(line, timeout_s)
        latencies = [row_latency(row, "p99") for row in analysis.runs("latency", line, timeout_s)]
        names = [bottleneck_name(row) for row in analysis.runs("throughput", line, timeout_s)]
        if pairs:
            known = [value for value in latencies if value]
            points.append(Point(timeout_s, pairs, known, most_named(names)))
    return points if len(points) > 1 else []
