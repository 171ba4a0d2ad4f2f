"""The command `netstack-bench regress`: the goals in a tenth of their time, against a baseline of the same machine.

Takes: flags, the file of a baseline. Gives: the rows that changed by more than the noise; an exit code.

It compares the rows' figures, and the CPU of both ends beside each rate. Most of them are ratios of runs by turns,
which hardly change when the machine is slower. A difference counts as in `netstack-bench compare`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.markup import escape
from rich.table import Table

from netstack.base import build
from netstack.base.errors import ConfigError
from netstack.base.units import three_digits
from netstack.cli.stopping import StoppedBySignal, stopped_by
from netstack.cli.values import COUNT, SECONDS

from .. import console
from ..compare import LEAST_CHANGE
from ..flags import flag, flags, json_flag
from ..host import host_facts, version
from ..interval import ENOUGH_REPEATS, JUDGED, Interval
from ..store import reason, replace_file
from .command import failures, figures, measure
from .rows import BUILDS, Row, cpu_rows, installed, measured_once, rows_with

SCHEMA: Final = 1
_MACHINE: Final = ("name", "cpu", "cores_usable", "kernel", "python")
_SLOW_TO_START: Final = ("flink", "dask")
_DEFAULT: Final = Path("results") / "baseline.json"


@dataclass(frozen=True, slots=True)
class Change:
    """One row in one build, before and now.

    Attributes:
        build: of netstack.
        before: the geometric mean of the baseline's figures.
        low: the lower end of now / before, with 99 % confidence.
        high: its upper end.
        verdict: `better`, `worse` or `same`.
    """

    row: str
    build: str
    before: float
    now: float
    low: float
    high: float
    verdict: str


@click.command(short_help="The goals in a tenth of the time, against a stored baseline of this machine.")
@flags(
    flag(
        "--baseline",
        click.Path(dir_okay=False, path_type=Path),
        "What to compare with; made where there is none.",
        default=_DEFAULT,
    ),
    click.option("--save", is_flag=True, help="Make this run the baseline."),
    flag("--repeats", COUNT, "Rounds, 3 at least.", default=5),
    flag("--seconds", SECONDS, "Length of most measurements.", default=0.1),
    flag("--only", None, "Only rows that contain this text; repeatable.", "words", multiple=True),
    flag("--fail-on", ("worse",), "Exit code 1 when a figure is worse."),
    json_flag,
)
def regress(
    baseline: Path,
    save: bool,
    repeats: int,
    seconds: float,
    words: tuple[str, ...],
    fail_on: str | None,
    as_json: bool,
) -> int:
    """Measures the rows of `goals` shortly and prints which differ from the baseline by more than the noise.

    The exit code is 0 unless --fail-on worse is given, which also counts a measurement that failed, such as
    one that lost a record. Latencies with a buffer timeout, Flink and Dask are left out.

    The default takes five to six minutes.
    """
    if repeats < ENOUGH_REPEATS or not seconds > 0:
        raise ConfigError(f"--repeats and --seconds: give {ENOUGH_REPEATS} rounds at least, of more than 0 seconds")
    errors = console.err()
    rows = rows_with(words)
    texts = {row.text for row in (*rows, *cpu_rows(rows))}
    rows = installed(rows, lambda text: errors.print(escape(text), soft_wrap=True))
    rows = [
        row
        for row in rows
        if not row.allowance  # an allowance does not follow the machine's speed
        and (row.other is None or row.other.engine not in _SLOW_TO_START)
    ]
    stored = read_baseline(baseline) if baseline.exists() and not save else None
    if stored is None:
        check_writable(baseline)
    builds = BUILDS if build.kind == "compiled" else ("python",)
    rounds, made = measure(
        measured_once(rows), builds, repeats, seconds, lambda text: errors.print(text, soft_wrap=True, markup=False)
    )
    if made < repeats:
        raise StoppedBySignal(
            f"stopped by {stopped_by()} after {made} of {repeats} rounds: nothing is compared, no baseline is written"
        )
    rows += cpu_rows(rows)
    now = {f"{row.text} [{kind}]": values for row in rows for kind in builds if (values := figures(row, kind, rounds))}
    if not now:
        raise ConfigError("nothing could be measured; what failed stands above")
    if stored is None:
        write_baseline(baseline, now, seconds)
        errors.print(f"this run is the baseline now: {escape(str(baseline))}", soft_wrap=True)
        changes: list[Change] = []
    else:
        if stored["seconds"] != seconds:
            errors.print(f"[yellow]warning:[/] the baseline was measured with --seconds {stored['seconds']:g}")
        changes = compared(rows, stored["figures"], now)
        missing = [name for name in stored["figures"] if name not in now and name.rpartition(" [")[0] in texts]
        if missing:
            rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            errors.print(
                f"[yellow]warning:[/] in the baseline, but not measured now: {escape(missing[0])}{rest}", soft_wrap=True
            )
    worse = [change for change in changes if change.verdict == "worse"]
    failed = failures(rounds, made)
    if as_json:
        console.print_json(
            {
                "baseline": str(baseline),
                "changes": [asdict(each) for each in changes],
                "figures": now,
                "worse": len(worse),
                "failed": failed,
            }
        )
    elif stored is not None:
        _print(changes)
    for name in failed:
        errors.print(f"[red]failed:[/] {escape(name)}, which do not count", soft_wrap=True)
    return 1 if (worse or failed) and fail_on else 0


def compared(
    rows: Sequence[Row], before: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]
) -> list[Change]:
    """The rows that both sides measured at least three times, in their order."""
    less_is_better = {row.text for row in rows if row.is_less_better}
    changes = []
    for name, values in now.items():
        text, _, kind = name.removesuffix("]").rpartition(" [")
        ratio = Interval.of_ratio(before.get(name, ()), values, JUDGED)
        here, there = Interval.of(values), Interval.of(before.get(name, ()))
        if ratio is None or here is None or there is None:
            continue
        verdict = "same"
        if not ratio.low <= 1 <= ratio.high and abs(ratio.middle - 1) > LEAST_CHANGE:
            verdict = "worse" if (ratio.middle > 1) == (text in less_is_better) else "better"
        changes.append(Change(text, kind, there.middle, here.middle, ratio.low, ratio.high, verdict))
    return changes


def check_writable(path: Path) -> None:
    """Fails before a measurement whose baseline could not be written. Raises ConfigError."""
    folder = next(each for each in path.absolute().parents if each.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"--baseline {path}: {reason(error)}; name a file that can be written") from error


def write_baseline(path: Path, values: Mapping[str, Sequence[float]], seconds: float) -> None:
    """Writes the figures, with the machine that they were measured on.

    Raises:
        ConfigError: the file cannot be written.
    """
    facts = host_facts()
    document = {
        "schema": SCHEMA,
        "taken_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "version": version(),
        "seconds": seconds,
        "machine": {name: facts[name] for name in _MACHINE},
        "figures": dict(values),
    }
    text = json.dumps(document, indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda aside: aside.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--baseline {path}: {reason(error)}") from error


def read_baseline(path: Path) -> dict[str, Any]:
    """Reads a baseline of this machine. Raises ConfigError if the file is no baseline, or one of another machine."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        known = stored["schema"] == SCHEMA and all(
            isinstance(value, (int, float)) for values in stored["figures"].values() for value in values
        )
        machine, seconds = dict(stored["machine"]), float(stored["seconds"])
    except OSError as error:
        raise ConfigError(f"--baseline {path}: {reason(error)}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        known, machine, seconds = False, {}, 0.0
    if not known:
        raise ConfigError(f"--baseline {path}: not a baseline of this release; make one with --save")
    facts = host_facts()
    differences = [
        f"{name} {machine.get(name)!r:.60} there, {facts[name]!r:.60} here"
        for name in _MACHINE
        if machine.get(name) != facts[name]
    ]
    if differences:
        raise ConfigError(
            f"--baseline {path} is of another machine ({'; '.join(differences)}); make one of this with --save"
        )
    return {"figures": stored["figures"], "seconds": seconds}


def _print(changes: Sequence[Change]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("row", overflow="fold")
    table.add_column("build")
    for head in ("before", "now", "change", "which is"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict")
    styles = {"better": "green", "worse": "red", "same": "dim"}
    for change in changes:
        table.add_row(
            escape(change.row),
            change.build,
            three_digits(change.before),
            three_digits(change.now),
            f"{change.now / change.before - 1:+.0%}",
            f"{change.low - 1:+.0%} to {change.high - 1:+.0%}",
            change.verdict,
            style=styles[change.verdict],
        )
    standard = console.out()
    standard.print(table)
    counts = {name: sum(change.verdict == name for change in changes) for name in styles}
    standard.print(f"{counts['better']} better, {counts['worse']} worse, {counts['same']} within the noise")
