"""ChannelIds: maps Flink's channel ids (16 random bytes, chosen by consumers) to channel numbers and back.

Takes: ids and numbers. Gives: the other of the two, to the codec of one connection.
"""

from __future__ import annotations

from typing import Final, final

from ...base.errors import ErrorCode, RemoteProtocolError

MAX_CHANNEL_IDS: Final = 100_000
"""A peer opens at most 65,536 channels by default, and retries under the same id; more ids would only fill memory."""


@final
class ChannelIds:
    """The channel ids of one connection. A number is used once: an id that was forgotten and returns gets a new one."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._ids: dict[int, bytes] = {}
        self._next = 0

    def number_of(self, channel_id: bytes) -> int | None:
        """The number of a channel; None if its id is unknown."""
        return self._numbers.get(channel_id)

    def id_of(self, number: int) -> bytes:
        """The id of a channel that has one."""
        return self._ids[number]

    def has(self, number: int) -> bool:
        """Whether the channel has an id."""
        return number in self._ids

    def bind(self, number: int, channel_id: bytes) -> None:
        """Binds an id to the number of a channel that our consumer opens."""
        self._numbers[channel_id] = number
        self._ids[number] = channel_id

    def number_for(self, channel_id: bytes) -> int:
        """The number of a channel that the peer names; a new one if its id is unknown.

        Raises:
            RemoteProtocolError: the peer names too many channels.
        """
        number = self._numbers.get(channel_id)
        if number is None:
            if len(self._numbers) >= MAX_CHANNEL_IDS:
                raise RemoteProtocolError(
                    ErrorCode.CHANNEL_IN_USE,
                    f"more than {MAX_CHANNEL_IDS} channels were opened on one connection and not cancelled",
                )
            number = self._next
            self._next += 1
            self.bind(number, channel_id)
        return number

    def forget(self, number: int) -> None:
        """Removes a cancelled channel."""
        del self._numbers[self._ids.pop(number)]
