"""The commit at the end of a job that takes no checkpoints: the tasks of a pipelined region commit together.

Rules:
- A region commits when each of its tasks has finished or waits for the order. Until then a failure may restart it.
- A region that has begun to commit never restarts: a failure that reaches it fails the job. So where results are kept,
  and a lost one would have its consumers run again, regions commit together, when nothing else runs; or earlier, if
  others need their slots.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from .deployer import Deployer
from .events import TasksWaiting
from .execution import ExecutionState
from .instructions import CommitTasks
from .structures import IndexArray, index_array

COMMITTED: Final = "its sinks were committing, so it cannot restart; a job with checkpoints resumes from the last one"


@final
class CommitPhase:
    """Sends `CommitTasks` once for each region of a job."""

    def __init__(self, deployer: Deployer) -> None:
        self._deployer = deployer
        self._keeps_results = not all(each.type.must_be_pipelined for each in deployer.topology.job.datasets)
        self._waiting: dict[int, int] = {}
        self._committing: set[int] = set()

    def wait(self, event: TasksWaiting) -> int:
        """Notes attempts that wait for the order to commit; returns how many of them are not current."""
        current = self._deployer.executions.current(event.subtasks, event.attempts)
        self._waiting |= dict(zip(event.subtasks[current].tolist(), event.attempts[current].tolist(), strict=True))
        return int(np.count_nonzero(~current))

    def step(self) -> None:
        """Orders regions that are ready to commit, as instructions of this step."""
        if not self._waiting:
            return
        deployer = self._deployer
        if self._keeps_results and not deployer.allocation.is_waited_for:
            idle = self._still_waiting(index_array(sorted(self._waiting))).size
            idle += deployer.executions.count(ExecutionState.CREATED, ExecutionState.FINISHED)
            if idle < len(deployer.executions):
                return
        for region in deployer.regions.of_subtasks(index_array(sorted(self._waiting))).tolist():
            members = deployer.regions.members(region)
            waiting = self._still_waiting(members)
            if waiting.size and waiting.size + deployer.executions.in_state(members, ExecutionState.FINISHED).size == (
                members.size
            ):
                self._committing.add(region)
                slots = tuple(deployer.allocation.slots_of(waiting))
                deployer.out.append(CommitTasks(waiting, deployer.executions.attempts[waiting], slots))
                for subtask in waiting.tolist():
                    del self._waiting[subtask]

    def has_begun(self, subtasks: IndexArray) -> bool:
        """Whether the region of one of these subtasks has begun to commit."""
        return bool(self._committing) and not self._committing.isdisjoint(
            self._deployer.regions.of_subtasks(subtasks).tolist()
        )

    def _still_waiting(self, members: IndexArray) -> IndexArray:
        executions = self._deployer.executions
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
