"""Resumable connections: after a cut the consumer redials, and the producer waits for it.

Takes: connected streams, a function that dials. Gives: `SessionStream`s to pumps; new streams to those, within the
grace time.

Rules:
- A new stream passes all steps of the first one: TLS, the proof of the secret, the route, the hellos. Then it names the
  session by its id, which only its two ends know.
- Each attempt has a higher number than those before, so a delayed attempt takes nothing over.
- A session that was closed deliberately, or whose peer violated the protocol, is forgotten. So is a session of a
  process that ended: its consumer gives up at once rather than after the grace time.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from ...base.config import NetworkConfig
from ...base.errors import AuthenticationFailed, ConnectionLost, ErrorCode, NetstackError, Refusal, RemoteProtocolError
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_error, safe_text
from ...base.transport import ByteStream
from ...exchange.wire.codec import Codec, FrameKind
from ...exchange.wire.frames import ConnectionFailure, Continue, Frame, Goodbye, Hello, SessionOffer
from ...exchange.wire.session import SESSION_BYTES, Session
from .pump import Pump
from .session_stream import SessionStream

FIRST_DELAY_S: Final = 0.05
LONGEST_DELAY_S: Final = 1.0
"""Bounds of the delay between two attempts; the first attempt is made at once."""


@final
class Sessions:
    """The resumable connections of one TaskManager."""

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
        """Starts without sessions.

        Args:
            config: the grace time.
            nursery: runs attempts.
            codec: creates a codec for our frames.
            hello: returns our first frame on any stream.
            dial: connects to an address and completes everything before the hello.
            log: receives a line for each cut, and one for its outcome.
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
        """Makes an accepted stream resumable."""
        session = Session(offer=secrets.token_bytes(SESSION_BYTES), grace_s=self._config.resume_grace_s)
        return SessionStream(stream, session, on_cut=self._wait_for_consumer)

    def dialled(self, stream: ByteStream, address: str) -> SessionStream:
        """Makes a dialled stream resumable."""

        def on_cut(cut: SessionStream, why: str) -> None:
            self._nursery.start_soon(self._dial_again, cut, address, why)

        return SessionStream(stream, Session(offer=None, grace_s=self._config.resume_grace_s), on_cut=on_cut)

    def add(self, pump: Pump) -> None:
        """Registers a pump, whose stream may be resumable."""
        stream = pump.stream
        if isinstance(stream, SessionStream):
            self._pumps[stream] = pump
            if stream.session.is_offered and stream.session.id is not None:
                self._accepted[stream.session.id] = stream

    def discard(self, pump: Pump) -> None:
        """Removes a pump whose connection is over."""
        stream = pump.stream
        if isinstance(stream, SessionStream):
            self._pumps.pop(stream, None)
            if stream.session.is_offered and stream.session.id is not None:
                self._accepted.pop(stream.session.id, None)

    # The producer.

    def hand_over(self, pump: Pump) -> None:
        """Takes the stream of a new connection that resumes another session; its own pump ends.

        Raises:
            RemoteProtocolError: there is no such session, or the peer cannot be at the position it sent.
        """
        frame = pump.connection.continuation
        stream = pump.stream
        assert frame is not None
        assert isinstance(stream, SessionStream)
        known = self._accepted.get(frame.session)
        if known is None or known.is_closed or known is stream:
            raise RemoteProtocolError(
                ErrorCode.SESSION_UNKNOWN, "there is no such session (any more); open its channels again"
            )
        session = known.session
        if frame.attempt <= session.attempt:
            raise RemoteProtocolError(
                ErrorCode.UNEXPECTED_FRAME,
                f"attempt {frame.attempt} to resume arrived after attempt {session.attempt}",
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
        """Passes the stream on after the pump's tasks have ended, so that other tasks may wait for it."""
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
            "cut", f"the connection to {safe_text(stream.peer)} was cut: {why}; it can be resumed for {grace_s:g} s"
        )
        await trio.sleep(grace_s)
        if stream.is_suspended and stream.session.cuts == cuts:
            self._give_up(stream, f"it was not resumed within {grace_s:g} s")

    # The consumer.

    async def _dial_again(self, stream: SessionStream, address: str, why: str) -> None:
        grace_s = stream.session.grace_s
        self._log_change(
            "cut", f"the connection to {safe_text(address)} was cut: {why}; dialling again for {grace_s:g} s"
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
                    reason = safe_error(error)
                    if error.reason is not Refusal.CLOSED:
                        break
                except RemoteProtocolError as error:
                    reason = safe_error(error)
                    break
                except (NetstackError, OSError, trio.TooSlowError) as error:
                    reason = safe_error(error)
                await trio.sleep(delay_s)
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        if stream.is_suspended:
            self._give_up(stream, reason)

    async def _ask(self, stream: SessionStream, address: str) -> tuple[ByteStream, int]:
        """Returns a stream that carries the session, and the number of our bytes that the producer has received."""
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
                            raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"{address} resumed another session")
                        return inner, answer.position
                    case ConnectionFailure(code, text):
                        raise RemoteProtocolError(code, f"{address} does not resume the session: {text}")
                    case Hello() | SessionOffer():
                        pass  # the first frames of every stream
                    case Goodbye():  # the peer was closing before it received the request
                        raise ConnectionLost(f"{address} is closing")
                    case frame:
                        raise RemoteProtocolError(
                            ErrorCode.UNEXPECTED_FRAME,
                            f"{address} sent {type(frame).__name__} before it resumed the session",
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
            f"the connection to {safe_text(stream.peer)} was resumed after {session.suspended_s - before_s:.3f} s;"
            f" {session.resent_bytes - before_bytes} bytes are resent",
        )

    def _give_up(self, stream: SessionStream, reason: str) -> None:
        self._log_change("given up", f"the connection to {safe_text(stream.peer)} is given up: {reason}")
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
    """Returns the next control frame; reads no further byte.

    Raises:
        ConnectionLost: the stream ended.
        RemoteProtocolError: it is not a control frame, or too long.
    """
    header = memoryview(await _receive_exactly(stream, codec.header_bytes))
    kind, length, control_type, channel, *_ = codec.parse_header(header, 0)
    if kind is not FrameKind.CONTROL or length > codec.max_control_bytes:
        raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"{stream.peer} sent data before it resumed the session")
    return codec.decode_control(control_type, channel, await _receive_exactly(stream, length))


async def _receive_exactly(stream: ByteStream, count: int) -> bytes:
    data = bytearray(count)
    have = 0
    while have < count:
        arrived = stream.try_receive_into((memoryview(data)[have:],))
        if arrived is None:
            await stream.wait_readable()
        elif arrived == 0:
            raise ConnectionLost(f"{stream.peer} closed the stream before it resumed the session")
        else:
            have += arrived
    return bytes(data)
