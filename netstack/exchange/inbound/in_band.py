"""Checks in-band events on arrival: their data type, the bytes that may be queued, and the errors of a faulty producer.

Takes: bytes of an event, numbers of buffers. Gives: the event, or the error that fails the channel.
"""

from __future__ import annotations

from typing import Final

from ...base.errors import ChannelFailed, ErrorCode, RemoteProtocolError, channel_error
from ...base.events import DataType, EndOfData, EndOfPartition, Event, decode_event

_END_TYPES: Final = {EndOfData: DataType.END_OF_DATA, EndOfPartition: DataType.END_OF_PARTITION}
"""Gates count these events by data type and decode their bytes, so both must agree."""

MAX_WAITING_EVENT_BYTES: Final = 16 * 1024 * 1024
EVENT_OVERHEAD_BYTES: Final = 100
"""Events need no credit, so this bound keeps a hostile producer from filling memory: 160,000 small events."""


def read_event(payload: bytes, data_type: DataType, backlog: int, channel: object) -> Event:
    """Decodes and checks the event in a frame.

    Raises:
        ChannelFailed: malformed, or not allowed under this data type.
    """
    try:
        event = decode_event(payload)
    except RemoteProtocolError as error:
        raise ChannelFailed(error.code, error.text, channel=str(channel)) from error
    if _END_TYPES.get(type(event)) is not (data_type if data_type in _END_TYPES.values() else None):
        raise ChannelFailed(
            ErrorCode.MALFORMED_FRAME,
            f"event {type(event).__name__} came under data type {data_type.name}; its producer is faulty",
            channel=str(channel),
        )
    if backlog and data_type.blocks_upstream:
        raise ChannelFailed(
            ErrorCode.MALFORMED_FRAME,
            f"{data_type.name} came with backlog {backlog}, but only a resume may be followed by data; its producer is"
            " faulty",
            channel=str(channel),
        )
    return event


def too_many_events(channel: object) -> ChannelFailed:
    """The error of a channel with too many bytes of queued events."""
    return ChannelFailed(
        ErrorCode.CREDIT_VIOLATION,
        f"more than {MAX_WAITING_EVENT_BYTES} bytes of events wait to be read; send large data as records",
        channel=str(channel),
    )


def compressed_checkpoint(channel: object) -> ChannelFailed:
    """The error of a channel with compressed data in a checkpoint, which cannot store it."""
    return ChannelFailed(
        ErrorCode.UNEXPECTED_FRAME,
        "compressed buffers cannot be part of a checkpoint, but a barrier may overtake them; switch compression off",
        channel=str(channel),
    )


def without_credit(sequence: int, channel: object) -> ChannelFailed:
    """The error of a data buffer without credit."""
    return ChannelFailed(
        ErrorCode.CREDIT_VIOLATION,
        f"a data buffer came (sequence {sequence}) although the producer had no credit left",
        channel=str(channel),
    )


def out_of_sequence(expected: int, sequence: int, channel: object) -> ChannelFailed:
    """The error of an unexpected sequence number."""
    return channel_error(
        ErrorCode.SEQUENCE_GAP,
        f"expected buffer {expected}, got {sequence}: a buffer was lost or repeated",
        channel=str(channel),
    )
