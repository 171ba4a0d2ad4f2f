"""ChannelLink: how a remote input channel sends control frames through the receiver of its connection.

Takes: requests of one channel. Gives: frames, when the socket has room for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .channel import RemoteInputChannel
    from .channel_buffers import ChannelBuffers


class ChannelLink(Protocol):
    """The receiver of a connection, as its channels use it."""

    def schedule_announcement(self, channel: ChannelBuffers) -> None:
        """Schedules an announcement of the channel's credit."""

    def announce_now(self) -> None:
        """Writes scheduled announcements: half of what the producer could send was consumed."""

    def defer_announcement(self, channel: ChannelBuffers) -> None:
        """Defers an announcement until no data arrives."""

    def send_resume(self, channel: RemoteInputChannel) -> None:
        """Sends a resume."""

    def request_buffer_size(self, channel: RemoteInputChannel, size_bytes: int) -> None:
        """Requests a size for new buffers; only the newest request is sent."""

    def acknowledge(self, channel: RemoteInputChannel) -> None:
        """Sends that every record was processed."""

    def remove(self, channel: RemoteInputChannel) -> None:
        """Removes a released channel and cancels it at the producer."""
