"""The connected TaskManagers by name.

Takes: links after their greeting. Gives: names, addresses, and a way to send messages to them.

Rules: a name is never reused, so an old connection of the same process cannot be confused with a new one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, final

import trio

from ....base.errors import ConfigError, ErrorCode, RemoteProtocolError, RequestRefused
from ....base.text.bounded_msgpack import memory_bytes
from ....base.text.safe_text import safe_repr, safe_text
from ....base.tls.tls_files import covers
from ....base.transport import told_address, url_parts
from ....schedule.descriptors.shuffle import TaskManagerLocation
from ...control.codec import Message
from ...control.link import ControlLink, Greeting
from ...control.messages import Ping
from ..peer_budget import PeerBudget

MAX_ADDRESS: Final = 1024
"""Maximum length of an address, and of a host's name."""

MAX_SLOTS: Final = 1 << 20
"""Maximum number of slots of one TaskManager; a larger number is an error."""

MAX_FACTS_BYTES: Final = 1 << 18
"""Memory for the facts of a TaskManager."""

_MAX_NAMES: Final = 200

MAX_REMEMBERED: Final = 4096
"""Number of addresses whose registrations are counted; the numbers of others go on from the largest forgotten one."""

_ANYWHERE: Final = ("0.0.0.0", "::", "")


@final
@dataclass(slots=True)
class ConnectedTaskManager:
    """One connected TaskManager.

    Attributes:
        location: its name and data address.
        registered_at: seconds since 1970.
        heard_s: time of its last message on trio's clock.
        opening: jobs that it is opening, with the slots that they receive afterwards.
        budget: bounds what its messages hold.
        lost_because: why it was lost; empty while it is connected.
    """

    location: TaskManagerLocation
    control_address: str
    link: ControlLink
    slots: int
    facts: dict[str, Any]
    registered_at: float
    heard_s: float
    budget: PeerBudget
    opening: dict[str, tuple[int, ...]] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    lost_because: str = ""


@final
class TaskManagers:
    """All connected TaskManagers."""

    def __init__(self, *, require_tls: bool) -> None:
        """`require_tls`: whether the data of all TaskManagers must use TLS."""
        self._require_tls = require_tls
        self._connected: dict[str, ConnectedTaskManager] = {}
        self._registrations: dict[str, int] = {}  # by address, the newest last
        self._forgotten = 0

    def register(self, link: ControlLink, greeting: Greeting, slots: int | None = None) -> ConnectedTaskManager:
        """Adds a TaskManager.

        Args:
            link: the link to it.
            greeting: its greeting.
            slots: number of its slots to use; None: all.

        Raises:
            RemoteProtocolError: its facts are malformed.
            RequestRefused: it has fewer slots, or its data port has no TLS although that is required, or its
                certificate does not cover an address at which it is dialled.
        """
        facts = greeting.facts
        if memory_bytes(facts, MAX_FACTS_BYTES) > MAX_FACTS_BYTES:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"{link.peer} registers with facts of more than {MAX_FACTS_BYTES} bytes"
            )
        has, data = facts.get("slots"), facts.get("data") or facts.get("address")
        if type(has) is not int or not 1 <= has <= MAX_SLOTS or type(data) is not str:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"{link.peer} registers with slots={safe_repr(has)} and data={safe_repr(data)}; expected a number of"
                " slots and the URL of its port",
            )
        address = _reachable(data, link.place, require_tls=self._require_tls)
        of_slots = facts.get("slot_addresses") or []
        if (
            type(of_slots) is not list
            or len(of_slots) not in (0, has)
            or not all(type(each) is str for each in of_slots)
        ):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"{link.peer} registers {has} slots with slot_addresses={safe_repr(of_slots)}; expected one URL each",
            )
        slots = has if slots is None else slots
        if slots > has:
            raise RequestRefused(
                f"{slots} slots are needed, but TaskManager {link.peer} has {has}: start it with --slots {slots},"
                " or lower the parallelism"
            )
        base = address.partition("://")[2]
        number = self._number_of(base)
        announced = facts.get("control")
        control = (
            _reachable(announced, link.place, require_tls=self._require_tls)
            if type(announced) is str and announced
            else address
        )
        slot_addresses = tuple(_reachable(each, link.place, require_tls=self._require_tls) for each in of_slots)
        _check_certificate(link, (address, control, *slot_addresses))
        name = base if number == 1 else f"{base}#{number}"
        hostname = facts.get("hostname")
        taskmanager = ConnectedTaskManager(
            TaskManagerLocation(
                name,
                address,
                safe_text(hostname, MAX_ADDRESS) if type(hostname) is str else "",
                slot_addresses,
            ),
            control,
            link,
            slots,
            facts,
            time.time(),
            trio.current_time(),
            PeerBudget(name),
        )
        self._connected[name] = taskmanager
        return taskmanager

    def _number_of(self, base: str) -> int:
        """Returns the number of this registration of an address; no name is given twice."""
        number = self._registrations.pop(base, self._forgotten) + 1
        self._registrations[base] = number
        while len(self._registrations) > MAX_REMEMBERED:
            self._forgotten = max(self._forgotten, self._registrations.pop(next(iter(self._registrations))))
        return number

    def remove(self, name: str) -> None:
        """Removes a TaskManager."""
        self._connected.pop(name, None)

    def get(self, name: str) -> ConnectedTaskManager | None:
        """Returns the TaskManager of this name, or None."""
        return self._connected.get(name)

    def all(self) -> Iterable[ConnectedTaskManager]:
        """Returns all connected TaskManagers in the order of registration."""
        return self._connected.values()

    def send(self, name: str, message: Message) -> None:
        """Sends a message to a TaskManager; does nothing if it is not connected."""
        taskmanager = self._connected.get(name)
        if taskmanager is not None:
            taskmanager.link.send(message)

    def ping(self, name: str) -> None:
        """Pings a TaskManager."""
        self.send(name, Ping(0))

    def heard_s(self, name: str) -> float | None:
        """Returns when a TaskManager was last heard; None if it is not connected."""
        taskmanager = self._connected.get(name)
        return None if taskmanager is None else taskmanager.link.heard_s


