"""The command `netstack-bench recommend`: one paragraph and lines to paste, or one JSON document."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
from rich.markup import escape

from netstack.base.errors import ConfigError
from netstack.base.units import counted, format_size
from netstack.cli.network_flags import acts_as_flag
from netstack.cli.values import COUNT, LENGTH, LINK_RATE, NETWORK, RATE, SECONDS, SIZE

from .. import console
from ..decision.answer import Answer
from ..decision.experiment import Budget, Experiment
from ..decision.goal import Goal
from ..flags import flag, hosts_flags, json_flag, line_flags, network_flag, record_bytes_flag
from ..grid import DEFAULT_LATENCY_RATE_PER_S
from ..labels import warnings_of
from ..places.placements import LocalPlace, processes_of
from ..report.answers import EVERY_WORKLOAD, Decision, answer_dict, decide
from ..report.highest_rate import HighestRate
from ..report.points import Analysis, Line
from ..runners import Runners
from ..spec import Emit, RunSpec, constants_of, refuse_below
from ..stopping import kept_at_interrupt
from ..store import StoreError, only_results, read_rows
from .lines import lines, memory_bytes, settings_of, spec_of
from .measure import LADDER_S, Measurer

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
