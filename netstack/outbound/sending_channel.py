"""One channel as its producer sees it: credit, what was sent, and the source it is sent from.

Takes: notifications of its source. Gives: its place in the line of the `ChannelSender`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from ..buffer.buffer import BufferSource
from ..wire.credit import SendCredit

if TYPE_CHECKING:
    from .sender import ChannelSender


@final
class SendingChannel:
    """One channel as the producer sees it."""

    __slots__ = (
        "_sender",
        "backlog_announcements",
        "buffer_size",
        "buffers",
        "credit",
        "expected",
        "gives_back",
        "has_asked_for_less",
        "initial_credit",
        "is_first",
        "is_registered",
        "number",
        "partition_id",
        "subpartition",
        "view",
        "withdraw",
    )

    def __init__(
        self, sender: ChannelSender, number: int, partition_id: str, subpartition: int, initial_credit: int
    ) -> None:
        self._sender = sender
        self.number = number
        self.partition_id = partition_id
        self.subpartition = subpartition
        self.credit = SendCredit(initial_credit)
        self.initial_credit = initial_credit
        self.expected = 0
        """Buffers that were announced to its consumer beside those that wait (`credit_boost`)."""
        self.gives_back = False
        """Whether it was ever expected to send more than it had, and so gives back credit that it does not use."""
        self.has_asked_for_less = False
        """Whether its consumer has asked for smaller buffers."""
        self.buffers = 0
        self.backlog_announcements = 0
        self.buffer_size = 0
        """Asked for before there was a view to pass it on to; 0 is nothing."""
        self.is_registered = False
        self.is_first = False
        self.view: BufferSource | None = None
        self.withdraw: Callable[[], None] | None = None

    def on_data_available(self) -> None:
        """The subpartition has something to take (or failed)."""
        if not self.is_registered:
            self._sender.enqueue_if_ready(self)
        elif not self.is_first and self.view is not None and self.view.has_priority:
            self._sender.move_first(self)
