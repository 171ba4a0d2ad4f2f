"""`impaired+tcp://HOST:PORT?delay=5ms&rate=100MiB`: another transport with delay, a limited rate, and cuts.

Takes: URLs whose scheme names the underlying transport (`impaired+X` over `X`), with any of these parameters:

| parameter | meaning | default |
|---|---|---|
| `delay=5ms` | one-way delay of a byte; if both ends are impaired, a round trip takes twice as long | 0 |
| `rate=100MiB` | rate per second in each direction, also as `800Mbit`; `none` means no limit | none |
| `queue=1MiB` | bytes held beyond `rate` x `delay` before a direction exerts back-pressure | 1 MiB; 32 MiB without a
rate |
| `loss=0.001` | part of all frames that is lost: what was in it, and all behind it, comes a round trip later | 0 |
| `congestion=cubic` | TCP's window is in front: it fills the queue, loses what does not fit, sends less | none |
| `jitter=2ms` | added to the delay, evenly distributed between 0 and this | 0 |
| `cut=10MB` | a stream breaks after it has delivered this many bytes | never |
| `name=lab` | the name for `impairment("lab")` | none |

Gives: streams and listeners. `Listener.address` includes the parameters, so a process that dials it also impairs its
own incoming direction; without the parameters only the other direction is impaired.

Rules:
- An end impairs what it receives: bytes get a timestamp when they are read from the underlying stream, and are
  delivered when the line (`_line.Line`) has carried them; likewise the end of the stream, and its failure. Sending uses
  the underlying stream directly, whose own buffers add to `queue`. Dialling takes no extra time.
- With `congestion=cubic` the model is TCP on a real line (`_window.CubicWindow`): `queue` holds what TCP has sent, and
  `UNSENT_BYTES` wait before it, in the underlying stream and here.
- A task in `wait_readable` timestamps bytes at once. A reader that computes meanwhile timestamps them at its next call,
  so its absence adds to the delay instead of being hidden by it.
- Times are trio's: exact with a `MockClock`. In real time nothing arrives early. A task that waits is woken as much
  earlier as it woke late before, at most `MOST_LEAD_S`, and polls the clock for the rest. On a busy machine, and
  without kernel timers (1.1 ms), bytes are late. Lateness does not accumulate: the line continues independently, so the
  average rate is kept if `queue` can hold the bytes that arrive at once.
- Without a rate, `queue` is all that can be in flight, which limits the throughput to `queue / delay`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import trio
from trio.lowlevel import RunVar

from netstack.base.errors import ConfigError, ConnectionLost, LocalProtocolError
from netstack.base.timing.deadlines import Deadlines
from netstack.base.transport import ByteStream, Listener, OneWaiter, Piece, Transport, check_room, transport_for

from ._line import Line
from ._parameters import PREFIX, Parameters, split_url

MIB: Final = 1024 * 1024
UNSENT_BYTES: Final = 256 * 1024
"""What a sender on a real line has handed to the kernel, which has not sent it yet (`tcp.NOTSENT_LOWAT_BYTES`)."""

KERNEL_BYTES: Final = 96 * 1024
"""Of these, what the kernel has at each end. With less, loopback's segments of 64 KiB do not fit, and its TCP waits for
room."""

MOST_LEAD_S: Final = 0.0002
"""How much earlier than its bytes a waiting task is woken at most, because it wakes late."""

READS_A_TURN: Final = 4
"""Reads of the underlying stream, of at most 256 KiB each, before due bytes are delivered."""


@dataclass(frozen=True, slots=True)
class ImpairmentStatistics:
    """A snapshot of the streams of one `Impairment`.

    Attributes:
        bytes_delivered: delivered so far, including closed streams.
        bytes_held: read from the underlying stream, but not delivered yet.
        streams: ends that are neither closed nor broken.
    """

    bytes_delivered: int
    bytes_held: int
    streams: int


@final
class Impairment:
    """Controls the streams with one name in this process (both ends, if both are here)."""

    def __init__(self, parameters: Parameters) -> None:
        """Created by the first URL with its name; see `impairment`."""
        self._parameters = parameters
        self.is_stalled = False
        """Whether `stall` was called, and `heal` was not."""
        self._bytes_delivered = 0
        self._streams: dict[_ImpairedStream, None] = {}
        self._delay_s = parameters.delay_s
        self._rate = parameters.rate_bytes_per_s
        self._users = 0

    @property
    def delay_s(self) -> float:
        """The one-way delay. A change applies to all bytes that have not arrived; bytes are never reordered."""
        return self._delay_s

    @delay_s.setter
    def delay_s(self, seconds: float) -> None:
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"delay_s={seconds}; give 0 or more seconds")
        self._delay_s = seconds
        self._change()

    @property
    def rate_bytes_per_s(self) -> float | None:
        """The rate of each direction of each stream; None means no limit. A change applies to bytes not yet sent."""
        return self._rate

    @rate_bytes_per_s.setter
    def rate_bytes_per_s(self, rate: float | None) -> None:
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"rate_bytes_per_s={rate}; give more than 0 bytes a second, or None")
        self._rate = rate
        self._change()

    def cut(self) -> None:
        """Breaks all open streams, both ends at once; bytes in flight are lost. Later streams are not affected."""
        for stream in list(self._streams):
            stream.cut_off("it was cut")

    def stall(self) -> None:
        """Stops delivery until `heal`, without loss; the lines continue meanwhile. Idempotent."""
        self.is_stalled = True
        for stream in self._streams:
            stream.look_again()

    def heal(self) -> None:
        """Ends a stall: due bytes arrive at once. Idempotent."""
        self.is_stalled = False
        for stream in self._streams:
            stream.look_again()

    def statistics(self) -> ImpairmentStatistics:
        """A snapshot; O(streams)."""
        held = sum(stream.line.held_bytes for stream in self._streams)
        return ImpairmentStatistics(self._bytes_delivered, held, len(self._streams))

    def _enter(self) -> None:
        self._users += 1

    def _leave(self) -> None:
        self._users -= 1
        name = self._parameters.name
        if not self._users and name is not None and _named.get(name) is self:
            del _named[name]

    def _change(self) -> None:
        for stream in self._streams:
            stream.line.change(self._delay_s, self._rate, trio.current_time())
            stream.look_again()


_seeds: Final = itertools.count()  # the same luck for every stream would be none
_named: Final[dict[str, Impairment]] = {}
_running: Final[RunVar[Deadlines | None]] = RunVar("netstack_transports.impaired")


def _deadlines() -> Deadlines | None:
    """The timer of the event loop, started by its first stream; None if trio's own timers are as precise."""
    if not Deadlines.has_timer():
        return None
    deadlines = _running.get(None)
    if deadlines is None:
        deadlines = Deadlines()
        _running.set(deadlines)
        trio.lowlevel.spawn_system_task(deadlines.run)
    return deadlines


