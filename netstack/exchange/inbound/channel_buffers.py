"""The exclusive and floating buffers of one remote input channel, and the credit that they give the producer.

Takes: buffers of the network pool and of the gate's pool, backlogs, consumed buffers. Gives: a free segment for
arriving data, credit to announce.

Rules for credit: the channel keeps backlog + exclusive free buffers. For that it takes floating buffers, which the
channels of a gate get first come, first served. Every free buffer is either announced exactly once, or returned
before that. If an exclusive buffer is recycled while there are more free buffers than required, a floating one is
returned and no credit is announced.

A channel without exclusive buffers starts without credit and receives backlog announcements. It holds floating buffers
only for the backlog. While it is blocked it returns all of them, and the announced credit is void.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol, final

from ..buffer.buffer import Buffer
from ..buffer.pools import BufferListener, LocalBufferPool, NetworkBufferPool
from ..buffer.segment import Segment
from ..wire.credit import MAX_CREDIT

NO_QUEUE: Final[deque[Buffer]] = deque(maxlen=0)
"""The queue before the first buffer: an empty deque takes 760 bytes, more than the rest of an idle channel."""


@final
class ReceiveCredit:
    """Counts the reserved but unannounced buffers, and decides when an announcement is due.

    It is due when the unannounced credit exceeds the credit that the sender has left. So a sender that uses its credit
    receives more before it runs out. While both sides are busy, announcements are large (each wakes the sender, which
    costs as much as sending 100 KiB). A sender without credit receives some when half of what it sent was consumed.
    When a consumer runs out of data, it also announces to senders that may soon run out of credit (`is_short_for`).
    """

    __slots__ = ("_scheduled", "announced", "unannounced", "used")

    def __init__(self, initial: int) -> None:
        self.announced = initial
        """Announced credit, the initial one included, without voided credit."""
        self.unannounced = 0
        """Reserved buffers that the next announcement contains."""
        self.used = 0
        """Received data buffers, which is the credit that the sender has spent."""
        self._scheduled = False

    def add(self, count: int) -> bool:
        """Adds reserved buffers. Returns whether an announcement must be scheduled."""
        unannounced = self.unannounced = self.unannounced + count
        if self._scheduled or unannounced <= self.announced - self.used:
            return False
        self._scheduled = True
        return True

    def use(self) -> bool:
        """Counts a received data buffer. Returns whether an announcement must be scheduled."""
        self.used += 1
        if self._scheduled or self.unannounced <= self.announced - self.used:
            return False
        self._scheduled = True
        return True

    def is_short_for(self, backlog: int) -> bool:
        """Whether a sender with this backlog may soon run out of credit while some is unannounced.

        That is so if its backlog is at least its credit, and its credit is at most four times the unannounced credit. A
        slow stream without a backlog gets credit when the unannounced credit exceeds the rest (`add`, `use`), not after
        every record, which would wake both ends.
        """
        if not self.unannounced or self._scheduled:
            return False
        left = self.announced - self.used
        return 0 < backlog >= left <= 4 * self.unannounced

    @property
    def is_scheduled(self) -> bool:
        """Whether an announcement is scheduled."""
        return self._scheduled

    def schedule(self) -> None:
        """Schedules an announcement that is not due."""
        self._scheduled = True

    def forget(self) -> None:
        """Voids the announced but unused credit, and the unannounced one (`SendCredit.forget`)."""
        self.unannounced = 0
        self.announced = self.used

    def take(self) -> int:
        """Takes the unannounced credit for an announcement."""
        count, self.unannounced = self.unannounced, 0
        self.announced += count
        self._scheduled = False
        return count


class ChannelLink(Protocol):
    """The receiver of a connection, as its channels use it: it sends their control frames when the socket has room."""

    def schedule_announcement(self, channel: ChannelBuffers) -> None:
        """Schedules an announcement of the channel's credit."""

    def announce_now(self) -> None:
        """Writes scheduled announcements: half of what the producer could send was consumed."""

    def defer_announcement(self, channel: ChannelBuffers) -> None:
        """Defers an announcement until no data arrives."""

    def send_resume(self, number: int) -> None:
        """Sends a resume for the channel of this number."""

    def request_buffer_size(self, number: int, size_bytes: int) -> None:
        """Requests a size for the channel's new buffers; only the newest request is sent."""

    def acknowledge(self, number: int) -> None:
        """Sends that every record of the channel was processed."""

    def remove(self, channel: ChannelBuffers) -> None:
        """Removes a released channel and cancels it at the producer."""


