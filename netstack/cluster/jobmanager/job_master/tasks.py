"""The tasks of one job: names, places, results, and the messages to them.

Takes: deployments and other instructions of the scheduler, commands of `JobCheckpoints`, results of attempts. Gives:
tasks by name for people and for checkpoints, results; messages to TaskManagers (through `JobServices`), events for the
scheduler.

Rules: the scheduler decides which attempt counts; this module only reads it. The result of an attempt counts when the
scheduler has accepted the attempt's end. Calls of a coordinator neither wait nor raise; events of superseded attempts
are dropped. A job that a new JobManager takes up has no coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, final

import trio

from ....base.errors import ErrorCode, RemoteProtocolError
from ....base.text.bounded_msgpack import memory_bytes
from ....base.text.limited_log import LimitedLog
from ....base.units import first_of, format_count
from ....schedule import events, instructions
from ....schedule.checkpoint.instructions import JobTask, Subtask
from ....schedule.checkpoint.snapshot import TaskFile
from ....schedule.checkpoint.storage import CheckpointStorage
from ....schedule.execution import ExecutionState
from ....schedule.scheduler import Scheduler
from ....schedule.slots.slots import PhysicalSlot
from ...control.codec import Attempt
from ...control.messages import AbortCheckpoint, CheckpointCompleted, TriggerCheckpoint, submissions
from ...control.reports import TaskFinished
from ..job_services import JobServices
from ..peer_budget import RESULTS_BYTES
from .attempt_translator import AttemptTranslator

SHOWN: Final = 5
"""Maximum number of subtasks named."""

SLOW_S: Final = 10.0
"""Age at which a checkpoint in progress is logged first; then at twice the age of the last time."""


@final
@dataclass(frozen=True, slots=True)
class CheckpointInProgress:
    """A checkpoint that has been triggered and has not ended.

    Attributes:
        age_s: time since the trigger.
        acknowledged: number of subtasks that have acknowledged it.
        waits_for: the first subtasks on the way of the barriers that have not acknowledged it, at most `SHOWN`.
        left_out: number of other such subtasks.
        ahead_bytes: data in front of their barriers, as TaskManagers reported it last. What a producer has sent and
            the subtask has not yet received does not count.
    """

    checkpoint_id: int
    is_savepoint: bool
    age_s: float
    acknowledged: int
    subtasks: int
    waits_for: tuple[Subtask, ...]
    left_out: int
    ahead_bytes: int

    @property
    def text(self) -> str:
        """One sentence without a full stop."""
        what = "savepoint" if self.is_savepoint else "checkpoint"
        return (
            f"{what} {self.checkpoint_id} in progress for {self.age_s:.0f} s: {self.acknowledged} of {self.subtasks}"
            f" subtasks have acknowledged it, {self._wait}"
        )

    @property
    def _wait(self) -> str:
        if not self.waits_for:
            return "and it is being stored"
        names = ", ".join(f"{task}-{subtask}" for task, subtask in self.waits_for)
        more = f" and {self.left_out} more" if self.left_out else ""
        if not self.ahead_bytes:
            return f"waiting for {names}{more}"
        barriers = "its barrier" if len(self.waits_for) == 1 else "their barriers"
        return f"waiting for {names}{more}, with {format_count(self.ahead_bytes)}B queued in front of {barriers}"

    def document(self) -> dict[str, Any]:
        """Returns plain data; `waits_for` are texts as in `text`, which is included."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "is_savepoint": self.is_savepoint,
            "age_s": self.age_s,
            "acknowledged": self.acknowledged,
            "subtasks": self.subtasks,
            "waits_for": [f"{task}-{subtask}" for task, subtask in self.waits_for],
            "left_out": self.left_out,
            "ahead_bytes": self.ahead_bytes,
            "text": self.text,
        }


_STOPPING: Final = frozenset({ExecutionState.CANCELING, ExecutionState.CANCELED, ExecutionState.FAILED})
_NAMED: Final = 8
"""Number of restarting tasks that the log names."""


