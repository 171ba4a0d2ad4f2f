"""One job at a TaskManager whose slots are processes: relays messages between the JobManager and the slots.

Takes: messages of a JobManager. Gives: the same messages to the slots that they concern; merged answers of slots.

A job is opened in a slot when its first task arrives there. A task's descriptor names its slot; later messages about
the attempt go to that slot. The supervisor serves sealed partitions of slots, so they outlive the slot's process. The
network environment for that opens with the first sealed partition; later messages of slots wait until it is open, so
that no consumer connects to a partition that is not served yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import final

import msgpack
import trio

from ...base.errors import ErrorCode, NetstackError, RemoteProtocolError
from ...base.text.safe_text import safe_error, safe_repr, safe_text
from ...base.transport import told_address, url_parts
from ...exchange.stored.files import SealedFiles
from ...network.environment import NetworkEnvironment
from ..control.codec import Attempt, Message, Plain
from ..control.messages import (
    AbortCheckpoint,
    BlobPart,
    CancelTasks,
    CheckpointCompleted,
    CommitTasks,
    KeepDataset,
    OpenJob,
    OperatorEvent,
    ReleasePartitions,
    SubmitTasks,
    TriggerCheckpoint,
    UpdateGate,
)
from ..control.reports import FetchBlob, JobOpened, JobProgress, PartitionSealed, SlotBlocked, SlotEnded, TaskStates
from ..task.latency import merged_rows
from ..task.queued import merged_queued
from .blob_reader import BlobReader, Fetch
from .datasets import KeptDatasets
from .environments import Environments
from .slot import Slot
from .slot_settings import config_of


@final
class JobInSlots:
    """One job in the slot processes; implements `SlotOwner` and `SessionJob`."""

    def __init__(
        self,
        opening: OpenJob,
        slots: list[Slot],
        send: Callable[[Message], None],
        blobs: BlobReader,
        fetch: Fetch,
        source: str,
        environments: Environments,
        datasets: KeptDatasets,
    ) -> None:
        """Creates the job; slots receive it with their first tasks.

        Raises:
            ConfigError: the network settings are invalid.
        """
        self.job_id = opening.job_id
        self.name = safe_text(opening.name)
        self.source = source
        self.reason = ""
        self.refusal = ""
        self._opening = opening
        self._slots = slots
        self._send = send
        self._blobs = blobs
        self._fetch = fetch
        self._where: dict[Attempt, int] = {}
        self._progress: dict[int, Plain] = {}
        self._is_closing = False
        self._closed = trio.Event()
        self._environments = environments
        self._datasets = datasets
        network = self._network_in(slots[0])
        self._network = None if network is None else config_of(network)
        self._environment: NetworkEnvironment | None = None
        self._partitions: set[str] = set()
        self._waiting: list[Message] = []  # messages that wait for the environment
        self._changed = trio.Event()

    async def live(self) -> None:
        """Runs the job until it is closed and all slots have closed it.

        Cancellation: does not wait for the slots.
        """
        self._send(JobOpened(self.job_id))
        try:
            await self._changed.wait()
            if self._waiting:
                await self._serve_sealed()
            await self._closed.wait()
        finally:
            self._blobs.job_left(self.job_id)

    async def _serve_sealed(self) -> None:
        opening = self._opening
        try:
            async with self._environments.of_job(
                self.job_id, self._network, opening.data_address, timeout_s=opening.memory_timeout_s
            ) as environment:
                self._environment = environment
                waiting, self._waiting = self._waiting, []
                try:
                    for message in waiting:
                        self._report(message)
                    await self._closed.wait()
                finally:
                    self._environment = None
                    for name in self._partitions:
                        environment.release_partition(name)
        except NetstackError as error:
            self.refuse(f"the sealed partitions of its slots cannot be served: {safe_error(error)}")

    # From the JobManager.

    def carry_out(self, message: Message) -> None:
        """Forwards a message to the slots that it concerns."""
        match message:
            case SubmitTasks():
                self._submit(message.descriptors)
            case CancelTasks():
                for slot, attempts in self._by_slot(message.attempts):
                    slot.cancel(self.job_id, attempts)
            case CommitTasks() | TriggerCheckpoint() | AbortCheckpoint() | UpdateGate():
                for slot, attempts in self._by_slot(message.attempts):
                    slot.send(self.job_id, replace(message, attempts=attempts))
            case KeepDataset():
                if self._environment is not None:
                    try:
                        self._datasets.keep(message.key, message.names, self._environment)
                    except NetstackError as error:
                        self.refuse(str(error))
                    else:
                        self._partitions.difference_update(message.names)
            case CheckpointCompleted() | ReleasePartitions():
                for slot in self._mine():
                    slot.send(self.job_id, message)
                if isinstance(message, ReleasePartitions) and self._environment is not None:
                    self._partitions.difference_update(message.names)
                    for name in message.names:
                        self._environment.release_partition(name)
            case OperatorEvent():
                for slot, _ in self._by_slot([message.attempt]):
                    slot.send(self.job_id, message)
            case _:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME, f"{type(message).__name__} is not a command for a TaskManager"
                )

    def close(self, reason: str) -> None:
        """Closes the job in all slots. Idempotent."""
        if self._is_closing:
            return
        self._is_closing = True
        self.reason = reason
        for slot in self._mine():
            slot.close(self.job_id)
        self._end_if_closed()

    def refuse(self, why: str) -> None:
        """Closes the job because it was rejected or cannot continue; the first reason counts."""
        self.refusal = self.refusal or why
        self.close(why)

    def on_message(self, slot: int, message: Message) -> None:
        """Forwards a message of a slot to the JobManager; sums progress over all slots."""
        if isinstance(message, JobProgress):
            self._progress[slot] = message.vertices
            message = JobProgress(self.job_id, _sums(self._progress.values()))
        self._report(message)

    def on_closed(self, slot: int, refusal: str, attempts: tuple[Attempt, ...]) -> None:
        """Handles a slot that has closed or rejected the job."""
        self._progress.pop(slot, None)
        if refusal and not self._is_closing:
            self._report(SlotEnded(self.job_id, slot, attempts, f"it rejected the job: {refusal}"))
        self._forget(slot)
        self._end_if_closed()

    def on_ended(self, slot: int, how: str, attempts: tuple[Attempt, ...], canceled: tuple[Attempt, ...]) -> None:
        """Reports the end of a slot's process to the JobManager."""
        self._progress.pop(slot, None)
        if attempts:
            self._report(SlotEnded(self.job_id, slot, attempts, how))
        if canceled:
            self._report(TaskStates(self.job_id, "canceled", canceled))
        self._forget(slot)
        self._end_if_closed()

    def on_blocked(self, slot: int, blocked_s: float, where: Plain) -> None:
        """Reports a blocked slot to the JobManager."""
        self._report(SlotBlocked(self.job_id, slot, blocked_s, where))

    async def blob(self, fetch: FetchBlob) -> BlobPart:
        """Returns a part of a blob of the job."""
        return await self._blobs.part(self.job_id, fetch, self._fetch)

    def _report(self, message: Message) -> None:
        """Sends a message to the JobManager in order; takes over sealed partitions."""
        if not isinstance(message, PartitionSealed) and not self._waiting:
            self._send(message)
        elif self._environment is None:
            self._waiting.append(message)
            self._changed.set()
        elif isinstance(message, PartitionSealed):
            sealed = SealedFiles(message.files, message.subpartitions, message.drain, message.stored_bytes)
            self._partitions.add(message.name)
            self._environment.take_over(message.name, sealed)

    def _submit(self, descriptors: Iterable[bytes]) -> None:
        by_slot: dict[int, list[tuple[Attempt, bytes]]] = {}
        for descriptor in descriptors:
            attempt, number = place_of(descriptor)
            if not 0 <= number < len(self._slots):
                raise RemoteProtocolError(
                    ErrorCode.MALFORMED_FRAME,
                    f"a task is for slot {number}, but there are only {len(self._slots)} slots",
                )
            by_slot.setdefault(number, []).append((attempt, descriptor))
        for number, tasks in by_slot.items():
            slot = self._slots[number]
            if self.job_id not in slot.jobs:
                slot.open(self._opening_in(number), self)
            self._where.update(dict.fromkeys((attempt for attempt, _ in tasks), number))
            slot.submit(self.job_id, [attempt for attempt, _ in tasks], tuple(packed for _, packed in tasks))

    def _opening_in(self, slot: int) -> OpenJob:
        """Returns the `OpenJob` for a slot, with the slot's data port and at most the slot's memory."""
        address = _reachable(self._slots[slot].url, self._opening.data_address)
        return replace(self._opening, data_address=address, network=self._network_in(self._slots[slot]))

    def _network_in(self, slot: Slot) -> Plain | None:
        """Returns the job's network settings with at most the slot's memory."""
        network = self._opening.network
        if network is None:
            return None
        return {**network, "memory_bytes": min(network["memory_bytes"], slot.memory_bytes)}

    def _mine(self) -> list[Slot]:
        return [slot for slot in self._slots if (job := slot.jobs.get(self.job_id)) is not None and job.owner is self]

    def _by_slot(self, attempts: Iterable[Attempt]) -> list[tuple[Slot, tuple[Attempt, ...]]]:
        by_slot: dict[int, list[Attempt]] = {}
        for attempt in attempts:
            slot = self._where.get(attempt)
            if slot is not None and self.job_id in self._slots[slot].jobs:
                by_slot.setdefault(slot, []).append(attempt)
        return [(self._slots[slot], tuple(mine)) for slot, mine in by_slot.items()]

    def _forget(self, slot: int) -> None:
        self._where = {attempt: place for attempt, place in self._where.items() if place != slot}

    def _end_if_closed(self) -> None:
        if self._is_closing and not self._mine():
            self._closed.set()
            self._changed.set()


