"""Rebalance by load: prefers subpartitions whose consumers have credit and no backlog.

Takes: the load of each subpartition, from its queue and its consumer's credit. Gives: subpartition indices.

A slow consumer grants little credit and its queue grows, so it gets fewer records. Round robin would send it as many as
the others, and wait for it. Each channel still delivers in order and exactly once; the channel of a record depends on
timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...base.errors import ConfigError
from .selector import ChannelSelector, Indices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .subpartition import ResultSubpartition

DEFAULT_CANDIDATES: Final = 4
BATCH_SHARE_BYTES: Final = 32 * 1024
"""Bytes of an array that go to one subpartition before the loads are compared again: about a buffer."""


@final
class AdaptiveRebalanceSelector(ChannelSelector):
    """The least loaded of the next few subpartitions; round robin while their loads are equal.

    The load of a subpartition is its queued buffers minus the credit of its consumer
    (`ResultSubpartition.load_buffers`). An array is cut into shares of about a buffer. Each share goes to the
    subpartition with the least load, where earlier shares of the array count too.
    """

    def __init__(self, candidates: int = DEFAULT_CANDIDATES) -> None:
        """Creates a selector that compares the next `candidates` subpartitions for each record.

        More candidates find a better one, at about 0.2 us each.

        Raises:
            ConfigError: fewer than 2, which would be round robin.
        """
        if candidates < 2:
            raise ConfigError(f"candidates={candidates}; give at least 2, or use RebalanceSelector")
        self._requested = self._candidates = candidates
        self._next = 0
        self._subpartitions: Sequence[ResultSubpartition] = ()

    def setup(self, channels: int) -> None:
        """Stores the number of subpartitions, before the first record."""
        super().setup(channels)
        self._candidates = min(self._requested, channels)

    def observe(self, subpartitions: Sequence[ResultSubpartition]) -> None:
        """Stores the subpartitions whose loads are compared."""
        self._subpartitions = subpartitions

    def select(self, record: Any) -> int:
        """The least loaded of the next subpartitions; the first among equals."""
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
        """One index for each record, in shares of about a buffer for the least loaded subpartitions."""
        channels, count = self.channels, len(array)
        if channels == 1:
            return 0
        share = max(1, BATCH_SHARE_BYTES // max(1, array.nbytes // max(1, count)))
        loads = [subpartition.load_buffers() for subpartition in self._subpartitions]
        chosen = []
        for _ in range(0, count, share):
            # Compares all subpartitions: a share is large enough to pay for that, and there are few shares.
            ahead = range(self._next, self._next + channels)
            best = min(ahead, key=lambda index: loads[index % channels]) % channels
            loads[best] += 1
            self._next = best + 1 if best + 1 < channels else 0
            chosen.append(best)
        kind: Any = np.uint8 if channels <= 1 << 8 else np.uint16 if channels <= 1 << 16 else np.uint32
        return np.repeat(np.array(chosen, dtype=kind), share)[:count]
