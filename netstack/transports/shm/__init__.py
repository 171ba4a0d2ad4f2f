"""`shm://NAME`: rings in shared memory between processes of one user on one host.

Takes: URLs. Gives: streams and listeners.

A name is that of a unix socket in the abstract namespace (`@netstack-shm-NAME` in `ss -xl`): it lives in the network
namespace, as a TCP port does, and ends with its listener; nothing stays in a file system. Such a socket has no
permissions, so each side lets in processes of its own user only. A stream takes four descriptors at each end, and up
to 1.1 MiB of memory for both ends together: a page at a time, as bytes first come there.

For Linux on x86-64: see `ring` for what other processors lack.
"""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys
from typing import Final, final

from netstack.errors import ConfigError, ConnectionLost
from netstack.transport import ByteStream, Listener, Transport, url_parts

from .._sockets import SocketListener, connect_socket
from .stream import ShmStream, hand_over

BACKLOG: Final = 1024
DIALLED_AT_MOST: Final = 32
"""Streams that a process has dialled and not closed: 36 MiB, for which no limit of a process's own memory counts."""

PREFIX: Final = "\0netstack-shm-"
MAX_NAME_BYTES: Final = 108 - len(PREFIX)  # sun_path of Linux, whose zeros count in the abstract namespace
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid


@final
class ShmTransport(Transport):
    """Rings in the memory that two processes of one host share."""

    def __init__(self) -> None:
        self._dialled = 0

    async def listen(self, url: str) -> Listener:
        """Takes a name of this network namespace; it is free again when the listener is closed or its process ends."""
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

        return SocketListener(sock, url, accepted, lambda: None)

    async def connect(self, url: str) -> ByteStream:
        """Dials, and hands the memory over: sending may begin before anybody has accepted."""
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

    def _on_closed(self) -> None:
        self._dialled -= 1


def unsupported() -> str:
    """Why this process cannot use shared memory; empty where it can."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine != "x86_64" or sys.maxsize < 2**32 or not hasattr(os, "eventfd"):
        bits = sys.maxsize.bit_length() + 1
        return (
            f"shared memory takes a 64-bit Python on Linux and x86-64; this is a {bits}-bit one on {system}, {machine}"
        )
    return ""


def _name(url: str) -> str:
    parts = url_parts(url)
    if not parts.netloc or parts.path or parts.query:
        raise ConfigError(f"address {url!r} needs a name and no more, such as shm://a")
    if len(os.fsencode(parts.netloc)) > MAX_NAME_BYTES:
        raise ConfigError(f"address {url!r}: the name is longer than {MAX_NAME_BYTES} bytes, the limit of unix sockets")
    reason = unsupported()
    if reason:
        raise ConfigError(f"address {url!r}: {reason}; use tcp:// or unix://")
    return parts.netloc


def _checked_pid(sock: socket.socket) -> int:
    """The process at the other end.

    Raises:
        PermissionError: it is another user's.
    """
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.geteuid():
        raise PermissionError(f"process {pid} there is user {uid}'s, and this one user {os.geteuid()}'s")
    return int(pid)
