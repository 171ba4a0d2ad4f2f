"""What rows of months of sweeps say: which timeout to set, what differs, what became worse.

Takes: DataFrames of the table `runs` (`tables`), or the folder of the tables. Gives: small DataFrames, by the rules of
`netstack-bench recommend` and `compare`: the rows are collected, a few hundred bytes a run; for SQL the same as views.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from netstack.errors import ConfigError

from ..compare import compare as compare_rows
from ..recommend.answer import Goal
from ..recommend.lines import memory_bytes, spec_of
from ..report.answers import stored_answers
from ..report.points import Analysis
from ..store import Row
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
    """Which buffer timeout to set for a goal, a row for each workload among the runs.

    Args:
        runs: rows of the table `runs`, of one sweep or several; runs of one pass of one sweep are compared in pairs.
        p99_s: the goal is a p99 of so many seconds; then most throughput.
        mb_per_s: the goal is so much payload; then least latency. Without either: 90 % of the throughput at 100 ms.
    """
    found = _recommended(_rows(runs), _goal(p99_s, mb_per_s))
    return runs.sparkSession.createDataFrame(list(found), _ANSWERS)


def compare(a: Any, b: Any) -> Any:
    """Every figure of the points that both have, with the 99 % interval of its change and what that means for `b`.

    Args:
        a: rows of the table `runs`.
        b: likewise.

    Raises:
        ConfigError: they have no point in common.
    """
    return a.sparkSession.createDataFrame(_compared(_rows(a), _rows(b)), _DIFFERENCES)


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


def register_views(
    spark: Any, warehouse: str, *, p99_s: float | None = None, mb_per_s: float | None = None, prefix: str = "netstack_"
) -> tuple[str, ...]:
    """Tables and answers as temporary views of the session, for SQL.

    Args:
        spark: the session.
        warehouse: URL or path of the folder of tables.
        p99_s: the goal of the recommendations, as of `recommend`.
        mb_per_s: likewise.
        prefix: of the views' names.

    Returns:
        Their names: the four tables, with all sweeps that are there when they are asked; and of the sweeps that are
        there now, `recommendations`, as `recommend` gives them, by `sweep_id`; `changes`, as `compare` gives them, of
        each sweep (`sweep_id`, `started_at`) since the last one before it that has a point in common (`since`).

    Raises:
        AnalysisException: there are no such tables; Spark's own.
    """
    url = table_url(warehouse)
    goal = _goal(p99_s, mb_per_s)
    views = {table: read_table(spark, url, table) for table in SCHEMAS}
    rows = sorted(_rows(views[RUNS]), key=lambda row: (row["sweep_id"], row["started_at"]))
    of_sweeps = [(str(sweep), list(found)) for sweep, found in groupby(rows, key=lambda row: row["sweep_id"])]
    of_sweeps.sort(key=lambda each: each[1][0]["started_at"])
    answers = [(sweep, *found) for sweep, each in of_sweeps for found in _recommended(each, goal)]
    views["recommendations"] = spark.createDataFrame(answers, f"sweep_id string, {_ANSWERS}")
    changes = f"sweep_id string, started_at timestamp, since string, {_DIFFERENCES}"
    views["changes"] = spark.createDataFrame(list(_changes(of_sweeps)), changes)
    for name, frame in views.items():
        frame.createOrReplaceTempView(f"{prefix}{name}")
    return tuple(f"{prefix}{name}" for name in views)


def _goal(p99_s: float | None, mb_per_s: float | None) -> Goal:
    return Goal(p99_us=None if p99_s is None else p99_s * 1e6, mb_per_s=mb_per_s)


def _recommended(rows: Sequence[Row], goal: Goal) -> Iterator[tuple[Any, ...]]:
    """Rows of `_ANSWERS`."""
    analysis = Analysis(rows)
    for line, each in stored_answers(analysis, goal).items():
        memory = memory_bytes(spec_of(analysis.runs("throughput", line, each.point.timeout_s)[0]))
        kept = each.point.kept
        yield (
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


def _compared(a: Sequence[Row], b: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Rows of `_DIFFERENCES`."""
    return [
        (each.point, each.metric, each.a.median, each.b.median, each.change, each.low, each.high, each.verdict)
        for each in compare_rows(a, b).differences
    ]


def _changes(sweeps: Sequence[tuple[str, Sequence[Row]]]) -> Iterator[tuple[Any, ...]]:
    """Of each sweep since one before, the earliest first."""
    for number, (sweep, rows) in enumerate(sweeps):
        for before, others in reversed(sweeps[:number]):
            with contextlib.suppress(ConfigError):  # no point in common
                found = _compared(others, rows)
                yield from ((sweep, rows[0]["started_at"], before, *each) for each in found)
                break


def _rows(runs: Any) -> Sequence[Row]:
    """As a results folder has them; a pass of a sweep is a repeat."""
    kept = [name for name in runs.columns if name not in _LARGE]
    rows = [row.asDict(recursive=True) for row in runs.select(*kept).collect()]
    passes: dict[tuple[Any, Any], int] = {}
    return [{**row, "repeat": passes.setdefault((row.get("sweep_id"), row.get("repeat")), len(passes))} for row in rows]
