"""What went wrong in a Spark job, in one sentence.

Takes: what Spark raised, six kilobytes of two languages. Gives: `FailureExplanation`, and `plain_errors`, a block
in which it is raised as `SparkFailed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, final

from ..errors import NetstackError
from .classic import ClassicDriver
from .driver import Executors

_SHORTAGE: Final = "SPARK-24819"
_FINAL: Final[tuple[tuple[str, str], ...]] = (
    (
        _SHORTAGE,
        "the barrier stage needs {tasks} slots at once and the cluster has fewer{gone}: start more workers, or {fewer}",
    ),
    (
        "SPARK-24820",
        "a barrier stage runs all its tasks or none: what takes some of them (show, first, take, limit) or joins them"
        " with others (union, coalesce) needs a shuffle behind it: leave out boundary=False, or repartition",
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
"""What Spark says where every other attempt would fail alike."""

_KNOWN: Final[tuple[tuple[str, str], ...]] = (
    ("JOB_CANCELLED", "the job was cancelled"),
    ("Not receiving heartbeat", "a worker{where} was lost: its host is down or cut off from the network"),
    (
        "ExecutorLostFailure",
        "an executor{where} was lost in the middle of the run (its process was killed or its host went)",
    ),
    ("Worker lost", "a worker{where} was lost: its process was killed or its host went"),
    (
        "Python worker exited unexpectedly",
        "the Python process of a {task}{where} ended in the middle of the run (killed?)",
    ),
    ("Could not get the barrier", "a {task} did not arrive in time"),
)
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_HOST: Final = re.compile(r"\(TID \d+\) \((\S+) executor \S+\)")  # whose task it was
_EXECUTOR: Final = re.compile(r"\bexecutor (\d+)\b")
_NO_FILE_SYSTEM: Final = re.compile(r"No FileSystem for scheme|Class \S+FileSystem not found")
_PREFIX: Final = re.compile(r"^(?:[\w.$]+(?:Error|Exception): )+")
_LAST_LINE: Final = re.compile(r"^(\w[\w.]*(?:Error|Exception|Failed|Lost|Refused|NotFound)): (.+)$", re.MULTILINE)


class SparkFailed(NetstackError):
    """A Spark job failed; the message is one sentence, the cause what Spark said."""


@final
@dataclass(frozen=True, slots=True)
class FailureExplanation:
    """What went wrong.

    Attributes:
        text: one sentence.
        is_final: whether every other attempt would fail alike.
        is_shortage: whether it is for want of slots, which may come again where they were once.
    """

    text: str
    is_final: bool
    is_shortage: bool = False


def spark_errors() -> tuple[type[BaseException], ...]:
    """What calls into Spark raise."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError
    except ImportError:  # a client of Spark Connect
        return (PySparkException,)
    return Py4JError, PySparkException


def explain(
    error: BaseException,
    *,
    tasks: int | str,
    python: str,
    executors: Executors | None = None,
    task: str = "task",
    fewer: str = "give the stage fewer partitions",
) -> FailureExplanation:
    """What Spark raised, for people.

    Args:
        error: anything that py4j or pyspark raised.
        tasks: how many the stage has.
        python: the workers' interpreter.
        executors: of the session.
        task: what one of them is called.
        fewer: what to do when there are too few slots.
    """
    text = _text(error)
    executors = executors or Executors()
    host = _host(text, executors.hosts)
    where = f" on {host}" if host and host != "localhost" else ""
    gone = f" ({', '.join(executors.lost_hosts)} lost what it had)" if executors.lost_hosts else ""
    facts = {"tasks": tasks, "python": python, "task": task, "fewer": fewer, "where": where, "gone": gone}
    missing = _MISSING.search(text)
    if missing:
        return FailureExplanation(
            f"a worker's Python, {python}, has no package {missing[1]!r}: install netstack with its"
            " dependencies there, or set PYSPARK_PYTHON to an environment on every worker that has them",
            is_final=True,
        )
    for mark, known in _FINAL:
        if mark in text:
            return FailureExplanation(known.format(**facts), is_final=True, is_shortage=mark == _SHORTAGE)
    for mark, known in _KNOWN:
        if mark in text:
            return FailureExplanation(known.format(**facts), is_final=False)
    found = _LAST_LINE.findall(text.partition(" SQLSTATE")[0])
    if found:
        kind, said = found[-1]
        if said.endswith(":"):  # the next line says what
            said += f" {next((line.strip() for line in text.partition(said)[2].splitlines() if line.strip()), '')}"
        return FailureExplanation(f"a {task} failed: {kind.rpartition('.')[2]}: {said}", is_final=False)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return FailureExplanation(f"Spark: {first}", is_final=False)


def explain_storage(error: BaseException) -> str:
    """Why Spark cannot read or write a URL, for people.

    Args:
        error: anything that py4j or pyspark raised.
    """
    text = _text(error)
    if _NO_FILE_SYSTEM.search(text):
        return (
            "it has no file system for such URLs: name the package that has one in spark.jars.packages of"
            " spark-defaults.conf (org.apache.hadoop:hadoop-aws for s3a://)"
        )
    if "UNSUPPORTED_FILE_SYSTEM" in text:
        return "it cannot list files there: fetch them first, and name the copy"
    if "Job aborted" in text:
        return explain(error, tasks="all its", python="PYSPARK_PYTHON").text
    lines = [line.strip() for line in text.partition(" SQLSTATE")[0].splitlines() if line.strip()]
    first = _PREFIX.sub("", lines[0]).partition("; For more details")[0] if lines else type(error).__name__
    return first.removesuffix(".")


@contextmanager
def plain_errors() -> Iterator[None]:
    """A block in which what Spark raises becomes one sentence.

    Raises:
        SparkFailed: an action failed.
    """
    try:
        yield
    except spark_errors() as error:
        from pyspark.sql import SparkSession

        executors, python = Executors(), "PYSPARK_PYTHON"
        with suppress(*spark_errors()):  # the session may be over
            spark = SparkSession.active()  # of this thread or, where it was opened in another, of the process
            if hasattr(spark, "sparkContext"):
                executors, python = ClassicDriver(spark).executors(), str(spark.sparkContext.pythonExec)
        raise SparkFailed(explain(error, tasks="all its", python=python, executors=executors).text) from error


def _host(text: str, hosts: Mapping[str, str]) -> str:
    named = _HOST.search(text)
    if named:
        return named[1]
    executor = _EXECUTOR.search(text)
    return hosts.get(executor[1], "") if executor else ""


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    if java is not None:
        while "awaitResult" in str(java.getMessage()) and java.getCause() is not None:
            java = java.getCause()  # what was awaited says why
        return f"{java.toString()}\n{java.getMessage()}"
    return str(error)
