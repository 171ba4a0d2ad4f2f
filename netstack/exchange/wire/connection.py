"""Connection: the protocol of one multiplexed connection, without a socket.

It handles greeting, limits, heartbeat and dispatch, and collects what to write next.

Takes: bytes that arrived (through the windows it lends) and the time. Gives: frames to its `Endpoint` (the producing
half in `exchange.outbound.sender`, the consuming half in `exchange.inbound.receiver`), and pieces to write when the
socket has room.

Rules:
- Pull, never push: `collect` is called when the socket has room, and asks the endpoint for frames at that moment.
  Nothing else queues, so memory is bounded whatever the peer does, and a priority event overtakes data right up to the
  socket.
- Before a hello only a hello is accepted; in a dialect without hellos the connection opens at once.
- `RemoteProtocolError` from `advance` is final: send the peer the reason (`fail`), then close.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, final

from ...base.errors import ErrorCode, RemoteProtocolError
from ...base.events import DataType
from ..buffer.segment import Segment
from .assembler import DataSink, FrameAssembler
from .codec import Codec, Inflate
from .codec_native import MAGIC
from .frames import AddCredit, ConnectionFailure, Continue, Frame, Goodbye, Hello, Ping, Pong, Received, SessionOffer
from .greeting import FEATURE_PROMPT, FEATURE_SESSION, agree, check_first_bytes
from .outgoing_batch import OutgoingBatch
from .session import Session, SessionStatistics
from .states import TRANSITIONS, Input, State

MAX_PENDING_CONTROL: Final = 200_000
"""Opening 65,536 channels queues as many frames; a peer with three times that never reads."""


PAIRS_A_FRAME: Final = 16
"""This many credit pairs, of which a frame may have thousands, count as one control frame."""


class Endpoint(Protocol):
    """The half of a connection that has channels; the consuming half is also a `DataSink`."""

    def on_frame(self, frame: Frame) -> None:
        """Takes a control frame that `Connection` does not handle."""

    def on_open(self, peer: Hello, features: int) -> None:
        """Both hellos agree."""

    @property
    def is_idle(self) -> bool:
        """Whether no channel is open."""

    def collect(self, batch: OutgoingBatch) -> None:
        """Adds available frames, while `batch.has_room`."""

    def on_closed(self, error: Exception | None) -> None:
        """Ends every channel, with `error` if the connection broke. Called once."""


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """A snapshot of one connection.

    Attributes:
        state: its state (`states`).
        bytes_sent: bytes written to the socket.
        sends: gathering writes.
        receives: reads that returned bytes.
        round_trip_s: last round trip measured by ping; None before.
        session: cost of surviving cuts; None if a cut ends the connection.
        is_prompt: whether it is of the prompt class (`ids.ChannelDescriptor`).
    """

    state: str
    bytes_received: int
    bytes_sent: int
    sends: int
    receives: int
    round_trip_s: float | None
    session: SessionStatistics | None = None
    is_prompt: bool = False


@final
class Connection:
    """The protocol logic that both halves share."""

    def __init__(
        self,
        codec: Codec,
        endpoint: Endpoint,
        *,
        hello: Hello,
        landing: list[Segment],
        peer: str,
        on_write_wanted: Callable[[], None],
        now: float,
        sink: DataSink | None = None,
        session: Session | None = None,
    ) -> None:
        """Queues our hello, if the dialect has one.

        Args:
            codec: encodes and decodes frames; for this connection only.
            endpoint: receives the control frames.
            hello: our hello.
            landing: segments for payloads; empty on the producing side.
            peer: its address, for error texts.
            on_write_wanted: called when `collect` may return something.
            now: monotonic seconds.
            sink: receives data and events; None on the producing side, to which a consumer sends none.
            session: counts and keeps the bytes of the stream; None if a cut ends the connection.
        """
        self.peer = peer
        self.peer_hello: Hello | None = None
        self.is_prompt = bool(hello.features >> 16 & FEATURE_PROMPT)
        """Whether it is of the prompt class, which the consumer requests; at the producer valid after the greeting."""
        self.state = State.GREETING if codec.has_hello else State.OPEN
        self._codec = codec
        self._endpoint = endpoint
        self._sink = sink
        self._hello = hello
        self._on_write_wanted = on_write_wanted
        self._assembler = FrameAssembler(codec, self, landing, hello.segment_size_bytes)
        self.windows = self._assembler.windows
        self.place = self._assembler.place
        self._control: deque[bytes] = deque()
        self._pong: Pong | None = None
        self._last_received = now
        self._ping_sent: float | None = None
        self._ping_token = 0
        self._has_spoken = False  # since the last heartbeat
        self._round_trip_s: float | None = None
        self.bytes_received = 0
        self.bytes_sent = 0
        self.sends = 0
        self.receives = 0
        self.control_frames = 0
        """Received frames without data, events included: a peer may send any number of them."""
        self.continuation: Continue | None = None
        """Set when this stream belongs to another session, whose owner must take it over."""
        self._session = session
        self._awaits_session = False
        self._has_heard = False  # whether a frame of a channel was received
        self._is_closed = False
        self._has_left = False
        self._has_greeted = not codec.has_hello
        if codec.has_hello:
            self._control.append(codec.encode_control(hello))
        else:
            self._assembler.deliver_to(sink or self)
            endpoint.on_open(hello, 0)

    # Bytes in.

    @property
    def awaits_place(self) -> bool:
        """Whether the reader of a long record should decode what arrived, and lend memory, before the next read."""
        return self._assembler.awaits_place

    def advance(self, count: int, now: float) -> None:
        """Parses `count` bytes that were stored in `windows()`.

        Raises:
            RemoteProtocolError: the peer violated the protocol; final.
        """
        self.bytes_received += count
        self.receives += 1
        self._last_received = now
        if self.state is _GREETING:
            self._check_first_bytes(count)
        self._assembler.advance(count)
        session = self._session
        if session is not None and session.is_used and session.must_announce:
            self._on_write_wanted()

    @property
    def is_greeting(self) -> bool:
        """Whether channels may not be opened yet."""
        return self.state is _GREETING or self._awaits_session

    def end_of_stream(self) -> None:
        """Handles the end of the peer's direction.

        Raises:
            RemoteProtocolError: it ended without a goodbye, or inside a frame; in a dialect without goodbyes, while a
            channel was open and we had not sent ours.
        """
        if self._assembler.mid_frame:
            raise RemoteProtocolError(
                ErrorCode.TRUNCATED_STREAM,
                f"{self.peer} ended the stream in the middle of a frame, after {self.bytes_received} bytes",
            )
        if not self._codec.has_goodbye and self.state is State.OPEN:
            if not (self._has_left or self._endpoint.is_idle):
                raise RemoteProtocolError(
                    ErrorCode.TRUNCATED_STREAM,
                    f"{self.peer} ended the stream while channels were open; its process was probably killed or lost",
                )
            self._go(Input.GOODBYE)
        if (self.state, Input.END_OF_STREAM) not in TRANSITIONS:
            raise RemoteProtocolError(
                ErrorCode.TRUNCATED_STREAM,
                f"{self.peer} ended the stream without a goodbye, in state {self.state.value};"
                " its process was probably killed or lost",
            )
        self._go(Input.END_OF_STREAM)

    # Bytes out.

    def send(self, frame: Frame) -> None:
        """Queues a control frame that does not coalesce (at most a few per channel).

        Raises:
            RemoteProtocolError: the peer causes more answers than it reads.
        """
        if self.state is not State.CLOSED:
            if len(self._control) >= MAX_PENDING_CONTROL:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME,
                    f"{self.peer} causes answers faster than it reads them: {len(self._control)} control frames wait",
                )
            self._has_left = self._has_left or isinstance(frame, Goodbye)
            encoded = self._codec.encode_control(frame)
            if encoded:
                self._control.append(encoded)
                self._on_write_wanted()

    def collect(self) -> OutgoingBatch | None:
        """Returns the next frames to write, or None. The caller must release the batch."""
        batch = OutgoingBatch()
        control = self._control
        if self._pong is not None and self._has_greeted:  # a heartbeat waits only for our hello
            batch.add_control(self._codec.encode_control(self._pong))
            self._pong = None
        while control and batch.has_room:
            batch.add_control(control.popleft())
        self._has_greeted = True
        if self.state in _SENDING:
            try:
                self._endpoint.collect(batch)
            except BaseException:
                batch.release()
                raise
        session = self._session
        if session is not None and not self._has_left:
            position = session.position_to_announce(is_writing=bool(batch.pieces))
            if position is not None:
                batch.add_control(self._codec.encode_control(Received(position)))
        if not batch.pieces:
            return None
        self._has_spoken = True
        return batch

    # Life.

    def heartbeat(self, now: float, interval_s: float, timeout_s: float) -> None:
        """Pings a silent peer, in a dialect with pings, and frees idle memory; call it about every `interval_s`.

        A peer that sends data is pinged too if we have sent nothing since the last call: we may need longer to process
        its data than its timeout allows, and its own ping is queued behind that data.

        Raises:
            RemoteProtocolError: it was pinged and sent nothing for `timeout_s`.
        """
        silent = now - self._last_received
        if self._ping_sent is not None and silent >= timeout_s:
            raise RemoteProtocolError(
                ErrorCode.TIMED_OUT, f"{self.peer} did not answer for {silent:.1f} s; its host or the network is down"
            )
        if silent >= interval_s:
            self._assembler.rest()
        is_due = self._ping_sent is None if silent >= interval_s else not self._has_spoken
        self._has_spoken = False
        if is_due and self.state is State.OPEN and self._codec.has_heartbeat:
            self._ping_token += 1
            self._ping_sent = now
            self.send(Ping(self._ping_token))

    def excuse(self, now: float) -> None:
        """Restarts the peer's timeout: there was no stream on which it could send."""
        self._last_received = now
        self._ping_sent = None

    def fail(self, error: RemoteProtocolError) -> bytes:
        """Encodes the frame that contains the reason of the failure; no bytes if the dialect has none."""
        return self._codec.encode_control(ConnectionFailure(error.code, error.text))

    def close(self, error: Exception | None) -> list[Segment]:
        """Ends every channel and returns the landing segments. Idempotent."""
        self.state = TRANSITIONS.get((self.state, Input.CLOSE), State.CLOSED)
        self._control.clear()
        if not self._is_closed:
            self._is_closed = True
            self._endpoint.on_closed(error)
        return self._assembler.take_landing()

    def take_landing(self) -> list[Segment]:
        """Returns the landing segments of a connection whose `close` failed."""
        return self._assembler.take_landing()

    def statistics(self) -> ConnectionStatistics:
        """A snapshot; O(1)."""
        session = self._session
        return ConnectionStatistics(
            state=self.state.value,
            bytes_received=self.bytes_received,
            bytes_sent=self.bytes_sent,
            sends=self.sends,
            receives=self.receives,
            round_trip_s=self._round_trip_s,
            session=session.statistics() if session is not None and session.is_used else None,
            is_prompt=self.is_prompt,
        )

    # FrameSink: called by the assembler.

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        """Refuses a data buffer; in the state OPEN buffers go straight to the sink."""
        raise self._unexpected("a data buffer")

    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None:
        """Refuses a data buffer, as `on_buffer`."""
        raise self._unexpected("a data buffer")

    def on_landed(
        self, channel: int, sequence: int, backlogs: list[int], memory: memoryview, checksums: list[int]
    ) -> None:
        """Refuses data buffers, as `on_buffer`."""
        raise self._unexpected("a data buffer")

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        """Passes an in-band event to the sink."""
        self.control_frames += 1
        if self.state not in _TAKES_FRAMES:
            raise self._unexpected(f"an event ({data_type.name})")
        if self._sink is None:
            raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"a consumer sent an event for channel {channel}")
        self._sink.on_event(channel, sequence, backlog, data_type, payload)

    def on_parts(
        self,
        channel: int,
        sequence: int,
        backlog: int,
        body: memoryview,
        sizes: tuple[int, ...],
        inflate: Inflate | None,
    ) -> None:
        """Passes the data buffers of one frame to the sink."""
        if self.state not in _TAKES_FRAMES:
            raise self._unexpected("data buffers")
        if self._sink is None:
            raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"a consumer sent data buffers for channel {channel}")
        self._sink.on_parts(channel, sequence, backlog, body, sizes, inflate)

    def on_frame(self, frame: Frame) -> None:
        """Handles a control frame, or passes it to the endpoint."""
        self.control_frames += 1
        match frame:
            case Hello():
                self._greet(frame)
            case ConnectionFailure(code, text):
                raise RemoteProtocolError(code, f"{self.peer} closed the connection: {text}")
            case _ if self.state not in _TAKES_FRAMES or self.continuation is not None:
                raise self._unexpected(type(frame).__name__)
            case SessionOffer() | Continue() | Received():
                self._on_session_frame(frame)
            case Ping():
                self._pong = Pong(frame.token)  # only the newest, so that endless pings cost nothing
                self._on_write_wanted()
            case Pong(token):
                if token == self._ping_token and self._ping_sent is not None:
                    self._round_trip_s = self._last_received - self._ping_sent
                    self._ping_sent = None
            case Goodbye():
                self._go(Input.GOODBYE)
                if self._session is not None:
                    self._session.is_ending = True
            case _:
                if isinstance(frame, AddCredit):
                    self.control_frames += len(frame.pairs) // PAIRS_A_FRAME
                self._has_heard = True
                self._endpoint.on_frame(frame)

    def _greet(self, peer: Hello) -> None:
        features = agree(self._hello, peer, self.peer)
        self._go(Input.HELLO)
        self.peer_hello = peer
        self.is_prompt = self.is_prompt or bool(features & FEATURE_PROMPT)
        self._endpoint.on_open(peer, features)
        self._agree_on_session(features)
        self._on_write_wanted()

    def _agree_on_session(self, features: int) -> None:
        session = self._session
        if session is None:
            return
        if not features & FEATURE_SESSION:
            session.decline()
        elif session.id is None:
            self._awaits_session = True
        else:
            session.is_used = True
            self.send(SessionOffer(session.id, int(session.grace_s * 1000)))

    def _on_session_frame(self, frame: SessionOffer | Continue | Received) -> None:
        session = self._session
        match frame:
            case SessionOffer(offered, grace_ms) if session is not None and self._awaits_session:
                self._awaits_session = False
                session.begin(offered, grace_ms / 1000)
            case Received(position) if session is not None and session.is_used:
                session.acknowledge(position)
            case Continue() if session is not None and session.is_used and session.is_offered and not self._has_heard:
                self.continuation = frame
            case _:
                raise self._unexpected(type(frame).__name__)

    def _go(self, what: Input) -> None:
        following = TRANSITIONS.get((self.state, what))
        if following is None:
            raise self._unexpected(what.value)
        self.state = following
        self._assembler.deliver_to(self._sink or self if following in _TAKES_FRAMES else self)

    def _unexpected(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            ErrorCode.UNEXPECTED_FRAME,
            f"{self.peer} sent {what} in state {self.state.value};"
            " a hello comes first and once, nothing follows a goodbye",
        )

    def _check_first_bytes(self, count: int) -> None:
        """Detects a peer of another protocol by its first bytes, before a length is trusted."""
        expected = self._control_hello_prefix()
        if self.bytes_received - count >= len(expected):
            return
        first = (self._assembler.unparsed + bytes(self.windows()[0][:count]))[: len(expected)]
        check_first_bytes(first, expected, self.peer)

    def _control_hello_prefix(self) -> bytes:
        return self._codec.encode_control(self._hello)[: self._codec.header_bytes + len(MAGIC)]


_SENDING: Final = (State.OPEN, State.FAREWELL)
_GREETING: Final = State.GREETING
_TAKES_FRAMES: Final = tuple(state for state in State if (state, Input.FRAME) in TRANSITIONS)
