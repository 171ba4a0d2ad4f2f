"""The command `netstack-bench isolate`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.markup import escape

from netstack.cli.values import LENGTH, RATE
from netstack.errors import ConfigError
from netstack.units import parse_amount

from .. import console
from ..flags import flag, flag_of, flags, gate_flags, json_flag, record_bytes_flag
from ..host import host_facts, version
from ..result_folder import ResultFolder, output_flag
from ..stopping import stopped_by
from ..sweep import unwrapped_interrupt
from .measure import expected_s, measure
from .page import build_page
from .spec import IsolateSpec
from .text import MODES, print_mode, settings_line

_CREDIT: Final = {"credit_on": True, "credit_off": False}
_CHOSEN: Final = {"on": ("credit_on",), "off": ("credit_off",), "both": ("credit_on", "credit_off")}
_START_S: Final = 1.0
_DEFAULT: Final = IsolateSpec()

Measure = Callable[..., dict[str, Any]]


@click.command(short_help="A consumer stalls: does its sibling on the same connection go on?")
@flags(
    flag_of(_DEFAULT, "--seconds", LENGTH, "Length of each phase."),
    flag("--rate", None, "Records a second of each producer; none is as fast as it goes.", default="5000"),
    record_bytes_flag(_DEFAULT.record_bytes),
    flag_of(
        _DEFAULT,
        "--slow-rate",
        RATE,
        "Records a second B.4 takes in the middle phase; 0 is none at all.",
        "slow_rate_per_s",
    ),
    flag(
        "--credit",
        tuple(sorted(_CHOSEN)),
        "With credit-based flow control, without, or one after the other.",
        default="both",
    ),
    gate_flags(_DEFAULT),
    flag_of(_DEFAULT, "--transport", ("tcp", "unix", "shm"), "TCP on loopback, a Unix socket, or shared memory."),
    output_flag("isolate"),
    json_flag,
)
@click.pass_obj
def isolate(app: Any, /, rate: str, credit: str, output: Path | None, as_json: bool, **settings: Any) -> int:
    """Two producers in one process, two consumers in another, one connection; one consumer stalls for a while.

    A.1 writes for B.3, A.2 for B.4. Three phases: both consumers read, B.4 stalls, both read again. With credit B.3
    does not notice; without credit it stands still with B.4, because nobody reads the connection any more.

    Exit code 1 when anything that was sent did not arrive whole, in order and once.
    """
    spec = IsolateSpec(rate_per_s=_rate(rate), **settings)
    folder = ResultFolder.open("isolate", output)
    errors = console.err()
    documents, stopped = _measure(spec, _CHOSEN[credit], measure)
    result = {**documents, "settings": spec.as_dict(), "host": host_facts(), "version": version()}
    page = folder.write(result, partial(build_page, spec, result), app.arguments)
    if as_json:
        console.print_json(result)
    else:
        _print(spec, documents, page)
    for mode in documents.values():
        console.print_warnings(mode, errors)
    lost = [MODES[key] for key, mode in documents.items() if not mode["delivered"]]
    for name in lost:
        errors.print(f"[red]not delivered with {name}:[/] count, order or checksum differ between the two ends")
    if stopped:
        errors.print(f"stopped by {stopped_by()} after {' and '.join(MODES[key] for key in documents)}")
    return 1 if lost or stopped else 0


def _rate(text: str) -> float | None:
    if text.strip().lower() == "none":
        return None
    rate = float(parse_amount(text, what="--rate"))
    if not rate:
        raise ConfigError(f"--rate {text!r}: give records a second, or none")
    return rate


def _measure(spec: IsolateSpec, keys: tuple[str, ...], run: Measure) -> tuple[dict[str, dict[str, Any]], bool]:
    documents: dict[str, dict[str, Any]] = {}
    with console.RunProgress(len(keys), len(keys) * (expected_s(spec) + _START_S), console.err()) as progress:
        try:
            with unwrapped_interrupt():
                for key in keys:
                    documents[key] = run(spec, credit=_CREDIT[key], on_progress=progress)
        except KeyboardInterrupt:
            if not documents:
                raise
    return documents, len(documents) < len(keys)


def _print(spec: IsolateSpec, found: dict[str, dict[str, Any]], page: Path) -> None:
    standard = console.out()
    standard.print(escape(settings_line(spec)), soft_wrap=True)
    for key, mode in found.items():
        print_mode(MODES[key], spec, mode, standard)
    standard.print(f"\npicture: {escape(str(page))}", soft_wrap=True)
