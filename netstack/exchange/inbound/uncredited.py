"""A receiver without credit, for comparison: `credit.uncredited` explains the model.

Takes: frames from the connection, buffers from the gates' pools. Gives: buffers to the channels, in order; a pause of
reading while the next frame has no buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ...base.events import DataType
from ..buffer.segment import Segment
from ..credit.receiving import BufferManager
from ..credit.uncredited import StagedFrames
from ..wire.codec import Codec, Inflate
from ..wire.frames import Frame
from .channel import RemoteInputChannel
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
        self._staged = StagedFrames(self._manager_of, on_pause)

    @property
    def stalls(self) -> int:
        """Number of times the connection was stopped."""
        return self._staged.stalls

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        """Delivers or stages a data buffer that was received in `segment`."""
        if self._staged.admits(channel):
            return super().on_buffer(channel, sequence, 0, segment, length, checksum)
        payload = bytes(segment.memory[:length])

        def deliver() -> None:
            # The frame uses exactly the borrowed buffer, which therefore stays where it is.
            segment = self._channels[channel].manager.borrowed
            segment.memory[: len(payload)] = payload
            ChannelReceiver.on_buffer(self, channel, sequence, 0, segment, len(payload), checksum)

        self._staged.add_data(channel, deliver)
        return segment

    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None:
        """Delivers or stages a data buffer on the heap."""
        if self._staged.admits(channel):
            super().on_small_buffer(channel, sequence, 0, payload, checksum)
        else:
            self._staged.add_data(
                channel, lambda: ChannelReceiver.on_small_buffer(self, channel, sequence, 0, payload, checksum)
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
        if self._staged.admits(channel):
            super().on_parts(channel, sequence, 0, body, sizes, inflate)
        else:
            copied = memoryview(bytes(body))
            self._staged.add_data(
                channel, lambda: ChannelReceiver.on_parts(self, channel, sequence, 0, copied, sizes, inflate)
            )

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        """Delivers or stages an in-band event."""
        if not self._staged.add(lambda: ChannelReceiver.on_event(self, channel, sequence, 0, data_type, payload)):
            super().on_event(channel, sequence, 0, data_type, payload)

    def on_frame(self, frame: Frame) -> None:
        """Handles or stages a producer's control frame."""
        if not self._staged.add(lambda: ChannelReceiver.on_frame(self, frame)):
            super().on_frame(frame)

    def on_closed(self, error: Exception | None) -> None:
        """Drops the staged frames: the connection has ended."""
        self._staged.close()
        super().on_closed(error)

    def remove(self, channel: RemoteInputChannel) -> None:
        """Removes a released channel; continues if the connection waited for it."""
        super().remove(channel)
        self._staged.remove(channel.manager)

    def _manager_of(self, number: int) -> BufferManager | None:
        channel = self._channels.get(number)
        return None if channel is None else channel.manager
