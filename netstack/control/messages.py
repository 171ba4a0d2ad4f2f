"""All that clients, JobManagers and TaskManagers say to each other.

Takes: nothing. Gives: frozen messages, and `CODEC`, which makes documents of them (`codec`).

Rules: messages of a job carry its id, and one of a job that is not open is ignored; what is
said of a task carries its attempt, so a late word about an old attempt is recognised.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from .codec import Attempt, MessageCodec, Plain

VERSION: Final = 5
"""Of the control protocol."""

GREETING: Final = "netstack control"

SLICE_BYTES: Final = 1 << 20
"""What may be long is cut into messages of about this length, so that signs of life pass between them."""


# ----------------------------------------------------------------------------------- from a JobManager to a TaskManager


@dataclass(frozen=True, slots=True)
class OpenJob:
    """Prepare for tasks of a job; answered by `JobOpened` or `JobRefused`.

    Attributes:
        job_id: 16 hex digits, unique among everybody's.
        name: for people.
        memory_timeout_s: how long to wait for memory that other jobs hold.
        data_address: how others reach this TaskManager: what channels name.
        network: settings of a network environment of the job's own; None uses the one that jobs share.
        information: what all tasks of the job share; may be empty.
    """

    job_id: str
    name: str
    memory_timeout_s: float
    data_address: str
    network: Plain | None
    information: bytes


@dataclass(frozen=True, slots=True)
class SubmitTasks:
    """Create and start these attempts; answered by their states. One that cannot be fails alone.

    Attributes:
        job_id: of which job.
        descriptors: packed `TaskDeploymentDescriptor`s; see `submissions`.
    """

    job_id: str
    descriptors: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CancelTasks:
    """End these attempts; one that has not come yet will be `canceled` when it does."""

    job_id: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class UpdateGate:
    """Producers that a gate of these attempts did not know are known now.

    Attributes:
        job_id: of which job.
        attempts: of one job vertex.
        gate: index of their gate.
        descriptors: packed `ShuffleDescriptors`.
    """

    job_id: str
    attempts: tuple[Attempt, ...]
    gate: int
    descriptors: bytes


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """Nobody needs these partitions any more."""

    job_id: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeepDataset:
    """These partitions of the job stay when it is closed, until `DropDataset`.

    Attributes:
        job_id: of which job.
        key: of their dataset.
        names: of the partitions that are here.
    """

    job_id: str
    key: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropDataset:
    """Nobody needs the dataset any more; one that is not here is ignored."""

    key: str


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """These attempts begin a checkpoint.

    Attributes:
        job_id: of which job.
        barrier: the event's bytes (`events.encode_event`).
        attempts: sources, or tasks whose sources have ended.
        is_savepoint: whether it is one.
        stops: sources end after it, without the end of their data.
    """

    job_id: str
    barrier: bytes
    attempts: tuple[Attempt, ...]
    is_savepoint: bool
    stops: bool


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """The checkpoint will not happen."""

    job_id: str
    checkpoint_id: int
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The checkpoint is complete: told to all attempts of the job."""

    job_id: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CommitTasks:
    """Of a job without checkpoints: these attempts, which wait, commit what they have prepared, and end."""

    job_id: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class CloseJob:
    """Cancel what runs and release everything; answered by `JobClosed`, unless the job is not open."""

    job_id: str


@dataclass(frozen=True, slots=True)
class BlobPart:
    """Answers `FetchBlob`.

    Attributes:
        key: of the blob.
        offset: of these bytes in it.
        total: its length in bytes; -1: there is no such blob, and `data` says why, as UTF-8.
        data: at most `SLICE_BYTES`.
        place: where to read it instead, if not empty: `file://PATH`, or the control address of a TaskManager that has
            it.
    """

    key: str
    offset: int
    total: int
    data: bytes
    place: str = ""


@dataclass(frozen=True, slots=True)
class AskStatistics:
    """Answered by `Statistics`."""

    token: int


@dataclass(frozen=True, slots=True)
class AskDetails:
    """Answered by `Statistics`, whose document tells what every channel of this JobManager's jobs is like now."""

    token: int


@dataclass(frozen=True, slots=True)
class AskStacks:
    """Answered by `Stacks`: where the code of a job's tasks is.

    Attributes:
        token: of the question.
        job_id: of which job.
        sampled_s: 0: where each task is at this moment; else the stacks of its processes, sampled for so long.
    """

    token: int
    job_id: str
    sampled_s: float = 0.0


