"""NativeCodec: netstack's own layout. `SPEC.md` is normative; this module implements it.

Takes: frames and fields. Gives: bytes, and back.

Every frame starts with a header of 24 bytes. So a receiver can ask the kernel for "the rest of this payload, the next
header, the next payload, ..." in one call (scatter), and one `struct` call parses any header.
"""

from __future__ import annotations

import enum
import functools
import struct
from typing import Final, assert_never, final

from ...base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from ...base.events import DataType
from ..buffer.stored import Packaging, StoredBuffer, decompress
from .codec import Codec, FrameKind, HeaderFields, Parts
from .frames import (
    Acknowledge,
    AddCredit,
    BacklogAnnouncement,
    CancelChannel,
    ChannelError,
    ConnectionFailure,
    Continue,
    ExpectedBuffers,
    Frame,
    Goodbye,
    Hello,
    NewBufferSize,
    OpenChannel,
    Ping,
    Pong,
    Received,
    Resume,
    SegmentRequest,
    SessionOffer,
    TaskEvent,
    UnknownChannel,
)

PROTOCOL_VERSION: Final = 4
MAGIC: Final = b"netstack"
PROOF_MAGIC: Final = b"NSA2"
"""The first bytes of a peer that requires proof of a shared secret (`SPEC.md`, section 15)."""
MAX_TEXT_BYTES: Final = 1000  # of an error text; enough for a cause, and small

# length u32 | kind u8 | data type u8 | reserved u16 | channel u32 | sequence u32 | backlog u32 | checksum u32
_HEADER: Final = struct.Struct(">IBBHIIII")
_START: Final = struct.Struct(">IBBHI")
_REST: Final = struct.Struct(">III")
_HELLO: Final = struct.Struct(">8sHIIB")
_OPEN: Final = struct.Struct(">IIIB")
_PAIR: Final = struct.Struct(">II")
_CODE: Final = struct.Struct(">H")
_TOKEN: Final = struct.Struct(">Q")
_NUMBER: Final = struct.Struct(">I")
_SESSION: Final = struct.Struct(">16sI")
_CONTINUE: Final = struct.Struct(">16sIQ")

NOT_SENT: Final = (DataType.ANNOUNCEMENT, DataType.BLOCKING_EVENT, DataType.STORED_DATA)
_DATA_TYPES: Final = frozenset(int(data_type) for data_type in DataType if data_type not in NOT_SENT)


class Kind(enum.IntEnum):
    """The second field of the header, except the first byte of a HELLO, chosen to reject other protocols early."""

    HELLO = 0x6E  # "n": so that a peer of another protocol rarely gets past the first frame
    BUFFER = 1
    OPEN = 2
    CREDIT = 3
    RESUME = 4
    ACKNOWLEDGE = 5
    CANCEL = 6
    BACKLOG = 7
    CHANNEL_ERROR = 8
    CONNECTION_ERROR = 9
    PING = 10
    PONG = 11
    GOODBYE = 12
    BUFFER_SIZE = 13
    COMPRESSED = 14
    SESSION = 15
    CONTINUE = 16
    RECEIVED = 17
    EXPECTED = 18


MAX_COMPRESSED: Final = 1024
"""Buffers in one COMPRESSED frame."""

_BUFFER: Final = int(Kind.BUFFER)
_CREDIT: Final = int(Kind.CREDIT)
_COMPRESSED: Final = int(Kind.COMPRESSED)
_DATA: Final = int(DataType.DATA)
_BUFFER_FRAME: Final = FrameKind.BUFFER
_CONTROL_FRAME: Final = FrameKind.CONTROL


