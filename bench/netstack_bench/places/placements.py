"""The places of a sweep: two processes of this machine, TaskManagers on hosts, or nodes of a Spark cluster.

`--place auto` takes hosts if they are named, else local Spark. If Spark cannot run or does not support the request, it
takes two processes and prints why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, final

from rich.console import Console
from rich.markup import escape

from netstack.base.errors import ConfigError
from netstack.base.units import counted
from netstack.spark.settings import SparkSettings

from ..grid import Grid, PlannedRun
from ..rows import is_file_name, read_rows
from ..spec import RunOnce, RunSpec, constants_of
from ..store import Store
from ..sweep import Bar, Progress
from .conversation import OnProgress
from .hosts.spec import MeshSpec, split_hosts
from .hosts.tables import print_matrix


class Runners:
    """Makes runs."""

    def run_once(self, spec: RunSpec, /, on_progress: OnProgress | None = None) -> Mapping[str, Any]:
        """One run of netstack."""
        from .local.runner import run_once

        return run_once(spec, on_progress=on_progress)

    def run_with_peers(
        self, spec: RunSpec, peers: list[str], repeats: int, on_progress: OnProgress | None = None
    ) -> Mapping[str, Any]:
        """Runs of netstack and its peers, interleaved."""
        from .local.runner import run_with_peers

        return run_with_peers(spec, peers, repeats, on_progress=on_progress)

    @contextmanager
    def flink(self) -> Iterator[Callable[[RunSpec], Mapping[str, Any]]]:
        """The function that makes a run on a real Flink, while the block runs."""
        from ..engines.flink import FlinkSession

        with FlinkSession() as session:
            yield session.run_once

    def run_over_hosts(
        self,
        spec: MeshSpec,
        /,
        on_progress: OnProgress | None = None,
        *,
        secret_file: Path | None = None,
        same_build: bool = False,
    ) -> Mapping[str, Any]:
        """One run over daemons."""
        from .hosts.coordinator import run_over_hosts

        return run_over_hosts(spec, secret_file=secret_file, same_build=same_build, on_progress=on_progress)

    def check_spark(self) -> None:
        """Checks that Spark can run here. Raises ConfigError if it cannot; the text names what is missing."""
        from netstack.spark.session import check_spark

        check_spark()


Open = tuple[RunOnce, Progress]

FLINK_START_S: Final = 12.0
"""Start and warm-up of a JVM with Flink."""

REPORT_S: Final = 2.0
"""Time for the report and the end of the process."""

_HOSTS: Final = ("hosts", "secret_file", "relay", "same_build")

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
"""Flags that only Spark has, and their defaults."""


class Place(Protocol):
    """A place that makes runs."""

    @property
    def start_s(self) -> float:
        """About how long everything but the runs takes."""
        return 0.0

    @property
    def close_s(self) -> float:
        """About how long everything after the last run takes."""
        return REPORT_S

    @property
    def has_turns(self) -> bool:
        """Whether others are measured beside netstack, which takes whole passes."""
        return False

    def on(self, grid: Grid) -> Grid:
        """The grid with the settings of this place in its runs.

        Raises:
            ConfigError: a run is not possible here; the text names the flag.
        """

    def show(self, runs: Sequence[PlannedRun], console: Console) -> None:
        """Prints where the tasks will run; nothing by default."""
        return

    def open(self, spec: RunSpec, store: Store, progress: Bar, console: Console) -> AbstractContextManager[Open]:
        """Opens the place while the block runs; returns the function that makes a run, and the progress to report to.

        Of `spec`, the settings of any run, only what all runs have in common is used.

        Raises:
            NetstackError: it cannot be opened.
        """


@final
@dataclass(frozen=True, slots=True)
class LocalPlace(Place):
    """Two processes of this machine; with `beside_flink` a real Flink and netstack as Flink run at every point too."""

    runners: Runners
    beside_flink: bool = False

    @property
    def start_s(self) -> float:
        """Implements `Place.start_s`."""
        return FLINK_START_S if self.beside_flink else 0.0

    @property
    def has_turns(self) -> bool:
        """Implements `Place.has_turns`."""
        return self.beside_flink

    @property
    def run_once(self) -> RunOnce:
        """The function that makes one run."""
        return self.runners.run_once

    def spec(self, settings: Mapping[str, Any]) -> RunSpec:
        """The settings of one run."""
        return RunSpec(**settings)

    def on(self, grid: Grid) -> Grid:
        """Implements `Place.on`."""
        name = grid.common.get("input_path")
        if name is not None and not is_file_name(name):
            raise ConfigError(f"--input {name}: there is no such file here; a table or a URL goes with --place spark")
        return replace(grid, turns=_with_flink) if self.beside_flink else grid

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
        facts = {"record_bytes": rows.record_bytes}  # the mean size, which is not a setting

        def over_rows(spec: RunSpec, /) -> dict[str, Any]:
            document = self.runners.run_once(spec)
            return {**document, "settings": {**document["settings"], **facts}}

        yield over_rows, progress


def _with_flink(spec: RunSpec) -> tuple[RunSpec, ...]:
    from ..engines.flink import FlinkSpec

    flink = FlinkSpec.of(spec)
    ours = replace(spec, gates=flink.gates)
    as_flink = RunSpec(**{**ours.as_dict(), **constants_of(flink.acts_as), "acts_as": flink.acts_as})
    return tuple(dict.fromkeys((flink, as_flink, ours)))


@final
@dataclass(frozen=True, slots=True)
class HostsPlace(Place):
    """TaskManager daemons on hosts."""

    runners: Runners
    hosts: tuple[str, ...]
    secret_file: Path | None
    relay: bool
    same_build: bool

    @property
    def run_once(self) -> RunOnce:
        """The function that makes one run."""
        return functools.partial(self.runners.run_over_hosts, secret_file=self.secret_file, same_build=self.same_build)

    def spec(self, settings: Mapping[str, Any]) -> MeshSpec:
        """The settings of one run."""
        return MeshSpec(**settings, hosts=self.hosts, relay=self.relay)

    def on(self, grid: Grid) -> Grid:
        """Implements `Place.on`."""
        return grid.with_spec(MeshSpec, hosts=self.hosts, relay=self.relay)

    def show(self, runs: Sequence[PlannedRun], console: Console) -> None:
        """Prints the matrix of subtasks."""
        if runs and isinstance(runs[0].spec, MeshSpec):
            print_matrix(runs[0].spec, console, channels=False)

    @contextmanager
    def open(self, spec: RunSpec, store: Store, progress: Bar, console: Console) -> Iterator[Open]:
        """Implements `Place.open`."""
        yield self.run_once, progress


@final
@dataclass(frozen=True, slots=True)
class SparkPlace(Place):
    """Nodes in the tasks of Spark's barrier stages.

    `parallelism` is the number of sources and of sinks of each node; with `one_way` half of the nodes have the sources.
    `warehouse` is the URL of the tables of all sweeps; None is beside the results folder.
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

    @property
    def close_s(self) -> float:
        """Implements `Place.close_s`."""
        return REPORT_S + SparkSettings(**self.settings).tables_s

    def on(self, grid: Grid) -> Grid:
        """Implements `Place.on`."""
        from .spark.spec import SparkSpec

        nodes, each = SparkSettings(**self.settings).node_count, self.parallelism
        ways = {"relay": self.relay, "one_way": self.one_way}
        return grid.with_spec(SparkSpec, nodes=nodes, sources_per_node=each, sinks_per_node=each, **ways)

    def show(self, runs: Sequence[PlannedRun], console: Console) -> None:
        """Prints the nodes and the number of subtasks."""
        if runs:
            spec: Any = runs[0].spec
            each = f"{counted(spec.sources_per_node, 'source')} {'or' if spec.one_way else 'and'} as many sinks"
            console.print(
                f"starting Spark at {escape(self.settings['master'])}: {spec.nodes} nodes with {each} each",
                soft_wrap=True,
            )

    @contextmanager
    def open(self, spec: RunSpec, store: Store, progress: Bar, console: Console) -> Iterator[Open]:
        """Implements `Place.open`; writes the tables at the end."""
        from .spark.sweep import spark_place

        with spark_place(self.settings, spec, store, progress, console, self.warehouse) as opened:
            yield opened


