"""Snapshots of the producing side: a partition, its subpartitions, and the channels that carry them.

Takes: counts. Gives: frozen values for metrics and reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.ids import PartitionId
from ...base.timing.waits import WaitStatistics
from ..buffer.statistics import LocalBufferPoolStatistics


@dataclass(frozen=True, slots=True)
class SubpartitionStatistics:
    """A snapshot of one subpartition.

    Attributes:
        queued_buffers: elements in the queue: events, data buffers, and the open buffer.
        queued_bytes: bytes in them that were written and not taken.
        backlog_buffers: data buffers that may be announced to the consumer.
        buffers_added: elements added so far.
        buffers_sent: elements taken so far; the next sequence number.
        bytes_sent: bytes taken so far.
        is_blocked: whether it waits for a resume.
        is_finished: whether its end was added.
        is_consumed: whether its consumer is closed or has read the end.
        credit: data buffers its consumer has room for; None for a local consumer, and before one connects.
    """

    queued_buffers: int
    queued_bytes: int
    backlog_buffers: int
    buffers_added: int
    buffers_sent: int
    bytes_sent: int
    is_blocked: bool
    is_finished: bool
    is_consumed: bool
    credit: int | None = None


@dataclass(frozen=True, slots=True)
class SendingChannelStatistics:
    """A snapshot of one channel at the producer.

    Attributes:
        credit: data buffers it may still send.
        credits_granted: credit received so far.
        buffers: data buffers sent.
        backlog_announcements: frames sent because it had a backlog and no credit (channels opened without credit).
    """

    channel: int
    partition_id: str
    subpartition: int
    credit: int
    credits_granted: int
    buffers: int
    backlog_announcements: int


@dataclass(frozen=True, slots=True)
class ResultPartitionStatistics:
    """A snapshot of one partition.

    Attributes:
        partition_id: its name.
        records: records emitted (a broadcast record counts once).
        buffers: data buffers finished.
        bytes: framed bytes written into them, length prefixes included (a broadcast buffer counts once).
        events: events broadcast.
        flushes_full: buffers that left because they were full.
        flushes_timeout: flushes caused by the buffer timeout: it had passed, or the channel was quiet for that time.
        flushes_event: buffers that left because an event followed.
        pool: its buffer pool.
        subpartitions: each subpartition.
        soft_backpressured: time its writer waited for output before the present record had taken a buffer (its first
            part may have filled an open buffer).
        hard_backpressured: time its writer waited inside a record that had taken a buffer and needed more.
        is_finished: whether its end was queued.
        is_released: whether it was released.
        bytes_per_subpartition: framed bytes finished for each consumer (a broadcast buffer counts for each).
        stored_bytes: of a kept partition: bytes on disk.
        compressed_bytes: of a kept partition: bytes of records that were compressed when stored.
        is_sealed: of a kept partition: whether all of it is on disk.
    """

    partition_id: PartitionId
    records: int
    buffers: int
    bytes: int
    events: int
    flushes_full: int
    flushes_timeout: int
    flushes_event: int
    pool: LocalBufferPoolStatistics
    subpartitions: tuple[SubpartitionStatistics, ...]
    soft_backpressured: WaitStatistics
    hard_backpressured: WaitStatistics
    is_finished: bool
    is_released: bool
    bytes_per_subpartition: tuple[int, ...] = ()
    stored_bytes: int = 0
    compressed_bytes: int = 0
    is_sealed: bool = False

    @property
    def out_pool_usage(self) -> float:
        """Used buffers of the pool divided by its size; above 1 with overdraft (`LocalBufferPoolStatistics.usage`)."""
        return self.pool.usage

    @property
    def queued_buffers(self) -> int:
        """Elements in the queues of all subpartitions; a broadcast buffer counts in each."""
        return sum(subpartition.queued_buffers for subpartition in self.subpartitions)

    @property
    def queued_bytes(self) -> int:
        """Bytes in the queues of all subpartitions; a broadcast buffer counts in each."""
        return sum(subpartition.queued_bytes for subpartition in self.subpartitions)

    @property
    def shortest_queue_buffers(self) -> int:
        """Elements in the shortest queue of a subpartition."""
        return min(subpartition.queued_buffers for subpartition in self.subpartitions)

    @property
    def longest_queue_buffers(self) -> int:
        """Elements in the longest queue of a subpartition."""
        return max(subpartition.queued_buffers for subpartition in self.subpartitions)

    @property
    def average_queue_buffers(self) -> float:
        """Average number of elements in a subpartition's queue."""
        return self.queued_buffers / len(self.subpartitions)

    @property
    def backpressured_ms_per_s(self) -> float:
        """Soft plus hard back-pressure over the last minute."""
        return self.soft_backpressured.ms_per_s + self.hard_backpressured.ms_per_s
