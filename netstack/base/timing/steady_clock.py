"""Time that does not jump when somebody sets the clock of the host.

Takes: the clocks of the host. Gives: seconds since 1970 that only grow; an id of the host's monotonic clock.

Rules: the wall clock is read once, when the process starts; later times add what the monotonic clock has counted since.
Processes whose `CLOCK_ID` is equal share one monotonic clock, so its values can be compared between them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import Final

OFFSET_NS: Final = time.time_ns() - time.monotonic_ns()
"""Nanoseconds since 1970 at which this process takes its monotonic clock to have been 0."""


def _clock_id() -> bytes:
    """Names the boot of the host and the time namespace; a name of this process alone if the kernel gives none."""
    try:
        facts = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        facts = os.urandom(16)
    with contextlib.suppress(OSError):  # a kernel without time namespaces has one clock
        facts += os.readlink("/proc/self/ns/time").encode()
    return hashlib.sha256(facts).digest()[:8]


CLOCK_ID: Final = _clock_id()
"""The same in all processes that share a monotonic clock."""


def steady_time() -> float:
    """Returns the time in seconds since 1970."""
    return (OFFSET_NS + time.monotonic_ns()) / 1e9
