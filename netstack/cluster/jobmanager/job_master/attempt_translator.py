"""Translates between a scheduler, which numbers subtasks, and TaskManagers, which identify attempts.

Takes: a scheduler's instructions, and messages of TaskManagers. Gives: messages for TaskManagers, and events.

Rules: this module never waits, decides or reads a clock. Descriptors are created while their `Deploy` is carried out,
before the scheduler handles another event, as `Deploy` requires. A message about a subtask that the job does not have
is the peer's protocol error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ....base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from ....base.ids import PartitionId
from ....base.text.safe_text import safe_repr, safe_text
from ....schedule import events, instructions
from ....schedule.descriptors.shuffle import TaskManagerLocation, dataset_part, partition_name, partition_place
from ....schedule.execution import ExecutionInput
from ....schedule.scheduler import Scheduler
from ....schedule.slots.slots import PhysicalSlot
from ....schedule.structures import IndexArray, index_array
from ...control.codec import TEXT_CHARACTERS, Attempt, Message
from ...control.messages import CancelTasks, CommitTasks, ReleasePartitions, UpdateGate, slices
from ...control.reports import PartitionConsumable, SlotEnded, TaskFailed, TaskFinished, TaskStates
from ...failure_report import checked_report, with_place
from ..log import Failed

Addressed: TypeAlias = tuple[str, Message]
"""The name of a TaskManager and a message for it."""

_STATES: Final = {
    "initializing": ExecutionInput.INITIALIZE,
    "running": ExecutionInput.RUN,
    "canceled": ExecutionInput.CANCELED,
}


@final
class AttemptTranslator:
    """Translates the instructions and messages of one job.

    Args:
        scheduler: scheduler of the job; only read.
    """

    def __init__(self, job_id: str, scheduler: Scheduler) -> None:
        self._job_id = job_id
        self._scheduler = scheduler
        job = scheduler.topology.job
        self._datasets = {dataset_part(dataset.name): number for number, dataset in enumerate(job.datasets)}

    # To TaskManagers.

    def cancellations(self, cancel: instructions.Cancel) -> Iterator[Addressed]:
        """Yields the messages of a `Cancel`."""
        for name, attempts in self._by_taskmanager(cancel.subtasks, cancel.attempts, cancel.slots):
            for some in slices(attempts):
                yield name, CancelTasks(self._job_id, some)

    def commits(self, commit: instructions.CommitTasks) -> Iterator[Addressed]:
        """Yields the messages of a `CommitTasks`."""
        for name, attempts in self._by_taskmanager(commit.subtasks, commit.attempts, commit.slots):
            for some in slices(attempts):
                yield name, CommitTasks(self._job_id, some)

    def updates(self, update: instructions.UpdateGate) -> Iterator[Addressed]:
        """Yields the messages of an `UpdateGate`."""
        for name, attempts in self._by_taskmanager(update.subtasks, update.attempts, update.slots):
            for some in slices(attempts):
                yield name, UpdateGate(self._job_id, some, update.gate, update.descriptors)

    def releases(self, release: instructions.ReleasePartitions) -> Iterator[Addressed]:
        """Yields the messages of a `ReleasePartitions`."""
        names: dict[str, list[PartitionId]] = {}
        for partition, attempt, name in zip(
            release.partitions.tolist(), release.attempts.tolist(), release.taskmanagers, strict=True
        ):
            names.setdefault(name, []).append(self.partition_name(partition, attempt))
        for name, partitions in names.items():
            for first in range(0, len(partitions), _NAMES_AT_ONCE):
                yield name, ReleasePartitions(self._job_id, tuple(partitions[first : first + _NAMES_AT_ONCE]))

    def partition_name(self, partition: int, attempt: int) -> PartitionId:
        """Returns the cluster-wide name of an attempt's partition."""
        topology = self._scheduler.topology
        dataset = int(topology.dataset_of_partition[partition])
        index = partition - topology.partitions_of(dataset).start
        return partition_name(self._scheduler.execution, topology.job.datasets[dataset].name, index, attempt)

    # From TaskManagers.

    def states(self, message: TaskStates) -> events.TasksReported:
        """Returns the event for a batch of states. Raises RemoteProtocolError if the state or a subtask is unknown."""
        what = _STATES.get(message.state)
        if what is None:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"a TaskManager reports the unknown task state {safe_text(message.state)}"
            )
        return events.TasksReported(what, *self._latest(message.attempts))

    def waiting(self, message: TaskStates) -> events.TasksWaiting:
        """Returns the event for a batch of waiting attempts. Raises as `states`."""
        return events.TasksWaiting(*self._latest(message.attempts))

    def _latest(self, attempts: Iterable[Attempt]) -> tuple[IndexArray, npt.NDArray[np.uint32]]:
        """Returns the subtasks of attempts in ascending order, and the newest attempt of each."""
        latest: dict[int, int] = {}
        for attempt in attempts:
            subtask = self.subtask(attempt)
            latest[subtask] = max(latest.get(subtask, 0), attempt[2])
        subtasks = sorted(latest)
        return index_array(subtasks), np.array([latest[subtask] for subtask in subtasks], np.uint32)

    def finished(self, message: TaskFinished) -> events.TasksReported:
        """Returns the event for a finished task.

        Raises:
            RemoteProtocolError: the subtask is unknown, or the partitions do not match.
        """
        subtask = self.subtask(message.attempt)
        partitions = self._scheduler.topology.partitions_of_subtask(subtask)
        is_dynamic = self._scheduler.topology.job.is_dynamic
        if (message.produced_bytes or is_dynamic) and len(message.produced_bytes) != len(partitions):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"attempt {message.attempt} reports {len(message.produced_bytes)} partitions but has {len(partitions)}",
            )
        if len(message.kept) > len(partitions) or any(len(sizes) != 3 for sizes in message.kept):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"attempt {message.attempt} reports malformed sizes of kept partitions: {safe_repr(message.kept)}",
            )
        counts = [self._subpartitions(partition) for partition in partitions]
        if any(len(sizes) != count for sizes, count in zip(message.produced_bytes, counts, strict=False)):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME,
                f"attempt {message.attempt} reports {[*map(len, message.produced_bytes)]} subpartitions but has"
                f" {counts}",
            )
        produced: Mapping[int, npt.NDArray[np.int64]] = {
            partition: np.array(sizes, np.int64)
            for partition, sizes in zip(partitions, message.produced_bytes, strict=False)
        }
        return events.TasksReported(
            ExecutionInput.FINISH, index_array([subtask]), np.array([message.attempt[2]], np.uint32), produced
        )

    def failed(self, where: TaskManagerLocation, message: TaskFailed) -> tuple[events.TaskFailed, Failed]:
        """Returns the event for a failed task, and its entry in the failure history.

        Raises:
            RemoteProtocolError: the subtask is unknown, or the failure report is malformed.
        """
        subtask = self.subtask(message.attempt)
        vertex, index, attempt = message.attempt
        name = self._scheduler.topology.job.vertices[vertex].name
        try:
            report = checked_report(message.report)
        except ValueError as error:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"attempt {message.attempt}: {error}") from error
        missing, missing_attempt = self._missing(message.missing_partition)
        text = safe_text(message.text, TEXT_CHARACTERS)
        label = f"{safe_text(message.kind)}{': ' if text else ''}{text}"
        text = with_place(f"{name} ({index}) on {where.name}: {label}", report)
        failure = events.TaskFailed(subtask, attempt, text, missing, missing_attempt, message.is_recoverable)
        return failure, Failed(text, name, index, attempt, where.name, where.host, report)

    def lost(self, taskmanager: str, message: SlotEnded) -> events.TasksLost:
        """Returns the event for the end of a slot's process. Raises RemoteProtocolError if a subtask is unknown."""
        subtasks, attempts = self._latest(message.attempts)
        cause = f"slot {message.slot} of {taskmanager}: {safe_text(message.text, ERROR_CHARACTERS)}"
        return events.TasksLost(subtasks, attempts, cause)

    def consumable(self, message: PartitionConsumable) -> events.PartitionConsumable:
        """Returns the event for the first output of a partition.

        Raises:
            RemoteProtocolError: the partition is unknown.
        """
        partitions = self._scheduler.topology.partitions_of_subtask(self.subtask(message.attempt))
        if not 0 <= message.partition < len(partitions):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"attempt {message.attempt} has no partition {message.partition}"
            )
        return events.PartitionConsumable(partitions[message.partition], message.attempt[2])

    def subtask(self, attempt: Attempt) -> int:
        """Returns the number of the subtask of an attempt. Raises RemoteProtocolError if the subtask is unknown."""
        vertex, index, _ = attempt
        topology = self._scheduler.topology
        if not (
            0 <= vertex < len(topology.job.vertices)
            and topology.is_initialised(vertex)
            and 0 <= index < topology.parallelism_of(vertex)
        ):
            raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"the job has no subtask of attempt {attempt}")
        return topology.subtask(vertex, index)

    def _subpartitions(self, partition: int) -> int:
        topology = self._scheduler.topology
        dataset = int(topology.dataset_of_partition[partition])
        return int(topology.subpartition_counts(dataset)[partition - topology.partitions_of(dataset).start])

    def is_current(self, attempt: Attempt) -> bool:
        """Whether an attempt is the current one of its subtask. Raises as `subtask`."""
        return self._scheduler.attempt(self.subtask(attempt)) == attempt[2]

    def _missing(self, name: str) -> tuple[int | None, int]:
        """Returns number and attempt of a partition by its name; no number if the job has no such partition."""
        try:
            place = partition_place(name)
        except LocalProtocolError:
            return None, 0
        dataset = self._datasets.get(place.dataset)
        if place.execution != self._scheduler.execution or dataset is None:
            return None, 0
        partitions = self._scheduler.topology.partitions_of(dataset)
        return (partitions[place.partition], place.attempt) if place.partition < len(partitions) else (None, 0)

    def _by_taskmanager(
        self, subtasks: IndexArray, attempts: npt.NDArray[np.uint32], slots: Iterable[PhysicalSlot]
    ) -> Iterator[tuple[str, list[Attempt]]]:
        by_taskmanager: dict[str, list[Attempt]] = {}
        places = self._scheduler.topology.place_of
        for subtask, attempt, slot in zip(subtasks.tolist(), attempts.tolist(), slots, strict=True):
            by_taskmanager.setdefault(slot.location.taskmanager, []).append((*places(subtask), attempt))
        yield from by_taskmanager.items()


_NAMES_AT_ONCE: Final = 4096

ERROR_CHARACTERS: Final = 800
"""Maximum length of a TaskManager's text about a slot."""
