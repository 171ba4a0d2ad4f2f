"""A scheduler that is played event by event, and what it says sorted by kind: for the tests of this folder."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from netstack.base.ids import ResultPartitionType
from netstack.schedule.descriptors.blob_store import MemoryBlobStore, OffloadRule
from netstack.schedule.descriptors.shuffle import TaskManagerLocation
from netstack.schedule.events import (
    Event,
    Proceed,
    SlotsOffered,
    StartJob,
    TaskFailed,
    TaskManagerRegistered,
    TasksReported,
    TimerDue,
)
from netstack.schedule.execution import ExecutionInput
from netstack.schedule.failover.restart import RestartStrategy
from netstack.schedule.graph.job_graph import Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex
from netstack.schedule.instructions import (
    Cancel,
    Continue,
    Deploy,
    EndJob,
    Instruction,
    ReleasePartitions,
    StartTimer,
)
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.structures import index_array

BLOCKING, PIPELINED = ResultPartitionType.BLOCKING, ResultPartitionType.PIPELINED_BOUNDED
ALL_TO_ALL, POINTWISE = DistributionPattern.ALL_TO_ALL, DistributionPattern.POINTWISE


def two_vertices(parallelism: int, result: ResultPartitionType, pattern: DistributionPattern = ALL_TO_ALL) -> JobGraph:
    return JobGraph(
        "job",
        (JobVertex("source", parallelism, is_source=True), JobVertex("sink", parallelism)),
        (Dataset("words", 0, result),),
        (JobEdge(0, 1, pattern),),
    )


class Play:
    """Hands over events one second apart, answers `Continue`, and sorts what comes back."""

    def __init__(
        self,
        job: JobGraph,
        *,
        restart: RestartStrategy | None = None,
        settings: SchedulerSettings | None = None,
        taskmanagers: int = 2,
        slots: int = 20,
        is_offloading: bool = False,
    ) -> None:
        self.store = MemoryBlobStore()
        if settings is None:
            settings = SchedulerSettings(offload=OffloadRule(0, 0) if is_offloading else OffloadRule())
        self.scheduler = Scheduler(job, "run-1", restart=restart, store=self.store, settings=settings)
        self.now_s = 0.0
        self.said: list[Instruction] = []
        self.attempts: dict[int, int] = {}
        self.where: dict[int, str] = {}
        for number in range(taskmanagers):
            self.register(f"tm-{number}", slots)

    def give(self, event: Event, now_s: float | None = None) -> list[Instruction]:
        """Everything said until there is nothing more to do."""
        now_s = self.now_s if now_s is None else now_s
        message = self.scheduler.handle(event, now_s)
        self.note(message)
        while message and isinstance(message[-1], Continue):
            more = self.scheduler.handle(Proceed(), now_s)
            self.note(more)
            message = message[:-1] + more
        self.now_s += 1.0
        return message

    def note(self, said: list[Instruction]) -> None:
        self.said += said
        for instruction in said:
            if isinstance(instruction, Deploy):
                assert len([*self.scheduler.descriptors(instruction)]) == instruction.subtasks.size
                subtasks = instruction.subtasks.tolist()
                self.attempts.update(zip(subtasks, instruction.attempts.tolist(), strict=True))
                self.where.update(zip(subtasks, (slot.location.taskmanager for slot in instruction.slots), strict=True))

    def register(self, name: str, slots: int) -> list[Instruction]:
        message = self.give(TaskManagerRegistered(TaskManagerLocation(name, f"tcp://{name}:1")))
        return message + self.give(SlotsOffered(name, tuple(range(slots))))

    def start(self) -> list[Instruction]:
        return self.give(StartJob())

    def report(self, what: ExecutionInput, *subtasks: int) -> list[Instruction]:
        attempts = np.array([self.attempts[subtask] for subtask in subtasks], np.uint32)
        return self.give(TasksReported(what, index_array(subtasks), attempts))

    def run(self, *subtasks: int) -> None:
        self.report(ExecutionInput.INITIALIZE, *subtasks)
        self.report(ExecutionInput.RUN, *subtasks)

    def finish(self, *subtasks: int) -> list[Instruction]:
        return self.report(ExecutionInput.FINISH, *subtasks)

    def finish_with(self, size: int, *subtasks: int) -> list[Instruction]:
        """They finish, each having written so many bytes into every subpartition."""
        topology = self.scheduler.topology
        sizes: dict[int, npt.NDArray[np.int64]] = {}
        for subtask in subtasks:
            for partition in topology.partitions_of_subtask(subtask):
                dataset = int(topology.dataset_of_partition[partition])
                count = topology.subpartition_counts(dataset)[partition - topology.partitions_of(dataset).start]
                sizes[partition] = np.full(count, size, np.int64)
        attempts = np.array([self.attempts[subtask] for subtask in subtasks], np.uint32)
        return self.give(TasksReported(ExecutionInput.FINISH, index_array(subtasks), attempts, sizes))

    def fail(self, subtask: int, **more: int | bool) -> list[Instruction]:
        return self.give(TaskFailed(subtask, self.attempts[subtask], "it broke", **more))  # type: ignore[arg-type]

    def due(self, waited: StartTimer) -> list[Instruction]:
        """The delay of a restart is over."""
        return self.give(TimerDue(waited.timer))

    def states(self) -> list[str]:
        return [self.scheduler.execution_state(one).value for one in range(self.scheduler.topology.subtask_count)]


def deployed(said: list[Instruction]) -> list[int]:
    return [subtask for actual in said if isinstance(actual, Deploy) for subtask in actual.subtasks.tolist()]


def canceled(said: list[Instruction]) -> list[int]:
    return [subtask for actual in said if isinstance(actual, Cancel) for subtask in actual.subtasks.tolist()]


def released(said: list[Instruction]) -> list[int]:
    return [number for actual in said if isinstance(actual, ReleasePartitions) for number in actual.partitions.tolist()]


def timer(said: list[Instruction]) -> StartTimer:
    (actual,) = [instruction for instruction in said if isinstance(instruction, StartTimer)]
    return actual


def end(said: list[Instruction]) -> EndJob:
    (actual,) = [instruction for instruction in said if isinstance(instruction, EndJob)]
    return actual
