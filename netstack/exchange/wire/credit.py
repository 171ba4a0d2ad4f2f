"""SendCredit: how many buffers a sender may send. `inbound.channel_buffers.ReceiveCredit` is the receiver's side.

Takes: counts of buffers. Gives: `SendCredit` to the sender.

Unit: network buffers. Every method is O(1); falling below zero raises. Both sides keep this invariant for each channel:
sender's credit + announcements in flight + unannounced + data buffers in flight = free buffers reserved at the
receiver.
"""

from __future__ import annotations

from typing import final

from ...base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError

MAX_CREDIT = 1 << 31
"""No receiver has more buffers; a larger sum means a broken or hostile peer."""


@final
class SendCredit:
    """The number of data buffers that one channel may still send."""

    __slots__ = ("available", "granted", "is_on_demand")

    def __init__(self, initial: int) -> None:
        self.available = initial
        """Credit that is left."""
        self.granted = initial
        """Credit granted so far, without voided credit."""
        self.is_on_demand = not initial
        """Whether the receiver has no exclusive buffers for the channel and grants credit for an announced backlog."""

    def grant(self, count: int) -> None:
        """Adds announced credit.

        Raises:
            RemoteProtocolError: `count` is not above 0, or the sum exceeds what a receiver can have.
        """
        if count <= 0 or self.available + count > MAX_CREDIT:
            raise RemoteProtocolError(
                ErrorCode.CREDIT_VIOLATION, f"{count} credits announced on top of {self.available}; expected 1 to 2^31"
            )
        self.available += count
        self.granted += count

    def spend(self) -> None:
        """Spends one credit for a data buffer. Raises LocalProtocolError if no credit is left."""
        if self.available <= 0:
            raise self.exceeded()
        self.available -= 1

    def exceeded(self) -> LocalProtocolError:
        """The error of a sender without credit."""
        return LocalProtocolError(f"a buffer was sent without credit: all {self.granted} granted credits are spent")

    def forget(self) -> None:
        """Voids the remaining credit: while the channel was blocked, its receiver gave the buffers to others."""
        self.granted -= self.available
        self.available = 0
