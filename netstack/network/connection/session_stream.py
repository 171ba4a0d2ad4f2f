"""A resumable byte stream: after a cut it waits for another underlying stream and resumes at its position.

Takes: successive connected `ByteStream`s, and the `Session` that counts their bytes. Gives: one `ByteStream` to a pump.
During a cut the stream appears full, and without data.

Rules:
- Before both sides know the session, and after the peer's goodbye, the end or failure of the underlying stream is
  passed to the pump.
- After `give_up` the pump sees the end or error that caused the cut.
- Data that was sent and not acknowledged is resent first on the next stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

import trio

from ...base.errors import ConnectionLost
from ...base.transport import ByteStream, Piece
from ...exchange.wire.session import WINDOW_BYTES, Session

REPLAY_PIECES: Final = 64
"""The most pieces of one write."""


@final
class SessionStream(ByteStream):
    """A stream that survives cuts of the streams underneath."""

    streams_changed = 0
    """Counts cuts and new streams of all instances: descriptors obtained before may have changed."""

    def __init__(self, stream: ByteStream, session: Session, *, on_cut: Callable[[SessionStream, str], None]) -> None:
        """Starts on `stream`.

        Args:
            stream: owned from now on.
            session: counts bytes and keeps unacknowledged data.
            on_cut: called with the reason when the stream broke: the callee must call `attach` or `give_up`.
        """
        self.peer = stream.peer
        self.session = session
        self._stream: ByteStream | None = stream
        self._on_cut = on_cut
        self._is_given_up = False
        self._replay: deque[memoryview] = deque()
        self._wants_eof = False
        self._cut_at = 0.0
        self._cut_by: ConnectionLost | None = None  # None: an end of stream
        self._is_closed = False
        self._changed = trio.lowlevel.ParkingLot()
        session.on_room = self._changed.unpark_all

    @property
    def is_suspended(self) -> bool:
        """Whether there is currently no stream underneath."""
        return self._stream is None and not self._is_given_up and not self._is_closed

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or given up, so that it accepts no other stream."""
        return self._is_closed or self._is_given_up

    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Sends as the stream underneath; nothing without a stream, or if too much is unacknowledged."""
        stream = self._stream
        session = self.session
        if stream is None:
            self._check_given_up()
            return 0
        if self._replay and not self._send_replay(stream):
            return 0
        sent = session.sent
        if sent.sent - sent.acknowledged >= WINDOW_BYTES:
            return 0
        try:
            count = stream.try_send(pieces)
        except ConnectionLost as error:
            self._cut(error)
            return 0
        if count and not session.is_declined:
            sent.keep(pieces, count)
        return count

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """Receives as the stream underneath; None without a stream."""
        stream = self._stream
        if stream is None:
            self._check_given_up()
            return 0 if self._is_given_up else None
        try:
            count = stream.try_receive_into(windows)
        except ConnectionLost as error:
            self._cut(error)
            return None
        if count:
            self.session.received += count
        elif count == 0 and self._outlives_cuts:
            self._cut(None)
            return None
        return count

    async def wait_writable(self) -> None:
        """Waits until there is room to send; resends unacknowledged data."""
        while True:
            stream = await self._wait_stream()
            if stream is None:
                return
            if not self._replay and self.session.sent.kept_bytes >= WINDOW_BYTES:
                await self._changed.park()
                continue
            try:
                await stream.wait_writable()
            except trio.ClosedResourceError:
                self._check_open()
                continue  # cut
            if stream is self._stream and (not self._replay or self._send_replay(stream)):
                return

    async def wait_readable(self) -> None:
        """Waits until data has arrived."""
        while True:
            stream = await self._wait_stream()
            if stream is None:
                return
            try:
                await stream.wait_readable()
            except trio.ClosedResourceError:
                self._check_open()
                continue
            return

    def send_eof(self) -> None:
        """Ends our direction, again after each cut."""
        self._wants_eof = True
        if self._stream is not None and not self._replay:
            self._stream.send_eof()

    def close(self) -> None:
        """Ends the session on this side; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._replay.clear()
            self.session.sent.forget()
            self._drop_stream()
            self._changed.unpark_all()

    def tcp_facts(self) -> dict[str, str | int]:
        """Of the current stream."""
        return {} if self._stream is None else self._stream.tcp_facts()

    def round_trip_s(self) -> float:
        """Of the current stream."""
        return 0.0 if self._stream is None else self._stream.round_trip_s()

    def endpoints(self) -> tuple[str, str]:
        """Of the current stream."""
        return ("", "") if self._stream is None else self._stream.endpoints()

    def descriptor(self) -> int | None:
        """Of the current stream."""
        return None if self._stream is None else self._stream.descriptor()

    def has_come(self) -> bool | None:
        """Of the current stream."""
        return None if self._stream is None else self._stream.has_come()

    def channel_binding(self) -> bytes:
        """Of the current stream."""
        return b"" if self._stream is None else self._stream.channel_binding()

    def break_off(self) -> bool:
        """Drops a stream whose peer is silent. Returns whether another one may follow."""
        if self._outlives_cuts:
            self._cut(ConnectionLost(f"{self.peer} was silent for too long"))
            return True
        return False

    async def keep_sending(self) -> None:
        """Resends kept data until the peer has acknowledged it."""
        while True:
            if self._replay:
                await self.wait_writable()
            else:
                await self._changed.park()
                self._check_open()

    # For `Sessions`, which provides streams.

    def detach(self) -> ByteStream | None:
        """Removes the stream, which now carries another session."""
        stream, self._stream = self._stream, None
        return stream

    def attach(self, stream: ByteStream, position: int, first: bytes = b"") -> None:
        """Resumes on `stream`; a current stream is replaced.

        Args:
            stream: owned from now on, unless an error is raised.
            position: the number of bytes of ours that the peer has received.
            first: sent before the rest.

        Raises:
            RemoteProtocolError: the peer cannot be at this position.
        """
        rest = self.session.go_on(position)
        if self._stream is not None:
            self._drop_stream()
            self.session.cuts += 1
        else:
            self.session.suspended_s += trio.current_time() - self._cut_at
        if first:
            rest.appendleft(memoryview(first))
        self._replay = rest
        self._stream = stream
        self._send_replay(stream)
        SessionStream.streams_changed += 1
        self._changed.unpark_all()

    def give_up(self) -> None:
        """Ends the wait for another stream: the pump sees the cause of the last cut. Idempotent."""
        if not self.is_closed:
            self._is_given_up = True
            self._drop_stream()
            self._changed.unpark_all()

    # Inside.

    @property
    def _outlives_cuts(self) -> bool:
        session = self.session
        return session.is_used and not session.is_ending and not self.is_closed

    def _cut(self, error: ConnectionLost | None) -> None:
        if not self._outlives_cuts:
            assert error is not None
            raise error
        self._drop_stream()
        self._replay.clear()
        self._cut_by = error
        self._cut_at = trio.current_time()
        self.session.cuts += 1
        SessionStream.streams_changed += 1
        self._on_cut(self, "its stream ended" if error is None else str(error))

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()  # its waiters continue with the next stream

    def _send_replay(self, stream: ByteStream) -> bool:
        """Resends kept data. Returns whether all of it is sent."""
        replay = self._replay
        try:
            while replay:
                pieces = [replay[index] for index in range(min(len(replay), REPLAY_PIECES))]
                count = stream.try_send(pieces)
                if not count:
                    return False
                while count and count >= len(replay[0]):
                    count -= len(replay.popleft())
                if count:
                    replay[0] = replay[0][count:]
        except ConnectionLost as error:
            self._cut(error)
            return False
        if self._wants_eof:
            stream.send_eof()
        return True

    async def _wait_stream(self) -> ByteStream | None:
        """Returns the current stream; None after `give_up`: a `try_` call then raises the reason."""
        self._check_open()
        while self._stream is None:
            if self._is_given_up:
                await trio.lowlevel.checkpoint()
                return None
            await self._changed.park()
            self._check_open()
        return self._stream

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError(f"the stream to {self.peer} was closed")

    def _check_given_up(self) -> None:
        if self._is_closed:
            raise ConnectionLost(f"the connection to {self.peer} broke: it is closed")
        if self._is_given_up and self._cut_by is not None:
            raise self._cut_by
