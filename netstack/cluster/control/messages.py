"""The messages of the control protocol, except those from TaskManagers to a JobManager (`reports`).

Takes: nothing. Gives: frozen messages, and `CODEC`, which encodes all of them.

Rules: a message about a job carries the job's id, and is ignored when that job is not open. A message about a task
carries its attempt, so a late message about an old attempt is recognised.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from . import reports
from .codec import Attempt, Message, MessageCodec, Plain

VERSION: Final = 5
"""Version of the control protocol."""

GREETING: Final = "netstack control"

SLICE_BYTES: Final = 1 << 20
"""Long contents are cut into messages of about this length, so that heartbeats pass between them."""


# ----------------------------------------------------------------------------------- from a JobManager to a TaskManager


@dataclass(frozen=True, slots=True)
class OpenJob(Message):
    """Prepares a TaskManager for tasks of a job; answered by `JobOpened` or `JobRefused`.

    Attributes:
        job_id: 16 hex digits, globally unique.
        memory_timeout_s: how long to wait for memory that other jobs hold.
        data_address: address at which other TaskManagers reach this one; shuffle descriptors contain it.
        network: settings of the job's own network environment; None: the job uses the shared one.
        information: packed information that all tasks of the job share; may be empty.
    """

    job_id: str
    name: str
    memory_timeout_s: float
    data_address: str
    network: Plain | None
    information: bytes


@dataclass(frozen=True, slots=True)
class SubmitTasks(Message):
    """Creates and starts attempts; answered by their states. An attempt that cannot be created fails alone.

    Attributes:
        descriptors: packed `TaskDeploymentDescriptor`s (`submissions`).
    """

    job_id: str
    descriptors: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CancelTasks(Message):
    """Cancels attempts; an attempt that has not arrived yet is canceled when it arrives."""

    job_id: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class UpdateGate(Message):
    """Adds producers to an input gate of running attempts.

    Attributes:
        attempts: attempts of one job vertex.
        descriptors: packed `ShuffleDescriptors`.
    """

    job_id: str
    attempts: tuple[Attempt, ...]
    gate: int
    descriptors: bytes


@dataclass(frozen=True, slots=True)
class ReleasePartitions(Message):
    """Releases partitions that no consumer needs any more."""

    job_id: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeepDataset(Message):
    """Keeps partitions of the job after it is closed, until `DropDataset`."""

    job_id: str
    key: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropDataset(Message):
    """Releases a kept dataset; an unknown key is ignored."""

    key: str


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint(Message):
    """Starts a checkpoint at these attempts.

    Attributes:
        barrier: the encoded barrier (`events.encode_event`).
        attempts: sources, or tasks whose sources have ended.
        stops: whether sources stop after it, without sending EndOfData.
    """

    job_id: str
    barrier: bytes
    attempts: tuple[Attempt, ...]
    is_savepoint: bool
    stops: bool


@dataclass(frozen=True, slots=True)
class AbortCheckpoint(Message):
    """Aborts a checkpoint."""

    job_id: str
    checkpoint_id: int
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class CheckpointCompleted(Message):
    """Announces a completed checkpoint to all attempts of the job."""

    job_id: str
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CommitTasks(Message):
    """Makes waiting attempts of a job without checkpoints commit their prepared output and finish."""

    job_id: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class CloseJob(Message):
    """Cancels the job's tasks and releases its resources; answered by `JobClosed` if the job is open."""

    job_id: str


@dataclass(frozen=True, slots=True)
class BlobPart(Message):
    """Answers `FetchBlob`.

    Attributes:
        offset: offset of `data` in the blob.
        total: length of the blob in bytes; -1: there is no such blob, and `data` is the reason as UTF-8.
        data: at most `SLICE_BYTES`.
        place: if not empty, where to read the blob instead: `file://PATH`, or the control address of a TaskManager.
    """

    key: str
    offset: int
    total: int
    data: bytes
    place: str = ""


@dataclass(frozen=True, slots=True)
class AskStatistics(Message):
    """Requests counters; answered by `Statistics`."""

    token: int


@dataclass(frozen=True, slots=True)
class AskDetails(Message):
    """Requests the state of every channel of the JobManager's jobs; answered by `Statistics`."""

    token: int


@dataclass(frozen=True, slots=True)
class AskStacks(Message):
    """Requests the stacks of a job's tasks; answered by `Stacks`.

    Attributes:
        sampled_s: 0: the current stack of each task; else the stacks of its processes, sampled for this long.
    """

    token: int
    job_id: str
    sampled_s: float = 0.0


# ------------------------------------------------------------------------------------ between a client and a JobManager


@dataclass(frozen=True, slots=True)
class Ask(Message):
    """A request of a client to a JobManager or a Subscriber; answered by `Answer` or `AskRefused`.

    Attributes:
        token: identifies the request; chosen by the client.
    """

    token: int
    what: str
    document: Plain


@dataclass(frozen=True, slots=True)
class Answer(Message):
    """The successful answer to an `Ask`."""

    token: int
    document: Plain


@dataclass(frozen=True, slots=True)
class AskRefused(Message):
    """Rejects an `Ask`; the text contains the reason and what to do."""

    token: int
    text: str


# ------------------------------------------------------------------------------------------------------ both directions


@dataclass(frozen=True, slots=True)
class OperatorEvent(Message):
    """A message between an operator and its coordinator in the JobManager; order is preserved."""

    job_id: str
    attempt: Attempt
    event: Plain


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """Rejects the connection; the sender closes it."""

    text: str


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """A heartbeat and a request for the peer's clock; answered by `Pong` at once."""

    token: int


@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answers a `Ping`.

    Attributes:
        clock_ns: CLOCK_MONOTONIC of the answering process.
    """

    token: int
    clock_ns: int


CODEC: Final = MessageCodec(
    kind
    for kind in (*globals().copy().values(), *vars(reports).values())
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
)


def submissions(job_id: str, descriptors: Iterable[bytes]) -> Iterator[SubmitTasks]:
    """Packs any number of descriptors into messages of about `SLICE_BYTES`; a longer descriptor gets its own."""
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
    """Returns the part of a blob at an offset; an offset beyond the end yields no data."""
    return BlobPart(key, offset, len(data), data[offset : offset + SLICE_BYTES] if offset >= 0 else b"")


def attempts_of(message: Message) -> tuple[Attempt, ...]:
    """Returns the attempts that a message concerns."""
    attempts: tuple[Attempt, ...] = getattr(message, "attempts", ())
    one: Attempt | None = getattr(message, "attempt", None)
    return attempts if one is None else (one,)


_ATTEMPTS_AT_ONCE: Final = 1 << 16


def slices(attempts: Iterable[Attempt]) -> Iterator[tuple[Attempt, ...]]:
    """Splits any number of attempts into groups that fit into one message each."""
    remaining = iter(attempts)
    while chosen := tuple(itertools.islice(remaining, _ATTEMPTS_AT_ONCE)):
        yield chosen
