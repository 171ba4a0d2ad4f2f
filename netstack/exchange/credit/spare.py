"""Spare floating buffers: a gate whose reader waits for data borrows more, and grants more credit with them.

Takes: how often the reader of a gate has waited. Gives: the size of the gate's pool.

A reader that has waited since the last review is faster than its producers: its gate may get spare floating buffers. A
reader that has not waited is the bottleneck, and more buffers would only delay barriers: the gate returns its spare
buffers. Reviews are counted in buffers, so a slow stream gets none. Spare buffers are taken only while the network pool
is idle, from unguaranteed segments, and a quarter of all segments stays free.
"""

from __future__ import annotations

from typing import Final, final

from ..buffer.pools import LocalBufferPool

REVIEW_BUFFERS: Final = 64
"""Data buffers between two reviews: 2 MiB of the default size."""


@final
class SpareBuffers:
    """The spare floating buffers of one gate."""

    __slots__ = ("_least", "_most", "_pool", "_waits")

    def __init__(self, pool: LocalBufferPool, buffers: int) -> None:
        """Takes none before the first review.

        Args:
            pool: the gate's floating buffers, at its size without spare ones.
            buffers: maximum number of spare buffers.
        """
        assert pool.maximum is not None
        self._pool = pool
        self._least = pool.maximum
        self._most = pool.maximum + buffers
        self._waits = 0

    def review(self, waits: int) -> None:
        """Adjusts the pool after `REVIEW_BUFFERS` polls; `waits` counts the waits of the reader so far."""
        has_waited = waits != self._waits
        self._waits = waits
        self._pool.set_maximum(self._most if has_waited and self._pool.is_network_idle else self._least)
