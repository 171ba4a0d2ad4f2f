"""Measures cells on a real shaped line and on an emulated one, by turns.

Takes: cells, numbers of repeats. Gives: the figures of each repeat on both sides, and what `equivalence` says of them.

The real line joins two hosts (network namespaces) with a TaskManager on each, which use Linux's default congestion
control, cubic; the emulated one joins two processes over loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from netstack.base.errors import NetstackError
from netstack.testing.namespaces import Daemons, Hosts, HostsError
from netstack.testing.shaped_line import Shape

from ..emulation import WITHIN
from ..interval import Equivalence, Verdict, joint, looks_after
from ..labels import Figure
from .cells import LineCell

CONGESTION_CONTROL: Final = "cubic"
_ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
RunOnce = Callable[[LineCell], Mapping[str, Any]]


@final
@dataclass(slots=True)
class Measured:
    """The repeats of one cell: the values of each figure, on the real line and on the emulated one."""

    cell: LineCell
    real: dict[str, list[float]] = field(default_factory=dict)
    emulated: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

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
    on_line: Callable[[Shape], contextlib.AbstractContextManager[RunOnce]],
    emulated: RunOnce,
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
            with on_line(shape) as run_real:
                for each in todo:
                    if each.cell.shape != shape:
                        continue
                    on_run(str(each.cell), repeat)
                    sides = [(each.real, run_real), (each.emulated, emulated)]
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
def real_line(shape: Shape) -> Iterator[RunOnce]:
    """Two hosts joined by a line of this shape, with a TaskManager on each, and the function that makes a run on them.

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

            yield run
    except HostsError as error:
        raise NetstackError(f"a real line cannot be made here: {error}") from error
