"""The connections that one TaskManager dials as a consumer: one per address and class, shared by its gates.

Takes: addresses of producers. Gives: running pumps, and the `ChannelReceiver` of each.

Rules: there is one connection per address and class (prompt or bulk), shared by all gates and kept open by its
channels; concurrent callers share one attempt; a failed attempt is not remembered. When its last channel closes, the
connection says goodbye.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from ...base.config import NetworkConfig
from ...base.errors import AuthenticationFailed, ConnectionLost, ErrorCode, NetstackError, Refusal, RemoteProtocolError
from ...base.transport import ByteStream
from ...exchange.buffer.pools import NetworkBufferPool
from ...exchange.buffer.requirements import LANDING_SEGMENTS
from ...exchange.buffer.segment import Segment
from ...exchange.inbound.receiver import ChannelReceiver
from ...exchange.inbound.uncredited import UncreditedReceiver
from ...exchange.wire.codec import Codec
from ...exchange.wire.connection import Connection
from ...exchange.wire.frames import Frame, Hello
from ..waiting.loop_lock import LoopLock
from .buffers import wait_unpooled
from .pump import Pump
from .session_stream import SessionStream
from .sessions import Sessions
from .statistics import DialledStatistics, OpenConnection

_FIRST_PAUSE_S: Final = 0.02
"""The pause before the second attempt; it doubles for each further one."""

Connect = Callable[[Callable[[], None]], Connection]
"""Creates the connection of a pump; its argument is called when there is something to write."""


@final
class _Dialled:
    """A shared connection, or an attempt to create it."""

    __slots__ = ("address", "callers", "done", "error", "is_prompt", "pump", "receiver")

    def __init__(self, address: str, is_prompt: bool) -> None:
        self.address = address
        self.is_prompt = is_prompt
        self.callers = 0
        self.done = trio.Event()
        self.error: Exception | None = None
        self.pump: Pump | None = None
        self.receiver: ChannelReceiver | None = None


@final
class Dialler:
    """The dialled connections, by address and class."""

    def __init__(
        self,
        config: NetworkConfig,
        pool: NetworkBufferPool,
        nursery: trio.Nursery,
        loop_lock: LoopLock,
        *,
        new_codec: Callable[[], Codec],
        hello: Callable[[bool], Hello],
        dial_stream: Callable[[str], Awaitable[ByteStream]],
        sessions: Sessions | None,
        start: Callable[[ByteStream, Connect], Pump],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """Starts without connections.

        Args:
            config: timeouts.
            pool: lends landing segments.
            nursery: runs attempts.
            loop_lock: the lock of the nursery's loop.
            new_codec: creates a consumer's codec, for one connection.
            hello: returns our hello; the argument says whether the connection is prompt.
            dial_stream: connects, and completes everything before the hello, within `connect_timeout_s`.
            sessions: makes connections resumable; None if they are not.
            start: creates and starts the pump of a connection.
            call_later: calls a function after some seconds.
        """
        self._config = config
        self._pool = pool
        self._nursery = nursery
        self._loop_lock = loop_lock
        self._new_codec = new_codec
        self._hello = hello
        self._dial_stream = dial_stream
        self._sessions = sessions
        self._start = start
        self._call_later = call_later
        self._connections: dict[tuple[str, bool], _Dialled] = {}

    async def dial(self, address: str, is_prompt: bool = False) -> tuple[Pump, ChannelReceiver]:
        """Returns the shared connection to a producer, dialling it if there is none.

        Args:
            address: of the producer.
            is_prompt: whether to use the connection for prompt channels, which bulk channels do not share.

        Raises:
            ConnectionLost: nobody answers.
            AuthenticationFailed: the peer does not prove the secret, or rejects our proof.
            RemoteProtocolError: the peer is not netstack, or has another protocol version or segment size.

        Cancellation: the attempt continues for other callers, or ends if there are none.
        """
        while True:
            entry = self._connections.get((address, is_prompt))
            is_new = entry is None
            if entry is None:
                entry = self._connections[address, is_prompt] = _Dialled(address, is_prompt)
                self._nursery.start_soon(self._connect, entry)
            entry.callers += 1
            try:
                await entry.done.wait()
            except trio.Cancelled:
                entry.callers -= 1
                self._leave_if_idle(entry)
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
            if not entry.pump.is_closed and self._is_known(entry):
                return entry.pump, entry.receiver
            if is_new and entry.pump.is_closed:  # an older connection may have been closing, but this one is new
                raise _lost_at_once(address, entry.pump)

    async def _connect(self, entry: _Dialled) -> None:
        pause_s, until_s = _FIRST_PAUSE_S, trio.current_time() + self._config.connect_retry_s
        try:
            while True:
                try:
                    await self._attempt(entry)
                    break
                except (NetstackError, OSError) as error:
                    if trio.current_time() + pause_s > until_s or not may_come_back(error):
                        raise
                await trio.sleep(pause_s)
                pause_s *= 2
            self._leave_if_idle(entry)
        except (NetstackError, OSError) as error:  # raised by the callers that wait for this attempt
            entry.error = error
        finally:
            if entry.pump is None:
                if entry.error is None:
                    entry.error = ConnectionLost(f"dialling {entry.address} was cancelled")
                self._forget(entry)
            entry.done.set()

    async def _attempt(self, entry: _Dialled) -> None:
        """Dials once: sets the entry's pump and receiver, or raises and releases everything."""
        address = entry.address
        landing = await wait_unpooled(
            self._pool,
            LANDING_SEGMENTS,
            f"the connection to {address}",
            timeout_s=self._config.buffers_request_timeout_s,
        )
        pump = None
        late = ConnectionLost(f"{address} did not answer within {self._config.connect_timeout_s:g} s")
        try:
            with trio.move_on_after(self._config.connect_timeout_s):
                stream = await self._dial_stream(address)
                if entry.is_prompt:
                    stream.peer = f"{stream.peer} (prompt)"  # for messages
                if self._sessions is not None:
                    stream = self._sessions.dialled(stream, address)
                lent, landing = landing, []
                pump, receiver = self._consume(stream, entry, lent)
                await pump.opened.wait()
                if pump.is_closed:
                    raise _lost_at_once(address, pump)
                entry.pump, entry.receiver = pump, receiver
                return
            raise late
        finally:
            self._pool.recycle_unpooled(landing)
            if pump is not None and entry.pump is None:
                pump.abort(late)  # its hello may still arrive, but no caller waits

    def _consume(self, stream: ByteStream, entry: _Dialled, landing: list[Segment]) -> tuple[Pump, ChannelReceiver]:
        def connect(on_write_wanted: Callable[[], None]) -> Connection:
            make: Callable[..., ChannelReceiver] = ChannelReceiver
            if not self._config.credit_based:
                make = functools.partial(UncreditedReceiver, on_pause=lambda pause: pump.pause_reading(pause))

            def send(frame: Frame) -> None:
                try:
                    connection.send(frame)
                except RemoteProtocolError as error:  # the peer does not read our requests: this ends the connection
                    # Not now, because a gate may be closing its channels.
                    self._loop_lock.soon(functools.partial(self._nursery.start_soon, _give_up, pump, error))

            codec = self._new_codec()
            receiver = make(
                codec,
                peer=entry.address,
                on_write_wanted=on_write_wanted,
                send=send,
                on_empty=lambda: self._leave(entry),
                write_now=lambda: pump.write_between_reads(),
                retries=self._config.request_retries,
                call_later=self._call_later,
            )
            connection = Connection(
                codec,
                receiver,
                hello=self._hello(entry.is_prompt),
                landing=landing,
                peer=entry.address,
                on_write_wanted=on_write_wanted,
                now=trio.current_time(),
                sink=receiver,
                session=stream.session if isinstance(stream, SessionStream) else None,
            )
            if self._config.credit_based:
                receiver.place = connection.place
            made.append(receiver)
            return connection

        made: list[ChannelReceiver] = []
        pump = self._start(stream, connect)
        return pump, made[0]

    def _is_known(self, entry: _Dialled) -> bool:
        return self._connections.get((entry.address, entry.is_prompt)) is entry

    def _forget(self, entry: _Dialled) -> None:
        if self._is_known(entry):
            del self._connections[entry.address, entry.is_prompt]

    def _leave(self, entry: _Dialled) -> None:
        self._forget(entry)
        if entry.pump is not None:
            entry.pump.leave()

    def _leave_if_idle(self, entry: _Dialled) -> None:
        """Closes a connection whose callers were cancelled before they opened a channel."""
        if not entry.callers and entry.receiver is not None and not entry.receiver.channel_count:
            self._leave(entry)

    def discard(self, pump: Pump) -> None:
        """Removes a pump whose connection is over."""
        for entry in list(self._connections.values()):
            if entry.pump is pump:
                self._forget(entry)

    def statistics(self) -> tuple[DialledStatistics, ...]:
        """Snapshots of all connections."""
        return tuple(
            DialledStatistics(entry.address, entry.pump.connection.statistics(), entry.receiver.channel_count)
            for entry in self._connections.values()
            if entry.pump is not None and entry.receiver is not None
        )

    def connections(self) -> tuple[OpenConnection, ...]:
        """All connections; O(connections)."""
        return tuple(
            OpenConnection(entry.address, False, entry.pump.connection.statistics(), entry.receiver.channel_count)
            for entry in self._connections.values()
            if entry.pump is not None and entry.receiver is not None
        )


async def _give_up(pump: Pump, error: Exception) -> None:
    pump.abort(error)


def may_come_back(error: Exception) -> bool:
    """Whether nobody listened at the address, or the connection ended before the peer's hello: a retry may help."""
    if isinstance(error, RemoteProtocolError):
        return error.code is ErrorCode.TRUNCATED_STREAM
    if isinstance(error, AuthenticationFailed):
        return error.reason is Refusal.CLOSED
    return isinstance(error, ConnectionLost | ConnectionError)


def _lost_at_once(address: str, pump: Pump) -> Exception:
    return pump.error or ConnectionLost(f"{address} said goodbye at once: it is closing")
