"""How many floating buffers a gate may have right now: more of them while its reader waits for data.

Takes: the gate's pool, how many more it may have, how often the gate's reader has waited. Gives: the pool's maximum.

Rules:
- A reader that has waited since the last review is faster than what comes: more may be under way. One that has not is
  what holds the stream up, and then buffers would bring nothing but a longer way for barriers: the gate is back to what
  it has anyway, as fast as buffers are consumed.
- Reviews are counted in buffers, so a stream that is slow, or idle, takes none.
- More is taken only while the network pool is idle, of what no pool was promised, and goes back when it is needed
  (`buffer.network_pool`). A reader that stands still gives nothing back: so a quarter is left to others.
"""

from __future__ import annotations

from typing import Final, final

from ..buffer.local_pool import LocalBufferPool

REVIEW_BUFFERS: Final = 64
"""Data buffers from one review to the next: 2 MiB of the default size."""


@final
class SpareBuffers:
    """Of one gate."""

    __slots__ = ("_least", "_most", "_pool", "_waits")

    def __init__(self, pool: LocalBufferPool, buffers: int) -> None:
        """None are taken before the first review.

        Args:
            pool: of the gate's floating buffers, as large as it is without spare ones.
            buffers: spare ones at most.
        """
        assert pool.maximum is not None
        self._pool = pool
        self._least = pool.maximum
        self._most = pool.maximum + buffers
        self._waits = 0

    def review(self, waits: int) -> None:
        """Another `REVIEW_BUFFERS` were polled; `waits` is how often the reader has waited so far."""
        has_waited = waits != self._waits
        self._waits = waits
        self._pool.set_maximum(self._most if has_waited and self._pool.is_network_idle else self._least)