@final
class JobTasks:
    """The places and results of the tasks of one job.

    Attributes:
        places: slot of the last deployment of each subtask, by number.
        results: results of sinks: operator -> subtask -> value.
        kept: for each subtask that keeps partitions, by number: bytes of records, of these compressed, on disk.
        records: records in and out of each subtask that has ended, by number.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.places: dict[int, PhysicalSlot] = {}
        self.results: dict[str, dict[int, Any]] = {}
        self._scheduler = scheduler
        self._sent: dict[int, int] = {}  # the attempt in `places`
        self._waiting: dict[Subtask, int] = {}
        self._beside: dict[tuple[int, int], PhysicalSlot] = {}  # slots of speculative attempts, by subtask and attempt
        self.kept: dict[int, tuple[int, int, int]] = {}
        self.records: dict[int, tuple[int, int]] = {}
        self._result_bytes: dict[tuple[int, int], int] = {}  # memory for the results of each subtask
        self._returned: dict[Attempt, TaskFinished] = {}  # attempts whose end the scheduler has not handled yet
        self._names = [vertex.name for vertex in scheduler.topology.job.vertices]
        self._vertices = {name: number for number, name in enumerate(self._names)}

    def named(self, attempt: Attempt) -> Subtask:
        """Returns vertex name and index of an attempt's subtask."""
        vertex, index, _ = attempt
        return self._names[vertex], index

    def named_by_number(self, number: int) -> Subtask:
        """Returns vertex name and index of a subtask by number."""
        vertex, index = self._scheduler.topology.place_of(number)
        return self._names[vertex], index

    def has_ended(self, subtask: Subtask) -> bool:
        """Whether a subtask has finished and was not reset since."""
        return self._scheduler.execution_state(self._number(subtask)) is ExecutionState.FINISHED

    def waits(self, attempt: Attempt) -> Subtask:
        """Records that an attempt waits for a checkpoint that is triggered after its end."""
        subtask = self.named(attempt)
        self._waiting[subtask] = attempt[2]
        return subtask

    def goes_on(self, subtask: Subtask) -> bool:
        """Whether a subtask neither has finished nor waits, or was reset since."""
        is_waiting = self._waiting.get(subtask) == self._scheduler.attempt(self._number(subtask))
        return not is_waiting and not self.has_ended(subtask)

    def checkpointed(self) -> list[JobTask]:
        """Returns the vertices for the checkpoint coordinator."""
        topology = self._scheduler.topology
        tasks = []
        for vertex, name in enumerate(self._names):
            inputs = {
                self._names[topology.job.datasets[edge.dataset].producer] for edge in topology.job.inputs_of(vertex)
            }
            tasks.append(JobTask(name, topology.job.vertices[vertex].parallelism, tuple(sorted(inputs))))
        return tasks

    def sent(self, deploy: instructions.Deploy) -> None:
        """Records the slots of deployed attempts."""
        numbers = deploy.subtasks.tolist()
        if deploy.is_speculative:
            keys = zip(numbers, deploy.attempts.tolist(), strict=True)
            self._beside |= dict(zip(keys, deploy.slots, strict=True))
        else:
            self.places.update(zip(numbers, deploy.slots, strict=True))
            self._sent.update(zip(numbers, deploy.attempts.tolist(), strict=True))

    def chosen(self, number: int) -> None:
        """Updates the place of a subtask after the scheduler chose between concurrent attempts."""
        slot = self._beside.get((number, self._scheduler.attempt(number)))
        if slot is not None:
            self.places[number] = slot
            self._sent[number] = self._scheduler.attempt(number)

    def place_of(self, number: int, attempt: int) -> PhysicalSlot | None:
        """Returns the slot of an attempt; None if it is superseded or not deployed yet."""
        if self._sent.get(number) == attempt:
            return self.places[number]
        return self._beside.get((number, attempt))

    def placed_vertices(self) -> set[tuple[str, int]]:
        """Returns each TaskManager and job vertex of which a task was last deployed there."""
        places = [*self.places.items(), *((number, slot) for (number, _), slot in self._beside.items())]
        place_of = self._scheduler.topology.place_of
        return {(slot.location.taskmanager, place_of(number)[0]) for number, slot in places}

    def by_taskmanager(self, subtasks: Iterable[Subtask]) -> dict[str, list[Attempt]]:
        """Returns the current attempts of subtasks by TaskManager."""
        by_name: dict[str, list[Attempt]] = {}
        for subtask in subtasks:
            number = self._number(subtask)
            slot = self.places.get(number)
            if slot is not None:
                attempt = (*self._scheduler.topology.place_of(number), self._scheduler.attempt(number))
                by_name.setdefault(slot.location.taskmanager, []).append(attempt)
        return by_name

    def returned(self, message: TaskFinished) -> bool:
        """Stores the results of an ended attempt until the scheduler has accepted its end.

        Returns:
            Whether the results of the job stay within `RESULTS_BYTES`; otherwise these are not stored.
        """
        subtask = message.attempt[:2]
        self._result_bytes.pop(subtask, None)
        size = memory_bytes(message.results, RESULTS_BYTES) if message.results else 0
        if size + sum(self._result_bytes.values()) > RESULTS_BYTES:
            return False
        if size:
            self._result_bytes[subtask] = size
        self._returned[message.attempt] = message
        return True

    def keep_results(self, event: events.TasksReported) -> None:
        """Keeps the results of the accepted ends of an event."""
        for number, attempt in zip(event.subtasks.tolist(), event.attempts.tolist(), strict=True):
            vertex, index = self._scheduler.topology.place_of(number)
            message = self._returned.pop((vertex, index, attempt), None)
            if message is None or self._scheduler.attempt(number) != attempt:
                continue
            if self.has_ended((self._names[vertex], index)):
                for operator, value in message.results.items():
                    self.results.setdefault(operator, {})[index] = value
                if message.kept:
                    data, compressed, stored = (sum(column) for column in zip(*message.kept, strict=True))
                    self.kept[number] = data, compressed, stored
                self.records[number] = message.records_in, message.records_out

    def describe_restart(self) -> str:
        """Returns a sentence about the tasks that a failure restarts, for the log."""
        topology = self._scheduler.topology
        names = []
        for subtask in range(topology.subtask_count):
            if self._scheduler.execution_state(subtask) in _STOPPING:
                vertex, index = topology.place_of(subtask)
                names.append(f"{topology.job.vertices[vertex].name} {index}")
        tasks = f"{len(names)} of {topology.subtask_count} tasks"
        return f"{tasks}, in the regions that the failure affects, restart ({first_of(names, _NAMED)})"

    def _number(self, subtask: Subtask) -> int:
        return self._scheduler.topology.subtask(self._vertices[subtask[0]], subtask[1])


