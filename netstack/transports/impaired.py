"""`impaired+tcp://HOST:PORT?delay=5ms&rate=100MiB`: another transport made longer, slower, or broken at will.

Takes: URLs whose scheme names the transport underneath (`impaired+X` over `X`), with any of these parameters:

| parameter | is | default |
|---|---|---|
| `delay=5ms` | how long a byte travels, one way: where both ends are impaired a round trip takes twice that | 0 |
| `rate=100MiB` | bytes a second, in each direction; `none` is without a bound | none |
| `queue=1MiB` | held beyond `rate` x `delay`, before a direction exerts back-pressure | 1 MiB; without a rate 32 MiB |
| `cut=10MB` | a stream breaks after it has handed over so many bytes | never |
| `name=lab` | the `Impairment` to be had from `impairment("lab")` | none |

Gives: streams and listeners. `Listener.address` carries the parameters, so that whoever dials it impairs its own
incoming direction as well; a dialler that leaves them out impairs only the other one.

Rules:
- An end impairs what it receives: bytes are stamped when they are read from the stream underneath, and handed over when
  the line (`_line.Line`) has brought them; likewise the end of the stream, and its breaking. Sending is that of the
  stream underneath, whose own buffers come on top of `queue`. Dialling takes no extra time.
- Whoever is inside `wait_readable` stamps at once. A reader that computes meanwhile stamps when it next looks, so its
  absence adds to the delay instead of hiding in it.
- Times are trio's: exact on a `MockClock`. On a real one nothing arrives early. A byte is as late as a timer of the
  kernel, some 0.1 ms (1.1 ms where there is none), and what a busy machine adds. Lateness does not add up: the line
  goes on behind it, so a rate is kept on the average, if `queue` holds what arrives at once.
- Without a rate `queue` is all that is ever under way, which bounds the throughput to `queue / delay`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import trio
from trio.lowlevel import RunVar

from netstack.deadlines import Deadlines
from netstack.errors import ConfigError, ConnectionLost, LocalProtocolError
from netstack.transport import ByteStream, Listener, Piece, Transport, transport_for

from ._line import Line
from ._parameters import PREFIX, Parameters, split_url

MIB: Final = 1024 * 1024
READS_A_TURN: Final = 4
"""Reads of the stream underneath, of at most 256 KiB each, before it is seen to what is due."""


@dataclass(frozen=True, slots=True)
class ImpairmentStatistics:
    """A snapshot of everything one `Impairment` governs.

    Attributes:
        bytes_delivered: handed over ever, by streams that are gone too.
        bytes_held: read from below, not handed over yet.
        streams: ends that are neither closed nor broken.
    """

    bytes_delivered: int
    bytes_held: int
    streams: int


@final
class Impairment:
    """What happens to the streams of one name in this process (both ends, where both are here), now and from now on."""

    def __init__(self, parameters: Parameters) -> None:
        """Made by the first URL of its name; see `impairment`."""
        self._parameters = parameters
        self._is_stalled = False
        self._bytes_delivered = 0
        self._streams: dict[_ImpairedStream, None] = {}
        self._delay_s = parameters.delay_s
        self._rate = parameters.rate_bytes_per_s
        self._users = 0

    @property
    def delay_s(self) -> float:
        """One way. A change holds for all that has not arrived yet; it never reorders."""
        return self._delay_s

    @delay_s.setter
    def delay_s(self, seconds: float) -> None:
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"delay_s={seconds}; give 0 or more seconds")
        self._delay_s = seconds
        self._change()

    @property
    def rate_bytes_per_s(self) -> float | None:
        """In each direction of each stream; None is without a bound. A change holds for what has not begun to leave."""
        return self._rate

    @rate_bytes_per_s.setter
    def rate_bytes_per_s(self, rate: float | None) -> None:
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"rate_bytes_per_s={rate}; give more than 0 bytes a second, or None")
        self._rate = rate
        self._change()

    @property
    def is_stalled(self) -> bool:
        """Whether between `stall` and `heal`."""
        return self._is_stalled

    def cut(self) -> None:
        """Every stream that is alive breaks, both ends at once; what is under way is lost. Later ones are sound."""
        for stream in list(self._streams):
            stream.cut_off("it was cut")

    def stall(self) -> None:
        """Nothing is handed over until `heal`; nothing is lost either. The lines go on behind it. Idempotent."""
        self._is_stalled = True
        for stream in self._streams:
            stream.look_again()

    def heal(self) -> None:
        """Ends a stall: what became due meanwhile arrives at once. Idempotent."""
        self._is_stalled = False
        for stream in self._streams:
            stream.look_again()

    def statistics(self) -> ImpairmentStatistics:
        """A snapshot; O(streams)."""
        held = sum(stream.line.held_bytes for stream in self._streams)
        return ImpairmentStatistics(self._bytes_delivered, held, len(self._streams))

    def _enter(self) -> None:
        """One more listener or stream is open."""
        self._users += 1

    def _leave(self) -> None:
        """One fewer; with the last one the name is free."""
        self._users -= 1
        name = self._parameters.name
        if not self._users and name is not None and _named.get(name) is self:
            del _named[name]

    def _change(self) -> None:
        for stream in self._streams:
            stream.line.change(self._delay_s, self._rate, trio.current_time())
            stream.look_again()


_named: Final[dict[str, Impairment]] = {}
_running: Final[RunVar[Deadlines | None]] = RunVar("netstack.transports.impaired")


def _deadlines() -> Deadlines | None:
    """Those of the event loop, begun with its first stream; None where trio's own are as exact."""
    if not Deadlines.has_timer():
        return None
    deadlines = _running.get(None)
    if deadlines is None:
        deadlines = Deadlines()
        _running.set(deadlines)
        trio.lowlevel.spawn_system_task(deadlines.run)
    return deadlines


