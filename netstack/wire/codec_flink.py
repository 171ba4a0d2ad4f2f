"""The layout of Flink 2.3.0: what a Flink task manager says and understands, as the frames everything else speaks.

Takes: frames, events and fields. Gives: bytes, and back. One object for one connection: a producer's codec
(`flink_producer`) for one that was accepted, a consumer's (`flink_consumer`) for one that was dialled; this module is
what both have in common.

| Flink | here |
|---|---|
| PartitionRequest | OpenChannel; partition id in hex |
| BufferResponse | buffer header, event, or `Parts` |
| AddCredit, ResumeConsumption, AckAllUserRecordsProcessed | AddCredit (one pair each), Resume, Acknowledge |
| CancelPartitionRequest, CloseRequest | CancelChannel, Goodbye |
| NewBufferSize, BacklogAnnouncement, SegmentId | NewBufferSize, BacklogAnnouncement, SegmentRequest |
| TaskEventRequest | TaskEvent |
| ErrorResponse | ChannelError, or ConnectionFailure if it is fatal |

There is no hello, no ping and no goodbye of a producer; those frames have no bytes. A cancel that finds its request
parked is overlooked by Flink, so it is said again. Credit, resumes and acknowledgements for channels that were never
asked for have nobody's number, and become an UnknownChannel.
"""

from __future__ import annotations

import struct
from typing import Final

from ..errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from ..events import DataType, EndOfData, EndOfPartition, encode_event
from . import flink_events
from .codec import Codec, Parts
from .flink_channels import ChannelIds
from .flink_layout import BUFFER, ID_BYTES, INT, MAGIC, PLAIN_DATA, PREFIX, ROUTE, Kind, malformed

MAX_EVENT_BYTES: Final = 16 * 1024
"""Flink has no bound; its events have tens of bytes."""


class FlinkCodec(Codec):
    """What both sides have in common: the table of channels, and sessions without ceremony."""

    has_hello = False
    has_heartbeat = False
    has_goodbye = False
    takes_credit_back = False

    def __init__(self) -> None:
        """Knows no channel."""
        self.control_header_bytes = PREFIX.size
        self.max_event_bytes = MAX_EVENT_BYTES
        self.ids = ChannelIds()
        """The names of the channels, by number."""

    def encode_buffer_header(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, length: int, checksum: int
    ) -> bytes:
        """Overridden by the side that sends buffers."""
        raise LocalProtocolError(f"a consumer has no buffers to send (channel {channel})")

    def encode_event(
        self, channel: int, data_type: DataType, sequence: int, backlog: int, payload: bytes
    ) -> tuple[bytes, bytes]:
        """Overridden by the side that sends events in-band."""
        raise LocalProtocolError(f"a consumer has no in-band events to send (channel {channel})")

    def header_length(self, data: memoryview, offset: int) -> int:
        """Overridden by the side that gets buffers."""
        return PREFIX.size

    def decode_event(self, data_type: DataType, payload: bytes) -> tuple[DataType, bytes]:
        """The native bytes of an event. The ends have bytes of their own, as in Flink."""
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
        """Overridden by the side that gets buffers."""
        raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, "a consumer does not send buffers")


def route_of(channel_id: bytes, subpartition: int) -> bytes:
    """What is the same in the headers of all plain buffers of a channel."""
    return ROUTE.pack(MAGIC, Kind.BUFFER_RESPONSE, channel_id, subpartition, 0)


def head_of(route: bytes, length: int) -> bytes:
    """The first of the two fields that all plain data buffers of a channel and length have alike in their headers."""
    return INT.pack(BUFFER.size + length) + route


def tail_of(length: int) -> bytes:
    """The second of them."""
    return struct.pack(">HI", PLAIN_DATA, length)


def id_in(body: bytes) -> bytes:
    """The id that is all of a body.

    Raises:
        ValueError: it is not.
    """
    if len(body) != ID_BYTES:
        raise ValueError("an id has 16 bytes")
    return body


def positive(value: int, what: str) -> int:
    """`value`.

    Raises:
        ValueError: it is not above 0.
    """
    if value <= 0:
        raise ValueError(f"{what} {value}; at least 1 is expected")
    return value
