"""Detects that the machine was busy with other work while a run was measured.

Reads the scheduling delay of a process and the steal time of the machine from the kernel.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

QUEUED: Final = "queued_ms_per_s"
"""Milliseconds per second for which threads of a side were runnable without a processor."""

STOLEN: Final = "stolen_ms_per_s"
"""Milliseconds per second for which the host took the processors away; the mean of all processors."""

LIMITS: Final[Mapping[str, float]] = {QUEUED: 200.0, STOLEN: 100.0}
"""A stretch with at least this much counts as busy."""

PART: Final = 0.25
"""The machine is called busy if at least this part of the stretches is busy."""


def lost_s() -> dict[str, float]:
    """Seconds lost so far by this process and by the machine, by rate name; empty where not reported."""
    try:
        tasks = [(task / "schedstat").read_text() for task in Path("/proc/self/task").iterdir()]
        cpu = Path("/proc/stat").read_text().partition("\n")[0].split()
        return {
            QUEUED: sum(int(task.split()[1]) for task in tasks) / 1e9,
            STOLEN: int(cpu[8]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1),
        }
    except (OSError, IndexError, ValueError):  # not Linux, or the thread has ended
        return {}


def busy_times(timeline: Sequence[Mapping[str, Any]] | None) -> list[float]:
    """The ends (seconds from the start) of the stretches in which a side waited for a processor."""
    return sorted(
        {
            float(sample["t_s"])
            for sample in timeline or ()
            if any((sample.get(name) or 0.0) > limit for name, limit in LIMITS.items())
        }
    )


def is_busy(timeline: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether so many stretches are busy that the figures of the run are doubtful."""
    every = {float(sample["t_s"]) for sample in timeline or () if sample.get(QUEUED) is not None}
    return bool(every) and len(busy_times(timeline)) >= PART * len(every)


def busy_warnings(timeline: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """Warnings for a run on a busy machine."""
    if not timeline or not is_busy(timeline):
        return []
    busy, every = len(busy_times(timeline)), len({float(sample["t_s"]) for sample in timeline})
    mean = {
        name: statistics.fmean(float(sample[name]) for sample in timeline if sample.get(name) is not None)
        for name in (QUEUED, STOLEN)
    }
    return [
        f"the machine was busy in {busy} of {every} slices of the run: tasks were runnable without a processor for"
        f" {mean[QUEUED]:.0f} ms of each second, and the host took {mean[STOLEN]:.0f} ms; measure again on a"
        " quiet machine"
    ]
