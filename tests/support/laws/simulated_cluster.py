"""TaskManagers that exist in a test only, around a real Scheduler, on a virtual clock: with everything that goes wrong.

Tasks take their time, fail, and miss partitions that are gone. TaskManagers die, with or without a word, and others
come in their place. Messages take a while, but those of one TaskManager keep their order; some are repeated much later.
What must always hold is asserted as it happens.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from schedule.descriptors import loaded as load_parts

from netstack.base.ids import ResultPartitionType
from netstack.cluster.jobmanager.job_master.inbox import Inbox
from netstack.schedule.descriptors.blob_store import BlobStore
from netstack.schedule.descriptors.descriptors import BlobKey, TaskDeploymentDescriptor
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation
from netstack.schedule.events import (
    Event,
    PartitionConsumable,
    Proceed,
    SlotsOffered,
    StartJob,
    TaskFailed,
    TaskManagerLost,
    TaskManagerRegistered,
    TasksReported,
    Tick,
    TimerDue,
)
from netstack.schedule.execution import ExecutionInput, ExecutionState, JobState
from netstack.schedule.instructions import (
    BlockTaskManagers,
    Cancel,
    Continue,
    Deploy,
    EndJob,
    Instruction,
    ReleasePartitions,
    ReturnSlots,
    StartTimer,
    UpdateGate,
)
from netstack.schedule.scheduler import Scheduler

Task = tuple[int, int]
"""Subtask and attempt."""


@dataclass
class Weather:
    """What goes wrong, and how often."""

    task_fails: float = 0.0
    taskmanager_dies_every_s: float = 0.0
    repeated: float = 0.0
    is_silent: float = 0.5
    latency_s: float = 0.02
    task_s: float = 1.0
    step_s: float = 0.0
    registers_within_s: float = 0.0
    is_slow: float = 0.0
    slow_factor: float = 30.0


@dataclass
class TaskManager:
    name: str
    slots: int
    is_alive: bool = True
    tasks: dict[Task, int] = field(default_factory=dict)
    heard_s: float = 0.0
    told_s: float = 0.0
    slowness: float = 1.0


class Cluster:
    """A scheduler and its surroundings; `run` plays until the job has ended."""

    def __init__(
        self,
        scheduler: Scheduler,
        seed: int,
        weather: Weather,
        *,
        taskmanagers: int,
        slots: int,
        store: BlobStore | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.chance = random.Random(seed)
        self.weather = weather
        self.slots = slots
        self.store = store
        self.now_s = 0.0
        self.inbox = Inbox()
        self.later: list[tuple[float, int, Callable[[], None]]] = []
        self.number = 0
        self.taskmanagers: dict[str, TaskManager] = {}
        self.born = 0
        self.active: dict[Task, str] = {}
        self.canceled: set[Task] = set()
        self.homes: dict[tuple[int, int], str] = {}
        self.released: set[tuple[int, int]] = set()
        self.complete: set[tuple[int, int]] = set()
        self.unknown: dict[Task, set[tuple[int, int]]] = {}
        self.repeats: dict[int, Event] = {}
        self.end: EndJob | None = None
        self.deaths = 0
        self.blocked: set[str] = set()
        self.heard_complete: set[tuple[int, int]] = set()
        for _ in range(taskmanagers):
            self.at(self.chance.uniform(0.0, weather.registers_within_s), self.register)
        self.inbox.post(StartJob())
        self.at(0.5, self.tick)
        if weather.taskmanager_dies_every_s:
            self.at(self.chance.expovariate(1 / weather.taskmanager_dies_every_s), self.somebody_dies)

    # ------------------------------------------------------------------------------------------------ the clock

    def at(self, delay_s: float, call: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.later, (self.now_s + delay_s, self.number, call))

    def run(self, limit_s: float = 20_000.0) -> EndJob:
        while self.end is None:
            self.drain()
            if self.end is None:
                self.now_s, _, call = heapq.heappop(self.later)
                assert self.now_s < limit_s, f"the job hangs: {self.scheduler.statistics()}"
                call()
        losers = {(subtask, rival.attempt) for subtask, _ in self.active for rival in self.scheduler.rivals(subtask)}
        left = {task for task, name in self.active.items() if self.taskmanagers[name].is_alive}
        assert left <= losers & self.canceled, "left running"
        assert self.scheduler.handle(StartJob(), self.now_s) == []
        return self.end

    def drain(self) -> None:
        while (event := self.inbox.take()) is not None:
            instructions = self.scheduler.handle(event, self.now_s)
            if isinstance(event, TasksReported) and event.what is ExecutionInput.FINISH and self.end is None:
                (subtask,), (attempt,) = event.subtasks.tolist(), event.attempts.tolist()
                partitions = self.scheduler.topology.partitions_of_subtask(subtask)
                self.heard_complete.update((partition, attempt) for partition in partitions)
            if id(event) in self.repeats:
                assert instructions == [], f"{event} came twice, and acted twice: {instructions}"
            self.carry_out(instructions)

    def post(self, event: Event) -> None:
        self.inbox.post(event)
        if self.chance.random() < self.weather.repeated:
            self.at(self.chance.expovariate(1 / 5.0), lambda: self.post_again(event))

    def post_again(self, event: Event) -> None:
        again = copy(event)
        self.repeats[id(again)] = again
        self.inbox.post(again)

    def tick(self) -> None:
        self.inbox.post(Tick())
        self.at(0.5, self.tick)

    def assert_released(self) -> None:
        """Of what was kept in files nothing is left, but what outlives the job, and what was never heard of."""
        topology = self.scheduler.topology
        left = [
            (partition, attempt)
            for partition, attempt in self.heard_complete - self.released
            if topology.job.datasets[int(topology.dataset_of_partition[partition])].type
            in (ResultPartitionType.BLOCKING, ResultPartitionType.HYBRID_FULL, ResultPartitionType.HYBRID_SELECTIVE)
            and self.taskmanagers[self.homes[partition, attempt]].is_alive
        ]
        assert not left, f"never released: {left}"

    # --------------------------------------------------------------------------------------------- TaskManagers

    def register(self) -> None:
        name = f"tm-{self.born}"
        self.born += 1
        is_slow = self.chance.random() < self.weather.is_slow
        self.taskmanagers[name] = TaskManager(name, self.slots, slowness=self.weather.slow_factor if is_slow else 1.0)
        self.inbox.post(TaskManagerRegistered(TaskManagerLocation(name, f"tcp://{name}:1", f"h{self.born % 7}")))
        self.inbox.post(SlotsOffered(name, tuple(range(self.slots))))

    def somebody_dies(self) -> None:
        alive = [actual for actual in self.taskmanagers.values() if actual.is_alive]
        if alive:
            self.die(self.chance.choice(alive))
        self.at(self.chance.expovariate(1 / self.weather.taskmanager_dies_every_s), self.somebody_dies)

    def die(self, taskmanager: TaskManager) -> None:
        self.deaths += 1
        taskmanager.is_alive = False
        for task in taskmanager.tasks:
            del self.active[task]
        taskmanager.tasks.clear()
        is_silent = self.chance.random() < self.weather.is_silent
        noticed_s = self.chance.uniform(10.0, 20.0) if is_silent else self.latency()
        self.at(noticed_s, lambda: self.post(TaskManagerLost(taskmanager.name, "it died")))
        self.at(self.chance.uniform(0.0, 5.0), self.register)

    def latency(self) -> float:
        return self.chance.expovariate(1 / self.weather.latency_s)

    def tell(self, taskmanager: TaskManager, call: Callable[[], None]) -> None:
        """A message to a TaskManager; lost when it is dead by then."""
        taskmanager.told_s = max(taskmanager.told_s, self.now_s + self.latency())
        self.at(taskmanager.told_s - self.now_s, lambda: call() if taskmanager.is_alive else None)

    def report(self, taskmanager: TaskManager, event: Event) -> None:
        """A message from a TaskManager; what was sent arrives, even if it dies meanwhile."""
        taskmanager.heard_s = max(taskmanager.heard_s, self.now_s + self.latency())
        self.at(taskmanager.heard_s - self.now_s, lambda: self.post(event))

    # ---------------------------------------------------------------------------------------------------- tasks

    def deploy(self, taskmanager: TaskManager, task: Task, slot: int) -> None:
        subtask, attempt = task
        for (other, number), name in self.active.items():
            if other == subtask and (other, number) not in self.canceled:
                known = {rival.attempt for rival in self.scheduler.rivals(subtask)} | {self.scheduler.attempt(subtask)}
                assert {number, attempt} <= known, f"subtask {subtask} runs twice: {number} on {name} and {attempt}"
                assert name != taskmanager.name, f"subtask {subtask} runs twice on {name}"
        vertex, _ = self.scheduler.topology.place_of(subtask)
        for (other, _), used in taskmanager.tasks.items():
            if used == slot:
                assert self.scheduler.topology.place_of(other)[0] != vertex, f"slot {slot} of {taskmanager.name} twice"
                self.assert_may_share(subtask, other)
        self.active[task] = taskmanager.name
        taskmanager.tasks[task] = slot
        for partition in self.scheduler.topology.partitions_of_subtask(subtask):
            self.homes[partition, attempt] = taskmanager.name
        self.report_state(taskmanager, task, ExecutionInput.INITIALIZE)
        self.at(self.chance.expovariate(10.0), lambda: self.begin(taskmanager, task))

    def assert_may_share(self, one: int, other: int) -> None:
        vertices = self.scheduler.topology.job.vertices
        places = self.scheduler.topology.place_of
        assert vertices[places(one)[0]].slot_sharing_group == vertices[places(other)[0]].slot_sharing_group, (
            f"{one} and {other} share a slot and no group"
        )

    def begin(self, taskmanager: TaskManager, task: Task) -> None:
        if task not in taskmanager.tasks:
            return
        lost = self.missing_partition(task)
        if lost is not None:
            self.fail(taskmanager, task, "partition not found", *lost)
            return
        self.report_state(taskmanager, task, ExecutionInput.RUN)
        for partition in self.scheduler.topology.partitions_of_subtask(task[0]):
            self.report(taskmanager, PartitionConsumable(partition, task[1]))
        took_s = self.chance.expovariate(1 / self.weather.task_s) * taskmanager.slowness
        if self.chance.random() < self.weather.task_fails:
            self.at(took_s, lambda: self.fail(taskmanager, task, "it broke"))
        else:
            self.at(took_s, lambda: self.finish(taskmanager, task))

    def missing_partition(self, task: Task) -> tuple[int, int] | None:
        """A blocking partition that the task was told of and that is gone, with its attempt."""
        topology = self.scheduler.topology
        unknown = self.unknown.get(task, set())
        for gate, group in enumerate(topology.consumed_groups(task[0])):
            if not topology.groups.type_of(group).is_blocking:
                continue
            for position, partition in enumerate(topology.groups.partitions_of(group)):
                if (gate, position) in unknown:
                    continue
                attempt = self.scheduler.attempt(int(topology.producer_of_partition[partition]))
                name = self.homes.get((partition, attempt), "")
                if (partition, attempt) not in self.complete or (partition, attempt) in self.released:
                    self.assert_superseded(task)
                    return partition, attempt
                if not self.taskmanagers[name].is_alive:
                    return partition, attempt
        return None

    def assert_superseded(self, task: Task) -> None:
        """What a task was told of is not complete, or released, only when the task is to run again anyway."""
        subtask, attempt = task
        state = self.scheduler.execution_state(subtask)
        assert self.scheduler.attempt(subtask) != attempt or state in (
            ExecutionState.CANCELING,
            ExecutionState.CANCELED,
            ExecutionState.FAILED,
        ), f"{task} is {state.value}, and what it reads is not there"

    def report_state(self, taskmanager: TaskManager, task: Task, what: ExecutionInput) -> None:
        subtasks, attempts = np.array([task[0]], np.int32), np.array([task[1]], np.uint32)
        sizes = self.sizes(task[0]) if what is ExecutionInput.FINISH else {}
        self.report(taskmanager, TasksReported(what, subtasks, attempts, sizes))

    def sizes(self, subtask: int) -> dict[int, Any]:
        topology = self.scheduler.topology
        if not topology.job.is_dynamic:
            return {}
        vertex, index = topology.place_of(subtask)
        return {
            partition: np.full(int(topology.subpartition_counts(dataset)[index]), 1000, np.int64)
            for dataset, partition in zip(
                topology.outputs_of(vertex), topology.partitions_of_subtask(subtask), strict=True
            )
        }

    def leave(self, taskmanager: TaskManager, task: Task) -> bool:
        """The task is no more; whether it was there."""
        if taskmanager.tasks.pop(task, None) is None:
            return False
        del self.active[task]
        return True

    def finish(self, taskmanager: TaskManager, task: Task) -> None:
        if self.unknown.get(task):
            self.at(1.0, lambda: self.finish(taskmanager, task))  # there is something it has not read
            return
        if self.leave(taskmanager, task):
            for partition in self.scheduler.topology.partitions_of_subtask(task[0]):
                self.complete.add((partition, task[1]))
            self.report_state(taskmanager, task, ExecutionInput.FINISH)

    def cancel(self, taskmanager: TaskManager, task: Task) -> None:
        if self.leave(taskmanager, task):
            self.report_state(taskmanager, task, ExecutionInput.CANCELED)

    def fail(
        self, taskmanager: TaskManager, task: Task, cause: str, partition: int | None = None, attempt: int = 0
    ) -> None:
        if self.leave(taskmanager, task):
            self.report(taskmanager, TaskFailed(task[0], task[1], cause, partition, attempt))

    # --------------------------------------------------------------------------------------------- instructions

    def carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            assert self.end is None, f"{instruction} after the end"
            match instruction:
                case Deploy():
                    self.send(instruction)
                case UpdateGate():
                    self.update(instruction)
                case Cancel():
                    for subtask, attempt, slot in zip(
                        instruction.subtasks.tolist(), instruction.attempts.tolist(), instruction.slots, strict=True
                    ):
                        taskmanager = self.taskmanagers[slot.location.taskmanager]
                        self.canceled.add((subtask, attempt))
                        self.tell(taskmanager, lambda tm=taskmanager, task=(subtask, attempt): self.cancel(tm, task))
                case ReleasePartitions():
                    self.released.update(
                        zip(instruction.partitions.tolist(), instruction.attempts.tolist(), strict=True)
                    )
                case StartTimer():
                    self.at(instruction.delay_s, lambda timer=instruction.timer: self.post(TimerDue(timer)))
                case ReturnSlots():
                    for slot in instruction.slots:
                        self.give_again(slot.location.taskmanager, slot.index)
                case BlockTaskManagers():
                    self.blocked = {*instruction.taskmanagers}
                case Continue():
                    # A step takes time, in which other things happen.
                    self.at(self.weather.step_s, lambda: self.inbox.post(Proceed()))
                case EndJob():
                    self.end = instruction

    def give_again(self, taskmanager: str, slot: int) -> None:
        """A slot that was given back is offered again, but not while its TaskManager is blocked."""
        if taskmanager in self.blocked:
            self.at(0.5, lambda: self.give_again(taskmanager, slot))
        elif self.taskmanagers[taskmanager].is_alive:
            self.inbox.post(SlotsOffered(taskmanager, (slot,)))

    def send(self, deploy: Deploy) -> None:
        if self.store is not None:
            sent = [TaskDeploymentDescriptor.parse(data) for _, data in self.scheduler.descriptors(deploy)]
            assert [actual.attempt.attempt for actual in sent] == deploy.attempts.tolist()
            for descriptor in sent:
                self.assert_up_to_date(load_parts(descriptor, lambda key: self.blob(key)))
        for subtask, attempt, slot in zip(
            deploy.subtasks.tolist(), deploy.attempts.tolist(), deploy.slots, strict=True
        ):
            taskmanager = self.taskmanagers[slot.location.taskmanager]
            self.tell(
                taskmanager,
                lambda tm=taskmanager, task=(subtask, attempt), index=slot.index: self.deploy(tm, task, index),
            )

    def update(self, update: UpdateGate) -> None:
        news = {(update.gate, index) for index in ShuffleDescriptors.decompress(update.descriptors).index.tolist()}
        for subtask, attempt, slot in zip(
            update.subtasks.tolist(), update.attempts.tolist(), update.slots, strict=True
        ):
            self.tell(
                self.taskmanagers[slot.location.taskmanager],
                lambda task=(subtask, attempt): self.unknown.get(task, set()).difference_update(news),
            )

    def blob(self, key: BlobKey) -> bytes:
        assert self.store is not None
        return self.store.get("job-1", key)

    def assert_up_to_date(self, descriptor: TaskDeploymentDescriptor) -> None:
        """Every channel leads to the current attempt of its producer."""
        topology = self.scheduler.topology
        datasets = {dataset.name: number for number, dataset in enumerate(topology.job.datasets)}
        subtask = topology.subtask(descriptor.attempt.vertex, descriptor.attempt.subtask)
        unknown = self.unknown[subtask, descriptor.attempt.attempt] = set()
        for number, gate in enumerate(descriptor.gates):
            positions = [
                position
                for first, stop, first_subpartition, stop_subpartition in gate.pieces
                for position in range(first, stop)
                for _ in range(1 if gate.type.is_released_by_scheduler else stop_subpartition - first_subpartition)
            ]
            for position, channel in zip(positions, gate.gate().channels, strict=True):
                if not channel.address:
                    unknown.add((number, position))
                    continue
                dataset, _, place = channel.partition_id.partition("/")[2].rpartition("/")
                index, _, attempt = place.partition(".")
                partition = topology.partitions_of(datasets[dataset])[int(index)]
                producer = int(topology.producer_of_partition[partition])
                assert self.scheduler.attempt(producer) == int(attempt), f"{descriptor.attempt} is sent to {channel}"


def assert_ended(end: EndJob) -> None:
    assert end.state in (JobState.FINISHED, JobState.FAILED)
    assert bool(end.reason) == (end.state is JobState.FAILED)