def impairment(name: str) -> Impairment:
    """The `Impairment` of the listeners and streams whose URL says `name=NAME`, while one of them is open.

    Raises:
        LocalProtocolError: none is open in this process.
    """
    impairment = _named.get(name)
    if impairment is None:
        known = ", ".join(sorted(_named)) or "none"
        raise LocalProtocolError(
            f"no open listener or stream of this process is impaired under name={name}; open one first (known: {known})"
        )
    return impairment


@final
class _ImpairedStream(ByteStream):
    """One end: delays what it receives."""

    def __init__(self, inner: ByteStream, impairment: Impairment) -> None:
        """Args: a connected stream, owned from now on; what governs it, already entered for this stream."""
        parameters = impairment._parameters
        delay_s, rate = impairment.delay_s, impairment.rate_bytes_per_s
        queue_bytes = parameters.queue_bytes
        if queue_bytes is None:
            queue_bytes = 32 * MIB if parameters.rate_bytes_per_s is None else MIB
        self.peer = inner.peer
        self.line = Line(queue_bytes, delay_s, rate)
        self._inner = inner
        self._impairment = impairment
        self._until_cut = parameters.cut_bytes
        self._lost: ConnectionLost | None = None  # below; travels behind the bytes
        self._broken: str | None = None
        self._closed = False
        self._reading: dict[trio.CancelScope, float] = {}  # each with its deadline
        self._deadlines = _deadlines()
        impairment._streams[self] = None

    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Sends what the stream takes now: that of the stream underneath."""
        if self._broken is not None:
            raise ConnectionLost(self._broken)
        return self._inner.try_send(pieces)

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Stores what has come: takes in what came from below, hands over what is due."""
        self._check_whole()
        line, impairment = self.line, self._impairment
        self._take_in()
        if impairment._is_stalled:
            return None
        count = line.take_into(windows, self._until_cut)
        due_at = line.due_at()
        for scope, deadline in self._reading.items():  # what has just been taken in is not to be seen below any more
            if due_at < deadline:  # never later: a task that waits on a full line must see that it has room again
                self._end_at(scope, due_at)
        if count:
            impairment._bytes_delivered += count
            if self._until_cut is not None:
                self._until_cut -= count
                if not self._until_cut:
                    self.cut_off(f"it was cut after {impairment._parameters.cut_bytes} bytes")
            return count
        if not line.is_over:
            return None
        if self._lost is not None:
            raise ConnectionLost(str(self._lost)) from self._lost
        return 0

    async def wait_writable(self) -> None:
        """Waits until there is room to send: that of the stream underneath."""
        if not self._is_whole():
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._inner.wait_writable()
        except trio.ClosedResourceError:
            if self._broken is None:
                raise

    async def wait_readable(self) -> None:
        """Waits until bytes are due, and notes when each arrived meanwhile."""
        await trio.lowlevel.checkpoint()
        line = self.line
        while self._is_whole():
            self._take_in()
            due_at = math.inf if self._impairment._is_stalled else line.due_at()
            if due_at == -math.inf:
                return
            with trio.CancelScope() as scope:
                self._end_at(scope, due_at)
                try:
                    if line.takes_more:
                        await self._inner.wait_readable()
                    else:  # the bytes stay below, where their sender notices
                        await trio.sleep_forever()
                except trio.ClosedResourceError:
                    if self._broken is None:
                        raise
                finally:
                    del self._reading[scope]

    def send_eof(self) -> None:
        """Ends the outgoing direction of the stream underneath."""
        self._inner.send_eof()

    def close(self) -> None:
        """Closes at once; what is held is gone."""
        if not self._closed:
            self._closed = True
            self._end()
            self._impairment._leave()

    def tcp_facts(self) -> dict[str, str | int]:
        """Those of the stream underneath."""
        return self._inner.tcp_facts()

    def endpoints(self) -> tuple[str, str]:
        """Those of the stream underneath."""
        return self._inner.endpoints()

    def channel_binding(self) -> bytes:
        """That of the stream underneath."""
        return self._inner.channel_binding()

    def look_again(self) -> None:
        """Whoever waits for bytes finds out anew what to wait for."""
        for scope in self._reading:
            scope.cancel()

    def cut_off(self, reason: str) -> None:
        """Breaks as by a reset: sending and receiving fail, waits end. An end elsewhere reads the end of its stream."""
        self._broken = f"the connection to {self.peer} broke: {reason}"
        self._end()

    def _end_at(self, scope: trio.CancelScope, due_at: float) -> None:
        self._reading[scope] = due_at
        if self._deadlines is None:
            scope.deadline = due_at
        elif due_at < math.inf:
            self._deadlines.call_at(due_at, scope.cancel)

    def _end(self) -> None:
        self._impairment._streams.pop(self, None)
        self.look_again()
        self._inner.close()

    def _take_in(self) -> None:
        line = self.line
        now = trio.current_time()
        for _ in range(READS_A_TURN):
            window = line.window()
            if window is None:
                break
            try:
                count = self._inner.try_receive_into([window])
            except ConnectionLost as error:
                self._lost = error
                count = 0
            if count is None:
                break
            if not count:
                line.end(now)
                break
            line.enter(count, now)
            if count < len(window):
                break
        line.advance(now)

    def _is_whole(self) -> bool:
        """False: broken, which the next `try_` tells. Raises `trio.ClosedResourceError` when closed."""
        if self._closed:
            raise trio.ClosedResourceError(f"the stream to {self.peer} was closed")
        return self._broken is None

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise ConnectionLost(self._broken)
        if self._closed:
            raise ConnectionLost(f"the connection to {self.peer} broke: it is closed")


