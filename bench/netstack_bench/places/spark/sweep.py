"""`run_sweep(spark, settings)`: a sweep on an open session, for notebooks and jobs.

It returns a DataFrame with a row for each node of each run (`frames.NODE_SCHEMA`); `frames.per_setting` aggregates it.

    from netstack_bench.places.spark import per_setting, run_sweep

    nodes = run_sweep(spark, {"timeouts_s": (None, 0.1, 0.0), "record_sizes": (8, 1024), "seconds": 1.0})
    mine = run_sweep(spark, {"timeouts_s": (0.1, 0.0)}, data=df, key="user")  # your rows instead of generated ones
    nodes.groupBy("host", "buffer_timeout_s").avg("payload_mb_per_s").show()
    per_setting(nodes).select("buffer_timeout_s", "record_bytes", "rate_per_s", "payload_mb_per_s", "p99_us").show()

The session should have the properties of `SparkSettings.properties()`: without them a barrier stage waits minutes for
slots that are missing, or two nodes share a host.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from rich.console import Console
from rich.markup import escape

from netstack.base.errors import ConfigError
from netstack.base.scratch import scratch_folder
from netstack.cli.stopping import keep_results
from netstack.spark.drivers import classic_driver
from netstack.spark.exchange_frame import check_session
from netstack.spark.failures import spark_errors
from netstack.spark.interruptible import Apart, JobTooSlow, run_job
from netstack.spark.session import open_session
from netstack.spark.settings import SparkSettings
from netstack.spark.ship import ship

from ...grid import Grid, PlannedRun, with_rows
from ...rows import Rows
from ...spec import RunOnce, RunSpec
from ...store import Row, Store, StoreError, append_whole, read_sweep
from ...sweep import Bar, Progress, make_runs, succeeded
from .engine import SparkEngine, failure_of
from .frames import node_frame, with_sweep
from .spec import SparkSpec
from .tables import check_tables, table_url, write_tables
from .workload import FRAME_NAME, Workload, check_same, frame_of, rows_of_file, ship_frame, ship_rows

NODES_JOURNAL: Final = "nodes.jsonl"
_COMMAND: Final = "netstack_bench.places.spark.run_sweep"


def run_sweep(
    spark: Any,
    settings: Grid | Mapping[str, Any],
    *,
    nodes: int | None = None,
    data: Any = None,
    key: str | None = None,
    folder: Path | str | None = None,
    progress: Progress | None = None,
) -> Any:
    """Measures every point of a grid on an open session.

    Args:
        spark: the session; its executors need netstack's dependencies (trio, numpy, msgpack, lz4). The package itself
            is sent to them.
        settings: a `Grid`, or its fields and those of `SparkSpec` that all runs share.
        nodes: the number of TaskManagers; None is N of `local[N]`, else 2.
        data: a DataFrame whose rows replace generated records: they are serialised once, before the first run, and
            every source replays them repeatedly. A record is a row as a msgpack map, or with `emit="arrow"` a part of a
            columnar batch.
        key: a column of `data` whose key group, as in Flink, selects the channel; None is round robin.
        folder: stores the rows, so that a stopped sweep can continue; None stores nothing.
        progress: called for every run.

    Returns:
        A DataFrame of `NODE_SCHEMA`, in memory: actions on it do not measure again. A failed run has a row with its
        error, and a warning names the error; `per_setting` ignores failed runs.

    Raises:
        ConfigError: a setting is not supported.
        StoreError: the folder cannot be written.
        KeyboardInterrupt: the current barrier job was cancelled; the folder keeps the rows of the runs before.
    """
    driver = classic_driver(spark, "a sweep")
    master = str(spark.sparkContext.master)
    where = SparkSettings(master=_sized(spark, master), nodes=nodes, shared_hosts=True)
    check_session(driver)
    grid = settings if isinstance(settings, Grid) else _grid_of(settings)
    if data is not None:
        grid = with_rows(grid, FRAME_NAME, key)
    elif key is not None:
        raise ConfigError(f"key={key!r} is a column of data: give data too")
    grid = grid.with_spec(SparkSpec, nodes=where.node_count)
    ship(spark)
    with (
        scratch_folder() as scratch,
        Store(Path(folder) if folder is not None else Path(scratch) / "sweep") as store,
    ):
        recorder = Recorder(store, progress)
        workload = None
        if data is not None:
            workload = ship_frame(spark, data, grid.plan()[0].spec)
            check_same(store, workload)
        engine = SparkEngine(spark, where, on_nodes=recorder.add, workload=workload)
        result = make_runs(grid, store, engine, command=_COMMAND, progress=recorder)
        if result.interrupted:
            raise KeyboardInterrupt
        failures = {str(row["error"]): None for row in result.rows if not succeeded(row)}
        if failures:
            text = f"{result.failed} of {result.planned} runs failed, the first of them: {next(iter(failures))}"
            warnings.warn(text + ("; the others were not tried" if result.hopeless else ""), stacklevel=2)
        return node_frame(spark, recorder.rows())


@final
class Recorder:
    """Stores the rows of nodes beside those of runs in `path`, and forwards progress.

    `sweep_id` is the folder's name and six random digits, so that folders of one name can share tables.
    """

    def __init__(self, store: Store, progress: Progress | None) -> None:
        self._store = store
        self.path = store.folder / NODES_JOURNAL
        self._progress = progress
        self._run: PlannedRun | None = None
        kept = self._lines()
        name = re.sub(r"[^\w.-]+", "-", store.folder.resolve().name)
        self.sweep_id = str(kept[0]["sweep_id"]) if kept else f"{name}-{secrets.token_hex(3)}"

    def begin(self, run: PlannedRun) -> None:
        """Notes the start of a run."""
        self._run = run
        if self._progress is not None:
            self._progress.begin(run)

    def end(self, run: PlannedRun, row: Row) -> None:
        """Notes the end of a run."""
        self._run = None
        if self._progress is not None:
            self._progress.end(run, row)

    def add(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Stores the rows of the current run's nodes, before the run's own row; they are on the disk when it returns.

        Raises:
            StoreError: the disk does not take the rows; the journal is unchanged.
        """
        assert self._run is not None
        common = with_sweep(nodes, self.sweep_id, self._run.repeat, self._run.spec.as_dict())
        data = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in common).encode()
        try:
            with self.path.open("ab", buffering=0) as journal:
                append_whole(journal, data)
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path}: {error.strerror or error}; free disk space, and run the same command again"
            ) from error

    def rows(self) -> list[Row]:
        """Returns the rows of all runs in the store, earlier sessions included; the last rows of a repeated run."""
        runs = {(row["run_id"], row["repeat"]): row for row in self._store.rows()}
        rows: dict[tuple[str, int, int], Row] = {}
        for row in self._lines():
            run = runs.get((row["run_id"], row["repeat"]))
            if run is not None:
                error = row.get("error") or (None if succeeded(run) else run["error"])
                common = {
                    "started_at": run["started_at"],
                    "error": error,
                    "version": run.get("version"),
                    "master": run.get("spark_master"),
                    "spark_version": run.get("spark_version"),
                }
                rows[row["run_id"], row["repeat"], row["rank"]] = {**row, **common}
        return list(rows.values())

    def _lines(self) -> list[Row]:
        rows = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # incomplete: its process was killed
        return rows


def _grid_of(settings: Mapping[str, Any]) -> Grid:
    known = {each.name for kind in (Grid, SparkSpec) for each in dataclasses.fields(kind)} - {"spec_type", "common"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ConfigError(f"a sweep has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return Grid.of(settings)


def _sized(spark: Any, master: str) -> str:
    """Replaces `local` and `local[*]` by `local[N]`."""
    return f"local[{spark.sparkContext.defaultParallelism}]" if master in ("local", "local[*]") else master


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
