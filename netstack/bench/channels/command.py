"""The command `netstack-bench channels`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click
from rich.console import Console

from netstack.cli.values import COUNT, LENGTH
from netstack.units import format_latency, three_digits

from .. import console
from ..flags import flag_of, flags, json_flag
from ..words import buffers_of
from .measure import PASSES, expected_s, measure
from .spec import MOST_CHANNELS, ChannelsSpec

_DEFAULT: Final = ChannelsSpec()


@click.command(short_help="Cost of idle logical channels: time to open, memory, CPU.")
@flags(
    flag_of(_DEFAULT, "--channels", COUNT, f"Logical channels on the one connection, {MOST_CHANNELS} at most."),
    flag_of(_DEFAULT, "--idle-seconds", LENGTH, "Time for which they are idle."),
    json_flag,
)
def channels(channels: int, idle_seconds: float, as_json: bool) -> int:
    """Opens many logical channels on one connection, keeps them idle, then sends a record through each.

    Exit code 1 if a record did not arrive.
    """
    spec = ChannelsSpec(channels=channels, idle_seconds=idle_seconds)
    with console.RunProgress(PASSES, expected_s(spec), console.err()) as progress:
        result = measure(spec, on_progress=progress)
    return console.finish(result, as_json, print_channels)


def print_channels(result: Mapping[str, Any], out: Console) -> None:
    """Prints the result as a table."""
    spec = ChannelsSpec.from_dict(result["settings"])
    memory, idle, open_s = result["bytes_per_idle_channel"], result["idle_cpu_ms_per_s"], result["open_s"]
    idle_s = three_digits(spec.idle_seconds)
    out.print(f"{spec.channels:,} channels on one connection, {buffers_of(spec)}, idle for {idle_s} s", soft_wrap=True)
    table = console.table(("",), sides := ("producer", "consumer"))
    table.add_row("bytes per idle channel", *(f"{memory[side]:,.0f}" for side in sides))
    table.add_row("CPU while idle, ms/s", *(three_digits(idle[side]) for side in sides))
    out.print(table)
    each = format_latency(open_s * 1e6 / spec.channels)
    out.print(f"all open after {three_digits(open_s)} s, {each} per channel", soft_wrap=True)
    alive = "yes" if result["delivered"] else "[red]NO[/]"
    out.print(f"a record through each: {alive}")
