"""The tasks of one job: what they are called, where they are, what they returned, and what is said to them.

Takes: deployments and other instructions of the scheduler, wishes of `JobCheckpoints`, what attempts return. Gives:
tasks by name, for people and for checkpoints, results; messages to TaskManagers (through `Cluster`), events for the
scheduler; what invokables say to the job's coordinator.

Rules: the scheduler knows which attempt counts; it is only asked. What an attempt returned counts when the scheduler
has taken its end for the task's. No call of a coordinator waits or raises; an event of an attempt that is over is
dropped. A job that is taken up again has no coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, final

import trio

from ..checkpoint.coordinator import JobTask, Subtask
from ..checkpoint.snapshot import TaskFile
from ..checkpoint.storage import CheckpointStorage
from ..control.codec import Attempt, Message, Plain
from ..control.messages import AbortCheckpoint, CheckpointCompleted, TriggerCheckpoint, submissions
from ..errors import ErrorCode, RemoteProtocolError
from ..schedule import events, instructions
from ..schedule.execution import ExecutionState
from ..schedule.instructions import EndJob
from ..schedule.scheduler import Scheduler
from ..schedule.slots.slots import PhysicalSlot
from .datasets import DatasetRecord
from .driver import JobDriver


class JobCoordinator(Protocol):
    """Takes part in a job from inside the JobManager's process."""

    def event(self, vertex: str, subtask: int, event: Plain) -> None:
        """A task says something (`InvokableTask.send`)."""

    def refused(self, taskmanager: str, reason: str) -> None:
        """A TaskManager does not take the job, or cannot go on with it; the JobManager asks it again later."""

    def ended(self, end: EndJob) -> None:
        """Nothing of the job runs any more, and its results are known; TaskManagers still release what it held."""


class Cluster(Protocol):
    """What a job needs of the JobManager."""

    def send(self, taskmanager: str, message: Message) -> None:
        """Tells a TaskManager something; nothing happens when it is gone."""

    async def wait_room(self, taskmanager: str) -> None:
        """Waits until more may be sent to a TaskManager."""

    def require(self, job_id: str, missing: int) -> None:
        """The job lacks so many slots."""

    def give_back(self, job_id: str, slots: Iterable[PhysicalSlot]) -> None:
        """The job does not need these."""

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None:
        """The job wants no more slots of these for now; replaces what was said before."""

    def heard_s(self, taskmanager: str) -> float | None:
        """When it was last heard; None when it is gone."""

    def ask_for_life(self, taskmanagers: Iterable[str]) -> None:
        """Has these say something soon."""

    def describe_slots(self) -> str:
        """What slots there are, in words."""

    async def put_committing(self, job_id: str) -> None:
        """Notes on disk that the job begins to commit. Raises `NetstackError`: it cannot be written."""

    async def keep_dataset(self, dataset: DatasetRecord) -> None:
        """The job leaves this behind. Raises `NetstackError`: it cannot be kept, and is dropped."""


