"""Snapshots of an input gate and its channels.

Takes: counts. Gives: `ChannelStatistics` and `GateStatistics`, with values derived from the counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.timing.waits import WaitStatistics
from ..buffer.statistics import LocalBufferPoolStatistics


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """A snapshot of one input channel.

    Attributes:
        is_local: whether it reads a partition of its own TaskManager.
        queued_buffers: data buffers and events received and not polled. For a local channel: the available elements of
        the subpartition's queue, without an unflushed open buffer and without elements behind a blocking event.
        queued_bytes: bytes in them.
        buffers: data buffers received (local: polled).
        bytes: bytes of data received (local: polled), length prefixes included.
        polled_buffers: data buffers that the task polled, and those queued when the channel was released.
        polled_bytes: bytes in them, length prefixes included.
        exclusive: its exclusive buffers (0 for local channels, and after release).
        free_exclusive: of these, free.
        free_floating: free floating buffers.
        unannounced_credit: reserved buffers that were not announced.
        announced_credit: announced so far, the initial credit included, without voided credit.
        announcements: credit announcements sent.
        backlog_announcements: announcements received: the producer had data and no credit.
        sender_backlog: data buffers that wait at the producer, as last announced; for a local channel the elements of
        the queue that are not available.
        sender_expected: data buffers that the producer expects to send soon, waiting or not, because it ran out of
        credit; buffers are reserved for them.
        is_finished: whether its end was polled.
    """

    channel_index: int
    is_local: bool
    partition_id: str
    subpartition: int
    queued_buffers: int
    queued_bytes: int
    buffers: int
    bytes: int
    polled_buffers: int
    polled_bytes: int
    exclusive: int
    free_exclusive: int
    free_floating: int
    unannounced_credit: int
    announced_credit: int
    announcements: int
    backlog_announcements: int
    sender_backlog: int
    sender_expected: int
    is_finished: bool


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A snapshot of one gate.

    Usages are fractions, 0 if the whole is 0. Local channels have no buffers of their own and do not count.

    Attributes:
        name: unique among the open gates of a TaskManager.
        channels: its channels; empty while it is being opened.
        pool: its floating buffers; None if every channel is local.
        records: records its reader has decoded.
        idle: time its reader waited because the gate (of a union: every gate) was empty.
        is_finished: whether every channel has ended.
        debloated_buffer_bytes: requested size of its producers' buffers; None without debloating, and for a union.
        estimated_time_to_consume_s: for the data in flight at the last debloating; None without one.
    """

    name: str
    channels: tuple[ChannelStatistics, ...]
    pool: LocalBufferPoolStatistics | None
    records: int
    idle: WaitStatistics
    is_finished: bool
    debloated_buffer_bytes: int | None = None
    estimated_time_to_consume_s: float | None = None

    @property
    def queued_buffers(self) -> int:
        """Data buffers and events received and not polled, of all channels."""
        return sum(channel.queued_buffers for channel in self.channels)

    @property
    def queued_bytes(self) -> int:
        """Bytes received and not polled, of all channels."""
        return sum(channel.queued_bytes for channel in self.channels)

    @property
    def shortest_queue_buffers(self) -> int:
        """Elements in the shortest queue of a channel."""
        return min((channel.queued_buffers for channel in self.channels), default=0)

    @property
    def longest_queue_buffers(self) -> int:
        """Elements in the longest queue of a channel."""
        return max((channel.queued_buffers for channel in self.channels), default=0)

    @property
    def average_queue_buffers(self) -> float:
        """Average number of elements in a channel's queue."""
        return _part(self.queued_buffers, len(self.channels))

    @property
    def sender_backlog(self) -> int:
        """Data buffers that wait at the producers, of all channels."""
        return sum(channel.sender_backlog for channel in self.channels)

    @property
    def sender_expected(self) -> int:
        """Data buffers that producers expect to send soon, of all channels."""
        return sum(channel.sender_expected for channel in self.channels)

    @property
    def buffers_in_use(self) -> int:
        """Filled and unpolled buffers, here or at the producers, as `SingleInputGate.measure` counts them."""
        return self.queued_buffers + self.sender_backlog

    @property
    def local_buffers(self) -> int:
        """Data buffers polled from local channels."""
        return sum(channel.polled_buffers for channel in self.channels if channel.is_local)

    @property
    def remote_buffers(self) -> int:
        """Data buffers polled from remote channels."""
        return sum(channel.polled_buffers for channel in self.channels if not channel.is_local)

    @property
    def local_bytes(self) -> int:
        """Bytes of data polled from local channels, length prefixes included."""
        return sum(channel.polled_bytes for channel in self.channels if channel.is_local)

    @property
    def remote_bytes(self) -> int:
        """Bytes of data polled from remote channels, length prefixes included."""
        return sum(channel.polled_bytes for channel in self.channels if not channel.is_local)

    @property
    def announcements(self) -> int:
        """Credit announcements sent to producers."""
        return sum(channel.announcements for channel in self.channels)

    @property
    def backlog_announcements(self) -> int:
        """Announcements of producers that had data and no credit."""
        return sum(channel.backlog_announcements for channel in self.channels)

    @property
    def exclusive_buffers(self) -> int:
        """Exclusive buffers of its channels."""
        return sum(channel.exclusive for channel in self.channels)

    @property
    def used_exclusive_buffers(self) -> int:
        """Exclusive buffers that hold data, queued or in use by the reader."""
        return sum(channel.exclusive - channel.free_exclusive for channel in self.channels)

    @property
    def floating_buffers(self) -> int:
        """Size of the pool of floating buffers."""
        return 0 if self.pool is None else self.pool.size

    @property
    def used_floating_buffers(self) -> int:
        """Floating buffers that hold data: those taken from the pool, without the free ones of channels."""
        taken = 0 if self.pool is None else self.pool.used
        return max(0, taken - sum(channel.free_floating for channel in self.channels))

    @property
    def exclusive_usage(self) -> float:
        """Used exclusive buffers divided by all exclusive ones."""
        return _part(self.used_exclusive_buffers, self.exclusive_buffers)

    @property
    def floating_usage(self) -> float:
        """Used floating buffers divided by the pool's size; above 1 while the pool shrinks."""
        return _part(self.used_floating_buffers, self.floating_buffers)

    @property
    def in_pool_usage(self) -> float:
        """Used exclusive and floating buffers divided by all; above 1 while the pool shrinks."""
        return _part(
            self.used_exclusive_buffers + self.used_floating_buffers, self.exclusive_buffers + self.floating_buffers
        )


def _part(used: int, total: int) -> float:
    return used / total if total else 0.0
