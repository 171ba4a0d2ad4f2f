"""Explains Spark's errors in one sentence: `explain`, and `plain_errors`, a block that raises `SparkFailed` instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, final

from ..base.errors import NetstackError
from .classic import ClassicDriver
from .driver import Executors, is_classic

SHORTAGE: Final = "SPARK-24819"
_ENDED: Final = "the application was ended: the cluster's master is down, or someone killed the application"
_FINAL: Final[tuple[tuple[str, str], ...]] = (
    (
        SHORTAGE,
        "the barrier stage needs {tasks} slots at once and the cluster has fewer{lost}: start more workers, or {fewer}",
    ),
    (
        "SPARK-24820",
        "a barrier stage runs all its tasks or none: an action on some of its partitions (show, first, take, limit), or"
        " a union or coalesce, needs a shuffle after the stage: leave out boundary=False, or repartition",
    ),
    ("SPARK-24942", "barrier stages do not work with spark.dynamicAllocation.enabled: turn it off for this session"),
    (
        "PYTHON_VERSION_MISMATCH",
        "a worker's Python, {python}, has another version than the driver's: set PYSPARK_PYTHON to an equal one",
    ),
    ("Cannot run program", "a worker has no Python at {python}: set PYSPARK_PYTHON to one that every worker has"),
    (
        "Failed to find the data source: netstack",
        "this thread's active session does not know the format netstack: call netstack.spark.register(spark) in this"
        " thread",
    ),
    ("SparkContext was shut down", _ENDED),
    ("stopped SparkContext", _ENDED),
)
"""Errors that every retry would repeat: the text in Spark's error, and its explanation."""

_KNOWN: Final[tuple[tuple[str, str], ...]] = (
    ("JOB_CANCELLED", "the job was cancelled"),
    ("Not receiving heartbeat", "a worker{where} was lost: its host is down or cut off from the network"),
    (
        "ExecutorLostFailure",
        "an executor{where} was lost in the middle of the run (its process was killed, or its host is down)",
    ),
    ("Worker lost", "a worker{where} was lost: its process was killed, or its host is down"),
    (
        "Python worker exited unexpectedly",
        "the Python process of a {task}{where} ended in the middle of the run (killed?)",
    ),
    ("Could not get the barrier", "a {task} did not arrive in time"),
)
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_HOST: Final = re.compile(r"\(TID \d+\) \((\S+) executor \S+\)")  # the host of the task
_EXECUTOR: Final = re.compile(r"\bexecutor (\d+)\b")
_NO_FILE_SYSTEM: Final = re.compile(r"No FileSystem for scheme|Class \S+FileSystem not found")
_PREFIX: Final = re.compile(r"^(?:[\w.$]+(?:Error|Exception): )+")
_LAST_LINE: Final = re.compile(r"^(\w[\w.]*(?:Error|Exception|Failed|Lost|Refused|NotFound)): (.+)$", re.MULTILINE)
_RAISED: Final = re.compile(  # the end of a Python traceback, whatever the class is called
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\w[\w.<>]*)(?:: ?(.*))?$", re.MULTILINE
)
_OF_DRIVER: Final = ("PYTHON_DATA_SOURCE_ERROR", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR")
"""Errors of a data source that runs in the driver, not in a task."""


class SparkFailed(NetstackError):
    """A Spark job failed; the message is one sentence, and `__cause__` is Spark's error."""


@final
@dataclass(frozen=True, slots=True)
class FailureExplanation:
    """The explanation of an error.

    Attributes:
        is_final: whether every retry would fail in the same way.
        is_shortage: whether slots were missing, which may become available again.
    """

    text: str
    is_final: bool
    is_shortage: bool = False


def spark_errors() -> tuple[type[BaseException], ...]:
    """Returns the classes of errors that calls into Spark raise."""
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
    """Explains an error of Spark.

    Args:
        error: an error of py4j or pyspark.
        tasks: the number of tasks of the stage.
        python: the workers' interpreter.
        executors: the executors of the session.
        task: the word for a task in the explanation.
        fewer: the advice when there are too few slots.
    """
    text = _text(error)
    executors = executors or Executors()
    host = _host(text, executors.hosts)
    where = f" on {host}" if host and host != "localhost" else ""
    lost = f" ({', '.join(executors.lost_hosts)} lost what it had)" if executors.lost_hosts else ""
    facts = {"tasks": tasks, "python": python, "task": task, "fewer": fewer, "where": where, "lost": lost}
    missing = _MISSING.search(text)
    if missing:
        return FailureExplanation(
            f"a worker's Python, {python}, has no package {missing[1]!r}: install netstack with its"
            " dependencies there, or set PYSPARK_PYTHON to an environment on every worker that has them",
            is_final=True,
        )
    for mark, known in _FINAL:
        if mark in text:
            return FailureExplanation(known.format(**facts), is_final=True, is_shortage=mark == SHORTAGE)
    for mark, known in _KNOWN:
        if mark in text:
            return FailureExplanation(known.format(**facts), is_final=False)
    text = text.partition(" SQLSTATE")[0]
    last_lines = _RAISED.findall(text) or _LAST_LINE.findall(text)
    if last_lines:
        kind, sentence = last_lines[-1]
        if sentence.endswith(":"):  # the sentence continues on the next line
            rest = text.partition(sentence)[2].splitlines()
            sentence += f" {next((line.strip() for line in rest if line.strip()), '')}"
        raised = ": ".join(filter(None, (kind.rpartition(".")[2], sentence)))
        is_of_driver = any(mark in text for mark in _OF_DRIVER)
        return FailureExplanation(raised if is_of_driver else f"a {task} failed: {raised}", is_final=False)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return FailureExplanation(f"Spark: {first}", is_final=False)


def explain_storage(error: BaseException) -> str:
    """Explains why Spark cannot read or write a URL.

    Args:
        error: an error of py4j or pyspark.
    """
    text = _text(error)
    if _NO_FILE_SYSTEM.search(text):
        return (
            "it has no file system for this scheme: add its package to spark.jars.packages in spark-defaults.conf"
            " (org.apache.hadoop:hadoop-aws for s3a://)"
        )
    if "UNSUPPORTED_FILE_SYSTEM" in text:
        return "it cannot list files there: download them, and give the local copy"
    if "Job aborted" in text:
        return explain(error, tasks="all its", python="PYSPARK_PYTHON").text
    lines = [line.strip() for line in text.partition(" SQLSTATE")[0].splitlines() if line.strip()]
    first = _PREFIX.sub("", lines[0]).partition("; For more details")[0] if lines else type(error).__name__
    return first.removesuffix(".")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Opens a block in which an error of Spark is raised as one sentence. Raises SparkFailed if an action failed."""
    try:
        yield
    except spark_errors() as error:
        from pyspark.sql import SparkSession

        executors, python = Executors(), "PYSPARK_PYTHON"
        with suppress(*spark_errors()):  # the session may have ended
            spark = SparkSession.active()  # of this thread, or the process's default session
            if is_classic(spark):
                executors, python = ClassicDriver(spark).executors(), str(spark.sparkContext.pythonExec)
            else:
                python = "PYSPARK_PYTHON of the Connect server"
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
            java = java.getCause()  # the cause has the reason
        return f"{java.toString()}\n{java.getMessage()}"
    return str(error)
