"""What a codec must offer: the one place where the layout of frames is known.

Takes: `Frame`s and the fields of data buffers. Gives: bytes, and back. Two codecs can stand behind it (native;
Flink's); nothing above may depend on a layout.
"""

from __future__ import annotations

import abc
import enum
from typing import TypeAlias

from ..events import DataType
from .frames import Frame


class FrameKind(enum.IntEnum):
    """What a header announces."""

    BUFFER = 0
    """A data buffer or an in-band event."""
    CONTROL = 1
    """Anything else; its payload goes to `decode_control`."""


HeaderFields: TypeAlias = tuple[FrameKind, int, int, int, int, int, int]
"""(kind, payload length in bytes, data type or control type, channel, sequence, backlog, checksum).

A plain tuple on purpose: one is made for every buffer, and a class would double its price.
"""


class Codec(abc.ABC):
    """Turns frames into bytes and bytes into frames, without keeping state between frames."""

    header_bytes: int
    """Length of the fixed header every frame starts with."""

    max_control_bytes: int
    """Longest payload of a control frame."""

    max_event_bytes: int
    """Longest payload of an in-band event."""

    @abc.abstractmethod
    def encode_control(self, frame: Frame) -> bytes:
        """A whole control frame."""

    @abc.abstractmethod
    def encode_buffer_header(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, length: int, checksum: int
    ) -> bytes:
        """The header that precedes the `length` payload bytes of a buffer."""

    @abc.abstractmethod
    def parse_header(self, data: memoryview, offset: int) -> HeaderFields:
        """The fields of the header at `offset`; `header_bytes` bytes are there.

        Raises:
            RemoteProtocolError: not a header of this protocol.
        """

    @abc.abstractmethod
    def decode_control(self, control_type: int, channel: int, payload: bytes) -> Frame:
        """The control frame with this payload.

        Raises:
            RemoteProtocolError: unknown type, or a payload that does not fit it.
        """
