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

    __slots__ = ("available", "granted")

    def __init__(self, initial: int) -> None:
        self.available = initial
        """May be sent now."""
        self.granted = initial
        """Ever granted, for metrics."""

    def spend(self) -> None:
        """One data buffer goes out.

        Raises:
            LocalProtocolError: there is no credit; the sender must not have chosen this channel.
        """
        if self.available <= 0:
            raise LocalProtocolError("a data buffer was chosen without credit")
        self.available -= 1

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


@final
class ReceiveCredit:
    """What a receiver has reserved but not yet told the sender."""

    __slots__ = ("announced", "unannounced")

    def __init__(self, initial: int) -> None:
        self.announced = initial
        """Ever announced, the initial credit included."""
        self.unannounced = 0
        """Reserved, to be told with the next announcement."""

    def add(self, count: int) -> bool:
        """More buffers were reserved. Returns whether an announcement must be scheduled (the edge from 0)."""
        was = self.unannounced
        self.unannounced = was + count
        return was == 0

    def take(self) -> int:
        """Everything unannounced, which is announced with this."""
        count, self.unannounced = self.unannounced, 0
        self.announced += count
        return count
