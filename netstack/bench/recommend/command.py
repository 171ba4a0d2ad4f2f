"""The command `netstack-bench recommend`: one paragraph and lines to paste, or one JSON document."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click
from rich.markup import escape

from netstack.cli.network_flags import acts_as_flag
from netstack.cli.values import COUNT, LENGTH, LINK_RATE, NETWORK, RATE, SECONDS, SIZE
from netstack.errors import ConfigError
from netstack.units import counted

from .. import console
from ..flags import flag, hosts_flags, json_flag, network_flag, record_bytes_flag
from ..grid import DEFAULT_LATENCY_RATE_PER_S
from ..mesh.spec import MeshSpec
from ..report.answers import stored_answers
from ..report.points import Analysis
from ..runners import Runners
from ..spec import Emit, RunSpec, constants_of, refuse_below
from ..stopping import kept_at_interrupt
from ..store import StoreError, only_results, read_rows
from ..words import warnings_of
from .answer import Answer, Goal
from .lines import lines, memory_bytes, settings_of, spec_of
from .measure import Measurer
from .search import LADDER_S, Search


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
@record_bytes_flag(8)
@flag("--channels", COUNT, "Channels from a source to a sink.", default=1)
@flag("--parallelism", COUNT, "Sources that a sink reads from.", default=1)
@flag("--emit", get_args(Emit), "How the job writes its records.", default="record")
@flag("--rate", RATE, "Rate of the latency runs in records per second, open loop.", default=DEFAULT_LATENCY_RATE_PER_S)
@flag("--segment-size", SIZE, "Size of a network buffer.", default="32KiB")
@acts_as_flag
@flag("--seconds", SECONDS, "Length of each run.", default=0.7)
@flag("--budget", LENGTH, "Time after which no run begins.", default="3min")
@hosts_flags
@json_flag
@click.pass_context
def recommend(
    context: click.Context,
    /,
    results: Path | None,
    p99_s: float | None,
    bytes_per_s: int | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Recommends a buffer timeout: with --p99 the one with the most throughput, with --throughput the shortest.

    Without a goal it is the shortest that keeps 90 % of the throughput at 100 ms. Each point is measured three times or
    more, until the ranges are small enough or the budget ends. With RESULTS (a sweep's folder) nothing is measured.

    Exit code 1 if no timeout reaches the goal, or the data do not decide.
    """
    if p99_s is not None and bytes_per_s is not None:
        raise ConfigError("--p99 with --throughput: one of them is the goal, the other what it costs; leave one out")
    goal = Goal.of(p99_s, None if bytes_per_s is None else bytes_per_s / 1e6)
    is_stopped = False
    if results is not None:
        answer = _stored(context, results, goal)
    else:
        answer, is_stopped = _measured(context.obj.runners, goal, settings)
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
        if parameter.name not in ("results", "p99_s", "bytes_per_s", "as_json")
        and context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise ConfigError(f"{', '.join(given)} with {results}: a stored sweep has its own settings; leave them out")
    try:
        with only_results(results):
            analysis = Analysis(read_rows(results))
            answers = [
                _document(each, line.words, spec_of(analysis.runs("throughput", line, each.point.timeout_s)[0]), ())
                for line, each in stored_answers(analysis, goal).items()
            ]
    except StoreError as error:
        raise ConfigError(str(error)) from error
    if not answers:
        raise ConfigError(f"{results} has no throughput at two buffer timeouts, and the latencies that the goal needs")
    return answers


def _measured(runners: Runners, goal: Goal, settings: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    spec, measurer, ends = _measurer(runners, settings)
    has_time = lambda: time.monotonic() < ends  # noqa: E731
    search = Search(measurer, goal, has_time=has_time)
    with kept_at_interrupt(lambda: search.answer() is not None) as stopped:
        measurer.size_buffers(has_time)
        search.run()
    if stopped.by:
        console.err().print(f"stopped by {stopped.by}: the answer rests on the runs until then", soft_wrap=True)
    result = search.answer()
    if result is None:
        raise ConfigError("--budget: there is no time for one repeat; give a longer one")
    words = f"{spec.rows}, {counted(spec.channels, 'channel')}"
    return [_document(result, words, measurer.spec, warnings_of(measurer.rows))], stopped.by is not None


def _measurer(runners: Runners, settings: dict[str, Any]) -> tuple[RunSpec, Measurer, float]:
    errors = console.err()
    mesh, run = runners.over(settings)
    network, parallelism = settings.pop("network"), settings.pop("parallelism")
    rate_per_s, budget_s = settings.pop("rate_per_s"), settings.pop("budget_s")
    refuse_below(("--parallelism", parallelism, 1))
    settings["acts_as"] = settings["acts_as"] or "netstack"
    settings |= constants_of(settings["acts_as"])
    link, round_trip_s = network or (None, 0.0)
    if mesh is None:
        settings["channels"] *= parallelism  # of one gate
        spec = RunSpec(**settings, round_trip_s=round_trip_s, link_bytes_per_s=link)
    else:
        if network is not None or parallelism > 1:
            raise ConfigError("--network and --parallelism with --hosts: these have them; write HOST:PORT=PARALLELISM")
        spec = MeshSpec(**settings, **mesh)
    if round_trip_s:
        errors.print("this machine imitates the line; its round trip may be up to 2 ms longer than requested")
    began = time.monotonic()

    def print_step(text: str) -> None:
        left_s = max(0.0, began + budget_s - time.monotonic())
        errors.print(f"{escape(text)} ({console.clock(left_s)} left)", soft_wrap=True)

    return spec, Measurer(run, spec, LADDER_S[-1], rate_per_s, print_step), began + budget_s


def _document(answer: Answer, words: str, spec: RunSpec, warnings: Sequence[str]) -> dict[str, Any]:
    """Plain values; ranges are [low, high] with 95 % confidence, None with fewer than three repeats."""
    point = answer.point
    memory = memory_bytes(spec)
    ranges = {
        name: None if each is None else asdict(each)
        for name, each in (("kept", point.kept), ("mb_per_s", point.rate), ("p99_us", point.p99))
    }
    return {
        "workload": words,
        "buffers": settings_of(spec),
        "buffer_timeout_s": point.timeout_s,
        "is_reached": answer.is_reached,
        "is_decided": answer.is_decided,
        "doubts": list(answer.doubts),
        "paragraph": answer.paragraph(memory),
        **ranges,
        "repeats": len(point.pairs),
        "bottleneck": point.bottleneck or None,
        "memory_bytes": memory,
        "lines": lines(spec, point.timeout_s),
        "warnings": warnings,
    }


def _print(document: dict[str, Any], *, with_lines: bool) -> None:
    standard = console.out()
    standard.print(f"[bold]{escape(document['workload'])}[/], {document['buffers']}", soft_wrap=True)
    standard.print(f"{escape(document['paragraph'])}\n", soft_wrap=True)
    for where, text in document["lines"].items() if with_lines else ():
        standard.print(f"[dim]# {escape(where)}[/]\n{escape(text)}\n", soft_wrap=True)
    console.print_warnings(document, console.err())
