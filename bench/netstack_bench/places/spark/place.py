"""`spark_place`: opens a session for a sweep, makes its runs, and writes the tables at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from netstack.base.errors import ConfigError
from netstack.cli.stopping import keep_results
from netstack.spark.failures import spark_errors
from netstack.spark.interruptible import Apart, JobTooSlow, run_job
from netstack.spark.session import open_session
from netstack.spark.settings import SparkSettings

from ...inputs import Rows
from ...spec import RunOnce, RunSpec
from ...store import Store, read_sweep
from ...sweep import Bar, Progress
from .engine import SparkEngine, failure_of
from .sweep import Recorder
from .tables import check_tables, table_url, write_tables
from .workload import Workload, check_same, frame_of, rows_of_file, ship_frame, ship_rows

LOG: Final = "spark.log"
WAREHOUSE: Final = "warehouse"


@contextmanager
def spark_place(
    settings: Mapping[str, Any], spec: RunSpec, store: Store, progress: Bar, console: Console, warehouse: str | None
) -> Iterator[tuple[RunOnce, Progress]]:
    """Opens a session for a block, which gets the function that makes a run; writes the tables at the end of the block.

    Spark's output goes to a file in the results folder. `spec` is any of the runs; only common settings are used. The
    folder of tables is `warehouse`, by default beside the results folder, if the executors share it.

    Raises:
        NetstackError: the session cannot be opened.
        ConfigError: Spark cannot write to `warehouse`.
    """
    where = SparkSettings(**settings, log_file=str(store.folder / LOG))
    rows = None if spec.input_path is None else rows_of_file(spec)
    progress.prepare("starting Spark", where.start_s)
    began_s = time.monotonic()
    with open_session(where) as spark:
        session_s = time.monotonic() - began_s
        url = _checked(spark, where, warehouse, store, console)
        workload = _workload(spark, spec, rows, store)
        progress.prepared()
        recorder = Recorder(store, progress)
        engine = SparkEngine(spark, where, on_nodes=recorder.add, session_s=session_s, workload=workload)
        yield engine, recorder
        if url is not None and engine.is_usable and not all(row["error"] for row in recorder.rows()):
            progress.prepare("writing tables", where.tables_s)
            console.print(escape(_write(spark, recorder, store, url, where.tables_timeout_s)), soft_wrap=True)


def _workload(spark: Any, spec: RunSpec, rows: Rows | None, store: Store) -> Workload | None:
    """Returns the user's rows; None for generated records.

    Raises:
        NetstackError: the rows cannot be read, or differ from those of the sweep's earlier runs.
    """
    if spec.input_path is None:
        return None
    if rows is None:
        workload = Apart(lambda: ship_frame(spark, frame_of(spark, str(spec.input_path)), spec)).result()
    else:
        workload = ship_rows(spark, rows, spec.input_path)
    check_same(store, workload)
    return workload


def _checked(spark: Any, where: SparkSettings, warehouse: str | None, store: Store, console: Console) -> str | None:
    """Returns the URL of the tables; None, with a message, if they cannot be written."""
    url = table_url(warehouse if warehouse is not None else str(store.folder.parent / WAREHOUSE))
    try:
        check_tables(spark, url, where.node_count)
    except ConfigError as error:
        if warehouse is not None:
            raise
        console.print(escape(f"no tables will be written: {error}"), soft_wrap=True)
        return None
    return url


def _write(spark: Any, recorder: Recorder, store: Store, url: str, deadline_s: float) -> str:
    """Writes the tables, and returns a sentence for the user. The sweep is stored already, so nothing is raised."""
    command = str(read_sweep(store.folder).get("command") or "")
    runs, nodes = store.rows(), recorder.rows()
    work = partial(write_tables, spark, url, sweep_id=recorder.sweep_id, command=command, runs=runs, nodes=nodes)
    try:
        run_job(spark.sparkContext, f"netstack-tables-{recorder.sweep_id}", "tables", work, deadline_s=deadline_s)
    except (OSError, JobTooSlow) as error:
        return f"tables were not written: {error}; {store.folder} has their rows, and --tables-timeout allows more"
    except spark_errors() as error:
        return f"tables were not written: {failure_of(error, nodes=0, python='')}; {store.folder} has their rows"
    except KeyboardInterrupt:
        keep_results()
        return f"tables were not written: interrupted; {store.folder} has their rows"
    return f"tables of this and other sweeps: {url}"