# ----------------------------------------------------------------------------------- from a TaskManager to a JobManager


@dataclass(frozen=True, slots=True)
class JobOpened:
    """Tasks may come."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobRefused:
    """The job cannot be opened, or cannot go on; nothing of it is left.

    The last message of a job is this or `JobClosed`.
    """

    job_id: str
    text: str


@dataclass(frozen=True, slots=True)
class JobClosed:
    """Nothing of the job is left; `reason` is empty when it was asked for."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TaskStates:
    """These attempts are in this state now.

    Attributes:
        job_id: of which job.
        state: `initializing`, `running`, `waiting` (it has sent its last event, and its end is to be confirmed by a
            checkpoint, or by `CommitTasks`) or `canceled`; the other ends have messages of their own.
        attempts: which.
    """

    job_id: str
    state: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """An attempt has come to its end.

    Attributes:
        job_id: of which job.
        attempt: which.
        produced_bytes: for each partition, for each subpartition.
        results: what its sinks, or its invokable, returned, by operator.
        final: where its last state is stored, for a job with checkpoints.
        kept: for each partition that is kept: bytes of records in it, how many of these were compressed, bytes on disk.
    """

    job_id: str
    attempt: Attempt
    produced_bytes: tuple[tuple[int, ...], ...]
    results: Plain
    final: Plain | None
    kept: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """An attempt raised, or could not be created.

    Attributes:
        job_id: of which job.
        attempt: which.
        kind: the error's class.
        text: what it says; names the operator where user code raised.
        is_secondary: whether the cause lies with somebody else: a connection or a producer was lost.
        missing_partition: the partition that a producer does not have (any more); empty: that is not the cause.
        is_recoverable: whether another attempt may end otherwise.
        report: where it was raised, and why (`runtime.failure_report`); empty where no error of Python is the cause.
    """

    job_id: str
    attempt: Attempt
    kind: str
    text: str
    is_secondary: bool
    missing_partition: str
    is_recoverable: bool
    report: Plain = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointAcknowledged:
    """An attempt has stored its part of a checkpoint.

    Attributes:
        job_id: of which job.
        attempt: whose.
        checkpoint_id: of which checkpoint.
        size_bytes: of its file.
        crc32: of its file.
        report: how long it took, how much of it is channel state.
    """

    job_id: str
    attempt: Attempt
    checkpoint_id: int
    size_bytes: int
    crc32: int
    report: Plain


