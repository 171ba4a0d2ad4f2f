"""FlinkProducerCodec, the producing side of Flink's dialect: reads requests, writes buffers (`codec_flink`).

Takes: frames of a consumer; buffers, events and errors to send. Gives: frames, and bytes.
"""

from __future__ import annotations

import struct
from typing import Final, final

from ...base.errors import LocalProtocolError
from ...base.events import DataType, decode_event
from ..buffer.stored import PART_HEADER, Packaging, StoredBuffer
from . import flink_events
from .codec import FrameKind, HeaderFields
from .codec_flink import MAX_EVENT_BYTES, FlinkCodec, head_of, id_in, positive, route_of, tail_of
from .flink_compression import compression_header
from .flink_errors import write_error
from .flink_layout import (
    ALIGNED_WATERMARK,
    BUFFER,
    FROM_CONSUMER,
    INT,
    INT_AND_ID,
    KNOWN_BUFFER,
    MAGIC,
    PLAIN_BUFFER,
    PLAIN_DATA,
    PREFIX,
    RECOVERY_COMPLETION,
    REQUEST,
    ROUTE,
    SEGMENT,
    TASK_EVENT_TARGET,
    UNALIGNED_WATERMARK,
    Kind,
    malformed,
    parse_prefix,
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
    UnknownChannel,
)

_BUFFER_BYTES: Final = BUFFER.size
_STORED: Final = DataType.STORED_DATA
_pack_plain: Final = PLAIN_BUFFER.pack
_pack_known: Final = KNOWN_BUFFER.pack


