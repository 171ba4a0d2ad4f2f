"""The report's first finding: the buffer timeout to set.

Takes: an `Analysis`. Gives: an `Answer` for all workloads together and for each, from throughput at two timeouts or
more, and the finding with its ranges.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from ..decision.goal import Answer, Candidate, Effects, Goal, Run, Share, answer, most_named
from ..labels import bottleneck_name
from .charts import timeout_label
from .points import Analysis, Line, row_latency

EVERY_WORKLOAD: Final = "every workload"
"""The workload of the answer for all of them together."""

_MOST_LINES: Final = 4  # `netstack-bench recommend` prints all
_LONGEST_RUN_S: Final = 60.0  # between the starts of two runs; a longer time was a break


@dataclass(frozen=True, slots=True)
class Decision:
    """The answers of one sweep.

    `together` is that of all its workloads; None where there is one, or the goal is a figure of one.
    """

    together: Answer | None
    lines: Mapping[Line, Answer]

    @property
    def main(self) -> Answer:
        """The answer to print first."""
        return self.together or next(iter(self.lines.values()))

    @property
    def contested(self) -> Answer | None:
        """The answer whose question is open; None where all are decided."""
        asked = [self.together] if self.together else list(self.lines.values())
        return next((each for each in asked if not each.is_decided), None)

    def as_dict(self) -> dict[str, Any]:
        """The JSON values of the whole."""
        return {**answer_dict(self.main), "workloads": {line.words: answer_dict(x) for line, x in self.lines.items()}}


def answer_dict(choice: Answer) -> dict[str, Any]:
    """The JSON values of an answer; ranges are None where the noise is unknown."""
    point = choice.chosen
    return {
        "sentence": choice.sentence(),
        "buffer_timeout_s": point.timeout_s,
        "rival_timeout_s": None if choice.rival is None else choice.rival.timeout_s,
        "has_rival": choice.rival is not None,
        "is_reached": choice.is_reached,
        "is_decided": choice.is_decided,
        "kept": {
            "middle": point.share.middle,
            **({"low": None, "high": None} if point.share.range is None else _ends(point.share)),
        },
        "mb_per_s": None if point.rate is None else asdict(point.rate),
        "p99_us": None if point.p99 is None else asdict(point.p99),
        "passes": point.passes,
        "passes_needed": choice.passes_needed,
        "seconds_needed": choice.cost_s,
    }


def _ends(share: Share) -> dict[str, float]:
    assert share.range is not None
    return {"low": share.range.low, "high": share.range.high}


def decide(analysis: Analysis, goal: Goal) -> dict[str, Decision]:
    """The decision of each sweep by its letter; without those in which nothing can be compared."""
    decisions = {}
    for sweep in dict.fromkeys(line.sweep for line in analysis.own_lines):
        decision = _decide(analysis, goal, [line for line in analysis.own_lines if line.sweep == sweep])
        if decision is not None:
            decisions[sweep] = decision
    return decisions


def kept_shares(analysis: Analysis) -> dict[tuple[Line, float | None], Share]:
    """What each timeout of each line keeps, with the ranges of the answers; lines of a real Flink among themselves."""
    shares = {}
    groups: dict[tuple[str, bool], list[Line]] = {}
    for line in analysis.lines:
        groups.setdefault((line.sweep, line in analysis.own_lines), []).append(line)
    for lines in groups.values():
        effects = Effects({line: _runs(analysis, line) for line in lines}, analysis.reference)
        for line, timeout_s in itertools.product(lines, analysis.timeouts):
            share = effects.share(timeout_s, [line])
            if share is not None and analysis.runs("throughput", line, timeout_s):
                shares[line, timeout_s] = share
    return shares


def _decide(analysis: Analysis, goal: Goal, lines: Sequence[Line]) -> Decision | None:
    effects = Effects({line: _runs(analysis, line) for line in lines}, analysis.reference)
    usable = [line for line in lines if effects.timeouts(line)]
    reference = timeout_label(analysis.reference)
    rates = analysis.latency_rates
    more: dict[str, Any] = {"rate_per_s": rates[0] if len(rates) == 1 else None, "run_s": _run_s(analysis)}
    answers = {}
    for line in usable:
        own = [_of_line(analysis, effects, line, timeout_s) for timeout_s in _timeouts(analysis, effects, line)]
        choice = answer(own, goal, analysis.reference, reference, **more)
        if choice is not None:
            answers[line] = choice
    if not answers:
        return None
    together = None
    if goal.is_relative and len(answers) > 1:
        shared = [each for each in analysis.timeouts if all(each in _timeouts(analysis, effects, x) for x in answers)]
        candidates = [_of_all(analysis, effects, answers, timeout_s, goal) for timeout_s in shared]
        together = answer(candidates, goal, analysis.reference, reference, **more)
    return Decision(together, answers)


def _timeouts(analysis: Analysis, effects: Effects, line: Line) -> list[float | None]:
    return [each for each in analysis.timeouts if each == analysis.reference or each in effects.timeouts(line)]


def _runs(analysis: Analysis, line: Line) -> list[Run]:
    rows = (row for timeout_s in analysis.timeouts for row in analysis.runs("throughput", line, timeout_s))
    return [
        Run(row.get("settings_buffer_timeout_s"), row.get("repeat") or 0, float(row["payload_mb_per_s"]))
        for row in rows
        if row.get("payload_mb_per_s")
    ]


def _passes(analysis: Analysis, line: Line, timeout_s: float | None) -> int:
    return len(analysis.runs("throughput", line, timeout_s))


def _p99_us(analysis: Analysis, line: Line, timeout_s: float | None) -> list[float]:
    return [known for row in analysis.runs("latency", line, timeout_s) if (known := row_latency(row, "p99"))]


def _middle(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _of_line(analysis: Analysis, effects: Effects, line: Line, timeout_s: float | None) -> Candidate:
    share = effects.share(timeout_s, [line])
    assert share is not None
    runs = analysis.runs("throughput", line, timeout_s)
    return Candidate(
        timeout_s,
        share,
        _passes(analysis, line, timeout_s),
        mb_per_s=[float(row["payload_mb_per_s"]) for row in runs if row.get("payload_mb_per_s")],
        p99_us=_p99_us(analysis, line, timeout_s),
        bottleneck=most_named([bottleneck_name(row) for row in runs]),
    )


def _of_all(
    analysis: Analysis, effects: Effects, answers: Mapping[Line, Answer], timeout_s: float | None, goal: Goal
) -> Candidate:
    lines = list(answers)
    shares = {line: share for line in lines if (share := effects.share(timeout_s, [line], len(lines))) is not None}
    below = [line for line, share in shares.items() if share.range is not None and share.range.high < goal.kept]
    alone = below[0] if len(below) == 1 and len(lines) > 2 else None
    rest = [line for line in lines if line != alone]
    share = effects.share(timeout_s, rest)
    assert share is not None
    return Candidate(
        timeout_s,
        share,
        min(_passes(analysis, line, timeout_s) for line in lines),
        shares=tuple((line.label, each) for line, each in shares.items()),
        other=None if alone is None else (alone.label, shares[alone], answers[alone].chosen.label),
        p99_us=max((_p99_us(analysis, line, timeout_s) for line in lines), key=_middle),
    )


def _run_s(analysis: Analysis) -> float:
    """About how long a run takes, its start included: by the times at which runs started."""
    starts = []
    for row in analysis.good:
        with contextlib.suppress(ValueError):
            starts.append(datetime.fromisoformat(str(row.get("started_at"))).timestamp())
    starts.sort()
    steps = [min(b - a, _LONGEST_RUN_S) for a, b in itertools.pairwise(starts)]
    return sum(steps) / len(steps) if steps else 0.0


def answer_finding(analysis: Analysis) -> list[tuple[str, str, str]]:
    """(topic, figure, sentence) of each sweep; none where fewer than two timeouts were measured."""
    findings = []
    for sweep, decision in decide(analysis, Goal()).items():
        main, lines = decision.main, list(decision.lines.items())
        figure, sentence = main.head, main.sentence()
        rest = sentence.removeprefix(figure).removeprefix(" ") if sentence.startswith(figure) else sentence
        texts = []
        if decision.together is not None:
            texts = [f"{line.label}: {each.brief()}" for line, each in lines[:_MOST_LINES]]
            if len(lines) > _MOST_LINES:
                texts.append(f"{len(lines) - _MOST_LINES} more workloads: netstack-bench recommend")
        topic = f"Buffer timeout{f', {sweep}' if sweep else ''}"
        findings.append((topic, figure, "".join((rest, *(f"\n{each}" for each in texts)))))
    return findings
