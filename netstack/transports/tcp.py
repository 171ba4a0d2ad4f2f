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
from typing import Final, final

import trio

from netstack.errors import ConfigError, ConnectionLost
from netstack.transport import ByteStream, Listener, Transport, url_parts

from ._sockets import SocketListener, SocketStream, connect_socket

NOTSENT_LOWAT_BYTES: Final = 256 * 1024
BACKLOG: Final = 1024
LOOPBACK_CONGESTION_VARIABLE: Final = "NETSTACK_LOOPBACK_CONGESTION"
LOOPBACK_CONGESTION: Final = os.environ.get(LOOPBACK_CONGESTION_VARIABLE, "cubic").encode()
"""The congestion control of connections within one host; empty keeps the system's default. Pacing is useless there:
bbr, the default of some kernels, halves the throughput."""


@final
class TcpTransport(Transport):
    """TCP sockets."""

    async def listen(self, url: str) -> Listener:
        """Binds; port 0 chooses a free port."""
        host, port = split_host_port(url)
        try:
            infos = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OSError(
                errno.EADDRNOTAVAIL, f"cannot listen at {url}: {reason}; name an address of this host"
            ) from error
        family, kind, protocol, _, target = infos[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(target)
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise OSError(
                error.errno,
                f"cannot listen at {url}: {os.strerror(error.errno or 0)}; choose another port, or 0 for a free one",
            ) from error
        return SocketListener(sock, _url(host, sock.getsockname()[1]), _accepted, lambda: None)

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
    if LOOPBACK_CONGESTION and hasattr(socket, "TCP_CONGESTION") and is_loopback(sock):
        with contextlib.suppress(OSError):  # not available or not allowed: the default works too
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, LOOPBACK_CONGESTION)
