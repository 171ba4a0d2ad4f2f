"""`memory://NAME`: bounded pipes within one process, for tests and for several TaskManagers in one program.

Takes: URLs. Gives: streams that behave like sockets: bounded, byte-oriented, with half-close.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from typing import Final, final

import trio

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.queue_listener import QueueListener
from netstack.base.transport import ByteStream, Listener, OneWaiter, Piece, Transport, byte_view, check_room, url_parts

CAPACITY_BYTES: Final = 256 * 1024
"""The capacity of one direction: about that of a loopback socket."""


@final
class _Pipe:
    """One direction."""

    def __init__(self) -> None:
        self.chunks: deque[memoryview] = deque()
        self.size = 0
        self.ended = False
        self.broken = False
        self.changed = trio.lowlevel.ParkingLot()

    def write(self, pieces: Sequence[Piece]) -> int:
        room = CAPACITY_BYTES - self.size
        taken = 0
        for piece in pieces:
            part = bytes(byte_view(piece)[: room - taken])
            if part:
                self.chunks.append(memoryview(part))
                taken += len(part)
            if taken == room:
                break
        self.size += taken
        if taken:
            self.changed.unpark_all()
        return taken

    def read_into(self, windows: Sequence[memoryview]) -> int | None:
        taken = 0
        for window in map(byte_view, windows):
            position = 0
            while position < len(window) and self.chunks:
                head = self.chunks[0]
                count = min(len(head), len(window) - position)
                window[position : position + count] = head[:count]
                position += count
                if count == len(head):
                    self.chunks.popleft()
                else:
                    self.chunks[0] = head[count:]
            taken += position
        self.size -= taken
        if taken:
            self.changed.unpark_all()
            return taken
        if self.chunks or self.ended:
            check_room(windows)
        return 0 if self.ended else None

    def end(self) -> None:
        self.ended = True
        self.changed.unpark_all()


@final
class MemoryStream(ByteStream):
    """One end of two pipes."""

    def __init__(self, outgoing: _Pipe, incoming: _Pipe, peer: str) -> None:
        self.peer = peer
        self._out = outgoing
        self._in = incoming
        self._closed = False
        self._reader = OneWaiter("read from", peer)
        self._writer = OneWaiter("write to", peer)

    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Writes into the outgoing pipe."""
        if self._closed or self._out.ended or self._out.broken:
            raise ConnectionLost(f"the connection to {self.peer} broke: it is closed")
        return self._out.write(pieces)

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Reads from the incoming pipe."""
        if self._closed:
            raise ConnectionLost(f"the connection to {self.peer} broke: it is closed")
        return self._in.read_into(windows)

    async def wait_writable(self) -> None:
        """Waits until there is room to send."""
        with self._writer:
            await trio.lowlevel.checkpoint()
            while self._out.size >= CAPACITY_BYTES and not self._out.broken:
                self._check_open()
                await self._out.changed.park()
            self._check_open()

    async def wait_readable(self) -> None:
        """Waits until data has arrived."""
        with self._reader:
            await trio.lowlevel.checkpoint()
            while not self._in.size and not self._in.ended:
                self._check_open()
                await self._in.changed.park()
            self._check_open()

    def send_eof(self) -> None:
        """Ends the outgoing pipe."""
        self._out.end()

    def close(self) -> None:
        """Ends both pipes."""
        if not self._closed:
            self._closed = True
            self._out.end()
            self._in.broken = True
            self._in.changed.unpark_all()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end of the memory stream was closed")


@final
class _MemoryListener(QueueListener):
    def __init__(self, transport: MemoryTransport, address: str, name: str) -> None:
        super().__init__(address)
        self._transport = transport
        self._name = name

    def dial(self) -> MemoryStream:
        there, back = _Pipe(), _Pipe()
        self.put(MemoryStream(back, there, f"a client of {self.address}"))
        return MemoryStream(there, back, self.address)

    def close(self) -> None:
        if self._transport.listeners.get(self._name) is self:
            del self._transport.listeners[self._name]
        super().close()


@final
class MemoryTransport(Transport):
    """Streams within one process; a name lives as long as its listener."""

    def __init__(self) -> None:
        self.listeners: dict[str, _MemoryListener] = {}

    async def listen(self, url: str) -> Listener:
        """Reserves a name."""
        name = _name(url)
        await trio.lowlevel.checkpoint()  # before the name is reserved, so that cancellation leaves nothing behind
        if name in self.listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen at {url}: the name is in use in this process")
        self.listeners[name] = listener = _MemoryListener(self, url, name)
        return listener

    async def connect(self, url: str) -> ByteStream:
        """Connects to the listener of a name."""
        await trio.lowlevel.checkpoint()
        listener = self.listeners.get(_name(url))
        if listener is None:
            raise ConnectionLost(f"cannot reach {url}: no listener in this process has this name")
        return listener.dial()


def _name(url: str) -> str:
    name = url_parts(url).netloc
    if not name:
        raise ConfigError(f"address {url!r} needs a name, such as memory://a")
    return name
