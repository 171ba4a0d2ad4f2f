"""The receiver's side: the buffers of one remote input channel, and the credit that they give the producer.

Takes: buffers of the network pool and of the gate's pool, backlogs, received and consumed buffers. Gives: a free
segment for arriving data, credit to announce.

The channel keeps backlog + exclusive free buffers. For that it takes floating buffers, which the channels of a gate get
first come, first served. Every free buffer is either announced exactly once, or returned before that. If an exclusive
buffer is recycled while there are more free buffers than required, a floating one is returned and no credit is
announced.

A channel without exclusive buffers starts without credit and receives backlog announcements. It holds floating buffers
only for the backlog. While it is blocked it returns all of them, and the announced credit is void.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol, final

from ...base.events import DataType
from ..buffer.buffer import Buffer
from ..buffer.pools import BufferListener, LocalBufferPool, NetworkBufferPool
from ..buffer.segment import Segment
from .boost import EXPECTED_BUFFERS
from .sending import MAX_CREDIT

NO_QUEUE: Final[deque[Buffer]] = deque(maxlen=0)
"""The queue before the first buffer: an empty deque takes 760 bytes, more than the rest of an idle channel."""

TRICKLE_BYTES: Final = 256
"""A last buffer of so few bytes does not announce its credit at once, because its reader polls again soon. An
announcement before the record is delivered would wake the producer first, and delay the record."""


@final
class LandedBuffers(Buffer):
    """A run of data buffers that landed in their reader's memory: one element of the queue, and one to read.

    Each of them occupies a segment, which stands for its credit; all return together, in the order of arrival.
    """

    __slots__ = ("_manager", "floating", "segments")

    def __init__(self, memory: memoryview, manager: BufferManager) -> None:
        """Starts without segments: whoever makes it adds one for each buffer, and sets `buffers`."""
        super().__init__(memory, len(memory), DataType.DATA, manager)
        self._manager = manager
        self.segments: list[Segment] = []
        self.floating: list[bool] = []

    def _reclaim(self) -> None:
        self._manager.reclaim_landed(self.segments, self.floating)


@final
class ReceiveCredit:
    """Counts the reserved but unannounced buffers, and decides when an announcement is due.

    It is due when the unannounced credit exceeds the credit that the sender has left. So a sender that uses its credit
    receives more before it runs out. While both sides are busy, announcements are large (each wakes the sender, which
    costs as much as sending 100 KiB). A sender without credit receives some when half of what it sent was consumed.
    When a consumer runs out of data, it also announces to senders that may soon run out of credit (`is_short_for`).
    """

    __slots__ = ("announced", "is_scheduled", "unannounced", "used")

    def __init__(self, initial: int) -> None:
        self.announced = initial
        """Announced credit, the initial one included, without voided credit."""
        self.unannounced = 0
        """Reserved buffers that the next announcement contains."""
        self.used = 0
        """Received data buffers, which is the credit that the sender has spent."""
        self.is_scheduled = False
        """Whether an announcement is scheduled; also set from outside, for one that is not due yet."""

    def add(self, count: int) -> bool:
        """Adds reserved buffers. Returns whether an announcement must be scheduled."""
        unannounced = self.unannounced = self.unannounced + count
        if self.is_scheduled or unannounced <= self.announced - self.used:
            return False
        self.is_scheduled = True
        return True

    def use(self) -> bool:
        """Counts a received data buffer. Returns whether an announcement must be scheduled."""
        self.used += 1
        if self.is_scheduled or self.unannounced <= self.announced - self.used:
            return False
        self.is_scheduled = True
        return True

    def is_short_for(self, backlog: int) -> bool:
        """Whether a sender with this backlog may soon run out of credit while some is unannounced.

        That is so if its backlog is at least its credit, and its credit is at most four times the unannounced credit. A
        slow stream without a backlog gets credit when the unannounced credit exceeds the rest (`add`, `use`), not after
        every record, which would wake both ends.
        """
        if not self.unannounced or self.is_scheduled:
            return False
        left = self.announced - self.used
        return 0 < backlog >= left <= 4 * self.unannounced

    def forget(self) -> None:
        """Voids the announced but unused credit, and the unannounced one (`SendCredit.forget`)."""
        self.unannounced = 0
        self.announced = self.used

    def take(self) -> int:
        """Takes the unannounced credit for an announcement."""
        count, self.unannounced = self.unannounced, 0
        self.announced += count
        self.is_scheduled = False
        return count


class CreditLink(Protocol):
    """The receiver of a connection, which sends announcements of credit when the socket has room."""

    def schedule_announcement(self, manager: BufferManager) -> None:
        """Schedules an announcement of the channel's credit."""

    def announce_now(self) -> None:
        """Writes scheduled announcements: half of what the producer could send was consumed."""

    def defer_announcement(self, manager: BufferManager) -> None:
        """Defers an announcement until no data arrives."""


