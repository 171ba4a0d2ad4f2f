"""What a scheduler wants done: frozen instructions.

Takes: nothing. Gives: classes from `scheduler` to whoever drives it.

Rules: instructions are carried out in order, and before the next event is handed over, as far as they look into the
scheduler (`Deploy` does); sending may take its time. Those that are about many subtasks hold arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from .execution.execution_states import JobState
from .slots.slots import PhysicalSlot
from .structures.arrays import IndexArray


@final
@dataclass(frozen=True, slots=True)
class RequireSlots:
    """So many slots are wanted and not there; replaces what was said before."""

    missing: int


@final
@dataclass(frozen=True, slots=True)
class ReturnSlots:
    """Nobody has wanted these for a while: give them back to their TaskManagers."""

    slots: tuple[PhysicalSlot, ...]


@final
@dataclass(frozen=True, slots=True)
class BlockTaskManagers:
    """New slots of these TaskManagers are not wanted for now; replaces what was said before."""

    taskmanagers: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Deploy:
    """Send these subtasks to their slots; `Scheduler.descriptors` makes what to send.

    Attributes:
        subtasks: ascending.
        attempts: one each.
        slots: one each.
        restore: the checkpoint that they begin with; None is empty.
        is_speculative: whether these run beside other attempts of the same subtasks.
    """

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    slots: tuple[PhysicalSlot, ...]
    restore: int | None = None
    is_speculative: bool = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class UpdateGate:
    """Tell deployed consumers where partitions are that were unknown when they were sent.

    Attributes:
        subtasks: which.
        attempts: one each.
        slots: where each is.
        gate: which of their gates, in the order of their descriptors.
        descriptors: a compressed list (`ShuffleDescriptors`) that overrides what they know.
    """

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    slots: tuple[PhysicalSlot, ...]
    gate: int
    descriptors: bytes


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cancel:
    """Tell TaskManagers to stop these tasks, and report `CANCELED`: also of a task that they have never heard of.

    What a task did last may cross this on the way: its report that it has finished or failed is as good.

    Attributes:
        subtasks: which.
        attempts: one each.
        slots: where each is.
    """

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    slots: tuple[PhysicalSlot, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CommitTasks:
    """Tell these tasks, which wait, to commit what they have prepared, and to end. Their job never does so twice.

    Attributes:
        subtasks: which.
        attempts: one each.
        slots: where each is.
    """

    subtasks: IndexArray
    attempts: npt.NDArray[np.uint32]
    slots: tuple[PhysicalSlot, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ReleasePartitions:
    """Nobody will read these any more: have their TaskManagers drop them.

    Attributes:
        partitions: their numbers.
        attempts: the attempt of each producer.
        taskmanagers: the name of the TaskManager of each.
    """

    partitions: IndexArray
    attempts: npt.NDArray[np.uint32]
    taskmanagers: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class StartTimer:
    """Hand over `TimerDue` with this number after this time."""

    timer: int
    delay_s: float


@final
@dataclass(frozen=True, slots=True)
class EndJob:
    """The job has ended; nothing of it runs any more, but attempts that lost and have not stopped yet. Given once.

    Attributes:
        state: FINISHED, CANCELED or FAILED.
        reason: why it failed; empty otherwise.
    """

    state: JobState
    reason: str = ""


@final
@dataclass(frozen=True, slots=True)
class Continue:
    """There is more to do: hand over `Proceed`, after the events that wait."""


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
