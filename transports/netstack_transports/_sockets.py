"""The common part of TCP and unix sockets: non-blocking sockets driven by trying.

Takes: connected or listening sockets. Gives: `ByteStream` and `Listener`.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, final

import trio

from netstack.base.errors import ConnectionLost
from netstack.base.transport import ByteStream, Listener, Piece, check_room

IOV_MAX: Final = 1024
_MIN_RTT_AT: Final = 148
"""Offset of `tcpi_min_rtt`, in microseconds, in the kernel's `struct tcp_info`."""

_LEAST_RECEIVE_BUFFER: Final = 32 * 1024
_NO_RTT: Final = 0xFFFFFFFF
"""The most pieces that one system call takes on Linux."""

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
DIED_IN_QUEUE: Final = frozenset(
    {
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
    }
)
"""Errors of accept(2) about a connection that failed before it was accepted; the listener still works."""
PAUSE_S: Final = 0.1
"""How long accepting pauses when the process has no descriptors left; connections wait in the kernel's queue."""


@final
class SocketStream(ByteStream):
    """A connected socket."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        self.peer = peer
        self._socket = sock
        self._sendmsg = sock.sendmsg
        self._closed = False

    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Sends with one system call."""
        try:
            return self._sendmsg(pieces if len(pieces) <= IOV_MAX else pieces[:IOV_MAX])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(error) from error

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Receives with one system call."""
        try:
            count = self._socket.recv_into(windows[0]) if len(windows) == 1 else self._socket.recvmsg_into(windows)[0]
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lost(error) from error
        if not count:
            check_room(windows)  # the system reports 0 bytes for a window of 0 bytes, too
        return count

    async def wait_writable(self) -> None:
        """Waits until there is room to send."""
        self._check_open()
        await trio.lowlevel.wait_writable(self._socket)

    async def wait_readable(self) -> None:
        """Waits until data has arrived."""
        self._check_open()
        await trio.lowlevel.wait_readable(self._socket)

    def send_eof(self) -> None:
        """Half-closes the socket."""
        with contextlib.suppress(OSError):  # no longer connected: the peer sees the end of its stream anyway
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes at once."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def tcp_facts(self) -> dict[str, str | int]:
        """Congestion control and buffer sizes."""
        if self._closed or self._socket.family not in (socket.AF_INET, socket.AF_INET6):
            return {}
        name = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        return {
            "congestion_control": name.split(b"\0")[0].decode(),
            "send_buffer_bytes": self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            "receive_buffer_bytes": self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        }

    def limit_buffers(self, *, received_bytes: int, unsent_bytes: int) -> None:
        """Sets the receive buffer, which the kernel then does not tune, and when it counts as full for sending."""
        if self._closed:
            return
        doubled = max(_LEAST_RECEIVE_BUFFER, received_bytes // 2)  # by the kernel, for its own needs; it uses all of it
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, doubled)
        if self._socket.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)

    def round_trip_s(self) -> float:
        """The round trip, as the kernel measures it; 0 for sockets other than TCP, and before an acknowledgement."""
        if (
            self._closed
            or self._socket.family not in (socket.AF_INET, socket.AF_INET6)
            or not hasattr(socket, "TCP_INFO")
        ):
            return 0.0
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
        if len(info) < _MIN_RTT_AT + 4:
            return 0.0
        (microseconds,) = struct.unpack_from("=I", info, _MIN_RTT_AT)
        return 0.0 if microseconds == _NO_RTT else microseconds / 1e6

    def endpoints(self) -> tuple[str, str]:
        """Host and port of both ends, or the path of a unix socket."""
        try:
            return _endpoint(self._socket.getsockname()), _endpoint(self._socket.getpeername())
        except OSError:
            return "", ""

    def descriptor(self) -> int | None:
        """The socket's descriptor while it is open."""
        return None if self._closed else self._socket.fileno()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"the stream to {self.peer} was closed")

    def _lost(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.peer} broke: {error.strerror or error}")


@final
class SocketListener(Listener):
    """Listening sockets: one, or one for each address of a name."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        address: str,
        accepted: Callable[[socket.socket], ByteStream],
        on_close: Callable[[], None],
    ) -> None:
        """Args: the sockets; the URL to dial; makes a stream of an accepted socket; told when closed."""
        for sock in sockets:
            sock.setblocking(False)
        self.address = address
        self._sockets = sockets
        self._accepted = accepted
        self._on_close = on_close
        self._closed = False

    async def accept(self) -> ByteStream:
        """The next stream; dead connections are skipped, a lack of descriptors is waited out."""
        while True:
            if self._closed:
                raise trio.ClosedResourceError(f"the listener at {self.address} was closed")
            listening = await self._readable()
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    await trio.sleep(PAUSE_S)
                elif error.errno not in DIED_IN_QUEUE:
                    raise
                continue
            try:
                return self._accepted(sock)
            except OSError:  # gone between accepting and the first setting
                sock.close()

    def close(self) -> None:
        """Stops accepting."""
        if not self._closed:
            self._closed = True
            for sock in self._sockets:
                trio.lowlevel.notify_closing(sock)
                sock.close()
            self._on_close()

    async def _readable(self) -> socket.socket:
        """Waits for a connection, and returns the socket at which it arrived."""
        if len(self._sockets) == 1:
            await trio.lowlevel.wait_readable(self._sockets[0])
            return self._sockets[0]
        readable: list[socket.socket] = []
        failures: list[trio.ClosedResourceError | trio.BusyResourceError] = []

        async def wait(sock: socket.socket) -> None:
            try:
                await trio.lowlevel.wait_readable(sock)
                readable.append(sock)
            except (trio.ClosedResourceError, trio.BusyResourceError) as error:
                failures.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for sock in self._sockets:
                nursery.start_soon(wait, sock)
        if failures:
            raise failures[0]
        return readable[0]


def _endpoint(name: object) -> str:
    """A socket's address as text; the unnamed end of a unix socket has none."""
    if isinstance(name, tuple):
        host = str(name[0]).removeprefix("::ffff:").partition("%")[0]
        return f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"
    return name if isinstance(name, str) else ""


async def connect_socket(sock: socket.socket, target: object) -> None:
    """Connects a socket without blocking the loop.

    Raises:
        OSError: refused, unreachable, timed out. Cancellation: the caller closes the socket.
    """
    sock.setblocking(False)
    try:
        sock.connect(target)  # type: ignore[arg-type]  # a path or an address tuple
    except BlockingIOError as error:
        if error.errno != errno.EINPROGRESS:
            raise  # the queue of a unix listener is full: no connect was started
        await trio.lowlevel.wait_writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code))) from None
    else:
        await trio.lowlevel.checkpoint()