class ChannelBuffers:
    """The base of `RemoteInputChannel`; one object with it, because every buffer touches both."""

    __slots__ = (
        "_backlog",
        "_exclusive",
        "_expected",
        "_floating",
        "_initial_credit",
        "_is_trickle",
        "_link",
        "_network",
        "_on_demand",
        "_pool",
        "_queue",
        "_required",
        "_waiting",
        "announcements",
        "credit",
        "is_released",
        "number",
    )

    def __init__(
        self, exclusive: list[Segment], pool: LocalBufferPool, network: NetworkBufferPool, *, credit_based: bool
    ) -> None:
        """Takes its exclusive buffers; `RemoteInputChannel` describes the arguments."""
        self.is_released = False
        self.credit = ReceiveCredit(len(exclusive) if credit_based else MAX_CREDIT)
        self._network = network
        self._pool = pool
        self._exclusive = exclusive
        self._floating: list[Segment] = []
        self._initial_credit = len(exclusive)
        self._required = len(exclusive)
        self._backlog = 0
        self._expected = 0
        self._on_demand = credit_based and not exclusive
        self._waiting = False
        self.number = -1  # set by `attach`
        self.announcements = 0
        self._link: ChannelLink | None = None
        self._queue: deque[Buffer] = NO_QUEUE
        self._is_trickle = False

    @property
    def initial_credit(self) -> int:
        """Exclusive buffers: the credit before the first announcement."""
        return self._initial_credit

    @property
    def free_buffers(self) -> int:
        """Free buffers, which the producer may still fill."""
        return len(self._exclusive) + len(self._floating)

    @property
    def is_short_of_credit(self) -> bool:
        """Whether the producer may soon run out of credit while some is unannounced."""
        return self.credit.is_short_for(self._required - self._initial_credit)

    # Backlog and floating buffers.

    def on_backlog(self, backlog: int) -> None:
        """Reserves buffers for the producer's backlog, or for the buffers that it expects to send."""
        self._backlog = backlog
        required = self._required = max(backlog, self._expected) + self._initial_credit
        free = len(self._exclusive) + len(self._floating)
        if free >= required or self._waiting or self.is_released:
            return
        gained = 0
        while free < required:
            segment = self._pool.try_acquire()
            if segment is None:
                if not self._pool.is_destroyed:
                    self._waiting = self._pool.add_listener(self)
                break
            self._floating.append(segment)
            free += 1
            gained += 1
        if gained:
            self._announce(gained)

    def on_expected(self, buffers: int) -> None:
        """Reserves buffers for data that the producer expects to send soon."""
        self._expected = buffers
        self.on_backlog(self._backlog)

    def release_unannounced(self) -> None:
        """Returns floating buffers that are neither required nor announced."""
        credit = self.credit
        while credit.unannounced and self._floating and self.free_buffers > self._required:
            credit.unannounced -= 1
            self._pool.recycle(self._floating.pop())

    # For a receiver without credit.

    def borrow(self) -> bool:
        """Acquires a floating buffer for arrived data, unless one is free. Returns whether one is free."""
        if not self._floating:
            segment = self._pool.try_acquire()
            if segment is None:
                return False
            self._floating.append(segment)
        return True

    @property
    def borrowed(self) -> Segment:
        """The buffer that `borrow` acquired."""
        return self._floating[-1]

    def lend(self, segment: Segment) -> None:
        """Takes a floating buffer for arrived data."""
        self._floating.append(segment)

    def wait_to_borrow(self, listener: BufferListener) -> None:
        """Registers `listener` for the next floating buffer."""
        self._pool.add_listener(listener)

    # Recycled buffers.

    def reclaim(self, buffer: Buffer) -> None:
        """Takes the segment of a consumed buffer (`BufferOwner`)."""
        segment = buffer.segment
        assert segment is not None
        if buffer.is_floating:
            free = len(self._exclusive) + len(self._floating)
            if self._waiting and free + 1 < self._required and not self.is_released and self._pool.is_next(self):
                # A shortcut for `pool.recycle`, which would offer it to this channel as its only listener, and register
                # the channel again.
                self._floating.append(segment)
                self._announce(1)
                return
            self._pool.recycle(segment)
            return
        if self.is_released:
            self._network.recycle_unpooled([segment])
            return
        self._exclusive.append(segment)
        if self._floating and len(self._exclusive) + len(self._floating) > self._required:
            self._pool.recycle(self._floating.pop())  # its announced credit now stands for the exclusive one
        else:
            self._announce(1)

    def on_buffer_available(self, segment: Segment) -> bool:
        """Takes a floating buffer that the pool offers, if it is required (`BufferListener`)."""
        self._waiting = False
        free = len(self._exclusive) + len(self._floating)
        if self.is_released or free >= self._required:
            return False
        self._floating.append(segment)
        if free + 1 < self._required:
            self._waiting = self._pool.add_listener(self)  # behind the others: one buffer each
        self._announce(1)
        return True

    def on_pool_destroyed(self) -> None:
        """The gate is closing (`BufferListener`)."""
        self._waiting = False

    def _announce(self, count: int) -> None:
        """Adds `count` reserved buffers to the credit, and announces them now or later."""
        credit, link = self.credit, self._link
        is_due = credit.add(count)
        if link is None:
            return
        if not credit.is_scheduled:
            link.defer_announcement(self)
            return
        if is_due:
            link.schedule_announcement(self)
        waiting = len(self._queue)
        if credit.unannounced > waiting and (waiting or not self._is_trickle):
            link.announce_now()

    def _release_floating(self) -> None:
        """Returns the floating buffers of a blocked channel; after the resume a backlog is announced again."""
        self._required = self._backlog = self._expected = 0
        self.credit.forget()
        floating, self._floating = self._floating, []
        for segment in floating:
            self._pool.recycle(segment)

    def _return_all(self) -> None:
        """Returns every free buffer to its pool."""
        self._network.recycle_unpooled(self._exclusive)
        self._exclusive = []
        floating, self._floating = self._floating, []
        for segment in floating:
            self._pool.recycle(segment)
