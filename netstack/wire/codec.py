"""What a codec must offer: the one place where the layout of frames is known.

Takes: `Frame`s, events and the fields of data buffers. Gives: bytes, and back. Two dialects stand behind it (native;
Flink's, see `dialects`); nothing above may depend on a layout.

A connection has a codec of its own: a dialect may name channels by something else than our numbers, and keeps the table
in its codec. What a dialect lacks altogether (a hello, say) it tells by the attributes below; a frame that it has no
words for is encoded as no bytes at all.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from typing import TypeAlias, final

from ..buffer.stored import Packaging, StoredBuffer
from ..errors import LocalProtocolError
from ..events import DataType
from .frames import Frame


class FrameKind(enum.IntEnum):
    """What a header announces."""

    BUFFER = 0
    """A data buffer or an in-band event."""
    CONTROL = 1
    """Anything else; its payload goes to `decode_control`."""
    COMPOSITE = 2
    """Data buffers or events that have to be taken apart first; its payload goes to `split`."""


HeaderFields: TypeAlias = tuple[FrameKind, int, int, int, int, int, int]
"""(kind, payload length in bytes, data type or control type, channel, sequence, backlog, checksum).

A plain tuple on purpose: one is made for every buffer, and a class would double its price. In place of a composite's
checksum stands what `split` needs to know.
"""

Inflate: TypeAlias = Callable[[memoryview], bytes]
"""Decompresses one buffer; a `RemoteProtocolError` if that cannot be done within its bounds."""


@final
class Parts:
    """A composite frame taken apart: buffers, or events, that came glued together.

    A plain class: compiled, a dataclass cannot have a field of type memoryview.

    Attributes:
        body: all of them; a view that is valid until the next bytes are read.
        sizes: of each, in bytes and in order; they add up to the body.
        inflate: what decompresses each of them; None if they are as they are.
    """

    __slots__ = ("body", "inflate", "sizes")

    def __init__(self, body: memoryview, sizes: tuple[int, ...], inflate: Inflate | None) -> None:
        self.body = body
        self.sizes = sizes
        self.inflate = inflate


class Codec(abc.ABC):
    """Turns frames into bytes and bytes into frames, without keeping state between frames but names of channels."""

    header_bytes: int
    """Length of the header a buffer frame starts with."""

    control_header_bytes: int
    """Length of the header any other frame starts with; not above `header_bytes`."""

    max_control_bytes: int
    """Longest payload of a control frame."""

    max_event_bytes: int
    """Longest payload of an in-band event."""

    max_split_bytes: int = 0
    """What the payload of a composite frame may have beyond its buffers; 0: there are no such frames."""

    has_hello: bool = True
    """Whether both sides say who they are before anything else. Without: both are taken to have the same settings."""

    has_heartbeat: bool = True
    """Whether there are pings."""

    has_goodbye: bool = True
    """Whether the end of a stream is announced. Without: it is the regular end of a connection without channels."""

    blames_connection: bool = False
    """Whether the answer to a misused channel is that the whole connection has failed, which its consumer then ends. If
    not, the channel fails, and no other."""

    takes_credit_back: bool = True
    """Whether a consumer has the buffer of an empty one free again: the way a producer gives back credit."""

    repeats_cancel: bool = False
    """Whether a producer may overlook a cancel, so that what comes for a channel that left is answered by another."""

    @property
    def packaging(self) -> Packaging:
        """How what was kept in files is sent."""
        return Packaging.PLAIN

    @abc.abstractmethod
    def encode_control(self, frame: Frame) -> bytes:
        """Whole control frames: mostly one; none (no bytes) for what this dialect does not say."""

    def encode_stored(
        self, channel: int, sequence: int, backlog: int, buffer: StoredBuffer
    ) -> list[bytes | memoryview]:
        """A whole frame, in pieces, of what was kept; only with a `packaging` other than PLAIN.

        Raises:
            LocalProtocolError: this dialect sends kept buffers as it sends others.
        """
        raise LocalProtocolError(
            f"{type(self).__name__} has no frame for a kept buffer; its packaging is PLAIN: unpack the buffer first"
        )

    @abc.abstractmethod
    def encode_buffer_header(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, length: int, checksum: int
    ) -> bytes:
        """The header that precedes the `length` payload bytes of a data buffer."""

    @abc.abstractmethod
    def encode_event(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, payload: bytes
    ) -> tuple[bytes, bytes]:
        """The header and the payload of a frame with an event, which is given as its native bytes."""

    @abc.abstractmethod
    def header_length(self, data: memoryview, offset: int) -> int:
        """How long the header at `offset` is; asked where fewer than `header_bytes`, but `control_header_bytes` are.

        Raises:
            RemoteProtocolError: not a header of this protocol.
        """

    @abc.abstractmethod
    def parse_header(self, data: memoryview, offset: int) -> HeaderFields:
        """The fields of the header at `offset`, of which all bytes are there.

        Raises:
            RemoteProtocolError: not a header of this protocol.
        """

    @abc.abstractmethod
    def decode_control(self, control_type: int, channel: int, payload: bytes) -> Frame | None:
        """The control frame with this payload; None for one that is of no consequence here.

        Raises:
            RemoteProtocolError: unknown type, or a payload that does not fit it.
        """

    @abc.abstractmethod
    def decode_event(self, data_type: DataType, payload: bytes) -> tuple[DataType, bytes]:
        """The native bytes of an event that came with this payload, and the type it is handled as.

        Raises:
            RemoteProtocolError: not an event; its channel is unusable, others are not.
        """

    @abc.abstractmethod
    def split(self, described: int, payload: memoryview) -> Parts:
        """Takes the payload of a composite frame apart.

        Args:
            described: the last of its header's fields.
            payload: all of it.

        Raises:
            RemoteProtocolError: sizes that do not add up.
        """
