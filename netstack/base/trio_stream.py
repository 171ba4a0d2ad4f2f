"""A stream of any transport as a `trio.abc.HalfCloseableStream`, for libraries that speak over trio's streams.

Takes: a connected `ByteStream`. Gives: trio's interface, with trio's errors.
"""

from __future__ import annotations

from typing import Final, final

import trio

from .errors import ConnectionLost
from .transport import ByteStream, OneWaiter, Piece, byte_view

RECEIVE_BYTES: Final = 64 * 1024
"""The most that `receive_some` returns unless the caller says otherwise, as for trio's own sockets."""


@final
class TrioStream(trio.abc.HalfCloseableStream):
    """Keeps trio's contract: checked by `trio.testing.check_half_closeable_stream` on every transport."""

    def __init__(self, stream: ByteStream) -> None:
        """Args: a connected stream, owned from now on, such as `await transport_for(url).connect(url)`."""
        self.transport_stream = stream
        """What it is made of, for `endpoints`, `tcp_facts` and the like."""
        self._sender = OneWaiter("send to", stream.peer)
        self._receiver = OneWaiter("receive from", stream.peer)
        self._has_ended = False
        self._is_closed = False

    async def send_all(self, data: Piece) -> None:
        """Sends all of `data`. Cancellation: an unknown part of it was sent.

        Raises:
            trio.BusyResourceError: another task sends.
            trio.BrokenResourceError: the stream broke.
            trio.ClosedResourceError: `aclose` or `send_eof` was called.
        """
        with self._sender:
            await trio.lowlevel.checkpoint()
            rest = byte_view(data)
            while True:
                self._check_open()
                if self._has_ended:
                    raise trio.ClosedResourceError(
                        f"the direction to {self.transport_stream.peer} was ended by send_eof"
                    )
                if not rest:
                    return
                try:
                    rest = rest[self.transport_stream.try_send((rest,)) :]
                except ConnectionLost as error:
                    raise trio.BrokenResourceError(str(error)) from error
                if rest:
                    await self.transport_stream.wait_writable()

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until there is room. Raises as `send_all` does, except that a broken stream may count as room."""
        with self._sender:
            await self.transport_stream.wait_writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytearray:
        """Waits for data, and returns at most `max_bytes` of it; nothing at the end. Cancellation: nothing is lost.

        Raises:
            trio.BusyResourceError: another task receives.
            trio.BrokenResourceError: the stream broke.
            trio.ClosedResourceError: `aclose` was called.
        """
        if max_bytes is None:
            max_bytes = RECEIVE_BYTES
        elif not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes is {max_bytes!r} of type {type(max_bytes).__name__}; give an int")
        elif max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; give at least 1")
        with self._receiver:
            await trio.lowlevel.checkpoint()
            data = bytearray(max_bytes)
            while True:
                self._check_open()
                try:
                    count = self.transport_stream.try_receive_into((memoryview(data),))
                except ConnectionLost as error:
                    raise trio.BrokenResourceError(str(error)) from error
                if count is not None:
                    del data[count:]
                    return data
                await self.transport_stream.wait_readable()

    async def send_eof(self) -> None:
        """Ends our direction; the peer can still send. Idempotent. Raises as `send_all` does."""
        with self._sender:
            await trio.lowlevel.checkpoint()
            self._check_open()
            self._has_ended = True
            self.transport_stream.send_eof()

    async def aclose(self) -> None:
        """Closes at once, also if cancelled; idempotent."""
        self._is_closed = True
        self.transport_stream.close()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError(f"the stream to {self.transport_stream.peer} was closed")
