"""Results of `checkpoints` to be shown."""

from __future__ import annotations

from typing import Any

from netstack_bench.checkpoints.figures import Completed, Stretch, point
from netstack_bench.checkpoints.spec import MODES, CheckpointsSpec

SPEC = CheckpointsSpec(pressures=(0.0, 0.9))
CONTRACT = {
    "pressure",
    "checkpoints",
    "aborted",
    "duration_ms",
    "alignment_ms",
    "state_write_ms",
    "channel_state_bytes",
    "records_per_s",
    "throughput_lost",
}
Result = dict[str, Any]


def seen(duration_ms: float, *, write_ms: float = 5.0, state: int = 0) -> Completed:
    return Completed(duration_ms / 1e3, duration_ms / 4e3, duration_ms / 2e3, write_ms / 1e3, state)


def stretches(*rates: float) -> list[Stretch]:
    """Of half a second each, without and with checkpoints in turn."""
    return [Stretch(bool(number % 2), int(rate / 2), 0.5) for number, rate in enumerate(rates)]


def points(mode: str) -> list[Result]:
    """Aligned ones grow, unaligned ones do not."""
    actual = []
    for pressure in SPEC.pressures:
        grown = 1.0 if mode == "unaligned" else 1 + 20 * pressure
        state = 0 if mode == "aligned" else int(1_000_000 * pressure)
        durations = [seen(grown * each, state=state) for each in (20.0, 22.0, 30.0)]
        actual.append(point(pressure, durations, 0, stretches(1000.0, 990.0, 1000.0, 970.0, 1000.0)))
    return actual


def result(**changed: Any) -> Result:
    modes = {mode: points(mode) for mode in MODES}
    host = {"name": "lab-<7>", "cpu": "EPYC", "cores": 2, "kernel": None, "python": "3.11", "load_average": [0.5, 1, 1]}
    return {
        "modes": modes,
        "undisturbed_records_per_s": 100_000.0,
        "warnings": ["a <remark>"],
        "settings": SPEC.as_dict(),
        "host": host,
        "version": "0.2.0",
        **changed,
    }
