"""What went wrong in a run on Spark, in one sentence.

Takes: what Spark raised, or the rows of nodes. Gives: the failure of the run, with what to do; `PlaceUnusable` where
every other run would fail alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netstack.spark.driver import Executors
from netstack.spark.failures import explain

from ..processes import MeasurementFailed
from ..sweep import PlaceUnusable
from .node import KINDS, OK, SETUP


def failure_of(
    error: BaseException, *, nodes: int, python: str, executors: Executors | None = None
) -> MeasurementFailed:
    """What Spark raised, for people.

    Args:
        error: anything that py4j or pyspark raised.
        nodes: asked for.
        python: the workers' interpreter.
        executors: of the session.
    """
    found = explain(error, tasks=nodes, python=python, executors=executors, task="node", fewer="lower --nodes")
    return PlaceUnusable(found.text) if found.is_final else MeasurementFailed(found.text)


def first_failure(rows: Sequence[Mapping[str, Any]]) -> str:
    """The likeliest root cause among the nodes' rows; empty when all are well."""
    failed = sorted((row for row in rows if row["kind"] != OK), key=lambda row: KINDS.index(row["kind"]))
    if not failed:
        return ""
    row = failed[0]
    text = str(row["error"])
    where = f"node {row['rank']} at {row['host']}"
    return text if text.startswith("node ") or row["kind"] == SETUP else f"{where}: {text}"
