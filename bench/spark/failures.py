"""What went wrong in a Spark job, in one sentence.

Takes: what Spark raised, or the rows of nodes. Gives: the failure of the run, with what to do; `PlaceUnusable` where
every other run would fail alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..processes import MeasurementFailed
from ..sweep import PlaceUnusable
from .node import KINDS, OK, SETUP

_HOPELESS: Final[tuple[tuple[str, str], ...]] = (
    (
        "SPARK-24819",
        "the barrier stage needs {nodes} slots at once and the cluster has fewer: start more workers, or lower --nodes",
    ),
    ("SPARK-24942", "barrier stages do not work with spark.dynamicAllocation.enabled: turn it off for this session"),
    (
        "PYTHON_VERSION_MISMATCH",
        "a worker runs another Python than the driver: set PYSPARK_PYTHON to an equal one ({python} is no such)",
    ),
    ("Cannot run program", "a worker has no Python at {python}: set PYSPARK_PYTHON to one that every worker has"),
    ("SparkContext was shut down", "the application was ended: the cluster's master is gone, or somebody killed it"),
    ("stopped SparkContext", "the application was ended: the cluster's master is gone, or somebody killed it"),
)
"""What Spark says of a place where no run can be made."""

_KNOWN: Final[tuple[tuple[str, str], ...]] = (
    ("JOB_CANCELLED", "the job was cancelled"),
    ("Not receiving heartbeat", "a worker was lost: its host is down or cut off from the network"),
    (
        "ExecutorLostFailure",
        "an executor was lost in the middle of the run (its process was killed or its host went)",
    ),
    ("Worker lost", "a worker was lost: its process was killed or its host went"),
    ("Python worker exited unexpectedly", "the Python process of a node ended in the middle of the run (killed?)"),
    ("Could not get the barrier", "a node did not arrive in time"),
)
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_LAST_LINE: Final = re.compile(r"^(\w[\w.]*(?:Error|Exception|Failed|Lost|Refused)): (.+)$", re.MULTILINE)


def failure_of(error: BaseException, *, nodes: int, python: str) -> MeasurementFailed:
    """What Spark raised, for people.

    Args:
        error: anything that py4j or pyspark raised.
        nodes: asked for.
        python: the workers' interpreter.
    """
    text = _text(error)
    facts = {"nodes": nodes, "python": python}
    missing = _MISSING.search(text)
    if missing:
        return PlaceUnusable(
            f"a worker's Python, {python}, has no package {missing[1]!r}: install netstack with its"
            " dependencies there, or set PYSPARK_PYTHON to an environment on every worker that has them"
        )
    for mark, known in _HOPELESS:
        if mark in text:
            return PlaceUnusable(known.format(**facts))
    for mark, known in _KNOWN:
        if mark in text:
            return MeasurementFailed(known.format(**facts))
    found = _LAST_LINE.findall(text.partition(" SQLSTATE")[0])
    if found:
        return MeasurementFailed(f"a node failed: {found[-1][0]}: {found[-1][1]}")
    return MeasurementFailed(
        f"Spark: {next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)}"
    )


def first_failure(rows: Sequence[Mapping[str, Any]]) -> str:
    """The likeliest root cause among the nodes' rows; empty when all are well."""
    failed = sorted((row for row in rows if row["kind"] != OK), key=lambda row: KINDS.index(row["kind"]))
    if not failed:
        return ""
    row = failed[0]
    text = str(row["error"])
    where = f"node {row['rank']} at {row['host']}"
    return text if text.startswith("node ") or row["kind"] == SETUP else f"{where}: {text}"


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    if java is not None:
        return f"{java.toString()}\n{java.getMessage()}"
    return str(error)