def _check_certificate(link: ControlLink, addresses: Iterable[str]) -> None:
    """Checks the certificate that a TaskManager showed on its control connection: it listens with the same one.

    Without TLS there, and with `names=off` here, nothing is known, and everything is accepted.

    Raises:
        RequestRefused: peers that dial one of these addresses would refuse the certificate.
    """
    names = link.certificate_names
    if names is None:
        return
    for address in addresses:
        parts = url_parts(address)
        if "tls" in parts.scheme.split("+") and parts.hostname and not covers(names, parts.hostname):
            valid = safe_text(" and ".join(names), _MAX_NAMES) or "no name"
            host = safe_text(parts.hostname)
            raise RequestRefused(
                f"TaskManager {link.peer}: its certificate is valid for {valid}, not for {host}, where others dial it"
                f" ({safe_text(address)}), so every job would fail: make one with netstack certificate host FOLDER"
                f" {host} --authority AUTHORITY, or --listen on a name that it has"
            )


def _reachable(data: str, peer: str, *, require_tls: bool) -> str:
    """Returns an address as others reach it; replaces a wildcard host by that of the peer's connection.

    Raises:
        RemoteProtocolError: the address is malformed.
        RequestRefused: it has no TLS although that is required.
    """
    if len(data) > MAX_ADDRESS:
        raise RemoteProtocolError(
            ErrorCode.MALFORMED_FRAME,
            f"{peer} registers with an address of {len(data)} characters ({safe_repr(data, 40)}); the maximum is"
            f" {MAX_ADDRESS}",
        )
    if "," in data:  # a list: whoever dials it would try its other addresses too, checked by nobody
        raise RemoteProtocolError(
            ErrorCode.MALFORMED_FRAME, f"{peer} registers with {safe_repr(data)}; expected one URL, without commas"
        )
    try:
        data = told_address(data)
        parts = url_parts(data)
    except ConfigError as error:
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{peer} registers with {error}") from error
    if require_tls and "tls" not in parts.scheme.split("+"):
        raise RequestRefused(
            f"{safe_text(data)} does not use TLS, which this JobManager requires: start the TaskManager with"
            " --listen tls+tcp://ADDR:PORT"
        )
    if parts.hostname is None or parts.hostname not in _ANYWHERE or parts.port is None:
        return data
    host = peer.rpartition("://")[2].rpartition(":")[0]
    return f"{parts.scheme}://{host}:{parts.port}"
