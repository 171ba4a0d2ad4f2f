"""The command `netstack-bench checkpoints`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import click

from netstack.cli.stopping import stopped_by
from netstack.cli.values import COUNT, LENGTH, SECONDS, ParsedList, parse_number

from .. import console
from ..experiment import ResultFolder, output_flag
from ..flags import flag, flag_of, flags, gate_flags, json_flag, record_bytes_flag
from .measure import expected_s, jobs, measure
from .page import build_page
from .spec import MODES, CheckpointsSpec, Mode
from .text import print_result

_DEFAULT: Final = CheckpointsSpec()


@click.command(short_help="Aligned, unaligned and timed checkpoints under backpressure, side by side.")
@flags(
    flag_of(
        _DEFAULT, "--seconds", SECONDS, "Time with checkpoints in each mode at each pressure; the same time without."
    ),
    flag_of(_DEFAULT, "--interval", LENGTH, "Interval between checkpoints."),
    flag_of(_DEFAULT, "--aligned-timeout", LENGTH, "Timed mode: age at which a checkpoint becomes unaligned."),
    flag("--modes", ParsedList("mode,...", str), "Modes to compare.", default=MODES),
    flag(
        "--pressure",
        ParsedList("number,...", parse_number),
        "Backpressure from 0: the sinks take (1 - pressure) of their full rate.",
        "pressures",
        default=tuple(f"{pressure:g}" for pressure in _DEFAULT.pressures),
    ),
    flag_of(_DEFAULT, "--channels", COUNT, "Source subtasks, each with a channel to both sinks."),
    record_bytes_flag(_DEFAULT.record_bytes),
    flag_of(_DEFAULT, "--keys", COUNT, "Number of keys in the state of the sinks."),
    gate_flags(_DEFAULT),
    output_flag("checkpoints"),
    json_flag,
)
@click.pass_obj
def checkpoints(app: Any, /, modes: tuple[str, ...], output: Path | None, as_json: bool, **settings: Any) -> int:
    """Takes checkpoints under backpressure in each mode: sources in one process, slow sinks with state in another.

    Aligned barriers wait behind the records that are queued in front of the sinks, so backpressure delays them.
    Unaligned barriers overtake the records, which become part of the checkpoint.

    Exit code 1 if a mode completed no checkpoint at some pressure.
    """
    spec = CheckpointsSpec(modes=cast("tuple[Mode, ...]", modes), **settings)
    folder = ResultFolder.open("checkpoints", output)
    errors = console.err()
    with console.RunBar(len(jobs(spec)), expected_s(spec), errors) as progress:
        figures, stopped = measure(spec, on_progress=progress)
    show = None if as_json else partial(print_result, spec, figures["modes"])
    is_written = folder.finish(spec, figures, build_page, app.arguments, show)
    console.print_warnings(figures, errors)
    if stopped:
        errors.print(f"stopped by {stopped_by()}: only earlier points are shown")
    none = any(not each["checkpoints"] for points in figures["modes"].values() for each in points)
    return 1 if none or not is_written else 0
