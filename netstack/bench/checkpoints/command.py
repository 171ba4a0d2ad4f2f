"""The command `netstack-bench checkpoints`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import click
from rich.markup import escape

from netstack.cli.values import COUNT, LENGTH, Parsed, listed, parse_number

from .. import console
from ..flags import flag, flag_of, flags, gate_flags, json_flag, record_bytes_flag
from ..host import host_facts, version
from ..result_folder import ResultFolder, output_flag
from ..stopping import stopped_by
from .measure import expected_s, jobs, measure
from .page import build_page
from .spec import MODES, CheckpointsSpec, Mode
from .text import print_result

_DEFAULT: Final = CheckpointsSpec()


@click.command(short_help="Aligned, unaligned and timed checkpoints under backpressure, side by side.")
@flags(
    flag_of(
        _DEFAULT,
        "--seconds",
        LENGTH,
        "How long checkpoints are taken in each mode at each pressure; as long again without.",
    ),
    flag_of(_DEFAULT, "--interval", LENGTH, "From one checkpoint to the next.", "interval_s"),
    flag_of(
        _DEFAULT,
        "--aligned-timeout",
        LENGTH,
        "timed: how old a checkpoint may become before it turns unaligned.",
        "aligned_timeout_s",
    ),
    flag("--modes", Parsed("modes", listed(str)), "What to compare.", default=MODES),
    flag(
        "--pressure",
        Parsed("numbers", listed(parse_number)),
        "How much the sink is held back, from 0: it takes (1 - pressure) of what it takes when it is not.",
        "pressures",
        default=tuple(f"{pressure:g}" for pressure in _DEFAULT.pressures),
    ),
    flag_of(_DEFAULT, "--channels", COUNT, "Source subtasks, each with a channel to both sinks."),
    record_bytes_flag(_DEFAULT.record_bytes),
    flag_of(_DEFAULT, "--keys", COUNT, "Keys the sink has state of."),
    gate_flags(_DEFAULT),
    output_flag("checkpoints"),
    json_flag,
)
@click.pass_obj
def checkpoints(app: Any, /, modes: tuple[str, ...], output: Path | None, as_json: bool, **settings: Any) -> int:
    """Sources in one process, a keyed exchange over TCP, a slow sink with state in another; checkpoints in each mode.

    Aligned barriers wait behind the records that are queued in front of the sink, so they take the longer the more it
    is held back. Unaligned ones overtake the records, which become part of the checkpoint.

    Exit code 1 when a mode had no complete checkpoint at some pressure.
    """
    spec = CheckpointsSpec(modes=cast("tuple[Mode, ...]", modes), **settings)
    folder = ResultFolder.open("checkpoints", output)
    errors = console.err()
    with console.RunProgress(len(jobs(spec)), expected_s(spec), errors) as progress:
        figures, stopped = measure(spec, on_progress=progress)
    result = {**figures, "settings": spec.as_dict(), "host": host_facts(), "version": version()}
    page = folder.write(result, partial(build_page, spec, result), app.arguments)
    if as_json:
        console.print_json(result)
    else:
        standard = console.out()
        print_result(spec, figures["modes"], standard)
        standard.print(f"\npicture: {escape(str(page))}", soft_wrap=True)
    console.print_warnings(result, errors)
    if stopped:
        errors.print(f"stopped by {stopped_by()}: only what was measured before is shown")
    none = any(not each["checkpoints"] for points in figures["modes"].values() for each in points)
    return 1 if stopped or none else 0
