"""A simulated cluster that carries out a scheduler's instructions at once and times every step.

A step is one call of `handle` and the work of its instructions: the time during which the scheduler's thread is
blocked. It is CPU time, because nothing waits. The time in events is constant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import thread_time_ns
from typing import Final, final

import numpy as np

from netstack.schedule.descriptors.shuffle import TaskManagerLocation
from netstack.schedule.events import (
    Event,
    GlobalFailure,
    Proceed,
    SlotsOffered,
    StartJob,
    TaskManagerRegistered,
    TasksReported,
    TimerDue,
)
from netstack.schedule.execution import ExecutionInput
from netstack.schedule.instructions import Cancel, Continue, Deploy, Instruction, ReleasePartitions, StartTimer
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.structures import IndexArray

SLOTS_PER_TASKMANAGER: Final = 4

_NOW_S: Final = 0.0


@final
@dataclass(slots=True)
class Done:
    """Counters of the work of a scheduler: tasks, partitions, bytes of descriptors, and the length of each step."""

    deployed: int = 0
    deployed_bytes: int = 0
    canceled: int = 0
    released: int = 0
    releases: int = 0
    step_ns: list[int] = field(default_factory=list)


@final
class Cluster:
    """A cluster with as many TaskManagers as the job of a scheduler needs."""

    def __init__(self, scheduler: Scheduler, subtasks: int, slots: int) -> None:
        self.scheduler = scheduler
        self.done = Done()
        self.keeps_deployments = False
        """Whether descriptors are deferred to `make_descriptors`, to be timed alone."""
        self._kept: list[Deploy] = []
        self._timers: list[int] = []
        self._attempts = np.zeros(subtasks, np.uint32)
        for first in range(0, slots, SLOTS_PER_TASKMANAGER):
            number = first // SLOTS_PER_TASKMANAGER
            host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            location = TaskManagerLocation(f"taskmanager-{number}", f"tcp://{host}:6121", host)
            here = range(min(SLOTS_PER_TASKMANAGER, slots - first))
            self._handle(TaskManagerRegistered(location))
            self._handle(SlotsOffered(location.name, tuple(here)))

    def start(self) -> None:
        """Starts the job and deploys all tasks that can be deployed."""
        self._handle(StartJob())

    def report(self, what: ExecutionInput, subtasks: range) -> None:
        """Reports a state of tasks in one event."""
        numbers = np.arange(subtasks.start, subtasks.stop, dtype=np.int32)
        self._report(what, numbers)

    def run(self, subtasks: range) -> None:
        """Reports that deployed tasks run."""
        self.report(ExecutionInput.INITIALIZE, subtasks)
        self.report(ExecutionInput.RUN, subtasks)

    def fail_globally(self) -> None:
        """Fails the job globally: all tasks are cancelled, and restart after the delay."""
        self._handle(GlobalFailure("the coordinator has failed"))
        while self._timers:
            self._handle(TimerDue(self._timers.pop()))

    def make_descriptors(self) -> None:
        """Makes and serialises the deferred descriptors."""
        for deploy in self._kept:
            self._make(deploy)
        self._kept.clear()

    def _report(self, what: ExecutionInput, subtasks: IndexArray) -> None:
        self._handle(TasksReported(what, subtasks, self._attempts[subtasks]))

    def _handle(self, event: Event | None) -> None:
        canceled: list[IndexArray] = []
        while event is not None:
            began_ns = thread_time_ns()
            instructions = self.scheduler.handle(event, _NOW_S)
            for instruction in instructions:
                self._carry_out(instruction)
            self.done.step_ns.append(thread_time_ns() - began_ns)
            canceled += [instruction.subtasks for instruction in instructions if isinstance(instruction, Cancel)]
            goes_on = any(isinstance(instruction, Continue) for instruction in instructions)
            event = Proceed() if goes_on else None
        for subtasks in canceled:
            self._report(ExecutionInput.CANCELED, subtasks)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Deploy():
                self._attempts[instruction.subtasks] = instruction.attempts
                if self.keeps_deployments:
                    self._kept.append(instruction)
                else:
                    self._make(instruction)
            case Cancel():
                self.done.canceled += instruction.subtasks.size
            case ReleasePartitions():
                self.done.released += instruction.partitions.size
                self.done.releases += 1
            case StartTimer():
                self._timers.append(instruction.timer)

    def _make(self, deploy: Deploy) -> None:
        for _, descriptor in self.scheduler.descriptors(deploy):
            self.done.deployed += 1
            self.done.deployed_bytes += len(descriptor)
