"""The command `netstack-bench lines`: cells on a real shaped line and on an emulated one, by turns.

The real line joins two hosts (network namespaces) with a TaskManager on each, which use Linux's default congestion
control, cubic; the emulated one joins two processes over loopback.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import click
from rich.console import Console
from rich.table import Table

from netstack.base.errors import ConfigError, NetstackError
from netstack.base.units import counted, format_duration, format_latency, format_size, three_digits
from netstack.cli.values import COUNT, SECONDS
from netstack.testing.namespaces import Daemons, Hosts, HostsError, last_line, why_not
from netstack.testing.shaped_line import Shape

from .. import console
from ..emulation import WITHIN
from ..flags import flag, json_flag
from ..host import host_facts, version
from ..interval import Equivalence, Verdict, joint, looks_after
from ..labels import Figure
from ..spec import RunSpec
from ..stopping import kept_at_interrupt

_COLOURS: Final = {Verdict.WITHIN: "green", Verdict.OUTSIDE: "red", Verdict.UNDECIDED: "yellow"}


@click.command(short_help="Compare emulated lines with real ones.")
@flag("--seconds", SECONDS, "Length of each run; three times that where TCP fills the line.", default=6)
@flag("--repeats", COUNT, "Passes over all cells.", default=3)
@flag("--most-repeats", COUNT, "Repeats of a cell that stays undecided.", default=6)
@flag("--cells", COUNT, "Only the first of the 24 cells; by default all.", "most_cells")
@json_flag
@click.pass_obj
def lines(app: Any, /, seconds: float, repeats: int, most_repeats: int, most_cells: int | None, as_json: bool) -> int:
    """Measure 24 cells on a real shaped line and on an emulated one, by turns.

    The real line joins two network namespaces with a TaskManager on each; a process gives it rate, delay and a queue
    (netstack.testing.shaped_line). The emulated one is --round-trip and --link-rate between two processes; it is given
    the round trip that is measured on the real one, as you would measure yours.

    A figure (throughput, p50, p99) is within 15 % of the real one if its 95 % interval lies inside that margin, outside
    if it lies outside, and else undecided. Undecided cells are measured again, up to --most-repeats.

    Needs root. The first passes take about 20 minutes. Ctrl-C keeps what was measured. Exit code 1 if no
    run of a cell succeeded.
    """
    if missing := why_not():
        raise ConfigError(f"a real line cannot be made here: {missing}")
    errors = console.err()
    chosen = cells(seconds)[:most_cells]

    def emulated(round_trip_s: float, cell: LineCell) -> Mapping[str, Any]:
        try:
            return dict(app.runners.run_once(cell.emulated(round_trip_s)))
        except NetstackError as error:
            return {"error": str(error)}

    def on_run(text: str, repeat: int) -> None:
        errors.print(f"pass {repeat + 1}: {text}", soft_wrap=True, highlight=False)

    measured: list[Measured] = []
    with kept_at_interrupt(lambda: bool(measured)) as stopped:
        runs = measure(chosen, real_line, emulated, repeats=repeats, most_repeats=most_repeats, on_run=on_run)
        for so_far in runs:
            measured = so_far
    if stopped.by:
        errors.print(f"stopped by {stopped.by}: each cell has the runs that it had until then")
    if as_json:
        document = {"lines": [each.as_dict() for each in measured], "counts": counts(measured)}
        console.print_json({**document, "host": host_facts(), "version": version()})
    else:
        print_lines(measured, console.out())
    for each in measured:
        for text in each.errors[:1]:
            errors.print(f"[red]failed:[/] {each.cell}: {text}", soft_wrap=True)
    return 1 if any(each.errors and not (each.real and each.emulated) for each in measured) else 0


def counts(measured: Sequence[Measured]) -> dict[str, dict[str, int]]:
    """The number of cells and of figures with each verdict."""
    of_cells = Counter(each.verdict for each in measured)
    of_figures = Counter(each.equivalence(name).verdict for each in measured for name in each.cell.figures)
    return {
        what: {verdict.value: count[verdict] for verdict in Verdict}
        for what, count in (("cells", of_cells), ("figures", of_figures))
    }


def print_lines(measured: Sequence[Measured], out: Console) -> None:
    """A row for each cell, and the three numbers."""
    table = Table("cell", "MB/s", "p50", "p99", "verdict", title="real / emulated", title_justify="left")
    for each in measured:
        texts = [_figure_text(each, name) for name in ("payload_mb_per_s", "p50", "p99")]
        verdict = each.verdict
        table.add_row(str(each.cell), *texts, f"[{_COLOURS[verdict]}]{verdict}[/]")
    out.print(table)
    for what, numbers in counts(measured).items():
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in numbers.items())
        total = counted(sum(numbers.values()), what.removesuffix("s"))
        out.print(f"of {total}: {verdicts} ({WITHIN:.0%})", soft_wrap=True)


def _figure_text(each: Measured, name: str) -> str:
    figure = each.as_dict()["figures"].get(name)
    if figure is None or figure["real"] is None or figure["emulated"] is None:
        return ""
    write = three_digits if name == "payload_mb_per_s" else format_latency
    error = part_of(each.equivalence(name).error)
    distance = "" if error is None else f" {error:+.0%}"
    colour = _COLOURS[each.equivalence(name).verdict]
    return f"{write(figure['real'])} / {write(figure['emulated'])}[{colour}]{distance}[/]"


MBIT: Final = 1_000_000 // 8
LINES: Final = (
    Shape(0.002, 200 * MBIT),
    Shape(0.010, 200 * MBIT),
    Shape(0.040, 100 * MBIT),
    Shape(0.040, 10 * MBIT),
)
_BUFFERS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"exclusive_buffers": 1, "floating_buffers": 1, "spare_buffers": 0},
)
_FILLS: Final = 3
"""How much longer runs with default buffers are: they lose frames every 0.4 to 4 seconds, which decides their p99."""

_LOADED: Final = ("payload_mb_per_s", "p50", "p99")
_PACED: Final = ("p50", "p99")


@final
@dataclass(frozen=True, slots=True)
class LineCell:
    """One piece of work on one line; `spec` is without the line."""

    shape: Shape
    spec: RunSpec

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the compared figures."""
        return _LOADED if self.spec.rate_per_s is None else _PACED

    def emulated(self, round_trip_s: float) -> RunSpec:
        """The same on one machine, with the round trip that the real line has."""
        values = self.spec.as_dict() | {
            "round_trip_s": round_trip_s,
            "link_bytes_per_s": self.shape.rate_bytes_per_s,
            "queue_bytes": None if self.shape.rate_bytes_per_s is None else int(self.shape.queue),
            "loss": self.shape.loss,
            "jitter_s": self.shape.jitter_s,
        }
        return RunSpec.from_dict(values)

    def __str__(self) -> str:
        spec, rate = self.spec, self.shape.rate_bytes_per_s
        line = f"{format_duration(self.shape.round_trip_s)} {'' if rate is None else f'{8 * rate / 1e6:g} Mbit/s'}"
        work = "under load" if spec.rate_per_s is None else f"{spec.rate_per_s:,g}/s"
        buffers = f"{spec.exclusive_buffers} + {spec.floating_buffers}"
        return f"{line}, {buffers} buffers, {format_size(spec.record_bytes)}, {work}"


