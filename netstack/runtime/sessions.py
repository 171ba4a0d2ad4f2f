"""Which connections outlive a cut, and how they get another stream: the consumer dials again, the producer waits.

Takes: connected streams, a way to dial. Gives: `SessionStream`s to pumps; other streams to those, within the grace
time.

Rules:
- Another stream passes all that the first one had to: TLS, the proof of the secret, the route, the hellos. Then it
  names the session by its id, which only its two ends have seen.
- An attempt has a higher number than those before, so one that was delayed on its way takes nothing over.
- A session that was closed on purpose, or whose peer broke the protocol, is unknown from then on. So is one of a
  process that ended: its consumer gives up at once, not after the grace time.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from ..config import NetworkConfig
from ..errors import AuthenticationFailed, ConnectionLost, ErrorCode, NetstackError, Refusal, RemoteProtocolError
from ..limited_log import LimitedLog
from ..shown import shown_error, shown_text
from ..transport import ByteStream
from ..wire.codec import Codec, FrameKind
from ..wire.frames import ConnectionFailure, Continue, Frame, Goodbye, Hello, SessionOffer
from ..wire.session import SESSION_BYTES, Session
from .pump import Pump
from .session_stream import SessionStream

FIRST_DELAY_S: Final = 0.05
LONGEST_DELAY_S: Final = 1.0
"""Between two attempts; the first is made at once."""


@final
class Sessions:
    """Those of one TaskManager."""

    def __init__(
        self,
        config: NetworkConfig,
        nursery: trio.Nursery,
        *,
        codec: Callable[[], Codec],
        hello: Callable[[], Hello],
        dial: Callable[[str], Awaitable[ByteStream]],
        log: LimitedLog,
    ) -> None:
        """Knows none yet.

        Args:
            config: the grace time.
            nursery: runs attempts.
            codec: makes one that knows our frames.
            hello: what we say first on any stream.
            dial: connects to an address and passes all that comes before the hello.
            log: gets a line for a cut, and one for how it ended.
        """
        self._config = config
        self._nursery = nursery
        self._codec = codec
        self._hello = hello
        self._dial = dial
        self._log = log
        self._accepted: dict[bytes, SessionStream] = {}
        self._pumps: dict[SessionStream, Pump] = {}
        self._handed_over: dict[Pump, tuple[SessionStream, ByteStream, Continue]] = {}

    # Streams of pumps.

    def accepted(self, stream: ByteStream) -> SessionStream:
        """One over which we produce."""
        session = Session(offer=secrets.token_bytes(SESSION_BYTES), grace_s=self._config.resume_grace_s)
        return SessionStream(stream, session, on_cut=self._wait_for_consumer)

    def dialled(self, stream: ByteStream, address: str) -> SessionStream:
        """One over which we consume."""

        def on_cut(cut: SessionStream, why: str) -> None:
            self._nursery.start_soon(self._dial_again, cut, address, why)

        return SessionStream(stream, Session(offer=None, grace_s=self._config.resume_grace_s), on_cut=on_cut)

    def add(self, pump: Pump) -> None:
        """A pump whose stream may be one of these."""
        stream = pump.stream
        if isinstance(stream, SessionStream):
            self._pumps[stream] = pump
            if stream.session.is_offered and stream.session.id is not None:
                self._accepted[stream.session.id] = stream

    def discard(self, pump: Pump) -> None:
        """Its connection is over."""
        stream = pump.stream
        if isinstance(stream, SessionStream):
            self._pumps.pop(stream, None)
            if stream.session.is_offered and stream.session.id is not None:
                self._accepted.pop(stream.session.id, None)

    # The producer.

    def hand_over(self, pump: Pump) -> None:
        """A new connection's stream is that of another session: it is taken from the pump, which ends.

        Raises:
            RemoteProtocolError: there is no such session, or the peer cannot be where it says.
        """
        frame = pump.connection.continuation
        stream = pump.stream
        assert frame is not None
        assert isinstance(stream, SessionStream)
        known = self._accepted.get(frame.session)
        if known is None or known.is_closed or known is stream:
            raise RemoteProtocolError(
                ErrorCode.SESSION_UNKNOWN, "there is no such session (any more); its channels have to be opened anew"
            )
        session = known.session
        if frame.attempt <= session.attempt:
            raise RemoteProtocolError(
                ErrorCode.UNEXPECTED_FRAME,
                f"attempt {frame.attempt} to go on came behind attempt {session.attempt}",
            )
        try:
            session.check_position(frame.position)
        except RemoteProtocolError as error:
            self._pumps[known].abort(error)
            raise
        session.attempt = frame.attempt
        inner = stream.detach()
        if inner is None:
            raise ConnectionLost(f"{pump.connection.peer}: the stream was cut again")
        self._handed_over[pump] = known, inner, frame

    def finish_hand_over(self, pump: Pump) -> None:
        """The pump's tasks have ended; now its stream may be waited for by others."""
        handed_over = self._handed_over.pop(pump, None)
        if handed_over is None:
            return
        stream, inner, frame = handed_over
        session = stream.session
        if stream.is_closed:
            inner.close()
            return
        answer = self._codec().encode_control(Continue(frame.session, frame.attempt, session.announce()))
        self._go_on(stream, inner, frame.position, answer)

    def _wait_for_consumer(self, stream: SessionStream, why: str) -> None:
        self._nursery.start_soon(self._give_up_later, stream, why)

    async def _give_up_later(self, stream: SessionStream, why: str) -> None:
        cuts = stream.session.cuts
        grace_s = stream.session.grace_s
        self._log_change(
            "cut", f"the connection to {shown_text(stream.peer)} was cut: {why}; it may go on for {grace_s:g} s"
        )
        await trio.sleep(grace_s)
        if stream.is_suspended and stream.session.cuts == cuts:
            self._give_up(stream, f"nobody went on within {grace_s:g} s")

    # The consumer.

    async def _dial_again(self, stream: SessionStream, address: str, why: str) -> None:
        grace_s = stream.session.grace_s
        self._log_change(
            "cut", f"the connection to {shown_text(address)} was cut: {why}; dialling again for {grace_s:g} s"
        )
        delay_s = FIRST_DELAY_S
        reason = "nobody answered"
        with trio.move_on_after(grace_s):
            while stream.is_suspended:
                try:
                    with trio.fail_after(self._config.connect_timeout_s):
                        inner, position = await self._ask(stream, address)
                    self._go_on(stream, inner, position)
                    return
                except AuthenticationFailed as error:
                    reason = shown_error(error)
                    if error.reason is not Refusal.CLOSED:
                        break
                except RemoteProtocolError as error:
                    reason = shown_error(error)
                    break
                except (NetstackError, OSError, trio.TooSlowError) as error:
                    reason = shown_error(error)
                await trio.sleep(delay_s)
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        if stream.is_suspended:
            self._give_up(stream, reason)

    async def _ask(self, stream: SessionStream, address: str) -> tuple[ByteStream, int]:
        """A stream that carries the session from now on, and up to where the producer has what was sent."""
        session = stream.session
        assert session.id is not None
        codec = self._codec()
        inner = await self._dial(address)
        try:
            session.attempt += 1
            mine = Continue(session.id, session.attempt, session.announce())
            await _send(inner, codec.encode_control(self._hello()) + codec.encode_control(mine))
            while True:
                match await _receive_frame(inner, codec):
                    case Continue() as answer:
                        if (answer.session, answer.attempt) != (session.id, session.attempt):
                            raise RemoteProtocolError(
                                ErrorCode.UNEXPECTED_FRAME, f"{address} goes on with another session"
                            )
                        return inner, answer.position
                    case ConnectionFailure(code, text):
                        raise RemoteProtocolError(code, f"{address} does not go on: {text}")
                    case Hello() | SessionOffer():
                        pass  # what every stream begins with
                    case Goodbye():  # the peer is being closed, and was before it heard of the session
                        raise ConnectionLost(f"{address} is closing")
                    case frame:
                        raise RemoteProtocolError(
                            ErrorCode.UNEXPECTED_FRAME, f"{address} sent {type(frame).__name__} before it went on"
                        )
        except BaseException:
            inner.close()
            raise

    # Both.

    def _go_on(self, stream: SessionStream, inner: ByteStream, position: int, first: bytes = b"") -> None:
        pump = self._pumps.get(stream)
        if pump is None or stream.is_closed:
            inner.close()
            return
        session = stream.session
        before_s, before_bytes = session.suspended_s, session.resent_bytes
        try:
            stream.attach(inner, position, first)
        except RemoteProtocolError as error:
            inner.close()
            pump.abort(error)
            return
        pump.go_on()
        self._log_change(
            "resumed",
            f"the connection to {shown_text(stream.peer)} goes on after {session.suspended_s - before_s:.3f} s;"
            f" {session.resent_bytes - before_bytes} bytes are sent again",
        )

    def _give_up(self, stream: SessionStream, reason: str) -> None:
        self._log_change("given up", f"the connection to {shown_text(stream.peer)} is given up: {reason}")
        stream.give_up()

    def _log_change(self, kind: str, text: str) -> None:
        self._log.log(logging.INFO, kind, text)


async def _send(stream: ByteStream, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.try_send((rest,)) :]
        if rest:
            await stream.wait_writable()


async def _receive_frame(stream: ByteStream, codec: Codec) -> Frame | None:
    """The next control frame; not a byte more is read.

    Raises:
        ConnectionLost: the stream ended.
        RemoteProtocolError: it is none, or too long.
    """
    header = memoryview(await _receive_exactly(stream, codec.header_bytes))
    kind, length, control_type, channel, *_ = codec.parse_header(header, 0)
    if kind is not FrameKind.CONTROL or length > codec.max_control_bytes:
        raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"{stream.peer} sent data before it went on")
    return codec.decode_control(control_type, channel, await _receive_exactly(stream, length))


async def _receive_exactly(stream: ByteStream, count: int) -> bytes:
    data = bytearray(count)
    have = 0
    while have < count:
        arrived = stream.try_receive_into((memoryview(data)[have:],))
        if arrived is None:
            await stream.wait_readable()
        elif arrived == 0:
            raise ConnectionLost(f"{stream.peer} closed the stream before it went on")
        else:
            have += arrived
    return bytes(data)