def impairment(name: str) -> Impairment:
    """Returns the `Impairment` of the open listeners and streams whose URL has `name=NAME`.

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
    """One end of a stream, which delays the bytes that it receives."""

    def __init__(self, inner: ByteStream, impairment: Impairment) -> None:
        """Args: a connected stream, owned from now on; its impairment, which counts this stream already."""
        parameters = impairment._parameters
        delay_s, rate = impairment.delay_s, impairment.rate_bytes_per_s
        queue_bytes = parameters.queue_bytes
        if queue_bytes is None:
            queue_bytes = 32 * MIB if parameters.rate_bytes_per_s is None else MIB
        unsent_bytes = None
        if parameters.congestion is not None:
            unsent_bytes = UNSENT_BYTES - 2 * KERNEL_BYTES
            inner.limit_buffers(received_bytes=KERNEL_BYTES, unsent_bytes=KERNEL_BYTES)
        self.peer = inner.peer
        self.line = Line(
            queue_bytes,
            delay_s,
            rate,
            loss=parameters.loss,
            jitter_s=parameters.jitter_s,
            seed=next(_seeds),
            unsent_bytes=unsent_bytes,
        )
        self._inner = inner
        self._impairment = impairment
        self._until_cut = parameters.cut_bytes
        self._lost: ConnectionLost | None = None  # of the underlying stream; raised after the bytes before it
        self._broken: str | None = None
        self._closed = False
        self._reader = OneWaiter("read from", inner.peer)
        self._reading: trio.CancelScope | None = None  # that of the task in `wait_readable`
        self._look_at = math.inf  # when its wait ends
        self._deadlines = _deadlines()
        self._lead_s = 0.0  # how late waits end, on average
        impairment._streams[self] = None

    def try_send(self, pieces: Sequence[Piece]) -> int:
        if self._broken is not None:
            raise ConnectionLost(self._broken)
        return self._inner.try_send(pieces)

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Reads from the underlying stream, and delivers due bytes."""
        self._check_whole()
        line, impairment = self.line, self._impairment
        self._take_in()
        if impairment.is_stalled:
            return None
        count = line.take_into(windows, self._until_cut)
        due_at = line.due_at()
        if self._reading is not None and due_at < self._look_at:  # a waiting task cannot see bytes that were read here
            self._end_at(self._reading, due_at)  # never later: a task that waits on a full line must notice new room
        if count:
            impairment._bytes_delivered += count
            if self._until_cut is not None:
                self._until_cut -= count
                if not self._until_cut:
                    self.cut_off(f"it was cut after {impairment._parameters.cut_bytes} bytes")
            return count
        if due_at == -math.inf:
            check_room(windows)
        if not line.is_over:
            return None
        if self._lost is not None:
            raise ConnectionLost(str(self._lost)) from self._lost
        return 0

    async def wait_writable(self) -> None:
        if not self._is_whole():
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._inner.wait_writable()
        except trio.ClosedResourceError:
            if self._broken is None:
                raise

    async def wait_readable(self) -> None:
        """Waits until bytes are due, and timestamps bytes that arrive meanwhile."""
        with self._reader:
            await self._wait_due()

    def send_eof(self) -> None:
        self._inner.send_eof()

    def close(self) -> None:
        """Closes at once; held bytes are lost."""
        if not self._closed:
            self._closed = True
            self._end()
            self._impairment._leave()

    def tcp_facts(self) -> dict[str, str | int]:
        return self._inner.tcp_facts()

    def round_trip_s(self) -> float:
        """That of the underlying stream, and the delay of both directions: the other end has the same."""
        return self._inner.round_trip_s() + 2 * self._impairment.delay_s

    def endpoints(self) -> tuple[str, str]:
        return self._inner.endpoints()

    def channel_binding(self) -> bytes:
        return self._inner.channel_binding()

    def look_again(self) -> None:
        """Makes a waiting task recompute when bytes are due."""
        if self._reading is not None:
            self._reading.cancel()

    def cut_off(self, reason: str) -> None:
        """Breaks the stream as by a reset: calls and waits fail. A remote end reads the end of its stream."""
        self._broken = f"the connection to {self.peer} broke: {reason}"
        self._end()

    async def _wait_due(self) -> None:
        await trio.lowlevel.checkpoint()
        line = self.line
        while self._is_whole():
            self._take_in()
            due_at = math.inf if self._impairment.is_stalled else line.due_at()
            if due_at == -math.inf:
                return
            with trio.CancelScope() as scope:
                self._end_at(scope, due_at)
                try:
                    if line.takes_more:
                        await self._inner.wait_readable()
                    else:  # the bytes stay in the underlying stream, which blocks their sender
                        await trio.sleep_forever()
                except trio.ClosedResourceError:
                    if self._broken is None:
                        raise
                finally:
                    self._reading = None
            if scope.cancelled_caught and self._deadlines is not None:
                self._poll_until(self._look_at)

    def _poll_until(self, due_at: float) -> None:
        """After a wait for `due_at`: learns how late it ended, and passes what is left of it."""
        now = trio.current_time()
        if now >= due_at - self._lead_s:  # not ended by `look_again`
            late_s = min(now - (due_at - self._lead_s), MOST_LEAD_S)
            self._lead_s += (late_s - self._lead_s) / 8
            while now < due_at:
                now = trio.current_time()

    def _end_at(self, scope: trio.CancelScope, due_at: float) -> None:
        self._reading, self._look_at = scope, due_at
        if self._deadlines is None:
            scope.deadline = due_at
        elif due_at < math.inf:
            self._deadlines.call_at(due_at - self._lead_s, scope.cancel)

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
        """False if broken; the next `try_` call raises the reason. Raises `trio.ClosedResourceError` if closed."""
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
    """Any other transport, with delay, rate and cuts."""

    async def listen(self, url: str) -> Listener:
        """Binds with the underlying transport."""
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
        """Dials with the underlying transport."""
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
