"""In-band events as they arrive: what may come under which data type, how much of it may wait, and what is refused.

Takes: bytes of an event, numbers of buffers. Gives: the event; the error that ends a channel whose producer is faulty.
"""

from __future__ import annotations

from typing import Final

from ..errors import ChannelFailed, ErrorCode, RemoteProtocolError, channel_error
from ..events import DataType, EndOfData, EndOfPartition, Event, decode_event

_END_TYPES: Final = {EndOfData: DataType.END_OF_DATA, EndOfPartition: DataType.END_OF_PARTITION}
"""Gates count these by their data type and read their bytes, so the two have to agree."""

MAX_WAITING_EVENT_BYTES: Final = 16 * 1024 * 1024
EVENT_OVERHEAD_BYTES: Final = 100
"""Events cost no credit, so a bound of their own keeps a hostile producer from filling memory: 160,000 small ones."""


def read_event(payload: bytes, data_type: DataType, backlog: int, channel: object) -> Event:
    """The event in a frame.

    Args:
        payload: its bytes.
        data_type: what it came under.
        backlog: what the producer says is waiting behind it.
        channel: for the message.

    Raises:
        ChannelFailed: it is no event, or not one that may come so.
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
            f"{data_type.name} came with backlog {backlog}, but nothing follows it until a resume; its producer is"
            " faulty",
            channel=str(channel),
        )
    return event


def too_many_events(channel: object) -> ChannelFailed:
    """More of them wait than may."""
    return ChannelFailed(
        ErrorCode.CREDIT_VIOLATION,
        f"more than {MAX_WAITING_EVENT_BYTES} bytes of events wait to be read; send what is large as records",
        channel=str(channel),
    )


def compressed_checkpoint(channel: object) -> ChannelFailed:
    """What is compressed cannot be kept for a checkpoint."""
    return ChannelFailed(
        ErrorCode.UNEXPECTED_FRAME,
        "compressed buffers and a barrier that may overtake them on one channel; switch the compression off",
        channel=str(channel),
    )


def without_credit(sequence: int, channel: object) -> ChannelFailed:
    """A data buffer came that had no place."""
    return ChannelFailed(
        ErrorCode.CREDIT_VIOLATION,
        f"a data buffer came (sequence {sequence}) although the producer had no credit left",
        channel=str(channel),
    )


def out_of_sequence(expected: int, sequence: int, channel: object) -> ChannelFailed:
    """Another buffer was expected."""
    return channel_error(
        ErrorCode.SEQUENCE_GAP,
        f"expected buffer {expected}, got {sequence}: a buffer was lost or repeated",
        channel=str(channel),
    )
