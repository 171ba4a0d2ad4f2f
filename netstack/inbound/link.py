"""What a remote channel tells its producer, through the receiver of its connection: `ChannelLink`.

Takes: intents of one channel. Gives: frames, when the socket has room for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .channel import RemoteInputChannel
    from .channel_buffers import ChannelBuffers


class ChannelLink(Protocol):
    """The receiver of a connection, as its channels see it."""

    def want_announcement(self, channel: ChannelBuffers) -> None:
        """The channel has credit to announce."""

    def announce_now(self) -> None:
        """Half of what the producer could send was consumed: it should hear of it before the rest is."""

    def hold_announcement(self, channel: ChannelBuffers) -> None:
        """The channel has credit that need not be announced while data keeps coming."""

    def want_resume(self, channel: RemoteInputChannel) -> None:
        """The producer may go on."""

    def want_buffer_size(self, channel: RemoteInputChannel, size_bytes: int) -> None:
        """The producer should fill new buffers to this size; only the newest counts."""

    def acknowledge(self, channel: RemoteInputChannel) -> None:
        """Every record was processed."""

    def leave(self, channel: RemoteInputChannel) -> None:
        """The channel is released; nothing more is wanted of it."""
