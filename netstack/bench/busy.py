"""Whether the machine was busy with something else while a run was measured, and when.

Takes: what the kernel tells of a process's waits for a processor, and of time that a host takes from this machine.
Gives: both per stretch of a run's timeline, and a sentence where that makes its figures doubtful.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

QUEUED: Final = "queued_ms_per_s"
"""Of each second of a stretch: how long threads of the side were ready and had no processor, in ms."""

STOLEN: Final = "stolen_ms_per_s"
"""Of each second of a stretch: how long the host had the processors for others, the mean of all of them, in ms."""

LIMITS: Final[Mapping[str, float]] = {QUEUED: 200.0, STOLEN: 100.0}
"""From here on a stretch counts as busy."""

PART: Final = 0.25
"""Of a run's stretches, from which on the machine is called busy."""


def lost_s() -> dict[str, float]:
    """Seconds so far, of this process and of the machine, by the name of the rate that is made of them.

    Empty where the system does not tell.
    """
    try:
        tasks = [(task / "schedstat").read_text() for task in Path("/proc/self/task").iterdir()]
        cpu = Path("/proc/stat").read_text().partition("\n")[0].split()
        return {
            QUEUED: sum(int(task.split()[1]) for task in tasks) / 1e9,
            STOLEN: int(cpu[8]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1),
        }
    except (OSError, IndexError, ValueError):  # another system, or a thread that ended meanwhile
        return {}


def busy_times(timeline: Sequence[Mapping[str, Any]] | None) -> list[float]:
    """The ends (seconds from the start) of the stretches in which a side had to wait for a processor."""
    return sorted(
        {
            float(sample["t_s"])
            for sample in timeline or ()
            if any((sample.get(name) or 0.0) > limit for name, limit in LIMITS.items())
        }
    )


def is_busy(timeline: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether that holds for so many that the figures of the run are doubtful."""
    every = {float(sample["t_s"]) for sample in timeline or () if sample.get(QUEUED) is not None}
    return bool(every) and len(busy_times(timeline)) >= PART * len(every)


def busy_warnings(timeline: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """What to know of a run on a busy machine."""
    if not timeline or not is_busy(timeline):
        return []
    busy, every = len(busy_times(timeline)), len({float(sample["t_s"]) for sample in timeline})
    mean = {
        name: statistics.fmean(float(sample[name]) for sample in timeline if sample.get(name) is not None)
        for name in (QUEUED, STOLEN)
    }
    return [
        f"the machine was busy in {busy} of {every} slices of the run: tasks were ready and had no processor for"
        f" {mean[QUEUED]:.0f} ms of each second, and the host took {mean[STOLEN]:.0f} ms; figures would be better on a"
        " quiet one"
    ]