@final
class JobTasks:
    """Where the tasks of one job are, and what they returned.

    Args:
        scheduler: of the job.

    Attributes:
        places: where each subtask was sent last, by its number.
        results: what sinks returned: operator -> subtask -> value.
        kept: of each subtask that keeps partitions, by its number: bytes of records, of these compressed, on disk.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.places: dict[int, PhysicalSlot] = {}
        self.results: dict[str, dict[int, Any]] = {}
        self._scheduler = scheduler
        self._sent: dict[int, int] = {}  # the attempt that is at a subtask's place
        self._waiting: dict[Subtask, int] = {}
        self._beside: dict[tuple[int, int], PhysicalSlot] = {}  # where second attempts are, by subtask and attempt
        self.kept: dict[int, tuple[int, int, int]] = {}
        self._results_of: dict[
            Attempt, tuple[Mapping[str, Any], tuple[int, int, int] | None]
        ] = {}  # of attempts whose end is in the inbox
        self._names = [vertex.name for vertex in scheduler.topology.job.vertices]
        self._vertices = {name: number for number, name in enumerate(self._names)}

    # Names.

    def named(self, attempt: Attempt) -> Subtask:
        """What checkpoints call the subtask of an attempt that the job has."""
        vertex, index, _ = attempt
        return self._names[vertex], index

    def named_by_number(self, number: int) -> Subtask:
        """What checkpoints call the subtask of a number."""
        vertex, index = self._scheduler.topology.place_of(number)
        return self._names[vertex], index

    def has_ended(self, subtask: Subtask) -> bool:
        """Whether it has finished, and was not reset since."""
        return self._scheduler.execution_state(self._number(subtask)) is ExecutionState.FINISHED

    def waits(self, attempt: Attempt) -> Subtask:
        """An attempt waits for a checkpoint that began after its end."""
        subtask = self.named(attempt)
        self._waiting[subtask] = attempt[2]
        return subtask

    def goes_on(self, subtask: Subtask) -> bool:
        """Whether it neither has finished nor waits, or was reset since."""
        is_waiting = self._waiting.get(subtask) == self._scheduler.attempt(self._number(subtask))
        return not is_waiting and not self.has_ended(subtask)

    def checkpointed(self) -> list[JobTask]:
        """The vertices, as the coordinator of checkpoints wants them."""
        topology = self._scheduler.topology
        tasks = []
        for vertex, name in enumerate(self._names):
            inputs = {
                self._names[topology.job.datasets[edge.dataset].producer] for edge in topology.job.inputs_of(vertex)
            }
            tasks.append(JobTask(name, topology.job.vertices[vertex].parallelism, tuple(sorted(inputs))))
        return tasks

    # Places.

    def sent(self, deploy: instructions.Deploy) -> None:
        """These attempts are sent to their slots."""
        numbers = deploy.subtasks.tolist()
        if deploy.is_speculative:
            keys = zip(numbers, deploy.attempts.tolist(), strict=True)
            self._beside |= dict(zip(keys, deploy.slots, strict=True))
        else:
            self.places.update(zip(numbers, deploy.slots, strict=True))
            self._sent.update(zip(numbers, deploy.attempts.tolist(), strict=True))

    def chosen(self, number: int) -> None:
        """Of the attempts of a subtask that ran beside each other another one may count now."""
        slot = self._beside.get((number, self._scheduler.attempt(number)))
        if slot is not None:
            self.places[number] = slot
            self._sent[number] = self._scheduler.attempt(number)

    def place_of(self, number: int, attempt: int) -> PhysicalSlot | None:
        """Where an attempt of a subtask was sent; None if it is over, or was not sent yet."""
        if self._sent.get(number) == attempt:
            return self.places[number]
        return self._beside.get((number, attempt))

    def by_taskmanager(self, subtasks: Iterable[Subtask]) -> dict[str, list[Attempt]]:
        """The current attempts of subtasks, by the TaskManager that each is on."""
        by_name: dict[str, list[Attempt]] = {}
        for subtask in subtasks:
            number = self._number(subtask)
            slot = self.places.get(number)
            if slot is not None:
                attempt = (*self._scheduler.topology.place_of(number), self._scheduler.attempt(number))
                by_name.setdefault(slot.location.taskmanager, []).append(attempt)
        return by_name

    # Results.

    def returned(self, attempt: Attempt, results: Mapping[str, Any], kept: Sequence[Sequence[int]]) -> None:
        """An attempt has ended; whether it counts is not known yet."""
        if results or kept:
            data, compressed, stored = (sum(column) for column in zip(*kept, strict=True)) if kept else (0, 0, 0)
            self._results_of[attempt] = results, (data, compressed, stored) if kept else None

    def keep_results(self, event: events.TasksReported) -> None:
        """The scheduler has handled these ends: keeps the results of those that count."""
        for number, attempt in zip(event.subtasks.tolist(), event.attempts.tolist(), strict=True):
            vertex, index = self._scheduler.topology.place_of(number)
            results, kept = self._results_of.pop((vertex, index, attempt), ({}, None))
            if self._scheduler.attempt(number) == attempt and self.has_ended((self._names[vertex], index)):
                for operator, value in results.items():
                    self.results.setdefault(operator, {})[index] = value
                if kept is not None:
                    self.kept[number] = kept

    def _number(self, subtask: Subtask) -> int:
        return self._scheduler.topology.subtask(self._vertices[subtask[0]], subtask[1])


DESCRIPTORS_A_TURN: Final = 64
"""Descriptors made before others get a turn: about a millisecond."""


@final
class TaskSender:
    """Of one job.

    Args:
        job_id: of the job.
        driver: makes messages of instructions.
        cluster: reaches TaskManagers.
    """

    def __init__(self, job_id: str, driver: JobDriver, cluster: Cluster) -> None:
        self._job_id = job_id
        self._driver = driver
        self._cluster = cluster

    async def deploy(self, deploy: instructions.Deploy) -> None:
        """Makes and sends descriptors; the scheduler must handle no event meanwhile.

        Raises:
            NetstackError: one cannot be made; nothing was sent.

        Cancellation: some were sent.
        """
        descriptors_of: dict[str, list[bytes]] = {}
        for number, (name, descriptor) in enumerate(self._driver.deployments(deploy), 1):
            descriptors_of.setdefault(name, []).append(descriptor)
            if not number % DESCRIPTORS_A_TURN:
                await trio.lowlevel.checkpoint()
        for name, descriptors in descriptors_of.items():
            for message in submissions(self._job_id, descriptors):
                await self._cluster.wait_room(name)
                self._cluster.send(name, message)

    def send(
        self,
        instruction: instructions.Cancel
        | instructions.CommitTasks
        | instructions.UpdateGate
        | instructions.ReleasePartitions,
    ) -> None:
        """Sends what is small."""
        match instruction:
            case instructions.Cancel():
                messages = self._driver.cancellations(instruction)
            case instructions.CommitTasks():
                messages = self._driver.commits(instruction)
            case instructions.UpdateGate():
                messages = self._driver.updates(instruction)
            case instructions.ReleasePartitions():
                messages = self._driver.releases(instruction)
        for name, message in messages:
            self._cluster.send(name, message)


LOGGER: Final = logging.getLogger("netstack.jobmanager")


@final
class TaskCommands:
    """The tasks of one job, for its checkpoints (a `CheckpointCommands`).

    Attributes:
        last_stored: number and folder of the newest checkpoint of this run that a restart begins from; None without
            any.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        tasks: JobTasks,
        storage: CheckpointStorage,
        cluster: Cluster,
        taskmanagers: Collection[str],
        *,
        post: Callable[[events.Event], None],
        note: Callable[[str, str], None],
    ) -> None:
        """Nothing is said yet.

        Args:
            job_id: of the job.
            name: of the job.
            tasks: its tasks.
            storage: of its checkpoints.
            cluster: reaches TaskManagers.
            taskmanagers: names of those that the job uses now.
            post: tells the scheduler something.
            note: adds to the job's log: a word, and a sentence.
        """
        self.last_stored: tuple[int, str] | None = None
        self._job_id = job_id
        self._name = name
        self._tasks = tasks
        self._storage = storage
        self._cluster = cluster
        self._taskmanagers = taskmanagers
        self._post = post
        self._note = note
        self._finals: dict[Subtask, TaskFile] = {}

    def left(self, subtask: Subtask, final: dict[str, Any]) -> None:
        """A task has ended, and written its final state.

        Raises:
            RemoteProtocolError: what it says of that is no file.
        """
        size_bytes, crc32 = final.get("size_bytes"), final.get("crc32")
        if type(size_bytes) is not int or type(crc32) is not int:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "the final state of a task has no size and checksum")
        self._finals[subtask] = TaskFile(*subtask, size_bytes, crc32)

    # For `JobCheckpoints`.

    def trigger(self, barrier: bytes, subtasks: Iterable[Subtask], *, is_savepoint: bool, stops: bool) -> None:
        """Implements `CheckpointCommands.trigger`."""
        for name, attempts in self._tasks.by_taskmanager(subtasks).items():
            self._cluster.send(name, TriggerCheckpoint(self._job_id, barrier, tuple(attempts), is_savepoint, stops))

    def abort_checkpoint(self, checkpoint_id: int, subtasks: Iterable[Subtask]) -> None:
        """Implements `CheckpointCommands.abort_checkpoint`."""
        for name, attempts in self._tasks.by_taskmanager(subtasks).items():
            self._cluster.send(name, AbortCheckpoint(self._job_id, checkpoint_id, tuple(attempts)))

    def final_of(self, subtask: Subtask) -> TaskFile | None:
        """Implements `CheckpointCommands.final_of`."""
        return self._finals.get(subtask)

    def checkpoint_stored(self, checkpoint_id: int, *, job_goes_on: bool) -> None:
        """Implements `CheckpointCommands.checkpoint_stored`."""
        if job_goes_on:
            self._note("checkpoint", f"savepoint {checkpoint_id} is complete")
            return
        self.last_stored = checkpoint_id, self._storage.path(checkpoint_id)
        self._note("checkpoint", f"checkpoint {checkpoint_id} is complete")
        self._post(events.CheckpointStored(0.0, checkpoint_id))
        for taskmanager in self._taskmanagers:
            self._cluster.send(taskmanager, CheckpointCompleted(self._job_id, checkpoint_id))

    def checkpoint_aborted(self, checkpoint_id: int, reason: str, *, is_failure: bool) -> None:
        """Implements `CheckpointCommands.checkpoint_aborted`."""
        text = f"checkpoint {checkpoint_id} was aborted: {reason}"
        self._note("failure" if is_failure else "checkpoint", text)
        LOGGER.log(logging.WARNING if is_failure else logging.INFO, "job %s (%s): %s", self._job_id, self._name, text)

    def fail(self, reason: str) -> None:
        """Implements `CheckpointCommands.fail`."""
        self._post(events.GlobalFailure(0.0, reason))