def processes_of(runners: Runners, settings: dict[str, Any]) -> LocalPlace | HostsPlace:
    """Hosts if they are named, else two processes; removes the flags of hosts from `settings`.

    Raises:
        ConfigError: one of the others was given without hosts.
    """
    hosts, *others = (settings.pop(name) for name in _HOSTS)
    if hosts is not None:
        return HostsPlace(runners, split_hosts(hosts), *others)
    for name, value in zip(_HOSTS[1:], others, strict=True):
        if value:
            raise ConfigError(f"--{name.replace('_', '-')} goes with --hosts; name the hosts too")
    return LocalPlace(runners)


def place_of(runners: Runners, settings: dict[str, Any], console: Console) -> Place:
    """The place that the flags select; removes them from `settings`.

    `console` receives a remark if two processes replace Spark.

    Raises:
        ConfigError: the flags exclude each other, or Spark was requested and cannot run here.
    """
    options = {name: settings.pop(name) for name in ("place", *_HOSTS, "peers", *_SPARKS)}
    beside_flink = bool(options["peers"])
    if beside_flink and (options["place"] not in ("auto", "local") or options["hosts"] is not None):
        raise ConfigError("--peer flink is measured beside two processes of this machine; leave the other place out")
    where = "local" if beside_flink else options["place"]
    sparks = [flag for flag, default in _SPARKS.items() if options[flag] != default]
    if options["hosts"] is not None:
        if where not in ("auto", "hosts"):
            raise ConfigError(f"--hosts with --place {where}: leave one of them out")
        _refuse(sparks, "--place spark, not with --hosts")
        return processes_of(runners, options)
    if where == "hosts" or options["secret_file"] is not None or options["same_build"]:
        raise ConfigError("--place hosts, --secret-file and --same-build go with --hosts; name the hosts too")
    wants = [*sparks, *(["relay"] if options["relay"] else [])]
    if where == "local":
        _refuse(wants, "--place spark, not with two processes of this machine")
        return LocalPlace(runners, beside_flink)
    spark = _spark(runners, options)
    if where == "spark":
        runners.check_spark()
        return spark
    try:
        runners.check_spark()
        spark.on(Grid.of(settings)).plan()
    except ConfigError as error:
        if wants:
            raise
        LocalPlace(runners).on(Grid.of(settings)).plan()  # settings that are invalid everywhere fail first
        console.print(
            f"measuring with --place local, two processes without Spark: {escape(str(error))}", soft_wrap=True
        )
        return LocalPlace(runners)
    return spark


def _refuse(flags: Sequence[str], goes_with: str) -> None:
    if flags:
        raise ConfigError(f"--{flags[0].replace('_', '-')} goes with {goes_with}; leave it out")


def _spark(runners: Runners, options: Mapping[str, Any]) -> SparkPlace:
    chosen = {
        "master": options["master"] or SparkSettings().master,
        "nodes": options["nodes"],
        "shared_hosts": options["shared_hosts"],
        "node_ports": options["node_ports"],
        "wait_for_executors_s": options["executors_timeout_s"],
        "tables_timeout_s": options["tables_timeout_s"],
    }
    SparkSettings(**chosen)  # checks the settings before anything starts
    return SparkPlace(
        runners, chosen, options["parallelism"], options["relay"], options["one_way"], options["warehouse"]
    )
