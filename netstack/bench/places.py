"""Where a sweep is measured: two processes of this machine, TaskManagers on hosts, nodes of a Spark cluster.

Takes: the flags that say where. Gives: a `Place`: the grid with what its runs have besides, and what makes a run while
the place is open.

Rules: `auto` is hosts if they are named; else Spark's local mode, or, where Spark cannot run or cannot do what was
asked for, two processes, and that is said.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, final

from rich.console import Console
from rich.markup import escape

from netstack.errors import ConfigError
from netstack.spark.settings import SparkSettings

from .grid import Grid, PlannedRun
from .inputs import is_file_name, read_rows
from .mesh.spec import MeshSpec, split_hosts
from .mesh.tables import print_matrix
from .runners import Runners
from .spec import RunSpec, constants_of
from .store import Store
from .sweep import Progress, RunOnce

Open = tuple[RunOnce, Progress]

FLINK_START_S: Final = 12.0
"""A JVM with a Flink comes up and is warmed up."""

_SPARKS: Final = {
    "master": None,
    "nodes": None,
    "parallelism": 1,
    "one_way": False,
    "warehouse": None,
    "shared_hosts": False,
    "node_ports": None,
    "executors_timeout_s": SparkSettings().wait_for_executors_s,
    "tables_timeout_s": SparkSettings().tables_timeout_s,
}
"""Flags that only Spark has, and what they are when not given."""


class Bar(Progress, Protocol):
    """What hears of everything else that takes time, too."""

    def prepare(self, what: str, expected_s: float) -> None:
        """Something starts that runs need, or that needs them."""

    def prepared(self) -> None:
        """It is done."""


class Place(Protocol):
    """Where runs are made."""

    @property
    def start_s(self) -> float:
        """About how long everything but the runs takes."""

    def on(self, grid: Grid) -> Grid:
        """The grid, its runs here.

        Raises:
            ConfigError: a run cannot be made here; the text names the flag.
        """

    def show(self, runs: Sequence[PlannedRun], console: Console) -> None:
        """Says where everything will be."""

    def open(self, spec: RunSpec, store: Store, progress: Bar, console: Console) -> AbstractContextManager[Open]:
        """What makes a run, and who is to hear of runs, while the block runs.

        Args:
            spec: of any run: what all have in common counts.
            store: the results folder.
            progress: hears of everything.
            console: told what else is worth telling.

        Raises:
            NetstackError: it cannot be opened.
        """


@final
@dataclass(frozen=True, slots=True)
class LocalPlace:
    """Two processes of this machine.

    Attributes:
        runners: make the runs.
        beside_flink: a real Flink takes its turn at every point, and so do we as Flink.
    """

    runners: Runners
    beside_flink: bool = False

    @property
    def start_s(self) -> float:
        """Implements `Place.start_s`."""
        return FLINK_START_S if self.beside_flink else 0.0

    def on(self, grid: Grid) -> Grid:
        """Implements `Place.on`."""
        name = grid.common.get("input_path")
        if name is not None and not is_file_name(name):
            raise ConfigError(f"--input {name}: there is no such file here; a table or a URL goes with --engine spark")
        return replace(grid, turns=_with_flink) if self.beside_flink else grid

    def show(self, runs: Sequence[PlannedRun], console: Console) -> None:
        """Nothing to show."""

    @contextmanager
    def open(self, spec: RunSpec, store: Store, progress: Bar, console: Console) -> Iterator[Open]:
        """Implements `Place.open`."""
        if self.beside_flink:
            with self.runners.flink() as run_on_flink:
                ours = self.runners.run_once
                yield lambda each, /: (run_on_flink if each.ENGINE_KIND == "flink" else ours)(each), progress
            return
        if spec.input_path is None:
            yield self.runners.run_once, progress
            return
        batch = spec.effective_batch_records if spec.emit == "arrow" else None
        rows = read_rows(spec.input_path, key_column=spec.key_column, arrow_batch_records=batch)
        facts = {"record_bytes": rows.record_bytes}  # in the mean: their size is no setting

        def over_rows(spec: RunSpec, /) -> dict[str, Any]:
            document = self.runners.run_once(spec)
            return {**document, "settings": {**document["settings"], **facts}}

        yield over_rows, progress


def _with_flink(spec: RunSpec) -> tuple[RunSpec, ...]:
    """The point on Flink, as Flink, and as it is."""
    from .peers.flink import FlinkSpec

    flink = FlinkSpec.of(spec)
    as_flink = RunSpec(**{**spec.as_dict(), **constants_of(flink.acts_as), "acts_as": flink.acts_as})
    return tuple(dict.fromkeys((flink, as_flink, spec)))


@final
@dataclass(frozen=True, slots=True)
class HostsPlace:
    """Daemons."""

    runners: Runners
    hosts: tuple[str, ...]
    secret_file: Path | None
    relay: bool

    @property
    def start_s(self) -> float:
        """Implements `Place.start_s`."""
        return 0.0

    def on(self, grid: Grid) -> Grid:
        """Implements `Place.on`."""
        return grid.with_spec(MeshSpec, hosts=self.hosts, relay=self.relay)

    def show(self, runs: Sequence[PlannedRun], console: Console) -> None:
        """The matrix of subtasks."""
        if runs and isinstance(runs[0].spec, MeshSpec):
            print_matrix(runs[0].spec, console, channels=False)

    @contextmanager
    def open(self, spec: RunSpec, store: Store, progress: Bar, console: Console) -> Iterator[Open]:
        """Implements `Place.open`."""
        yield functools.partial(self.runners.run_over_hosts, secret_file=self.secret_file), progress


@final
@dataclass(frozen=True, slots=True)
class SparkPlace:
    """Nodes in the tasks of barrier stages.

    Attributes:
        runners: makes the session.
        settings: of the session, as plain values (`SparkSettings`).
        parallelism: sources and sinks of each node.
        relay: records make a round trip.
        one_way: sources on half of the nodes, sinks on the others.
        warehouse: URL of the tables of all sweeps; None is beside the results folder.
    """

    runners: Runners
    settings: Mapping[str, Any]
    parallelism: int
    relay: bool
    one_way: bool
    warehouse: str | None

    @property
    def start_s(self) -> float:
        """Implements `Place.start_s`."""
        where = SparkSettings(**self.settings)
        return where.start_s + where.tables_s

    def on(self, grid: Grid) -> Grid:
        """Implements `Place.on`."""
        from .spark.spec import SparkSpec

        nodes, each = SparkSettings(**self.settings).node_count, self.parallelism
        ways = {"relay": self.relay, "one_way": self.one_way}
        return grid.with_spec(SparkSpec, nodes=nodes, sources_per_node=each, sinks_per_node=each, **ways)

    def show(self, runs: Sequence[PlannedRun], console: Console) -> None:
        """Which nodes, and how many subtasks."""
        if runs:
            spec: Any = runs[0].spec
            plural = "s" if spec.sources_per_node > 1 else ""
            each = f"{spec.sources_per_node} source{plural} {'or' if spec.one_way else 'and'} as many sinks"
            console.print(
                f"starting Spark at {escape(self.settings['master'])}: {spec.nodes} nodes with {each} each",
                soft_wrap=True,
            )

    @contextmanager
    def open(self, spec: RunSpec, store: Store, progress: Bar, console: Console) -> Iterator[Open]:
        """Implements `Place.open`; at the end the tables are written."""
        from .spark.place import spark_place

        with spark_place(self.settings, spec, store, progress, console, self.warehouse) as opened:
            yield opened


def place_of(runners: Runners, settings: dict[str, Any], console: Console) -> Place:
    """Where the flags say; takes them out of `settings`.

    Args:
        runners: make runs.
        settings: all flags of the command.
        console: told when two processes step in for Spark.

    Raises:
        ConfigError: flags that do not go together, or Spark was asked for and cannot run here.
    """
    asked = {name: settings.pop(name) for name in ("engine", "hosts", "secret_file", "relay", "peers", *_SPARKS)}
    beside_flink = bool(asked["peers"])
    if beside_flink and (asked["engine"] not in ("auto", "local") or asked["hosts"] is not None):
        raise ConfigError("--peer flink is measured beside two processes of this machine; leave the other place out")
    engine = "local" if beside_flink else asked["engine"]
    sparks = [flag for flag, default in _SPARKS.items() if asked[flag] != default]
    if asked["hosts"] is not None:
        if engine not in ("auto", "hosts"):
            raise ConfigError(f"--hosts with --engine {engine}: leave one of them out")
        _refuse(sparks, "--engine spark, not with --hosts")
        return HostsPlace(runners, split_hosts(asked["hosts"]), asked["secret_file"], asked["relay"])
    if engine == "hosts" or asked["secret_file"] is not None:
        raise ConfigError("--engine hosts and --secret-file go with --hosts; name the hosts too")
    wants = [*sparks, *(["relay"] if asked["relay"] else [])]
    if engine == "local":
        _refuse(wants, "--engine spark, not with two processes of this machine")
        return LocalPlace(runners, beside_flink)
    spark = _spark(runners, asked)
    if engine == "spark":
        runners.check_spark()
        return spark
    try:
        runners.check_spark()
        spark.on(Grid.of(settings)).plan()
    except ConfigError as error:
        if wants:
            raise
        LocalPlace(runners).on(Grid.of(settings)).plan()  # what no place can do is no reason to step in
        console.print(
            f"measuring with --engine local, two processes without Spark: {escape(str(error))}", soft_wrap=True
        )
        return LocalPlace(runners)
    return spark


def _refuse(flags: Sequence[str], goes_with: str) -> None:
    if flags:
        raise ConfigError(f"--{flags[0].replace('_', '-')} goes with {goes_with}; leave it out")


def _spark(runners: Runners, asked: Mapping[str, Any]) -> SparkPlace:
    chosen = {
        "master": asked["master"] or SparkSettings().master,
        "nodes": asked["nodes"],
        "shared_hosts": asked["shared_hosts"],
        "node_ports": asked["node_ports"],
        "wait_for_executors_s": asked["executors_timeout_s"],
        "tables_timeout_s": asked["tables_timeout_s"],
    }
    SparkSettings(**chosen)  # refuses what cannot be before anything starts
    return SparkPlace(runners, chosen, asked["parallelism"], asked["relay"], asked["one_way"], asked["warehouse"])
