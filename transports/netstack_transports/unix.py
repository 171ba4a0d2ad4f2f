"""`unix:///path/to/socket`: stream sockets in the file system, for processes of one host.

Takes: URLs. Gives: streams and listeners over unix sockets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import Final, final

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.transport import ByteStream, Listener, Transport, url_parts

from ._sockets import SocketListener, SocketStream, connect_socket

BACKLOG: Final = 1024
MAX_PATH_BYTES: Final = 107  # sun_path of Linux without its final zero byte


@final
class UnixTransport(Transport):
    """Sockets of one host, addressed by a path."""

    async def listen(self, url: str) -> Listener:
        """Binds; replaces the socket file of a dead process, and raises an error for a live one."""
        path = _path(url)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(path)
            sock.bind(path)
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise OSError(
                error.errno, f"cannot listen at {url}: {os.strerror(error.errno or 0)}; choose another path"
            ) from error
        inode = os.stat(path).st_ino

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == inode:  # not the file of a later listener
                    os.unlink(path)

        return SocketListener([sock], url, lambda accepted: SocketStream(accepted, f"a client of {url}"), remove)

    async def connect(self, url: str) -> ByteStream:
        """Connects to a path."""
        path = _path(url)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected = False
        try:
            await connect_socket(sock, path)
            connected = True
            return SocketStream(sock, url)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ConnectionLost(f"cannot reach {url}: {reason}; is anything listening there?") from error
        finally:
            if not connected:
                sock.close()

    def stream_of(self, sock: socket.socket, peer: str) -> ByteStream:
        """A stream over a connected socket."""
        return SocketStream(sock, peer)


def _path(url: str) -> str:
    parts = url_parts(url)
    if parts.netloc or not parts.path.startswith("/"):
        raise ConfigError(f"address {url!r} needs an absolute path, such as unix:///tmp/netstack.sock")
    if len(os.fsencode(parts.path)) > MAX_PATH_BYTES:
        raise ConfigError(f"address {url!r}: the path is longer than {MAX_PATH_BYTES} bytes, the limit of unix sockets")
    return parts.path


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return  # bind will report that the name is in use
    except FileNotFoundError:
        return
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.setblocking(False)  # a live listener with a full queue must not make us wait
    try:
        probe.connect(path)
    except ConnectionRefusedError:
        os.unlink(path)
    except OSError:
        return
    finally:
        probe.close()
