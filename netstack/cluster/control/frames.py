"""Framed documents over a byte stream: the layer below every control protocol between processes.

Takes: lists of plain data. Gives: the same lists at the other end, in order.

A frame is the length of the body (u32, big-endian) and a msgpack list. Nothing is pickled. The connection ends when a
document is not a list, is nested too deeply or has too many parts (`bounded_msgpack`), or when a length exceeds the
limit. `send` never waits; `run` writes. A peer that reads too slowly is disconnected when `MAX_UNSENT_BYTES` are
unsent, so callers that send much call `wait_room`. `receive` is a checkpoint, so a flood of small documents does not
starve other tasks; where many peers connect, the busiest ones share a quarter of the event loop (`LoopShare`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, final

import msgpack
import trio

from ...base.errors import ConfigError, ConnectionLost, ErrorCode, RemoteProtocolError
from ...base.text.bounded_msgpack import MAX_DOCUMENT_CONTAINERS, unpack_document
from ...base.text.safe_text import safe_repr
from ...base.transport import ByteStream
from ...exchange.wire.codec_native import PROOF_MAGIC

MAX_FRAME_BYTES: Final = 4 << 20
"""Limit of a frame: large enough for jobs, the largest documents; bounds the memory cost of a malicious length."""

MAX_UNSENT_BYTES: Final = 4 * MAX_FRAME_BYTES

_ROOM_BYTES: Final = MAX_FRAME_BYTES
"""`wait_room` returns below this many unsent bytes: one frame of maximum size can always be queued."""

_WRITE_BYTES: Final = 1 << 18
"""Bytes copied from the outbox for one write: about what a socket accepts at once."""

_LENGTH: Final = struct.Struct(">I")


class LoopShare(Protocol):
    """Accounts for the event-loop time that one peer uses (`network.connection.fair_share.PeerShare`)."""

    clock: Callable[[], float]
    """The clock that measures the work."""

    def worked(self, began_s: float, moved_bytes: int) -> None:
        """Records work that began at `began_s` and ends now; `moved_bytes` is all that the peer ever sent."""

    async def wait_turn(self) -> None:
        """Waits until the other peers have had their share. Cancellation: changes nothing."""


@final
class FrameStream:
    """One end of a stream of documents.

    Attributes:
        peer: name of the other end for error texts; the greeting extends it.
        limit_bytes: longest accepted frame; raised after the greeting.
        most_containers: returns how many lists and maps a frame may have.
        received_bytes: bytes received so far; grows while a long frame arrives.
        document_bytes: length of the last received document.
    """

    def __init__(
        self, stream: ByteStream, *, limit_bytes: int = MAX_FRAME_BYTES, share: LoopShare | None = None
    ) -> None:
        self.peer = stream.peer
        self.limit_bytes = limit_bytes
        self.most_containers: Callable[[bytes], int] = _most_containers
        self._share = share
        self.received_bytes = self.document_bytes = 0
        self._is_given_up = False
        self._stream = stream
        self._outbox = bytearray()
        self._more = trio.Event()
        self._room = trio.Event()
        self._landing = memoryview(bytearray(1 << 16))
        self._received = bytearray()

    async def flush(self) -> None:
        """Writes everything that was sent so far; must not run beside `run`.

        Raises:
            ConnectionLost: the peer closed the connection.
        """
        while self._outbox:
            await self._write()

    async def run(self) -> None:
        """Writes sent documents until cancelled or until the stream ends; `receive` raises in the latter case."""
        try:
            while True:
                await self.flush()
                self._more = trio.Event()
                await self._more.wait()
        except (ConnectionLost, trio.ClosedResourceError):
            self._give_up()

    def send(self, document: list[Any]) -> None:
        """Queues a document; never waits. Drops it when the peer has been disconnected.

        Raises:
            ConfigError: the document is not plain data, or is too large.
        """
        self.send_frame(pack(document))

    def send_frame(self, frame: bytes) -> None:
        """Queues a frame made by `pack`; never waits."""
        if self._is_given_up:
            return
        self._outbox += frame
        if len(self._outbox) > MAX_UNSENT_BYTES:
            self._give_up()
            self._stream.close()  # `receive` and `run` then raise
        self._more.set()

    async def wait_room(self) -> None:
        """Waits until few bytes are unsent, or the peer is disconnected; callers that send much need it.

        Cancellation: changes nothing.
        """
        await trio.lowlevel.checkpoint()
        while len(self._outbox) >= _ROOM_BYTES:
            await self._room.wait()

    async def receive(self) -> list[Any]:
        """Waits for the next document.

        Raises:
            ConnectionLost: the peer closed the connection.
            RemoteProtocolError: the peer sent a malformed or oversized frame.

        Cancellation: loses nothing; call again.
        """
        has_waited = self._share is not None
        if self._share is not None:
            await trio.lowlevel.checkpoint()  # the loop is shared turn by turn, also with peers that send now and then
            await self._share.wait_turn()
        while True:
            if len(self._received) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._received)
                if length > self.limit_bytes:
                    if self._received.startswith(PROOF_MAGIC):
                        raise RemoteProtocolError(
                            ErrorCode.NOT_NETSTACK,
                            f"{self.peer} requires a shared secret; start this process with the same --secret-file",
                        )
                    raise RemoteProtocolError(
                        ErrorCode.FRAME_TOO_LARGE,
                        f"{self.peer} sent a control frame of {length} bytes; the limit is {self.limit_bytes}",
                    )
                end = _LENGTH.size + length
                if len(self._received) >= end:
                    if not has_waited:
                        await trio.lowlevel.checkpoint()
                    began_s = None if self._share is None else self._share.clock()
                    self.document_bytes = length
                    body = bytes(self._received[_LENGTH.size : end])
                    document = unpack(body, self.most_containers(body))
                    del self._received[:end]
                    if self._share is not None and began_s is not None:
                        self._share.worked(began_s, self.received_bytes)
                    return document
            has_waited |= await self._read()

    def close(self) -> None:
        """Closes the stream. Idempotent."""
        self._stream.close()

    async def _write(self) -> None:
        sent = self._stream.try_send((bytes(memoryview(self._outbox)[:_WRITE_BYTES]),))
        del self._outbox[:sent]
        if len(self._outbox) < _ROOM_BYTES:
            self._room.set()
            self._room = trio.Event()
        if self._outbox:
            await self._stream.wait_writable()

    def _give_up(self) -> None:
        self._is_given_up = True
        self._outbox.clear()
        self._room.set()

    async def _read(self) -> bool:
        """Waits for bytes; returns whether it had to."""
        has_waited = False
        try:
            while (count := self._stream.try_receive_into((self._landing,))) is None:
                await self._stream.wait_readable()
                has_waited = True
        except trio.ClosedResourceError as error:
            raise ConnectionLost(f"this process closed its control connection to {self.peer}") from error
        if not count:
            raise ConnectionLost(
                f"{self.peer} closed the control connection: its process has ended or is shutting down"
            )
        self._received += self._landing[:count]
        self.received_bytes += count
        return has_waited


def pack(document: list[Any]) -> bytes:
    """Returns a document as a frame.

    Raises:
        ConfigError: the document is not plain data, is nested too deeply, or is too large.
    """
    try:
        body: bytes = msgpack.packb(document)
        unpack_document(body)  # a dict keyed by tuples packs, and would then break the peer's stream
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, UnicodeEncodeError):
            raise ConfigError(
                f"{safe_repr(error.object)} cannot be sent to another process, because it is not UTF-8; rename the"
                " file, or give another text"
            ) from error
        raise ConfigError(
            f"{safe_repr(document[0])} cannot be sent to another process: {error}; use plain data"
        ) from error
    if len(body) > MAX_FRAME_BYTES:
        raise ConfigError(
            f"{safe_repr(document[0])} has {len(body)} bytes; the limit is {MAX_FRAME_BYTES}: pass large data as a file"
        )
    return _LENGTH.pack(len(body)) + body


def _most_containers(body: bytes) -> int:
    return MAX_DOCUMENT_CONTAINERS


def unpack(body: bytes, max_containers: int = MAX_DOCUMENT_CONTAINERS) -> list[Any]:
    """Returns the document in the body of a frame. Raises RemoteProtocolError if the body is not a valid document."""
    try:
        document = unpack_document(body, max_containers=max_containers)
    except ValueError as error:
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"a control frame cannot be decoded: {error}") from error
    if not isinstance(document, list):
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "a control frame is not a list")
    return document
