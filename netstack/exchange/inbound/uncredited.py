"""The model before credit, for comparison: a channel without a free buffer stops its whole connection.

Takes: frames from the connection, buffers from the gates' pools. Gives: buffers to the channels, in order; a pause of
reading while the next frame has no buffer.

Channels are opened with unlimited credit, so a producer sends whatever it has. Data takes a buffer of the gate's pool
when it arrives. If there is none, the frame and everything already read behind it is staged in order (at most what one
system call reads), and the socket is not read until the channel's gate has a buffer again. Meanwhile no other channel
of the connection receives anything: head-of-line blocking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from ...base.events import DataType
from ..buffer.segment import Segment
from ..wire.codec import Codec, Inflate
from ..wire.frames import Frame
from .channel import RemoteInputChannel
from .channel_buffers import ChannelBuffers
from .receiver import ChannelReceiver, never


@final
class UncreditedReceiver(ChannelReceiver):
    """All channels of one dialled connection, which any of them may stop."""

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
        """Like `ChannelReceiver`; `on_pause(True)` stops reading from the socket, `on_pause(False)` continues."""
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
        """Number of times the connection was stopped."""

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        """Delivers or stages a data buffer that was received in `segment`."""
        entry = self._channels.get(channel)
        if not self._staged and (entry is None or entry.borrow()):
            return super().on_buffer(channel, sequence, 0, segment, length, checksum)
        payload = bytes(segment.memory[:length])

        def deliver(entry: RemoteInputChannel) -> None:
            # The frame uses exactly the borrowed buffer, which therefore stays where it is.
            segment = entry.borrowed
            segment.memory[: len(payload)] = payload
            ChannelReceiver.on_buffer(self, channel, sequence, 0, segment, len(payload), checksum)

        self._stage(channel, entry, deliver)
        return segment

    def on_small_buffer(self, channel: int, sequence: int, backlog: int, payload: bytes, checksum: int) -> None:
        """Delivers or stages a data buffer on the heap."""
        entry = self._channels.get(channel)
        if not self._staged and (entry is None or entry.borrow()):
            super().on_small_buffer(channel, sequence, 0, payload, checksum)
            return
        self._stage(
            channel,
            entry,
            lambda _: ChannelReceiver.on_small_buffer(self, channel, sequence, 0, payload, checksum),
        )

    def on_parts(
        self,
        channel: int,
        sequence: int,
        backlog: int,
        body: memoryview,
        sizes: tuple[int, ...],
        inflate: Inflate | None,
    ) -> None:
        """Delivers or stages the data buffers of one frame, which take one buffer together."""
        entry = self._channels.get(channel)
        if not self._staged and (entry is None or entry.borrow()):
            super().on_parts(channel, sequence, 0, body, sizes, inflate)
            return
        copied = memoryview(bytes(body))
        self._stage(
            channel, entry, lambda _: ChannelReceiver.on_parts(self, channel, sequence, 0, copied, sizes, inflate)
        )

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        """Delivers or stages an in-band event."""
        if self._staged:
            self._staged.append(lambda: ChannelReceiver.on_event(self, channel, sequence, 0, data_type, payload))
        else:
            super().on_event(channel, sequence, 0, data_type, payload)

    def on_frame(self, frame: Frame) -> None:
        """Handles or stages a producer's control frame."""
        if self._staged:
            self._staged.append(lambda: ChannelReceiver.on_frame(self, frame))
        else:
            super().on_frame(frame)

    def on_closed(self, error: Exception | None) -> None:
        """Drops the staged frames: the connection has ended."""
        self._staged.clear()
        if self._waiter is not None:
            self._waiter.is_over = True
            self._waiter = None
        super().on_closed(error)

    def remove(self, channel: ChannelBuffers) -> None:
        """Removes a released channel; continues if the connection waited for it."""
        super().remove(channel)
        waiter = self._waiter
        if waiter is not None and waiter.channel is channel:
            waiter.is_over = True
            self.deliver_staged()

    def deliver_staged(self) -> None:
        """Delivers staged frames while there are buffers; then reading continues."""
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
                    head.deliver(entry)
                staged.popleft()
            else:
                staged.popleft()
                head()
        self._on_pause(False)

    def _stage(
        self, channel: int, entry: RemoteInputChannel | None, deliver: Callable[[RemoteInputChannel], None]
    ) -> None:
        self._staged.append(_Staged(channel, deliver))
        if len(self._staged) == 1 and entry is not None:
            self._stall(entry)

    def _stall(self, channel: RemoteInputChannel) -> None:
        self.stalls += 1
        self._on_pause(True)
        self._wait_for(channel)

    def _wait_for(self, channel: RemoteInputChannel) -> None:
        self._waiter = _Waiter(self, channel)
        channel.wait_to_borrow(self._waiter)


@dataclass(frozen=True, slots=True)
class _Staged:
    """A data buffer that waits for a free segment."""

    channel: int
    deliver: Callable[[RemoteInputChannel], None]


@final
class _Waiter:
    """Waits for a floating buffer of one channel's gate (a `BufferListener`)."""

    __slots__ = ("_receiver", "channel", "is_over")

    def __init__(self, receiver: UncreditedReceiver, channel: RemoteInputChannel) -> None:
        self._receiver = receiver
        self.channel = channel
        self.is_over = False

    def on_buffer_available(self, segment: Segment) -> bool:
        """Takes the buffer that the pool offers, and continues."""
        if self.is_over or self.channel.is_released:
            return False
        self.is_over = True
        self.channel.lend(segment)
        self._receiver.deliver_staged()
        return True

    def on_pool_destroyed(self) -> None:
        """The gate is closing; its channels are removed separately."""
        self.is_over = True
