"""The command `netstack-bench recommend`: one paragraph and lines to paste, or one JSON document."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import click
from rich.markup import escape

from netstack.base.errors import ConfigError
from netstack.base.units import counted, format_count, format_latency, format_size
from netstack.cli.network_flags import acts_as_flag
from netstack.cli.values import COUNT, LENGTH, LINK_RATE, NETWORK, RATE, SECONDS, SIZE

from .. import console
from ..decision.experiment import Budget, Experiment
from ..decision.goal import Answer, Goal
from ..flags import flag, hosts_flags, json_flag, line_flags, network_flag, record_bytes_flag
from ..grid import DEFAULT_LATENCY_RATE_PER_S, Grid, PlannedRun
from ..interval import ENOUGH_REPEATS, Interval
from ..labels import Figure, setting_text, warnings_of
from ..places.conversation import MeasurementFailed
from ..places.placements import LocalPlace, Runners, processes_of
from ..report.answers import EVERY_WORKLOAD, Decision, answer_dict, decide
from ..report.load import HighestRate
from ..report.points import Analysis, Line, row_latency
from ..spec import Emit, RunOnce, RunSpec, constants_of, refuse_below
from ..stopping import kept_at_interrupt
from ..store import Row, StoreError, flatten, only_results, read_rows
from ..sweep import utc_text
from .lines import lines, memory_bytes, settings_of, spec_of

_SEARCH = 1 / 3  # of the budget, for the highest rate


@click.command(short_help="Which buffer timeout to set for a goal, and what it costs.")
@click.argument("results", required=False, type=click.Path(exists=True, path_type=Path))
@flag("--p99", LENGTH, "Upper bound of the p99 latency; the answer has the most throughput.")
@flag(
    "--throughput",
    LINK_RATE,
    "Lower bound of the payload, such as 200MB/s; the answer has the least latency.",
    "bytes_per_s",
)
@network_flag(NETWORK, "")
@line_flags
@record_bytes_flag(8)
@flag("--channels", COUNT, "Channels from a source to a sink.", default=1)
@flag("--parallelism", COUNT, "Sources that a sink reads from.", default=1)
@flag("--emit", get_args(Emit), "How the job writes its records.", default="record")
@flag("--rate", RATE, "Rate of the latency runs in records per second, open loop.", default=DEFAULT_LATENCY_RATE_PER_S)
@flag("--segment-size", SIZE, "Size of a network buffer.", default="32KiB")
@acts_as_flag
@flag("--seconds", SECONDS, "Length of each run.", default=0.7)
@flag("--budget", LENGTH, "Time after which no run begins.", default="3min")
@click.option("--highest-rate", is_flag=True, help="With --p99: also search for the highest rate that keeps it.")
@hosts_flags
@json_flag
@click.pass_context
def recommend(
    context: click.Context,
    /,
    results: Path | None,
    p99_s: float | None,
    bytes_per_s: int | None,
    highest_rate: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Recommends a buffer timeout: with --p99 the one with the most throughput, with --throughput the shortest.

    Without a goal it is the shortest that keeps 90 % of the throughput at 100 ms. After a first pass it repeats the
    timeouts that the answer depends on, until it is decided or the budget ends. With RESULTS (a sweep's folder) nothing
    is measured.

    Exit code 1 if no timeout reaches the goal, or the data do not decide.
    """
    if p99_s is not None and bytes_per_s is not None:
        raise ConfigError("--p99 with --throughput: one of them is the goal, the other what it costs; leave one out")
    if highest_rate and p99_s is None:
        raise ConfigError("--highest-rate goes with --p99, the latency that it keeps")
    goal = Goal.of(p99_s, None if bytes_per_s is None else bytes_per_s / 1e6)
    is_stopped = False
    if results is not None:
        answer = _stored(context, results, goal)
    else:
        answer, is_stopped = _measured(context.obj.runners, goal, settings, highest_rate)
    if as_json:
        console.print_json({"goal": str(goal), "answers": answer})
    else:
        for each in answer:
            _print(each, with_lines=len(answer) == 1)
    return 0 if is_stopped or all(each["is_decided"] and each["is_reached"] for each in answer) else 1


