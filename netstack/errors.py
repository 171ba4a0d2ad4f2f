"""Every error netstack raises, on one screen; whose fault it is decides the class.

Takes: nothing. Gives: exception classes to every other module.

Rules: a message names the object, its state, the offending value and the next step. The resource errors of trio
(`ClosedResourceError`, `BusyResourceError`, `WouldBlock`) are raised unchanged by the runtime; everything that the peer
or the world did arrives as one of the classes below.
"""

from __future__ import annotations

import enum
from typing import ClassVar

from .shown import error_text


class ErrorCode(enum.IntEnum):
    """Numbers carried by ERROR frames; part of the wire contract (`wire/SPEC.md`, section 6)."""

    NOT_NETSTACK = 1
    VERSION_MISMATCH = 2
    FRAME_TOO_LARGE = 3
    MALFORMED_FRAME = 4
    UNEXPECTED_FRAME = 5
    TRUNCATED_STREAM = 6
    UNKNOWN_CHANNEL = 7
    CHANNEL_IN_USE = 8
    PARTITION_NOT_FOUND = 9
    SUBPARTITION_OUT_OF_RANGE = 10
    SUBPARTITION_CONSUMED = 11
    PRODUCER_FAILED = 12
    CHECKSUM_MISMATCH = 13
    SEQUENCE_GAP = 14
    CREDIT_VIOLATION = 15
    SEGMENT_SIZE_MISMATCH = 16
    TIMED_OUT = 17
    CONSUMER_FAILED = 18
    INTERNAL = 19
    PARTITION_DAMAGED = 20
    SESSION_UNKNOWN = 21


class NetstackError(Exception):
    """Base of everything below.

    Attributes:
        is_permanent: whether another attempt of a task that fails with it ends the same way, so the job ends at once;
            `netstack/DESIGN.md` has the list.
    """

    is_permanent: ClassVar[bool] = False


class ConfigError(NetstackError, ValueError):
    """A setting that cannot work; the message names the setting, its value and what would be accepted."""

    is_permanent = True


class LocalProtocolError(NetstackError):
    """This program called something in a state that does not allow it."""


class RecordError(NetstackError, ValueError):
    """A record that does not fit its format, or framed bytes that are not a record."""


class SpillError(NetstackError):
    """A spanning record could not be written to, or read from, its temporary file."""


class ShuffleStorageError(NetstackError):
    """A partition could not be written to its files; the message names the file and what the system said."""


class DiskFull(ShuffleStorageError):
    """There is no room on the disk, or no more of the quota, for what a task produces."""


class CheckpointError(NetstackError):
    """A checkpoint cannot be made, or not be used; the message says which and why. The job goes on without it."""


class StateNotPlain(CheckpointError):
    """An operator's state is no plain data, and will be none at the next checkpoint; the message names the value."""

    is_permanent = True


class StateMismatch(CheckpointError):
    """State in a checkpoint is not what the job has there now; the message names both. No restart changes that."""

    is_permanent = True


class CheckpointStorageError(CheckpointError):
    """A file of a checkpoint could not be written or is not as it was written; the message names it and the reason."""


class CheckpointFenced(CheckpointStorageError):
    """Another master has the folder of checkpoints: this one cannot complete any. Its job cannot go on."""


class OperatorFailed(NetstackError):
    """A function or a class of the user's raised an error while the job ran.

    Attributes:
        operator: whose.
        cause: what it raised.
    """

    def __init__(self, operator: str, cause: BaseException) -> None:
        text = error_text(cause)
        super().__init__(f"operator {operator!r}: {type(cause).__name__}{': ' if text else ''}{text}")
        self.operator = operator
        self.cause = cause


class OperatorUnusable(OperatorFailed):
    """Python refused a call or an import, or `restore` the state it was given: that is the same in every attempt."""

    is_permanent = True


class InsufficientBuffers(NetstackError):
    """Not enough network buffers; the message says what is missing, what to raise and by how much."""


class PoolDestroyed(NetstackError):
    """The buffer pool was destroyed while somebody wanted a buffer: a cancellation, not a failure."""


class RemoteProtocolError(NetstackError):
    """The peer broke the protocol; the whole connection is unusable.

    Attributes:
        code: what was broken.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


class ConnectionLost(NetstackError):
    """The byte stream to a peer ended or broke; every channel on it fails with this as its cause."""


class ProducerUnreachable(ConnectionLost):
    """No connection to the TaskManager of a producer could be opened. Flink's name: PartitionConnectionException.

    Attributes:
        partition: the id of the partition that the channel was to read.
    """

    def __init__(self, text: str, partition: str) -> None:
        super().__init__(text)
        self.partition = partition


class Refusal(enum.Enum):
    """Why a peer was not let in; the values are for statistics and people."""

    SECRETS_DIFFER = "the secrets differ"
    NO_SECRET = "proves no secret"
    NOT_NETSTACK = "speaks another protocol"
    CLOSED = "closed the connection"
    TOO_SLOW = "did not prove itself in time"
    CROWDED_OUT = "gave way to newer peers"
    FULL = "too many connections"


class AuthenticationFailed(NetstackError):
    """A peer did not prove that it belongs, or did not accept our proof; the connection is closed.

    Attributes:
        reason: why, for statistics; the text says what to do.
    """

    def __init__(self, reason: Refusal, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class RequestRefused(NetstackError):
    """A service did not do what it was asked for; the message names it, why, and what to do."""


class JobFailed(NetstackError):
    """A job failed; the text is its root cause.

    Attributes:
        job_id: which; empty where it was never taken.
        traceback: the user's lines that raised it, as Python prints them, and its causes; empty if they are not known.
    """

    def __init__(self, text: str, *, job_id: str = "", traceback: str = "") -> None:
        super().__init__(text)
        self.job_id = job_id
        self.traceback = traceback


class ChannelFailed(NetstackError):
    """One channel failed; others on the same connection go on.

    Attributes:
        code: why; `PARTITION_NOT_FOUND` and `PRODUCER_FAILED` have classes of their own.
        channel: the channel as text, for messages.
        partition: the id of the partition it was to read, once the channel has heard of the error.
    """

    def __init__(self, code: ErrorCode, text: str, *, channel: str = "") -> None:
        super().__init__(f"{channel + ': ' if channel else ''}{code.name}: {text}")
        self.code = code
        self.text = text
        self.channel = channel
        self.partition = ""


class PartitionNotFound(ChannelFailed):
    """The producer has no such partition, or released it."""


class PartitionDamaged(PartitionNotFound):
    """The producer's files were damaged, or are gone: its task has to run again. The consumer is not to blame."""

    def __init__(self, text: str, *, channel: str = "") -> None:
        super().__init__(ErrorCode.PARTITION_DAMAGED, text, channel=channel)


class ProducerFailed(ChannelFailed):
    """The producer's task failed; the text is its root cause. The consumer is not to blame."""


def channel_error(code: ErrorCode, text: str, *, channel: str = "") -> ChannelFailed:
    """The most specific `ChannelFailed` for a code, for an error that came over the wire."""
    if code in (ErrorCode.PARTITION_NOT_FOUND, ErrorCode.SUBPARTITION_OUT_OF_RANGE):
        return PartitionNotFound(code, text, channel=channel)
    if code is ErrorCode.PARTITION_DAMAGED:
        return PartitionDamaged(text, channel=channel)
    if code is ErrorCode.PRODUCER_FAILED:
        return ProducerFailed(code, text, channel=channel)
    return ChannelFailed(code, text, channel=channel)
