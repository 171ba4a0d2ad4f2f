"""A sweep's stay on Spark: a session, an engine, the tables at the end.

Takes: settings of the session, the results folder. Gives: what makes a run, until the block ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from netstack.spark.failures import spark_errors

from ..places import Bar
from ..store import Store
from ..sweep import Progress, RunOnce
from .engine import SparkEngine
from .failures import failure_of
from .jobs import JobTooSlow, run_job
from .session import open_session
from .settings import SparkSettings
from .sweep import Recorder, write_nodes, write_settings

LOG: Final = "spark.log"
_TABLES_S: Final = 60.0


@contextmanager
def spark_place(
    settings: Mapping[str, Any], store: Store, progress: Bar, console: Console, warehouse: Path
) -> Iterator[tuple[RunOnce, Progress]]:
    """Opens a session; at the end of the block, however it ends, the rows of nodes become tables.

    Inside the block SIGTERM does what Ctrl-C does. Spark's own output goes to a file in the results folder.

    Args:
        settings: of `SparkSettings`.
        store: the results folder.
        progress: hears of every run.
        console: told where the tables are.
        warehouse: folder of the tables.

    Raises:
        NetstackError: the session cannot be opened.
    """
    where = SparkSettings(**settings, log_file=str(store.folder / LOG))
    with _interrupted_by_sigterm():
        progress.prepare("starting Spark", where.start_s)
        with open_session(where) as spark:
            progress.prepared()
            recorder = Recorder(store, progress)
            engine = SparkEngine(spark, where, on_nodes=recorder.add)
            yield engine.run_once, recorder
            if not all(row["error"] for row in recorder.rows()):
                progress.prepare("writing tables", where.tables_s)
                # Who pressed Ctrl-C does not wait for Spark, and a cluster that is gone would not answer.
                told = _write(None if recorder.was_cut or not engine.is_usable else spark, recorder, warehouse)
                console.print(escape(told), soft_wrap=True)


def _write(spark: Any, recorder: Recorder, warehouse: Path) -> str:
    """The tables, that of settings only with a session. The sweep is stored: what goes wrong here is told, no more."""
    try:
        write_nodes(recorder, warehouse)
        if spark is not None:
            work = partial(write_settings, spark, recorder, warehouse)
            run_job(spark.sparkContext, f"netstack-tables-{recorder.sweep_id}", "tables", work, deadline_s=_TABLES_S)
    except (OSError, JobTooSlow) as error:
        return f"tables were not written: {error}; {recorder.path} has their rows"
    except spark_errors() as error:
        why = failure_of(error, nodes=0, python="")
        return f"the table of settings was not written: {why}; {recorder.path} has its rows"
    except KeyboardInterrupt:
        return f"the table of settings was not written: interrupted; {recorder.path} has its rows"
    what = "table of the nodes" if spark is None else "tables"
    return f"{what} of this and other sweeps: {warehouse}"


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
