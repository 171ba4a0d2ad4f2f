"""The producer's state of one channel: credit, counters, and the view that it sends from.

Takes: notifications of its view. Gives: its place in the queue of the `ChannelSender`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ..buffer.buffer import BufferSource
from ..wire.credit import SendCredit


@final
class SendingChannel:
    """The producer's state of one channel."""

    __slots__ = (
        "_enqueue_if_ready",
        "_move_first",
        "backlog_announcements",
        "buffer_size",
        "buffers",
        "credit",
        "expected",
        "gives_back",
        "initial_credit",
        "is_first",
        "is_registered",
        "number",
        "partition_id",
        "subpartition",
        "view",
        "wants_smaller_buffers",
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
        self.initial_credit = initial_credit
        self.expected = 0
        """Buffers announced to its consumer in addition to its backlog (`credit_boost`)."""
        self.gives_back = False
        """Whether it was ever boosted, and so returns credit that it does not use."""
        self.wants_smaller_buffers = False
        """Whether its consumer has requested smaller buffers."""
        self.buffers = 0
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
