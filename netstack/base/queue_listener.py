"""A listener for transports whose two ends are in one process.

Takes: dialled streams. Gives: the same streams to `accept`.
"""

from __future__ import annotations

from collections import deque

import trio

from .transport import ByteStream, Listener


class QueueListener(Listener):
    """Hands out the streams passed to `put`, in order."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._waiting: deque[ByteStream] = deque()
        self._arrived = trio.lowlevel.ParkingLot()
        self._closed = False

    def put(self, stream: ByteStream) -> None:
        """Queues a dialled stream; never waits."""
        self._waiting.append(stream)
        self._arrived.unpark()

    async def accept(self) -> ByteStream:
        """Waits for the next stream. Cancellation: no stream is lost."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                raise trio.ClosedResourceError(f"the listener at {self.address} was closed")
            await self._arrived.park()
        return self._waiting.popleft()

    def close(self) -> None:
        """Also closes the streams that were not accepted."""
        self._closed = True
        self._arrived.unpark_all()
        while self._waiting:
            self._waiting.popleft().close()
