"""Spare floating buffers: a gate whose reader waits for data borrows more, and grants more credit with them.

Takes: how often the reader of a gate has waited, the buffers that it read, the time, the round trip of its connections.
Gives: the size of the gate's pool, and the window that its channels keep open.

A reader that has waited since the last review is faster than its producers: its gate may get spare floating buffers. A
reader that has not waited is the bottleneck, and more buffers would only delay barriers: the gate returns its spare
buffers. Reviews are counted in buffers, so a slow stream gets none. Spare buffers are taken only while the network pool
is idle, from unguaranteed segments, and a quarter of all segments stays free.

How many: `FEWEST`; or as many as were read in `FAST_S`, up to `FAST`, which saves two fast processes wake-ups; or as
many as were read in `ROUND_TRIPS` round trips.
On a long line a window of w buffers brings w a round trip at most, so the window grows until the line is full, and then
stays at that multiple of it. TCP keeps up to two round trips in flight and has its own queue in front; a window that is
smaller than both starves TCP, whose estimate of the line then stays low. On one machine a round trip is so short that
nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ..buffer.pools import LocalBufferPool
from .boost import EXPECTED_BUFFERS

REVIEW_BUFFERS: Final = 64
"""Data buffers between two reviews: 2 MiB of the default size."""

FIRST_REVIEW_BUFFERS: Final = 16
"""Data buffers before the first review, so that a long line is not slow for long."""

FEWEST: Final = 22
"""Spare buffers of a waiting reader, whatever the round trip: with the usual ones, what producers expect to send."""

FAST: Final = 126
"""The most that a waiting reader gets for its speed: a longer window wakes both ends less often."""

FAST_S: Final = 0.004
"""How long data may wait in them: a reader of 1 GB/s gets `FAST` buffers of 32 KiB, one behind a line of 1 Gbit/s
`FEWEST`."""

ROUND_TRIPS: Final = 4
"""Round trips whose buffers the window holds."""

SHORT_S: Final = 0.0005
"""Shorter round trips add nothing: a window of the usual size carries 2 GB/s, and a larger pool leaves the cache."""


@final
class SpareBuffers:
    """The spare floating buffers of one gate."""

    __slots__ = (
        "_least",
        "_most",
        "_now",
        "_pool",
        "_review_buffers",
        "_reviewed_at",
        "_round_trip_s",
        "_waits",
        "spare",
    )

    def __init__(
        self,
        pool: LocalBufferPool,
        buffers: int,
        *,
        now: Callable[[], float],
        round_trip_s: Callable[[], float],
    ) -> None:
        """Takes none before the first review.

        Args:
            pool: the gate's floating buffers, at its size without spare ones.
            buffers: maximum number of spare buffers.
            now: monotonic seconds.
            round_trip_s: the longest round trip of the gate's connections, without queues; 0 if unknown.
        """
        assert pool.maximum is not None
        self._pool = pool
        self._least = pool.maximum
        self._most = buffers
        self._waits = 0
        self._now = now
        self._reviewed_at = now()
        self._review_buffers = FIRST_REVIEW_BUFFERS
        self._round_trip_s = round_trip_s
        self.spare = 0
        """Buffers that the gate may borrow now."""

    @property
    def window(self) -> int:
        """Buffers that producers together may expect to send: `EXPECTED_BUFFERS`, or more on a long line."""
        return max(EXPECTED_BUFFERS, self._least + self.spare)

    def review(self, waits: int) -> None:
        """Adjusts the pool after `FIRST_REVIEW_BUFFERS`, then every `REVIEW_BUFFERS` polls; `waits` are all so far."""
        has_waited = waits != self._waits
        self._waits = waits
        now = self._now()
        took_s, self._reviewed_at = now - self._reviewed_at, now
        if not has_waited or not self._pool.is_network_idle:
            self.spare = 0
        else:
            per_s = self._review_buffers / took_s if took_s > 0 else 0.0
            round_trip_s = self._round_trip_s()
            in_round_trips = ROUND_TRIPS * per_s * round_trip_s if round_trip_s >= SHORT_S else 0.0
            in_fast_s = min(FAST, int(FAST_S * per_s))
            # After a pause of the producers few were read: the window shrinks by half at most.
            self.spare = min(self._most, max(FEWEST, in_fast_s, int(in_round_trips), self.spare // 2))
        self._review_buffers = REVIEW_BUFFERS
        self._pool.set_maximum(self._least + self.spare)
