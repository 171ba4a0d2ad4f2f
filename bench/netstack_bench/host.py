"""Facts about this machine and this process: `host` of every result, CPU time and memory, and other work beside it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from netstack.base import build
from netstack.base.host import congestion_control
from netstack.base.version import __version__

_PACKAGES: Final = (
    "trio",
    "numpy",
    "msgpack",
    "lz4",
    "click",
    "rich",
    "pyarrow",
    "pyzmq",
    "pyspark",
    "prometheus_client",
)


def cpu_seconds() -> float:
    """CPU time of this process so far, user and system, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_memory_bytes() -> int:
    """Peak resident memory of this process, interpreter and libraries included.

    `ru_maxrss` is not used: it includes the memory of the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def process_age_s() -> float:
    """The time since this process was started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds (user and system, all threads) and resident memory of processes."""

    cpu_s: float
    memory_bytes: int


def usage_of(pid: int) -> Usage:
    """CPU time and memory of another process. Raises OSError if there is no such process."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # from field 3 on: proc(5)
    ticks = int(stat[11]) + int(stat[12])
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), int(stat[21]) * os.sysconf("SC_PAGE_SIZE"))


def version() -> str:
    """The version of netstack."""
    return __version__


def host_facts() -> dict[str, Any]:
    """Machine, interpreter and packages as JSON values; None where the system does not report a value."""
    return {
        "name": platform.node(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "load_average": list(os.getloadavg()),
        "congestion_control": congestion_control(),
        "netstack_build": build.kind,
        "packages": {name: _version_of(name) for name in _PACKAGES},
    }


def cpu_model() -> str | None:
    """The name of the processor; None where the system does not report it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "Model", "Hardware"):
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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
