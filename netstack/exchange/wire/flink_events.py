"""Events of Flink 2.3.0: their bytes with the padding, and their mapping to our events.

Takes: bytes, or events. Gives: the other of the two.

There are two steps. `decode` and `encode` handle every event and every field. `to_native` and `from_native` map them to
our events: ends, barriers and cancel markers have classes here; every other event becomes a `UserEvent` with the name
of Flink's class and, as payload, the bytes behind the type. A barrier loses that it belongs to a savepoint, and the
savepoint's location.

Rules: bytes behind an event are ignored. Written events are padded as Flink pads them: it sends the whole array that an
event was written into. Times are in milliseconds there and in nanoseconds here. The age of a barrier is not sent, since
Flink compares clocks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Final, TypeAlias, assert_never

from ...base.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Event,
    UserEvent,
)
from .flink_layout import malformed

NO_TIMEOUT_MS: Final = 2**63 - 1
PADDED_BYTES: Final = 128  # initial size of the array that events of any class are written into
MAX_NAME_BYTES: Final = 255  # of a user event here
_NS_PER_MS: Final = 1_000_000
_MAX_MS: Final = (2**63 - 1) // _NS_PER_MS

_TYPE: Final = struct.Struct(">i")
_BARRIER: Final = struct.Struct(">qqb")
_PAIR: Final = struct.Struct(">ii")
_ID: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">H")
_OPTIONS: Final = struct.Struct(">bq")
_BARRIER_ARRAY_BYTES: Final = 38  # plus the location

CHECKPOINT: Final = 0
SAVEPOINT: Final = 1
SUSPEND_SAVEPOINT: Final = 2
TERMINATE_SAVEPOINT: Final = 3
FULL_CHECKPOINT: Final = 4


@dataclass(frozen=True, slots=True)
class Barrier:
    """A checkpoint barrier with all of Flink's fields.

    Attributes:
        timestamp_ms: when it was triggered.
        kind: CHECKPOINT, FULL_CHECKPOINT or one of the savepoints.
        format: of a savepoint: 0 canonical, 1 native; None for a checkpoint.
        location: where to store it; None: the default.
        alignment: how consumers treat it.
        timeout_ms: when an aligned barrier becomes unaligned; `NO_TIMEOUT_MS`: never.
    """

    checkpoint_id: int
    timestamp_ms: int
    kind: int
    format: int | None
    location: bytes | None
    alignment: Alignment
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class EndOfSuperstepEvent:
    """Belongs to iterations over data sets."""


@dataclass(frozen=True, slots=True)
class ClassEvent:
    """An event of any other class: its name, and its bytes with padding of unknown length."""

    name: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class EndOfOutputChannelStateEvent:
    """All data that was in flight at the last checkpoint was sent again."""


@dataclass(frozen=True, slots=True)
class EventAnnouncement:
    """A consumer announces to itself the barrier with this sequence number."""

    sequence: int
    announced: FlinkEvent


@dataclass(frozen=True, slots=True)
class SubtaskConnectionDescriptor:
    """Names the old channel of the buffers that follow, after rescaling."""

    input_subtask: int
    output_subtask: int


@dataclass(frozen=True, slots=True)
class EndOfSegmentEvent:
    """Belongs to tiered storage."""


@dataclass(frozen=True, slots=True)
class RecoveryMetadata:
    """Belongs to tiered storage."""

    subpartition: int


@dataclass(frozen=True, slots=True)
class WatermarkEvent:
    """A user-defined watermark: a number or a boolean."""

    identifier: str
    is_aligned: bool
    value: int | bool


@dataclass(frozen=True, slots=True)
class EndOfInputChannelStateEvent:
    """Internal to a consumer; otherwise like `EndOfOutputChannelStateEvent`."""


_Numbered: TypeAlias = (
    EndOfSuperstepEvent
    | EndOfOutputChannelStateEvent
    | EventAnnouncement
    | SubtaskConnectionDescriptor
    | EndOfSegmentEvent
    | RecoveryMetadata
    | WatermarkEvent
    | EndOfInputChannelStateEvent
)
FlinkEvent: TypeAlias = EndOfPartition | Barrier | ClassEvent | CancelCheckpointMarker | EndOfData | _Numbered

_EMPTY: Final[dict[int, FlinkEvent]] = {
    0: EndOfPartition(),
    2: EndOfSuperstepEvent(),
    5: EndOfOutputChannelStateEvent(),
    9: EndOfSegmentEvent(),
    12: EndOfInputChannelStateEvent(),
}
_TYPES: Final[dict[type[FlinkEvent], int]] = {type(event): number for number, event in _EMPTY.items()} | {
    Barrier: 1,
    ClassEvent: 3,
    CancelCheckpointMarker: 4,
    EventAnnouncement: 6,
    SubtaskConnectionDescriptor: 7,
    EndOfData: 8,
    RecoveryMetadata: 10,
    WatermarkEvent: 11,
}
_NAMED: Final = {
    made.__name__: number
    for made, number in _TYPES.items()
    if made not in (EndOfPartition, Barrier, ClassEvent, CancelCheckpointMarker, EndOfData)
}
"""Type numbers of the events that become `UserEvent`s, by class name."""


def decode(data: bytes) -> FlinkEvent:
    """Decodes the event at the start of `data`.

    Raises:
        RemoteProtocolError: unknown type, a truncated event, or an invalid field.
    """
    try:
        return _decode(data)
    except (struct.error, ValueError, IndexError) as error:
        raise malformed(f"an event of {len(data)} bytes, {data[:40].hex()}: {error}") from error


def encode(event: FlinkEvent) -> bytes:
    """Encodes an event with the padding that a producer sends.

    Raises:
        ValueError: a field is out of range.
    """
    exact = encode_exact(event)
    match event:
        case Barrier():
            return exact.ljust(_BARRIER_ARRAY_BYTES + len(event.location or b""), b"\0")
        case ClassEvent() | WatermarkEvent():
            return exact.ljust(PADDED_BYTES, b"\0")
        case EventAnnouncement(sequence, announced):
            return _PAIR.pack(_TYPES[EventAnnouncement], sequence) + encode(announced)
        case _:
            return exact


def encode_exact(event: FlinkEvent) -> bytes:
    """Encodes an event without padding, as in task events. Raises ValueError if a field is out of range."""
    try:
        return _TYPE.pack(_TYPES[type(event)]) + _encode_fields(event)
    except struct.error as error:
        raise ValueError(f"{event}: {error}") from error


def to_native(event: FlinkEvent) -> Event:
    """Maps an event to ours. Raises RemoteProtocolError if it cannot be mapped."""
    match event:
        case EndOfPartition() | EndOfData() | CancelCheckpointMarker():
            return event
        case Barrier():
            if not -_MAX_MS <= event.timestamp_ms <= _MAX_MS or event.timeout_ms < 0:
                raise malformed(
                    f"a barrier of {event.timestamp_ms} ms with a timeout of {event.timeout_ms} ms; at most {_MAX_MS}"
                )
            return CheckpointBarrier(
                event.checkpoint_id,
                event.timestamp_ms * _NS_PER_MS,
                event.alignment,
                0 if event.timeout_ms > _MAX_MS else event.timeout_ms * _NS_PER_MS,
            )
        case ClassEvent(name, payload):
            if len(name.encode()) > MAX_NAME_BYTES:
                raise malformed(f"an event of class {name[:80]!r}...; a name has at most {MAX_NAME_BYTES} bytes")
            return UserEvent(name, payload)
        case _:
            return UserEvent(type(event).__name__, _encode_fields(event))


def from_native(event: Event) -> FlinkEvent:
    """Maps an event of ours to Flink's.

    Raises:
        ValueError: a user event has the name of one of Flink's events, but another payload.
    """
    match event:
        case EndOfPartition() | EndOfData() | CancelCheckpointMarker():
            return event
        case CheckpointBarrier():
            # Not 0, which means "at once" in Flink; rounded up, so it is not shorter than requested. Flink refuses an
            # unaligned barrier with a timeout, which a timed-out barrier would be.
            has_timeout = event.aligned_timeout_ns and event.alignment is not Alignment.UNALIGNED
            timeout_ms = -(-event.aligned_timeout_ns // _NS_PER_MS) if has_timeout else NO_TIMEOUT_MS
            timestamp_ms = event.timestamp_ns // _NS_PER_MS
            return Barrier(event.checkpoint_id, timestamp_ms, CHECKPOINT, None, None, event.alignment, timeout_ms)
        case UserEvent(name, payload):
            number = _NAMED.get(name)
            if number is None:
                return ClassEvent(name, payload)
            try:
                return _decode(_TYPE.pack(number) + payload)
            except (struct.error, IndexError) as error:
                raise ValueError(f"a {name} with the payload {payload[:40].hex()}: {error}") from error
        case _:
            assert_never(event)


def _decode(data: bytes, *, is_announced: bool = False) -> FlinkEvent:
    (number,) = _TYPE.unpack_from(data)
    empty = _EMPTY.get(number)
    if empty is not None:
        return empty
    rest = data[_TYPE.size :]
    match number:
        case 1:
            return _decode_barrier(rest)
        case 3:
            name, used = _decode_text(rest)
            return ClassEvent(name, rest[used:])
        case 4:
            return CancelCheckpointMarker(_ID.unpack_from(rest)[0])
        case 6:
            if is_announced:
                raise ValueError("an announcement of an announcement")
            return EventAnnouncement(_TYPE.unpack_from(rest)[0], _decode(rest[_TYPE.size :], is_announced=True))
        case 7:
            return SubtaskConnectionDescriptor(*_PAIR.unpack_from(rest))
        case 8:
            return EndOfData(drain=not _flag(rest[0]))
        case 10:
            return RecoveryMetadata(_TYPE.unpack_from(rest)[0])
        case 11:
            return _decode_watermark(rest)
        case _:
            raise ValueError(f"there is no event of type {number}")


def _decode_barrier(rest: bytes) -> Barrier:
    checkpoint_id, timestamp_ms, kind = _BARRIER.unpack_from(rest)
    position = _BARRIER.size
    savepoint_format: int | None = None
    if kind in (SAVEPOINT, SUSPEND_SAVEPOINT, TERMINATE_SAVEPOINT):
        savepoint_format = int(_flag(rest[position]))
        position += 1
    elif kind not in (CHECKPOINT, FULL_CHECKPOINT):
        raise ValueError(f"a barrier of kind {kind}")
    (length,) = _TYPE.unpack_from(rest, position)
    position += _TYPE.size
    location: bytes | None = None
    if length != -1:
        location = rest[position : position + length] if length >= 0 else b""
        if len(location) != length:
            raise ValueError(f"a location of {length} bytes")
        position += length
    alignment, timeout_ms = _OPTIONS.unpack_from(rest, position)
    return Barrier(checkpoint_id, timestamp_ms, kind, savepoint_format, location, Alignment(alignment), timeout_ms)


def _decode_watermark(rest: bytes) -> WatermarkEvent:
    identifier, position = _decode_text(rest)
    is_aligned = _flag(rest[position])
    (kind,) = _TYPE.unpack_from(rest, position + 1)
    position += 1 + _TYPE.size
    if kind == 0:
        return WatermarkEvent(identifier, is_aligned, _ID.unpack_from(rest, position)[0])
    if kind == 1:
        return WatermarkEvent(identifier, is_aligned, _flag(rest[position]))
    raise ValueError(f"a watermark of kind {kind}")


def _decode_text(rest: bytes) -> tuple[str, int]:
    """Decodes a text with its length in front; returns the text and the number of bytes of both."""
    (length,) = _LENGTH.unpack_from(rest)
    stop = _LENGTH.size + length
    raw = rest[_LENGTH.size : stop]
    if len(raw) != length:
        raise ValueError(f"a name of {length} bytes")
    return raw.decode(), stop


def _encode_text(text: str) -> bytes:
    # Java's UTF encodes these two differently from UTF-8; no class has such a name.
    raw = "".join("?" if character == "\0" or character > "\uffff" else character for character in text).encode()
    return _LENGTH.pack(len(raw)) + raw


def _flag(value: int) -> bool:
    if value > 1:
        raise ValueError(f"{value} where 0 or 1 is expected")
    return bool(value)


def _encode_fields(event: FlinkEvent) -> bytes:
    match event:
        case Barrier():
            parts = [_BARRIER.pack(event.checkpoint_id, event.timestamp_ms, event.kind)]
            if event.format is not None:
                parts.append(bytes((event.format,)))
            parts.append(_TYPE.pack(-1 if event.location is None else len(event.location)))
            parts.append(event.location or b"")
            parts.append(_OPTIONS.pack(event.alignment, event.timeout_ms))
            return b"".join(parts)
        case ClassEvent(name, payload):
            return _encode_text(name) + payload
        case CancelCheckpointMarker(checkpoint_id):
            return _ID.pack(checkpoint_id)
        case EventAnnouncement(sequence, announced):
            return _TYPE.pack(sequence) + encode_exact(announced)
        case SubtaskConnectionDescriptor(input_subtask, output_subtask):
            return _PAIR.pack(input_subtask, output_subtask)
        case EndOfData(drain):
            return bytes((not drain,))
        case RecoveryMetadata(subpartition):
            return _TYPE.pack(subpartition)
        case WatermarkEvent(identifier, is_aligned, value):
            head = _encode_text(identifier) + bytes((is_aligned,))
            if isinstance(value, bool):
                return head + _TYPE.pack(1) + bytes((value,))
            return head + _TYPE.pack(0) + _ID.pack(value)
        case _:
            assert not fields(event), event
            return b""


def flink_name(event: Event) -> str:
    """The simple name of Flink's class for an event, as in its logs and reports."""
    match event:
        case EndOfPartition():
            return "EndOfPartitionEvent"
        case UserEvent(name):
            return name.rpartition(".")[2].rpartition("$")[2]
        case _:
            return type(event).__name__
