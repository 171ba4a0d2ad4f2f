"""A simulated network of hosts in one process, with delays, cuts, stalls in one direction, and healing.

Takes: the host of each task (`THIS_HOST`), addresses `simulated://HOST:PORT`. Gives: streams like TCP's.

Rules: bytes keep their order and value. A killed process resets its connections, as the kernel does; a host without
power just becomes silent. A stalled link loses nothing: sent bytes arrive when it heals. The seed decides how bytes are
split into pieces.
"""

from __future__ import annotations

import errno
import hashlib
import math
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Final, final

import trio

from ...base.errors import ConnectionLost
from ...base.queue_listener import QueueListener
from ...base.transport import ByteStream, Listener, Piece, Transport, url_parts

SCHEME: Final = "simulated"
CAPACITY_BYTES: Final = 64 * 1024
"""Limit of bytes in flight in one direction of a connection."""

DELAY_S: Final = 0.000_2
"""One-way delay without faults."""

_PIECES: Final = 0.2
_SENDS: Final = 40


@final
class Process:
    """One life of a host.

    Attributes:
        is_alive: whether it was neither killed nor lost its power.
        is_silent: whether it lost its power, which peers cannot see.
        slowness: factor by which its work takes longer.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_alive = True
        self.is_silent = False
        self.slowness = 1.0


CallAt = Callable[[float, Callable[[], object]], object]

THIS_HOST: Final[ContextVar[Process]] = ContextVar("this_host")
"""The process to which the current task belongs."""


@final
class _Route:
    """The link from one host to another."""

    def __init__(self) -> None:
        self.delay_s = DELAY_S
        self.stalls = 0
        self.directions: dict[_Direction, None] = {}

    def look(self) -> None:
        for direction in self.directions:
            direction.changed.unpark_all()


@final
class _Direction:
    """One direction of a connection."""

    def __init__(self, route: _Route, call_at: CallAt) -> None:
        self.route = route
        self._call_at = call_at
        self._woken_s = -math.inf
        self.flight: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.ends_at = math.inf
        self.is_reset = False
        """Closes the reading end; the writer may learn of it."""
        self.changed = trio.lowlevel.ParkingLot()
        route.directions[self] = None

    def arrival_s(self) -> float:
        """The time at which data can be read."""
        if self.route.stalls:
            return math.inf
        return self.flight[0][0] if self.flight else self.ends_at

    def send(self, data: bytes, now_s: float) -> None:
        last = self.flight[-1][0] if self.flight else 0.0
        arrival_s = max(last, now_s + self.route.delay_s)
        self.flight.append((arrival_s, data))
        self.size += len(data)
        self._wake_at(arrival_s)

    def end(self) -> None:
        if self.ends_at == math.inf:
            last = self.flight[-1][0] if self.flight else 0.0
            self.ends_at = max(last, trio.current_time() + self.route.delay_s)
            self._wake_at(self.ends_at)

    def _wake_at(self, arrival_s: float) -> None:
        """Wakes the reader at that time."""
        if arrival_s > self._woken_s:
            self._woken_s = arrival_s
            self._call_at(arrival_s, self.changed.unpark_all)


@final
class _Wish:
    """A wait for the moment when bytes are sent over a link between two of some hosts."""

    def __init__(self, hosts: Collection[str], sends_left: int) -> None:
        self.hosts = hosts
        self.sends_left = sends_left
        self.link: tuple[str, str] | None = None
        self.granted = trio.Event()


@final
class Network(Transport):
    """All hosts and the links between them.

    Args:
        chance: decides how bytes are split.
        call_at: schedules a callback on the run's clock.

    Attributes:
        digest: digest of all delivered byte counts and times; equal for equal runs.
    """

    def __init__(self, chance: random.Random, call_at: CallAt) -> None:
        self.chance = chance
        self._call_at = call_at
        self.digest = hashlib.blake2b(digest_size=8)
        self.streams: dict[_SimulatedStream, None] = {}
        self.deaths = 0
        self._routes: dict[tuple[str, str], _Route] = {}
        self._listeners: dict[str, _SimulatedListener] = {}
        self._wishes: list[_Wish] = []

    # Faults.

    def set_delay(self, source: str, target: str, delay_s: float) -> None:
        """Sets the delay of new bytes; bytes in flight keep theirs, and order stays."""
        self._route(source, target).delay_s = delay_s

    def stall(self, source: str, target: str) -> None:
        """Stalls the link; stalls add up."""
        self._route(source, target).stalls += 1

    def heal(self, source: str, target: str) -> None:
        """Ends one stall; sent bytes arrive."""
        route = self._route(source, target)
        route.stalls -= 1
        route.look()

    async def link_in_use(self, hosts: Collection[str], longest_s: float) -> tuple[str, str] | None:
        """Waits for bytes in flight between two of these hosts; None if there are none within the time.

        The first bytes of a connection do not count: it has data to lose only after its greetings.
        """
        wish = _Wish(hosts, self.chance.randint(0, _SENDS))
        self._wishes.append(wish)
        with trio.move_on_after(longest_s):
            await wish.granted.wait()
        self._wishes.remove(wish)
        return wish.link

    def cut(self, one: str, other: str) -> None:
        """Breaks all connections between two hosts; bytes in flight are lost."""
        for stream in [*self.streams]:
            if {stream.process.host, stream.far.process.host} == {one, other}:
                stream.reset()

    def died(self, process: Process, *, silently: bool) -> None:
        """Ends a process: its listeners close, and its connections are reset unless the power failed."""
        process.is_alive = False
        process.is_silent = silently
        self.deaths += 1
        for address, listener in [*self._listeners.items()]:
            if listener.process is process:
                del self._listeners[address]
        for stream in [*self.streams]:
            if stream.process is process:
                stream.abandon(silently=silently)

    # The transport.

    async def listen(self, url: str) -> Listener:
        """Listens at an address of this host."""
        await trio.lowlevel.checkpoint()
        if url in self._listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen at {url}: the address is in use")
        self._listeners[url] = listener = _SimulatedListener(self, url, THIS_HOST.get())
        return listener

    async def connect(self, url: str) -> ByteStream:
        """Dials: refused without a listener, unanswered on a stalled link."""
        process = THIS_HOST.get()
        host = url_parts(url).hostname or ""
        there, back = self._route(process.host, host), self._route(host, process.host)
        await trio.sleep(there.delay_s + back.delay_s)
        while there.stalls or back.stalls:  # noqa: ASYNC110  # as SYN is sent again
            await trio.sleep(1.0)
        listener = self._listeners.get(url)
        if listener is None or not process.is_alive:
            raise ConnectionLost(f"cannot reach {url}: connection refused")
        outgoing, incoming = _Direction(there, self._call_at), _Direction(back, self._call_at)
        near = _SimulatedStream(self, process, outgoing, incoming, url)
        far = _SimulatedStream(self, listener.process, incoming, outgoing, f"{SCHEME}://{process.host}:0")
        near.far, far.far = far, near
        listener.put(far)
        return near

    def sent(self, source: str, target: str) -> None:
        """Records bytes in flight."""
        for wish in self._wishes:
            if wish.link is None and source in wish.hosts and target in wish.hosts:
                wish.sends_left -= 1
                if wish.sends_left < 0:
                    wish.link = source, target
                    wish.granted.set()

    def forget(self, listener: _SimulatedListener) -> None:
        """It was closed."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def _route(self, source: str, target: str) -> _Route:
        return self._routes.setdefault((source, target), _Route())


