"""Accepts the connections on which a TaskManager produces; `dialling` handles those on which it consumes.

Takes: a listener, addresses of producers. Gives: running pumps; `ChannelReceiver`s to gates.

Rules: with a secret, both ends of a stream prove it before a pump exists; each accepted stream does so in its own task.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
from collections.abc import Callable
from typing import Final, final

import trio

from ...base.config import NetworkConfig
from ...base.errors import AuthenticationFailed, ConnectionLost, RemoteProtocolError
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_error, safe_text
from ...base.transport import ByteStream, Listener
from ...base.version import __version__
from ...exchange.buffer.pools import NetworkBufferPool
from ...exchange.outbound.sender import ChannelSender
from ...exchange.outbound.views import ViewProvider
from ...exchange.wire.codec_native import PROTOCOL_VERSION
from ...exchange.wire.connection import Connection
from ...exchange.wire.dialects import dialect_named
from ...exchange.wire.frames import Hello
from ...exchange.wire.greeting import FEATURE_CHECKSUM, FEATURE_EXPECTED, FEATURE_PROMPT, FEATURE_SESSION
from ..waiting.loop_lock import LoopLock
from .admission import Admission
from .dialling import Connect, Dialler
from .fair_share import fair_share
from .handshake import Handshake
from .pump import Pump
from .readiness import Readiness
from .session_stream import SessionStream
from .sessions import Sessions
from .statistics import AcceptedStatistics, DialledStatistics, OpenConnection

LOGGER: Final = logging.getLogger("netstack")
CONNECTION_S: Final = 0.001
"""The approximate cost of a new connection in the tasks that serve it."""

CREDIT_SPIN_S: Final = 0.0002
"""How long a writer polls for credit at most: one round trip. A writer blocked by a slow consumer sleeps."""

SOFTWARE: Final = f"netstack {__version__}"
KNOWN_FEATURES: Final = FEATURE_CHECKSUM


@final
class NetworkEndpoint:
    """Accepts and dials connections."""

    def __init__(
        self,
        config: NetworkConfig,
        pool: NetworkBufferPool,
        views: ViewProvider,
        nursery: trio.Nursery,
        handshake: Handshake,
        loop_lock: LoopLock,
    ) -> None:
        """Starts without connections.

        Args:
            config: timeouts.
            pool: lends landing segments.
            views: the partitions produced here.
            nursery: runs the connections.
            handshake: what precedes the protocol, within `connect_timeout_s` on a dialled stream.
            loop_lock: the lock of the nursery's loop.
        """
        self._loop_lock = loop_lock
        loop_lock.before_leaving = self.flush_connections
        self._admission = admission = handshake.admission
        self._on_accepted_end = handshake.on_accepted_end if admission is None else admission.left
        self._config = config
        self._pool = pool
        self._views = views
        self._nursery = nursery
        self._dialect = dialect_named(
            config.dialect,
            segment_size_bytes=config.segment_size_bytes,
            new_id=functools.partial(secrets.token_bytes, 16),
        )
        self.unsent: dict[Pump, None] = {}
        """The connections that `flush_connections` has to serve; each at most once, because a process without writers
        never calls it.
        """
        self._accepted: dict[Pump, ChannelSender] = {}
        self._consumers = Readiness()
        self._pumps: dict[Pump, None] = {}
        self._all_closed = trio.Event()
        self._closing = False
        self._past_sent = 0
        self._past_received = 0
        self._log = LimitedLog(LOGGER, loop_lock.now)
        self._sessions: Sessions | None = None  # None: connections are not resumable
        if config.resume_grace_s:
            self._sessions = Sessions(
                config,
                nursery,
                codec=self._dialect.consumer_codec,
                hello=self._hello,
                dial=handshake.dial,
                log=self._log,
            )
        self._dialler = Dialler(
            config,
            pool,
            nursery,
            loop_lock,
            new_codec=self._dialect.consumer_codec,
            hello=self._hello,
            dial_stream=handshake.dial,
            sessions=self._sessions,
            start=functools.partial(self._start, answers=False),
            call_later=self._call_later,
        )
        self.dial = self._dialler.dial

    # For producers.

    def flush_connections(self) -> None:
        """Lets every connection with data try to send it."""
        dirty = self.unsent
        if dirty:
            pumps = list(dirty)
            dirty.clear()
            for pump in pumps:
                if pump.is_dirty:
                    pump.write_now()

    def hold(self) -> None:
        """Lets data wake no connection's task until `flush_held`, which must follow before other tasks run."""
        self._loop_lock.is_held = True

    def flush_held(self) -> None:
        """Ends `hold`, and lets every connection with data try to send it."""
        self._loop_lock.is_held = False
        if self.unsent:
            self.flush_connections()

    @property
    def consumers(self) -> tuple[Pump, ...]:
        """The accepted connections."""
        return tuple(self._accepted)

    def listen(self) -> float:
        """Reads credit from the consumers without waiting, and sends what it allows.

        Returns:
            How many seconds it is worth repeating this: 0 if there is no consumer, or polling cannot tell whether data
                has arrived, or a thread may not use one of the streams.
        """
        for pump in self._consumers.ready():
            pump.retry()
            pump.read_now()
        consumers = self._consumers
        may_spin = consumers.only_sockets if self._loop_lock.is_inside else consumers.may_spin
        return min(self._config.spin_s, CREDIT_SPIN_S) if may_spin else 0.0

    def settle(self) -> None:
        """Copies the data that every connection is sending."""
        for pump in self._accepted:
            pump.settle()

    async def serve(self, listener: Listener) -> None:
        """Accepts until cancelled, or until the listener is closed."""
        share = fair_share()
        with contextlib.suppress(trio.ClosedResourceError):
            while True:
                stream = await listener.accept()
                start = share.clock()
                if self._admission is None:
                    self.accept(stream)
                else:
                    self._nursery.start_soon(self._admit, stream, self._admission)
                # Its tasks will work too: a peer that dials without end queues like a peer that sends without end.
                await share.pass_on(CONNECTION_S + share.clock() - start)

    async def _admit(self, stream: ByteStream, admission: Admission) -> None:
        try:
            await admission.admit(stream)
        except AuthenticationFailed as error:  # the stream is closed, and the refusal counted
            self._log.log(logging.INFO, error.reason.name, f"refused: {safe_error(error)}")
            return
        except Exception as error:  # a bug triggered by a peer must end only that peer
            self._log_mistake(f"meeting {safe_text(stream.peer)} failed: {safe_error(error)}", error)
            return
        if self._closing:
            stream.close()
            admission.left(stream)
        else:
            self.accept(stream)

    def accept(self, stream: ByteStream) -> None:
        """Produces on a connected stream that has been admitted."""
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
        pump = self._start(stream, connect, answers=True)
        self._accepted[pump] = made[0]
        self._consumers.add(pump)

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop_lock.soon(functools.partial(self._nursery.start_soon, _call_later, delay_s, callback))

    def _log_mistake(self, text: str, error: Exception) -> None:
        self._log.log(logging.ERROR, "mistake", text, error=error)

    # Closing.

    async def close(self, grace_s: float) -> None:
        """Says goodbye on every connection, waits at most `grace_s` for the peers, and closes the rest."""
        self._closing = True
        for pump in list(self._pumps):
            pump.leave()
        if self._pumps:
            with trio.move_on_after(grace_s):
                await self._all_closed.wait()
        self.abort()

    def abort(self) -> None:
        """Closes all connections at once. Idempotent."""
        self._closing = True
        for pump in list(self._pumps):
            pump.abort(ConnectionLost("the TaskManager was closed"))

    def pumps(self) -> tuple[Pump, ...]:
        """All open connections."""
        return tuple(self._pumps)

    def statistics(self) -> tuple[tuple[AcceptedStatistics, ...], tuple[DialledStatistics, ...]]:
        """Snapshots of the accepted and of the dialled connections."""
        accepted = tuple(
            AcceptedStatistics(pump.stream.peer, pump.connection.statistics(), sender.statistics())
            for pump, sender in self._accepted.items()
        )
        return accepted, self._dialler.statistics()

    def connections(self) -> tuple[OpenConnection, ...]:
        """All connections; O(connections), independent of their channels."""
        accepted = (
            OpenConnection(pump.stream.peer, True, pump.connection.statistics(), sender.channel_count)
            for pump, sender in self._accepted.items()
        )
        return (*accepted, *self._dialler.connections())

    def total_bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far, including closed connections."""
        sent, received = self._past_sent, self._past_received
        for pump in self._pumps:
            sent += pump.connection.bytes_sent
            received += pump.connection.bytes_received
        return sent, received

    def _start(self, stream: ByteStream, connect: Connect, *, answers: bool) -> Pump:
        pump = Pump(
            stream,
            connect,
            unsent=self.unsent,
            on_closed=self._on_pump_closed,
            on_mistake=self._log_mistake,
            on_continue=None if self._sessions is None else self._sessions.hand_over,
            answers=answers,
            loop_lock=self._loop_lock,
        )
        self._pumps[pump] = None
        if self._sessions is not None:
            self._sessions.add(pump)
        self._nursery.start_soon(self._run, pump)
        return pump

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
        pump.abort(ConnectionLost(f"{pump.stream.peer} sent no hello within {self._config.handshake_timeout_s:g} s"))

    def _on_pump_closed(self, pump: Pump, error: Exception | None) -> None:
        if self._accepted.pop(pump, None) is not None:
            self._consumers.discard(pump)
            if isinstance(error, RemoteProtocolError):  # a consumer's protocol violation, which nothing else reports
                self._log.log(logging.WARNING, error.code.name, f"connection closed: {safe_error(error)}")
            if self._on_accepted_end is not None:
                self._on_accepted_end(pump.stream)
        self._pumps.pop(pump, None)
        if self._sessions is not None:
            self._sessions.discard(pump)
        self.unsent.pop(pump, None)
        self._past_sent += pump.connection.bytes_sent
        self._past_received += pump.connection.bytes_received
        if pump.landing:
            self._pool.recycle_unpooled(pump.landing)
            pump.landing = []
        self._dialler.discard(pump)
        if self._closing and not self._pumps:
            self._all_closed.set()

    def _hello(self, is_prompt: bool = False) -> Hello:
        asked = FEATURE_CHECKSUM if self._config.checksum else 0
        known = KNOWN_FEATURES
        if not self._config.as_flink:
            asked |= FEATURE_EXPECTED
            known |= FEATURE_EXPECTED | FEATURE_PROMPT
        if is_prompt:
            asked |= FEATURE_PROMPT
        if self._config.resume_grace_s:
            asked |= FEATURE_SESSION
            known |= FEATURE_SESSION
        return Hello(PROTOCOL_VERSION, self._config.segment_size_bytes, known | asked << 16, SOFTWARE)


async def _call_later(delay_s: float, callback: Callable[[], None]) -> None:
    await trio.sleep(delay_s)
    callback()
