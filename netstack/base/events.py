"""Control events that travel in-band, in order with the records of a subpartition, each in a buffer of its own.

Takes: event objects. Gives: their native encoding and back (`exchange/wire/SPEC.md`, section 5).

Events use neither credit nor pool segments. Encoding: one byte for the type, then the fields, big-endian.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TypeAlias

from .errors import ConfigError, ErrorCode, RemoteProtocolError
from .text.safe_text import safe_repr


class DataType(enum.IntEnum):
    """The content of a buffer; part of the header of every DATA frame."""

    DATA = 1
    EVENT = 2
    PRIORITY_EVENT = 3
    ALIGNED_BARRIER = 4
    """An event after which the subpartition blocks until the consumer resumes it."""
    TIMEOUTABLE_ALIGNED_BARRIER = 5
    ANNOUNCEMENT = 6
    """Never on the wire: an input channel announces a queued barrier with an alignment timeout ahead of its turn."""
    END_OF_DATA = 9
    END_OF_PARTITION = 10
    BLOCKING_EVENT = 12
    """An event other than a barrier after which the subpartition blocks. Not in the native protocol."""
    STORED_DATA = 14
    """Never on the wire: data buffers in their file encoding (`exchange.buffer.stored`), which the codec sends
    unchanged.
    """

    # Attributes rather than properties: every event reads them, and a property of an enum costs a call.

    is_data: bool
    """Whether it is a data buffer, which costs credit and counts in the backlog."""
    has_priority: bool
    """Whether it overtakes data."""
    blocks_upstream: bool
    """Whether the subpartition stops after this buffer until the consumer resumes it."""

    def __init__(self, value: int) -> None:
        self.is_data = value == 1
        self.has_priority = value in (3, 6)
        self.blocks_upstream = value in (4, 5, 12)


class Alignment(enum.IntEnum):
    """How a consumer handles a checkpoint barrier."""

    AT_LEAST_ONCE = 0
    ALIGNED = 1
    UNALIGNED = 2
    FORCED_ALIGNED = 3


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The last event of a channel."""


@dataclass(frozen=True, slots=True)
class EndOfData:
    """All records have been sent. `drain` is True if the job ends for good, False if it stops with a savepoint."""

    drain: bool = True


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Separates the records of a checkpoint from the records after it.

    Attributes:
        checkpoint_id: increases from checkpoint to checkpoint.
        timestamp_ns: when the coordinator triggered the checkpoint, by its own clock; informative only.
        alignment: how consumers handle the barrier.
        aligned_timeout_ns: for ALIGNED, the checkpoint age at which the barrier becomes unaligned; 0 means never.
        elapsed_ns: the age of the checkpoint when the barrier was sent: the time spent in tasks and their queues, each
            part measured by one process's clock. So no clocks of two hosts are compared; network delay is not included.
    """

    checkpoint_id: int
    timestamp_ns: int = 0
    alignment: Alignment = Alignment.ALIGNED
    aligned_timeout_ns: int = 0
    elapsed_ns: int = 0


@dataclass(frozen=True, slots=True)
class CancelCheckpointMarker:
    """Aborts a checkpoint: consumers stop waiting for its barriers."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class UserEvent:
    """An application event: a short name and a payload, delivered in order with the records."""

    name: str
    payload: bytes = b""


Event: TypeAlias = EndOfPartition | EndOfData | CheckpointBarrier | CancelCheckpointMarker | UserEvent
"""What a reader yields beside records; `isinstance(item, Event)` tells them apart."""

_BARRIER = struct.Struct(">BqqBqq")
_CANCEL = struct.Struct(">Bq")
_USER = struct.Struct(">BB")

_END_OF_PARTITION = 0
_CHECKPOINT_BARRIER = 1
_USER_EVENT = 3
_CANCEL_CHECKPOINT = 4
_END_OF_DATA = 8


MAX_EVENT_BYTES = 16 * 1024
"""The largest event that a receiver accepts (`exchange/wire/SPEC.md`, section 2): events cost no credit, so they must
be small.
"""


