"""Says in the log when a TaskManager's tasks ask for more network memory than it has.

Takes: the pool's statistics whenever somebody asked for buffers. Gives: a warning when everything, or more, is asked
for, again each time that changes, and a note when it is less again. Logger: `netstack`.
"""

from __future__ import annotations

import logging
from typing import Final, final

from ..buffer.statistics import NetworkBufferPoolStatistics

LOGGER: Final = logging.getLogger("netstack")


@final
class MemoryWatch:
    """Remembers what it has said."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0  # segments requested when it looked last

    def check(self, memory: NetworkBufferPoolStatistics) -> None:
        """Looks at what is requested now; logs at most one line."""
        last, self._last = self._last, memory.requested_segments
        total = memory.total_segments
        if memory.requested_segments < total:
            if last >= total:
                LOGGER.info("network memory suffices again: %.0f %% of it is requested", memory.requested_percent)
        elif memory.requested_segments != last:
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
