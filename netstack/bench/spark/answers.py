"""What rows of months of sweeps say: which timeout to set, what differs, what became worse.

Takes: DataFrames of the table `runs` (`tables`). Gives: small DataFrames, by the rules of `netstack-bench recommend`
and `compare`: the rows are collected, a few hundred bytes a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from ..compare import compare as compare_rows
from ..recommend.answer import Goal
from ..recommend.lines import memory_bytes, spec_of
from ..report.answers import stored_answers
from ..report.points import Analysis
from ..store import Row

_ANSWERS: Final = (
    "workload string, buffer_timeout_s double, is_reached boolean, is_decided boolean, kept_low double,"
    " kept_high double, mb_per_s double, p99_us double, bottleneck string, memory_bytes bigint, paragraph string"
)
_DIFFERENCES: Final = (
    "point string, metric string, a double, b double, change double, low double, high double, verdict string"
)
_LARGE: Final = ("timeline", "hosts", "pairs", "costs")


def recommend(runs: Any, *, p99_s: float | None = None, mb_per_s: float | None = None) -> Any:
    """Which buffer timeout to set for a goal, a row for each workload among the runs.

    Args:
        runs: rows of the table `runs`, of one sweep or several; runs of one pass of one sweep are compared in pairs.
        p99_s: the goal is a p99 of so many seconds; then most throughput.
        mb_per_s: the goal is so much payload; then least latency. Without either: 90 % of the throughput at 100 ms.
    """
    goal = Goal(p99_us=None if p99_s is None else p99_s * 1e6, mb_per_s=mb_per_s)
    analysis = Analysis(_rows(runs))
    found = []
    for line, each in stored_answers(analysis, goal).items():
        memory = memory_bytes(spec_of(analysis.runs("throughput", line, each.point.timeout_s)[0]))
        kept = each.point.kept
        found.append(
            (
                line.words,
                each.point.timeout_s,
                each.is_reached,
                each.is_decided,
                None if kept is None else kept.low,
                None if kept is None else kept.high,
                each.point.mb_per_s,
                each.point.promptness if each.point.p99_us else None,
                each.point.bottleneck or None,
                memory,
                each.paragraph(memory),
            )
        )
    return runs.sparkSession.createDataFrame(found, _ANSWERS)


def compare(a: Any, b: Any) -> Any:
    """Every figure of the points that both have, with the 99 % interval of its change and what that means for `b`.

    Args:
        a: rows of the table `runs`.
        b: likewise.

    Raises:
        ConfigError: they have no point in common.
    """
    found = compare_rows(_rows(a), _rows(b)).differences
    told = [
        (each.point, each.metric, each.a.median, each.b.median, each.change, each.low, each.high, each.verdict)
        for each in found
    ]
    return a.sparkSession.createDataFrame(told, _DIFFERENCES)


def regressions(runs: Any, since: datetime) -> Any:
    """What is worse in the runs since a moment than in those before, as `compare` tells it.

    Args:
        runs: rows of the table `runs`.
        since: of `started_at`.

    Raises:
        ConfigError: no point was measured before and since.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    found = compare(runs.where(F.col("started_at") < F.lit(since)), runs.where(F.col("started_at") >= F.lit(since)))
    return found.where("verdict = 'worse'")


def _rows(runs: Any) -> Sequence[Row]:
    """As a results folder has them; a pass of a sweep is a repeat."""
    kept = [name for name in runs.columns if name not in _LARGE]
    rows = [row.asDict(recursive=True) for row in runs.select(*kept).collect()]
    passes: dict[tuple[Any, Any], int] = {}
    return [{**row, "repeat": passes.setdefault((row.get("sweep_id"), row.get("repeat")), len(passes))} for row in rows]
