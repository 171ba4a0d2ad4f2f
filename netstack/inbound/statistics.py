"""What can be said of an input gate and its channels at one moment.

Takes: what they counted. Gives: `ChannelStatistics` and `GateStatistics`, with what follows from the counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..buffer.statistics import LocalBufferPoolStatistics
from ..waits import WaitStatistics


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """A snapshot of one input channel.

    Attributes:
        channel_index: its place in the gate.
        is_local: whether it reads a partition of its own TaskManager.
        partition_id: what it reads.
        subpartition: which of it.
        queued_buffers: data buffers and events that are here and not yet polled. A local channel's are those of its
            subpartition's queue that may be taken: not an unflushed open buffer, nothing behind a blocking event.
        queued_bytes: in them.
        buffers: data buffers received (local: polled).
        bytes: of data received (local: polled), length prefixes included.
        polled_buffers: data buffers polled by the task; what was queued when the channel was released counts too.
        polled_bytes: in them, length prefixes included.
        exclusive: buffers of its own (0 for local channels, and once it is released).
        free_exclusive: of these, at hand.
        free_floating: floating buffers at hand.
        unannounced_credit: reserved but not yet told to the producer.
        announced_credit: told so far, the initial credit included, without what both sides have forgotten since.
        announcements: credit announcements sent.
        backlog_announcements: received: the producer had data and no credit.
        sender_backlog: what waits at the producer: data buffers, as it told last; of a local channel what its queue
            does not let go yet.
        sender_expected: data buffers that the producer expects to send soon, whether they wait or not, because it was
            held up for want of credit; buffers are reserved for so many.
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

    Usages are parts of a whole, 0 when the whole is; local channels have no buffers of their own and do not count.

    Attributes:
        name: unique among the open gates of a TaskManager.
        channels: each of them; none while it is being opened.
        pool: its floating buffers; None when every channel is local.
        records: records its reader has decoded.
        idle: its reader waited because the gate (of a union: every gate of it) was empty.
        is_finished: whether every channel has ended.
        debloated_buffer_bytes: what its producers fill buffers to; None without debloating, and for a union.
        estimated_time_to_consume_s: for what was under way when that was last computed; None likewise, and before.
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
        """Data buffers and events that are here and not yet polled, over all channels."""
        return sum(channel.queued_buffers for channel in self.channels)

    @property
    def queued_bytes(self) -> int:
        """Bytes that are here and not yet polled, over all channels."""
        return sum(channel.queued_bytes for channel in self.channels)

    @property
    def shortest_queue_buffers(self) -> int:
        """What waits in the shortest queue of a channel."""
        return min((channel.queued_buffers for channel in self.channels), default=0)

    @property
    def longest_queue_buffers(self) -> int:
        """What waits in the longest queue of a channel."""
        return max((channel.queued_buffers for channel in self.channels), default=0)

    @property
    def average_queue_buffers(self) -> float:
        """What waits in a queue of a channel, on average."""
        return _part(self.queued_buffers, len(self.channels))

    @property
    def sender_backlog(self) -> int:
        """What waits at the producers, over all channels."""
        return sum(channel.sender_backlog for channel in self.channels)

    @property
    def sender_expected(self) -> int:
        """What producers expect to send soon, over all channels."""
        return sum(channel.sender_expected for channel in self.channels)

    @property
    def buffers_in_use(self) -> int:
        """Filled and not polled, here or at the producer; what `SingleInputGate.measure` says."""
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
        """Exclusive buffers that hold data, queued or still with the reader."""
        return sum(channel.exclusive - channel.free_exclusive for channel in self.channels)

    @property
    def floating_buffers(self) -> int:
        """Size of the pool of floating buffers."""
        return 0 if self.pool is None else self.pool.size

    @property
    def used_floating_buffers(self) -> int:
        """Floating buffers that hold data: those taken from the pool, without the free ones channels hold."""
        taken = 0 if self.pool is None else self.pool.used
        return max(0, taken - sum(channel.free_floating for channel in self.channels))

    @property
    def exclusive_usage(self) -> float:
        """Used exclusive buffers as a part of all exclusive ones."""
        return _part(self.used_exclusive_buffers, self.exclusive_buffers)

    @property
    def floating_usage(self) -> float:
        """Used floating buffers as a part of the pool's size; above 1 while the pool shrinks."""
        return _part(self.used_floating_buffers, self.floating_buffers)

    @property
    def in_pool_usage(self) -> float:
        """Used exclusive and floating buffers as a part of all; above 1 while the pool shrinks."""
        return _part(
            self.used_exclusive_buffers + self.used_floating_buffers, self.exclusive_buffers + self.floating_buffers
        )


def _part(used: int, total: int) -> float:
    return used / total if total else 0.0
