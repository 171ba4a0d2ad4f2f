"""The command `netstack-bench isolate`: both processes, three phases, one document for each mode.

Figures are by consuming subtask; backpressure is that of the producer of its partition. Rates are counted at the
consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from ..places.conversation import MeasurementFailed, OnProgress
from ..places.local.runner import PhaseLimits, Summaries, Summary, run_pair
from ..stopping import kept_at_interrupt
from .page import build_page
from .spec import BIN_TICKS, PHASES, PRODUCERS, SIBLING, STALLED, SUBTASKS, TICK_NS, TICK_S, IsolateSpec, Phase, Subtask
from .text import MODES, print_modes

RATE_KEPT: Final = 0.95
"""A subtask below this part of the requested rate causes a warning, if nothing stalls."""

PAUSE_NS: Final = 100_000_000
"""A process that runs this much later than requested was paused."""

_WORKER: Final = "netstack_bench.isolate.worker"
_DRAIN_S: Final = 0.5


def measure(
    spec: IsolateSpec,
    *,
    credit: bool,
    on_progress: OnProgress | None = None,
    deadlines: PhaseLimits | None = None,
) -> dict[str, Any]:
    """Runs one mode and returns its document (`bench/netstack_bench/METHOD.md` describes each key).

    Raises:
        MeasurementFailed: a worker died, sent nothing or stalled, or the channels did not share one connection.
        NetstackError: a worker reported an error.
    """
    # Without credits no record moves while B.4 stalls.
    patience = deadlines or PhaseLimits(stalled_s=PhaseLimits().stalled_s + spec.seconds)
    summaries = run_pair(
        _WORKER,
        f"netstack with credit {'on' if credit else 'off'}",
        {"spec": spec.as_dict(), "credit": credit},
        deadlines=patience,
        expected_s=expected_s(spec),
        on_progress=on_progress,
    )
    return document(spec, summaries)


def expected_s(spec: IsolateSpec) -> float:
    """Length of one mode from the start of its first phase."""
    return len(PHASES) * spec.seconds + _DRAIN_S


def document(spec: IsolateSpec, summaries: Summaries) -> dict[str, Any]:
    """One mode's document, from both summaries; raises MeasurementFailed if there were several connections."""
    connections = max(summaries.producer["connections"], summaries.consumer["connections"])
    if connections != 1:
        raise MeasurementFailed(
            f"both channels should share one connection, but there were {connections}: isolation was not measured"
        )
    ticks = summaries.consumer["ticks"]
    waits = {subtask: _Waited(spec, summaries.producer, subtask) for subtask in SUBTASKS}
    windows = {phase: spec.window(phase) for phase in PHASES}
    rates = {subtask: {phase: _rate(ticks[subtask], windows[phase]) for phase in PHASES} for subtask in SUBTASKS}
    problems = [
        f"delivery to {subtask}: {problem}"
        for subtask in SUBTASKS
        for problem in summaries.consumer["problems"][subtask]
    ]
    before = rates[SIBLING]["before"]
    return {
        "sibling_kept": rates[SIBLING]["during"] / before if before else None,
        "records_per_s": rates,
        "backpressured_s": {
            subtask: {phase: waits[subtask].seconds(windows[phase]) for phase in PHASES} for subtask in SUBTASKS
        },
        "backpressured_ms_per_s": {
            subtask: {phase: waits[subtask].ms_per_s(windows[phase]) for phase in PHASES} for subtask in SUBTASKS
        },
        "records": summaries.consumer["records"],
        "delivered": not problems,
        "connections": connections,
        "windows_s": {phase: [round(tick * TICK_S, 2) for tick in window] for phase, window in windows.items()},
        "series": {
            "bin_s": BIN_TICKS * TICK_S,
            "records_per_s": {subtask: [_rate(ticks[subtask], each) for each in spec.bins()] for subtask in SUBTASKS},
            "backpressured_ms_per_s": {
                subtask: [waits[subtask].ms_per_s(each) for each in spec.bins()] for subtask in SUBTASKS
            },
        },
        "warnings": [*problems, *_rate_warnings(spec, rates), *_pause_warnings(spec, summaries), *summaries.remarks],
    }


class _Waited:
    def __init__(self, spec: IsolateSpec, producer: Summary, subtask: Subtask) -> None:
        self._at_ns: dict[int, int] = dict(zip(spec.edges(), producer["edges_ns"], strict=True))
        self._total_s: dict[int, float] = dict(zip(spec.edges(), producer["backpressured_s"][subtask], strict=True))

    def seconds(self, ticks: tuple[int, int]) -> float:
        first, end = ticks
        return self._total_s[end] - self._total_s[first]

    def ms_per_s(self, ticks: tuple[int, int]) -> float:
        first, end = ticks
        elapsed_s = (self._at_ns[end] - self._at_ns[first]) / 1e9  # edges may be recorded late
        return min(1000.0, 1000 * self.seconds(ticks) / elapsed_s) if elapsed_s > 0 else 0.0


def _rate(ticks: Sequence[int], stretch: tuple[int, int]) -> float:
    first, end = stretch
    return sum(ticks[first:end]) / ((end - first) * TICK_S)


def _rate_warnings(spec: IsolateSpec, rates: dict[Subtask, dict[Phase, float]]) -> list[str]:
    if spec.rate_per_s is None:
        return []
    phases: tuple[Phase, ...] = ("before", "after")
    return [
        f"{PRODUCERS[subtask]} was to send {spec.rate_per_s:g} records/s, {subtask} got {rates[subtask][phase]:.0f}"
        f" {phase} {STALLED} was slowed down: give a lower --rate, or a quieter machine"
        for subtask in SUBTASKS
        for phase in phases
        if rates[subtask][phase] < RATE_KEPT * spec.rate_per_s
    ]


def _pause_warnings(spec: IsolateSpec, summaries: Summaries) -> list[str]:
    parts = []
    for role, summary in (("producer", summaries.producer), ("consumer", summaries.consumer)):
        late_ns = max(at - tick * TICK_NS for at, tick in zip(summary["edges_ns"], spec.edges(), strict=True))
        if late_ns > PAUSE_NS:
            parts.append(
                f"the {role} process was paused for {late_ns / 1e9:.1f} s: something else on this machine disturbs"
                " the figures"
            )
    return parts


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
    spec = IsolateSpec(rate_per_s=_rate_of(rate), **settings)
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


def _rate_of(text: str) -> float | None:
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
