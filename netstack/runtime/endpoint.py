"""Connections of one TaskManager: those it accepts as a producer, those it dials as a consumer and shares among gates.

Takes: a listener, addresses of producers. Gives: pumps in motion; `ChannelReceiver`s to gates.

Rules: one dialled connection per address, shared by every gate and counted by its channels; concurrent callers share
one attempt; a failed attempt is not remembered. When the last channel leaves, the connection says goodbye. With a
secret both ends of a stream prove it before there is a pump; an accepted stream does so in a task of its own.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from ..buffer.network_pool import NetworkBufferPool
from ..buffer.requirements import LANDING_SEGMENTS
from ..buffer.segment import Segment
from ..config import NetworkConfig
from ..errors import AuthenticationFailed, ConnectionLost, NetstackError, RemoteProtocolError
from ..inbound.receiver import ChannelReceiver
from ..inbound.uncredited import UncreditedReceiver
from ..limited_log import LimitedLog
from ..outbound.sender import ChannelSender
from ..outbound.views import ViewProvider
from ..shown import shown_error, shown_text
from ..transport import ByteStream, Listener, transport_for
from ..version import __version__
from ..wire.codec_native import PROTOCOL_VERSION
from ..wire.connection import Connection
from ..wire.dialects import dialect_named
from ..wire.frames import Frame, Hello
from ..wire.greeting import FEATURE_CHECKSUM, FEATURE_SESSION
from .admission import Admission
from .authentication import Secret, prove_dialler
from .buffers import wait_unpooled
from .pump import Pump
from .readiness import Readiness
from .session_stream import SessionStream
from .sessions import Sessions
from .statistics import AcceptedStatistics, DialledStatistics, OpenConnection
from .turns import turns
from .visits import Visits

LOGGER: Final = logging.getLogger("netstack")
CONNECTION_S: Final = 0.001
"""What a new connection costs in the tasks that serve it, about."""

CREDIT_SPIN_S: Final = 0.0002
"""How long a writer looks for credit at most: a round trip. Who is held up by a slow consumer sleeps."""

SOFTWARE: Final = f"netstack {__version__}"
KNOWN_FEATURES: Final = FEATURE_CHECKSUM


@final
class _Dialled:
    """A shared connection, or the attempt to make it."""

    __slots__ = ("callers", "done", "error", "pump", "receiver")

    def __init__(self) -> None:
        self.callers = 0
        self.done = trio.Event()
        self.error: Exception | None = None
        self.pump: Pump | None = None
        self.receiver: ChannelReceiver | None = None


@final
class NetworkEndpoint:
    """Accepts and dials."""

    def __init__(
        self,
        config: NetworkConfig,
        pool: NetworkBufferPool,
        views: ViewProvider,
        nursery: trio.Nursery,
        *,
        secret: Secret | None = None,
        admission: Admission | None = None,
        greet: Callable[[ByteStream], Awaitable[None]] | None = None,
        on_accepted_end: Callable[[ByteStream], None] | None = None,
        visits: Visits,
    ) -> None:
        """Knows no connection yet.

        Args:
            config: timeouts.
            pool: lends landing segments.
            views: what is produced here.
            nursery: runs the connections.
            secret: proven on every dialled stream first; None proves none.
            admission: what streams of `serve` must pass; None takes all: there is no secret, or whoever gives us the
                streams has admitted them.
            greet: says what else must be said on a dialled stream, after the proof and before the protocol; within
                `connect_timeout_s`. The stream is closed when it raises.
            on_accepted_end: told when the connection on an accepted stream is over: for streams admitted elsewhere.
            visits: of the nursery's loop.
        """
        self._visits = visits
        visits.before_leaving = self.kick
        self._secret = secret
        self._admission = admission
        self._greet = greet
        self._on_accepted_end = on_accepted_end if admission is None else admission.left
        self._config = config
        self._pool = pool
        self._views = views
        self._nursery = nursery
        self._dialect = dialect_named(
            config.dialect, segment_size_bytes=config.segment_size_bytes, new_id=_new_channel_id
        )
        self._dirty: dict[Pump, None] = {}  # each once: where nobody writes records, nobody calls `kick`
        self._accepted: dict[Pump, ChannelSender] = {}
        self._consumers = Readiness()  # the same
        self._dialled: dict[str, _Dialled] = {}
        self._pumps: dict[Pump, None] = {}
        self._all_closed = trio.Event()
        self._closing = False
        self._past_sent = 0
        self._past_received = 0
        self._log = LimitedLog(LOGGER, visits.now)
        self._sessions: Sessions | None = None  # None: a cut ends a connection
        if config.resume_grace_s:
            self._sessions = Sessions(
                config,
                nursery,
                codec=self._dialect.consumer_codec,
                hello=self._hello,
                dial=self._dial_stream,
                log=self._log,
            )

    # For producers.

    def kick(self) -> None:
        """Every connection with something to send tries to send it."""
        dirty = self._dirty
        if dirty:
            self._dirty = {}
            for pump in dirty:
                if pump.is_dirty:
                    pump.write_now()

    def has_unsent(self) -> bool:
        """Whether `kick` has something to do."""
        return bool(self._dirty)

    @property
    def consumers(self) -> tuple[Pump, ...]:
        """The accepted connections."""
        return tuple(self._accepted)

    def listen(self) -> float:
        """Takes in what consumers have said, without waiting; what that allows is sent.

        Returns:
            For how many seconds it is of use to do so again and again: 0 where there is no consumer, or the kernel
            alone does not know whether one has said something.
        """
        for pump in self._consumers.ready():
            pump.retry()
            pump.read_now()
        return min(self._config.spin_s, CREDIT_SPIN_S) if self._consumers.only_sockets else 0.0

    def settle(self) -> None:
        """Every connection copies what it is in the middle of sending."""
        for pump in self._accepted:
            pump.settle()

    async def serve(self, listener: Listener) -> None:
        """Accepts until cancelled, or until the listener is closed."""
        line = turns()
        with contextlib.suppress(trio.ClosedResourceError):
            while True:
                stream = await listener.accept()
                start = line.clock()
                if self._admission is None:
                    self.accept(stream)
                else:
                    self._nursery.start_soon(self._admit, stream, self._admission)
                # Its tasks will work as well: who dials without end stands in line with who sends without end.
                await line.pass_on(CONNECTION_S + line.clock() - start)

    async def _admit(self, stream: ByteStream, admission: Admission) -> None:
        try:
            await admission.admit(stream)
        except AuthenticationFailed as error:  # closed, and counted by its reason
            self._log.log(logging.INFO, error.reason.name, f"refused: {shown_error(error)}")
            return
        except Exception as error:  # of a stranger, who ends nobody but himself
            self._log_mistake(f"meeting {shown_text(stream.peer)} failed: {shown_error(error)}", error)
            return
        if self._closing:
            stream.close()
            admission.left(stream)
        else:
            self.accept(stream)

    def accept(self, stream: ByteStream) -> None:
        """Produces on a connected stream, which has been admitted."""
        if self._sessions is not None:
            stream = self._sessions.accepted(stream)

        def connect(on_write_wanted: Callable[[], None]) -> Connection:
            codec = self._dialect.producer_codec()
            sender = ChannelSender(
                codec,
                self._views,
                max_channels=self._config.max_channels_per_connection,
                on_write_wanted=on_write_wanted,
                send=lambda frame: connection.send(frame),
                call_later=self._call_later,
            )
            connection = Connection(
                codec,
                sender,
                hello=self._hello(),
                landing=[],
                peer=stream.peer,
                on_write_wanted=on_write_wanted,
                now=trio.current_time(),
                session=stream.session if isinstance(stream, SessionStream) else None,
            )
            made.append(sender)
            return connection

        made: list[ChannelSender] = []
        pump = self._pump(stream, connect, answers=True)
        self._accepted[pump] = made[0]
        self._consumers.add(pump)
        self._start(pump)

    # For consumers.

    async def dial(self, address: str) -> tuple[Pump, ChannelReceiver]:
        """The shared connection to a producer, dialled when there is none.

        Raises:
            ConnectionLost: nobody answers there.
            AuthenticationFailed: whoever answers does not prove the secret, or does not take our proof.
            RemoteProtocolError: whoever answers is no netstack, or not one of our version and segment size.

        Cancellation: the attempt goes on for other callers; without any it is given up.
        """
        while True:
            entry = self._dialled.get(address)
            is_new = entry is None
            if entry is None:
                entry = self._dialled[address] = _Dialled()
                self._nursery.start_soon(self._connect, address, entry)
            entry.callers += 1
            try:
                await entry.done.wait()
            except trio.Cancelled:
                entry.callers -= 1
                self._leave_if_idle(address, entry)
                raise
            entry.callers -= 1
            error = entry.error
            if isinstance(error, RemoteProtocolError):
                raise RemoteProtocolError(error.code, error.text) from error
            if isinstance(error, AuthenticationFailed):
                raise AuthenticationFailed(error.reason, str(error)) from error
            if error is not None and not isinstance(error, ConnectionLost):
                raise error
            if error is not None:
                raise ConnectionLost(str(error)) from error
            assert entry.pump is not None
            assert entry.receiver is not None
            if not entry.pump.is_closed and self._dialled.get(address) is entry:
                return entry.pump, entry.receiver
            if is_new and entry.pump.is_closed:  # an older one may have been on its way out, this one was made for us
                raise _lost_at_once(address, entry.pump)

    async def _connect(self, address: str, entry: _Dialled) -> None:
        pump = None
        landing: list[Segment] = []
        try:
            landing = await wait_unpooled(
                self._pool,
                LANDING_SEGMENTS,
                f"the connection to {address}",
                timeout_s=self._config.buffers_request_timeout_s,
            )
            with trio.fail_after(self._config.connect_timeout_s):
                stream = await self._dial_stream(address)
                if self._sessions is not None:
                    stream = self._sessions.dialled(stream, address)
                lent, landing = landing, []
                pump, receiver = self._consume(stream, address, entry, lent)
                await pump.opened.wait()
            if pump.is_closed:
                raise _lost_at_once(address, pump)
            entry.pump, entry.receiver = pump, receiver
            self._leave_if_idle(address, entry)
        except trio.TooSlowError:
            entry.error = ConnectionLost(f"{address} did not answer within {self._config.connect_timeout_s:g} s")
        except (NetstackError, OSError) as error:  # belongs to the callers that wait for this attempt
            entry.error = error
        finally:
            if landing:
                self._pool.recycle_unpooled(landing)
            if entry.error is not None or entry.pump is None:
                if entry.error is None:
                    entry.error = ConnectionLost(f"dialling {address} was cancelled")
                if self._dialled.get(address) is entry:
                    del self._dialled[address]
                if pump is not None:
                    pump.abort(entry.error)  # the hello may still come when nobody wants it any more
            entry.done.set()

    async def _dial_stream(self, address: str) -> ByteStream:
        """A stream to an address on which everything before the hello is said."""
        stream = await transport_for(address).connect(address)
        try:
            if self._secret is not None:
                await prove_dialler(stream, self._secret)
            if self._greet is not None:
                await self._greet(stream)
        except BaseException:
            stream.close()
            raise
        return stream

    def _consume(
        self, stream: ByteStream, address: str, entry: _Dialled, landing: list[Segment]
    ) -> tuple[Pump, ChannelReceiver]:
        def connect(on_write_wanted: Callable[[], None]) -> Connection:
            make: Callable[..., ChannelReceiver] = ChannelReceiver
            if not self._config.credit_based:
                make = functools.partial(UncreditedReceiver, on_pause=lambda pause: pump.pause_reading(pause))

            def send(frame: Frame) -> None:
                try:
                    connection.send(frame)
                except RemoteProtocolError as error:  # it does not read what we ask of it: that ends the connection
                    # Later: a gate may be closing its channels.
                    self._visits.soon(functools.partial(self._nursery.start_soon, _give_up, pump, error))

            codec = self._dialect.consumer_codec()
            receiver = make(
                codec,
                peer=address,
                on_write_wanted=on_write_wanted,
                send=send,
                on_empty=lambda: self._leave(address, entry),
                write_now=lambda: pump.write_between_reads(),
                retries=self._config.request_retries,
                call_later=self._call_later,
            )
            connection = Connection(
                codec,
                receiver,
                hello=self._hello(),
                landing=landing,
                peer=address,
                on_write_wanted=on_write_wanted,
                now=trio.current_time(),
                session=stream.session if isinstance(stream, SessionStream) else None,
            )
            made.append(receiver)
            return connection

        made: list[ChannelReceiver] = []
        pump = self._pump(stream, connect, answers=False)
        self._start(pump)
        return pump, made[0]

    def _pump(self, stream: ByteStream, connect: Callable[[Callable[[], None]], Connection], *, answers: bool) -> Pump:
        return Pump(
            stream,
            connect,
            on_dirty=self._mark_dirty,
            on_closed=self._on_pump_closed,
            on_mistake=self._log_mistake,
            on_continue=None if self._sessions is None else self._sessions.hand_over,
            answers=answers,
            visits=self._visits,
        )

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._visits.soon(functools.partial(self._nursery.start_soon, _call_later, delay_s, callback))

    def _log_mistake(self, text: str, error: Exception) -> None:
        self._log.log(logging.ERROR, "mistake", text, error=error)

    def _leave(self, address: str, entry: _Dialled) -> None:
        if self._dialled.get(address) is entry:
            del self._dialled[address]
        if entry.pump is not None:
            entry.pump.leave()

    def _leave_if_idle(self, address: str, entry: _Dialled) -> None:
        """Whoever wanted the connection was cancelled before it had a channel: it would stay open for nobody."""
        if not entry.callers and entry.receiver is not None and not entry.receiver.channel_count:
            self._leave(address, entry)

    # Life.

    async def close(self, grace_s: float) -> None:
        """Says goodbye on every connection and waits at most `grace_s` for the peers; then closes what is left."""
        self._closing = True
        for pump in list(self._pumps):
            pump.leave()
        if self._pumps:
            with trio.move_on_after(grace_s):
                await self._all_closed.wait()
        self.abort()

    def abort(self) -> None:
        """Closes everything at once. Idempotent."""
        self._closing = True
        for pump in list(self._pumps):
            pump.abort(ConnectionLost("the TaskManager was closed"))

    def pumps(self) -> tuple[Pump, ...]:
        """Every live connection."""
        return tuple(self._pumps)

    def statistics(self) -> tuple[tuple[AcceptedStatistics, ...], tuple[DialledStatistics, ...]]:
        """Snapshots of the accepted and of the dialled connections."""
        accepted = tuple(
            AcceptedStatistics(pump.stream.peer, pump.connection.statistics(), sender.statistics())
            for pump, sender in self._accepted.items()
        )
        dialled = tuple(
            DialledStatistics(address, entry.pump.connection.statistics(), entry.receiver.channel_count)
            for address, entry in self._dialled.items()
            if entry.pump is not None and entry.receiver is not None
        )
        return accepted, dialled

    def connections(self) -> tuple[OpenConnection, ...]:
        """All connections; O(connections), whatever the number of their channels."""
        accepted = (
            OpenConnection(pump.stream.peer, True, pump.connection.statistics(), sender.channel_count)
            for pump, sender in self._accepted.items()
        )
        dialled = (
            OpenConnection(address, False, entry.pump.connection.statistics(), entry.receiver.channel_count)
            for address, entry in self._dialled.items()
            if entry.pump is not None and entry.receiver is not None
        )
        return (*accepted, *dialled)

    def total_bytes(self) -> tuple[int, int]:
        """Bytes ever sent and received, connections that are gone included."""
        sent, received = self._past_sent, self._past_received
        for pump in self._pumps:
            sent += pump.connection.bytes_sent
            received += pump.connection.bytes_received
        return sent, received

    def _start(self, pump: Pump) -> None:
        self._pumps[pump] = None
        if self._sessions is not None:
            self._sessions.add(pump)
        self._nursery.start_soon(self._run, pump)

    async def _run(self, pump: Pump) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._greet_in_time, pump)
                await pump.run(self._config.heartbeat_interval_s, self._config.heartbeat_timeout_s)
                nursery.cancel_scope.cancel()
        finally:
            if self._sessions is not None:
                self._sessions.finish_hand_over(pump)

    async def _greet_in_time(self, pump: Pump) -> None:
        with trio.move_on_after(self._config.handshake_timeout_s):
            await pump.opened.wait()
            return
        pump.abort(ConnectionLost(f"{pump.stream.peer} said no hello within {self._config.handshake_timeout_s:g} s"))

    def _on_pump_closed(self, pump: Pump, error: Exception | None) -> None:
        if self._accepted.pop(pump, None) is not None:
            self._consumers.discard(pump)
            if isinstance(error, RemoteProtocolError):  # a consumer's mistake, which nobody here is told else
                self._log.log(logging.WARNING, error.code.name, f"connection closed: {shown_error(error)}")
            if self._on_accepted_end is not None:
                self._on_accepted_end(pump.stream)
        self._pumps.pop(pump, None)
        if self._sessions is not None:
            self._sessions.discard(pump)
        self._dirty.pop(pump, None)
        self._past_sent += pump.connection.bytes_sent
        self._past_received += pump.connection.bytes_received
        if pump.landing:
            self._pool.recycle_unpooled(pump.landing)
            pump.landing = []
        for address, entry in list(self._dialled.items()):
            if entry.pump is pump:
                del self._dialled[address]
        if self._closing and not self._pumps:
            self._all_closed.set()

    def _mark_dirty(self, pump: Pump) -> None:
        self._dirty[pump] = None

    def _hello(self) -> Hello:
        asked = FEATURE_CHECKSUM if self._config.checksum else 0
        known = KNOWN_FEATURES
        if self._config.resume_grace_s:
            asked |= FEATURE_SESSION
            known |= FEATURE_SESSION
        return Hello(PROTOCOL_VERSION, self._config.segment_size_bytes, known | asked << 16, SOFTWARE)


async def _give_up(pump: Pump, error: Exception) -> None:
    pump.abort(error)


async def _call_later(delay_s: float, callback: Callable[[], None]) -> None:
    await trio.sleep(delay_s)
    callback()


def _new_channel_id() -> bytes:
    """What a dialect without our numbers calls a channel: nobody else's id is the same."""
    return secrets.token_bytes(16)


def _lost_at_once(address: str, pump: Pump) -> Exception:
    return pump.error or ConnectionLost(f"{address} said goodbye at once: it is closing")
