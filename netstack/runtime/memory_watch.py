"""Says in the log when a TaskManager's tasks ask for more network memory than it has.

Takes: the pool's statistics whenever somebody asked for buffers. Gives: a warning when everything, or more, is asked
for, again when a tenth more of it is, and a note when it is less again. Logger: `netstack`.
"""

from __future__ import annotations

import logging
from typing import Final, final

from ..buffer.statistics import NetworkBufferPoolStatistics

LOGGER: Final = logging.getLogger("netstack")


@final
class MemoryWatch:
    """Remembers what it has said."""

    __slots__ = ("_told_percent",)

    def __init__(self) -> None:
        self._told_percent = 0.0  # what the last warning said; 0 when memory suffices

    def check(self, memory: NetworkBufferPoolStatistics) -> None:
        """Looks at what is requested now; logs at most one line."""
        total = memory.total_segments
        if memory.requested_segments < total:
            if self._told_percent:
                self._told_percent = 0.0
                LOGGER.info("network memory suffices again: %.0f %% of it is requested", memory.requested_percent)
        elif memory.requested_percent >= self._told_percent + 10 or not self._told_percent:
            self._told_percent = memory.requested_percent
            missing = memory.requested_segments - total
            LOGGER.warning(
                "network memory is short: %.0f %% of it is requested (%d of %d segments, %d are missing); everything"
                " works, with reduced throughput; raise memory_bytes by %d, or use fewer buffers a gate or partition",
                memory.requested_percent,
                memory.requested_segments,
                total,
                missing,
                missing * memory.segment_size_bytes,
            )