def encode_event(event: Event) -> bytes:
    """Returns the native encoding of an event.

    Raises:
        ConfigError: an attribute has the wrong type or is out of range, or a `UserEvent` is too long.
    """
    try:
        return _encoded(event)
    except ConfigError:
        raise
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{safe_repr(event, 120)} cannot be sent: {error}; the numbers of a barrier are int of 64 bits, the name of"
            " a UserEvent is str, its payload bytes"
        ) from error


def _encoded(event: Event) -> bytes:
    if isinstance(event, EndOfPartition):
        return bytes((_END_OF_PARTITION,))
    if isinstance(event, EndOfData):
        return bytes((_END_OF_DATA, int(event.drain)))
    if isinstance(event, CheckpointBarrier):
        return _BARRIER.pack(
            _CHECKPOINT_BARRIER,
            event.checkpoint_id,
            event.timestamp_ns,
            Alignment(event.alignment),
            event.aligned_timeout_ns,
            event.elapsed_ns,
        )
    if isinstance(event, CancelCheckpointMarker):
        return _CANCEL.pack(_CANCEL_CHECKPOINT, event.checkpoint_id)
    name = event.name.encode()
    if len(name) > 255:
        raise ConfigError(f"user event name of {len(name)} bytes; 255 is the most")
    data = _USER.pack(_USER_EVENT, len(name)) + name + event.payload
    if len(data) > MAX_EVENT_BYTES:
        raise ConfigError(
            f"user event {event.name[:40]!r} of {len(data)} bytes; {MAX_EVENT_BYTES} is the most: send it as a record"
        )
    return data


def decode_event(data: bytes | memoryview) -> Event:
    """Decodes an event. Raises RemoteProtocolError if the type is unknown, or the length does not fit the type."""
    raw = bytes(data)
    kind = raw[0] if raw else -1
    try:
        if kind == _END_OF_PARTITION and len(raw) == 1:
            return EndOfPartition()
        if kind == _END_OF_DATA and len(raw) == 2 and raw[1] <= 1:
            return EndOfData(drain=bool(raw[1]))
        if kind == _CHECKPOINT_BARRIER:
            _, checkpoint, timestamp, alignment, timeout, elapsed = _BARRIER.unpack(raw)
            return CheckpointBarrier(checkpoint, timestamp, Alignment(alignment), timeout, elapsed)
        if kind == _CANCEL_CHECKPOINT:
            return CancelCheckpointMarker(_CANCEL.unpack(raw)[1])
        if kind == _USER_EVENT:
            size = raw[1]
            if len(raw) >= 2 + size:
                return UserEvent(raw[2 : 2 + size].decode(), raw[2 + size :])
    except (struct.error, ValueError, IndexError) as error:
        raise RemoteProtocolError(
            ErrorCode.MALFORMED_FRAME, f"event of type {kind} with {len(raw)} bytes: {error}"
        ) from error
    raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"unknown event: type {kind}, {len(raw)} bytes")


def data_type_of(event: Event, *, priority: bool = False) -> DataType:
    """Returns the buffer type with which an event is sent.

    An aligned barrier blocks its subpartition, so that no data behind it occupies receive buffers; an unaligned barrier
    is a priority event. `priority` makes any other event a priority event.
    """
    if isinstance(event, EndOfPartition):
        return DataType.END_OF_PARTITION
    if isinstance(event, EndOfData):
        return DataType.END_OF_DATA
    if priority:
        return DataType.PRIORITY_EVENT
    if isinstance(event, CheckpointBarrier):
        if event.alignment is Alignment.UNALIGNED:
            return DataType.PRIORITY_EVENT
        if event.alignment in (Alignment.ALIGNED, Alignment.FORCED_ALIGNED):
            if event.alignment is Alignment.ALIGNED and event.aligned_timeout_ns > 0:
                return DataType.TIMEOUTABLE_ALIGNED_BARRIER
            return DataType.ALIGNED_BARRIER
    return DataType.EVENT
