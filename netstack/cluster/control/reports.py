"""The messages from TaskManagers to a JobManager.

Takes: nothing. Gives: frozen messages, which `messages.CODEC` encodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .codec import Attempt, Line, Message, Plain


@dataclass(frozen=True, slots=True)
class JobOpened(Message):
    """The TaskManager accepts tasks of the job."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobRefused(Message):
    """The TaskManager cannot open or cannot continue the job, and has released all of its resources.

    The last message about a job is this one or `JobClosed`.
    """

    job_id: str
    text: Line


@dataclass(frozen=True, slots=True)
class JobClosed(Message):
    """The TaskManager has released all resources of the job; `reason` is empty if `CloseJob` requested it."""

    job_id: str
    reason: Line


@dataclass(frozen=True, slots=True)
class TaskStates(Message):
    """Attempts entered a state.

    Attributes:
        state: `initializing`, `running`, `waiting` (the attempt has sent its last event and waits for a checkpoint or
            `CommitTasks`) or `canceled`. `TaskFinished` and `TaskFailed` report the other final states.
    """

    job_id: str
    state: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class TaskFinished(Message):
    """An attempt finished.

    Attributes:
        produced_bytes: bytes by partition and subpartition.
        results: results of its sinks or its invokable, by operator.
        final: where its last state is stored, for a job with checkpoints.
        kept: for each kept partition: bytes of records, bytes of these that were compressed, bytes on disk.
        records_in: number of records it read; its last `JobProgress` may have fewer.
        records_out: number of records it emitted.
    """

    job_id: str
    attempt: Attempt
    produced_bytes: tuple[tuple[int, ...], ...]
    results: Plain
    final: Plain | None
    kept: tuple[tuple[int, ...], ...] = ()
    records_in: int = 0
    records_out: int = 0


@dataclass(frozen=True, slots=True)
class TaskFailed(Message):
    """An attempt failed, or could not be created.

    Attributes:
        kind: class of the exception.
        text: text of the exception; names the operator if user code raised it.
        is_secondary: whether another failure caused this one: a lost connection or a lost producer.
        missing_partition: the partition that its producer no longer has, or whose producer cannot be reached;
            empty if that is not the cause.
        is_recoverable: whether another attempt may succeed.
        report: traceback and causes (`cluster.failure_report`); empty if no Python exception is the cause.
    """

    job_id: str
    attempt: Attempt
    kind: Line
    text: str
    is_secondary: bool
    missing_partition: str
    is_recoverable: bool
    report: Plain = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointAcknowledged(Message):
    """An attempt stored its part of a checkpoint.

    Attributes:
        report: durations and the size of the channel state.
    """

    job_id: str
    attempt: Attempt
    checkpoint_id: int
    size_bytes: int
    crc32: int
    report: Plain


@dataclass(frozen=True, slots=True)
class CheckpointDeclined(Message):
    """An attempt declines a checkpoint; of id 0: its final state cannot be stored, which it tries again."""

    job_id: str
    attempt: Attempt
    checkpoint_id: int
    reason: Line


@dataclass(frozen=True, slots=True)
class PartitionConsumable(Message):
    """A partition has its first data; `partition` is its index among the partitions of the attempt."""

    job_id: str
    attempt: Attempt
    partition: int


@dataclass(frozen=True, slots=True)
class JobProgress(Message):
    """Progress of a job's tasks at a TaskManager; sent once per second while it changes.

    Attributes:
        vertices: {index of a job vertex as text: {"records_in": int, "records_out": int, ...}}, summed over the
            attempts at this TaskManager that have not finished.
    """

    job_id: str
    vertices: Plain


@dataclass(frozen=True, slots=True)
class FetchBlob(Message):
    """Requests a part of a blob; answered by one `BlobPart`.

    Attributes:
        offset: where the part begins.
        failed: places at which reading the blob failed.
    """

    key: str
    offset: int
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlobKept(Message):
    """Reports the end of fetching a long blob.

    Attributes:
        is_kept: whether the TaskManager has the blob and serves it to others.
    """

    key: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Statistics(Message):
    """Answers `AskStatistics` (`TaskManager.statistics`) and `AskDetails` (`cluster.taskmanager.details`)."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class Stacks(Message):
    """Answers `AskStacks`; `cluster.taskmanager.stacks` describes the document."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class SlotEnded(Message):
    """The process of a slot ended, and its attempts with it; the TaskManager starts another process.

    Attributes:
        attempts: the job's attempts in the slot, except those that were being canceled.
        text: how the process ended, and where its code was if that is known.
    """

    job_id: str
    slot: int
    attempts: tuple[Attempt, ...]
    text: Line


@dataclass(frozen=True, slots=True)
class SlotBlocked(Message):
    """User code blocks the event loop of a slot, or has stopped blocking it.

    Attributes:
        blocked_s: duration of the block so far; 0: the event loop runs again.
        where: {"task", "subtask", "operator", "file", "line", "function"}, as far as known.
    """

    job_id: str
    slot: int
    blocked_s: float
    where: Plain


NO_PLACE: Final = "a place that is not known, because its process is stopped or waits for a device"
"""The place of a blocked slot that answers no request for its stack."""


@dataclass(frozen=True, slots=True)
class PartitionSealed(Message):
    """A slot finished writing a re-readable partition; its supervisor serves the files from now on.

    Attributes:
        files: prefix of its file names in the TaskManager's folder.
        drain: the `drain` flag of its EndOfData.
    """

    job_id: str
    name: str
    files: str
    subpartitions: int
    drain: bool
    stored_bytes: int
