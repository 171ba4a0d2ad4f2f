"""Rebalance by load: records go where credit is and no backlog, beside plain round robin.

Takes: the load of each subpartition, as its queue and its consumer's credit tell it. Gives: subpartition indices.

A slow consumer gives little credit and its queue grows, so it gets fewer records; round robin would feed it as many as
the others and wait for it. Order and exactly-once hold per channel, as always; which channel a record takes depends on
timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ..errors import ConfigError
from .selector import ChannelSelector, Indices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .subpartition import ResultSubpartition

DEFAULT_CANDIDATES: Final = 4
BATCH_SHARE_BYTES: Final = 32 * 1024
"""Bytes of an array that go to one subpartition before the loads are compared again: about a buffer."""


@final
class AdaptiveRebalanceSelector(ChannelSelector):
    """The least loaded of the next few subpartitions; round robin while all are loaded alike.

    The load of a subpartition is its queued buffers minus the credit of its consumer
    (`ResultSubpartition.load_buffers`), in buffers. An array is dealt in shares of about a buffer, each share to the
    subpartition that is then the least loaded, the shares dealt before it included.
    """

    def __init__(self, candidates: int = DEFAULT_CANDIDATES) -> None:
        """A selector that compares `candidates` subpartitions for each record, the next ones in turn.

        Comparing more finds a better one and costs more: about 0.2 us each.

        Raises:
            ConfigError: fewer than 2; with 1 it would be round robin.
        """
        if candidates < 2:
            raise ConfigError(f"candidates={candidates}; give at least 2, or use RebalanceSelector")
        self._asked = self._candidates = candidates
        self._next = 0
        self._subpartitions: Sequence[ResultSubpartition] = ()

    def setup(self, channels: int) -> None:
        """Gets the number of subpartitions, before the first record."""
        super().setup(channels)
        self._candidates = min(self._asked, channels)

    def observe(self, subpartitions: Sequence[ResultSubpartition]) -> None:
        """Whose loads count."""
        self._subpartitions = subpartitions

    def select(self, record: Any) -> int:
        """The least loaded of the next subpartitions, the first of them among equals."""
        subpartitions, channels = self._subpartitions, self.channels
        best = channel = self._next
        least = subpartitions[channel].load_buffers()
        for _ in range(self._candidates - 1):
            channel += 1
            if channel == channels:
                channel = 0
            load = subpartitions[channel].load_buffers()
            if load < least:
                least, best = load, channel
        self._next = best + 1 if best + 1 < channels else 0
        return best

    def select_batch(self, array: NDArray[Any]) -> int | Indices:
        """An index for each record: shares of about a buffer, dealt to the least loaded."""
        channels, count = self.channels, len(array)
        if channels == 1:
            return 0
        share = max(1, BATCH_SHARE_BYTES // max(1, array.nbytes // max(1, count)))
        loads = [subpartition.load_buffers() for subpartition in self._subpartitions]
        chosen = []
        for _ in range(0, count, share):
            # All of them: a share is worth more than the comparison, and there are few.
            ahead = range(self._next, self._next + channels)
            best = min(ahead, key=lambda index: loads[index % channels]) % channels
            loads[best] += 1
            self._next = best + 1 if best + 1 < channels else 0
            chosen.append(best)
        kind: Any = np.uint8 if channels <= 1 << 8 else np.uint16 if channels <= 1 << 16 else np.uint32
        return np.repeat(np.array(chosen, dtype=kind), share)[:count]
