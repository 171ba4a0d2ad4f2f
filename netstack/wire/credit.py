"""Credit as a type: what a sender may send, what a receiver promised.

Takes: counts of buffers. Gives: `SendCredit` to the sender, `ReceiveCredit` to the input channels.

Unit: network buffers. Every method is O(1); going below zero raises. The law both sides keep, per channel:
sender's credit + announcements in flight + unannounced + data buffers in flight = free buffers reserved at the
receiver.
"""

from __future__ import annotations

from typing import final

from ..errors import ErrorCode, LocalProtocolError, RemoteProtocolError

MAX_CREDIT = 1 << 31
"""No receiver has more buffers than this; a larger sum is a broken or hostile peer."""


@final
class SendCredit:
    """How many data buffers one channel may still send."""

    __slots__ = ("available", "granted", "is_on_demand")

    def __init__(self, initial: int) -> None:
        self.available = initial
        """May be sent now."""
        self.granted = initial
        """Granted so far, without what was forgotten."""
        self.is_on_demand = not initial
        """Whether the receiver has no buffers of its own for the channel: it grants for an announced backlog."""

    def grant(self, count: int) -> None:
        """The receiver announced `count` more.

        Raises:
            RemoteProtocolError: not above zero, or more than any receiver can have.
        """
        if count <= 0 or self.available + count > MAX_CREDIT:
            raise RemoteProtocolError(
                ErrorCode.CREDIT_VIOLATION, f"{count} credits announced on top of {self.available}; expected 1 to 2^31"
            )
        self.available += count
        self.granted += count

    def spend(self) -> None:
        """A data buffer goes out.

        Raises:
            LocalProtocolError: there is no credit for it.
        """
        if self.available <= 0:
            raise LocalProtocolError(f"a buffer without credit: {self.granted} were granted, and all are spent")
        self.available -= 1

    def forget(self) -> None:
        """What is left is void: while the channel was blocked, its receiver gave the buffers to others."""
        self.granted -= self.available
        self.available = 0


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
