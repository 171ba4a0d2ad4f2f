"""Finds the connections with data to read, with one system call instead of one failing read each.

Takes: pumps. Gives: those to read from.

Streams in shared memory know without a system call whether data has arrived. Other streams that are more than a socket
(TLS, an impaired line) cannot tell and are always read. It uses `poll` rather than `epoll`, which owns no descriptor: a
descriptor that was closed, or closed and reused, costs at most one read without data.
"""

from __future__ import annotations

import select
from typing import Final, final

from ...exchange.inbound.receiver import ChannelReceiver
from .pump import Pump
from .session_stream import SessionStream

FEW: Final = 2
"""Up to this many connections are simply read: a read without data costs as much as a poll."""


@final
class Readiness:
    """The connections of a gate, or those that a TaskManager has accepted."""

    __slots__ = ("_always", "_asked", "_by_descriptor", "_poll", "_pumps", "_streams_changed")

    def __init__(self) -> None:
        self._streams_changed = SessionStream.streams_changed
        self._pumps: dict[Pump, None] = {}
        self._always: dict[Pump, None] = {}
        self._asked: dict[Pump, None] = {}
        self._by_descriptor: dict[int, Pump] = {}
        self._poll = select.poll()

    def add(self, pump: Pump) -> None:
        """Adds a connection."""
        self._pumps[pump] = None
        descriptor = pump.stream.descriptor()
        if descriptor is None:
            (self._always if pump.stream.has_come() is None else self._asked)[pump] = None
            return
        self._by_descriptor[descriptor] = pump
        self._poll.register(descriptor, select.POLLIN)

    def discard(self, pump: Pump) -> None:
        """Removes a connection."""
        if pump in self._pumps:
            del self._pumps[pump]
            self._always.pop(pump, None)
            self._asked.pop(pump, None)
            for descriptor, known in list(self._by_descriptor.items()):
                if known is pump:
                    del self._by_descriptor[descriptor]
                    self._poll.unregister(descriptor)

    @property
    def only_sockets(self) -> bool:
        """Whether there are connections, and all of them are sockets."""
        return bool(self._pumps) and not self._always and not self._asked

    @property
    def may_spin(self) -> bool:
        """Whether there are connections, and polling can tell for all of them whether data has arrived."""
        return bool(self._pumps) and not self._always

    def ready(self) -> list[Pump]:
        """The connections that may have data; all of them if there are few."""
        if len(self._pumps) <= FEW:
            return list(self._pumps)
        if self._streams_changed != SessionStream.streams_changed:
            self._ask_again()
        readable = list(self._always)
        readable += [pump for pump in self._asked if pump.stream.has_come()]
        by_descriptor = self._by_descriptor
        for descriptor, _ in self._poll.poll(0):
            pump = by_descriptor.get(descriptor)
            if pump is None:
                continue
            if pump.is_closed:
                self.discard(pump)
            else:
                readable.append(pump)
        return readable

    def _ask_again(self) -> None:
        """Rebuilds the sets: a resumed connection has a new stream with another descriptor."""
        self._streams_changed = SessionStream.streams_changed
        pumps, self._pumps = self._pumps, {}
        self._always = {}
        self._asked = {}
        self._by_descriptor = {}
        self._poll = select.poll()
        for pump in pumps:
            if not pump.is_closed:
                self.add(pump)


@final
class Producers:
    """The connections that a gate reads."""

    __slots__ = ("_readiness", "_receivers")

    def __init__(self) -> None:
        self._receivers: dict[Pump, ChannelReceiver] = {}
        self._readiness = Readiness()

    def add(self, pump: Pump, receiver: ChannelReceiver) -> None:
        """Adds a connection."""
        if pump not in self._receivers:
            self._receivers[pump] = receiver
            self._readiness.add(pump)

    @property
    def only_sockets(self) -> bool:
        """Whether there are connections, and all of them are sockets."""
        return self._readiness.only_sockets

    @property
    def may_spin(self) -> bool:
        """Whether there are connections, and polling can tell for all of them whether data has arrived."""
        return self._readiness.may_spin

    @property
    def pumps(self) -> tuple[Pump, ...]:
        """All connections."""
        return tuple(self._receivers)

    def round_trip_s(self) -> float:
        """The longest round trip of the connections; 0 if none is known."""
        return max((pump.stream.round_trip_s() for pump in self._receivers), default=0.0)

    def read_connections(self) -> None:
        """Announces due credit and reads what has arrived; connections without data announce withheld credit too."""
        receivers = self._receivers
        if len(receivers) <= FEW:
            for pump, receiver in receivers.items():
                if pump.is_dirty:  # the producer may be waiting for this credit
                    pump.write_now()
                if not pump.read_now():
                    receiver.announce_deferred()
                    if pump.is_dirty:
                        pump.write_now()
            return
        for pump in receivers:
            if pump.is_dirty:
                pump.write_now()
        brought = {pump for pump in self._readiness.ready() if pump.read_now()}
        for pump, receiver in receivers.items():
            if pump not in brought:
                receiver.announce_deferred()
                if pump.is_dirty:
                    pump.write_now()
