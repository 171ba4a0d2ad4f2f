"""Slots of one host reach each other through shared memory, whatever TaskManagers they belong to.

Takes: addresses of slots. Gives: streams to them; a listener beside that of a slot's port.

A slot that serves data at `tcp://10.0.0.1:6122` also listens at `shm://slot-10.0.0.1-6122`. Whoever dials that address,
and finds it to be one of its own host, tries the name first.

Rules:
- A name is found where the port would be found: names of shared memory belong to a network namespace, as ports do.
- It lets in nobody whom the port would not: only processes of the same user, which prove the same secret.
- What cannot go through shared memory goes over the network; a process tells why, once.
"""

from __future__ import annotations

import errno
import logging
import socket
from typing import Any, Final, final

import trio

from ..errors import ConnectionLost
from ..shown import shown_text
from ..transport import ByteStream, Listener, transport_for, url_parts
from ..transports.shm import unsupported

LOGGER: Final = logging.getLogger("netstack.taskmanager")

_SCHEMES: Final = ("tcp", "tls+tcp")
_EVERYWHERE: Final = ("0.0.0.0", "::")
_CHARACTERS: Final = 400


@final
class Neighbours:
    """The slots beside one process."""

    def __init__(self) -> None:
        self._is_logged = False

    async def listen(self, address: str) -> Listener | None:
        """Listens beside a slot's port; None where shared memory cannot be used.

        Args:
            address: of the port, as bound.
        """
        hosts = await _hosts(address)
        if not hosts:
            return None
        url = _name(hosts[0][1][0], address)
        try:
            return await transport_for(url).listen(url)
        except OSError as error:
            self._log_once(f"slots of this host reach {address} over the network only: {error.strerror}")
            return None

    async def connect(self, address: str) -> ByteStream:
        """A stream to the slot at `address`: through shared memory if it is on this host.

        Raises:
            ConnectionLost: nobody answers there.
        """
        why = ""
        for family, target in await _hosts(address):
            for host in (target[0], _EVERYWHERE[0]) if _is_ours(family, target) else ():
                url = _name(host, address)
                try:
                    stream = await transport_for(url).connect(url)
                except ConnectionLost as error:
                    if getattr(error.__cause__, "errno", None) != errno.ECONNREFUSED:  # else nobody has the name
                        why = str(error)
                else:
                    stream.peer = f"{address} (shared memory)"
                    return stream
        stream = await transport_for(address).connect(address)
        if why:
            self._log_once(f"{address} is reached over the network: {why}")
        return stream

    def _log_once(self, text: str) -> None:
        if not self._is_logged:
            self._is_logged = True
            LOGGER.warning("%s", shown_text(text, _CHARACTERS))


async def _hosts(address: str) -> list[tuple[socket.AddressFamily, Any]]:
    """What an address stands for, as sockets take it; nothing where shared memory has no place."""
    parts = url_parts(address)
    if parts.scheme not in _SCHEMES or unsupported():
        await trio.lowlevel.checkpoint()
        return []
    try:
        addresses = await trio.socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # whoever dials it will say so
        return []
    return [(family, target) for family, _, _, _, target in addresses]


def _is_ours(family: socket.AddressFamily, target: Any) -> bool:
    """Whether an address is one of this host's, in this network namespace."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((target[0], 0, *target[2:]))
        except OSError:
            return False
    return True


def _name(host: str, address: str) -> str:
    where = "everywhere" if host in _EVERYWHERE else host.replace(":", ".")
    return f"shm://slot-{where}-{url_parts(address).port}"