@final
class _ImpairedListener(Listener):
    def __init__(self, inner: Listener, query: str, impairment: Impairment) -> None:
        self.address = f"{PREFIX}{inner.address}{query and '?'}{query}"
        self._inner = inner
        self._impairment = impairment
        self._closed = False

    async def accept(self) -> ByteStream:
        stream = await self._inner.accept()
        self._impairment._enter()
        return _ImpairedStream(stream, self._impairment)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inner.close()
            self._impairment._leave()


@final
class ImpairedTransport(Transport):
    """Any other transport, with delay, a rate and cuts."""

    async def listen(self, url: str) -> Listener:
        """Binds as the transport underneath does."""
        inner_url, query, parameters = split_url(url)
        transport = transport_for(inner_url)
        impairment = _governing(url, parameters)
        try:
            return _ImpairedListener(await transport.listen(inner_url), query, impairment)
        except OSError as error:
            impairment._leave()
            raise OSError(error.errno, f"{url}: {error.strerror or error}") from error
        except BaseException:
            impairment._leave()
            raise

    async def connect(self, url: str) -> ByteStream:
        """Dials as the transport underneath does."""
        inner_url, _, parameters = split_url(url)
        transport = transport_for(inner_url)
        impairment = _governing(url, parameters)
        try:
            return _ImpairedStream(await transport.connect(inner_url), impairment)
        except ConnectionLost as error:
            impairment._leave()
            raise ConnectionLost(f"{url}: {error}") from error
        except BaseException:
            impairment._leave()
            raise


def _governing(url: str, parameters: Parameters) -> Impairment:
    name = parameters.name
    impairment = None if name is None else _named.get(name)
    if impairment is None:
        impairment = Impairment(parameters)
        if name is not None:
            _named[name] = impairment
    elif impairment._parameters != parameters:
        raise ConfigError(f"address {url!r}: name={name} is open with other parameters; give the same, or another name")
    impairment._enter()
    return impairment
