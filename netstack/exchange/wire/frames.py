"""The control frames of the protocol as plain data, independent of a codec.

Takes: fields. Gives: objects that nobody changes, to the codecs and the connection. Data buffers have no class here: no
object is created for them (`codec_native.encode_buffer_header`, `assembler`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ...base.errors import ErrorCode
from ...base.events import Event


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame in each direction.

    Attributes:
        segment_size_bytes: largest payload of a data buffer that this side sends.
        features: bits; a feature is used if both sides know it and one requests it (`greeting`).
        software: name and version, for error texts.
    """

    version: int
    segment_size_bytes: int
    features: int
    software: str


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """The consumer opens a channel under a number of its choice, with its initial credit.

    Attributes:
        subpartition: its index, or the first of several.
        credit: data buffers that may be sent at once.
        subpartitions: number of consecutive subpartitions that the channel reads.
    """

    channel: int
    partition_id: str
    subpartition: int
    credit: int
    subpartitions: int = 1


@dataclass(slots=True)
class AddCredit:
    """The consumer grants credit to any number of channels: (channel, credits) pairs.

    Not frozen: one is created for nearly every read of a producer, and a frozen object takes three times as long.
    """

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """The consumer lets a blocked subpartition continue."""

    channel: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The consumer has processed every record of a channel (follows EndOfData)."""

    channel: int


@dataclass(frozen=True, slots=True)
class CancelChannel:
    """The consumer closes a channel; it drops frames that are already in flight."""

    channel: int


@dataclass(frozen=True, slots=True)
class BacklogAnnouncement:
    """The producer has data and no credit for a channel that was opened without any."""

    channel: int
    backlog: int


@dataclass(frozen=True, slots=True)
class ExpectedBuffers:
    """The producer expects to send this many buffers soon, whatever its backlog; 0: no longer."""

    channel: int
    buffers: int


@dataclass(frozen=True, slots=True)
class NewBufferSize:
    """The consumer requests that new data buffers hold at most this many bytes (debloating)."""

    channel: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """The consumer sends an event to the task that produces a partition; an error concerns the channel."""

    channel: int
    partition_id: str
    event: Event


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """The consumer of tiered storage requests the next segment of a subpartition."""

    channel: int
    subpartition: int
    segment_id: int


@dataclass(frozen=True, slots=True)
class UnknownChannel:
    """The consumer sent a frame for a channel that it never opened (from codecs that identify channels by id)."""

    text: str


@dataclass(frozen=True, slots=True)
class ChannelError:
    """A channel failed; the others continue."""

    channel: int
    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """The connection is unusable; the sender closes it after this frame."""

    code: ErrorCode
    text: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Requests a Pong with the same 8 bytes."""

    token: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a Ping."""

    token: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last frame in this direction; an end of stream without it is a broken connection."""


@dataclass(frozen=True, slots=True)
class SessionOffer:
    """The producer's first frame after the hellos if both sides support sessions: the id of this session.

    Attributes:
        session: its id, 16 bytes.
        grace_ms: how long the producer waits for another stream, in milliseconds.
    """

    session: bytes
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Continue:
    """The first frame after the hellos on another stream of a session, from both sides; then its bytes continue.

    Attributes:
        attempt: number of the consumer's attempt, from 1; the producer returns it.
        position: received bytes of the peer's direction.
    """

    session: bytes
    attempt: int
    position: int


@dataclass(frozen=True, slots=True)
class Received:
    """The received bytes of the peer's direction, which it need not keep."""

    position: int


Frame: TypeAlias = (
    "Hello | OpenChannel | AddCredit | Resume | Acknowledge | CancelChannel | BacklogAnnouncement | ExpectedBuffers"
    " | NewBufferSize | TaskEvent | SegmentRequest | UnknownChannel | ChannelError | ConnectionFailure | Ping | Pong"
    " | Goodbye | SessionOffer | Continue | Received"
)
