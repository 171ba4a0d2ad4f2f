"""The command `netstack-bench goals`: measures everything in turn, so that a drifting machine disturbs all alike.

Takes: flags. Gives: the table of figures as Markdown, or one JSON document, on standard output; an exit code.

Every connection uses the system's congestion control, because a peer's connections cannot use another one. One JVM with
Flink serves the whole run: it starts with the first measurement that needs it, and is idle in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.markup import escape

from netstack.base import build
from netstack.base.errors import ConfigError, NetstackError
from netstack.base.units import three_digits
from netstack.cli.stopping import stopped_by
from netstack.cli.values import COUNT, SECONDS
from netstack_transports.tcp import LOOPBACK_CONGESTION_VARIABLE

from .. import console
from ..compare import median_result
from ..engines.flink import FlinkSession
from ..flags import flag, flags, json_flag, list_flag
from ..host import host_facts, version
from ..interval import Interval
from ..places.conversation import MeasurementFailed
from ..places.hosts.coordinator import run_over_hosts
from ..places.hosts.result import of_all_channels
from ..places.hosts.spec import MeshSpec
from ..places.hosts.taskmanagers import local_taskmanagers
from ..places.local.runner import run_once
from ..spec import RunSpec
from ..stopping import kept_at_interrupt
from .jobs import measure_job
from .rows import BUILDS, Measured, Row, cpu_rows, installed, measured_once, rows_with

REPEATS: Final = 5


@click.command(short_help="The table of figures against peers, both builds, as Markdown.")
@flags(
    flag("--repeats", COUNT, "Rounds; a figure is the mean of their ratios, with a range from 3 on.", default=REPEATS),
    flag("--seconds", SECONDS, "Length of most measurements.", default=1.0),
    flag("--only", None, "Only rows that contain this text; repeatable.", "words", multiple=True),
    list_flag("--build", BUILDS, "By default both.", "builds"),
    json_flag,
)
def goals(repeats: int, seconds: float, words: tuple[str, ...], builds: tuple[str, ...], as_json: bool) -> int:
    """Measures every row of the table of figures, in both builds and with its peers, all in turn.

    A round takes about two minutes for each build. Every connection uses the system's TCP congestion control, because
    peers cannot choose one. Rows whose peers are not installed are left out. A row in bold misses its goal.
    A second table has the CPU of both ends beside each rate: seconds a GB of payload and nanoseconds a record.

    Exit code 1 when a delivery was not complete, in order and without repeats, or a measurement failed.
    """
    errors = console.err()
    rows = installed(rows_with(words), lambda text: errors.print(f"[yellow]{escape(text)}[/]", soft_wrap=True))
    if repeats < 1 or not seconds > 0:
        raise ConfigError("--repeats and --seconds: give more than 0")
    asked = builds or BUILDS
    if "compiled" in asked and build.kind != "compiled":
        raise ConfigError(f"netstack runs {build.describe()}: run `make compiled`, or give --build python")
    wanted = measured_once(rows)
    began = time.monotonic()
    rounds, made = measure(
        wanted, asked, repeats, seconds, lambda text: errors.print(text, soft_wrap=True, markup=False)
    )
    measured = medians(rounds)
    taken_s = time.monotonic() - began
    documents = [row_document(row, rounds) for row in rows]
    cpu = [document for row in cpu_rows(rows) if (document := cpu_document(row, rounds)) is not None]
    failed = failures(rounds, made)
    controls = {str(result["congestion_control"]) for result in measured.values() if result.get("congestion_control")}
    if as_json:
        results = [
            {"engine": each.engine, "job": each.job, "taskmanagers": each.taskmanagers, "build": kind, **result}
            for (each, kind), result in measured.items()
        ]
        head = {
            "rows": documents,
            "cpu": cpu,
            "repeats": made,
            "seconds": seconds,
            "taken_s": taken_s,
            "delivered": not failed,
        }
        console.print_json({**head, "results": results, "host": host_facts(), "version": version()})
    else:
        spent = f"rounds: {made}, 95 % ranges of their ratios, {taken_s:.0f} s in all"
        control = f"all TCP under the system's {' and '.join(sorted(controls))}"
        remark = f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}, {spent}, {control}"
        click.echo(markdown(documents, remark))
        if cpu:
            click.echo("\n" + cpu_markdown(cpu))
    for name in failed:
        errors.print(f"[red]failed:[/] {escape(name)}, which do not count", soft_wrap=True)
    if made < repeats:
        errors.print(f"stopped by {stopped_by()} after {made} of {repeats} rounds")
    return 1 if failed else 0


def row_document(row: Row, rounds: Rounds) -> dict[str, Any]:
    """A row as plain data: for each build its number, the other number, their ratio, and the goal.

    The ratio is the geometric mean of the rounds' ratios with its 95 % interval; of fewer than three rounds the median.
    """
    document: dict[str, Any] = {"text": row.text, "builds": {}}
    for kind, goal in zip(BUILDS, row.goals, strict=True):
        ours = _median(values_of(row, row.ours, kind, rounds).values())
        other = None if row.other is None else _median(values_of(row, row.other, kind, rounds).values())
        ratios = figures(row, kind, rounds)
        interval = Interval.of(ratios)
        figure = _median(ratios) if interval is None else interval.middle
        document["builds"][kind] = {
            "value": ours,
            "shown": None if ours is None else row.label(ours),
            "other": other,
            "other_shown": None if other is None else row.label(other),
            "figure": figure,
            "interval": None if interval is None else [interval.low, interval.high],
            "goal": goal,
            "is_met": None if figure is None else figure <= goal if row.is_less_better else figure >= goal,
        }
    return document


def cpu_document(row: Row, rounds: Rounds) -> dict[str, Any] | None:
    """A row of `cpu_rows` as plain data, with the CPU nanoseconds a record; None if nothing of it was measured."""
    document = row_document(row, rounds)
    if all(each["value"] is None for each in document["builds"].values()):
        return None
    record_bytes = row.ours.spec.record_bytes
    for each in document["builds"].values():
        each["ns_per_record"] = None if each["value"] is None else each["value"] * record_bytes
        each["other_ns_per_record"] = None if each["other"] is None else each["other"] * record_bytes
        if math.isinf(each["goal"]):
            each["goal"] = each["is_met"] = None
    return document


def cpu_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of CPU: seconds a GB and nanoseconds a record, both ends."""
    lines = [
        "| CPU of both ends, s a GB (ns a record): against | compiled | in Python | the other"
        " | ratio: compiled | in Python | aimed at |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        compiled, python = (row["builds"][kind] for kind in BUILDS)
        other = python if compiled["other"] is None else compiled
        cells = [
            str(row["text"]).removesuffix(": CPU"),
            _cpu(compiled["value"], compiled["ns_per_record"]),
            _cpu(python["value"], python["ns_per_record"]),
            _cpu(other["other"], other["other_ns_per_record"]),
            _ratio(compiled),
            _ratio(python),
            "-" if compiled["goal"] is None else _goal(compiled),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cpu(s_per_gb: float | None, ns_per_record: float | None) -> str:
    if s_per_gb is None or ns_per_record is None:
        return "-"
    return f"{three_digits(s_per_gb)} ({three_digits(ns_per_record)} ns)"


def markdown(rows: Sequence[Mapping[str, Any]], remark: str) -> str:
    """The table, a line for each row; a ratio that misses its goal is bold."""
    lines = [
        f"<!-- netstack-bench goals: {remark} -->",
        "| what: against | compiled | in Python | the other | ratio: compiled | in Python | aimed at |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        compiled, python = (row["builds"][kind] for kind in BUILDS)
        others = list(dict.fromkeys(each["other_shown"] for each in (compiled, python) if each["other_shown"]))
        cells = [
            str(row["text"]),
            compiled["shown"] or "-",
            python["shown"] or "-",
            " / ".join(others) or "-",
            _ratio(compiled),
            _ratio(python),
            f"{_goal(compiled)} / {_goal(python)}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def _ratio(each: Mapping[str, Any]) -> str:
    figure = each["figure"]
    if figure is None:
        return "-"
    text = f"**{_number(figure)}**" if each["is_met"] is False else _number(figure)
    return text if each["interval"] is None else f"{text} ({' to '.join(map(_number, each['interval']))})"


def _goal(each: Mapping[str, Any]) -> str:
    return _number(each["goal"])


def _number(value: float) -> str:
    return f"{value / 1e6:,.0f} M" if value >= 1e6 else f"{value:.2f}" if value < 10 else three_digits(value)


def _machine() -> str:
    facts = host_facts()
    return f"{facts['cores_usable']} cores, Python {platform.python_version()}, load {facts['load_average'][0]:.1f}"


PARALLELISM: Final = 4
"""Sources, and sinks, of an all-to-all."""

ENVIRONMENT: Final[Mapping[str, Mapping[str, str]]] = {
    "": {LOOPBACK_CONGESTION_VARIABLE: ""},
    "compiled": {LOOPBACK_CONGESTION_VARIABLE: "", "NETSTACK_PURE": ""},
    "python": {LOOPBACK_CONGESTION_VARIABLE: "", "NETSTACK_PURE": "1"},
}
"""The environment of the processes of a build; without a name of a congestion control, TCP keeps the system's."""

Key = tuple[Measured, str]
Rounds = dict[Key, dict[int, dict[str, Any]]]
"""By number of the round; one that failed, or delivered something else than was sent, is missing."""


def measure(
    wanted: Sequence[Measured], builds: Sequence[str], repeats: int, seconds: float, report: Callable[[str], None]
) -> tuple[Rounds, int]:
    """Measures everything `repeats` times, round after round, every other round in the opposite order.

    Returns:
        What each measurement gave in which round, nothing for a round in which it failed; the number of rounds. Ctrl-C
        keeps the rounds that are complete, and is raised if there are none.
    """
    keys = [(each, build) for each in wanted for build in each.builds if not build or build in builds]
    rounds: Rounds = {key: {} for key in keys}
    made = 0
    with kept_at_interrupt(lambda: made > 0), contextlib.ExitStack() as stack:
        flink = _Flink(stack)
        for number in range(repeats):
            began_s = time.monotonic()
            for key in reversed(keys) if number % 2 else keys:
                each, build = key
                try:
                    result = _measure_once(each, build, seconds * each.seconds, flink)
                    if result.get("delivered") is False:
                        problems = "; ".join(map(str, result.get("warnings") or ("records are lost or damaged",)))
                        raise MeasurementFailed(f"not delivered: {problems}")
                    rounds[key][number] = result
                except NetstackError as error:
                    report(f"round {number + 1}, {each.job or 'run'}, {each.engine} {build}: {error}")
            report(f"round {number + 1} of {repeats} took {time.monotonic() - began_s:.0f} s")
            made = number + 1
    kept = {key: {number: each for number, each in results.items() if number < made} for key, results in rounds.items()}
    return kept, made


def failures(rounds: Rounds, repeats: int) -> list[str]:
    """The measurements that failed, each with its number of rounds."""
    return [
        f"{each.job or 'run'}, {each.engine} {build}".rstrip() + f": {repeats - len(results)} of {repeats} rounds"
        for (each, build), results in rounds.items()
        if len(results) < repeats
    ]


def medians(rounds: Rounds) -> dict[Key, dict[str, Any]]:
    """The median result of each measurement that succeeded at least once."""
    return {key: median_result(list(results.values())) for key, results in rounds.items() if results}


def figures(row: Row, build: str, rounds: Rounds) -> list[float]:
    """The row's figure in each round in which all of it was measured: what is divided was measured by turns."""
    ours = values_of(row, row.ours, build, rounds)
    if row.other is None:
        return list(ours.values())
    other = values_of(row, row.other, build, rounds)
    return [value / other[number] for number, value in ours.items() if other.get(number)]


def values_of(row: Row, measured: Measured, build: str, rounds: Rounds) -> dict[int, float]:
    """What a row reads off one of its two measurements, by round."""
    results = rounds.get((measured, build if build in measured.builds else ""), {})
    values = {number: row.figure(result) for number, result in results.items()}
    more = row.allowance if measured == row.other else 0.0
    return {number: value + more for number, value in values.items() if value is not None}


class _Flink:
    """One session with a JVM, opened when it is first needed."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._session: FlinkSession | None = None

    def session(self) -> FlinkSession:
        if self._session is None:
            self._session = self._stack.enter_context(FlinkSession())
        return self._session


def _measure_once(each: Measured, build: str, seconds: float, flink: _Flink) -> dict[str, Any]:
    environment = ENVIRONMENT[build]
    if each.job:
        session = flink.session() if each.engine == "flink" else None
        return measure_job(each.job, each.engine, environment, seconds, session)
    spec = dataclasses.replace(each.spec, seconds=seconds)
    if each.engine == "flink":
        return flink.session().run_once(spec)
    if each.taskmanagers:
        count = each.taskmanagers
        with local_taskmanagers(count, slots=2 * PARALLELISM, environment=environment) as taskmanagers:
            return over(spec, taskmanagers.hosts(PARALLELISM))
    specs = [dataclasses.replace(spec, batch_records=size) for size in each.batch_sizes] or [spec]
    results = [run_once(each_spec, engine=each.engine, environment=environment) for each_spec in specs]
    return max(results, key=lambda result: float(result["records_per_s"]))


def over(spec: RunSpec, hosts: tuple[str, ...]) -> dict[str, Any]:
    """The same settings as an all-to-all among TaskManagers; rates are those of all channels."""
    return of_all_channels(run_over_hosts(MeshSpec(**{**spec.as_dict(), "hosts": hosts})))
