"""The interface of a codec, which is the only code that depends on the layout of frames.

Takes: `Frame`s, events and the fields of data buffers. Gives: bytes, and back. There are two dialects, the native one
and Flink's (`dialects`); nothing else may depend on a layout.

Each connection has its own codec: a dialect may identify channels by something else than our numbers, and keeps the
table in its codec. The attributes below describe what a dialect lacks (a hello, for example). A frame that it cannot
express is encoded as no bytes.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from typing import Final, TypeAlias, final

from ...base.errors import LocalProtocolError
from ...base.events import DataType
from ..buffer.stored import Packaging, StoredBuffer
from .frames import Frame

_DATA: Final = DataType.DATA


class FrameKind(enum.IntEnum):
    """The kind of frame that a header announces."""

    BUFFER = 0
    """A data buffer or an in-band event."""
    CONTROL = 1
    """Any other frame; its payload goes to `decode_control`."""
    COMPOSITE = 2
    """Several data buffers or events; its payload goes to `split`."""


HeaderFields: TypeAlias = tuple[FrameKind, int, int, int, int, int, int]
"""(kind, payload length in bytes, data type or control type, channel, sequence, backlog, checksum).

A plain tuple on purpose: one is created for every buffer, and a class would take twice as long. For a composite frame
the checksum is replaced by what `split` needs.
"""

Inflate: TypeAlias = Callable[[memoryview], bytes]
"""Decompresses one buffer; raises `RemoteProtocolError` if that fails or exceeds its limit."""


@final
class Parts:
    """A composite frame split into its buffers or events.

    A plain class, because a compiled dataclass cannot have a field of type memoryview.

    Attributes:
        body: all parts; a view that is valid until the next bytes are read.
        sizes: bytes of each part, in order; they add up to the body.
        inflate: decompresses each part; None if they are not compressed.
    """

    __slots__ = ("body", "inflate", "sizes")

    def __init__(self, body: memoryview, sizes: tuple[int, ...], inflate: Inflate | None) -> None:
        self.body = body
        self.sizes = sizes
        self.inflate = inflate


class Codec(abc.ABC):
    """Encodes and decodes frames; between frames it keeps only the table of channels."""

    header_bytes: int
    """Length of the header of a buffer frame."""

    control_header_bytes: int
    """Length of the header of any other frame; not above `header_bytes`."""

    max_control_bytes: int
    """Longest payload of a control frame."""

    max_event_bytes: int
    """Longest payload of an in-band event."""

    max_split_bytes: int = 0
    """Bytes that the payload of a composite frame may have besides its buffers; 0: there are no such frames."""

    has_hello: bool = True
    """Whether both sides send a hello first. Without, both are assumed to have the same settings."""

    has_heartbeat: bool = True
    """Whether there are pings."""

    has_goodbye: bool = True
    """Whether the end of a stream is announced. Without, a stream may end when no channel is open."""

    blames_connection: bool = False
    """Whether misuse of a channel is answered by a failure of the whole connection, which its consumer then closes.
    Otherwise only that channel fails."""

    takes_credit_back: bool = True
    """Whether an empty buffer frees a buffer at the consumer, so that a producer can return credit."""

    repeats_cancel: bool = False
    """Whether a producer may overlook a cancel, so that data for a closed channel is answered by another cancel."""

    @property
    def packaging(self) -> Packaging:
        """How kept buffers are sent."""
        return Packaging.PLAIN

    @abc.abstractmethod
    def encode_control(self, frame: Frame) -> bytes:
        """Encodes whole control frames: usually one; none (no bytes) if this dialect cannot express it."""

    def encode_stored(
        self, channel: int, sequence: int, backlog: int, buffer: StoredBuffer
    ) -> list[bytes | memoryview]:
        """Encodes kept buffers as one frame, in pieces; only with a `packaging` other than PLAIN.

        Raises:
            LocalProtocolError: this dialect sends kept buffers like others.
        """
        raise LocalProtocolError(
            f"{type(self).__name__} has no frame for a kept buffer: its packaging is PLAIN, so unpack the buffer first"
        )

    @abc.abstractmethod
    def encode_buffer_header(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, length: int, checksum: int
    ) -> bytes:
        """Encodes the header in front of the `length` payload bytes of a data buffer."""

    def encode_run_headers(self, channel: int, sequence: int, backlog: int, length: int, count: int) -> list[bytes]:
        """Encodes the headers of `count` data buffers of `length` bytes; `backlog` is that of the last."""
        last = sequence + count - 1
        return [
            self.encode_buffer_header(channel, _DATA, number, backlog + last - number, length, 0)
            for number in range(sequence, last + 1)
        ]

    @abc.abstractmethod
    def encode_event(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, payload: bytes
    ) -> tuple[bytes, bytes]:
        """Encodes an event, given as its native bytes, to the header and the payload of a frame."""

    @abc.abstractmethod
    def header_length(self, data: memoryview, offset: int) -> int:
        """Length of the header at `offset`, where at least `control_header_bytes` but fewer than `header_bytes` exist.

        Raises:
            RemoteProtocolError: not a header of this protocol.
        """

    @abc.abstractmethod
    def parse_header(self, data: memoryview, offset: int) -> HeaderFields:
        """Parses the complete header at `offset`.

        Raises:
            RemoteProtocolError: not a header of this protocol.
        """

    @abc.abstractmethod
    def decode_control(self, control_type: int, channel: int, payload: bytes) -> Frame | None:
        """Decodes a control frame; None if it has no effect here.

        Raises:
            RemoteProtocolError: unknown type, or malformed payload.
        """

    @abc.abstractmethod
    def decode_event(self, data_type: DataType, payload: bytes) -> tuple[DataType, bytes]:
        """Decodes an event to its native bytes, and the data type to handle it as.

        Raises:
            RemoteProtocolError: not an event; only its channel fails.
        """

    @abc.abstractmethod
    def split(self, described: int, payload: memoryview) -> Parts:
        """Splits the payload of a composite frame.

        Args:
            described: the last field of its header.
            payload: the whole payload.

        Raises:
            RemoteProtocolError: the sizes do not add up.
        """
