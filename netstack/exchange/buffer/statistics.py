"""Snapshots of the two levels of pools.

Takes: counts, on request. Gives: frozen values, and values derived from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkBufferPoolStatistics:
    """A snapshot of the TaskManager's memory.

    Attributes:
        total_segments: all segments, N.
        free_segments: those in the network pool.
        lent_segments: those of local pools, channels and connections; free + lent = N.
        required_segments: guaranteed segments of all pools, and unpooled segments.
        requested_segments: what everybody would like to have: the maximum of every pool (of one without: twice what it
            was promised), and the unpooled segments.
        local_pools: number of local pools.
        segment_size_bytes: size of each segment.
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
        """`requested_segments` in percent of N. Above 100 everything works, with reduced throughput."""
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
        required: guaranteed size.
        maximum: largest size; None: unbounded.
        size: present size.
        requested: segments taken from the network pool and not yet returned to it.
        available: of these, free.
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
        """Adds up several pools; None for an empty sequence."""
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
        """Used segments divided by the size.

        Above 1 while the pool holds more than its size: overdraft, or it shrank and segments are still in use.
        """
        return self.used / self.size if self.size else 0.0