@final
class BufferManager:
    """The buffers of one channel: free ones, exclusive and floating, and filled ones that wait to be read."""

    __slots__ = (
        "_is_trickle",
        "_is_waiting",
        "_link",
        "_network",
        "_pool",
        "_share",
        "_window",
        "announcements",
        "backlog",
        "credit",
        "exclusive",
        "expected",
        "floating",
        "initial_credit",
        "is_on_demand",
        "is_released",
        "number",
        "queue",
        "required",
    )

    def __init__(
        self, exclusive: list[Segment], pool: LocalBufferPool, network: NetworkBufferPool, *, credit_based: bool
    ) -> None:
        """Takes its exclusive buffers; `RemoteInputChannel` describes the arguments."""
        self.exclusive = exclusive
        """Free exclusive buffers."""
        self.floating: list[Segment] = []
        """Free floating buffers."""
        self.queue: deque[Buffer] = NO_QUEUE
        """Received buffers and events that wait to be read."""
        self.initial_credit = len(exclusive)
        """Exclusive buffers: the credit before the first announcement."""
        self.credit = ReceiveCredit(len(exclusive) if credit_based else MAX_CREDIT)
        self.required = len(exclusive)
        """Free buffers that it keeps, as far as the pool has any."""
        self.backlog = 0
        """Data buffers at the producer, as announced last."""
        self.expected = 0
        """Buffers that the producer expects to send soon (`boost`), as many times as the gate's window is longer."""
        self._share = 0  # what the producer announced
        self._window = EXPECTED_BUFFERS
        self.is_on_demand = credit_based and not exclusive
        """Whether it has no exclusive buffers, and so no credit without a backlog."""
        self.is_released = False
        self.number = -1  # set by `attach`
        self.announcements = 0
        self._network = network
        self._pool = pool
        self._link: CreditLink | None = None
        self._is_waiting = False
        self._is_trickle = False

    def attach(self, link: CreditLink, number: int) -> None:
        """Attaches the channel to a connection under a number."""
        self._link = link
        self.number = number

    @property
    def free_buffers(self) -> int:
        """Free buffers, which the producer may still fill."""
        return len(self.exclusive) + len(self.floating)

    @property
    def queued_buffers(self) -> int:
        """Buffers and events in `queue`; O(queue)."""
        return sum(buffer.buffers for buffer in self.queue)

    @property
    def is_short_of_credit(self) -> bool:
        """Whether the producer may soon run out of credit while some is unannounced."""
        return self.credit.is_short_for(self.required - self.initial_credit)

    def on_data(self, backlog: int, length: int) -> None:
        """Counts a received data buffer of `length` bytes, which also announces the producer's backlog."""
        self.backlog = backlog
        wanted = backlog if backlog > self.expected else self.expected
        required = self.required = wanted + self.initial_credit
        self._is_trickle = not wanted and length <= TRICKLE_BYTES
        if self.credit.use() and self._link is not None:
            self._link.schedule_announcement(self)
        if not self._is_waiting and len(self.exclusive) + len(self.floating) < required:
            self.on_backlog(backlog)

    # Backlog and floating buffers.

    def on_backlog(self, backlog: int) -> None:
        """Reserves buffers for the producer's backlog, or for the buffers that it expects to send."""
        self.backlog = backlog
        required = self.required = max(backlog, self.expected) + self.initial_credit
        free = len(self.exclusive) + len(self.floating)
        if free >= required or self._is_waiting or self.is_released:
            return
        gained = 0
        while free < required:
            segment = self._pool.try_acquire()
            if segment is None:
                if not self._pool.is_destroyed:
                    self._is_waiting = self._pool.add_listener(self)
                break
            self.floating.append(segment)
            free += 1
            gained += 1
        if gained:
            self._announce(gained)

    def on_expected(self, buffers: int) -> None:
        """Reserves buffers for data that the producer expects to send soon."""
        self._share = buffers
        self.expected = buffers * self._window // EXPECTED_BUFFERS
        self.on_backlog(self.backlog)

    def widen(self, window: int) -> None:
        """Changes the window of its gate, of which it keeps the share open that its producer expects to send."""
        self._window = window
        if self._share:
            self.on_expected(self._share)

    def release_unannounced(self) -> None:
        """Returns floating buffers that are neither required nor announced."""
        credit = self.credit
        while credit.unannounced and self.floating and self.free_buffers > self.required:
            credit.unannounced -= 1
            self._pool.recycle(self.floating.pop())

    # For a receiver without credit.

    def borrow(self) -> bool:
        """Acquires a floating buffer for arrived data, unless one is free. Returns whether one is free."""
        if not self.floating:
            segment = self._pool.try_acquire()
            if segment is None:
                return False
            self.floating.append(segment)
        return True

    @property
    def borrowed(self) -> Segment:
        """The buffer that `borrow` acquired."""
        return self.floating[-1]

    def lend(self, segment: Segment) -> None:
        """Takes a floating buffer for arrived data."""
        self.floating.append(segment)

    def wait_to_borrow(self, listener: BufferListener) -> None:
        """Registers `listener` for the next floating buffer."""
        self._pool.add_listener(listener)

    # Recycled buffers.

    def reclaim(self, buffer: Buffer) -> None:
        """Takes the segment of a consumed buffer (`BufferOwner`)."""
        segment = buffer.segment
        assert segment is not None
        if buffer.is_floating:
            free = len(self.exclusive) + len(self.floating)
            if self._is_waiting and free + 1 < self.required and not self.is_released and self._pool.is_next(self):
                # A shortcut for `pool.recycle`, which would offer it to this channel as its only listener, and register
                # the channel again.
                self.floating.append(segment)
                self._announce(1)
                return
            self._pool.recycle(segment)
            return
        if self.is_released:
            self._network.recycle_unpooled([segment])
            return
        self.exclusive.append(segment)
        if self.floating and len(self.exclusive) + len(self.floating) > self.required:
            self._pool.recycle(self.floating.pop())  # its announced credit now stands for the exclusive one
        else:
            self._announce(1)

    def reclaim_landed(self, segments: list[Segment], floating: list[bool]) -> None:
        """Takes the segments of a consumed run: as `reclaim` of one after the other, with fewer announcements."""
        gained = 0
        for segment, is_floating in zip(segments, floating, strict=True):
            free = len(self.exclusive) + len(self.floating)
            if not is_floating:
                if self.is_released:
                    self._network.recycle_unpooled([segment])
                    continue
                self.exclusive.append(segment)
                if not self.floating or free < self.required:
                    gained += 1
                    continue
                segment = self.floating.pop()
            elif self._is_waiting and free + 1 < self.required and not self.is_released and self._pool.is_next(self):
                self.floating.append(segment)
                gained += 1
                continue
            if gained:  # first, since the pool may offer the segment to this channel
                self._announce(gained)
                gained = 0
            self._pool.recycle(segment)
        if gained:
            self._announce(gained)

    def on_buffer_available(self, segment: Segment) -> bool:
        """Takes a floating buffer that the pool offers, if it is required (`BufferListener`)."""
        self._is_waiting = False
        free = len(self.exclusive) + len(self.floating)
        if self.is_released or free >= self.required:
            return False
        self.floating.append(segment)
        if free + 1 < self.required:
            self._is_waiting = self._pool.add_listener(self)  # behind the others: one buffer each
        self._announce(1)
        return True

    def on_pool_destroyed(self) -> None:
        """The gate is closing (`BufferListener`)."""
        self._is_waiting = False

    def _announce(self, count: int) -> None:
        """Adds `count` reserved buffers to the credit, and announces them now or later."""
        credit, link = self.credit, self._link
        is_due = credit.add(count)
        assert (
            credit.announced >= MAX_CREDIT  # without credit
            or credit.announced - credit.used + credit.unannounced == len(self.exclusive) + len(self.floating)
        ), "each free buffer is announced, or will be, exactly once"
        if link is None:
            return
        if not credit.is_scheduled:
            link.defer_announcement(self)
            return
        if is_due:
            link.schedule_announcement(self)
        waiting = len(self.queue)  # elements: at most the buffers, which are counted only if the rest holds
        if (
            credit.unannounced > waiting
            and (waiting or not self._is_trickle)
            and credit.unannounced > self.queued_buffers
        ):
            link.announce_now()

    def release_floating(self) -> None:
        """Returns the floating buffers of a blocked channel; after the resume a backlog is announced again."""
        self.required = self.backlog = self.expected = self._share = 0
        self.credit.forget()
        floating, self.floating = self.floating, []
        for segment in floating:
            self._pool.recycle(segment)

    def release(self) -> None:
        """Returns every buffer to its pool."""
        self.is_released = True
        queue, self.queue = self.queue, NO_QUEUE
        for buffer in queue:
            buffer.recycle()
        self._network.recycle_unpooled(self.exclusive)
        self.exclusive = []
        floating, self.floating = self.floating, []
        for segment in floating:
            self._pool.recycle(segment)
