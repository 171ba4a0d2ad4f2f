"""The report's first finding: the recommended buffer timeout.

Takes: an `Analysis`. Gives: an `Answer` for each line that has throughput at two timeouts or more, and the finding with
its ranges, or the statement that the data do not decide.
"""

from __future__ import annotations

from typing import Final

from ..bottleneck import bottleneck_name
from ..interval import ENOUGH_REPEATS
from ..recommend.answer import DEFAULT_KEPT, Answer, Goal, Point, answer, most_named
from .charts import timeout_label
from .points import Analysis, Line, row_latency, timeout_order

_MOST_LINES: Final = 4  # `netstack-bench recommend` prints all


def stored_answers(analysis: Analysis, goal: Goal) -> dict[Line, Answer]:
    """The answer for each line, in the order of the lines."""
    return {
        line: choice
        for line in analysis.own_lines
        if (choice := answer(_points(analysis, line), goal, analysis.reference)) is not None
    }


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


def answer_finding(analysis: Analysis) -> list[tuple[str, str, str]]:
    """(topic, figure, sentence); empty where fewer than two timeouts were measured."""
    answers = stored_answers(analysis, Goal())
    if not answers:
        return []
    reference = timeout_label(analysis.reference)
    question = f"the shortest that keeps {DEFAULT_KEPT:.0%} of the throughput at {reference}"
    doubts = {line.label: each.doubts[0] for line, each in answers.items() if each.doubts}
    texts = [_text(line, each, alone=len(answers) == 1) for line, each in list(answers.items())[:_MOST_LINES]]
    if len(answers) > _MOST_LINES:
        texts.append(f"{len(answers) - _MOST_LINES} more lines: netstack-bench recommend")
    lines = "".join(f"\n{each}" for each in texts)
    if doubts:
        label, doubt = next(iter(doubts.items()))
        repeats = ENOUGH_REPEATS if analysis.repeats < ENOUGH_REPEATS else 2 * analysis.repeats
        of = "" if len(doubts) == len(answers) else f", for {len(doubts)} of {len(answers)} lines"
        where = "" if len(answers) == 1 or len(set(doubts.values())) == 1 else f"{label}: "
        return [
            (
                "Buffer timeout",
                "not decided",
                f"by these data{of}: {where}{doubt}; repeat the command with --repeats {repeats} and --output with this"
                f" folder: only what is missing is measured. Wanted is {question}. So far:{lines}",
            )
        ]
    return [("Buffer timeout", _range(list(answers.values())), f"{question}:{lines}")]


def _range(answers: list[Answer]) -> str:
    timeouts = sorted({each.point.timeout_s for each in answers}, key=timeout_order)
    first, last = timeout_label(timeouts[0]), timeout_label(timeouts[-1])
    return first if len(timeouts) == 1 else f"{first} to {last}"


def _text(line: Line, choice: Answer, *, alone: bool) -> str:
    timeout = timeout_label(choice.point.timeout_s)
    if alone:
        return f"{timeout}, {choice.figures()}".replace(" us", " \u00b5s")
    return f"{line.label}: {timeout} keeps {choice.point.kept_text}"
