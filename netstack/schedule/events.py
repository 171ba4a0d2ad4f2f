"""The input of a scheduler: frozen events, each with the time at which it is handed over.

Takes: nothing. Gives: classes to `scheduler` and to whoever drives one.

Rules: times are seconds of one monotonic clock of the caller's and never go back. Subtasks and partitions are the
numbers of `topology`. What a TaskManager reports names the attempt it is about: of another attempt it is stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from .descriptors.shuffle import TaskManagerLocation
from .execution.execution_states import ExecutionInput
from .graph.job_graph import ANY_PROFILE, ResourceProfile
from .structures.arrays import IndexArray


@final
@dataclass(frozen=True, slots=True)
class StartJob:
    """Begin to schedule."""

    now_s: float


@final
@dataclass(frozen=True, slots=True)
class TaskManagerRegistered:
    """A TaskManager is there; it offers its slots next.

    Attributes:
        now_s: when.
        location: its name, which no other TaskManager has, and its address.
    """

    now_s: float
    location: TaskManagerLocation


@final
@dataclass(frozen=True, slots=True)
class SlotsOffered:
    """A TaskManager gives slots to the job, which keeps them until it says `ReturnSlots` or ends.

    Attributes:
        now_s: when.
        taskmanager: its name. Of an unknown one it means nothing: it was lost meanwhile.
        slots: which of its slots.
        profile: of each of them.
    """

    now_s: float
    taskmanager: str
    slots: tuple[int, ...]
    profile: ResourceProfile = ANY_PROFILE


@final
@dataclass(frozen=True, slots=True)
class TaskManagerLost:
    """A TaskManager has disconnected, or was silent for too long. Of an unknown one it means nothing."""

    now_s: float
    taskmanager: str
    reason: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class TasksReported:
    """Tasks have got on: a TaskManager's report about any number of them.

    Attributes:
        now_s: when.
        what: `INITIALIZE`, `RUN`, `FINISH` or `CANCELED`.
        subtasks: ascending; none twice.
        attempts: the attempt of each.
        produced_bytes: with `FINISH` in an adaptive job: the bytes of each subpartition, by partition.
    """

    now_s: float
    what: ExecutionInput
    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    produced_bytes: Mapping[int, npt.NDArray[np.int64]] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class PartitionConsumable:
    """A partition has its first buffer; only a job whose stages wait for the first output wants to know.

    Attributes:
        now_s: when.
        partition: which.
        attempt: of its producer.
    """

    now_s: float
    partition: int
    attempt: int


@final
@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task has ended with an error.

    Attributes:
        now_s: when.
        subtask: which.
        attempt: of it.
        cause: error and text.
        missing_partition: the partition whose loss, or whose unreachable producer, caused the failure; else None.
        missing_attempt: the attempt of its producer.
        is_recoverable: False fails the job, whatever the restart strategy says.
    """

    now_s: float
    subtask: int
    attempt: int
    cause: str
    missing_partition: int | None = None
    missing_attempt: int = 0
    is_recoverable: bool = True


@final
@dataclass(frozen=True, slots=True, eq=False)
class TasksLost:
    """The process in which these tasks were has ended: one failure, however many tasks.

    Attributes:
        now_s: when.
        subtasks: ascending; none twice.
        attempts: the attempt of each.
        cause: how it ended.
    """

    now_s: float
    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    cause: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class TasksWaiting:
    """These attempts have sent their last event, and wait for the order to commit; in a job that takes no checkpoints.

    Attributes:
        now_s: when.
        subtasks: ascending; none twice.
        attempts: the attempt of each.
    """

    now_s: float
    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]


@final
@dataclass(frozen=True, slots=True)
class GlobalFailure:
    """Something failed that concerns all of the job: every subtask restarts."""

    now_s: float
    cause: str


@final
@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """A checkpoint is complete; tasks deployed from now on begin with it."""

    now_s: float
    checkpoint_id: int


@final
@dataclass(frozen=True, slots=True)
class CancelJob:
    """The user wants the job to stop."""

    now_s: float


@final
@dataclass(frozen=True, slots=True)
class TimerDue:
    """The time of a `StartTimer` has come."""

    now_s: float
    timer: int


@final
@dataclass(frozen=True, slots=True)
class Tick:
    """`Scheduler.next_deadline` has come."""

    now_s: float


@final
@dataclass(frozen=True, slots=True)
class Proceed:
    """The answer to `Continue`: go on with the next piece of work."""

    now_s: float


Event: TypeAlias = (
    StartJob
    | TaskManagerRegistered
    | SlotsOffered
    | TaskManagerLost
    | TasksReported
    | PartitionConsumable
    | TaskFailed
    | TasksLost
    | TasksWaiting
    | GlobalFailure
    | CheckpointStored
    | CancelJob
    | TimerDue
    | Tick
    | Proceed
)
