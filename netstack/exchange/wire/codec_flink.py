"""The layout of Flink 2.3.0's protocol between TaskManagers, mapped to our frames.

Takes: frames, events and fields. Gives: bytes, and back. Each connection has its own codec: a producer's
(`flink_producer`) if it was accepted, a consumer's (`flink_consumer`) if it was dialled. This module has their common
part.

| Flink | here |
|---|---|
| PartitionRequest | OpenChannel; partition id in hex |
| BufferResponse | buffer header, event, or `Parts` |
| AddCredit, ResumeConsumption, AckAllUserRecordsProcessed | AddCredit (one pair each), Resume, Acknowledge |
| CancelPartitionRequest, CloseRequest | CancelChannel, Goodbye |
| NewBufferSize, BacklogAnnouncement, SegmentId | NewBufferSize, BacklogAnnouncement, SegmentRequest |
| TaskEventRequest | TaskEvent |
| ErrorResponse | ChannelError, or ConnectionFailure if it is fatal |

There is no hello, no ping and no goodbye of a producer; those frames are encoded as no bytes. Flink overlooks a cancel
of a request that is still waiting for its partition, so cancels are repeated. Credit, resumes and acknowledgements for
channels that were never opened have no number here, and become an UnknownChannel.
"""

from __future__ import annotations

import struct
from typing import Final

from ...base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from ...base.events import DataType, EndOfData, EndOfPartition, encode_event
from . import flink_events
from .codec import Codec, Parts
from .flink_channels import ChannelIds
from .flink_layout import BUFFER, ID_BYTES, INT, MAGIC, PLAIN_DATA, PREFIX, ROUTE, Kind, malformed

MAX_EVENT_BYTES: Final = 16 * 1024
"""A limit of ours; Flink has none, but its events are tens of bytes long."""


class FlinkCodec(Codec):
    """The common part of both sides: the table of channels, and no greeting."""

    has_hello = False
    has_heartbeat = False
    has_goodbye = False
    takes_credit_back = False

    def __init__(self) -> None:
        """Starts without channels."""
        self.control_header_bytes = PREFIX.size
        self.max_event_bytes = MAX_EVENT_BYTES
        self.ids = ChannelIds()
        """The ids of the channels, by number."""

    def encode_buffer_header(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, length: int, checksum: int
    ) -> bytes:
        """Raises; overridden by the side that sends buffers."""
        raise LocalProtocolError(f"a consumer sends no buffers (channel {channel})")

    def encode_event(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, payload: bytes
    ) -> tuple[bytes, bytes]:
        """Raises; overridden by the side that sends events in-band."""
        raise LocalProtocolError(f"a consumer sends no in-band events (channel {channel})")

    def header_length(self, data: memoryview, offset: int) -> int:
        """Always 9; overridden by the side that receives buffers."""
        return PREFIX.size

    def decode_event(self, data_type: DataType, payload: bytes) -> tuple[DataType, bytes]:
        """Decodes an event to its native bytes; the end events get data types of their own, as in Flink."""
        event = flink_events.to_native(flink_events.decode(payload))
        if data_type is DataType.EVENT:
            if isinstance(event, EndOfData):
                data_type = DataType.END_OF_DATA
            elif isinstance(event, EndOfPartition):
                data_type = DataType.END_OF_PARTITION
        try:
            return data_type, encode_event(event)
        except ValueError as error:
            raise malformed(str(error)) from error

    def split(self, described: int, payload: memoryview) -> Parts:
        """Raises; overridden by the side that receives buffers."""
        raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, "a consumer does not send buffers")


def route_of(channel_id: bytes, subpartition: int) -> bytes:
    """The part of the header that all plain buffers of a channel share."""
    return ROUTE.pack(MAGIC, Kind.BUFFER_RESPONSE, channel_id, subpartition, 0)


def head_of(route: bytes, length: int) -> bytes:
    """The first of two header fields that all plain data buffers of a channel and length share."""
    return INT.pack(BUFFER.size + length) + route


def tail_of(length: int) -> bytes:
    """The second of the two fields (`head_of`)."""
    return struct.pack(">HI", PLAIN_DATA, length)


def id_in(body: bytes) -> bytes:
    """Checks that a body is one id, and returns it. Raises ValueError if it does not have 16 bytes."""
    if len(body) != ID_BYTES:
        raise ValueError("an id has 16 bytes")
    return body


def positive(value: int, what: str) -> int:
    """Checks that `value` is above 0, and returns it. Raises ValueError if it is not above 0."""
    if value <= 0:
        raise ValueError(f"{what} {value}; the minimum is 1")
    return value