@final
class _SimulatedListener(QueueListener):
    def __init__(self, network: Network, address: str, process: Process) -> None:
        super().__init__(address)
        self.process = process
        self._network = network

    def close(self) -> None:
        self._network.forget(self)
        super().close()


@final
class _SimulatedStream(ByteStream):
    """One end."""

    far: _SimulatedStream

    def __init__(
        self, network: Network, process: Process, outgoing: _Direction, incoming: _Direction, peer: str
    ) -> None:
        self.peer = peer
        self.process = process
        self._network = network
        self._out = outgoing
        self._in = incoming
        self._lost = False
        self._closed = False
        network.streams[self] = None

    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Implements `ByteStream.try_send`."""
        self._check_whole()
        out = self._out
        if out.is_reset and not out.route.stalls:
            raise ConnectionLost(f"the connection to {self.peer} broke: connection reset")
        data = b"".join(bytes(piece) for piece in pieces)[: CAPACITY_BYTES - out.size]
        if not data:
            return 0
        now = trio.current_time()
        if not self._is_lost_on_the_way:
            out.send(data, now)
            self._network.sent(self.process.host, self.far.process.host)
        self._network.digest.update(b"%.6f %s %d\n" % (now, self.process.host.encode(), len(data)))
        return len(data)

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Implements `ByteStream.try_receive_into`."""
        self._check_whole()
        incoming = self._in
        now = trio.current_time()
        if incoming.arrival_s() > now:
            return None
        chance = self._network.chance
        most = chance.randint(1, 200) if chance.random() < _PIECES else CAPACITY_BYTES
        taken = 0
        for window in windows:
            position = 0
            while position < len(window) and taken < most and incoming.flight and incoming.flight[0][0] <= now:
                arrived, data = incoming.flight.popleft()
                count = min(len(data), len(window) - position, most - taken)
                window[position : position + count] = data[:count]
                position += count
                taken += count
                if count < len(data):
                    incoming.flight.appendleft((arrived, data[count:]))
            if position < len(window):
                break
        incoming.size -= taken
        if taken:
            incoming.changed.unpark_all()
        return taken

    async def wait_writable(self) -> None:
        """Implements `ByteStream.wait_writable`."""
        await trio.lowlevel.checkpoint()
        out = self._out
        while not self._lost and out.size >= CAPACITY_BYTES and not (out.is_reset and not out.route.stalls):
            self._check_open()
            await out.changed.park()
        self._check_open()

    async def wait_readable(self) -> None:
        """Implements `ByteStream.wait_readable`."""
        incoming = self._in
        if self._lost or incoming.arrival_s() <= trio.current_time():
            await trio.lowlevel.checkpoint()
        while not self._lost and incoming.arrival_s() > trio.current_time():
            self._check_open()
            await incoming.changed.park()
        self._check_open()

    def send_eof(self) -> None:
        """Ends the outgoing direction."""
        if not self._is_lost_on_the_way:
            self._out.end()

    def endpoints(self) -> tuple[str, str]:
        """Returns no names: the proof is bound to the dialled address."""
        return "", ""

    def close(self) -> None:
        """Ends both directions."""
        if not self._closed:
            self._closed = True
            self._network.streams.pop(self, None)
            self.send_eof()
            self._reader_left()
            for direction in (self._out, self._in):
                direction.changed.unpark_all()
                if self.far._closed:
                    direction.route.directions.pop(direction, None)

    def reset(self) -> None:
        """Breaks both ends."""
        for end in (self, self.far):
            end._lost = True
            end._out.changed.unpark_all()
            end._in.changed.unpark_all()

    def abandon(self, *, silently: bool) -> None:
        """Handles the death of its process."""
        if not silently:
            self._out.flight.clear()
            self._out.size = 0
            self._out.end()
            self._in.is_reset = True
        self._lost = True
        self._out.changed.unpark_all()
        self._in.changed.unpark_all()

    @property
    def _is_lost_on_the_way(self) -> bool:
        return self._lost or not self.process.is_alive

    def _reader_left(self) -> None:
        if not self.process.is_silent and not self._lost:
            self._in.is_reset = True

    def _check_whole(self) -> None:
        if self._closed or self._lost:
            raise ConnectionLost(f"the connection to {self.peer} broke: connection reset")

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"the stream to {self.peer} was closed")
