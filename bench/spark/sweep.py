"""A sweep on Spark, for a notebook or a job of yours: `run_sweep(spark, settings) -> DataFrame`.

Takes: your session, what to measure. Gives: a row for every node of every run as a DataFrame (`frames.NODE_SCHEMA`);
`frames.per_setting` of it has the aggregates.

    from bench.spark.sweep import run_sweep
    nodes = run_sweep(spark, {"timeouts_s": (None, 0.1, 0.0), "record_sizes": (8, 1024), "seconds": 1.0})
    nodes.groupBy("host", "buffer_timeout_s").avg("payload_mb_per_s").show()

The session should have the properties of `SparkSettings.properties()`: what it lacks is named in a warning, because
without them a barrier stage waits minutes for slots that never come, or two nodes share a host.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from netstack.errors import ConfigError

from ..grid import Grid, PlannedRun
from ..store import Row, Store
from ..sweep import Progress
from ..sweep import run_sweep as run_grid
from .engine import SparkEngine
from .frames import node_frame, per_setting, with_sweep, write_partition
from .settings import SparkSettings
from .ship import ship
from .spec import SparkSpec

NODES_JOURNAL: Final = "nodes.jsonl"
NODES: Final = "nodes"
SETTINGS: Final = "settings"
_NEEDED: Final = ("spark.dynamicAllocation.enabled", "spark.scheduler.barrier.maxConcurrentTasksCheck.interval")


def run_sweep(
    spark: Any,
    settings: Grid | Mapping[str, Any],
    *,
    nodes: int | None = None,
    folder: Path | str | None = None,
    progress: Progress | None = None,
) -> Any:
    """Measures every point of a grid on an open session.

    Args:
        spark: the session; its executors need netstack's dependencies (trio, numpy, msgpack, lz4). The package itself
            is sent to them.
        settings: a `Grid`, or its fields and those of `SparkSpec` that all runs share.
        nodes: TaskManagers; None is N of `local[N]`, else 2.
        folder: keeps rows as they come, so that a sweep that was stopped goes on; None keeps nothing.
        progress: hears of every run.

    Returns:
        A DataFrame of `NODE_SCHEMA`. Runs that failed are not in it; with a folder its report lists them.

    Raises:
        ConfigError: a setting that cannot work.
        KeyboardInterrupt: the run under way was cancelled; what the folder holds is kept.
    """
    master = str(spark.sparkContext.master)
    where = SparkSettings(master=master, nodes=nodes, shared_hosts=True)
    _warn_of(spark)
    grid = settings if isinstance(settings, Grid) else Grid.of(settings)
    grid = on_spark(grid, where.node_count)
    ship(spark.sparkContext)
    with (
        tempfile.TemporaryDirectory(prefix="netstack-spark-") as scratch,
        Store(Path(folder) if folder is not None else Path(scratch) / "sweep") as store,
    ):
        recorder = Recorder(store.folder, progress)
        engine = SparkEngine(spark, where, on_nodes=recorder.add)
        result = run_grid(grid, store, engine.run_once, command="bench.spark.sweep.run_sweep", progress=recorder)
        if result.interrupted:
            raise KeyboardInterrupt
        return node_frame(spark, recorder.rows())


def on_spark(grid: Grid, nodes: int) -> Grid:
    """The same grid, each of its runs over so many nodes.

    Raises:
        ConfigError: a point of it cannot run over nodes.
    """
    return grid.with_spec(SparkSpec, nodes=nodes)


@final
class Recorder:
    """Keeps the rows of nodes beside those of runs, and passes progress on.

    Args:
        folder: of the sweep.
        progress: hears of every run too.
    """

    def __init__(self, folder: Path, progress: Progress | None) -> None:
        self.sweep_id = folder.name
        self._path = folder / NODES_JOURNAL
        self._progress = progress
        self._run: PlannedRun | None = None
        self._nodes: list[Row] = []

    def begin(self, run: PlannedRun) -> None:
        """A run starts."""
        self._run, self._nodes = run, []
        if self._progress is not None:
            self._progress.begin(run)

    def end(self, run: PlannedRun, row: Row) -> None:
        """A run ended; its nodes' rows are kept if it went well."""
        if not row.get("error"):
            common = with_sweep(self._nodes, self.sweep_id, run.repeat, str(row["started_at"]), run.spec.as_dict())
            with self._path.open("a", encoding="utf-8") as journal:
                journal.writelines(json.dumps(each, separators=(",", ":")) + "\n" for each in common)
        if self._progress is not None:
            self._progress.end(run, row)

    def add(self, nodes: list[Row]) -> None:
        """The nodes of the run under way."""
        self._nodes = nodes

    def rows(self) -> list[Row]:
        """All rows of the sweep, those of earlier sessions included; of a run made twice the last ones."""
        if not self._path.exists():
            return []
        found: dict[tuple[str, int, int], Row] = {}
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # cut short when its process was killed
            found[row["run_id"], row["repeat"], row["rank"]] = row
        return list(found.values())


def write_tables(spark: Any, recorder: Recorder, warehouse: Path) -> tuple[Any, Path]:
    """The sweep's rows and aggregates as partitions of two Parquet tables.

    Returns:
        The aggregates as a DataFrame; the folder of the tables.
    """
    nodes = node_frame(spark, recorder.rows()).cache()
    aggregates = per_setting(nodes).cache()
    write_partition(nodes, warehouse, NODES, recorder.sweep_id)
    write_partition(aggregates, warehouse, SETTINGS, recorder.sweep_id)
    return aggregates, warehouse


def _warn_of(spark: Any) -> None:
    config = spark.sparkContext.getConf()
    if config.get(_NEEDED[0], "false") == "true":
        raise ConfigError(f"barrier stages do not work with {_NEEDED[0]}=true: set it to false for this session")
    if config.get(_NEEDED[1]) is None:
        warnings.warn(
            f"{_NEEDED[1]} is not set: with too few slots a run waits ten minutes; see SparkSettings.properties()",
            stacklevel=3,
        )
