"""The sender's side: how many data buffers one channel may still send.

Takes: initial and announced credit, data buffers as they are sent. Gives: whether one more may be sent.

Unit: network buffers. Every method is O(1), and none lets `available` fall below zero.
"""

from __future__ import annotations

from typing import Final, final

from ...base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError

MAX_CREDIT: Final = 1 << 31
"""No receiver has more buffers; a larger sum means a broken or hostile peer."""


@final
class SendCredit:
    """The number of data buffers that one channel may still send: what was granted and is not spent."""

    __slots__ = ("available", "expected", "gives_back", "granted", "initial", "is_on_demand", "wants_smaller_buffers")

    def __init__(self, initial: int) -> None:
        self.initial: Final = initial
        """The exclusive buffers of the receiver."""
        self.is_on_demand: Final = not initial
        """Whether the receiver has no exclusive buffers for the channel and grants credit for an announced backlog."""
        self.available = initial
        """Credit that is left. The sender checks and lowers it itself for each buffer, as `spend` does."""
        self.granted = initial
        """Credit granted so far, without voided credit."""
        self.expected = 0
        """Buffers announced to the receiver in addition to the backlog (`boost`)."""
        self.gives_back = False
        """Whether the channel was ever boosted, and so returns credit that it does not use."""
        self.wants_smaller_buffers = False
        """Whether the receiver has requested smaller buffers; then the channel is not boosted."""

    @property
    def spent(self) -> int:
        """Data buffers sent so far."""
        return self.granted - self.available

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
