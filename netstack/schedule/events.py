"""The input of a scheduler: frozen events.

Rules: an event has no time; it is handled at the time that `Scheduler.handle` gets with it. Subtasks and partitions are
the numbers of the `ExecutionGraph`; arrays of subtasks ascend without repetition and `attempts` has the attempt of
each. A report about an attempt that is not current is stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from .descriptors.shuffle import TaskManagerLocation
from .execution import ExecutionInput
from .graph.job_graph import ANY_PROFILE, ResourceProfile
from .structures import IndexArray


@final
@dataclass(frozen=True, slots=True)
class StartJob:
    """Start scheduling."""


@final
@dataclass(frozen=True, slots=True)
class TaskManagerRegistered:
    """A TaskManager has registered; `SlotsOffered` follows.

    Attributes:
        location: its unique name and its address.
    """

    location: TaskManagerLocation


@final
@dataclass(frozen=True, slots=True)
class SlotsOffered:
    """A TaskManager offers slots; the job keeps them until it sends `ReturnSlots` or ends.

    Attributes:
        taskmanager: its name. The offer of an unknown TaskManager, one that was lost meanwhile, is ignored.
    """

    taskmanager: str
    slots: tuple[int, ...]
    profile: ResourceProfile = ANY_PROFILE


@final
@dataclass(frozen=True, slots=True)
class TaskManagerLost:
    """A TaskManager has disconnected or missed its heartbeat timeout. An unknown name is ignored."""

    taskmanager: str
    reason: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class TasksReported:
    """A TaskManager reports that tasks have changed their state.

    Attributes:
        what: `INITIALIZE`, `RUN`, `FINISH` or `CANCELED`.
        produced_bytes: with `FINISH` in an adaptive job: the bytes of each subpartition, by partition.
    """

    what: ExecutionInput
    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    produced_bytes: Mapping[int, npt.NDArray[np.int64]] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class PartitionConsumable:
    """A partition has its first buffer; `attempt` is its producer's. Only for `NEXT_STAGE_ON_FIRST_OUTPUT`."""

    partition: int
    attempt: int


@final
@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task has failed.

    Attributes:
        cause: class and text of the error.
        missing_partition: the partition whose loss, or whose unreachable producer, caused the failure; else None.
        missing_attempt: the attempt of that partition's producer.
        is_recoverable: False fails the job, whatever the restart strategy decides.
    """

    subtask: int
    attempt: int
    cause: str
    missing_partition: int | None = None
    missing_attempt: int = 0
    is_recoverable: bool = True


@final
@dataclass(frozen=True, slots=True, eq=False)
class TasksLost:
    """The process of a slot has ended, and all its tasks with it; that counts as one failure."""

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    cause: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class TasksWaiting:
    """Attempts have sent their last event and wait for the order to commit; only in a job that takes no checkpoints."""

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]


@final
@dataclass(frozen=True, slots=True)
class GlobalFailure:
    """A failure that concerns the whole job: every subtask restarts."""

    cause: str


@final
@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """A checkpoint is complete; tasks that are deployed from now on restore it."""

    checkpoint_id: int


@final
@dataclass(frozen=True, slots=True)
class CancelJob:
    """The user cancels the job."""


@final
@dataclass(frozen=True, slots=True)
class TimerDue:
    """The delay of a `StartTimer` has passed."""

    timer: int


@final
@dataclass(frozen=True, slots=True)
class Tick:
    """The time of `Scheduler.next_deadline` has come."""


@final
@dataclass(frozen=True, slots=True)
class Proceed:
    """The answer to `Continue`: do the next piece of work."""


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
