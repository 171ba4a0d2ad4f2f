"""Buffers of a partition that are written by hand, for tests of what is behind its writer."""

from __future__ import annotations

from netstack.exchange.buffer.builder import BufferBuilder
from netstack.exchange.outbound.partition import ResultPartition


def open_builder(partition: ResultPartition, subpartition: int) -> BufferBuilder:
    """A new buffer charged to a subpartition, which has one; not queued yet."""
    segment = partition.pool.try_acquire(subpartition)
    assert segment is not None
    return BufferBuilder(segment, partition.pool, subpartition)
