"""The command `netstack-bench channels`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import click
from rich.console import Console

from netstack.base.units import format_latency, three_digits
from netstack.cli.values import COUNT, SECONDS

from .. import console
from ..experiment import with_facts
from ..flags import flag_of, flags, json_flag
from ..labels import buffers_of
from ..places.conversation import MeasurementFailed, OnProgress
from ..places.local.runner import PhaseLimits, Summaries, run_pair
from .spec import MOST_CHANNELS, ChannelsSpec

_DEFAULT: Final = ChannelsSpec()


@click.command(short_help="Cost of idle logical channels: time to open, memory, CPU.")
@flags(
    flag_of(_DEFAULT, "--channels", COUNT, f"Logical channels on the one connection, {MOST_CHANNELS} at most."),
    flag_of(_DEFAULT, "--idle-seconds", SECONDS, "Time for which they are idle."),
    json_flag,
)
def channels(channels: int, idle_seconds: float, as_json: bool) -> int:
    """Opens many logical channels on one connection, keeps them idle, then sends a record through each.

    Exit code 1 if a record did not arrive.
    """
    spec = ChannelsSpec(channels=channels, idle_seconds=idle_seconds)
    with console.RunBar(PASSES, expected_s(spec), console.err()) as progress:
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


PASSES: Final = 2

_WORKER: Final = "netstack_bench.channels.worker"
_OPEN_S: Final = 1.0
_TRACED_IDLE_S: Final = 0.1
_STALLED_S: Final = 60.0  # opening the maximum of channels takes several seconds while memory is traced


def expected_s(spec: ChannelsSpec) -> float:
    """Expected length of both passes."""
    return PASSES * 2 * _OPEN_S + spec.idle_seconds


def measure(
    spec: ChannelsSpec,
    *,
    on_progress: OnProgress | None = None,
    deadlines: PhaseLimits | None = None,
) -> dict[str, Any]:
    """Runs both passes and returns the document of the command (`bench/netstack_bench/METHOD.md` describes each key).

    Memory is traced in a pass of its own, because that slows everything else down.

    Raises:
        MeasurementFailed: a worker died, sent nothing or stalled, or not all channels were open.
        NetstackError: a worker reported an error.
    """
    patience = deadlines or PhaseLimits(stalled_s=_STALLED_S + spec.idle_seconds)

    def run(spec: ChannelsSpec, *, traced: bool) -> Summaries:
        settings = {"spec": spec.as_dict(), "traced": traced}
        name = f"{spec.channels} channels"
        expected = _OPEN_S + spec.idle_seconds
        return run_pair(_WORKER, name, settings, deadlines=patience, expected_s=expected, on_progress=on_progress)

    timed = run(spec, traced=False)
    traced = run(dataclasses.replace(spec, idle_seconds=_TRACED_IDLE_S), traced=True)
    return document(spec, timed, traced)


def document(spec: ChannelsSpec, timed: Summaries, traced: Summaries) -> dict[str, Any]:
    """The document, from the summaries of both passes; raises MeasurementFailed if not all channels were open."""
    for passed in (timed, traced):
        connections, channels = passed.producer["connections"], passed.producer["open_channels"]
        if (connections, channels) != (1, spec.channels):
            raise MeasurementFailed(
                f"{spec.channels} channels should be open on one connection, but there were {channels} on {connections}"
            )
    problems = [f"delivery: {text}" for passed in (timed, traced) for text in passed.consumer["problems"]]
    figures = {
        "channels": spec.channels,
        "open_s": timed.consumer["open_s"],
        "bytes_per_idle_channel": {
            "producer": traced.producer["grown_bytes"] / spec.channels,
            "consumer": traced.consumer["grown_bytes"] / spec.channels,
        },
        "idle_cpu_ms_per_s": {
            "producer": timed.producer["idle_cpu_ms_per_s"],
            "consumer": timed.consumer["idle_cpu_ms_per_s"],
        },
        "delivered": not problems,
        "connections": 1,
        "warnings": [*problems, *timed.remarks, *traced.remarks],
    }
    return with_facts(spec, figures)