def _stored(context: click.Context, results: Path, goal: Goal) -> list[dict[str, Any]]:
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in ("results", "p99_s", "bytes_per_s", "highest_rate", "as_json")
        and context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise ConfigError(f"{', '.join(given)} with {results}: a stored sweep has its own settings; leave them out")
    try:
        with only_results(results):
            analysis = Analysis(read_rows(results))
            documents = [
                document
                for decision in decide(analysis, goal).values()
                for document in _documents(
                    decision,
                    lambda *point: spec_of(analysis.runs("throughput", *point)[0]),
                    lambda *point: _highest_measured(analysis, goal, *point),
                )
            ]
    except StoreError as error:
        raise ConfigError(str(error)) from error
    if not documents:
        raise ConfigError(f"{results} has no throughput at two buffer timeouts, and the latencies that the goal needs")
    return documents


def _highest_measured(analysis: Analysis, goal: Goal, line: Line, timeout_s: float | None) -> HighestRate | None:
    by_rate = analysis.by_rate(line, timeout_s)
    return HighestRate.of(by_rate, goal.p99_us) if goal.p99_us is not None and len(by_rate) > 1 else None


def _documents(
    decision: Decision,
    spec_at: Callable[[Line, float | None], RunSpec],
    highest_at: Callable[[Line, float | None], HighestRate | None],
) -> list[dict[str, Any]]:
    """The answer for all workloads together, if there are several, then that of each."""
    made = []
    if decision.together is not None:
        made.append({"workload": EVERY_WORKLOAD, **answer_dict(decision.together), "lines": {}, "warnings": []})
    for line, each in decision.lines.items():
        point = line, each.chosen.timeout_s
        made.append(_document(each, line.words, spec_at(*point), (), highest_at(*point)))
    return made


def _measured(
    runners: Runners, goal: Goal, settings: dict[str, Any], highest_rate: bool
) -> tuple[list[dict[str, Any]], bool]:
    rate_per_s = settings.pop("rate_per_s")
    budget_s = settings["budget_s"]
    measurer, budget = _measurer(runners, settings)
    highest: HighestRate | None = None

    def result() -> Answer | None:
        return next((each.main for each in decide(Analysis(measurer.rows), goal).values()), None)

    with kept_at_interrupt(lambda: result() is not None) as stopped:
        measurer.size_buffers(lambda: budget.now() < budget.ends_s)
        first = replace(budget, ends_s=budget.ends_s - (_SEARCH * budget_s if highest_rate else 0.0))
        Experiment(measurer.grid(LADDER_S, rate_per_s), result, measurer, first).run()
        decided = result()
        if highest_rate and decided is not None and goal.p99_us is not None:
            timeout_s = decided.chosen.timeout_s
            highest = measurer.highest_rate(timeout_s, rate_per_s, goal.p99_us, lambda: budget.now() < budget.ends_s)
    if stopped.by:
        console.err().print(f"stopped by {stopped.by}: the answer rests on the runs until then", soft_wrap=True)
    last = result()
    if last is None:
        raise ConfigError("--budget: there is no time for runs at two timeouts; give a longer one")
    words = f"{measurer.spec.rows}, {counted(measurer.spec.channels, 'channel')}"
    return [_document(last, words, measurer.spec, warnings_of(measurer.rows), highest)], stopped.by is not None


def _measurer(runners: Runners, settings: dict[str, Any]) -> tuple[Measurer, Budget]:
    errors = console.err()
    place = processes_of(runners, settings)
    network, parallelism = settings.pop("network"), settings.pop("parallelism")
    budget_s = settings.pop("budget_s")
    refuse_below(("--parallelism", parallelism, 1))
    settings["acts_as"] = settings["acts_as"] or "netstack"
    settings |= constants_of(settings["acts_as"])
    link, round_trip_s = network or (None, 0.0)
    if isinstance(place, LocalPlace):
        settings["channels"] *= parallelism  # of one gate
        settings |= {"round_trip_s": round_trip_s, "link_bytes_per_s": link}
    elif network is not None or parallelism > 1:
        raise ConfigError("--network and --parallelism with --hosts: these have them; write HOST:PORT=PARALLELISM")
    if round_trip_s:
        errors.print("this machine imitates the line; its round trip may be up to 2 ms longer than requested")
    budget = Budget(time.monotonic() + budget_s, time.monotonic)

    def print_step(text: str) -> None:
        left_s = max(0.0, budget.ends_s - time.monotonic())
        errors.print(f"{escape(text)} ({console.clock(left_s)} left)", soft_wrap=True)

    return Measurer(place.run_once, place.spec(settings), LADDER_S[-1], print_step), budget


