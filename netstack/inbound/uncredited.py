"""The model before credits, to be measured against: a channel without a free buffer stops its whole connection.

Takes: frames from the connection, buffers from the gates' pools. Gives: buffers to the channels, in order; a pause of
reading while the next of them has nowhere to go.

Channels are opened with more credit than anybody can spend, so a producer sends whatever it has. Buffers come from the
gate's pool when data arrives. When there is none, the frame and everything behind it that has been read already is kept
aside in order (at most what one system call brings), and the socket is not read from until the channel's gate has a
buffer again. Meanwhile no other channel of the connection gets anything: head-of-line blocking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from ..buffer.segment import Segment
from ..events import DataType
from ..wire.codec import Codec
from ..wire.frames import Frame
from .channel import RemoteInputChannel
from .receiver import ChannelReceiver, never


@final
class UncreditedReceiver(ChannelReceiver):
    """All channels of one dialled connection that is stopped by any of them."""

    def __init__(
        self,
        codec: Codec,
        *,
        peer: str,
        on_write_wanted: Callable[[], None],
        send: Callable[[Frame], None],
        on_empty: Callable[[], None],
        write_now: Callable[[], None],
        on_pause: Callable[[bool], None],
        retries: int = 0,
        call_later: Callable[[float, Callable[[], None]], None] = never,
    ) -> None:
        """Starts without channels, like `ChannelReceiver`.

        Args:
            codec: see there, as of all the others.
            peer: see there.
            on_write_wanted: see there.
            send: see there.
            on_empty: see there.
            write_now: see there.
            on_pause: told True when the socket must not be read from, False when it may again.
            retries: see there.
            call_later: see there.
        """
        super().__init__(
            codec,
            peer=peer,
            on_write_wanted=on_write_wanted,
            send=send,
            on_empty=on_empty,
            write_now=write_now,
            retries=retries,
            call_later=call_later,
        )
        self._on_pause = on_pause
        self._staged: deque[_Staged | Callable[[], None]] = deque()
        self._waiter: _Waiter | None = None
        self.stalls = 0
        """How often the connection was stopped."""

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        """A data buffer landed in `segment`."""
        entry = self._channels.get(channel)
        if not self._staged and (entry is None or entry.borrow()):
            return super().on_buffer(channel, sequence, 0, segment, length, checksum)
        self._staged.append(_Staged(channel, sequence, bytes(segment.memory[:length]), checksum))
        if len(self._staged) == 1 and entry is not None:
            self._stall(entry)
        return segment

    def on_small_buffer(self, channel: int, sequence: int, backlog: int, payload: bytes, checksum: int) -> None:
        """A data buffer on the heap."""
        entry = self._channels.get(channel)
        if not self._staged and (entry is None or entry.borrow()):
            super().on_small_buffer(channel, sequence, 0, payload, checksum)
            return
        self._staged.append(_Staged(channel, sequence, payload, checksum))
        if len(self._staged) == 1 and entry is not None:
            self._stall(entry)

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        """An in-band event."""
        if self._staged:
            self._staged.append(lambda: ChannelReceiver.on_event(self, channel, sequence, 0, data_type, payload))
        else:
            super().on_event(channel, sequence, 0, data_type, payload)

    def on_frame(self, frame: Frame) -> None:
        """What a producer may say."""
        if self._staged:
            self._staged.append(lambda: ChannelReceiver.on_frame(self, frame))
        else:
            super().on_frame(frame)

    def on_closed(self, error: Exception | None) -> None:
        """The connection is gone, and what was kept aside with it."""
        self._staged.clear()
        if self._waiter is not None:
            self._waiter.is_over = True
            self._waiter = None
        super().on_closed(error)

    def leave(self, channel: RemoteInputChannel) -> None:
        """The channel was released; if the connection waited for it, it goes on."""
        super().leave(channel)
        waiter = self._waiter
        if waiter is not None and waiter.channel is channel:
            waiter.is_over = True
            self.go_on()

    def go_on(self) -> None:
        """Delivers what was kept aside, as far as there are buffers; then the socket may be read from again."""
        self._waiter = None
        staged = self._staged
        while staged:
            head = staged[0]
            if isinstance(head, _Staged):
                entry = self._channels.get(head.channel)
                if entry is not None:
                    if not entry.borrow():
                        self._wait_for(entry)
                        return
                    # The buffer that was borrowed for it is the one it lands in, and so stays where it is.
                    segment = entry.borrowed
                    segment.memory[: len(head.payload)] = head.payload
                    super().on_buffer(head.channel, head.sequence, 0, segment, len(head.payload), head.checksum)
                staged.popleft()
            else:
                staged.popleft()
                head()
        self._on_pause(False)

    def _stall(self, channel: RemoteInputChannel) -> None:
        self.stalls += 1
        self._on_pause(True)
        self._wait_for(channel)

    def _wait_for(self, channel: RemoteInputChannel) -> None:
        self._waiter = _Waiter(self, channel)
        channel.wait_to_borrow(self._waiter)


@dataclass(frozen=True, slots=True)
class _Staged:
    """A data buffer that has nowhere to go."""

    channel: int
    sequence: int
    payload: bytes
    checksum: int


@final
class _Waiter:
    """Waits for a buffer of one channel's gate (a `BufferListener`)."""

    __slots__ = ("_receiver", "channel", "is_over")

    def __init__(self, receiver: UncreditedReceiver, channel: RemoteInputChannel) -> None:
        self._receiver = receiver
        self.channel = channel
        self.is_over = False

    def on_buffer_available(self, segment: Segment) -> bool:
        """The gate's pool offers a buffer."""
        if self.is_over or self.channel.is_released:
            return False
        self.is_over = True
        self.channel.lend(segment)
        self._receiver.go_on()
        return True

    def on_pool_destroyed(self) -> None:
        """The gate is closing: its channels leave by themselves."""
        self.is_over = True
