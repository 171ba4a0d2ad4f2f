"""Credit as a type: what a sender may send. What a receiver promised is `ReceiveCredit` in `inbound.channel_buffers`.

Takes: counts of buffers. Gives: `SendCredit` to the sender.

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
            raise self.exceeded()
        self.available -= 1

    def exceeded(self) -> LocalProtocolError:
        """The error of a sender that has no credit for what it sends."""
        return LocalProtocolError(f"a buffer without credit: {self.granted} were granted, and all are spent")

    def forget(self) -> None:
        """What is left is void: while the channel was blocked, its receiver gave the buffers to others."""
        self.granted -= self.available
        self.available = 0
