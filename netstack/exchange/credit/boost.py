"""Announces expected buffers for channels that ran out of credit, and returns credit that they do not use.

Takes: channels that ran out of credit while data waited. Gives: `ExpectedBuffers` frames for them; for a channel that
stopped sending, the frame that expects none, and its unused credit as empty buffers.

Why: a buffer announces the backlog behind it, and the consumer reserves as many buffers. A blocked writer has queued
little, so the last buffer of a round announces a backlog of 0. The consumer then releases its buffers, and the next
round starts with the exclusive ones and waits a round trip for the others. A channel that was blocked a moment ago
will probably send more. With an announcement of that, the consumer keeps its window open: 1.4 to 1.5 times the
throughput with 2 + 8 buffers and 22 spare ones on one machine. On a long line the consumer keeps more open than is
announced here (`spare`).

Rules:
- Each channel announces its share of `EXPECTED_BUFFERS`; with many channels, others send while one waits.
- A channel keeps its window that has sent `BUSY_SHARES` times its share between two checks (`CHECK_S`), or has sent
  some and has a backlog, as on a long or slow line. One with a backlog may wait for credit for `PATIENCE` checks, and
  one that sends may lack a backlog at half as many: its queue is empty for a moment whenever the socket takes all.
- The window of others is closed. When such a channel has no backlog, its consumer is informed, and all credit above the
  initial one returns as empty buffers, credit that arrives later included. So an idle or unread channel holds no
  buffers that others may need.
- Channels without exclusive buffers, and those whose consumer requested smaller buffers (`NewBufferSize`), are left
  out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, final

from ...base.events import DataType
from ..buffer.buffer import BufferSource
from ..wire.codec import Codec
from ..wire.frames import ExpectedBuffers
from ..wire.outgoing_batch import OutgoingBatch
from .sending import MAX_CREDIT, SendCredit

EXPECTED_BUFFERS: Final = 32
"""For all channels of a connection: 1 MiB of buffers of the default size keeps both ends busy."""

CHECK_S: Final = 0.05
"""Seconds between two checks of boosted channels; a writer that pauses for less keeps its window."""

BUSY_SHARES: Final = 4
"""Shares in that time, 80 MB/s with default buffers: at such a rate a channel without a backlog keeps its window."""

PATIENCE: Final = 8
"""Checks, 0.4 s: longer than a round trip, so that a channel that waits for one round after the other is not idle."""

_DATA: Final = DataType.DATA


class BoostedChannel(Protocol):
    """A channel of the sender, as its boost uses it."""

    number: int
    credit: SendCredit
    view: BufferSource | None


@final
class CreditBoost:
    """The boosted channels of one connection, and those that stopped sending."""

    __slots__ = ("_call_later", "_codec", "_expecting", "_on_write_wanted", "_silent")

    def __init__(
        self,
        codec: Codec,
        call_later: Callable[[float, Callable[[], None]], None],
        on_write_wanted: Callable[[], None],
    ) -> None:
        """Starts without channels.

        Args:
            codec: encodes control frames.
            call_later: calls back once, after a delay in seconds.
            on_write_wanted: called when there is something to write.
        """
        self._codec = codec
        self._call_later = call_later
        self._on_write_wanted = on_write_wanted
        self._expecting: dict[BoostedChannel, tuple[int, int]] = {}
        """Boosted channels, with their sent buffers at the last check, and the patience that is left."""
        self._silent: dict[BoostedChannel, None] = {}  # channels that end their boost and return credit

    @property
    def has_silent(self) -> bool:
        """Whether `collect` has frames to add."""
        return bool(self._silent)

    def add(self, channel: BoostedChannel, channels: int, batch: OutgoingBatch) -> None:
        """Announces more buffers for a channel, one of `channels`, that has data and no credit."""
        share = EXPECTED_BUFFERS // channels
        credit = channel.credit
        if not share or not 0 < credit.initial < MAX_CREDIT or credit.wants_smaller_buffers:
            return
        credit.expected = share
        credit.gives_back = True
        batch.add_control(self._codec.encode_control(ExpectedBuffers(channel.number, share)))
        self._silent.pop(channel, None)
        if not self._expecting:
            self._call_later(CHECK_S, self._check)
        self._expecting[channel] = credit.spent, PATIENCE

    def on_credit(self, channel: BoostedChannel) -> None:
        """Returns credit that a channel with an ended boost has received."""
        credit = channel.credit
        if not credit.expected and credit.available > credit.initial:
            self._silent[channel] = None
            self._on_write_wanted()

    def forget(self, channel: BoostedChannel) -> None:
        """Removes a closed channel."""
        self._expecting.pop(channel, None)
        self._silent.pop(channel, None)

    def collect(self, batch: OutgoingBatch) -> None:
        """Adds the frames that end boosts and return credit."""
        waiting, self._silent = self._silent, {}
        for channel in waiting:
            view, credit = channel.view, channel.credit
            if view is None:
                continue
            has_room = batch.has_room
            if not has_room or view.is_available(has_credit=credit.available > 0):
                self._silent[channel] = None  # its data goes first, and announces the backlog
                continue
            batch.add_control(self._codec.encode_control(ExpectedBuffers(channel.number, 0)))
            while credit.available > credit.initial:
                if not batch.has_room:
                    self._silent[channel] = None
                    break
                empty = view.take_empty()
                if empty is None:
                    break
                credit.spend()
                header = self._codec.encode_buffer_header(channel.number, _DATA, empty.sequence, 0, 0, 0)
                batch.add_control(header)

    def _check(self) -> None:
        """Ends the boost of channels that have sent little since the last check."""
        expecting, self._expecting = self._expecting, {}
        for channel, (spent, patience) in expecting.items():
            credit = channel.credit
            sent = credit.spent - spent
            has_backlog = channel.view is not None and channel.view.backlog_buffers() > 0
            if sent >= BUSY_SHARES * credit.expected or (sent and has_backlog):
                patience = PATIENCE
            elif has_backlog:
                patience -= 1
            else:
                patience = patience - 2 if sent else 0
            if credit.expected and patience > 0:
                self._expecting[channel] = credit.spent, patience
            else:
                credit.expected = 0
                self._silent[channel] = None
        if self._expecting:
            self._call_later(CHECK_S, self._check)
        if self._silent:
            self._on_write_wanted()
