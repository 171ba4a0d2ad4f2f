"""Every error that netstack raises. The class says who caused the error.

Takes: nothing. Gives: exception classes to every other module.

Rules: a message names the object, its state, the offending value and the next step. The runtime raises trio's resource
errors (`ClosedResourceError`, `BusyResourceError`, `WouldBlock`) unchanged; every failure caused by a peer or the
system is raised as one of the classes below.
"""

from __future__ import annotations

import enum
from typing import ClassVar

from .text.safe_text import error_text


class ErrorCode(enum.IntEnum):
    """Codes in ERROR frames; part of the wire protocol (`exchange/wire/SPEC.md`, section 6)."""

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
    """Base class of all netstack errors.

    Attributes:
        is_permanent: whether every further attempt of the task would fail in the same way, so the job fails without a
            restart; `netstack/DESIGN.md` has the list.
    """

    is_permanent: ClassVar[bool] = False


class ConfigError(NetstackError, ValueError):
    """An invalid setting; the message names the setting, its value and the accepted values."""

    is_permanent = True


class LocalProtocolError(NetstackError):
    """This program made a call that the state of the object does not allow."""


class RecordError(NetstackError, ValueError):
    """A record does not fit its format, or received bytes are not a valid record."""


class SpillError(NetstackError):
    """A spanning record could not be written to, or read from, its temporary file."""


class ShuffleStorageError(NetstackError):
    """A partition could not be written to its files; the message names the file and the system's error."""


class DiskFull(ShuffleStorageError):
    """The disk, or the quota `shuffle_disk_bytes`, has no room for the output of a task."""


class CheckpointError(NetstackError):
    """A checkpoint cannot be taken or used; the message says which one and why. The job continues without it."""


class StateNotPlain(CheckpointError):
    """An operator's state contains a value that is not plain data; the message names it. Retrying cannot help."""

    is_permanent = True


class StateMismatch(CheckpointError):
    """The state in a checkpoint does not match the job's operators; the message names both. A restart cannot help."""

    is_permanent = True


class CheckpointStorageError(CheckpointError):
    """A checkpoint file could not be written, or its content is damaged; the message names the file and the reason."""


class CheckpointFenced(CheckpointStorageError):
    """Another JobMaster has taken over the checkpoint folder: this one can complete no checkpoint, so its job fails."""


class OperatorFailed(NetstackError):
    """A user function or class raised an error while the job ran.

    Attributes:
        operator: the name of the operator.
        cause: the error that was raised.
    """

    def __init__(self, operator: str, cause: BaseException) -> None:
        text = error_text(cause)
        super().__init__(f"operator {operator!r}: {type(cause).__name__}{': ' if text else ''}{text}")
        self.operator = operator
        self.cause = cause


class OperatorUnusable(OperatorFailed):
    """User code could not be imported or called, or `restore` rejected its state. Retrying cannot help."""

    is_permanent = True


class InsufficientBuffers(NetstackError):
    """There are not enough network buffers; the message says how many are missing and what to raise."""


class PoolDestroyed(NetstackError):
    """The buffer pool was destroyed while a task waited for a buffer. This is a cancellation, not a failure."""


class ConsumerLost(NetstackError):
    """Consumers have left before the end of a partition: not every record was, or would be, processed.

    The text names one of them, how it left and how much was sent to it.

    Attributes:
        lost: the subpartitions whose consumers have left.
        acknowledged: the subpartitions whose consumers acknowledged the end: they processed every record, or needed no
            more.
    """

    def __init__(self, text: str, *, lost: tuple[int, ...] = (), acknowledged: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.lost = lost
        self.acknowledged = acknowledged


class RemoteProtocolError(NetstackError):
    """The peer violated the protocol; the whole connection is unusable.

    Attributes:
        code: the kind of violation.
        text: the details.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


class ConnectionLost(NetstackError):
    """The byte stream to a peer ended or broke; every channel on it fails with this error as the cause."""


class ProducerUnreachable(ConnectionLost):
    """No connection to the TaskManager of a producer could be opened. Flink's name: PartitionConnectionException.

    Attributes:
        partition: the id of the partition that the channel was to read.
    """

    def __init__(self, text: str, partition: str) -> None:
        super().__init__(text)
        self.partition = partition


class Refusal(enum.Enum):
    """Why a peer was refused. The values are texts for statistics and error messages."""

    SECRETS_DIFFER = "the secrets differ"
    NO_SECRET = "proves no secret"
    NOT_NETSTACK = "speaks another protocol"
    CLOSED = "closed the connection"
    TOO_SLOW = "did not prove itself in time"
    CROWDED_OUT = "gave way to newer peers"
    FULL = "too many connections"


class AuthenticationFailed(NetstackError):
    """A peer did not prove that it knows the secret, or rejected our proof; the connection is closed.

    Attributes:
        reason: the reason, for statistics; the text says what to do.
    """

    def __init__(self, reason: Refusal, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class RequestRefused(NetstackError):
    """A service refused a request; the message names the request, the reason and the next step."""


class JobFailed(NetstackError):
    """A job failed; the text is the root cause.

    Attributes:
        job_id: the id of the job; empty if the JobManager never accepted it.
        traceback: Python's traceback of the user code that raised the error, with its causes; empty if unknown.
    """

    def __init__(self, text: str, *, job_id: str = "", traceback: str = "") -> None:
        super().__init__(text)
        self.job_id = job_id
        self.traceback = traceback


class ChannelFailed(NetstackError):
    """One channel failed; other channels on the same connection continue.

    Attributes:
        code: the reason; `PARTITION_NOT_FOUND` and `PRODUCER_FAILED` have their own subclasses.
        text: the details.
        channel: the channel as text, for messages.
        partition: the id of the partition that the channel reads, once the channel has received the error.
    """

    def __init__(self, code: ErrorCode, text: str, *, channel: str = "") -> None:
        super().__init__(f"{channel + ': ' if channel else ''}{code.name}: {text}")
        self.code = code
        self.text = text
        self.channel = channel
        self.partition = ""


class PartitionNotFound(ChannelFailed):
    """The producer does not have the partition, or has released it."""


class PartitionDamaged(PartitionNotFound):
    """The partition's files are damaged or missing: its producer has to run again. The consumer is not at fault."""

    def __init__(self, text: str, *, channel: str = "") -> None:
        super().__init__(ErrorCode.PARTITION_DAMAGED, text, channel=channel)


class ProducerFailed(ChannelFailed):
    """The producing task failed; the text is its root cause. The consumer is not at fault."""


def channel_error(code: ErrorCode, text: str, *, channel: str = "") -> ChannelFailed:
    """Returns the most specific `ChannelFailed` for an error code received from a peer."""
    if code in (ErrorCode.PARTITION_NOT_FOUND, ErrorCode.SUBPARTITION_OUT_OF_RANGE):
        return PartitionNotFound(code, text, channel=channel)
    if code is ErrorCode.PARTITION_DAMAGED:
        return PartitionDamaged(text, channel=channel)
    if code is ErrorCode.PRODUCER_FAILED:
        return ProducerFailed(code, text, channel=channel)
    return ChannelFailed(code, text, channel=channel)
