"""The tasks of one job: what they are called, where they are, what they returned.

Takes: deployments, and what attempts return. Gives: tasks by name, for people and for checkpoints, and results.

Rules: the scheduler knows which attempt counts; it is only asked. What an attempt returned counts when the scheduler
has taken its end for the task's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from ..checkpoint.coordinator import JobTask, Subtask
from ..control.codec import Attempt
from ..schedule import events, instructions
from ..schedule.execution.execution_states import ExecutionState
from ..schedule.scheduler import Scheduler
from ..schedule.slots.slots import PhysicalSlot


@final
class JobTasks:
    """See the module.

    Args:
        scheduler: of the job.

    Attributes:
        places: where each subtask was sent, by its number.
        results: what sinks returned: operator -> subtask -> value.
        kept: of each subtask that keeps partitions, by its number: bytes of records, of these compressed, on disk.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.places: dict[int, PhysicalSlot] = {}
        self.results: dict[str, dict[int, Any]] = {}
        self._scheduler = scheduler
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
        found = []
        for vertex, name in enumerate(self._names):
            inputs = {
                self._names[topology.job.datasets[edge.dataset].producer] for edge in topology.job.inputs_of(vertex)
            }
            found.append(JobTask(name, topology.job.vertices[vertex].parallelism, tuple(sorted(inputs))))
        return found

    # Places.

    def sent(self, deploy: instructions.Deploy) -> None:
        """These attempts are sent to their slots."""
        numbers = deploy.subtasks.tolist()
        if deploy.is_speculative:
            keys = zip(numbers, deploy.attempts.tolist(), strict=True)
            self._beside |= dict(zip(keys, deploy.slots, strict=True))
        else:
            self.places.update(zip(numbers, deploy.slots, strict=True))

    def chosen(self, number: int) -> None:
        """Of the attempts of a subtask that ran beside each other another one may count now."""
        slot = self._beside.get((number, self._scheduler.attempt(number)))
        if slot is not None:
            self.places[number] = slot

    def by_taskmanager(self, subtasks: Iterable[Subtask]) -> dict[str, list[Attempt]]:
        """The current attempts of subtasks, by the TaskManager that each is on."""
        found: dict[str, list[Attempt]] = {}
        for subtask in subtasks:
            number = self._number(subtask)
            slot = self.places.get(number)
            if slot is not None:
                attempt = (*self._scheduler.topology.place_of(number), self._scheduler.attempt(number))
                found.setdefault(slot.location.taskmanager, []).append(attempt)
        return found

    # Results.

    def returned(self, attempt: Attempt, results: Mapping[str, Any], kept: Sequence[Sequence[int]]) -> None:
        """An attempt has ended; whether it counts is not known yet."""
        if results or kept:
            data, compressed, stored = (sum(column) for column in zip(*kept, strict=True)) if kept else (0, 0, 0)
            self._results_of[attempt] = results, (data, compressed, stored) if kept else None

    def keep_results(self, event: events.TasksReported) -> None:
        """The scheduler has been told of these ends: keeps what those returned that count."""
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
