"""FlinkConsumerCodec, the consuming side of Flink's dialect: writes requests, reads buffers (`codec_flink`).

Takes: a consumer's frames to send; bytes of a producer. Gives: bytes; buffer headers, parts and frames.

The header of a plain data buffer needs one look-up: all buffers of a channel with the same length start with the same
33 bytes (length, magic, kind, channel, subpartition, no parts), so these bytes are checked and mapped to the channel's
number in one step.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Final, NoReturn, final

from ...base.errors import ErrorCode, RemoteProtocolError
from ...base.events import DataType
from . import flink_events
from .codec import FrameKind, HeaderFields, Parts
from .codec_flink import FlinkCodec, head_of, positive, route_of, tail_of
from .flink_compression import inflate
from .flink_errors import read_error
from .flink_layout import (
    BUFFER,
    DATA_TYPES,
    FROM_PRODUCER,
    INT,
    INT_AND_ID,
    KNOWN_BUFFER,
    MAX_INT,
    MAX_PARTS,
    PLAIN_BUFFER,
    PLAIN_DATA,
    PREFIX,
    REQUEST,
    SEGMENT,
    TASK_EVENT_TARGET,
    Kind,
    malformed,
    parse_prefix,
    partition_bytes,
    whole_frame,
)
from .frames import (
    Acknowledge,
    AddCredit,
    BacklogAnnouncement,
    CancelChannel,
    ChannelError,
    ConnectionFailure,
    Frame,
    Goodbye,
    NewBufferSize,
    OpenChannel,
    Resume,
    SegmentRequest,
    TaskEvent,
)

MAX_ERROR_BYTES: Final = 256 * 1024
"""A stack trace has 2 to 4 KiB, and several times that with its causes."""

_BUFFER_BYTES: Final = BUFFER.size
_BUFFER_FRAME: Final = FrameKind.BUFFER
_DATA: Final = int(DataType.DATA)
_unpack_plain: Final = PLAIN_BUFFER.unpack_from
_unpack_known: Final = KNOWN_BUFFER.unpack_from
_MAX_KNOWN: Final = 4096  # pairs of channel and length whose headers are cached


@final
class FlinkConsumerCodec(FlinkCodec):
    """The codec of a dialled connection: writes requests, reads buffers."""

    repeats_cancel = True

    def __init__(self, new_id: Callable[[], bytes], segment_size_bytes: int) -> None:
        """Starts without channels.

        Args:
            new_id: returns 16 random bytes.
            segment_size_bytes: size limit of a decompressed buffer.
        """
        super().__init__()
        self.header_bytes = _BUFFER_BYTES
        self.max_control_bytes = MAX_ERROR_BYTES
        self.max_split_bytes = MAX_PARTS * INT.size
        self._new_id = new_id
        self._inflate = functools.partial(inflate, max_bytes=segment_size_bytes)
        self._by_route: dict[bytes, int] = {}
        """Channels by the header bytes that all of their plain buffers share."""
        self._known: dict[bytes, tuple[int, int, bytes]] = {}
        """Channel, length and last field of checked headers, by their first field."""

    def encode_control(self, frame: Frame) -> bytes:
        """Encodes a consumer's frame. The first `OpenChannel` of a channel assigns its id."""
        ids = self.ids
        match frame:
            case AddCredit(pairs):
                return b"".join(
                    whole_frame(Kind.ADD_CREDIT, INT_AND_ID.pack(min(credit, MAX_INT), ids.id_of(channel)))
                    for channel, credit in pairs
                )
            case OpenChannel(channel, partition_id, first, credit, count):
                partition = partition_bytes(partition_id)
                if not ids.has(channel):
                    channel_id = self._new_id()
                    ids.bind(channel, channel_id)
                    self._by_route[route_of(channel_id, first)] = channel
                # Without credit-based flow control the initial credit exceeds the field.
                body = REQUEST.pack(partition, first, first + count - 1, ids.id_of(channel), min(credit, MAX_INT))
                return whole_frame(Kind.PARTITION_REQUEST, body)
            case Resume(channel):
                return whole_frame(Kind.RESUME_CONSUMPTION, ids.id_of(channel))
            case Acknowledge(channel):
                return whole_frame(Kind.ACK_ALL_USER_RECORDS_PROCESSED, ids.id_of(channel))
            case CancelChannel(channel):
                return whole_frame(Kind.CANCEL_PARTITION_REQUEST, ids.id_of(channel))
            case NewBufferSize(channel, size):
                return whole_frame(Kind.NEW_BUFFER_SIZE, INT_AND_ID.pack(size, ids.id_of(channel)))
            case SegmentRequest(channel, subpartition, segment):
                return whole_frame(Kind.SEGMENT_ID, SEGMENT.pack(subpartition, segment, ids.id_of(channel)))
            case TaskEvent(channel, partition_id, event):
                body = flink_events.encode_exact(flink_events.from_native(event))
                target = TASK_EVENT_TARGET.pack(partition_bytes(partition_id), ids.id_of(channel))
                return whole_frame(Kind.TASK_EVENT_REQUEST, INT.pack(len(body)) + body + target)
            case Goodbye():
                return whole_frame(Kind.CLOSE_REQUEST, b"")
            case _:
                return b""

    def header_length(self, data: memoryview, offset: int) -> int:
        """47 for a BufferResponse, 9 for everything else."""
        _, kind = parse_prefix(data, offset, FROM_PRODUCER)
        return _BUFFER_BYTES if kind is Kind.BUFFER_RESPONSE else PREFIX.size

    def parse_header(self, data: memoryview, offset: int) -> HeaderFields:
        """Parses the header of a producer's frame."""
        try:
            head, sequence, backlog, tail = _unpack_known(data, offset)
            channel, size, right = self._known[head]
        except (KeyError, struct.error):  # a new length, another kind of frame, or the end of the slab
            return self._parse_plain(data, offset)
        if tail == right and backlog <= 0x7FFFFFFF:
            return _BUFFER_FRAME, size, 1, channel, sequence, backlog, 0
        return self._parse_other(data, offset)

    def decode_control(self, control_type: int, channel: int, payload: bytes) -> Frame | None:
        """Decodes a producer's frame other than a buffer."""
        if control_type == Kind.ERROR_RESPONSE:
            number, code, name = read_error(payload, self.ids.number_of)
            text = f"the producer answered with {name}"
            if number is None:
                return ConnectionFailure(code, f"{text} for the whole connection")
            return ChannelError(number, code, f"{text} for this channel")
        try:
            backlog, channel_id = INT_AND_ID.unpack(payload)
            positive(backlog, "backlog")
        except (struct.error, ValueError) as error:
            raise malformed(f"a BACKLOG_ANNOUNCEMENT with {len(payload)} bytes: {error}") from error
        number = self.ids.number_of(channel_id)
        return None if number is None else BacklogAnnouncement(number, backlog)

    def split(self, described: int, payload: memoryview) -> Parts:
        """Splits the payload: the sizes, then the buffers."""
        count, is_compressed = described >> 1, described & 1
        body = payload[count * INT.size :]
        sizes = struct.unpack_from(f">{count}i", payload) if count else (len(body),)
        if min(sizes) < 0 or sum(sizes) != len(body):
            raise malformed(
                f"a BUFFER_RESPONSE of {count} parts with {sum(sizes)} bytes in total, the smallest with {min(sizes)};"
                f" it has {len(body)} bytes"
            )
        return Parts(body, sizes, self._inflate if is_compressed else None)

    def _parse_plain(self, data: memoryview, offset: int) -> HeaderFields:
        """Parses and caches the header of a plain data buffer, usually of a new length."""
        if len(data) - offset >= _BUFFER_BYTES:
            length, route, sequence, backlog, described, size = _unpack_plain(data, offset)
            channel = self._by_route.get(route)
            is_plain = described == PLAIN_DATA and length == _BUFFER_BYTES + size and backlog <= MAX_INT
            if channel is not None and is_plain:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[head_of(route, size)] = channel, size, tail_of(size)
                return _BUFFER_FRAME, size, _DATA, channel, sequence, backlog, 0
        return self._parse_other(data, offset)

    def _parse_other(self, data: memoryview, offset: int) -> HeaderFields:
        """Parses any header except those of plain data buffers of a channel in its own subpartition."""
        length, kind = parse_prefix(data, offset, FROM_PRODUCER)
        if kind is not Kind.BUFFER_RESPONSE:
            return FrameKind.CONTROL, length - PREFIX.size, kind, 0, 0, 0, 0
        _, _, _, channel_id, _, parts, sequence, backlog, code, compressed, size = BUFFER.unpack_from(data, offset)
        data_type = DATA_TYPES.get(code)
        if (
            data_type is None
            or not 0 <= parts <= MAX_PARTS
            or backlog > MAX_INT
            or compressed > 1
            or (compressed and data_type is not DataType.DATA)
            or length != _BUFFER_BYTES + parts * INT.size + size
        ):
            _refuse(code, parts, backlog, compressed, size, length)
        number = self.ids.number_of(channel_id)
        if number is None:
            raise RemoteProtocolError(
                ErrorCode.UNKNOWN_CHANNEL,
                f"a BUFFER_RESPONSE for channel {channel_id.hex()}, which was never opened",
            )
        if parts or compressed:
            described = parts << 1 | compressed
            return FrameKind.COMPOSITE, length - _BUFFER_BYTES, data_type, number, sequence, backlog, described
        return FrameKind.BUFFER, size, data_type, number, sequence, backlog, 0


def _refuse(code: int, parts: int, backlog: int, compressed: int, size: int, length: int) -> NoReturn:
    backlog -= 2**32 if backlog > MAX_INT else 0
    raise malformed(
        f"a BUFFER_RESPONSE of {length} bytes with data type {code}, {parts} parts, backlog {backlog}, compressed"
        f" {compressed}, size {size}: data types are 1 to 13, parts 0 to {MAX_PARTS}, only data is compressed, and the"
        f" length is {BUFFER.size} + {INT.size} a part + size"
    )
