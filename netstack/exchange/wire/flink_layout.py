"""Frames of Flink 2.3.0: the prefix of nine bytes, the kinds, and the structures inside.

Takes: fields. Gives: bytes, and back, to the other modules of the dialect.

Everything is big-endian. A frame's length includes the length field. Ids have 16 bytes. A result partition is
identified by 60 bytes: data set (16), number (4), execution graph (16), job vertex (16), subtask (4), attempt (4).
Above the codec its name is these bytes in hex.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

from ...base.config import FLINK_DIALECT, NATIVE_DIALECT
from ...base.errors import ConfigError, ErrorCode, RemoteProtocolError
from ...base.events import DataType
from . import codec_native
from .codec_native import explain_foreign_bytes

MAGIC: Final = 0xBADC0FFE
ID_BYTES: Final = 16
PARTITION_BYTES: Final = 60
MAX_INT: Final = 2**31 - 1

PREFIX: Final = struct.Struct(">IIB")
"""Length, magic, kind."""
INT: Final = struct.Struct(">i")
INT_AND_ID: Final = struct.Struct(">i16s")
REQUEST: Final = struct.Struct(">60sii16si")
"""Partition, first and last subpartition, channel, initial credit."""
TASK_EVENT_TARGET: Final = struct.Struct(">60s16s")
"""Partition, channel."""
SEGMENT: Final = struct.Struct(">ii16s")
"""Subpartition, segment, channel."""

BUFFER: Final = struct.Struct(">IIB16siiIIBBI")
"""Length, magic, kind, channel, subpartition, parts, sequence, backlog, data type, is compressed, size."""
ROUTE: Final = struct.Struct(">IB16sii")
"""The middle of that header, which is the same in every plain buffer of a channel: magic to parts."""
PLAIN_BUFFER: Final = struct.Struct(f">I{ROUTE.size}sIIHI")
"""The same header with the middle as one field, and data type and compression as one number."""
KNOWN_BUFFER: Final = struct.Struct(f">{INT.size + ROUTE.size}sII6s")
"""The same header again. One field has everything that buffers of one length and channel share, except the last six
bytes (data type, compression, size), which are another field."""
PLAIN_DATA: Final = int(DataType.DATA) << 8
"""Data type and no compression, as one number."""

_NATIVE_HELLO: Final = codec_native.Kind.HELLO << 24
"""Appears in place of the magic number if the peer starts with netstack's hello."""

MAX_PARTS: Final = 4096
"""Limit for one frame. A segment of 32 KiB holds about 240 compressed buffers of zeros, or thousands of empty parts."""


class Kind(enum.IntEnum):
    """The ninth byte of a frame."""

    BUFFER_RESPONSE = 0
    ERROR_RESPONSE = 1
    PARTITION_REQUEST = 2
    TASK_EVENT_REQUEST = 3
    CANCEL_PARTITION_REQUEST = 4
    CLOSE_REQUEST = 5
    ADD_CREDIT = 6
    RESUME_CONSUMPTION = 7
    ACK_ALL_USER_RECORDS_PROCESSED = 8
    BACKLOG_ANNOUNCEMENT = 9
    NEW_BUFFER_SIZE = 10
    SEGMENT_ID = 11


FROM_PRODUCER: Final = frozenset({Kind.BUFFER_RESPONSE, Kind.ERROR_RESPONSE, Kind.BACKLOG_ANNOUNCEMENT})
FROM_CONSUMER: Final = frozenset(Kind) - FROM_PRODUCER

DATA_TYPES: Final[dict[int, DataType]] = {
    1: DataType.DATA,
    2: DataType.EVENT,
    3: DataType.PRIORITY_EVENT,
    4: DataType.ALIGNED_BARRIER,
    5: DataType.TIMEOUTABLE_ALIGNED_BARRIER,
    6: DataType.BLOCKING_EVENT,  # recovery completion
    7: DataType.EVENT,  # end of segment
    8: DataType.DATA,  # ends with a record
    9: DataType.END_OF_DATA,
    10: DataType.END_OF_PARTITION,
    11: DataType.EVENT,  # recovery metadata
    12: DataType.BLOCKING_EVENT,  # aligned watermark
    13: DataType.EVENT,  # unaligned watermark
}
"""How a buffer is handled, by its data type. The event's own bytes contain its class."""

RECOVERY_COMPLETION: Final = 6
ALIGNED_WATERMARK: Final = 12
UNALIGNED_WATERMARK: Final = 13


def whole_frame(kind: Kind, body: bytes) -> bytes:
    """Encodes a frame."""
    return PREFIX.pack(PREFIX.size + len(body), MAGIC, kind) + body


def parse_prefix(data: memoryview, offset: int, allowed: frozenset[Kind]) -> tuple[int, Kind]:
    """Parses the nine bytes at `offset`; returns the length and kind of the frame.

    Raises:
        RemoteProtocolError: wrong magic, a kind that this side does not accept, or an impossible length.
    """
    length, magic, kind = PREFIX.unpack_from(data, offset)
    if magic != MAGIC:
        first = bytes(data[offset : offset + PREFIX.size])
        spoken = explain_foreign_bytes(first)
        if magic == _NATIVE_HELLO:
            spoken = f"netstack's own protocol (--dialect {NATIVE_DIALECT})"
        raise malformed(
            f"a frame with magic {magic:08x} instead of {MAGIC:08x} (first bytes {first.hex(' ')}): the peer uses"
            f" {spoken}, or bytes were lost; check the address, the port and the dialect"
        )
    if kind not in allowed:
        names = ", ".join(f"{known.value} {known.name}" for known in sorted(allowed))
        raise malformed(f"a frame of kind {kind}, {length} bytes; expected {names}: the peer must be Flink 2.3.0")
    if not PREFIX.size <= length <= MAX_INT:
        raise malformed(f"a {Kind(kind).name} of {length} bytes; {PREFIX.size} to {MAX_INT} are allowed")
    return length, Kind(kind)


def partition_bytes(partition_id: str) -> bytes:
    """Parses a result partition id to its 60 bytes. Raises ConfigError if it is not 120 hex digits."""
    try:
        raw = bytes.fromhex(partition_id)
    except ValueError:
        raw = b""
    if len(raw) != PARTITION_BYTES or len(partition_id) != 2 * PARTITION_BYTES:
        raise ConfigError(
            f"partition id {partition_id[:130]!r}: the dialect {FLINK_DIALECT} identifies a partition by"
            f" {2 * PARTITION_BYTES} hex digits (data set, number, execution graph, job vertex, subtask, attempt)"
        )
    return raw


def malformed(text: str) -> RemoteProtocolError:
    """The error of bytes that are not a frame of this dialect."""
    return RemoteProtocolError(ErrorCode.MALFORMED_FRAME, text)
