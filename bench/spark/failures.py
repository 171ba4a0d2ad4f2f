"""What went wrong in a Spark job, in one sentence.

Takes: what Spark raised, or the rows of nodes. Gives: the sentence, with what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .node import KINDS, OK

_KNOWN: Final[tuple[tuple[str, str], ...]] = (
    (
        "SPARK-24819",
        "the barrier stage needs {nodes} slots at once and the cluster has fewer: start more workers, or lower --nodes",
    ),
    ("SPARK-24942", "barrier stages do not work with spark.dynamicAllocation.enabled: turn it off for this session"),
    ("PYTHON_VERSION_MISMATCH", "the workers run another Python than the driver: set PYSPARK_PYTHON to an equal one"),
    ("Cannot run program", "a worker has no Python at {python}: set PYSPARK_PYTHON to one that every worker has"),
    ("JOB_CANCELLED", "the job was cancelled"),
    ("Not receiving heartbeat", "a worker was lost: its host is down or cut off from the network"),
    ("ExecutorLostFailure", "an executor was lost in the middle of the run (its process was killed or its host went)"),
    ("Worker lost", "a worker was lost: its process was killed or its host went"),
    ("Python worker exited unexpectedly", "the Python process of a node ended in the middle of the run (killed?)"),
    ("Could not get the barrier", "a node did not arrive in time"),
)
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_LAST_LINE: Final = re.compile(r"^(\w[\w.]*(?:Error|Exception|Failed|Lost|Refused)): (.+)$", re.MULTILINE)


def sentence(error: BaseException, *, nodes: int, python: str) -> str:
    """What Spark raised, for people.

    Args:
        error: anything that py4j or pyspark raised.
        nodes: asked for.
        python: the workers' interpreter.
    """
    text = _text(error)
    missing = _MISSING.search(text)
    if missing:
        return (
            f"a worker's Python has no package {missing.group(1)!r}: install netstack with its dependencies there, in"
            " the environment that PYSPARK_PYTHON names"
        )
    for mark, known in _KNOWN:
        if mark in text:
            return known.format(nodes=nodes, python=python)
    found = _LAST_LINE.findall(text.partition(" SQLSTATE")[0])
    if found:
        return f"a node failed: {found[-1][0]}: {found[-1][1]}"
    return f"Spark: {next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)}"


def first_failure(rows: Sequence[Mapping[str, Any]]) -> str:
    """The likeliest root cause among the nodes' rows; empty when all are well."""
    failed = sorted((row for row in rows if row["kind"] != OK), key=lambda row: KINDS.index(row["kind"]))
    if not failed:
        return ""
    row = failed[0]
    text = str(row["error"])
    where = f"node {row['rank']} at {row['host']}"
    return text if text.startswith("node ") or row["kind"] == KINDS[0] else f"{where}: {text}"


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    if java is not None:
        return f"{java.toString()}\n{java.getMessage()}"
    return str(error)