DESCRIPTORS_A_TURN: Final = 64
"""Descriptors created before the event loop gets a turn: about a millisecond."""


@final
class TaskSender:
    """Sends the instructions of one job's scheduler to TaskManagers.

    Args:
        translator: translates instructions to messages.
        services: the JobManager's interface for jobs.
    """

    def __init__(self, job_id: str, translator: AttemptTranslator, services: JobServices) -> None:
        self._job_id = job_id
        self._translator = translator
        self._services = services

    async def deploy(self, descriptors: Iterable[tuple[int, bytes]], slots: Iterable[PhysicalSlot]) -> None:
        """Sends descriptors as they are created; the scheduler must not handle an event meanwhile.

        Raises:
            NetstackError: a descriptor cannot be created; nothing was sent.

        Cancellation: some descriptors may have been sent.
        """
        descriptors_of: dict[str, list[bytes]] = {}
        for number, ((_, descriptor), slot) in enumerate(zip(descriptors, slots, strict=True), 1):
            descriptors_of.setdefault(slot.location.taskmanager, []).append(descriptor)
            if not number % DESCRIPTORS_A_TURN:
                await trio.lowlevel.checkpoint()
        for name, theirs in descriptors_of.items():
            for message in submissions(self._job_id, theirs):
                await self._services.wait_room(name)
                self._services.send(name, message)

    def send(
        self,
        instruction: instructions.Cancel
        | instructions.CommitTasks
        | instructions.UpdateGate
        | instructions.ReleasePartitions,
    ) -> None:
        """Sends the messages of an instruction other than `Deploy`."""
        match instruction:
            case instructions.Cancel():
                messages = self._translator.cancellations(instruction)
            case instructions.CommitTasks():
                messages = self._translator.commits(instruction)
            case instructions.UpdateGate():
                messages = self._translator.updates(instruction)
            case instructions.ReleasePartitions():
                messages = self._translator.releases(instruction)
        for name, message in messages:
            self._services.send(name, message)


LOGGER: Final = logging.getLogger("netstack.jobmanager")


