"""A listener of transports whose two ends are in one process.

Takes: streams that were dialled. Gives: the same, to whoever accepts.
"""

from __future__ import annotations

from collections import deque

import trio

from .transport import ByteStream, Listener


class QueueListener(Listener):
    """A listener of this process: hands out the streams that are put into it, in their order.

    Attributes:
        address: its URL.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._waiting: deque[ByteStream] = deque()
        self._arrived = trio.lowlevel.ParkingLot()
        self._closed = False

    def put(self, stream: ByteStream) -> None:
        """Somebody has dialled; never waits."""
        self._waiting.append(stream)
        self._arrived.unpark()

    async def accept(self) -> ByteStream:
        """See `Listener.accept`."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                raise trio.ClosedResourceError(f"the listener at {self.address} was closed")
            await self._arrived.park()
        return self._waiting.popleft()

    def close(self) -> None:
        """Closes what was not accepted too."""
        self._closed = True
        self._arrived.unpark_all()
        while self._waiting:
            self._waiting.popleft().close()
