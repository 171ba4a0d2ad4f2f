"""`tcp://HOST:PORT`: TCP without Nagle's algorithm, with keep-alive and a low-water mark for unsent bytes.

Takes: URLs. Gives: streams and listeners over TCP.

The kernel tunes the socket buffers: setting them below 1 MiB halves the throughput. `TCP_NOTSENT_LOWAT` keeps at most
256 KiB unsent in the kernel, so that the next data to send is chosen late; it costs nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from typing import Any, Final, final

import trio

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.transport import ByteStream, Listener, Transport, url_parts

from ._sockets import SocketListener, SocketStream, connect_socket

NOTSENT_LOWAT_BYTES: Final = 256 * 1024
BACKLOG: Final = 1024
LOOPBACK_CONGESTION_VARIABLE: Final = "NETSTACK_LOOPBACK_CONGESTION"
LOOPBACK_CONGESTION: Final = [
    name.encode() for name in os.environ.get(LOOPBACK_CONGESTION_VARIABLE, "cubic,reno").split(",") if name
]
"""The congestion controls of connections within one host: the first one that this user may choose; empty keeps the
system's default. Pacing is useless there: bbr, the default of some kernels, halves the throughput."""


FREE_PORT_TRIES: Final = 8
"""How often a port is chosen that must be free at several addresses."""

_ABSENT: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@final
class TcpTransport(Transport):
    """TCP sockets."""

    async def listen(self, url: str) -> Listener:
        """Binds to every address of the host, such as 127.0.0.1 and ::1 of `localhost`; port 0 chooses a free port."""
        host, port = split_host_port(url)
        try:
            infos = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OSError(
                errno.EADDRNOTAVAIL, f"cannot listen at {url}: {reason}; name an address of this host"
            ) from error
        sockets = _listening(url, port, [*dict.fromkeys((info[0], info[4]) for info in infos)])
        return SocketListener(sockets, _url(host, sockets[0].getsockname()[1]), _accepted, lambda: None)

    async def connect(self, url: str) -> ByteStream:
        """Tries each address of the host in turn."""
        host, port = split_host_port(url)
        try:
            infos = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConnectionLost(
                f"cannot resolve {url}: {getattr(error, 'strerror', None) or error}; check the host's name"
            ) from error
        failures: list[str] = []
        refused = False
        for family, kind, protocol, _, target in infos:
            sock = socket.socket(family, kind, protocol)
            connected = False
            try:
                await connect_socket(sock, target)
                _tune(sock)
                connected = True
                return SocketStream(sock, url)
            except OSError as error:
                refused |= error.errno == errno.ECONNREFUSED
                failures.append(os.strerror(error.errno) if error.errno else str(error))
            finally:
                if not connected:
                    sock.close()
        question = "is anything listening there?" if refused else "is that host up, and the network between?"
        raise ConnectionLost(f"cannot reach {url}: {', '.join(failures)}; {question}")


def split_host_port(url: str) -> tuple[str, int]:
    """Returns the host and port of a URL. Raises ConfigError if one of them is missing or not valid."""
    parts = url_parts(url)
    port = parts.port
    if not parts.hostname or port is None:
        raise ConfigError(f"address {url!r} needs a host and a port, such as tcp://127.0.0.1:6121")
    return parts.hostname, port


def is_loopback(sock: socket.socket) -> bool:
    """Whether both ends of a connected socket are this host's loopback addresses."""
    try:
        host = str(sock.getpeername()[0])
    except OSError:
        return False
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def _listening(url: str, port: int, targets: Sequence[tuple[int, tuple[Any, ...]]]) -> list[socket.socket]:
    """Listens at each of the addresses that this host has, all with one port.

    Raises:
        OSError: no address is of this host, or the port of one is in use.
    """
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    tries = FREE_PORT_TRIES if port == 0 else 1
    while True:
        try:
            for family, target in targets:
                try:
                    sockets.append(_bound(family, (target[0], port, *target[2:]), is_alone=len(targets) == 1))
                except OSError as error:
                    if error.errno not in _ABSENT:
                        raise
                    absent = error  # a name of several families where one is switched off
                    continue
                port = sockets[-1].getsockname()[1]
            if absent is not None and not sockets:
                raise absent
        except OSError as error:
            for sock in sockets:
                sock.close()
            tries -= 1
            if tries and sockets:  # the port that was free at the first address is not free at another one
                sockets, port = [], 0
                continue
            raise OSError(
                error.errno,
                f"cannot listen at {url}: {os.strerror(error.errno or 0)}; choose another port, or 0 for a free one",
            ) from error
        return sockets


def _bound(family: int, target: tuple[Any, ...], *, is_alone: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not is_alone:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(target)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def set_loopback_congestion(sock: socket.socket) -> None:
    """Sets the congestion control of a connection within one host (`LOOPBACK_CONGESTION`)."""
    for name in LOOPBACK_CONGESTION:
        with contextlib.suppress(OSError, AttributeError):  # not available or not allowed; not Linux
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            return


def _url(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _accepted(sock: socket.socket) -> ByteStream:
    _tune(sock)
    try:
        name = sock.getpeername()
        peer = _url(name[0], name[1])
    except OSError:
        peer = "a disconnected peer"
    return SocketStream(sock, peer)


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES)
    if is_loopback(sock):
        set_loopback_congestion(sock)