@dataclass(frozen=True, slots=True)
class CheckpointDeclined:
    """An attempt cannot take part in a checkpoint."""

    job_id: str
    attempt: Attempt
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionConsumable:
    """The first data of a produced partition are there; `partition` is its index among those of the attempt."""

    job_id: str
    attempt: Attempt
    partition: int


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far the tasks of a job here are, once a second while something changes.

    Attributes:
        job_id: of which job.
        vertices: {index of a job vertex as text: {"records_in": int, "records_out": int, ...}}, sums over the attempts
            that are here.
    """

    job_id: str
    vertices: Plain


@dataclass(frozen=True, slots=True)
class FetchBlob:
    """Send a blob from an offset on; answered by one `BlobPart`.

    Attributes:
        key: of the blob.
        offset: where the part begins.
        failed: places where it could not be read.
    """

    key: str
    offset: int
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlobKept:
    """Follows the last `BlobPart` of a long blob.

    Attributes:
        key: of the blob.
        is_kept: whether it was fetched, so that others may read it here.
    """

    key: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Statistics:
    """Answers `AskStatistics` and `AskDetails`; see `TaskManager.statistics` and `taskmanager.details`."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class Stacks:
    """Answers `AskStacks`; see `taskmanager.stacks` for the document."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class SlotEnded:
    """The process of a slot has ended, and these attempts with it; the slot has another process by now or soon.

    Attributes:
        job_id: of which job.
        slot: which.
        attempts: all of the job's that were there, but those whose cancellation was asked for.
        text: how it ended, and where its code was as far as that is known.
    """

    job_id: str
    slot: int
    attempts: tuple[Attempt, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SlotBlocked:
    """User code blocks the event loop of a slot, or no longer does.

    Attributes:
        job_id: of which job.
        slot: which.
        blocked_s: for how long by now; 0: the loop turns again.
        where: {"task", "subtask", "operator", "file", "line", "function"}, as far as it is known.
    """

    job_id: str
    slot: int
    blocked_s: float
    where: Plain


@dataclass(frozen=True, slots=True)
class PartitionSealed:
    """A slot has written a partition that may be read again; its supervisor serves the files from now on.

    Attributes:
        job_id: of which job.
        name: of the partition.
        files: what the names of its files begin with, in the folder of the TaskManager.
        subpartitions: how many.
        drain: what its EndOfData says.
        stored_bytes: on disk.
    """

    job_id: str
    name: str
    files: str
    subpartitions: int
    drain: bool
    stored_bytes: int


# ------------------------------------------------------------------------------------ between a client and a JobManager


@dataclass(frozen=True, slots=True)
class Ask:
    """A client wants something of a JobManager, or of a Subscriber; answered by `Answer` or `AskRefused`.

    Attributes:
        token: of the question, chosen by the client.
        what: the name of the question.
        document: its arguments.
    """

    token: int
    what: str
    document: Plain


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked for."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class AskRefused:
    """It cannot be; the text says why, and what to do."""

    token: int
    text: str


# ------------------------------------------------------------------------------------------------------ both directions


@dataclass(frozen=True, slots=True)
class OperatorEvent:
    """Between an operator and its coordinator in the JobManager, in order.

    Attributes:
        job_id: of which job.
        attempt: of which task.
        event: theirs.
    """

    job_id: str
    attempt: Attempt
    event: Plain


@dataclass(frozen=True, slots=True)
class Refused:
    """The connection is of no use; whoever says so ends it."""

    text: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered by `Pong` at once: a sign of life, and a look at the other's clock."""

    token: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a `Ping`.

    Attributes:
        token: of the ping.
        clock_ns: CLOCK_MONOTONIC of whoever answers.
    """

    token: int
    clock_ns: int


Message: TypeAlias = (
    OpenJob
    | SubmitTasks
    | CancelTasks
    | UpdateGate
    | ReleasePartitions
    | KeepDataset
    | DropDataset
    | TriggerCheckpoint
    | AbortCheckpoint
    | CheckpointCompleted
    | CommitTasks
    | CloseJob
    | BlobPart
    | AskStatistics
    | AskDetails
    | AskStacks
    | JobOpened
    | JobRefused
    | JobClosed
    | TaskStates
    | TaskFinished
    | TaskFailed
    | CheckpointAcknowledged
    | CheckpointDeclined
    | PartitionConsumable
    | OperatorEvent
    | JobProgress
    | FetchBlob
    | BlobKept
    | Statistics
    | Stacks
    | SlotEnded
    | SlotBlocked
    | PartitionSealed
    | Ask
    | Answer
    | AskRefused
    | Refused
    | Ping
    | Pong
)

CODEC: Final[MessageCodec[Any]] = MessageCodec(Message.__args__)


def submissions(job_id: str, descriptors: Iterable[bytes]) -> Iterator[SubmitTasks]:
    """Descriptors of any number as messages of about `SLICE_BYTES`, or of a single longer descriptor."""
    chosen: list[bytes] = []
    size_bytes = 0
    for descriptor in descriptors:
        if chosen and size_bytes + len(descriptor) > SLICE_BYTES:
            yield SubmitTasks(job_id, tuple(chosen))
            chosen, size_bytes = [], 0
        chosen.append(descriptor)
        size_bytes += len(descriptor)
    if chosen:
        yield SubmitTasks(job_id, tuple(chosen))


def blob_parts(key: str, data: bytes, offset: int) -> BlobPart:
    """What answers a `FetchBlob` for these bytes; an offset behind the end has no data."""
    return BlobPart(key, offset, len(data), data[offset : offset + SLICE_BYTES] if offset >= 0 else b"")


def attempts_of(message: Message) -> tuple[Attempt, ...]:
    """The attempts that a message is about."""
    attempts: tuple[Attempt, ...] = getattr(message, "attempts", ())
    one: Attempt | None = getattr(message, "attempt", None)
    return attempts if one is None else (one,)


_ATTEMPTS_AT_ONCE: Final = 1 << 16


def slices(attempts: Iterable[Attempt]) -> Iterator[tuple[Attempt, ...]]:
    """Attempts of any number, as many as a message holds at a time."""
    remaining = iter(attempts)
    while chosen := tuple(itertools.islice(remaining, _ATTEMPTS_AT_ONCE)):
        yield chosen
