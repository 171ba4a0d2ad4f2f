"""The producer's state of one channel: credit, counters, and the view that it sends from.

Takes: notifications of its view. Gives: its place in the queue of the `ChannelSender`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ..buffer.buffer import BufferSource
from ..credit.sending import SendCredit


@final
class SendingChannel:
    """The producer's state of one channel."""

    __slots__ = (
        "_enqueue_if_ready",
        "_move_first",
        "backlog_announcements",
        "buffer_size",
        "credit",
        "is_first",
        "is_registered",
        "number",
        "partition_id",
        "subpartition",
        "view",
        "withdraw",
    )

    def __init__(
        self,
        number: int,
        partition_id: str,
        subpartition: int,
        initial_credit: int,
        enqueue_if_ready: Callable[[SendingChannel], None],
        move_first: Callable[[SendingChannel], None],
    ) -> None:
        self._enqueue_if_ready = enqueue_if_ready
        self._move_first = move_first
        self.number = number
        self.partition_id = partition_id
        self.subpartition = subpartition
        self.credit = SendCredit(initial_credit)
        self.backlog_announcements = 0
        self.buffer_size = 0
        """A size requested before the view existed; 0: none."""
        self.is_registered = False
        self.is_first = False
        self.view: BufferSource | None = None
        self.withdraw: Callable[[], None] | None = None

    def on_data_available(self) -> None:
        """Queues the channel: its subpartition has data, or failed."""
        if not self.is_registered:
            self._enqueue_if_ready(self)
        elif not self.is_first and self.view is not None and self.view.has_priority:
            self._move_first(self)
