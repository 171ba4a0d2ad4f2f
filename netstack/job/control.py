"""What the master of a job and its workers say to each other, and how within one process.

Takes: messages. Gives: the same messages at the other end, in order. `control_stream` carries them between processes.

Rules: `send` never waits: what is sent is little, a few messages a checkpoint and subtask. Messages of a run carry its
number, and one of another run is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, final

import trio

from ..errors import ConnectionLost
from .spec import Job
from .task_checkpoints import SubtaskReport

Subtasks: TypeAlias = tuple[tuple[str, int], ...]


# ------------------------------------------------------------------------------------------- from master to worker


@dataclass(frozen=True, slots=True)
class Deploy:
    """Open a TaskManager, create the partitions of your subtasks, answer `Deployed`.

    Attributes:
        attempt: which run of the job.
        job: the job itself.
        worker: which worker you are.
        workers: how many there are.
        restore: the checkpoint to go on from; -1 is none.
    """

    attempt: int
    job: Job
    worker: int
    workers: int
    restore: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Open gates and operators, restore, answer `Running`, and run.

    Attributes:
        attempt: which run.
        addresses: of the TaskManagers of all workers.
    """

    attempt: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """These subtasks take a checkpoint. `barrier` is the event's bytes (`events.encode_event`)."""

    attempt: int
    barrier: bytes
    subtasks: Subtasks


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """The checkpoint will not happen."""

    attempt: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class StoreFinals:
    """Write the final states of these subtasks, which have ended, into a checkpoint, and acknowledge for them."""

    attempt: int
    checkpoint_id: int
    subtasks: Subtasks


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the run, whatever its state; answer `Stopped`."""

    attempt: int


# ------------------------------------------------------------------------------------------- from worker to master


@dataclass(frozen=True, slots=True)
class Deployed:
    """The worker's partitions are there, at this address."""

    attempt: int
    address: str


@dataclass(frozen=True, slots=True)
class Running:
    """All subtasks of the worker run."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A subtask has stored its part, in a file of this checksum."""

    attempt: int
    checkpoint_id: int
    crc32: int
    report: SubtaskReport


@dataclass(frozen=True, slots=True)
class Declined:
    """A subtask cannot take part."""

    attempt: int
    checkpoint_id: int
    task: str
    subtask: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A subtask has ended well."""

    attempt: int
    task: str
    subtask: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Something failed, so the run has to end.

    Attributes:
        attempt: which run.
        task: of the subtask that failed; empty when it was none.
        subtask: which.
        cause: error and text.
        is_secondary: whether the cause lies with somebody else: a connection or a producer was lost.
        error: the error itself; within one process only.
    """

    attempt: int
    task: str
    subtask: int
    cause: str
    is_secondary: bool
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing of the run is left in the worker."""

    attempt: int


Message: TypeAlias = (
    Deploy
    | Connect
    | TriggerCheckpoint
    | AbortCheckpoint
    | StoreFinals
    | Cancel
    | Deployed
    | Running
    | Acknowledged
    | Declined
    | Ended
    | Failed
    | Stopped
)


class ControlLink(Protocol):
    """One end of what connects master and worker."""

    peer: str
    """Who is at the other end."""

    def send(self, message: Message) -> None:
        """Sends; does nothing when the other end is gone, which `receive` tells."""

    async def receive(self) -> Message:
        """The next message.

        Raises:
            ConnectionLost: the other end is gone.
            RemoteProtocolError: it sent what is no message.

        Cancellation: nothing is lost; ask again.
        """

    def close(self) -> None:
        """The other end reads the end; idempotent."""


# ------------------------------------------------------------------------------------------------- in one process


@final
class LocalLink:
    """One end of a pair in one process: `local_links`."""

    def __init__(
        self, peer: str, out: trio.MemorySendChannel[Message], incoming: trio.MemoryReceiveChannel[Message]
    ) -> None:
        self.peer = peer
        self._out = out
        self._in = incoming

    def send(self, message: Message) -> None:
        """See `ControlLink.send`."""
        try:
            self._out.send_nowait(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def receive(self) -> Message:
        """See `ControlLink.receive`."""
        try:
            return await self._in.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise ConnectionLost(f"{self.peer} is gone") from error

    def close(self) -> None:
        """See `ControlLink.close`."""
        self._out.close()
        self._in.close()


def local_links(name: str) -> tuple[LocalLink, LocalLink]:
    """The master's end and the worker's end of a link within this process."""
    to_worker, from_master = trio.open_memory_channel[Message](_UNBOUNDED)
    to_master, from_worker = trio.open_memory_channel[Message](_UNBOUNDED)
    return LocalLink(name, to_worker, from_worker), LocalLink("the master", to_master, from_master)


_UNBOUNDED: Final = float("inf")
