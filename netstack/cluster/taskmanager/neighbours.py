"""Shared-memory connections between the slots of one host, also of different TaskManagers.

Takes: addresses of slots. Gives: streams to them; an additional listener for a slot's port.

A slot that serves data at `tcp://10.0.0.1:6122` also listens at `shm://slot-10.0.0.1-6122`. A process that connects to
an address of its own host tries the shared-memory name first.

Rules:
- Shared-memory names belong to a network namespace, as ports do, so a name is reachable exactly where the port is.
- The name admits no additional peers: only processes of the same user, which prove the same secret.
- If shared memory cannot be used, the network is used; the process logs the reason once.
"""

from __future__ import annotations

import errno
import logging
import socket
from typing import Any, Final, final

import trio

from ...base.errors import ConnectionLost
from ...base.text.safe_text import safe_text
from ...base.transport import ByteStream, Listener, transport_for, url_parts

LOGGER: Final = logging.getLogger("netstack.taskmanager")

_SCHEMES: Final = ("tcp", "tls+tcp")
_EVERYWHERE: Final = ("0.0.0.0", "::")
_CHARACTERS: Final = 400


@final
class Neighbours:
    """Connects one process to the other slots of its host."""

    def __init__(self) -> None:
        self._is_logged = False

    async def listen(self, address: str) -> Listener | None:
        """Opens the shared-memory listener of a slot's port; returns None if shared memory cannot be used."""
        hosts = await _hosts(address)
        if not hosts:
            return None
        url = _name(hosts[0][1][0], address)
        try:
            return await transport_for(url).listen(url)
        except OSError as error:
            self._log_once(
                f"slots of this host connect to {address} over the network, not shared memory: {error.strerror}"
            )
            return None

    async def connect(self, address: str) -> ByteStream:
        """Connects to the slot at `address`, through shared memory if it is on this host.

        Raises:
            ConnectionLost: the address does not answer.
        """
        why = ""
        for family, target in await _hosts(address):
            for host in (target[0], _EVERYWHERE[0]) if _is_ours(family, target) else ():
                url = _name(host, address)
                try:
                    stream = await transport_for(url).connect(url)
                except ConnectionLost as error:
                    if getattr(error.__cause__, "errno", None) != errno.ECONNREFUSED:  # refused: there is no such name
                        why = str(error)
                else:
                    stream.peer = f"{address} (shared memory)"
                    return stream
        stream = await transport_for(address).connect(address)
        if why:
            self._log_once(f"connecting to {address} over the network, not shared memory: {why}")
        return stream

    def _log_once(self, text: str) -> None:
        if not self._is_logged:
            self._is_logged = True
            LOGGER.warning("%s", safe_text(text, _CHARACTERS))


async def _hosts(address: str) -> list[tuple[socket.AddressFamily, Any]]:
    """Resolves an address for sockets; returns nothing if shared memory cannot be used."""
    parts = url_parts(address)
    if parts.scheme not in _SCHEMES or transport_for("shm://").unsupported():
        await trio.lowlevel.checkpoint()
        return []
    try:
        addresses = await trio.socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # connecting will raise it
        return []
    return [(family, target) for family, _, _, _, target in addresses]


def _is_ours(family: socket.AddressFamily, target: Any) -> bool:
    """Whether an address belongs to this host and network namespace."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((target[0], 0, *target[2:]))
        except OSError:
            return False
    return True


def _name(host: str, address: str) -> str:
    where = "everywhere" if host in _EVERYWHERE else host.replace(":", ".")
    return f"shm://slot-{where}-{url_parts(address).port}"