@final
class FlinkProducerCodec(FlinkCodec):
    """The codec of an accepted connection: reads requests, writes buffers."""

    blames_connection = True

    def __init__(self, segment_size_bytes: int) -> None:
        """Starts without channels.

        Args:
            segment_size_bytes: the usual buffer size.
        """
        super().__init__()
        self.header_bytes = PREFIX.size
        self.max_control_bytes = INT.size + MAX_EVENT_BYTES + TASK_EVENT_TARGET.size
        self._whole_bytes = segment_size_bytes
        self._whole_tail = tail_of(segment_size_bytes)
        self._heads: dict[int, bytes] = {}  # by channel: the first header bytes of its full buffers

    @property
    def packaging(self) -> Packaging:
        """Several buffers in a frame, as in Flink."""
        return Packaging.GLUED

    def encode_buffer_header(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, length: int, checksum: int
    ) -> bytes:
        """Encodes the 47 bytes in front of a data buffer."""
        if length == self._whole_bytes:
            return _pack_known(self._heads[channel], sequence & 0xFFFFFFFF, backlog, self._whole_tail)
        return _pack_plain(
            _BUFFER_BYTES + length, self._heads[channel][INT.size :], sequence & 0xFFFFFFFF, backlog, PLAIN_DATA, length
        )

    def encode_event(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, payload: bytes
    ) -> tuple[bytes, bytes]:
        """Encodes an event: the header, and Flink's bytes."""
        event = _flink_event(payload)
        body = flink_events.encode(event)
        code = int(data_type)
        if isinstance(event, flink_events.WatermarkEvent) and data_type is DataType.EVENT:
            code = UNALIGNED_WATERMARK
        elif data_type is DataType.BLOCKING_EVENT:
            is_watermark = isinstance(event, flink_events.WatermarkEvent)
            code = ALIGNED_WATERMARK if is_watermark else RECOVERY_COMPLETION
        header = _pack_plain(
            BUFFER.size + len(body),
            self._heads[channel][INT.size :],
            sequence & 0xFFFFFFFF,
            backlog,
            code << 8,
            len(body),
        )
        return header, body

    def encode_stored(
        self, channel: int, sequence: int, backlog: int, buffer: StoredBuffer
    ) -> list[bytes | memoryview]:
        """Encodes kept buffers as one frame, in pieces: several buffers, a single one, or events.

        Buffers of a sort-merge partition are always counted; if several subpartitions are read, they have no
        subpartition.
        """
        parts: list[bytes | memoryview] = []
        sizes = []
        for part in buffer.parts:
            if buffer.data_type is not _STORED:
                event = flink_events.encode(_flink_event(bytes(part)))
                parts.append(event)
                sizes.append(len(event))
            elif buffer.is_compressed:
                block = part[PART_HEADER.size :]
                original, _ = PART_HEADER.unpack_from(part)
                parts += (compression_header(len(block), original), block)
                sizes.append(len(part))  # both kinds of headers have eight bytes
            else:
                parts.append(part)
                sizes.append(len(part))
        counted = len(sizes) if buffer.is_glued else 0
        subpartition = ROUTE.unpack_from(self._heads[channel], INT.size)[3]
        header = BUFFER.pack(
            _BUFFER_BYTES + INT.size * counted + sum(sizes),
            MAGIC,
            Kind.BUFFER_RESPONSE,
            self.ids.id_of(channel),
            -1 if buffer.is_range and buffer.is_glued else subpartition,
            counted,
            sequence & 0xFFFFFFFF,
            backlog,
            DataType.DATA if buffer.data_type is _STORED else buffer.data_type,
            buffer.is_compressed,
            sum(sizes),
        )
        return [header + struct.pack(f">{counted}i", *sizes[:counted]), *parts]

    def encode_control(self, frame: Frame) -> bytes:
        """Encodes a producer's frame."""
        match frame:
            case BacklogAnnouncement(channel, backlog):
                return whole_frame(Kind.BACKLOG_ANNOUNCEMENT, INT_AND_ID.pack(backlog, self.ids.id_of(channel)))
            case ChannelError(channel, code, text):
                # Without an id the channel was cancelled meanwhile, and its consumer ignores errors.
                if not self.ids.has(channel):
                    return b""
                return whole_frame(Kind.ERROR_RESPONSE, write_error(code, text, self.ids.id_of(channel)))
            case ConnectionFailure(code, text):
                return whole_frame(Kind.ERROR_RESPONSE, write_error(code, text, None))
            case _:
                return b""

    def parse_header(self, data: memoryview, offset: int) -> HeaderFields:
        """Parses the header of a consumer's frame, which is always control."""
        length, kind = parse_prefix(data, offset, FROM_CONSUMER)
        return FrameKind.CONTROL, length - PREFIX.size, kind, 0, 0, 0, 0

    def decode_control(self, control_type: int, channel: int, payload: bytes) -> Frame | None:
        """Decodes a consumer's frame; None for a cancel or a buffer size of an unknown channel."""
        kind = Kind(control_type)
        try:
            return self._decode(kind, payload)
        except (struct.error, ValueError) as error:
            raise malformed(f"a {kind.name} with {len(payload)} bytes: {error}; {payload[:16].hex()}") from error

    def _decode(self, kind: Kind, body: bytes) -> Frame | None:
        match kind:
            case Kind.PARTITION_REQUEST:
                return self._decode_request(body)
            case Kind.TASK_EVENT_REQUEST:
                return self._decode_task_event(body)
            case Kind.CLOSE_REQUEST:
                if body:
                    raise ValueError("it has no body")
                return Goodbye()
            case Kind.ADD_CREDIT:
                credit, channel_id = INT_AND_ID.unpack(body)
                positive(credit, "credit")
                number = self.ids.number_of(channel_id)
                return _stranger(kind, channel_id) if number is None else AddCredit(((number, credit),))
            case Kind.NEW_BUFFER_SIZE:
                size, channel_id = INT_AND_ID.unpack(body)
                number = self.ids.number_of(channel_id)
                return None if number is None else NewBufferSize(number, positive(size, "size"))
            case Kind.SEGMENT_ID:
                subpartition, segment, channel_id = SEGMENT.unpack(body)
                number = self.ids.number_of(channel_id)
                return None if number is None else SegmentRequest(number, subpartition, positive(segment, "segment"))
            case Kind.CANCEL_PARTITION_REQUEST:
                number = self.ids.number_of(id_in(body))
                if number is None:
                    return None
                self.ids.forget(number)
                self._heads.pop(number, None)  # absent for a channel that only a task event named
                return CancelChannel(number)
            case Kind.RESUME_CONSUMPTION:
                number = self.ids.number_of(id_in(body))
                return _stranger(kind, body) if number is None else Resume(number)
            case Kind.ACK_ALL_USER_RECORDS_PROCESSED:
                number = self.ids.number_of(id_in(body))
                return _stranger(kind, body) if number is None else Acknowledge(number)
            case _:
                raise ValueError("only a producer sends it")

    def _decode_request(self, body: bytes) -> OpenChannel:
        partition, first, last, channel_id, credit = REQUEST.unpack(body)
        if not 0 <= first <= last or credit < 0:
            raise ValueError(f"subpartitions {first} to {last} with a credit of {credit}")
        number = self.ids.number_for(channel_id)
        self._heads[number] = head_of(route_of(channel_id, first), self._whole_bytes)
        return OpenChannel(number, partition.hex(), first, credit, last - first + 1)

    def _decode_task_event(self, body: bytes) -> TaskEvent:
        (length,) = INT.unpack_from(body)
        target = body[INT.size + max(length, 0) :]
        if length < 0 or len(target) != TASK_EVENT_TARGET.size:
            raise ValueError(f"an event of {length} bytes")
        partition, channel_id = TASK_EVENT_TARGET.unpack(target)
        event = flink_events.to_native(flink_events.decode(body[INT.size : INT.size + length]))
        return TaskEvent(self.ids.number_for(channel_id), partition.hex(), event)


def _flink_event(payload: bytes) -> flink_events.FlinkEvent:
    """Maps a native event to Flink's."""
    try:
        return flink_events.from_native(decode_event(payload))
    except ValueError as error:
        raise LocalProtocolError(f"the event does not fit Flink's protocol: {error}") from error


def _stranger(kind: Kind, channel_id: bytes) -> UnknownChannel:
    return UnknownChannel(f"{kind.name} for channel {channel_id.hex()}, which is not open here")