def _document(
    answer: Answer, words: str, spec: RunSpec, warnings: Sequence[str], highest: HighestRate | None = None
) -> dict[str, Any]:
    """Plain values; ranges are `middle low high`, None where the noise is unknown."""
    memory = memory_bytes(spec)
    rate = {} if highest is None else {**highest.as_dict(), "sentence": highest.sentence(str(answer.goal))}
    return {
        "workload": words,
        **answer_dict(answer),
        "buffers": settings_of(spec),
        "bottleneck": answer.chosen.bottleneck or None,
        "memory_bytes": memory,
        **({"highest_rate": rate} if rate else {}),
        "lines": lines(spec, answer.chosen.timeout_s),
        "warnings": warnings,
    }


def _print(document: dict[str, Any], *, with_lines: bool) -> None:
    standard = console.out()
    buffers = f", {document['buffers']}" if "buffers" in document else ""
    memory = f"; memory {format_size(document['memory_bytes'], space=' ')}" if "memory_bytes" in document else ""
    standard.print(f"[bold]{escape(document['workload'])}[/]{buffers}", soft_wrap=True)
    highest = document.get("highest_rate")
    rate = f"\nHighest rate: {highest['sentence']}" if highest else ""
    standard.print(f"Buffer timeout: {escape(document['sentence'])}{memory}{escape(rate)}\n", soft_wrap=True)
    for where, text in document["lines"].items() if with_lines else ():
        standard.print(f"[dim]# {escape(where)}[/]\n{escape(text)}\n", soft_wrap=True)
    console.print_warnings(document, console.err())


