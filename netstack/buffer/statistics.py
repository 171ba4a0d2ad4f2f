"""Snapshots of the two levels of pools.

Takes: counts, when somebody asks. Gives: frozen values, and what follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkBufferPoolStatistics:
    """A snapshot of the TaskManager's memory.

    Attributes:
        total_segments: N.
        free_segments: with the network pool.
        lent_segments: with local pools, channels and connections; free + lent = N.
        required_segments: the sum of what pools were promised and of unpooled segments.
        requested_segments: what everybody would like to have: the maximum of every pool (of one without: twice what it
            was promised), and the unpooled segments.
        local_pools: how many there are.
        segment_size_bytes: of each.
    """

    total_segments: int
    free_segments: int
    lent_segments: int
    required_segments: int
    requested_segments: int
    local_pools: int
    segment_size_bytes: int

    @property
    def requested_percent(self) -> float:
        """`requested_segments` in percent of N; above 100 works with reduced throughput; 0 of none."""
        return 100.0 * self.requested_segments / max(1, self.total_segments)

    @property
    def total_bytes(self) -> int:
        """Size of all segments."""
        return self.total_segments * self.segment_size_bytes

    @property
    def free_bytes(self) -> int:
        """Size of the free segments."""
        return self.free_segments * self.segment_size_bytes

    @property
    def lent_bytes(self) -> int:
        """Size of the lent segments."""
        return self.lent_segments * self.segment_size_bytes


@dataclass(frozen=True, slots=True)
class LocalBufferPoolStatistics:
    """A snapshot of one pool.

    Attributes:
        required: its guaranteed size.
        maximum: its largest size, None without a bound.
        size: its size now.
        requested: segments taken from the network pool and not yet returned.
        available: of these, at hand.
        overdraft: of these, beyond the size.
        waiting_listeners: channels that wait for a floating buffer.
    """

    required: int
    maximum: int | None
    size: int
    requested: int
    available: int
    overdraft: int
    waiting_listeners: int

    @classmethod
    def sum_of(cls, pools: Sequence[LocalBufferPoolStatistics]) -> LocalBufferPoolStatistics | None:
        """Several pools as one; None of none."""
        if not pools:
            return None
        maxima = [pool.maximum for pool in pools if pool.maximum is not None]
        return cls(
            required=sum(pool.required for pool in pools),
            maximum=sum(maxima) if len(maxima) == len(pools) else None,
            size=sum(pool.size for pool in pools),
            requested=sum(pool.requested for pool in pools),
            available=sum(pool.available for pool in pools),
            overdraft=sum(pool.overdraft for pool in pools),
            waiting_listeners=sum(pool.waiting_listeners for pool in pools),
        )

    @property
    def used(self) -> int:
        """Segments in use."""
        return self.requested - self.available

    @property
    def usage(self) -> float:
        """Used segments as a part of the size.

        Above 1 while the pool has more than its size: by overdraft, or because it shrank and waits for segments.
        """
        return self.used / self.size if self.size else 0.0
