"""The command `netstack-bench recover`.

Takes: flags. Gives: a summary, or one JSON document, on standard output; an exit code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from netstack.cli.values import COUNT, NUMBER
from netstack.units import format_latency, three_digits

from .. import console
from ..flags import checkpoint_flags, json_flag
from ..stopping import stopped_by
from .measure import document, expected_s, measure
from .spec import MODES, RecoverSpec

_DEFAULT: Final = RecoverSpec()


@click.command(short_help="Processes of a job are killed again and again: is every record counted once?")
@click.option("--runs", type=COUNT, default=_DEFAULT.runs, show_default=True, help="Jobs run to their end.")
@click.option("--kills", type=COUNT, default=_DEFAULT.kills, show_default=True, help="SIGKILLs planned for each run.")
@click.option(
    "--seed",
    type=COUNT,
    default=_DEFAULT.seed,
    show_default=True,
    help="Of records, kills and changes of parallelism.",
)
@click.option("--records", type=COUNT, default=_DEFAULT.records, show_default=True, help="Of all sources, in each run.")
@click.option("--mode", type=click.Choice(MODES), default=_DEFAULT.mode, show_default=True, help="Of the checkpoints.")
@checkpoint_flags(_DEFAULT.interval_s, _DEFAULT.aligned_timeout_s)
@click.option("--change-parallelism", is_flag=True, help="Every restart has another number of sinks.")
@click.option("--sources", type=COUNT, default=_DEFAULT.sources, show_default=True, help="Processes that make records.")
@click.option("--sinks", type=COUNT, default=_DEFAULT.sinks, show_default=True, help="Processes that count them.")
@click.option("--keys", type=COUNT, default=_DEFAULT.keys, show_default=True, help="How many keys there are.")
@click.option(
    "--rate",
    "rate_per_s",
    type=NUMBER,
    default=_DEFAULT.rate_per_s,
    show_default=True,
    help="Records a second of all sinks together; sources are faster, so records wait everywhere.",
)
@json_flag
def recover(as_json: bool, **settings: Any) -> int:
    """Sources, sinks that count by key, and the master of their job; one of the processes is killed, again and again.

    It is started again, the job restarts from the newest complete checkpoint, and the sources replay what came after.
    In the end the counts must be those of an undisturbed run.

    Exit code 1 when a record was lost, or counted more than once.
    """
    spec = RecoverSpec(**settings)
    errors = console.err()
    with console.RunProgress(spec.runs, expected_s(spec), errors) as progress:
        runs, stopped = measure(spec, on_progress=progress)
    result = document(spec, runs)
    if as_json:
        console.print_json(result)
    else:
        print_result(result, console.out())
    console.print_warnings(result, errors)
    if stopped:
        errors.print(f"stopped by {stopped_by()} after {len(runs)} of {spec.runs} runs")
    return 1 if stopped or not result["delivered"] else 0


def print_result(result: Mapping[str, Any], console: Console) -> None:
    """The figures as a table."""
    restored = result["restored_from"]
    by_moment = ", ".join(f"{count} {moment}" for moment, count in sorted(result["kills_by_moment"].items()))
    by_process = ", ".join(f"{count} {name}" for name, count in sorted(result["kills_by_process"].items()))
    recovered, state = result["time_to_recover_ms"], result["channel_state_bytes"]
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, told in (
        ("runs", f"{result['runs']} of {result['settings']['records']:,} records, {result['settings']['mode']}"),
        ("kills", f"{result['kills']}" + (f": {by_moment}" if by_moment else "")),
        ("killed", by_process),
        ("with a checkpoint half written", f"{result['kills_with_half_written_checkpoint']}"),
        ("checkpoints", f"{result['checkpoints_completed']} complete, {result['checkpoints_aborted']} aborted"),
        ("data in flight in them", "" if state is None else f"{_size(state['p50'])}, {_size(state['max'])} at most"),
        ("restarts", f"{len(restored)}, {sum(each is None for each in restored)} of them from the beginning"),
        (
            "time to recover",
            "" if recovered is None else f"{_told(recovered['p50'])}, {_told(recovered['max'])} at most",
        ),
        ("records lost", _count(result["lost"])),
        ("records repeated", _count(result["repeated"])),
        ("records out of order", _count(result["disordered"])),
    ):
        if told:
            table.add_row(name, told)
    console.print(table)


def _told(milliseconds: float) -> str:
    return format_latency(milliseconds * 1e3)


def _size(size_bytes: float) -> str:
    return f"{three_digits(size_bytes / 1000)} kB"


def _count(records: int) -> str:
    return f"[red]{records:,}[/]" if records else "0"
