"""Lines that are cut: a transport `cut+...://` within a process, and a proxy between processes.

Takes: after how many bytes a line is cut, in either direction. Gives: streams that lose what was under way, as a host
that is unplugged for a moment does.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import final

import trio

from netstack.base.errors import ConnectionLost
from netstack.base.transport import ByteStream, Listener, Piece, Transport, provided, transport_for


@final
class CutStream(ByteStream):
    """Breaks after so many bytes, both directions together; some of what it has taken is lost."""

    def __init__(self, stream: ByteStream, left: int | None, lost: int, is_quiet: bool) -> None:
        self.peer = stream.peer
        self.stream = stream
        self.is_cut = False
        self._left = left
        self._lost = lost  # of what is taken last
        self._is_quiet = is_quiet  # the end of the stream, and no error
        self.swallows = False
        """Whether what is sent gets nowhere, and nothing comes."""
        self._closed = trio.Event()

    def try_send(self, pieces: Sequence[Piece]) -> int:
        self._check()
        if self.swallows:
            return sum(map(len, pieces))
        if self._left is None:
            return self.stream.try_send(pieces)
        data = b"".join(pieces)[: self._left]
        passed = data[: max(0, len(data) - self._lost)] if len(data) == self._left else data
        count = self.stream.try_send([passed]) if passed else 0
        if count == len(passed):
            count = len(data)
        self._count(count)
        return count

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        if self.is_cut and self._is_quiet:
            return 0
        self._check()
        if self.swallows:
            return None
        if self._left is None:
            return self.stream.try_receive_into(windows)
        fitting = []
        left = self._left
        for window in windows:
            if left:
                fitting.append(window[:left])
                left -= len(fitting[-1])
        count = self.stream.try_receive_into(fitting)
        if count:
            self._count(count)
        return count

    async def wait_writable(self) -> None:
        if not self.is_cut:
            await self.stream.wait_writable()

    async def wait_readable(self) -> None:
        if self.is_cut:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self.stream.wait_readable()
            if self.swallows:
                await self._closed.wait()
                raise trio.ClosedResourceError
        except trio.ClosedResourceError:
            if not self.is_cut:
                raise

    def send_eof(self) -> None:
        self.stream.send_eof()

    def close(self) -> None:
        self.is_cut = True
        self._is_quiet = False
        self._closed.set()
        self.stream.close()

    def cut(self) -> None:
        """Both ends lose the line, and what is under way."""
        if not self.is_cut:
            self.is_cut = True
            for pipe in (getattr(self.stream, "_in", None), getattr(self.stream, "_out", None)):
                if pipe is not None:  # of memory: what is under way is lost
                    pipe.chunks.clear()
                    pipe.size = 0
            self.stream.close()

    def _count(self, count: int) -> None:
        if self._left is not None:
            self._left -= count
            if not self._left:
                self.cut()

    def _check(self) -> None:
        if self.is_cut:
            raise ConnectionLost(f"the line to {self.peer} was cut")


@final
class CutLines(Transport):
    """`cut+SCHEME://`: each line that is dialled is cut as `plan` says."""

    def __init__(self) -> None:
        self.plan: Callable[[], tuple[int | None, int, bool]] = lambda: (None, 0, False)
        """Of the next line: after how many bytes (None: never), how many of those sent last are lost, whether
        quietly."""
        self.streams: list[CutStream] = []
        self.is_down = False

    async def listen(self, url: str) -> Listener:
        inner = url.removeprefix("cut+")
        listener = await transport_for(inner).listen(inner)
        listener.address = f"cut+{listener.address}"
        return listener

    async def connect(self, url: str) -> ByteStream:
        if self.is_down:
            await trio.lowlevel.checkpoint()
            raise ConnectionLost(f"cannot reach {url}: unplugged")
        inner = url.removeprefix("cut+")
        stream = await transport_for(inner).connect(inner)
        cut = CutStream(stream, *self.plan())
        self.streams.append(cut)
        return cut

    def swallow(self) -> None:
        """What is sent over the lines there are gets nowhere from now on, in either direction."""
        for stream in self.streams:
            stream.swallows = True

    def cut(self) -> None:
        """All lines there are."""
        for stream in self.streams:
            stream.cut()
        self.streams.clear()


@contextmanager
def cut_lines() -> Iterator[CutLines]:
    """The transport, while the block lasts."""
    lines = CutLines()
    with provided("cut", lines):
        yield lines


@asynccontextmanager
async def cutting_proxy(target: str) -> AsyncIterator[tuple[str, Callable[[], int]]]:
    """A TCP proxy to `tcp://HOST:PORT`: its address, and what resets all connections through it (and counts them)."""
    host, _, port = target.removeprefix("tcp://").rpartition(":")
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    under_way: set[trio.SocketStream] = set()

    async def pass_on(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(64 * 1024):
                await sink.send_all(data)
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def serve(near: trio.SocketStream) -> None:
        try:
            far = await trio.open_tcp_stream(host, int(port))
        except OSError:
            await near.aclose()
            return
        both = {near, far}
        under_way.update(both)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pass_on, near, far)
                nursery.start_soon(pass_on, far, near)
        finally:
            under_way.difference_update(both)
            with trio.CancelScope(shield=True):
                for stream in both:
                    await trio.aclose_forcefully(stream)

    def cut() -> int:
        streams = list(under_way)
        for stream in streams:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, and nothing more
            trio.lowlevel.notify_closing(stream.socket)
            stream.socket.close()
        return len(streams) // 2

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}", cut
        nursery.cancel_scope.cancel()
