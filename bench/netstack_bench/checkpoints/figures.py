"""The figures of one mode at one pressure, and the verdicts in words.

A checkpoint's duration is that of its coordinator, from the trigger to the stored manifest. Lost throughput is the
median over neighbouring stretches of one run, so that a slower machine does not matter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from netstack.base.units import format_duration, three_digits

from .spec import CheckpointsSpec

GOAL_MS: Final = 50.0
"""Goal for an unaligned checkpoint at any pressure, besides the time to write its state."""

GOAL_LOST: Final = 0.03
"""Goal for the throughput lost with a barrier every 100 ms."""

Point = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Completed:
    """One completed checkpoint; times at a sink are the greatest of all sinks."""

    duration_s: float  # from its trigger to its completion
    start_delay_s: float  # its age when the first barrier arrived at a sink
    alignment_s: float  # from the first to the last barrier at a sink
    write_s: float  # of the slowest task's file, and of the manifest
    channel_state_bytes: int  # of all tasks


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a run, with or without checkpoints; `records` were taken by the sinks."""

    checkpoints: bool
    records: int
    seconds: float

    @property
    def records_per_s(self) -> float:
        """Throughput in the stretch."""
        return self.records / self.seconds


def point(pressure: float, completed: Sequence[Completed], aborted: int, stretches: Sequence[Stretch]) -> Point:
    """The figures of one mode at one pressure as JSON values; None where nothing was measured."""
    lost = _lost(stretches)
    return {
        "pressure": pressure,
        "checkpoints": len(completed),
        "aborted": aborted,
        **times(completed),
        "records_per_s": _rate(stretches, checkpoints=True),
        "records_per_s_without": _rate(stretches, checkpoints=False),
        "throughput_lost": statistics.median(lost) if lost else None,
        "throughput_lost_error": _error(lost),
    }


def times(completed: Sequence[Completed]) -> dict[str, dict[str, float] | None]:
    """Duration and size of completed checkpoints: median and maximum; None without any."""
    return {
        "duration_ms": _of([each.duration_s * 1e3 for each in completed]),
        "start_delay_ms": _of([each.start_delay_s * 1e3 for each in completed]),
        "alignment_ms": _of([each.alignment_s * 1e3 for each in completed]),
        "state_write_ms": _of([each.write_s * 1e3 for each in completed]),
        "besides_writing_ms": _of([(each.duration_s - each.write_s) * 1e3 for each in completed]),
        "channel_state_bytes": _of([each.channel_state_bytes for each in completed]),
    }


def verdicts(spec: CheckpointsSpec, modes: Mapping[str, Sequence[Point]]) -> list[str]:
    """The findings, a sentence each: growth with the pressure, the time besides writing, the cost."""
    parts = []
    for mode, points in modes.items():
        measured = [each for each in points if each["duration_ms"] is not None]
        if not measured:
            parts.append(f"{mode}: no checkpoint completed")
            continue
        first, last = measured[0], measured[-1]
        grown = f"{_ms(first['duration_ms']['p50'])} at pressure {first['pressure']:g}"
        if last is not first:
            grown += f", {_ms(last['duration_ms']['p50'])} at {last['pressure']:g}"
        worst = max(each["besides_writing_ms"]["max"] for each in measured)
        goal = f" (goal: below {GOAL_MS:g} ms)" if mode == "unaligned" else ""
        parts.append(f"{mode}: {grown}; besides writing the state, {_ms(worst)} at most{goal}")
    costs = [
        f"{mode} {_percent(points[0]['throughput_lost'])} ± {_percent(points[0]['throughput_lost_error'])}"
        for mode, points in modes.items()
        if points and points[0]["throughput_lost"] is not None and points[0]["throughput_lost_error"] is not None
    ]
    if costs:
        every = format_duration(spec.interval_s, space=" ")
        least = min(each["pressure"] for points in modes.values() for each in points)
        parts.append(
            f"throughput that a barrier every {every} costs at pressure {least:g}: {', '.join(costs)}"
            f" (goal: {_percent(GOAL_LOST)} with one every 100 ms)"
        )
    return parts


def _ms(milliseconds: float) -> str:
    return f"{three_digits(milliseconds)} ms"


def _percent(part: float) -> str:
    return f"{part * 100:.1f} %"


def _of(values: Sequence[float]) -> dict[str, float] | None:
    return {"p50": statistics.median(values), "max": max(values)} if values else None


def _rate(stretches: Sequence[Stretch], *, checkpoints: bool) -> float | None:
    rates = [each.records_per_s for each in stretches if each.checkpoints is checkpoints]
    return statistics.median(rates) if rates else None


def _lost(stretches: Sequence[Stretch]) -> list[float]:
    shares = []
    for number, each in enumerate(stretches):
        if not each.checkpoints:
            continue
        beside = [other.records_per_s for other in stretches[max(0, number - 1) : number + 2] if not other.checkpoints]
        if beside and (without := statistics.mean(beside)) > 0:
            shares.append(1 - each.records_per_s / without)
    return shares


def _error(values: Sequence[float]) -> float | None:
    return 1.2533 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