@final
class NativeCodec(Codec):
    """Encodes and decodes the native layout."""

    def __init__(self, segment_size_bytes: int = 1 << 24) -> None:
        """Keeps no state of a connection.

        Args:
            segment_size_bytes: size limit of a decompressed buffer.
        """
        self.header_bytes = _HEADER.size
        self.control_header_bytes = _HEADER.size
        self.max_control_bytes = 16 * 1024
        self.max_event_bytes = 16 * 1024
        self.max_credit_pairs = self.max_control_bytes // _PAIR.size
        self.max_split_bytes = 4096  # 4 for each compressed buffer
        self._inflate = functools.partial(decompress, max_bytes=segment_size_bytes)

    @property
    def packaging(self) -> Packaging:
        """Compressed buffers are sent unchanged."""
        return Packaging.COMPRESSED

    def encode_buffer_header(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, length: int, checksum: int
    ) -> bytes:
        """Encodes the 24 bytes in front of a buffer's payload."""
        return _HEADER.pack(length, _BUFFER, data_type, 0, channel, sequence & 0xFFFFFFFF, backlog, checksum)

    def encode_run_headers(self, channel: int, sequence: int, backlog: int, length: int, count: int) -> list[bytes]:
        """Encodes headers that differ in sequence and backlog."""
        start = _START.pack(length, _BUFFER, _DATA, 0, channel)
        last = sequence + count - 1
        return [
            start + _REST.pack(number & 0xFFFFFFFF, backlog + last - number, 0) for number in range(sequence, last + 1)
        ]

    def encode_event(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, payload: bytes
    ) -> tuple[bytes, bytes]:
        """Encodes header and payload; events travel in their native bytes."""
        return self.encode_buffer_header(channel, data_type, sequence, backlog, len(payload), 0), payload

    def header_length(self, data: memoryview, offset: int) -> int:
        """Always 24."""
        return _HEADER.size

    def parse_header(self, data: memoryview, offset: int) -> HeaderFields:
        """Parses the header at `offset`."""
        length, kind, data_type, reserved, channel, sequence, backlog, checksum = _HEADER.unpack_from(data, offset)
        if kind == _BUFFER:
            if reserved or data_type not in _DATA_TYPES:
                raise RemoteProtocolError(
                    ErrorCode.MALFORMED_FRAME, f"a buffer frame with data type {data_type}, reserved field {reserved}"
                )
            return _BUFFER_FRAME, length, data_type, channel, sequence, backlog, checksum
        if kind == _COMPRESSED:
            if not 1 <= reserved <= MAX_COMPRESSED or data_type != _DATA:
                raise RemoteProtocolError(
                    ErrorCode.MALFORMED_FRAME,
                    f"a compressed frame of {reserved} buffers with data type {data_type};"
                    f" 1 to {MAX_COMPRESSED} buffers of data are allowed",
                )
            return FrameKind.COMPOSITE, length, data_type, channel, sequence, backlog, reserved
        return _CONTROL_FRAME, length, kind, channel, sequence, backlog, checksum

    def encode_control(self, frame: Frame) -> bytes:
        """Encodes a control frame."""
        kind, channel, payload = _control_parts(frame)
        return _HEADER.pack(len(payload), kind, 0, 0, channel, 0, 0, 0) + payload

    def decode_control(self, control_type: int, channel: int, payload: bytes) -> Frame:
        """Decodes a control frame."""
        try:
            if control_type == _CREDIT and payload:  # a consumer's only frequent frame
                return AddCredit(tuple(_PAIR.iter_unpack(payload)))
            return _decode_control(Kind(control_type), channel, payload)
        except (struct.error, ValueError, IndexError) as error:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"control frame of type {control_type} with {len(payload)} bytes: {error}; {payload[:16].hex()}",
            ) from error

    def decode_event(self, data_type: DataType, payload: bytes) -> tuple[DataType, bytes]:
        """Returns the bytes unchanged; the channel decodes them."""
        return data_type, payload

    def encode_stored(
        self, channel: int, sequence: int, backlog: int, buffer: StoredBuffer
    ) -> list[bytes | memoryview]:
        """Encodes compressed buffers as they are in the file."""
        parts = buffer.parts
        count = len(parts)
        length = _NUMBER.size * count + buffer.length
        header = _HEADER.pack(length, _COMPRESSED, _DATA, count, channel, sequence & 0xFFFFFFFF, backlog, 0)
        return [header + struct.pack(f">{count}I", *map(len, parts)), *parts]

    def split(self, described: int, payload: memoryview) -> Parts:
        """Splits the payload: the sizes, then the compressed buffers."""
        body = payload[_NUMBER.size * described :]
        if len(payload) < _NUMBER.size * described:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"{described} compressed buffers in {len(payload)} bytes"
            )
        sizes = struct.unpack_from(f">{described}I", payload)
        if sum(sizes) != len(body):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"{described} compressed buffers of {sum(sizes)} bytes in total; the frame has {len(body)}",
            )
        return Parts(body, sizes, self._inflate)


def explain_foreign_bytes(first: bytes) -> str:
    """Guesses the protocol of a stream that does not start with a hello, for an error text."""
    for start, name in (
        (b"GET ", "HTTP"),
        (b"POST", "HTTP"),
        (b"PRI ", "HTTP/2"),
        (b"HTTP", "HTTP"),
        (b"SSH-", "SSH"),
        (b"\x16\x03", "TLS"),
        (b"\xff\x00\x00\x00", "ZMTP (ZeroMQ)"),
    ):
        if first.startswith(start):
            return name
    if first[4:8] == bytes.fromhex("badc0ffe"):
        return "Flink's network protocol"
    return "another protocol"