LADDER_S: Final[tuple[float, ...]] = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""The timeouts of a recommendation; the last is the reference."""

PAYS: Final = 1.02
"""The whole interval of the throughput with more buffers must be above this multiple."""

_ROOM: Final = 1.25  # times the product of bandwidth and delay: credit comes back a little late


_RUNS_A_RATE: Final = 3
_CLOSE: Final = 1.15  # the highest rate is known to this factor
_FAR: Final = 100.0  # below the rate of the latency runs no lower rate is tried


class Measurer:
    """Makes the runs of an experiment, and keeps their rows.

    `spec` are the settings with the chosen buffers; the timeout and the rate are set for each run. `report` receives a
    line for each throughput run.
    """

    def __init__(self, run: RunOnce, spec: RunSpec, reference_s: float, report: Callable[[str], None]) -> None:
        self._run = run
        self.spec = spec
        self._reference_s = reference_s
        self._report = report
        self.rows: list[Row] = []

    def grid(self, timeouts_s: Sequence[float], rate_per_s: float) -> Grid:
        """The runs of a pass: throughput and latency at each timeout."""
        points = [replace(self.spec, buffer_timeout_s=timeout_s) for timeout_s in timeouts_s]
        return Grid(points=(*points, *(replace(point, rate_per_s=rate_per_s) for point in points)))

    def __call__(self, runs: Sequence[PlannedRun]) -> None:
        """Makes runs of an experiment."""
        for run in runs:
            row = {**self._measured(run.spec), "repeat": run.repeat}
            if run.kind == "latency" and not row_latency(row, "p99"):
                raise MeasurementFailed("a paced run has no latency: it was too short; give a longer --seconds")
            self.rows.append(row)
            figure = (
                f"{row['payload_mb_per_s']:.3g} MB/s"
                if run.kind == "throughput"
                else (f"p99 {format_latency(float(row_latency(row, 'p99') or 0.0))}")
            )
            self._report(f"timeout {setting_text('buffer_timeout_s', run.spec.buffer_timeout_s)}: {figure}")

    def highest_rate(
        self, timeout_s: float | None, rate_per_s: float, bound_us: float, has_time: Callable[[], bool]
    ) -> HighestRate | None:
        """Bisects between the rate of the latency runs and the throughput at this timeout; a rate has up to three runs.

        Lower rates follow where that of the latency runs does not keep the bound. None where the timeout has no runs.
        """
        spec = replace(self.spec, buffer_timeout_s=timeout_s)
        at_timeout = [row for row in self.rows if row.get("settings_buffer_timeout_s") == timeout_s]
        free = Figure.of(row["records_per_s"] for row in at_timeout if row["settings_rate_per_s"] is None)
        by_rate: dict[float, list[Row]] = {
            rate_per_s: [row for row in at_timeout if row["settings_rate_per_s"] is not None]
        }
        if free is None or not by_rate[rate_per_s]:
            return None

        def keeps(rate: float) -> bool:
            rows = by_rate.setdefault(rate, [])
            while len(rows) < _RUNS_A_RATE and (not rows or has_time()):
                rows.append(self._measured(replace(spec, rate_per_s=rate)))
                alone = [HighestRate.of({rate: [each]}, bound_us) for each in rows]
                passed = [each is not None and each.rate_per_s is not None for each in alone]
                if len(passed) > 1 and len(set(passed)) == 1:
                    break
            all_runs = HighestRate.of({rate: rows}, bound_us)
            is_kept = all_runs is not None and all_runs.rate_per_s is not None
            p99 = Figure.of(row_latency(row, "p99") for row in rows)
            latency = "no latency" if p99 is None else f"p99 {format_latency(p99.median)}"
            self._report(f"{format_count(rate)} records/s: {latency}{'' if is_kept else ', too much'}")
            return is_kept

        first = HighestRate.of(by_rate, bound_us)
        low, high = rate_per_s, max(free.median, rate_per_s * _CLOSE)
        if first is None or first.rate_per_s is None:
            low, high = rate_per_s / _FAR, rate_per_s
        while high > low * _CLOSE and has_time():
            rate = _two_digits(math.sqrt(low * high))
            if not low < rate < high:
                break
            low, high = (rate, high) if keeps(rate) else (low, rate)
        return HighestRate.of(by_rate, bound_us)

    def size_buffers(self, has_time: Callable[[], bool]) -> None:
        """Sets as many floating buffers as the line holds, if the profile allows it and runs by turns show a gain."""
        plain = replace(self.spec, buffer_timeout_s=self._reference_s)
        if not plain.round_trip_s or "floating_buffers" in constants_of(plain.acts_as):
            return
        first = self._measured(plain)
        per_s = plain.link_bytes_per_s or 1e6 * float(first.get("wire_mb_per_s") or first["payload_mb_per_s"])
        under_way = math.ceil(_ROOM * per_s * plain.round_trip_s / plain.segment_size_bytes)
        missing = under_way - plain.channels * plain.exclusive_buffers
        if missing <= plain.floating_buffers + plain.spare_buffers:
            return
        wide = replace(plain, floating_buffers=missing)
        pairs: list[tuple[float, float]] = []
        while len(pairs) < ENOUGH_REPEATS and has_time():
            one, other = (float(self._measured(spec)["payload_mb_per_s"]) for spec in (plain, wide))
            pairs.append((one, other))
        result = Interval.of_pairs(pairs)
        if result is not None:
            self._report(
                f"{missing:,} floating buffers instead of {plain.floating_buffers}: {result.percent()} of the rate"
            )
            if result.low > PAYS:
                self.spec = replace(self.spec, floating_buffers=missing)

    def _measured(self, spec: RunSpec) -> Row:
        started_at = utc_text()
        row = flatten({**self._run(spec), "settings": spec.as_dict(), "started_at": started_at})
        if row.get("delivered") is not True:
            raise MeasurementFailed("a run did not deliver every record; its figures do not count")
        return row


def _two_digits(rate: float) -> float:
    return float(f"{rate:.2g}")