@final
class TaskCommands:
    """Commands from `JobCheckpoints` to the tasks of one job.

    Args:
        taskmanagers: names of the TaskManagers that the job currently uses.
        note: adds a category and a sentence to the job's log.
        data_ahead: returns the bytes in front of the barriers of a checkpoint in the queues towards subtasks.

    Attributes:
        last_stored: id and folder of the newest completed checkpoint of this run; None before the first.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        tasks: JobTasks,
        storage: CheckpointStorage,
        services: JobServices,
        taskmanagers: Collection[str],
        *,
        post: Callable[[events.Event], None],
        note: Callable[[str, str], None],
        data_ahead: Callable[[int, Collection[Subtask]], int],
    ) -> None:
        self.data_ahead = data_ahead
        self.last_stored: tuple[int, str] | None = None
        self._job_id = job_id
        self._name = name
        self._tasks = tasks
        self._storage = storage
        self._services = services
        self._taskmanagers = taskmanagers
        self._post = post
        self._note = note
        self._finals: dict[Subtask, TaskFile] = {}
        self._log = LimitedLog(LOGGER, trio.current_time)

    def left(self, subtask: Subtask, final: dict[str, Any]) -> None:
        """Stores the description of an ended task's final state.

        Raises:
            RemoteProtocolError: the description is malformed.
        """
        size_bytes, crc32 = final.get("size_bytes"), final.get("crc32")
        if type(size_bytes) is not int or type(crc32) is not int:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "the final state of a task has no size and checksum")
        self._finals[subtask] = TaskFile(*subtask, size_bytes, crc32)

    def trigger_checkpoint(
        self, barrier: bytes, subtasks: Iterable[Subtask], *, is_savepoint: bool, stops: bool
    ) -> None:
        """Sends the trigger of a checkpoint to subtasks."""
        for name, attempts in self._tasks.by_taskmanager(subtasks).items():
            self._services.send(name, TriggerCheckpoint(self._job_id, barrier, tuple(attempts), is_savepoint, stops))

    def abort_checkpoint(self, checkpoint_id: int, subtasks: Iterable[Subtask]) -> None:
        """Sends the abort of a checkpoint to subtasks."""
        for name, attempts in self._tasks.by_taskmanager(subtasks).items():
            self._services.send(name, AbortCheckpoint(self._job_id, checkpoint_id, tuple(attempts)))

    def final_of(self, subtask: Subtask) -> TaskFile | None:
        """Returns the final state of an ended subtask; None if it has none."""
        return self._finals.get(subtask)

    def checkpoint_stored(self, checkpoint_id: int, *, job_goes_on: bool) -> None:
        """Announces a completed checkpoint to the scheduler and to TaskManagers."""
        if job_goes_on:
            self._note("checkpoint", f"savepoint {checkpoint_id} is complete")
            return
        self.last_stored = checkpoint_id, self._storage.path(checkpoint_id)
        self._note("checkpoint", f"checkpoint {checkpoint_id} is complete")
        self._post(events.CheckpointStored(checkpoint_id))
        for taskmanager in self._taskmanagers:
            self._services.send(taskmanager, CheckpointCompleted(self._job_id, checkpoint_id))

    def checkpoint_aborted(self, checkpoint_id: int, reason: str, *, is_failure: bool) -> None:
        """Logs an aborted checkpoint."""
        text = f"checkpoint {checkpoint_id} was aborted: {reason}"
        self._note("failure" if is_failure else "checkpoint", text)
        LOGGER.log(logging.WARNING if is_failure else logging.INFO, "job %s (%s): %s", self._job_id, self._name, text)

    def checkpoint_is_slow(self, checkpoint: CheckpointInProgress) -> None:
        """Logs a checkpoint that has been in progress for long."""
        self._note("checkpoint", checkpoint.text)
        LOGGER.info("job %s (%s): %s", self._job_id, self._name, checkpoint.text)

    def final_waits(self, subtask: Subtask, reason: str) -> None:
        """Logs that the final state of a task cannot be stored yet."""
        text = f"{subtask[0]}-{subtask[1]} waits to store its final state: {reason}"
        self._note("failure", text)
        self._log.log(logging.WARNING, "final state", f"job {self._job_id} ({self._name}): {text}")

    def fail(self, reason: str) -> None:
        """Fails the job."""
        self._post(events.GlobalFailure(reason))