def _control_parts(frame: Frame) -> tuple[Kind, int, bytes]:
    match frame:
        case AddCredit(pairs):
            return Kind.CREDIT, 0, b"".join(_PAIR.pack(channel, credit) for channel, credit in pairs)
        case Resume(channel):
            return Kind.RESUME, channel, b""
        case Acknowledge(channel):
            return Kind.ACKNOWLEDGE, channel, b""
        case CancelChannel(channel):
            return Kind.CANCEL, channel, b""
        case OpenChannel(channel, partition_id, subpartition, credit, subpartitions):
            name = partition_id.encode()
            return Kind.OPEN, channel, _OPEN.pack(subpartition, subpartitions, credit, len(name)) + name
        case BacklogAnnouncement(channel, backlog):
            return Kind.BACKLOG, channel, _NUMBER.pack(backlog)
        case ExpectedBuffers(channel, buffers):
            return Kind.EXPECTED, channel, _NUMBER.pack(buffers)
        case NewBufferSize(channel, buffer_bytes):
            return Kind.BUFFER_SIZE, channel, _NUMBER.pack(buffer_bytes)
        case ChannelError(channel, code, text):
            return Kind.CHANNEL_ERROR, channel, _CODE.pack(code) + _cut(text)
        case ConnectionFailure(code, text):
            return Kind.CONNECTION_ERROR, 0, _CODE.pack(code) + _cut(text)
        case Hello(version, segment_size_bytes, features, software):
            name = software.encode()[:255]
            return Kind.HELLO, 0, _HELLO.pack(MAGIC, version, segment_size_bytes, features, len(name)) + name
        case Ping(token):
            return Kind.PING, 0, _TOKEN.pack(token)
        case Pong(token):
            return Kind.PONG, 0, _TOKEN.pack(token)
        case Goodbye():
            return Kind.GOODBYE, 0, b""
        case SessionOffer(session, grace_ms):
            return Kind.SESSION, 0, _SESSION.pack(session, grace_ms)
        case Continue(session, attempt, position):
            return Kind.CONTINUE, 0, _CONTINUE.pack(session, attempt, position)
        case Received(position):
            return Kind.RECEIVED, 0, _TOKEN.pack(position)
        case TaskEvent() | SegmentRequest() | UnknownChannel():
            raise LocalProtocolError(f"the native protocol has no {type(frame).__name__} frames; send records instead")
        case _:
            assert_never(frame)


def _decode_control(kind: Kind, channel: int, payload: bytes) -> Frame:
    match kind:
        case Kind.CREDIT:
            raise ValueError("no channel in it")
        case Kind.RESUME:
            return _empty(Resume(channel), payload)
        case Kind.ACKNOWLEDGE:
            return _empty(Acknowledge(channel), payload)
        case Kind.CANCEL:
            return _empty(CancelChannel(channel), payload)
        case Kind.OPEN:
            subpartition, subpartitions, credit, size = _OPEN.unpack_from(payload)
            name = payload[_OPEN.size :]
            if len(name) != size or not name:
                raise ValueError(f"partition id of {len(name)} bytes, announced as {size}")
            if not subpartitions:
                raise ValueError("a range of no subpartitions")
            return OpenChannel(channel, name.decode(), subpartition, credit, subpartitions)
        case Kind.BACKLOG:
            return BacklogAnnouncement(channel, _NUMBER.unpack(payload)[0])
        case Kind.EXPECTED:
            return ExpectedBuffers(channel, _NUMBER.unpack(payload)[0])
        case Kind.BUFFER_SIZE:
            return NewBufferSize(channel, _NUMBER.unpack(payload)[0])
        case Kind.CHANNEL_ERROR:
            code, text = _code_and_text(payload)
            return ChannelError(channel, code, text)
        case Kind.CONNECTION_ERROR:
            code, text = _code_and_text(payload)
            return ConnectionFailure(code, text)
        case Kind.HELLO:
            magic, version, segment_size, features, size = _HELLO.unpack_from(payload)
            name = payload[_HELLO.size : _HELLO.size + size]
            if magic != MAGIC or len(name) != size:
                raise ValueError("not a netstack hello")
            return Hello(version, segment_size, features, name.decode())
        case Kind.PING:
            return Ping(_TOKEN.unpack(payload)[0])
        case Kind.PONG:
            return Pong(_TOKEN.unpack(payload)[0])
        case Kind.GOODBYE:
            return _empty(Goodbye(), payload)
        case Kind.SESSION:
            return SessionOffer(*_SESSION.unpack(payload))
        case Kind.CONTINUE:
            return Continue(*_CONTINUE.unpack(payload))
        case Kind.RECEIVED:
            return Received(_TOKEN.unpack(payload)[0])
        case Kind.BUFFER | Kind.COMPRESSED:
            raise ValueError("a buffer is no control frame")
        case _:
            assert_never(kind)


def _empty(frame: Frame, payload: bytes) -> Frame:
    if payload:
        raise ValueError("it has no payload")
    return frame


def _code_and_text(payload: bytes) -> tuple[ErrorCode, str]:
    number = _CODE.unpack_from(payload)[0]
    try:
        code = ErrorCode(number)
    except ValueError:
        code = ErrorCode.INTERNAL  # a newer peer's code: keep its text
    return code, payload[_CODE.size :].decode(errors="replace")


def _cut(text: str) -> bytes:
    data = text.encode(errors="replace")
    return data if len(data) <= MAX_TEXT_BYTES else data[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
