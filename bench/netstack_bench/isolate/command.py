"""The command `netstack-bench isolate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from netstack.base.errors import ConfigError
from netstack.base.units import parse_amount
from netstack.cli.stopping import stopped_by
from netstack.cli.values import RATE, SECONDS

from .. import console
from ..experiment import ResultFolder, output_flag
from ..flags import flag, flag_of, flags, gate_flags, json_flag, record_bytes_flag
from ..stopping import kept_at_interrupt
from .measure import expected_s, measure
from .page import build_page
from .spec import IsolateSpec
from .text import MODES, print_modes

_CREDIT: Final = {"credit_on": True, "credit_off": False}
_CHOSEN: Final = {"on": ("credit_on",), "off": ("credit_off",), "both": ("credit_on", "credit_off")}
_START_S: Final = 1.0
_DEFAULT: Final = IsolateSpec()


@click.command(short_help="A consumer stalls: does its sibling on the same connection continue?")
@flags(
    flag_of(_DEFAULT, "--seconds", SECONDS, "Length of each phase."),
    flag("--rate", None, "Rate of each producer in records per second; none is full speed.", default="5000"),
    record_bytes_flag(_DEFAULT.record_bytes),
    flag_of(_DEFAULT, "--slow-rate", RATE, "Rate of B.4 in the middle phase in records per second; 0 stalls it."),
    flag(
        "--credit",
        tuple(sorted(_CHOSEN)),
        "Credit-based flow control: on, off, or both one after the other.",
        default="both",
    ),
    gate_flags(_DEFAULT),
    flag_of(_DEFAULT, "--transport", ("tcp", "unix", "shm"), "TCP on loopback, a Unix socket, or shared memory."),
    output_flag("isolate"),
    json_flag,
)
@click.pass_obj
def isolate(app: Any, /, rate: str, credit: str, output: Path | None, as_json: bool, **settings: Any) -> int:
    """Stalls one of two consumers that share a connection, and measures whether the other continues.

    In one process A.1 writes for B.3 and A.2 for B.4, which are in another process. First both consumers read, then B.4
    stalls, then both read again. With credit-based flow control B.3 is not affected; without it, B.3 stalls
    with B.4, because the connection is not read any more.

    Exit code 1 if a record did not arrive completely, in order and exactly once.
    """
    spec = IsolateSpec(rate_per_s=_rate(rate), **settings)
    folder = ResultFolder.open("isolate", output)
    errors = console.err()
    documents, stopped = _measure(spec, _CHOSEN[credit])
    show = None if as_json else partial(print_modes, spec, documents)
    is_written = folder.finish(spec, documents, build_page, app.arguments, show)
    for mode in documents.values():
        console.print_warnings(mode, errors)
    lost = [MODES[key] for key, mode in documents.items() if not mode["delivered"]]
    for name in lost:
        errors.print(f"[red]not delivered with {name}:[/] count, order or checksum differ between the two ends")
    if stopped:
        errors.print(f"stopped by {stopped_by()} after {' and '.join(MODES[key] for key in documents)}")
    return 1 if lost or not is_written else 0


def _rate(text: str) -> float | None:
    if text.strip().lower() == "none":
        return None
    rate = float(parse_amount(text, what="--rate"))
    if not rate:
        raise ConfigError(f"--rate {text!r}: give records a second, or none")
    return rate


def _measure(spec: IsolateSpec, keys: tuple[str, ...]) -> tuple[dict[str, dict[str, Any]], bool]:
    documents: dict[str, dict[str, Any]] = {}
    expected = len(keys) * (expected_s(spec) + _START_S)
    with (
        console.RunBar(len(keys), expected, console.err()) as progress,
        kept_at_interrupt(lambda: bool(documents)),
    ):
        for key in keys:
            documents[key] = measure(spec, credit=_CREDIT[key], on_progress=progress)
    return documents, len(documents) < len(keys)
