"""The command line `netstack-bench`: run, sweep, report, compare, and the experiments.

`--json` prints exactly one JSON document on standard output, also if the command fails (then with `error`). Exit code
0: success. 1: a run failed or did not deliver everything. 2: bad usage. 3: a condition of `--fail-on` is true. 130 or
143: stopped by Ctrl-C or SIGTERM; what was measured until then is kept and shown.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape

from netstack.base.errors import ConfigError, NetstackError
from netstack.base.units import counted
from netstack.base.version import __version__
from netstack.cli import stopping
from netstack.cli.json_document import drop_output
from netstack.cli.stopping import stopped_by
from netstack.cli.suggestions import usage_text
from netstack.cli.values import COUNT, NUMBER

from . import console
from .channels.command import channels
from .checkpoints.command import checkpoints
from .compare import compare as compare_rows, median_result, point_words
from .decision.experiment import DEFAULT_BUDGET_S, Budget, continued
from .decision.goal import Goal
from .document import SCHEMA_VERSION
from .emulation import emulation_cells, emulation_summary
from .engines import PEERS
from .flags import (
    fail_on_flag,
    flag,
    hosts_flags,
    json_flag,
    list_flag,
    place_flags,
    run_flags,
    sweep_flags,
    take_network,
)
from .goals.command import goals
from .goals.regress import regress
from .grid import MOST_REPEATS, Grid, expected_seconds, with_rows
from .histogram import Histogram
from .host import process_age_s
from .isolate.command import isolate
from .jobs.command import jobs
from .labels import warnings_of
from .lines.command import lines
from .places.hosts.spec import MeshSpec
from .places.hosts.tables import print_hosts, print_matrix
from .places.placements import LocalPlace, Place, Runners, place_of, processes_of
from .places.spark.commands import exchange, streams
from .recommend.command import recommend
from .report import Sweep, findings, together
from .report.answers import decide
from .report.points import Analysis
from .run_table import peer_rows, print_run
from .scale.command import scale
from .scheduler.command import scheduler
from .shuffle.command import shuffle
from .simulate import simulate
from .spec import RunOnce, RunSpec, check_segment_size, refuse_below, refuse_unused
from .stopping import kept_at_interrupt
from .store import Row, Store, StoreError, flatten, only_results, read_rows, reason, require_pyarrow
from .sweep import (
    COMPARISON,
    REPORT,
    SweepResult,
    check_stored,
    describe,
    expected_failure,
    make_runs,
    open_answer,
    pending,
    undecided_runs,
    utc_text,
    write_combined_report,
)
from .thresholds import EXIT_CODE, Threshold, ThresholdCheck, judge

_PEER_REPEATS = 5
_DEFAULT_RUN_S = 3.0
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class _App:
    runners: Runners
    arguments: tuple[str, ...]
    began_s: float


def main(arguments: Sequence[str] | None = None, *, runners: Runners | None = None) -> int:
    """Runs one command and returns the exit code. The default of `arguments` are those of the process."""
    words = tuple(sys.argv[1:] if arguments is None else arguments)
    began_s = time.monotonic() - (process_age_s() if arguments is None else 0.0)
    try:
        return _run(words, runners or Runners(), began_s)
    except BrokenPipeError:
        drop_output()  # its reader has closed it
        return 1


def _run(words: tuple[str, ...], runners: Runners, began_s: float) -> int:
    as_json = "--json" in words
    try:
        with stopping.signals_are_ctrl_c(), stopping.unwrapped_interrupt():
            app = _App(runners, words, began_s)
            code = cli.main(list(words), prog_name="netstack-bench", standalone_mode=False, obj=app)
            return stopping.exit_code(code or 0)
    except click.UsageError as error:
        return _failed(usage_text(error, cli, "netstack-bench", [*words]), 2, as_json)
    except ConfigError as error:
        return _failed(str(error), 2, as_json)
    except stopping.StoppedBySignal as error:
        return _failed(str(error), stopping.stop_code(), as_json)
    except BrokenPipeError:  # an OSError, but no failure: `main` ends quietly
        raise
    except (NetstackError, OSError, ExceptionGroup) as error:
        failure = expected_failure(error)
        if isinstance(failure, ConfigError):
            return _failed(str(failure), 2, as_json)
        return _failed(str(failure) if isinstance(failure, StoreError) else describe(failure), 1, as_json)
    except (KeyboardInterrupt, click.Abort):
        when = (
            "before its end; it has no result"
            if _KEEP_NOTHING.intersection(words[:1])
            else "before anything was measured"
        )
        return _failed(f"stopped by {stopped_by()} {when}", stopping.stop_code(), as_json)


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="netstack-bench")
def cli() -> None:
    """Measures netstack between two processes over a real network stack, and verifies every delivery.

    Exit codes: 0 for success; 1 if a run failed or a record was lost; 2 for wrong usage; 3 if a condition of --fail-on
    is true; 130 after Ctrl-C and 143 after
    SIGTERM, which keep what was measured.
    """


@cli.command(short_help="Run one measurement and print its table.")
@run_flags
@hosts_flags
@list_flag("--peer", PEERS, "Peers to measure by turns with netstack.", "peers")
@flag("--repeats", COUNT, "Number of runs whose medians are shown; by default 5 with --peer, else 1.")
@flag(
    "--hgrm",
    click.Path(dir_okay=False, writable=True, path_type=Path),
    "Write the latency distribution to this file for HdrHistogram's plotters.",
)
@fail_on_flag
@json_flag
@click.pass_obj
def run(
    app: _App,
    /,
    peers: tuple[str, ...],
    repeats: int | None,
    hgrm: Path | None,
    fail_on: tuple[Threshold, ...],
    as_json: bool,
    **settings: Any,
) -> int:
    """Run one measurement with a producer and a consumer process, and print a table of results.

    With --hosts, sources and sinks run on any number of hosts; the table has a row for each host and each pair.

    The exit code is 1 if a record did not arrive intact, in order and exactly once, and 3 if it did and a condition of
    --fail-on is true.
    """
    check_segment_size(settings["segment_size_bytes"])
    refuse_unused(settings, peers)
    take_network(settings)
    place = processes_of(app.runners, settings)
    spec = place.spec(settings)
    if peers and isinstance(spec, MeshSpec):
        raise ConfigError("--peer with --hosts: peers are measured between two processes; leave one of them out")
    names = list(dict.fromkeys(peers))
    times = repeats if repeats is not None else _PEER_REPEATS if names else 1
    refuse_below(("--repeats", times, 1))
    if times > MOST_REPEATS:
        raise ConfigError(f"--repeats {times}: the maximum is {MOST_REPEATS}")
    if isinstance(spec, MeshSpec):
        print_matrix(spec, console.err())
    if hgrm is not None and not hgrm.parent.is_dir():
        raise ConfigError(f"--hgrm {hgrm}: there is no folder {hgrm.parent}; create it, or name another file")
    started_at = utc_text()
    result, stopped = _measure(app.runners, place.run_once, spec, names, times)
    checks = judge(fail_on, [flatten(result)])
    if fail_on:
        result = {**result, "thresholds": [each.as_dict() for each in checks]}
    if as_json:
        head = {
            "schema_version": SCHEMA_VERSION,
            "started_at": started_at,
            "command": shlex.join(("netstack-bench", *app.arguments)),
        }
        console.print_json({**head, **result})
    else:
        print_run(result, spec, console.out())
        print_hosts(result, console.out())
    errors = console.err()
    console.print_warnings(result, errors)
    not_written = "" if hgrm is None else _write_hgrm(hgrm, result)
    if not_written:
        errors.print(f"[red]not written:[/] {escape(not_written)}", soft_wrap=True)
    if stopped:
        stopping.keep_results()
        errors.print(
            f"stopped by {stopped_by()} after {result.get('repeats', 1)} of {times} runs; these are their medians"
        )
    if result.get("delivered") is not True:
        errors.print("[red]not delivered:[/] count, order or checksum differ between the two ends")
        return 1
    late = [name for name, row in peer_rows(result).items() if row.get("delivered") is False]
    for name in late:
        errors.print(f"[red]not delivered by {escape(name)}:[/] its figures do not count")
    return 1 if late or not_written else _exit_code(checks, errors)


def _exit_code(checks: Sequence[ThresholdCheck], errors: Console) -> int:
    failed = [each for each in checks if each.has_failed]
    for each in failed:
        errors.print(f"[red]failed:[/] {escape(each.sentence())}", soft_wrap=True)
    return EXIT_CODE if failed else 0


@cli.command(short_help="Measure a grid of settings and write a report.")
@sweep_flags
@place_flags
@hosts_flags
@flag(
    "--output",
    _FOLDER,
    "Results folder; by default results/sweep-<date>. In an existing folder, finished runs are skipped.",
)
@fail_on_flag
@json_flag
@click.pass_obj
def sweep(
    app: _App,
    /,
    output: Path | None,
    budget_s: float | None,
    repeats: int | None,
    fail_on: tuple[Threshold, ...],
    as_json: bool,
    **settings: Any,
) -> int:
    """Measure a grid of buffer timeouts x record sizes x channels, recommend a timeout, and write a report.

    After a first pass over the grid it repeats the timeouts that the recommendation depends on, until it is decided or
    the --budget ends; with --repeats it makes so many passes over the grid instead.

    Each point has a throughput run and a latency run. Lists of --exclusive-buffers, --floating-buffers and --round-trip
    are axes too; the report then draws throughput against the number of buffers.

    By default the sweep runs on local Spark, with a TaskManager in each task; use --master for a Spark cluster, --hosts
    for TaskManagers on hosts, and --place local for two processes.

    The default takes up to three minutes. After Ctrl-C, finished runs are stored and reported, and the same command
    with the same --output continues.

    With --fail-on the exit code is 3 if a condition is true of the median of a setting, in runs that all succeeded.
    """
    require_pyarrow()
    check_segment_size(settings["segment_size_bytes"])
    refuse_unused(settings)
    errors = console.err()
    if budget_s is not None and repeats is not None:
        raise ConfigError("--budget with --repeats: a fixed number of passes has no budget; leave one of them out")
    place = place_of(app.runners, settings, errors)
    grid = Grid.of(settings if repeats is None else {**settings, "repeats": repeats})
    if settings["input_path"] is not None:
        grid = with_rows(grid, settings["input_path"], settings["key_column"])
    is_fixed = repeats is not None or place.has_turns
    return _run_grid(app, place, grid, output, as_json, None if is_fixed else (budget_s or 0.0), fail_on)


def _run_grid(
    app: _App,
    place: Place,
    grid: Grid,
    output: Path | None,
    as_json: bool,
    budget_s: float | None = None,
    fail_on: Sequence[Threshold] = (),
    most_repeats: int = 0,
) -> int:
    """Makes the runs of a grid; `budget_s` is None for a fixed design, 0 for the default; see `make_runs`."""
    errors = console.err()
    grid = place.on(grid)
    planned = grid.plan()
    require_pyarrow()
    folder = output or Path("results") / f"sweep-{datetime.now():%Y-%m-%d-%H%M%S}"
    command = shlex.join(("netstack-bench", *app.arguments))
    with Store(folder) as store, _stored_at_interrupt(store):
        with only_results(folder):
            check_stored(store)
        todo = pending(grid, store)
        skipped = (
            f" ({len(planned) - len(todo)} of {len(planned)} are there already)" if len(todo) < len(planned) else ""
        )
        expected_s = place.start_s + expected_seconds(todo)
        budget = None if budget_s is None else _budget(app, place, budget_s, expected_s)
        length = f", about {console.about(expected_s)}" if todo else ""
        first = "" if budget is None else ", then more where the answer needs them"
        errors.print(f"{len(todo)} runs{skipped}{length}{first}, into {escape(str(folder))}", soft_wrap=True)
        place.show(todo, errors)
        more = undecided_runs(grid, store, most_repeats) if budget is None else open_answer(store)
        needs_runs = bool(todo or more)
        where = place if needs_runs else LocalPlace(app.runners)  # nothing is opened for a report alone
        with (
            console.SweepBar(todo, errors, budget) as progress,
            where.open(planned[0].spec, store, progress, errors) as (once, bar),
        ):
            result = make_runs(
                grid, store, once, command=command, progress=bar, budget=budget, most_repeats=most_repeats
            )
    checks = judge(fail_on, result.rows, point_words)
    _print_sweep(result, as_json, checks)
    console.print_warnings({"warnings": warnings_of(result.rows)}, errors)
    if result.interrupted:
        again = shlex.join(("netstack-bench", *app.arguments, *(() if output else ("--output", str(folder)))))
        stopping.keep_results()
        done = result.planned - result.missing
        errors.print(
            f"stopped by {stopped_by()}: {done} of {result.planned} runs are stored; to continue: {escape(again)}",
            soft_wrap=True,
        )
    elif not result.hopeless:
        _print_next(app, result, folder, budget, errors)
    if result.hopeless:
        errors.print(
            f"[red]stopped:[/] no other run would do better, {result.planned - result.skipped - result.made} were not"
            f" tried: {escape(result.hopeless)}",
            soft_wrap=True,
        )
    console.print_failures(result.rows, errors)
    if result.failed or not (result.rows or result.interrupted):
        return 1
    return _exit_code(checks, errors)


def _budget(app: _App, place: Place, given_s: float, expected_s: float) -> Budget:
    length_s = given_s or DEFAULT_BUDGET_S
    fits = expected_s + place.close_s < length_s
    return Budget(app.began_s + length_s, time.monotonic, place.close_s, covers_first_pass=bool(given_s) or fits)


def _print_next(app: _App, result: SweepResult, folder: Path, budget: Budget | None, errors: Console) -> None:
    """Says how to continue where the answer is open, or runs of the grid are missing."""
    decision = next(iter(decide(Analysis(result.rows), Goal()).values()), None)
    asked = None if decision is None else decision.contested
    if asked is None and not (result.missing and result.out_of_time):
        return
    missing = f"{counted(result.missing, 'run')} of the grid did not fit into the budget; " if result.missing else ""
    again = continued(app.arguments, folder, asked, is_fixed=budget is None)
    errors.print(f"{missing}to go on: {escape(shlex.join(('netstack-bench', *again)))}", soft_wrap=True)


@contextlib.contextmanager
def _stored_at_interrupt(store: Store) -> Iterator[None]:
    """Says where the finished runs are if Ctrl-C comes again while the report is written."""
    try:
        with stopping.unwrapped_interrupt():
            yield
    except KeyboardInterrupt:
        stored = len(store.rows())
        if not stored:
            raise
        raise stopping.StoppedBySignal(
            f"stopped by {stopped_by()}: {counted(stored, 'run')} are stored in {store.folder}; the report was not"
            f" written, netstack-bench report {shlex.quote(str(store.folder))} writes it"
        ) from None


@cli.command(short_help="Compare netstack's emulation with a real Flink.")
@flag("--repeats", COUNT, "Passes over all cells.", default=3)
@flag("--most-repeats", COUNT, "Repeats of a cell that stays undecided.", default=6)
@flag("--seed", COUNT, "Seed for the order of the cells.", default=0)
@flag("--output", _FOLDER, "Results folder; see sweep.")
@json_flag
@click.pass_obj
def emulation(app: _App, /, repeats: int, most_repeats: int, seed: int, output: Path | None, as_json: bool) -> int:
    """Measure eighteen settings on a real Flink, on netstack --as flink, and on netstack with its own policies.

    A figure is within 15 % of Flink's if its 95 % interval lies inside that margin, outside if it lies outside, and
    else undecided. Undecided cells are measured again, up to --most-repeats.

    The first passes take about 16 minutes, and the others at most as long. Needs a JDK and Flink's jars: pip install
    'apache-flink-libraries==2.3.0'. For cells of your own: netstack-bench sweep --peer flink --repeats 3.
    """
    from .engines.flink.jar import cache_folder
    from .engines.flink.spec import cells

    grid = Grid(points=cells(cache_folder()), repeats=repeats, seed=seed)
    return _run_grid(app, LocalPlace(app.runners, True), grid, output, as_json, most_repeats=most_repeats)


@cli.command(short_help="Rebuild the report of one or several results folders.")
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@flag(
    "--output",
    click.Path(dir_okay=False, path_type=Path),
    "The page to write; by default report.html in DIR, or comparison.html in the first of several folders.",
)
@json_flag
def report(folders: tuple[Path, ...], output: Path | None, as_json: bool) -> int:
    """Rebuilds report.html in the results folder DIR from the rows stored there.

    Several results folders become one page, overlaid in every chart and compared with the first.
    """
    with only_results(*folders):
        sweeps = {folder: _rows(folder) for folder in folders}
        rows = together([Sweep(str(folder), entry) for folder, entry in sweeps.items()])
        path = write_combined_report(output or folders[0] / (REPORT if len(sweeps) == 1 else COMPARISON), sweeps)
        if not _is_standard_output(path):
            _print_sweep(SweepResult(folders[0], path, rows, len(rows), len(rows), 0, False), as_json)
    return 0


def _is_standard_output(path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except OSError:  # there is none, or a test has replaced it
        return False


@cli.command(short_help="Show which differences between two results exceed the noise.")
@click.argument("a", metavar="A", type=click.Path(exists=True, path_type=Path))
@click.argument("b", metavar="B", type=click.Path(exists=True, path_type=Path))
@flag("--threshold", NUMBER, "Percentage of change that counts as a difference if the noise is unknown.")
@click.option("--all", "everything", is_flag=True, help="Also list figures within the noise.")
@flag("--fail-on", ("worse",), "Exit with 1 if a figure of B is worse.")
@json_flag
def compare(a: Path, b: Path, threshold: float | None, everything: bool, fail_on: str | None, as_json: bool) -> int:
    """Show which differences between two results exceed the noise.

    A and B are results folders, Parquet files, or JSON files of netstack-bench run --json.

    With --fail-on worse it is a check for CI. A figure is worse if the change exceeds the noise of the repeats or, with
    fewer than three of them, the --threshold.
    """
    if threshold is not None and threshold <= 0:
        raise ConfigError(f"--threshold {threshold:g}: give a percentage above 0")
    with only_results(a, b):
        comparison = compare_rows(_rows(a), _rows(b), threshold=None if threshold is None else threshold / 100)
        if as_json:
            console.print_json({"a": str(a), "b": str(b), **comparison.as_dict()})
        else:
            console.print_comparison(comparison, console.out(), everything=everything)
    worse = [each for each in comparison.differences if each.verdict == "worse"] if fail_on else []
    if worse:
        most = max(worse, key=lambda each: abs(each.change))
        count = f"{len(worse)} of {len(comparison.differences)} figures are worse"
        text = f"{count}, most of all {most.metric} at {most.point}"
        console.err().print(f"[red]failed:[/] {escape(text)} ({most.change:+.1%})", soft_wrap=True)
    return 1 if worse else 0


_KEEP_NOTHING: Final = frozenset(("channels", "exchange", "jobs", "regress", "scheduler", "streams"))
"""Commands that have no result if they are stopped."""

_EXPERIMENTS = (channels, checkpoints, exchange, isolate, jobs, scale, scheduler, shuffle, streams)
for _command in (*_EXPERIMENTS, goals, lines, regress, recommend, simulate):
    cli.add_command(_command)


def _measure(
    runners: Runners, once: RunOnce, spec: RunSpec, peers: list[str], repeats: int
) -> tuple[Mapping[str, Any], bool]:
    timed = spec.records is None and (spec.seconds is not None or spec.input_path is None)
    runs = repeats * (1 + len(peers))
    expected_s = runs * (spec.START_S + (spec.seconds or _DEFAULT_RUN_S)) if timed else None
    with console.RunBar(runs, expected_s, console.err()) as progress:
        if peers:
            result = runners.run_with_peers(spec, peers, repeats, progress)
            return result, result.get("repeats", 1) < repeats
        results: list[Mapping[str, Any]] = []
        with kept_at_interrupt(lambda: bool(results)):
            while len(results) < repeats:
                results.append(once(spec, progress))
        return median_result(results), len(results) < repeats


def _write_hgrm(path: Path, result: Mapping[str, Any]) -> str:
    """Writes the latencies; returns why it could not, because the figures that were measured still count."""
    latencies = result.get("latency_histogram")
    if not latencies:
        return f"--hgrm {path}: this run recorded no latencies"
    try:
        path.write_text(Histogram.from_dict(latencies).hgrm(), encoding="utf-8")
    except OSError as error:
        return f"--hgrm {path}: {reason(error)}"
    return ""


def _rows(path: Path) -> list[Row]:
    try:
        return read_rows(path)
    except StoreError as error:
        raise ConfigError(str(error)) from error


def _print_sweep(result: SweepResult, as_json: bool, checks: Sequence[ThresholdCheck] = ()) -> None:
    lines = [*findings(result.rows), *emulation_summary(emulation_cells(result.rows))]
    if as_json:
        thresholds = {"thresholds": [each.as_dict() for each in checks]} if checks else {}
        console.print_json({**result.as_dict(lines), **thresholds})
        return
    standard = console.out()
    for line in lines:
        standard.print(escape(line), soft_wrap=True)
    if result.report is not None:
        standard.print(f"report: {escape(str(result.report))}", soft_wrap=True)


def _failed(message: str, code: int, as_json: bool) -> int:
    click.echo(f"netstack-bench: {message}", err=True)
    if as_json:
        try:
            console.print_json({"error": message, "exit_code": code, "delivered": False})
        except BrokenPipeError:
            raise
        except OSError:  # standard output cannot be written, which may be what failed
            drop_output()
    return code
