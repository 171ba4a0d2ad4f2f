"""Measures every mode at every pressure: one job each, one after the other, by the same three processes.

Takes: a `CheckpointsSpec`. Gives: the points of every mode, what the sinks take undisturbed, warnings.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from netstack.config import MIB

from ..children import DIED, Children
from ..pair import Progress
from ..processes import MeasurementFailed
from ..stopping import scratch_folder
from .figures import Point, Seen, Stretch, point
from .spec import MASTER, SINKS, WARM_UP_S, WORKERS, CheckpointsSpec, Mode

PATIENCE_S: Final = 60.0
"""A job may take so much longer than expected; aligned checkpoints take their time under pressure."""

SHARED_BYTES: Final = 8 * MIB
"""Of a TaskManager, beside those of the job: for the network that jobs share, which nobody uses here."""

_WORKER: Final = "netstack.bench.checkpoints.worker"
_START_S: Final = 1.0
_END_S: Final = 0.3
_WAIT_S: Final = 0.25

Samples = list[tuple[int, int]]
"""Times in ns and the records taken until then, both rising."""


def jobs(spec: CheckpointsSpec) -> list[tuple[float, Mode | None]]:
    """What is measured, in order: pressure and mode; the first job finds out what the sinks can take."""
    return [(0.0, None), *((pressure, mode) for pressure in spec.pressures for mode in spec.modes)]


def expected_s(spec: CheckpointsSpec) -> float:
    """How long all of them take, if checkpoints are quick."""
    return _START_S + len(jobs(spec)) * _job_s(spec)


def measure(
    spec: CheckpointsSpec, *, on_progress: Callable[[Progress], None] | None = None
) -> tuple[dict[str, Any], bool]:
    """Makes all measurements.

    Args:
        spec: the settings.
        on_progress: called a few times a second.

    Returns:
        `modes`, `undisturbed_records_per_s` and `warnings` of the command's document, and whether Ctrl-C left some
        points out.

    Raises:
        MeasurementFailed: a process died or stood still, or a job failed.
    """
    modes: dict[str, list[Point]] = {mode: [] for mode in spec.modes}
    warnings: list[str] = []
    full_per_s: float | None = None
    try:
        with scratch_folder() as scratch, Children(_WORKER) as children:
            runner = Runner(spec, children, Path(scratch), on_progress)
            for number, (pressure, mode) in enumerate(jobs(spec)):
                rate = None if full_per_s is None or not pressure else (1 - pressure) * full_per_s
                found, problems = runner.run(number, pressure, mode, rate)
                if mode is None:
                    full_per_s = found["records_per_s_without"]
                else:
                    modes[mode].append(found)
                warnings += problems
    except KeyboardInterrupt:
        if not any(modes.values()):
            raise
    done = sum(map(len, modes.values()))
    result = {"modes": modes, "undisturbed_records_per_s": full_per_s, "warnings": warnings}
    return result, done < len(jobs(spec)) - 1


class Runner:
    """The processes, and one job after the other in them.

    Args:
        spec: the settings.
        children: where the processes are started.
        scratch: for folders of checkpoints.
        on_progress: called a few times a second.
    """

    def __init__(
        self,
        spec: CheckpointsSpec,
        children: Children,
        scratch: Path,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._spec = spec
        self._children = children
        self._scratch = scratch
        self._on_progress = on_progress
        self._samples: Samples = []
        self._address = ""
        for name in (MASTER, *WORKERS):
            children.start(name, "--name", name)

    def run(self, number: int, pressure: float, mode: Mode | None, rate_per_s: float | None) -> tuple[Point, list[str]]:
        """One job.

        Args:
            number: of the job, from 0 on.
            pressure: at which.
            mode: of its checkpoints; None takes none.
            rate_per_s: what the sinks may take; None is all they can.

        Returns:
            Its figures, and what a reader should know.

        Raises:
            MeasurementFailed: see `measure`.
        """
        self._samples.clear()
        if number:
            self._send(number, mode, rate_per_s)
        began_s = time.monotonic()
        patience_s = PATIENCE_S + 2 * _job_s(self._spec)
        name_of_it = f"{mode or 'undisturbed'}, pressure {pressure:g}"
        while time.monotonic() < began_s + patience_s:
            heard = self._children.receive(_WAIT_S)
            if self._on_progress is not None:
                elapsed_s = time.monotonic() - began_s
                part = min(1.0, elapsed_s / _job_s(self._spec))
                phase = "running" if self._samples else "starting"
                self._on_progress(Progress(name_of_it, phase, self._taken(), elapsed_s, part))
            if heard is None:
                continue
            name, message = heard
            event = message["event"]
            if event == "address":
                self._address = message["address"]
                self._join(0)
            elif event == "registered" and message["count"] < len(WORKERS):
                self._join(message["count"])
            elif event == "registered":
                self._send(number, mode, rate_per_s)
            elif event == "taken" and name == WORKERS[1]:
                self._samples.append((message["at_ns"], message["records"]))
            elif event == "measured":
                return self._point(name_of_it, pressure, message)
            elif event == "failed":
                raise MeasurementFailed(f"{name_of_it}: the job failed: {message['reason']}{self._children.quotes()}")
            elif event == "error":
                raise MeasurementFailed(f"{name_of_it}: {name} raised {message['kind']}: {message['text']}")
            elif event == DIED:
                raise MeasurementFailed(f"{name_of_it}: {name} {message['how']}")
        raise MeasurementFailed(f"{name_of_it}: no end after {patience_s:.0f} s{self._children.quotes()}")

    def _send(self, number: int, mode: Mode | None, rate_per_s: float | None) -> None:
        folder = str(self._scratch / f"job-{number}")
        settings = self._spec.as_dict()
        self._children.send(MASTER, "job", settings=settings, mode=mode, rate_per_s=rate_per_s, folder=folder)

    def _join(self, worker: int) -> None:
        """The sources get the slots of who registers first, so one after the other does."""
        slots = (self._spec.channels, SINKS)[worker]
        memory_bytes = max(MIB, self._spec.network().memory_bytes) + SHARED_BYTES
        self._children.send(WORKERS[worker], "address", address=self._address, slots=slots, memory_bytes=memory_bytes)

    def _taken(self) -> int:
        return self._samples[-1][1] - self._samples[0][1] if self._samples else 0

    def _point(self, name: str, pressure: float, measured: dict[str, Any]) -> tuple[Point, list[str]]:
        stretches = [
            Stretch(on, round(taken(self._samples, end) - taken(self._samples, start)), (end - start) / 1e9)
            for on, start, end in measured["stretches"]
        ]
        complete = [report for report in measured["reports"] if report["is_complete"]]
        seen = [Seen(**{name: each[name] for name in Seen.__dataclass_fields__}) for each in complete]
        reasons = {report["reason"]: None for report in measured["reports"] if not report["is_complete"]}
        problems = [f"{name}: a checkpoint was aborted: {reason}" for reason in reasons]
        return point(pressure, seen, len(measured["reports"]) - len(complete), stretches), problems


def taken(samples: Sequence[tuple[int, int]], at_ns: int) -> float:
    """Records taken until then, evenly between two samples; what was told first, or last, outside of them."""
    number = bisect.bisect_right(samples, at_ns, key=lambda sample: sample[0])
    if number == 0 or number == len(samples):
        return float(samples[min(number, len(samples) - 1)][1]) if samples else 0.0
    (before_ns, before), (after_ns, after) = samples[number - 1 : number + 1]
    return before + (after - before) * (at_ns - before_ns) / (after_ns - before_ns)


def _job_s(spec: CheckpointsSpec) -> float:
    return WARM_UP_S + (2 * spec.stretches + 1) * spec.stretch_s + _END_S
