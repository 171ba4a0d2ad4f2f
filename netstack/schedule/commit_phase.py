"""When the tasks of a region commit what they have prepared, in a job that takes no checkpoints.

Takes: which attempts wait, what tasks end. Gives: `CommitTasks`, once for each region.

Rules: a region commits when each of its tasks has finished or waits, so that no failure of a task that still works can
have it run again. What has begun to commit never runs again: a failure that reaches it ends the job.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from .events import TasksWaiting
from .execution.execution_states import ExecutionState
from .instructions import CommitTasks
from .progress import Progress
from .structures.arrays import IndexArray, index_array

COMMITTED: Final = (
    "what its sinks had written was being committed, so it cannot run again: a job with checkpoints goes on there"
)


@final
class CommitPhase:
    """The end of a job without checkpoints: its tasks commit together.

    Args:
        progress: of the job's tasks.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._waiting: dict[int, int] = {}
        self._committing: set[int] = set()

    def wait(self, event: TasksWaiting) -> int:
        """These attempts wait; returns how many of them are over."""
        current = self._progress.executions.current(event.subtasks, event.attempts)
        self._waiting |= dict(zip(event.subtasks[current].tolist(), event.attempts[current].tolist(), strict=True))
        return int(np.count_nonzero(~current))

    def step(self) -> None:
        """Has regions commit that are ready, in the instructions of this step."""
        if not self._waiting:
            return
        progress = self._progress
        for region in progress.regions.of_subtasks(index_array(sorted(self._waiting))).tolist():
            members = progress.regions.members(region)
            waiting = self._still_waiting(members)
            if waiting.size and waiting.size + progress.executions.in_state(members, ExecutionState.FINISHED).size == (
                members.size
            ):
                self._committing.add(region)
                slots = tuple(progress.allocation.slots_of(waiting))
                progress.out.append(CommitTasks(waiting, progress.executions.attempts[waiting], slots))
                for subtask in waiting.tolist():
                    del self._waiting[subtask]

    def has_begun(self, subtasks: IndexArray) -> bool:
        """Whether one of these is in a region that has begun to commit."""
        return bool(self._committing) and not self._committing.isdisjoint(
            self._progress.regions.of_subtasks(subtasks).tolist()
        )

    def _still_waiting(self, members: IndexArray) -> IndexArray:
        executions = self._progress.executions
        waiting = []
        for subtask in members.tolist():
            attempt = self._waiting.get(subtask)
            if attempt is None:
                continue
            if executions.attempts[subtask] == attempt:
                waiting.append(subtask)
            else:
                del self._waiting[subtask]
        return executions.in_state(index_array(waiting), ExecutionState.RUNNING)
