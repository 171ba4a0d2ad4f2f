"""Logs a warning when a TaskManager's tasks request more network memory than it has.

Takes: the pool's statistics after each request. Gives: a warning when more segments are requested than there are,
another one for every further tenth, and a note when memory suffices again. Logger: `netstack`.
"""

from __future__ import annotations

import logging
from typing import Final, final

from ...exchange.buffer.statistics import NetworkBufferPoolStatistics

LOGGER: Final = logging.getLogger("netstack")


@final
class MemoryWatch:
    """Remembers the last warning."""

    __slots__ = ("_warned_percent",)

    def __init__(self) -> None:
        self._warned_percent = 0.0  # in the last warning; 0 if memory suffices

    def check(self, memory: NetworkBufferPoolStatistics) -> None:
        """Checks the requested segments; logs at most one line."""
        total = memory.total_segments
        if memory.requested_segments <= total:
            if self._warned_percent:
                self._warned_percent = 0.0
                LOGGER.info("network memory suffices again: %.0f %% of it is requested", memory.requested_percent)
        elif memory.requested_percent >= self._warned_percent + 10 or not self._warned_percent:
            self._warned_percent = memory.requested_percent
            missing = memory.requested_segments - total
            LOGGER.warning(
                "network memory is short: %.0f %% of it is requested (%d of %d segments, %d are missing); throughput is"
                " reduced; raise memory_bytes by %d, or configure fewer buffers per gate or partition",
                memory.requested_percent,
                memory.requested_segments,
                total,
                missing,
                missing * memory.segment_size_bytes,
            )
