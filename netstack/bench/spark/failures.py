"""Explains the failure of a run on Spark in one sentence, from Spark's error or from the rows of its nodes."""

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
    """Returns the failure of a run: `PlaceUnusable` if every other run would fail in the same way.

    Args:
        error: an error of py4j or pyspark.
        nodes: the number of nodes of the run.
        python: the workers' interpreter.
        executors: the executors of the session.
    """
    found = explain(error, tasks=nodes, python=python, executors=executors, task="node", fewer="lower --nodes")
    return PlaceUnusable(found.text) if found.is_final else MeasurementFailed(found.text)


def first_failure(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the likeliest root cause among the nodes' rows; empty if no node failed."""
    failed = sorted((row for row in rows if row["kind"] != OK), key=lambda row: KINDS.index(row["kind"]))
    if not failed:
        return ""
    row = failed[0]
    text = str(row["error"])
    where = f"node {row['rank']} at {row['host']}"
    return text if text.startswith("node ") or row["kind"] == SETUP else f"{where}: {text}"
