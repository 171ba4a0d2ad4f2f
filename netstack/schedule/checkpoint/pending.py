"""A checkpoint in progress, and checks of the job's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from ...base.errors import ConfigError
from ...base.events import CheckpointBarrier
from .instructions import JobTask, Subtask
from .snapshot import TaskFile


@final
@dataclass(slots=True, kw_only=True, eq=False)
class PendingCheckpoint:
    """One checkpoint that has not ended: its barrier, and the acknowledgements received and missing."""

    barrier: CheckpointBarrier
    triggered_s: float
    is_savepoint: bool
    stops: bool
    confirms: tuple[Subtask, ...]
    is_last: bool
    waiting: set[Subtask]
    is_storing: bool = False
    files: dict[Subtask, TaskFile] = field(default_factory=dict)

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint."""
        return self.barrier.checkpoint_id

    @property
    def job_goes_on(self) -> bool:
        """Whether it is a savepoint after which the job continues."""
        return self.is_savepoint and not self.stops


@final
@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """The state of a checkpoint in progress.

    Attributes:
        acknowledged: number of subtasks that have acknowledged it.
        subtasks: number of all subtasks.
        waits_for: sorted subtasks that have not acknowledged it, though all subtasks of their inputs have: the barriers
            are in front of these. Empty while the manifest is being stored.
    """

    checkpoint_id: int
    is_savepoint: bool
    triggered_s: float
    acknowledged: int
    subtasks: int
    waits_for: tuple[Subtask, ...]


def connected_tasks(tasks: Mapping[str, JobTask]) -> dict[str, str]:
    """Maps each task to a representative of its connected component: all tasks linked by edges in any direction."""
    components = {name: {name} for name in tasks}
    for task in tasks.values():
        for name in task.inputs:
            joined = components[name] | components[task.name]
            for each in joined:
                components[each] = joined
    return {name: min(group) for name, group in components.items()}


def checked_tasks(tasks: Iterable[JobTask]) -> dict[str, JobTask]:
    """The tasks by name. Raises ConfigError if two have one name, one has no subtasks, or an input is no task."""
    by_name: dict[str, JobTask] = {}
    for task in tasks:
        if task.name in by_name:
            raise ConfigError(f"two tasks have the name {task.name!r}; give each its own name")
        if task.parallelism < 1:
            raise ConfigError(f"task {task.name!r} has parallelism {task.parallelism}; give at least 1")
        by_name[task.name] = task
    for task in by_name.values():
        for name in task.inputs:
            if name not in by_name:
                raise ConfigError(f"task {task.name!r} reads {name!r}, which is no task of the job")
    if all(task.inputs for task in by_name.values()):
        raise ConfigError("the job has no source: give at least one task without inputs")
    return by_name
