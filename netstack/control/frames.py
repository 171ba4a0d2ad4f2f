"""Documents over a byte stream: what every control protocol between processes is made of.

Takes: lists of plain data. Gives: the same lists at the other end, in order.

A frame: length of the rest, u32, big-endian; then a msgpack list. Nothing is pickled; a document that is no list, is
nested too deep or has too many parts (`documents`), or a length above the limit, ends the connection. What is sent is
written while `run` runs: nobody who sends has to wait, so a peer that reads too slowly is given up when
`MAX_UNSENT_BYTES` have gathered; who sends much waits for room (`wait_room`). Taking a document is a checkpoint: a
flood of small ones leaves everybody else their turns; where many peers dial, all who send without end share a quarter
of the loop (`LoopShare`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, final

import msgpack
import trio

from ..documents import MAX_DOCUMENT_CONTAINERS, unpack_document
from ..errors import ConfigError, ConnectionLost, ErrorCode, RemoteProtocolError
from ..shown import shown
from ..transport import ByteStream
from ..wire.codec_native import PROOF_MAGIC

MAX_FRAME_BYTES: Final = 4 << 20
"""Jobs are the largest documents; a malicious length must not make us take memory."""

MAX_UNSENT_BYTES: Final = 4 * MAX_FRAME_BYTES

_ROOM_BYTES: Final = MAX_FRAME_BYTES
"""With less than this unsent there is room for more: at least one largest frame is always under way."""

_WRITE_BYTES: Final = 1 << 18
"""About what a socket takes at once: of a long outbox no more is copied than that."""

_LENGTH: Final = struct.Struct(">I")


class LoopShare(Protocol):
    """How much of the event loop a peer has had (`runtime.turns.PeerShare`)."""

    clock: Callable[[], float]
    """What the work is measured with."""

    def worked(self, began_s: float, moved_bytes: int) -> None:
        """Work for it began then, and has ended; so many bytes have ever come from it."""

    async def wait_turn(self) -> None:
        """Returns when others have had their share. Cancellation: it need not wait again."""


@final
class FrameStream:
    """One end of a stream of documents.

    Attributes:
        peer: who is at the other end, for messages; whoever greets may make it say more.
        limit_bytes: longest frame accepted; raised once a peer has said who it is.
        most_containers: of a frame, how many lists and maps it may have.
        received_bytes: so far; it grows while a long frame arrives.
    """

    def __init__(
        self, stream: ByteStream, *, limit_bytes: int = MAX_FRAME_BYTES, share: LoopShare | None = None
    ) -> None:
        self.peer = stream.peer
        self.limit_bytes = limit_bytes
        self.most_containers: Callable[[bytes], int] = _most_containers
        self._share = share
        self.received_bytes = 0
        self._is_given_up = False
        self._stream = stream
        self._outbox = bytearray()
        self._more = trio.Event()
        self._room = trio.Event()
        self._landing = memoryview(bytearray(1 << 16))
        self._received = bytearray()

    async def flush(self) -> None:
        """Writes all that was sent so far; only before `run`, or after it.

        Raises:
            ConnectionLost: the peer is gone.
        """
        while self._outbox:
            await self._write()

    async def run(self) -> None:
        """Writes what is sent, until cancelled. Ends when the stream does; `receive` then raises."""
        try:
            while True:
                await self.flush()
                self._more = trio.Event()
                await self._more.wait()
        except (ConnectionLost, trio.ClosedResourceError):
            self._give_up()

    def send(self, document: list[Any]) -> None:
        """Hands over a document; never waits. Of a peer that was given up nothing is kept.

        Raises:
            ConfigError: it is not plain data, or too large.
        """
        self.send_frame(pack(document))

    def send_frame(self, frame: bytes) -> None:
        """Hands over what `pack` made; as `send`."""
        if self._is_given_up:
            return
        self._outbox += frame
        if len(self._outbox) > MAX_UNSENT_BYTES:
            self._give_up()
            self._stream.close()  # `receive` and `run` then raise
        self._more.set()

    async def wait_room(self) -> None:
        """Waits until little is unsent; returns too when the peer is gone. For those who send much.

        Cancellation: nothing changed.
        """
        await trio.lowlevel.checkpoint()
        while len(self._outbox) >= _ROOM_BYTES:
            await self._room.wait()

    async def receive(self) -> list[Any]:
        """The next document.

        Raises:
            ConnectionLost: the other end is gone.
            RemoteProtocolError: it sent what is no document.

        Cancellation: nothing is lost; ask again.
        """
        await trio.lowlevel.checkpoint()
        if self._share is not None:
            await self._share.wait_turn()
        while True:
            if len(self._received) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._received)
                if length > self.limit_bytes:
                    if self._received.startswith(PROOF_MAGIC):
                        raise RemoteProtocolError(
                            ErrorCode.NOT_NETSTACK,
                            f"{self.peer} wants a shared secret to be proven first; give this side the same secret",
                        )
                    raise RemoteProtocolError(
                        ErrorCode.FRAME_TOO_LARGE,
                        f"{self.peer} sent a control frame of {length} bytes; {self.limit_bytes} is the most",
                    )
                end = _LENGTH.size + length
                if len(self._received) >= end:
                    began_s = None if self._share is None else self._share.clock()
                    body = bytes(self._received[_LENGTH.size : end])
                    document = unpack(body, self.most_containers(body))
                    del self._received[:end]
                    if self._share is not None and began_s is not None:
                        self._share.worked(began_s, self.received_bytes)
                    return document
            await self._read()

    def close(self) -> None:
        """The other end reads the end; idempotent."""
        self._stream.close()

    async def _write(self) -> None:
        await self._stream.wait_writable()
        sent = self._stream.try_send((bytes(memoryview(self._outbox)[:_WRITE_BYTES]),))
        del self._outbox[:sent]
        if len(self._outbox) < _ROOM_BYTES:
            self._room.set()
            self._room = trio.Event()

    def _give_up(self) -> None:
        self._is_given_up = True
        self._outbox.clear()
        self._room.set()

    async def _read(self) -> None:
        try:
            while (count := self._stream.try_receive_into((self._landing,))) is None:
                await self._stream.wait_readable()
        except trio.ClosedResourceError as error:
            raise ConnectionLost(f"the control stream to {self.peer} was closed here") from error
        if not count:
            raise ConnectionLost(f"{self.peer} ended its control stream: its process is gone, or was asked to end")
        self._received += self._landing[:count]
        self.received_bytes += count


def pack(document: list[Any]) -> bytes:
    """A frame.

    Raises:
        ConfigError: the document is not plain data, nested too deep, or too large.
    """
    try:
        body: bytes = msgpack.packb(document)
        unpack_document(body)  # a dict by tuples can be packed, and would end the peer's stream; so would a deep one
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{shown(document[0])} cannot be sent to another process: {error}; give plain data"
        ) from error
    if len(body) > MAX_FRAME_BYTES:
        raise ConfigError(
            f"{shown(document[0])} has {len(body)} bytes; {MAX_FRAME_BYTES} is the most: give large data by name"
        )
    return _LENGTH.pack(len(body)) + body


def _most_containers(body: bytes) -> int:
    return MAX_DOCUMENT_CONTAINERS


def unpack(body: bytes, max_containers: int = MAX_DOCUMENT_CONTAINERS) -> list[Any]:
    """The document in a frame.

    Raises:
        RemoteProtocolError: there is none.
    """
    try:
        document = unpack_document(body, max_containers=max_containers)
    except ValueError as error:
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"a control frame cannot be read: {error}") from error
    if not isinstance(document, list):
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "a control frame is not a list")
    return document
