"""One control connection of a supervisor: it forwards messages of a JobManager to the slots, and theirs back.

Takes: messages of a JobManager. Gives: the same messages to the slots they are about, answers of several slots as one.

A job is opened in a slot when its first task there arrives. A task's descriptor names its slot; later messages about
the attempt follow it. Messages about partitions go to every slot that has the job: it ignores what
it does not have.

Rules: jobs belong to the connection and are closed with it, as in a `ControlSession`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol, final

import msgpack
import trio

from ..control.codec import Attempt, Plain
from ..control.link import MessageLink
from ..control.messages import (
    AbortCheckpoint,
    AskDetails,
    AskStacks,
    AskStatistics,
    BlobKept,
    BlobPart,
    CancelTasks,
    CheckpointCompleted,
    CloseJob,
    CommitTasks,
    DropDataset,
    FetchBlob,
    JobClosed,
    JobOpened,
    JobProgress,
    JobRefused,
    KeepDataset,
    Message,
    OpenJob,
    ReleasePartitions,
    SlotBlocked,
    SlotEnded,
    Stacks,
    Statistics,
    SubmitTasks,
    TaskStates,
    TriggerCheckpoint,
    UpdateGate,
)
from ..control.routing import check_job_id
from ..errors import ErrorCode, NetstackError, RemoteProtocolError, RequestRefused
from ..shown import shown, shown_error, shown_text
from ..transport import told_address, url_parts
from .blob_places import BlobPlaces
from .blob_reader import BlobReader
from .blobs import BlobFetcher, BlobSender
from .network_settings import config_of
from .session import JOBS_AT_MOST, explained, job_of
from .slot import Slot
from .slot_processes import SlotProcesses

LOGGER: Final = logging.getLogger("netstack.taskmanager")


class RelayHost(Protocol):
    """What a relay needs of its TaskManager."""

    blob_places: BlobPlaces

    async def full_statistics(self) -> Plain:
        """See `TaskManager.full_statistics`."""

    async def full_details(self) -> Plain:
        """See `TaskManager.full_details`."""

    async def full_stacks(self, job_id: str) -> Plain:
        """See `TaskManager.full_stacks`."""


@final
class RelaySession:
    """A control connection whose greetings are exchanged, at a TaskManager whose slots are processes.

    Args:
        link: to the JobManager.
        host: the TaskManager.
        processes: its slots.
        blobs: keeps what jobs fetch, for all slots.
    """

    def __init__(self, link: MessageLink, host: RelayHost, processes: SlotProcesses, blobs: BlobReader) -> None:
        self._link = link
        self._host = host
        self._slots = processes.slots
        self._jobs: dict[str, _RelayedJob] = {}
        self._reader = blobs
        self._fetcher = BlobFetcher(link.send, host.blob_places.read)
        self._sender = BlobSender(link, blobs.part_of_kept)
        self._changed = trio.Event()
        self._had_jobs = False

    async def serve(self) -> None:
        """Carries out what comes, until the connection ends and no job of it is left in any slot.

        Cancellation: the jobs are left to whoever ends the slots.
        """
        reason = "the TaskManager is stopping"
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    self._carry_out(await self._link.receive(), nursery)
            except NetstackError as error:
                reason = shown_error(error)
            finally:
                self._fetcher.lost(f"{self._link.peer} is gone")
                for job in list(self._jobs.values()):
                    job.close()
            while self._jobs:
                await self._changed.wait()
        LOGGER.log(
            logging.INFO if self._had_jobs else logging.DEBUG, "%s has gone: %s", shown_text(self._link.peer), reason
        )

    def _carry_out(self, message: Message, nursery: trio.Nursery) -> None:
        match message:
            case OpenJob():
                self._open(message)
            case DropDataset():
                for slot in self._slots:
                    slot.drop_dataset(message, message.key)
            case BlobPart():
                self._fetcher.part(message)
            case FetchBlob():
                nursery.start_soon(self._sender.asked, message)
            case BlobKept():
                pass  # of a TaskManager that has fetched a blob here
            case AskStatistics():
                nursery.start_soon(self._tell_statistics, message.token)
            case AskDetails():
                nursery.start_soon(self._tell_details, message.token)
            case AskStacks():
                nursery.start_soon(self._tell_stacks, message)
            case _:
                job = self._jobs.get(job_of(message, self._link.peer))
                if job is not None:  # else it is over
                    job.carry_out(message)

    def _open(self, message: OpenJob) -> None:
        try:
            job_id = check_job_id(message.job_id)
            if job_id in self._jobs or any(job_id in slot.jobs for slot in self._slots):
                raise RequestRefused(f"job {job_id} exists already; choose another id")
            if len(self._jobs) >= JOBS_AT_MOST:
                raise RequestRefused(f"{JOBS_AT_MOST} jobs of this connection are open here; close some first")
            if message.slots:
                raise RequestRefused(
                    "this TaskManager has a process for each slot, and works for a JobManager only; start it with"
                    " --slots-in loop to drive it directly"
                )
            if message.network is not None:
                config_of(message.network)
        except (NetstackError, TypeError) as error:
            self._link.send(JobRefused(message.job_id, explained(error)))
            return
        self._jobs[job_id] = _RelayedJob(message, self._slots, self._link, self._blob, self._job_ended)
        self._had_jobs = True
        LOGGER.info("job %s (%s): its tasks may come", job_id, shown_text(message.name))
        self._link.send(JobOpened(job_id))

    def _job_ended(self, job_id: str) -> None:
        del self._jobs[job_id]
        LOGGER.info("job %s closed", job_id)
        self._reader.job_left(job_id)
        self._link.send(JobClosed(job_id, ""))
        self._changed.set()
        self._changed = trio.Event()

    async def _blob(self, job_id: str, fetch: FetchBlob) -> BlobPart:
        return await self._reader.part(job_id, fetch, self._fetcher.fetch)

    async def _tell_statistics(self, token: int) -> None:
        self._link.send(Statistics(token, await self._host.full_statistics()))

    async def _tell_details(self, token: int) -> None:
        self._link.send(Statistics(token, await self._host.full_details()))

    async def _tell_stacks(self, message: AskStacks) -> None:
        self._link.send(Stacks(message.token, await self._host.full_stacks(message.job_id)))


@final
class _RelayedJob:
    """One job of a JobManager in the slots (a `SlotOwner`)."""

    def __init__(
        self,
        opening: OpenJob,
        slots: list[Slot],
        link: MessageLink,
        blob: Callable[[str, FetchBlob], Awaitable[BlobPart]],
        on_end: Callable[[str], None],
    ) -> None:
        self._opening = opening
        self._job_id = opening.job_id
        self._slots = slots
        self._link = link
        self._blob = blob
        self._on_end = on_end
        self._where: dict[Attempt, int] = {}
        self._progress: dict[int, Plain] = {}
        self._is_closing = False

    # From the JobManager.

    def carry_out(self, message: Message) -> None:
        """Sends a message on to the slots it is about."""
        match message:
            case SubmitTasks():
                self._submit(message.descriptors)
            case CancelTasks():
                for slot, attempts in self._by_slot(message.attempts):
                    slot.cancel(self._job_id, attempts)
            case CommitTasks():
                for slot, attempts in self._by_slot(message.attempts):
                    slot.send(self._job_id, CommitTasks(self._job_id, attempts))
            case TriggerCheckpoint():
                for slot, attempts in self._by_slot(message.attempts):
                    slot.send(
                        self._job_id,
                        TriggerCheckpoint(self._job_id, message.barrier, attempts, message.is_savepoint, message.stops),
                    )
            case AbortCheckpoint():
                for slot, attempts in self._by_slot(message.attempts):
                    slot.send(self._job_id, AbortCheckpoint(self._job_id, message.checkpoint_id, attempts))
            case UpdateGate():
                for slot, attempts in self._by_slot(message.attempts):
                    slot.send(self._job_id, UpdateGate(self._job_id, attempts, message.gate, message.descriptors))
            case KeepDataset():
                if 0 <= message.slot < len(self._slots) and self._job_id in self._slots[message.slot].jobs:
                    self._slots[message.slot].send(self._job_id, message)
            case CheckpointCompleted() | ReleasePartitions():
                for slot in self._mine():
                    slot.send(self._job_id, message)
            case CloseJob():
                self.close()
            case _:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME, f"{type(message).__name__} is nothing that is said to a TaskManager"
                )

    def close(self) -> None:
        """The job leaves all slots; idempotent."""
        self._is_closing = True
        for slot in self._mine():
            slot.close(self._job_id)
        self._end_if_closed()

    # From the slots (`SlotOwner`).

    def on_message(self, slot: int, message: Message) -> None:
        """See `SlotOwner`."""
        if isinstance(message, JobProgress):
            self._progress[slot] = message.vertices
            message = JobProgress(self._job_id, _sums(self._progress.values()))
        self._link.send(message)

    def on_closed(self, slot: int, refusal: str, attempts: tuple[Attempt, ...]) -> None:
        """See `SlotOwner`."""
        self._progress.pop(slot, None)
        if refusal and not self._is_closing:
            self._link.send(SlotEnded(self._job_id, slot, attempts, f"it does not take the job: {refusal}"))
        self._forget(slot)
        self._end_if_closed()

    def on_ended(self, slot: int, how: str, attempts: tuple[Attempt, ...], canceled: tuple[Attempt, ...]) -> None:
        """See `SlotOwner`."""
        self._progress.pop(slot, None)
        if attempts:
            self._link.send(SlotEnded(self._job_id, slot, attempts, how))
        if canceled:
            self._link.send(TaskStates(self._job_id, "canceled", canceled))
        self._forget(slot)
        self._end_if_closed()

    def on_blocked(self, slot: int, blocked_s: float, where: Plain) -> None:
        """See `SlotOwner`."""
        self._link.send(SlotBlocked(self._job_id, slot, blocked_s, where))

    async def blob(self, fetch: FetchBlob) -> BlobPart:
        """See `SlotOwner`."""
        return await self._blob(self._job_id, fetch)

    # Inside.

    def _submit(self, descriptors: Iterable[bytes]) -> None:
        found: dict[int, list[tuple[Attempt, bytes]]] = {}
        for descriptor in descriptors:
            attempt, number = place_of(descriptor)
            if not 0 <= number < len(self._slots):
                raise RemoteProtocolError(
                    ErrorCode.MALFORMED_FRAME, f"a task is for slot {number}, and there are {len(self._slots)}"
                )
            found.setdefault(number, []).append((attempt, descriptor))
        for number, tasks in found.items():
            slot = self._slots[number]
            if self._job_id not in slot.jobs:
                slot.open(self._opening_in(number), self)
            self._where.update(dict.fromkeys((attempt for attempt, _ in tasks), number))
            slot.submit(self._job_id, [attempt for attempt, _ in tasks], tuple(packed for _, packed in tasks))

    def _opening_in(self, slot: int) -> OpenJob:
        """What opens the job in a slot: with the slot's data port, and at most the slot's memory."""
        opening = self._opening
        network = opening.network
        if network is not None:
            network = {**network, "memory_bytes": min(network["memory_bytes"], self._slots[slot].memory_bytes)}
        address = _reachable(self._slots[slot].url, opening.data_address)
        return replace(opening, data_address=address, network=network)

    def _mine(self) -> list[Slot]:
        """The slots that have the job."""
        return [slot for slot in self._slots if (job := slot.jobs.get(self._job_id)) is not None and job.owner is self]

    def _by_slot(self, attempts: Iterable[Attempt]) -> list[tuple[Slot, tuple[Attempt, ...]]]:
        found: dict[int, list[Attempt]] = {}
        for attempt in attempts:
            slot = self._where.get(attempt)
            if slot is not None and self._job_id in self._slots[slot].jobs:
                found.setdefault(slot, []).append(attempt)
        return [(self._slots[slot], tuple(mine)) for slot, mine in found.items()]

    def _forget(self, slot: int) -> None:
        self._where = {attempt: place for attempt, place in self._where.items() if place != slot}

    def _end_if_closed(self) -> None:
        if self._is_closing and not self._mine():
            self._is_closing = False
            self._on_end(self._job_id)


def place_of(descriptor: bytes) -> tuple[Attempt, int]:
    """The attempt and the slot that a packed `TaskDeploymentDescriptor` is for, without reading the rest of it.

    Raises:
        RemoteProtocolError: it is none.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(descriptor)
    try:
        unpacker.read_array_header()
        _, vertex, subtask, attempt = unpacker.unpack()
        slot = int(str(unpacker.unpack()).rpartition("/")[2])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(
            ErrorCode.MALFORMED_FRAME, f"no task deployment descriptor: {shown(str(error))}"
        ) from error
    return (vertex, subtask, attempt), slot


def _reachable(url: str, data_address: str) -> str:
    """The URL of a slot as others know it: a port that listens everywhere is at the host that they know."""
    parts = url_parts(url)
    if parts.hostname not in ("0.0.0.0", "::") or parts.port is None:
        return told_address(url)
    host = url_parts(data_address).netloc.rpartition(":")[0]
    return f"{parts.scheme}://{host}:{parts.port}"


def _sums(progress: Iterable[Plain]) -> Plain:
    """The progress of each vertex over all slots."""
    found: Plain = {}
    for vertices in progress:
        for vertex, numbers in vertices.items():
            row = found.setdefault(vertex, {})
            for name, value in numbers.items():
                row[name] = row.get(name, 0) + value
    return found
