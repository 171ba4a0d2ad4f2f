"""A Spark session that is quiet and ships the package under test.

Takes: `SparkSettings`. Gives: `SparkSession`s; one clear sentence when Java, pyspark or the cluster is missing.

Rules: Spark's own output goes to a file for good: the JVM is started with standard error on it. The session's Python is
this one, on every worker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from netstack.errors import ConfigError

from ..processes import MeasurementFailed
from .settings import SparkSettings
from .ship import ship

_JAVA_AT_LEAST: Final = 17
_JVM_END_S: Final = 10.0


class SparkMissing(ConfigError):
    """Spark cannot run on this machine; the message says what to install."""


def check_spark() -> None:
    """Whether Spark can run here.

    Raises:
        SparkMissing: no pyspark, no Java, or one that is too old.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkMissing("pyspark is not installed: pip install 'netstack[spark]'") from error
    java = _java()
    if java is None:
        raise SparkMissing(f"there is no Java: install a JRE of version {_JAVA_AT_LEAST} or newer, or set JAVA_HOME")
    version = _java_version(java)
    if version < _JAVA_AT_LEAST:
        raise SparkMissing(f"Java {version} at {java} is too old: Spark needs {_JAVA_AT_LEAST} or newer")


@contextmanager
def open_session(settings: SparkSettings) -> Iterator[Any]:
    """A session of its own for the block, stopped afterwards.

    Raises:
        SparkMissing: see `check_spark`.
        MeasurementFailed: the cluster cannot be reached, or its executors do not come.
    """
    check_spark()
    with tempfile.TemporaryDirectory(prefix="netstack-spark-") as scratch:
        log = Path(settings.log_file or Path(tempfile.gettempdir()) / f"netstack-spark-{os.getpid()}.log")
        session = _start(settings, Path(scratch), log)
        try:
            ship(session.sparkContext)
            yield session
        finally:
            with quiet_stderr(log):
                _end(session)


def _start(settings: SparkSettings, scratch: Path, log: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else `python3` of the workers' path
    if settings.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: Any = SparkSession.builder
    builder = builder.master(settings.master).appName(settings.app_name)
    for name, value in settings.properties().items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(scratch)).config("spark.sql.warehouse.dir", str(scratch / "sql"))
    with quiet_stderr(log):
        try:
            session = builder.getOrCreate()
        except spark_errors() as error:
            raise MeasurementFailed(
                f"Spark at {settings.master} cannot be used: {_first_line(error)}; its own log is {log}"
            ) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _end(session: Any) -> None:
    """Stops the session and the JVM that was started for it: no process is left behind."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    session.stop()
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()  # the JVM ends with its standard input
    try:
        process.wait(_JVM_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = None  # the next session starts one of its own


@contextmanager
def quiet_stderr(log: Path) -> Iterator[None]:
    """Standard error, of this process and of what it starts, goes to a file inside the block."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


def spark_errors() -> tuple[type[BaseException], ...]:
    """What calls into Spark raise."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def _java_version(java: str) -> int:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
        version = told.split('"')[1]
        first, _, rest = version.partition(".")
        return int(rest.partition(".")[0]) if first == "1" else int(first.partition("-")[0])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as error:
        raise SparkMissing(f"{java} does not say its version: {error}") from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
