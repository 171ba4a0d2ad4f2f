"""What TaskManagers tell a JobManager.

Takes: nothing. Gives: frozen messages (`messages.CODEC` makes documents of them).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .codec import Attempt, Message, Plain


@dataclass(frozen=True, slots=True)
class JobOpened(Message):
    """Tasks may come."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobRefused(Message):
    """The job cannot be opened, or cannot go on; nothing of it is left.

    The last message of a job is this or `JobClosed`.
    """

    job_id: str
    text: str


@dataclass(frozen=True, slots=True)
class JobClosed(Message):
    """Nothing of the job is left; `reason` is empty when it was asked for."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TaskStates(Message):
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
class TaskFinished(Message):
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
class TaskFailed(Message):
    """An attempt raised, or could not be created.

    Attributes:
        job_id: of which job.
        attempt: which.
        kind: the error's class.
        text: what it says; names the operator where user code raised.
        is_secondary: whether the cause lies with somebody else: a connection or a producer was lost.
        missing_partition: the partition that its producer no longer has, or whose producer cannot be reached; empty:
            neither is the cause.
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
class CheckpointAcknowledged(Message):
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
class CheckpointDeclined(Message):
    """An attempt cannot take part in a checkpoint."""

    job_id: str
    attempt: Attempt
    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionConsumable(Message):
    """The first data of a produced partition are there; `partition` is its index among those of the attempt."""

    job_id: str
    attempt: Attempt
    partition: int


@dataclass(frozen=True, slots=True)
class JobProgress(Message):
    """How far the tasks of a job here are, once a second while something changes.

    Attributes:
        job_id: of which job.
        vertices: {index of a job vertex as text: {"records_in": int, "records_out": int, ...}}, sums over the attempts
            that are here.
    """

    job_id: str
    vertices: Plain


@dataclass(frozen=True, slots=True)
class FetchBlob(Message):
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
class BlobKept(Message):
    """Follows the last `BlobPart` of a long blob.

    Attributes:
        key: of the blob.
        is_kept: whether it was fetched, so that others may read it here.
    """

    key: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Statistics(Message):
    """Answers `AskStatistics` and `AskDetails`; see `TaskManager.statistics` and `taskmanager.details`."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class Stacks(Message):
    """Answers `AskStacks`; see `taskmanager.stacks` for the document."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class SlotEnded(Message):
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
class SlotBlocked(Message):
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
class PartitionSealed(Message):
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
