"""The command `netstack-bench checkpoints`.

Takes: flags. Gives: a table (or one JSON document) on standard output, `checkpoints.html` and `checkpoints.json` in the
output folder, an exit code.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import click
from rich.markup import escape

from netstack.cli.network_flags import buffer_flags
from netstack.cli.values import COUNT, LENGTH, Parsed, listed, parse_number

from .. import console
from ..flags import checkpoint_flags, json_flag, record_bytes_flag
from ..host import host_facts, version
from ..result_folder import ResultFolder, output_flag
from ..stopping import stopped_by
from .measure import expected_s, jobs, measure
from .page import build_page
from .spec import MODES, CheckpointsSpec, Mode
from .text import print_result

_DEFAULT: Final = CheckpointsSpec()
_NUMBERS: Final = Parsed("numbers", listed(parse_number))
_WORDS: Final = Parsed("modes", listed(str))


@click.command(short_help="Aligned, unaligned and timed checkpoints under backpressure, side by side.")
@click.option(
    "--seconds",
    type=LENGTH,
    default=_DEFAULT.seconds,
    show_default=True,
    help="How long checkpoints are taken in each mode at each pressure; as long again without.",
)
@checkpoint_flags(_DEFAULT.interval_s, _DEFAULT.aligned_timeout_s)
@click.option("--modes", type=_WORDS, default=",".join(MODES), show_default=True, help="What to compare.")
@click.option(
    "--pressure",
    "pressures",
    type=_NUMBERS,
    default=",".join(f"{pressure:g}" for pressure in _DEFAULT.pressures),
    show_default=True,
    help="How much the sink is held back, from 0: it takes (1 - pressure) of what it takes when it is not.",
)
@click.option(
    "--channels",
    type=COUNT,
    default=_DEFAULT.channels,
    show_default=True,
    help="Source subtasks, each with a channel to both sinks.",
)
@record_bytes_flag(_DEFAULT.record_bytes)
@click.option("--keys", type=COUNT, default=_DEFAULT.keys, show_default=True, help="Keys the sink has state of.")
@buffer_flags(
    exclusive_buffers=_DEFAULT.exclusive_buffers,
    floating_buffers=_DEFAULT.floating_buffers,
    segment_size_bytes=_DEFAULT.segment_size_bytes,
)
@output_flag("checkpoints")
@json_flag
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
        found, stopped = measure(spec, on_progress=progress)
    result = {**found, "settings": spec.as_dict(), "host": host_facts(), "version": version()}
    page = folder.write(result, partial(build_page, spec, result), app.arguments)
    if as_json:
        console.print_json(result)
    else:
        standard = console.out()
        print_result(spec, found["modes"], standard)
        standard.print(f"\npicture: {escape(str(page))}", soft_wrap=True)
    console.print_warnings(result, errors)
    if stopped:
        errors.print(f"stopped by {stopped_by()}: only what was measured before is told")
    none = any(not each["checkpoints"] for points in found["modes"].values() for each in points)
    return 1 if stopped or none else 0
