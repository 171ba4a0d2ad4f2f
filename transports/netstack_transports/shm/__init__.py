"""`shm://NAME`: rings in shared memory between processes of one user on one host.

Takes: URLs. Gives: streams and listeners.

A name is a unix socket in the abstract namespace (`@netstack-shm-NAME` in `ss -xl`): like a TCP port it belongs to the
network namespace and ends with its listener; it leaves no file. Such a socket has no permissions, so each side accepts
only processes of its own user. A stream uses four descriptors at each end, and up to 1.1 MiB of memory for both ends
together, allocated page by page on first use.

Only for Linux on x86-64; `ring` says what other processors lack.
"""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys
from typing import Final, final

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.transport import ByteStream, Listener, Transport, url_parts

from .._sockets import SocketListener, connect_socket
from .stream import ShmStream, hand_over

BACKLOG: Final = 1024
DIALLED_AT_MOST: Final = 32
"""The most open streams that a process has dialled: 36 MiB, which count against no memory limit of a process."""

PREFIX: Final = "\0netstack-shm-"
MAX_NAME_BYTES: Final = 108 - len(PREFIX)  # sun_path of Linux; zeros count in the abstract namespace
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid


@final
class ShmTransport(Transport):
    """Rings in memory shared by two processes of one host."""

    def __init__(self) -> None:
        self._dialled = 0

    async def listen(self, url: str) -> Listener:
        """Reserves a name in this network namespace until the listener is closed or its process ends."""
        name = _name(url)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(PREFIX + name)
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise OSError(
                error.errno, f"cannot listen at {url}: {os.strerror(error.errno or 0)}; choose another name"
            ) from error

        def accepted(connected: socket.socket) -> ByteStream:
            return ShmStream(connected, f"process {_checked_pid(connected)}, a client of {url}")

        return SocketListener([sock], url, accepted, lambda: None)

    async def connect(self, url: str) -> ByteStream:
        """Dials, and hands the memory over: sending may begin before the peer has accepted."""
        name = _name(url)
        if self._dialled >= DIALLED_AT_MOST:
            raise ConnectionLost(
                f"cannot reach {url}: {self._dialled} streams that this process dialled share memory, which is the"
                " most; close some, or use tcp:// or unix://"
            )
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected = False
        try:
            await connect_socket(sock, PREFIX + name)
            _checked_pid(sock)
            memory = hand_over(sock)
            connected = True
            self._dialled += 1
            return ShmStream(sock, url, memory, self._on_closed)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConnectionLost(f"cannot reach {url}: {reason}; is anything listening there?") from error
        finally:
            if not connected:
                sock.close()

    def unsupported(self) -> str:
        """Names what shared memory requires and this machine lacks."""
        return unsupported()

    def _on_closed(self) -> None:
        self._dialled -= 1


def unsupported() -> str:
    """Why this process cannot use shared memory; empty if it can."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine != "x86_64" or sys.maxsize < 2**32 or not hasattr(os, "eventfd"):
        bits = sys.maxsize.bit_length() + 1
        return f"shared memory requires a 64-bit Python on Linux and x86-64; this is {bits} bits on {system}, {machine}"
    return ""


def _name(url: str) -> str:
    parts = url_parts(url)
    if not parts.netloc or parts.path or parts.query:
        raise ConfigError(f"address {url!r} needs a name only, such as shm://a")
    if len(os.fsencode(parts.netloc)) > MAX_NAME_BYTES:
        raise ConfigError(f"address {url!r}: the name is longer than {MAX_NAME_BYTES} bytes, the limit of unix sockets")
    reason = unsupported()
    if reason:
        raise ConfigError(f"address {url!r}: {reason}; use tcp:// or unix://")
    return parts.netloc


def _checked_pid(sock: socket.socket) -> int:
    """Returns the process at the other end. Raises PermissionError if it belongs to another user."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.geteuid():
        raise PermissionError(f"the peer (process {pid}) runs as user {uid}, and this process as user {os.geteuid()}")
    return int(pid)
