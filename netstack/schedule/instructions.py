"""The output of a scheduler: frozen instructions.

Rules: the caller carries out instructions in order. Before it hands over the next event, it reads from the scheduler
what an instruction refers to (`Deploy` does); sending may take longer. In instructions about many subtasks, `attempts`
and `slots` have one element for each subtask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from .execution import JobState
from .slots.slots import PhysicalSlot
from .structures import IndexArray


@final
@dataclass(frozen=True, slots=True)
class RequireSlots:
    """Offer slots to the job until it has been offered `total`; replaces the previous instruction.

    Attributes:
        total: the slots that the job lacks and those that it was ever offered, lost and returned ones included. Offers
            and losses on their way to the scheduler therefore cannot make it wrong.
        missing: the slots that the job lacks.
    """

    total: int
    missing: int


@final
@dataclass(frozen=True, slots=True)
class ReturnSlots:
    """Return idle slots to their TaskManagers."""

    slots: tuple[PhysicalSlot, ...]


@final
@dataclass(frozen=True, slots=True)
class BlockTaskManagers:
    """Request no new slots of these TaskManagers for now; replaces the previous list."""

    taskmanagers: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Deploy:
    """Send these subtasks to their slots; `Scheduler.descriptors` makes the deployment descriptors.

    Attributes:
        subtasks: ascending.
        restore: the checkpoint to restore; None: the tasks begin empty.
        is_speculative: whether these are further attempts of subtasks that already run.
    """

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    slots: tuple[PhysicalSlot, ...]
    restore: int | None = None
    is_speculative: bool = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class UpdateGate:
    """Send deployed consumers the locations of partitions that were unknown at their deployment.

    Attributes:
        gate: the index of the input gate, in the order of their descriptors.
        descriptors: a compressed list (`ShuffleDescriptors`) that overrides what the consumers have.
    """

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    slots: tuple[PhysicalSlot, ...]
    gate: int
    descriptors: bytes


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cancel:
    """Have TaskManagers cancel these tasks and report `CANCELED`, also for a task that they do not know.

    A report that the task has finished or failed may cross this order; it counts as well.
    """

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    slots: tuple[PhysicalSlot, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CommitTasks:
    """Have these waiting tasks commit and end. The job sends this once per region."""

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    slots: tuple[PhysicalSlot, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ReleasePartitions:
    """Have TaskManagers drop partitions that no consumer will read."""

    partitions: IndexArray
    attempts: npt.NDArray[np.uint32]
    taskmanagers: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class StartTimer:
    """Hand over `TimerDue` with this number after this delay."""

    timer: int
    delay_s: float


@final
@dataclass(frozen=True, slots=True)
class EndJob:
    """The job has ended; only losing speculative attempts may still run. Sent once; `reason` is set if it failed."""

    state: JobState
    reason: str = ""


@final
@dataclass(frozen=True, slots=True)
class Continue:
    """More work is left: hand over `Proceed` after the events that are already queued."""


Instruction: TypeAlias = (
    RequireSlots
    | ReturnSlots
    | BlockTaskManagers
    | Deploy
    | UpdateGate
    | Cancel
    | CommitTasks
    | ReleasePartitions
    | StartTimer
    | EndJob
    | Continue
)
