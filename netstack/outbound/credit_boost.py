"""Channels that wait for credit: what they expect to send is announced, and what they do not use goes back.

Takes: channels that ran out of credit while data waited. Gives: how many buffers each expects to send; when one has
fallen silent, that it expects none, and its credit in empty buffers.

Why. A buffer tells how many wait behind it, and its consumer reserves as many. What a writer has queued is at most what
it was held up with, so the last buffer of every round tells of none: the consumer gives its buffers up, and the next
round begins with the exclusive ones and a round trip for the others. But who was held up a moment ago will go on. Told
so, the consumer keeps its window open: with 2 + 8 buffers and 22 spare ones 1.4 to 1.5 times the throughput.

Rules:
- A share of `EXPECTED_BUFFERS` for each channel of the connection; of many channels others have something when one has
  not.
- A channel that has sent less than `GOES_ON` times its share from one look to the next (`LOOK_S`) is slow, and a slow
  one needs no window. When nothing of it waits, its consumer learns so, and every credit above the initial one goes
  back as an empty buffer; so does what arrives later. So a silent channel holds no buffers that others may need.
- Not for channels without buffers of their own, nor for those whose consumer wants less under way (`NewBufferSize`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from ..events import DataType
from ..wire.codec import Codec
from ..wire.credit import MAX_CREDIT
from ..wire.frames import ExpectedBuffers
from ..wire.outgoing_batch import OutgoingBatch

if TYPE_CHECKING:
    from .sending_channel import SendingChannel

EXPECTED_BUFFERS: Final = 32
"""Of all channels of a connection: a MiB of the default size is as much as keeps both ends busy."""

LOOK_S: Final = 0.05
"""How often channels that were held up are looked at; a writer that pauses for less finds its window open."""

GOES_ON: Final = 4
"""Shares in that time: 80 MB/s of the default buffers. Below, a round trip for a few of them costs nothing."""

_DATA: Final = DataType.DATA


@final
class CreditBoost:
    """The channels of one connection that wait for credit, and those that waited and fell silent."""

    __slots__ = ("_call_later", "_codec", "_expecting", "_on_write_wanted", "_silent")

    def __init__(
        self,
        codec: Codec,
        call_later: Callable[[float, Callable[[], None]], None],
        on_write_wanted: Callable[[], None],
    ) -> None:
        """Starts without any.

        Args:
            codec: the layout.
            call_later: calls back once, so many seconds later.
            on_write_wanted: called when there is something to write.
        """
        self._codec = codec
        self._call_later = call_later
        self._on_write_wanted = on_write_wanted
        self._expecting: dict[SendingChannel, int] = {}  # with the buffers it had sent at the last look
        self._silent: dict[SendingChannel, None] = {}  # whose backlog, and credit, are to be announced and given back

    @property
    def has_silent(self) -> bool:
        """Whether `collect` has something to add."""
        return bool(self._silent)

    def add(self, channel: SendingChannel, channels: int, batch: OutgoingBatch) -> None:
        """A channel, of so many on the connection, has data and no credit: announces that more comes."""
        share = EXPECTED_BUFFERS // channels
        initial = channel.initial_credit
        if not share or not 0 < initial < MAX_CREDIT or channel.has_asked_for_less:
            return
        channel.expected = share
        channel.gives_back = True
        batch.add_control(self._codec.encode_control(ExpectedBuffers(channel.number, share)))
        self._silent.pop(channel, None)
        if not self._expecting:
            self._call_later(LOOK_S, self._look)
        self._expecting[channel] = channel.buffers

    def on_credit(self, channel: SendingChannel) -> None:
        """A channel that gives back has got credit: more than it needs, perhaps."""
        if not channel.expected and channel.credit.available > channel.initial_credit:
            self._silent[channel] = None
            self._on_write_wanted()

    def forget(self, channel: SendingChannel) -> None:
        """It is gone."""
        self._expecting.pop(channel, None)
        self._silent.pop(channel, None)

    def collect(self, batch: OutgoingBatch) -> None:
        """Adds what is to be said of channels that have fallen silent, and their credit."""
        waiting, self._silent = self._silent, {}
        for channel in waiting:
            view, credit = channel.view, channel.credit
            if view is None:
                continue
            has_room = batch.has_room
            if not has_room or view.is_available(has_credit=credit.available > 0):
                self._silent[channel] = None  # first what waits, which says how much that is
                continue
            batch.add_control(self._codec.encode_control(ExpectedBuffers(channel.number, 0)))
            while credit.available > channel.initial_credit:
                if not batch.has_room:
                    self._silent[channel] = None
                    break
                empty = view.take_empty()
                if empty is None:
                    break
                credit.spend()
                channel.buffers += 1
                header = self._codec.encode_buffer_header(channel.number, _DATA, empty.sequence, 0, 0, 0)
                batch.add_control(header)

    def _look(self) -> None:
        """Who has sent little since the last look may fall silent."""
        expecting, self._expecting = self._expecting, {}
        for channel, buffers in expecting.items():
            if channel.buffers - buffers >= GOES_ON * channel.expected > 0:
                self._expecting[channel] = channel.buffers
            else:
                channel.expected = 0
                self._silent[channel] = None
        if self._expecting:
            self._call_later(LOOK_S, self._look)
        if self._silent:
            self._on_write_wanted()
