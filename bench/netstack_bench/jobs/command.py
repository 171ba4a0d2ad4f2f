"""The command `netstack-bench jobs`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import click
import trio
from rich.console import Console

from netstack.base.text.limited_log import quieter
from netstack.base.units import counted, format_count, format_latency, three_digits
from netstack.cli.values import COUNT, COUNTS

from .. import console
from ..flags import flag, flag_of, flags, json_flag
from .spec import JobsSpec

_DEFAULT: Final = JobsSpec()
_WAYS: Final = (
    ("one_process", "the functions in a loop, without netstack"),
    ("chained", "chained: one task"),
    ("unchained", "unchained, in one TaskManager"),
    ("unchained_tcp", "unchained, each edge between two TaskManagers"),
)


@click.command(short_help="Jobs on real processes: time to start, time to recover, throughput of a chain.")
@flags(
    flag_of(_DEFAULT, "--tasks", COUNTS, "Numbers of tasks of the timed jobs; even."),
    flag("--all-to-all", COUNTS, "Parallelisms of all-to-all jobs; 1000 is a million channels."),
    flag_of(_DEFAULT, "--taskmanagers", COUNT, "Number of TaskManagers."),
    flag_of(_DEFAULT, "--kills", COUNT, "Number of TaskManager kills; 0 leaves recovery out."),
    flag_of(_DEFAULT, "--records", COUNT, "Records through the chain."),
    flag_of(_DEFAULT, "--operators", COUNT, "Operators of the chain, between source and sink."),
    flag_of(_DEFAULT, "--rounds", COUNT, "Repeats of each variant of the chain; 0 leaves it out."),
    json_flag,
)
def jobs(as_json: bool, **settings: Any) -> int:
    """Starts jobs on TaskManagers that are processes of this machine, and measures three things.

    Time from the submission of a job until all of its tasks run, for several sizes. Time from kill -9 of a TaskManager
    until its region runs elsewhere. Records per second through a chain of operators: in one task, in one task each,
    between two TaskManagers, and the same functions in a loop.

    Exit code 1 if a record was lost, or a failure restarted an unrelated region.
    """
    from .starts import measure

    settings["all_to_all"] = settings["all_to_all"] or ()
    spec = JobsSpec(**settings)
    # The JobManager logs a warning for every kill.
    with console.err().status("starting") as status, quieter("netstack.jobmanager", logging.ERROR):
        result = trio.run(measure, spec, status.update)
    return console.finish(result, as_json, print_jobs)


def print_jobs(result: Mapping[str, Any], out: Console) -> None:
    """Prints the result as tables."""
    if result["deploy"]:
        waits = "until all run", "times the line above", "CPU time", "until all are cancelled"
        table = console.table((), ("tasks", *waits))
        for row in result["deploy"]:
            growth = "" if row["growth"] is None else three_digits(row["growth"])
            cpu, cancel = _seconds(row["cpu_s"]), _seconds(row["cancel_s"])
            table.add_row(f"{row['tasks']:,}", _seconds(row["running_s"]), growth, cpu, cancel)
        out.print(table)
        out.print()
    if result["all_to_all"]:
        figures = "until all run", "CPU time", "memory", "then a record through each"
        table = console.table((), ("all to all", "channels", *figures))
        for row in result["all_to_all"]:
            table.add_row(
                f"{row['parallelism']:,} x {row['parallelism']:,}",
                f"{row['channels']:,}",
                _seconds(row["running_s"]),
                _seconds(row["cpu_s"]),
                f"{row['memory_mib']:,.0f} MiB",
                _seconds(row["records_s"]),
            )
        out.print(table)
        out.print()
    recover = result["recover"]
    if recover is not None:
        recovery_ms = recover["recovery_ms"]
        out.print(
            f"kill -9 of a TaskManager, {counted(recover['kills'], 'time')}: its region recovered after"
            f" {_seconds(recovery_ms['p50'] / 1e3)}, {_seconds(recovery_ms['max'] / 1e3)} at most",
            soft_wrap=True,
        )
        out.print()
    chain = result["chain"]
    if chain is None:
        return
    table = console.table((f"{chain['operators']} operators",), ("records/s", "of the loop"))
    for way, name in _WAYS:
        part = chain["of_one_process"].get(way)
        table.add_row(name, format_count(round(chain["records_per_s"][way])), "" if part is None else f"{part:.1%}")
    out.print(table)


def _seconds(seconds: float) -> str:
    return format_latency(seconds * 1e6)
