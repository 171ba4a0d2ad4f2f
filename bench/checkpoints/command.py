"""The command `netstack-bench checkpoints`.

Takes: flags. Gives: a table (or one JSON document) on standard output, `checkpoints.html` and `checkpoints.json` in the
output folder, an exit code.
"""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

import click
from rich.markup import escape

from netstack.cli.network_flags import buffer_flags
from netstack.cli.values import COUNT, LENGTH, NUMBER, SIZE, Parsed, listed, parse_number
from netstack.errors import ConfigError
from netstack.units import format_duration, format_size

from .. import console
from ..flags import json_flag
from ..host import host_facts, version
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
    type=NUMBER,
    default=_DEFAULT.seconds,
    show_default=True,
    help="How long checkpoints are taken in each mode at each pressure; as long again without.",
)
@click.option(
    "--interval",
    "interval_s",
    type=LENGTH,
    default=format_duration(_DEFAULT.interval_s),
    show_default=True,
    help="From one barrier to the next.",
)
@click.option("--modes", type=_WORDS, default=",".join(MODES), show_default=True, help="What to compare.")
@click.option(
    "--aligned-timeout",
    "aligned_timeout_s",
    type=LENGTH,
    default=format_duration(_DEFAULT.aligned_timeout_s),
    show_default=True,
    help="timed: how old a checkpoint may become before it turns unaligned.",
)
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
@click.option(
    "--record-bytes",
    type=SIZE,
    default=format_size(_DEFAULT.record_bytes),
    show_default=True,
    help="Payload of a record.",
)
@click.option("--keys", type=COUNT, default=_DEFAULT.keys, show_default=True, help="Keys the sink has state of.")
@buffer_flags(
    exclusive_buffers=_DEFAULT.exclusive_buffers,
    floating_buffers=_DEFAULT.floating_buffers,
    segment_size_bytes=_DEFAULT.segment_size_bytes,
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of checkpoints.html and checkpoints.json; results/checkpoints-<date> if not given.",
)
@json_flag
@click.pass_obj
def checkpoints(app: Any, /, modes: tuple[str, ...], output: Path | None, as_json: bool, **settings: Any) -> int:
    """Sources in one process, a keyed exchange over TCP, a slow sink with state in another; checkpoints in each mode.

    Aligned barriers wait behind the records that are queued in front of the sink, so they take the longer the more it
    is held back. Unaligned ones overtake the records, which become part of the checkpoint.

    Exit code 1 when a mode had no complete checkpoint at some pressure.
    """
    spec = CheckpointsSpec(modes=cast("tuple[Mode, ...]", modes), **settings)
    now = datetime.now()
    folder = output or Path("results") / f"checkpoints-{now:%Y-%m-%d-%H%M%S}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {folder}: {error.strerror}; name a folder that can be written") from error
    errors = console.err()
    with console.RunProgress(len(jobs(spec)), expected_s(spec), errors) as progress:
        found, stopped = measure(spec, on_progress=progress)
    result = {**found, "settings": spec.as_dict(), "host": host_facts(), "version": version()}
    page = folder / "checkpoints.html"
    command = shlex.join(("netstack-bench", *app.arguments))
    page.write_text(build_page(spec, result, command=command, made=f"{now:%Y-%m-%d %H:%M}"), encoding="utf-8")
    (folder / "checkpoints.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
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
