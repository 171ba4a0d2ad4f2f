"""All that clients, JobManagers and TaskManagers say to each other.

Takes: nothing. Gives: frozen messages, and `CODEC`, which makes documents of them (`codec`).

Rules: messages of a job carry its id, and one of a job that is not open is ignored; what is
said of a task carries its attempt, so a late word about an old attempt is recognised.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from . import reports
from .codec import Attempt, Message, MessageCodec, Plain

VERSION: Final = 5
"""Of the control protocol."""

GREETING: Final = "netstack control"

SLICE_BYTES: Final = 1 << 20
"""What may be long is cut into messages of about this length, so that signs of life pass between them."""


# ----------------------------------------------------------------------------------- from a JobManager to a TaskManager


@dataclass(frozen=True, slots=True)
class OpenJob(Message):
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
class SubmitTasks(Message):
    """Create and start these attempts; answered by their states. One that cannot be fails alone.

    Attributes:
        job_id: of which job.
        descriptors: packed `TaskDeploymentDescriptor`s; see `submissions`.
    """

    job_id: str
    descriptors: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CancelTasks(Message):
    """End these attempts; one that has not come yet will be `canceled` when it does."""

    job_id: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class UpdateGate(Message):
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
class ReleasePartitions(Message):
    """Nobody needs these partitions any more."""

    job_id: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeepDataset(Message):
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
class DropDataset(Message):
    """Nobody needs the dataset any more; one that is not here is ignored."""

    key: str


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint(Message):
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
class AbortCheckpoint(Message):
    """The checkpoint will not happen."""

    job_id: str
    checkpoint_id: int
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class CheckpointCompleted(Message):
    """The checkpoint is complete: told to all attempts of the job."""

    job_id: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CommitTasks(Message):
    """Of a job without checkpoints: these attempts, which wait, commit what they have prepared, and end."""

    job_id: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class CloseJob(Message):
    """Cancel what runs and release everything; answered by `JobClosed`, unless the job is not open."""

    job_id: str


@dataclass(frozen=True, slots=True)
class BlobPart(Message):
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
class AskStatistics(Message):
    """Answered by `Statistics`."""

    token: int


@dataclass(frozen=True, slots=True)
class AskDetails(Message):
    """Answered by `Statistics`, whose document tells what every channel of this JobManager's jobs is like now."""

    token: int


@dataclass(frozen=True, slots=True)
class AskStacks(Message):
    """Answered by `Stacks`: where the code of a job's tasks is.

    Attributes:
        token: of the question.
        job_id: of which job.
        sampled_s: 0: where each task is at this moment; else the stacks of its processes, sampled for so long.
    """

    token: int
    job_id: str
    sampled_s: float = 0.0


# ------------------------------------------------------------------------------------ between a client and a JobManager


@dataclass(frozen=True, slots=True)
class Ask(Message):
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
class Answer(Message):
    """What was asked for."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class AskRefused(Message):
    """It cannot be; the text says why, and what to do."""

    token: int
    text: str


# ------------------------------------------------------------------------------------------------------ both directions


@dataclass(frozen=True, slots=True)
class OperatorEvent(Message):
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
class Refused(Message):
    """The connection is of no use; the sender of this ends it."""

    text: str


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Answered by `Pong` at once: a sign of life, and a look at the other's clock."""

    token: int


@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answers a `Ping`.

    Attributes:
        token: of the ping.
        clock_ns: CLOCK_MONOTONIC of whoever answers.
    """

    token: int
    clock_ns: int


CODEC: Final = MessageCodec(
    kind
    for kind in (*globals().copy().values(), *vars(reports).values())
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
)


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
