"""Every message of the protocol as plain data, whatever codec writes it.

Takes: fields. Gives: frozen objects to the codecs and the connection. Data buffers are not here: they never become an
object on their way (`codec_native.encode_buffer_header`, `assembler`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..errors import ErrorCode
from ..events import Event


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame in each direction.

    Attributes:
        version: of the protocol.
        segment_size_bytes: largest payload of a data buffer that this side sends.
        features: bits both sides must have for a feature to be used (`Feature`).
        software: name and version, for messages.
    """

    version: int
    segment_size_bytes: int
    features: int
    software: str


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """Consumer asks for a subpartition, under a channel number of its choice, with its initial credit.

    Attributes:
        channel: the number.
        partition_id: of which partition.
        subpartition: its index, or the first of several.
        credit: data buffers that may be sent at once.
        subpartitions: how many in a row are asked for under the one number.
    """

    channel: int
    partition_id: str
    subpartition: int
    credit: int
    subpartitions: int = 1


@dataclass(frozen=True, slots=True)
class AddCredit:
    """Credits for any number of channels, coalesced: (channel, credits) pairs."""

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """Consumer lets a blocked subpartition go on."""

    channel: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Consumer has processed every record of a channel (follows EndOfData)."""

    channel: int


@dataclass(frozen=True, slots=True)
class CancelChannel:
    """Consumer wants nothing more of a channel; frames already on the way are dropped by it."""

    channel: int


@dataclass(frozen=True, slots=True)
class BacklogAnnouncement:
    """Producer has buffers waiting and no credit for a channel that started without any."""

    channel: int
    backlog: int


@dataclass(frozen=True, slots=True)
class ExpectedBuffers:
    """Producer was held up and expects to send so many buffers soon, whatever waits; 0: not any more."""

    channel: int
    buffers: int


@dataclass(frozen=True, slots=True)
class NewBufferSize:
    """Consumer wishes that new data buffers of a channel are filled to at most this many bytes (debloating)."""

    channel: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Consumer tells the task that produces a partition something; an answer, if any, concerns the channel."""

    channel: int
    partition_id: str
    event: Event


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """Consumer of tiered storage wants this segment of a subpartition next."""

    channel: int
    subpartition: int
    segment_id: int


@dataclass(frozen=True, slots=True)
class UnknownChannel:
    """Consumer said something of a channel that it never asked for (from codecs that know channels by name only).

    Attributes:
        text: what, and of which.
    """

    text: str


@dataclass(frozen=True, slots=True)
class ChannelError:
    """A channel failed; the others go on."""

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
    """Asks for a Pong with the same 8 bytes."""

    token: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a Ping."""

    token: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Nothing more will be sent in this direction; an end of stream without it is a broken connection."""


@dataclass(frozen=True, slots=True)
class SessionOffer:
    """The producer's first frame behind the hellos when both sides outlive a cut: how the consumer names this session.

    Attributes:
        session: its id, 16 bytes.
        grace_ms: how long the producer waits for another stream, milliseconds.
    """

    session: bytes
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Continue:
    """First frame behind the hellos on another stream of a session, from either side; then its bytes go on.

    Attributes:
        session: its id.
        attempt: counts the consumer's attempts from 1; the producer returns it.
        position: bytes of the peer's direction that have arrived.
    """

    session: bytes
    attempt: int
    position: int


@dataclass(frozen=True, slots=True)
class Received:
    """How many bytes of the peer's direction have arrived: it need not keep them."""

    position: int


Frame: TypeAlias = (
    "Hello | OpenChannel | AddCredit | Resume | Acknowledge | CancelChannel | BacklogAnnouncement | ExpectedBuffers"
    " | NewBufferSize | TaskEvent | SegmentRequest | UnknownChannel | ChannelError | ConnectionFailure | Ping | Pong"
    " | Goodbye | SessionOffer | Continue | Received"
)
