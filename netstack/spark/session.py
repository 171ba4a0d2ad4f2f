"""`open_session`: a Spark session that logs to a file and ships this package to its executors.

Errors are one sentence when Java, pyspark or the cluster is missing. Spark's output goes to a file, because the JVM is
started with its output there. Workers use this process's Python, unless PYSPARK_PYTHON names another one.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

from ..base.errors import ConfigError
from ..base.scratch import scratch_folder
from ..base.text.limited_log import quieter
from .classic import ClassicDriver, forget_jvm, start_jvm
from .driver import check_version
from .failures import SparkFailed, spark_errors
from .interruptible import Apart
from .settings import SparkSettings
from .ship import ship

_JAVA_AT_LEAST: Final = 17
_JVM_START_S: Final = 30.0
_JVM_END_S: Final = 10.0
_LOOK_S: Final = 0.1
_CONNECT_S: Final = 5.0


class SparkMissing(ConfigError):
    """Spark cannot run on this machine; the message names what to install."""


def check_spark() -> None:
    """Checks that Spark can run on this machine. Raises SparkMissing if pyspark or Java is missing or too old."""
    try:
        check_version()
    except ConfigError as error:
        raise SparkMissing(str(error)) from error
    java = _java()
    if java is None:
        raise SparkMissing(f"Java is missing: install a JRE of version {_JAVA_AT_LEAST} or newer, or set JAVA_HOME")
    version = _java_version(java)
    if version < _JAVA_AT_LEAST:
        raise SparkMissing(f"Java {version} at {java} is too old: Spark needs {_JAVA_AT_LEAST} or newer")


@contextmanager
def open_session(settings: SparkSettings) -> Iterator[Any]:
    """Opens a session with a JVM of its own for a block, and stops both at the end.

    Raises:
        SparkMissing: pyspark or Java is missing or too old.
        SparkFailed: the cluster is unreachable, or its executors did not register in time.
    """
    check_spark()
    _find_master(settings.master)
    with (
        scratch_folder(prefix="netstack-spark-") as scratch,
        quieter("py4j", logging.CRITICAL + 1),  # it logs connections that end
    ):
        log = Path(settings.log_file or Path(tempfile.gettempdir()) / f"netstack-spark-{os.getpid()}.log").absolute()
        start = _Start(settings, Path(scratch), log)
        try:
            session = start.session()
            try:
                yield session
            finally:
                Apart(session.stop).result()
        finally:
            start.end()
            start.join()
    if settings.log_file is None:
        log.unlink(missing_ok=True)  # no error names it


@final
class _Start:
    """Starts a JVM and a session in it, in a thread.

    In the main thread Ctrl-C would leave a JVM behind without a handle, or wait for the cluster's executors.
    """

    def __init__(self, settings: SparkSettings, scratch: Path, log: Path) -> None:
        self._settings = settings
        self._scratch = scratch
        self._log = log
        self._gateway: Any = None
        self._making = Apart(self._make)

    def session(self) -> Any:
        """Waits for the session; raises SparkFailed if it could not be started."""
        return self._making.result()

    def end(self) -> None:
        """Ends the JVM, in whatever state it is."""
        until_s = time.monotonic() + _JVM_START_S
        while self._gateway is None and not self._making.is_over(_LOOK_S) and time.monotonic() < until_s:
            pass  # a JVM that is starting cannot be ended
        if self._gateway is None:
            return
        process = self._gateway.proc
        if not self._making.is_over(0) and process is not None:
            process.kill()  # ends the thread, which waits for the cluster
            self._making.is_over(_JVM_END_S)
        forget_jvm()
        self._gateway.shutdown()
        if process is None:  # the JVM of spark-submit, which started this process
            return
        process.stdin.close()  # the JVM ends when its standard input does
        try:
            process.wait(_JVM_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def join(self) -> None:
        """Waits for the thread, whose messages about the lost connection are still suppressed."""
        self._making.is_over(_JVM_END_S)

    def _make(self) -> Any:
        from pyspark.sql import SparkSession

        self._gateway = _start_jvm(self._settings, self._scratch, self._log)
        spark = SparkSession(_open_context(self._gateway, self._settings, self._log))
        _await_executors(spark, self._settings, self._log)
        ship(spark)
        return spark


def _find_master(master: str) -> None:
    """Checks that the master listens: Spark itself would try for a minute."""
    if not master.startswith("spark://"):
        return
    failures = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
        except ValueError:
            raise ConfigError(f"--master {master}: {place!r} is not HOST:PORT") from None
        except OSError as error:
            failures.append(f"{place}: {error.strerror or error}")
        else:
            return
    raise SparkFailed(f"no Spark master can be reached at {master} ({'; '.join(failures)}): is it running?")


def _start_jvm(settings: SparkSettings, scratch: Path, log: Path) -> Any:
    """A JVM whose output, and in local mode that of Python workers, goes to the file for good.

    It has a session of its own: what a terminal sends to all its processes does not reach it. It ends with this one.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else `python3` of the workers' path
    if settings.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    own = {"spark.master": settings.master, "spark.app.name": settings.app_name, "spark.local.dir": str(scratch)}
    own["spark.sql.warehouse.dir"] = str(scratch / "sql")
    with log.open("ab") as output:
        try:
            return start_jvm({**settings.properties(), **own}, output)
        except spark_errors() as error:
            raise SparkFailed(f"Java did not start Spark: {_last_line(log)}; its own log is {log}") from error


def _open_context(gateway: Any, settings: SparkSettings, log: Path) -> Any:
    """Opens the context; raises SparkFailed if the cluster cannot be used."""
    from pyspark import SparkContext

    try:
        context = SparkContext(gateway=gateway)
    except spark_errors() as error:
        raise SparkFailed(
            f"Spark at {settings.master} cannot be used: {_first_line(error)}; its own log is {log}"
        ) from error
    context.setLogLevel("ERROR")
    return context


def _await_executors(spark: Any, settings: SparkSettings, log: Path) -> None:
    """Counts the executors after the session has waited for them; raises SparkFailed if some are missing."""
    nodes = settings.node_count
    registered = nodes if settings.is_local else ClassicDriver(spark).executor_count()
    if registered < nodes:
        spark.stop()
        cores = settings.executor_cores
        raise SparkFailed(
            f"{registered} of {nodes} executors registered within {settings.wait_for_executors_s:g} s: start more"
            f" workers at {settings.master}, each with {cores} free core{'s' if cores > 1 else ''} and"
            f" {settings.executor_memory} of memory, or lower {settings.nodes_flag}; Spark's own log is {log}"
        )


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def _java_version(java: str) -> int:
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
        version = output.split('"')[1]
        first, _, rest = version.partition(".")
        return int(rest.partition(".")[0]) if first == "1" else int(first.partition("-")[0])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as error:
        raise SparkMissing(f"cannot read the version of {java}: {error}") from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it has no output"
