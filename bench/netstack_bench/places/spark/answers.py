"""Evaluates the tables of many sweeps: recommended timeouts, differences, and regressions.

The functions take the table `runs` (`tables`) and apply the rules of `netstack-bench recommend` and `compare`. They
collect the rows in the driver, a few hundred bytes for each run. `register_views` offers the same results to SQL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from netstack.base.errors import ConfigError

from ...compare import compare as compare_rows
from ...decision.goal import Answer, Goal
from ...recommend.lines import memory_bytes, spec_of
from ...report.answers import EVERY_WORKLOAD, decide
from ...report.points import Analysis
from ...store import Row
from .tables import RUNS, SCHEMAS, read_table, table_url

_ANSWERS: Final = (
    "workload string, buffer_timeout_s double, is_reached boolean, is_decided boolean, kept_low double,"
    " kept_high double, mb_per_s double, p99_us double, bottleneck string, memory_bytes bigint, paragraph string"
)
_DIFFERENCES: Final = (
    "point string, metric string, a double, b double, change double, low double, high double, verdict string"
)
_LARGE: Final = ("timeline", "hosts", "pairs", "costs", "schema_version")


def recommend(runs: Any, *, p99_s: float | None = None, mb_per_s: float | None = None) -> Any:
    """Recommends a buffer timeout for a goal, in a row for each workload among the runs.

    Without a goal and with several workloads the first row, `every workload`, is for all of them together.

    Args:
        runs: rows of the table `runs`, of one or several sweeps; runs of one pass of a sweep are compared in pairs.
        p99_s: the greatest allowed p99, in seconds; the recommendation then has the most throughput.
        mb_per_s: the least allowed payload throughput; the recommendation then has the least latency. Without a goal it
            is 90 % of the throughput at 100 ms.
    """
    answers = _recommended(_rows(runs), Goal.of(p99_s, mb_per_s))
    return runs.sparkSession.createDataFrame(list(answers), _ANSWERS)


def compare(a: Any, b: Any) -> Any:
    """Compares the points that two sets of runs share: each figure's change, its 99 % interval, and a verdict on `b`.

    Raises:
        ConfigError: they have no point in common.
    """
    return a.sparkSession.createDataFrame(_compared(_rows(a), _rows(b)), _DIFFERENCES)


def regressions(runs: Any, since: datetime) -> Any:
    """Returns the figures that are worse in the runs since a time than before it, in the format of `compare`.

    Raises:
        ConfigError: no point was measured both before and since.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    started_at = F.col("started_at")
    changes = compare(runs.where(started_at < F.lit(since)), runs.where(started_at >= F.lit(since)))
    return changes.where("verdict = 'worse'")


def register_views(
    spark: Any, warehouse: str, *, p99_s: float | None = None, mb_per_s: float | None = None, prefix: str = "netstack_"
) -> tuple[str, ...]:
    """Creates temporary views of the tables and of their evaluation, for SQL.

    Args:
        spark: the session.
        warehouse: URL or path of the folder of tables.
        p99_s: the goal of the recommendations, as for `recommend`.
        mb_per_s: the goal of the recommendations, as for `recommend`.
        prefix: the prefix of the views' names.

    Returns:
        The names of the views: the four tables, which include later sweeps; and for the sweeps that exist now,
        `recommendations` (the result of `recommend` for each `sweep_id`) and `changes` (the result of `compare` for
        each sweep with the previous sweep that has a point in common, in the column `since`).

    Raises:
        AnalysisException: the tables do not exist; Spark's error.
    """
    url = table_url(warehouse)
    goal = Goal.of(p99_s, mb_per_s)
    views = {table: read_table(spark, url, table) for table in SCHEMAS}
    rows = sorted(_rows(views[RUNS]), key=lambda row: (row["sweep_id"], row["started_at"]))
    of_sweeps = [(str(sweep), list(runs)) for sweep, runs in groupby(rows, key=lambda row: row["sweep_id"])]
    of_sweeps.sort(key=lambda each: each[1][0]["started_at"])
    answers = [(sweep, *answer) for sweep, runs in of_sweeps for answer in _recommended(runs, goal)]
    views["recommendations"] = spark.createDataFrame(answers, f"sweep_id string, {_ANSWERS}")
    changes = f"sweep_id string, started_at timestamp, since string, {_DIFFERENCES}"
    views["changes"] = spark.createDataFrame(list(_changes(of_sweeps)), changes)
    for name, frame in views.items():
        frame.createOrReplaceTempView(f"{prefix}{name}")
    return tuple(f"{prefix}{name}" for name in views)


def _recommended(rows: Sequence[Row], goal: Goal) -> Iterator[tuple[Any, ...]]:
    """Rows of `_ANSWERS`; the first is that of all workloads together, if there are several."""
    analysis = Analysis(rows)
    for decision in decide(analysis, goal).values():
        if decision.together is not None:
            yield _answer_row(EVERY_WORKLOAD, decision.together, None)
        for line, each in decision.lines.items():
            spec = spec_of(analysis.runs("throughput", line, each.chosen.timeout_s)[0])
            yield _answer_row(line.words, each, memory_bytes(spec))


def _answer_row(words: str, answer: Answer, memory: int | None) -> tuple[Any, ...]:
    chosen, known = answer.chosen, answer.chosen.share.range
    return (
        words,
        chosen.timeout_s,
        answer.is_reached,
        answer.is_decided,
        None if known is None else known.low,
        None if known is None else known.high,
        chosen.rate_middle or None,
        chosen.p99_middle if chosen.p99_us else None,
        chosen.bottleneck or None,
        memory,
        answer.sentence(),
    )


def _compared(a: Sequence[Row], b: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Rows of `_DIFFERENCES`."""
    return [
        (each.point, each.metric, each.a.median, each.b.median, each.change, each.low, each.high, each.verdict)
        for each in compare_rows(a, b).differences
    ]


def _changes(sweeps: Sequence[tuple[str, Sequence[Row]]]) -> Iterator[tuple[Any, ...]]:
    """Rows of `changes`, the earliest sweep first."""
    for number, (sweep, rows) in enumerate(sweeps):
        for before, others in reversed(sweeps[:number]):
            with contextlib.suppress(ConfigError):  # no point in common
                changes = _compared(others, rows)
                yield from ((sweep, rows[0]["started_at"], before, *each) for each in changes)
                break


def _rows(runs: Any) -> Sequence[Row]:
    """Rows in the form of a results folder; each pass of each sweep becomes a repeat."""
    kept = [name for name in runs.columns if name not in _LARGE]
    rows = [row.asDict(recursive=True) for row in runs.select(*kept).collect()]
    passes: dict[tuple[Any, Any], int] = {}
    return [{**row, "repeat": passes.setdefault((row.get("sweep_id"), row.get("repeat")), len(passes))} for row in rows]
