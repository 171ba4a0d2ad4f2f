"""The TaskManagers that are connected, by the names that jobs know them by.

Takes: links whose greetings are exchanged. Gives: names, places, and a way to tell them something.

Rules: a name is never used twice, so that an old connection of the same process ends for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, final

import trio

from ..control.codec import Message
from ..control.link import ControlLink, Greeting
from ..control.messages import Ping
from ..errors import ConfigError, ErrorCode, RemoteProtocolError, RequestRefused
from ..schedule.descriptors.shuffle import TaskManagerLocation
from ..shown import shown, shown_text
from ..transport import told_address, url_parts

MAX_SLOTS: Final = 1 << 20
"""Of one TaskManager; more is a mistake."""

_ANYWHERE: Final = ("0.0.0.0", "::", "")


@final
@dataclass(slots=True)
class ConnectedTaskManager:
    """One TaskManager.

    Attributes:
        location: its name and where its data are.
        control_address: where others than this JobManager may ask it something.
        link: to it.
        slots: how many it has.
        facts: what it says of itself.
        registered_at: seconds since 1970.
        heard_s: when it said something last, on trio's clock.
        opening: jobs it was asked to open, with the slots that will be theirs when it has, and others have, too.
        jobs: those it has opened.
        lost_because: why it is not there any more; empty while it is.
    """

    location: TaskManagerLocation
    control_address: str
    link: ControlLink
    slots: int
    facts: dict[str, Any]
    registered_at: float
    heard_s: float
    opening: dict[str, tuple[int, ...]] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    lost_because: str = ""


@final
class TaskManagers:
    """All of them."""

    def __init__(self, *, require_tls: bool) -> None:
        """Args: whether the data of all of them have to go over TLS."""
        self._require_tls = require_tls
        self._connected: dict[str, ConnectedTaskManager] = {}
        self._registrations: dict[str, int] = {}

    def register(self, link: ControlLink, greeting: Greeting, slots: int | None = None) -> ConnectedTaskManager:
        """A TaskManager has come.

        Args:
            link: to it.
            greeting: what it said of itself.
            slots: how many of its slots are used; None: all.

        Raises:
            RemoteProtocolError: it does not say what it has to.
            RequestRefused: its data go without TLS, where that is required.
            RequestRefused: it has fewer slots.
        """
        facts = greeting.facts
        has, data = facts.get("slots"), facts.get("data") or facts.get("address")
        if type(has) is not int or not 1 <= has <= MAX_SLOTS or type(data) is not str:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"{link.peer} registers with slots={shown(has)} and data={shown(data)}; expected are a number of"
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
                f"{link.peer} registers {has} slots with slot_addresses={shown(of_slots)}; expected is a URL each",
            )
        slots = has if slots is None else slots
        if slots > has:
            raise RequestRefused(
                f"{slots} slots were asked for, and TaskManager {link.peer} has {has}: start it with --slots {slots},"
                " or lower the parallelism"
            )
        base = address.partition("://")[2]
        number = self._registrations[base] = self._registrations.get(base, 0) + 1
        announced = facts.get("control")
        control = (
            _reachable(announced, link.place, require_tls=False) if type(announced) is str and announced else address
        )
        name = base if number == 1 else f"{base}#{number}"
        hostname = facts.get("hostname")
        taskmanager = ConnectedTaskManager(
            TaskManagerLocation(
                name,
                address,
                hostname if type(hostname) is str else "",
                tuple(_reachable(each, link.place, require_tls=self._require_tls) for each in of_slots),
            ),
            control,
            link,
            slots,
            facts,
            time.time(),
            trio.current_time(),
        )
        self._connected[name] = taskmanager
        return taskmanager

    def remove(self, name: str) -> None:
        """It has gone."""
        self._connected.pop(name, None)

    def get(self, name: str) -> ConnectedTaskManager | None:
        """The one of this name, if it is there."""
        return self._connected.get(name)

    def all(self) -> Iterable[ConnectedTaskManager]:
        """All that are there, in the order in which they came."""
        return self._connected.values()

    def send(self, name: str, message: Message) -> None:
        """Tells one something; nothing happens when it is gone."""
        taskmanager = self._connected.get(name)
        if taskmanager is not None:
            taskmanager.link.send(message)

    def ping(self, name: str) -> None:
        """Has one say something soon."""
        self.send(name, Ping(0))

    def heard_s(self, name: str) -> float | None:
        """When one said something last; None when it is gone."""
        taskmanager = self._connected.get(name)
        return None if taskmanager is None else taskmanager.link.heard_s


def _reachable(data: str, peer: str, *, require_tls: bool) -> str:
    """A data address as others reach it: one that listens everywhere is where its connection came from.

    Raises:
        RemoteProtocolError: it is none.
        RequestRefused: it is without TLS, where that is required.
    """
    try:
        data = told_address(data)
        parts = url_parts(data)
    except ConfigError as error:
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{peer} registers with {error}") from error
    if require_tls and "tls" not in parts.scheme.split("+"):
        raise RequestRefused(
            f"{shown_text(data)} is no address with TLS, which this JobManager requires: start the TaskManager with"
            " --listen tls+tcp://ADDR:PORT"
        )
    if parts.hostname is None or parts.hostname not in _ANYWHERE or parts.port is None:
        return data
    host = peer.rpartition("://")[2].rpartition(":")[0]
    return f"{parts.scheme}://{host}:{parts.port}"