def cells(seconds: float) -> tuple[LineCell, ...]:
    """All 24: sixteen under load; eight in an open loop at 1,000 records a second, or a quarter of the line."""
    made = []
    for shape in LINES:
        for record_bytes in (128, 16 * 1024):
            for buffers in _BUFFERS:
                spec = RunSpec(
                    seconds=seconds * (1 if buffers else _FILLS),
                    warmup_s=seconds / 3,
                    emit="batch",
                    record_bytes=record_bytes,
                    **buffers,
                )
                made.append(LineCell(shape, spec))
            assert shape.rate_bytes_per_s is not None
            rate = float(min(1000, shape.rate_bytes_per_s // (4 * record_bytes)))
            paced = RunSpec(
                seconds=seconds, warmup_s=seconds / 3, record_bytes=record_bytes, rate_per_s=rate, buffer_timeout_s=0.0
            )
            made.append(LineCell(shape, paced))
    return tuple(made)


CONGESTION_CONTROL: Final = "cubic"
_ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
RunOnce = Callable[[LineCell], Mapping[str, Any]]
RunEmulated = Callable[[float, LineCell], Mapping[str, Any]]

_PINGS: Final = """
import socket, sys, time
times = []
for _ in range(51):
    began = time.monotonic()
    try:
        socket.create_connection((sys.argv[1], 1), timeout=5).close()
    except ConnectionRefusedError:
        times.append(time.monotonic() - began)
    time.sleep(0.005)
print(min(times))
"""
"""Connects to a port at which nothing listens: the other kernel answers. The shortest round trip has no waits in it."""


@final
@dataclass(slots=True)
class Measured:
    """The repeats of one cell: the values of each figure, on the real line and on the emulated one."""

    cell: LineCell
    real: dict[str, list[float]] = field(default_factory=dict)
    emulated: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    round_trips_s: list[float] = field(default_factory=list)

    def add(self, side: dict[str, list[float]], result: Mapping[str, Any]) -> None:
        """Adds a repeat; one that failed becomes an error."""
        if result.get("error") or not result.get("delivered"):
            self.errors.append(str(result.get("error") or "records are missing"))
            return
        for name in self.cell.figures:
            value = result[name] if name in result else result["latency_us"][name]
            if value is not None:
                side.setdefault(name, []).append(value)

    def equivalence(self, name: str) -> Equivalence:
        """How far the emulated figure is from the real one."""
        return Equivalence.of_ratio(self.real.get(name, [0.0]), self.emulated.get(name, [0.0]), WITHIN)

    @property
    def verdict(self) -> Verdict:
        """Whether all of its figures are within the margin."""
        if not self.real or not self.emulated:
            return Verdict.UNDECIDED
        return joint(self.equivalence(name).verdict for name in self.cell.figures)

    def as_dict(self) -> dict[str, Any]:
        """JSON values; errors are parts of 1, of the real figure."""
        figures = {}
        for name in self.cell.figures:
            distance = self.equivalence(name)
            real, emulated = (Figure.of(side.get(name, ())) for side in (self.real, self.emulated))
            figures[name] = {
                "real": None if real is None else real.median,
                "emulated": None if emulated is None else emulated.median,
                **{key: part_of(getattr(distance, key)) for key in ("error", "low", "high")},
                "repeats": min(len(side.get(name, ())) for side in (self.real, self.emulated)),
                "verdict": distance.verdict.value,
            }
        shape = self.cell.shape
        return {
            "line": {
                "round_trip_s": shape.round_trip_s,
                "measured_round_trip_s": statistics.median(self.round_trips_s) if self.round_trips_s else None,
                "rate_bytes_per_s": shape.rate_bytes_per_s,
                "queue_bytes": None if shape.rate_bytes_per_s is None else shape.queue,
            },
            "settings": self.cell.spec.as_dict(),
            "verdict": self.verdict.value,
            "figures": figures,
            "errors": self.errors,
        }


def part_of(log2_ratio: float) -> float | None:
    """A distance as a part of 1: 0.1 is 10 % more; None where it is not known."""
    return 2**log2_ratio - 1 if -64 < log2_ratio < 64 else None


def measure(
    cells: Sequence[LineCell],
    on_line: Callable[[Shape], contextlib.AbstractContextManager[tuple[RunOnce, float]]],
    emulated: RunEmulated,
    *,
    repeats: int,
    most_repeats: int,
    on_run: Callable[[str, int], None] = lambda text, repeat: None,
) -> Iterator[list[Measured]]:
    """Gives all cells each time that one was run on both sides; a pass runs every cell, those of a line together.

    After `repeats` passes only undecided cells are measured again, as `looks_after` says. The two sides take turns;
    every second pass begins with the other one.
    """
    everything = [Measured(cell) for cell in cells]
    looks = looks_after(repeats, most_repeats)
    todo = everything
    for repeat in range(looks[-1]):
        if repeat in looks:
            todo = [each for each in everything if each.verdict is Verdict.UNDECIDED]
        for shape in dict.fromkeys(each.cell.shape for each in todo):
            with on_line(shape) as (run_real, round_trip_s):
                run_emulated = functools.partial(emulated, round_trip_s)
                for each in todo:
                    if each.cell.shape != shape:
                        continue
                    on_run(str(each.cell), repeat)
                    each.round_trips_s.append(round_trip_s)
                    sides: list[tuple[dict[str, list[float]], RunOnce]]
                    sides = [(each.real, run_real), (each.emulated, run_emulated)]
                    for side, run in sides if repeat % 2 == 0 else sides[::-1]:
                        each.add(side, run(each.cell))
                    yield everything


def _choose_congestion_control(hosts: Hosts) -> None:
    """Makes both hosts use the one that the emulation imitates, whatever this machine's default is.

    A namespace may choose only what the machine allows, so it is allowed for that moment.
    """
    command = ["sh", "-c", f"echo {CONGESTION_CONTROL} > /proc/sys/net/ipv4/tcp_congestion_control"]
    allowed = _ALLOWED.read_text().split()
    try:
        _ALLOWED.write_text(" ".join([*allowed, *{CONGESTION_CONTROL}.difference(allowed)]))
        for host in (1, 2):
            done = hosts.run(host, command)
            if done.returncode:
                raise HostsError(f"host {host} cannot use {CONGESTION_CONTROL}: {done.stderr.strip()}")
    except OSError as error:
        raise HostsError(f"the kernel has no congestion control {CONGESTION_CONTROL} ({error})") from error
    finally:
        _ALLOWED.write_text(" ".join(allowed))


@contextlib.contextmanager
def real_line(shape: Shape) -> Iterator[tuple[RunOnce, float]]:
    """Two hosts joined by a line of this shape, with a TaskManager on each.

    Gives: the function that makes a run on them, and their round trip in seconds.

    Raises:
        NetstackError: hosts cannot be made here: the text says why.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="netstack-lines-") as folder, Hosts(2, lines={1: shape}) as hosts:
            secret_file = Path(folder) / "secret"
            secret_file.touch(mode=0o600)
            secret_file.write_text(os.urandom(32).hex())
            _choose_congestion_control(hosts)
            daemons = Daemons(hosts, secret_file)
            daemons.start_all()
            source, sink = daemons.flag.split(",")
            pings = hosts.run(2, [sys.executable, "-c", _PINGS, hosts.address(1)])
            if pings.returncode:
                raise HostsError(f"host 1 does not answer host 2: {last_line(pings.stderr)}")

            def run(cell: LineCell) -> Mapping[str, Any]:
                spec = cell.spec.as_dict() | {"hosts": [f"{source}=1/0", f"{sink}=0/1"]}
                asked = json.dumps({"spec": spec, "secret_file": str(secret_file)})
                words = [sys.executable, "-m", "netstack_bench.lines.on_host"]
                done = hosts.run(0, words, input=asked)
                try:
                    result: Mapping[str, Any] = json.loads(done.stdout)
                except ValueError:
                    return {"error": done.stderr.strip()[-500:] or f"exit code {done.returncode}"}
                return result

            yield run, float(pings.stdout)
    except HostsError as error:
        raise NetstackError(f"a real line cannot be made here: {error}") from error