def place_of(descriptor: bytes) -> tuple[Attempt, int]:
    """Reads only the attempt and the slot of a packed `TaskDeploymentDescriptor`.

    Raises:
        RemoteProtocolError: the descriptor is malformed.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(descriptor)
    try:
        unpacker.read_array_header()
        _, vertex, subtask, attempt = unpacker.unpack()
        slot = int(str(unpacker.unpack()).rpartition("/")[2])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(
            ErrorCode.MALFORMED_FRAME, f"a task deployment descriptor is malformed: {safe_repr(str(error))}"
        ) from error
    return (vertex, subtask, attempt), slot


def _reachable(url: str, data_address: str) -> str:
    """Returns the URL of a slot for other hosts; replaces a wildcard host by that of the data address."""
    parts = url_parts(url)
    if parts.hostname not in ("0.0.0.0", "::") or parts.port is None:
        return told_address(url)
    host = url_parts(data_address).netloc.rpartition(":")[0]
    return f"{parts.scheme}://{host}:{parts.port}"


def _sums(progress: Iterable[Plain]) -> Plain:
    """Sums the progress of each vertex over all slots."""
    sums: Plain = {}
    for vertices in progress:
        for vertex, numbers in vertices.items():
            row = sums.setdefault(vertex, {})
            for name, value in numbers.items():
                if name == "latencies":
                    row[name] = merged_rows([row.get(name, {}), value])
                elif name == "queued":
                    row[name] = merged_queued([row.get(name, {}), value])
                else:
                    row[name] = row.get(name, 0) + value
    return sums
