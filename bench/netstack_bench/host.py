"""Facts about this machine and this process: `host` of every result, CPU time and memory."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import time
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
