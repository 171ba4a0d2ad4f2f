"""The buffers of one remote input channel: its own, those it has borrowed, and the producer's credit for them.

Takes: buffers of the network pool and of the gate's, backlogs, buffers that were consumed. Gives: a free segment for
what arrives, credit to announce.

Rules for credit: wanted free buffers = backlog + exclusive. Floating buffers are taken for that, first come
first served among the channels of the gate. Every free buffer is either announced exactly once or given back before it
was; an exclusive buffer that is recycled while there is more than wanted gives a floating one back, not a credit.

A channel without exclusive buffers starts without credit and hears of a backlog by announcements. It holds floating
buffers only for what waits: while it is blocked it gives all of them back, and what was announced is void.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from ..buffer.buffer import Buffer
from ..buffer.local_pool import BufferListener, LocalBufferPool
from ..buffer.network_pool import NetworkBufferPool
from ..buffer.segment import Segment
from ..wire.credit import MAX_CREDIT
from .link import ChannelLink

NO_QUEUE: Final[deque[Buffer]] = deque(maxlen=0)
"""Stands where nothing has come yet: an empty deque takes 760 bytes, more than all the rest of an idle channel."""


@final
class ReceiveCredit:
    """What a receiver has reserved but not yet announced, and whether an announcement is due.

    An announcement is due when more is unannounced than the sender still has. So a sender that uses its credit hears of
    more before it runs out; while both sides are busy it gets large portions (each announcement wakes it, which costs
    as much as sending 100 KiB); and a sender that has none left gets some as soon as half of what it sent was consumed.
    A consumer that runs out of data tells the rest to every sender that may soon be out of credit (`is_short_for`).
    """

    __slots__ = ("_scheduled", "announced", "unannounced", "used")

    def __init__(self, initial: int) -> None:
        self.announced = initial
        """Announced so far, the initial credit included, without what was forgotten."""
        self.unannounced = 0
        """Reserved, part of the next announcement."""
        self.used = 0
        """Data buffers that came: credit the sender has spent."""
        self._scheduled = False

    def add(self, count: int) -> bool:
        """More buffers were reserved. Returns whether an announcement must be scheduled now."""
        unannounced = self.unannounced = self.unannounced + count
        if self._scheduled or unannounced <= self.announced - self.used:
            return False
        self._scheduled = True
        return True

    def use(self) -> bool:
        """A data buffer came. Returns whether an announcement must be scheduled now."""
        self.used += 1
        if self._scheduled or self.unannounced <= self.announced - self.used:
            return False
        self._scheduled = True
        return True

    def is_short_for(self, backlog: int) -> bool:
        """Whether a sender with `backlog` buffers waiting may soon be out of credit although there is some to announce.

        Soon: as much is waiting there as it may still send, and that is not far more than would be news. A slow stream,
        of which nothing waits, gets credit when more than half of its credit would be news (`add`, `use`), not after
        every record, which would wake both ends.
        """
        if not self.unannounced or self._scheduled:
            return False
        left = self.announced - self.used
        return 0 < backlog >= left <= 4 * self.unannounced

    @property
    def is_scheduled(self) -> bool:
        """Whether an announcement is due and not yet taken."""
        return self._scheduled

    def schedule(self) -> None:
        """An announcement is scheduled although none was due."""
        self._scheduled = True

    def forget(self) -> None:
        """What was announced and not used, and what was not announced yet, is void; see `SendCredit.forget`."""
        self.unannounced = 0
        self.announced = self.used

    def take(self) -> int:
        """Everything unannounced, which is announced with this."""
        count, self.unannounced = self.unannounced, 0
        self.announced += count
        self._scheduled = False
        return count


class ChannelBuffers:
    """What `RemoteInputChannel` is besides a queue: one object with it, because every buffer touches both."""

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
        """Takes its exclusive buffers; see `RemoteInputChannel`."""
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
        self.number = -1  # given by the receiver
        self.announcements = 0
        self._link: ChannelLink | None = None
        self._queue: deque[Buffer] = NO_QUEUE
        self._is_trickle = False

    @property
    def initial_credit(self) -> int:
        """Exclusive buffers: what the producer may send before it hears of more."""
        return self._initial_credit

    @property
    def free_buffers(self) -> int:
        """Buffers reserved and empty: what the producer may still fill."""
        return len(self._exclusive) + len(self._floating)

    @property
    def is_short_of_credit(self) -> bool:
        """Whether the producer has more to send than it may, although there is credit to announce."""
        return self.credit.is_short_for(self._required - self._initial_credit)

    # What comes.

    def on_backlog(self, backlog: int) -> None:
        """The producer has `backlog` data buffers waiting: reserve for them, or for more if it expects more."""
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
        """The producer expects to send so many soon, although fewer may wait."""
        self._expected = buffers
        self.on_backlog(self._backlog)

    def give_up_unannounced(self) -> None:
        """Less waits at the producer than it expected: others get what is reserved for that and was not announced."""
        credit = self.credit
        while credit.unannounced and self._floating and self.free_buffers > self._required:
            credit.unannounced -= 1
            self._pool.recycle(self._floating.pop())

    # From a receiver without credits.

    def borrow(self) -> bool:
        """Takes a buffer of the gate for data that has arrived, if none was taken yet. Returns whether there is one."""
        if not self._floating:
            segment = self._pool.try_acquire()
            if segment is None:
                return False
            self._floating.append(segment)
        return True

    @property
    def borrowed(self) -> Segment:
        """What `borrow` took."""
        return self._floating[-1]

    def lend(self, segment: Segment) -> None:
        """A buffer of the gate, for data that has arrived."""
        self._floating.append(segment)

    def wait_to_borrow(self, listener: BufferListener) -> None:
        """Has `listener` offered the next buffer of the gate."""
        self._pool.add_listener(listener)

    # Buffers that come back.

    def reclaim(self, buffer: Buffer) -> None:
        """A buffer was consumed (`BufferOwner`)."""
        segment = buffer.segment
        assert segment is not None
        if buffer.is_floating:
            free = len(self._exclusive) + len(self._floating)
            if self._waiting and free + 1 < self._required and not self.is_released and self._pool.is_next(self):
                # What the pool would do, in fewer steps: offer it to its only listener, which is this channel and would
                # get in line again.
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
            self._pool.recycle(self._floating.pop())  # one in, one out: the credit already announced now means this one
        else:
            self._announce(1)

    def on_buffer_available(self, segment: Segment) -> bool:
        """The gate's pool offers a floating buffer (`BufferListener`)."""
        self._waiting = False
        free = len(self._exclusive) + len(self._floating)
        if self.is_released or free >= self._required:
            return False
        self._floating.append(segment)
        if free + 1 < self._required:
            self._waiting = self._pool.add_listener(self)  # at the back: one buffer a turn
        self._announce(1)
        return True

    def on_pool_destroyed(self) -> None:
        """The gate is closing."""
        self._waiting = False

    def _announce(self, count: int) -> None:
        """So many buffers more were reserved: announces them to the producer, now or later."""
        credit, link = self.credit, self._link
        is_due = credit.add(count)
        if link is None:
            return
        if not credit.is_scheduled:
            link.hold_announcement(self)
            return
        if is_due:
            link.want_announcement(self)
        waiting = len(self._queue)
        if credit.unannounced > waiting and (waiting or not self._is_trickle):
            link.announce_now()

    def _give_up_floating(self) -> None:
        """The channel is blocked: its floating buffers serve others, until it is resumed and announces a backlog."""
        self._required = self._backlog = self._expected = 0
        self.credit.forget()
        floating, self._floating = self._floating, []
        for segment in floating:
            self._pool.recycle(segment)

    def _return_all(self) -> None:
        """Gives every free buffer back."""
        self._network.recycle_unpooled(self._exclusive)
        self._exclusive = []
        floating, self._floating = self._floating, []
        for segment in floating:
            self._pool.recycle(segment)
