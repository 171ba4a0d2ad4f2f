"""State, attempt and version of every subtask, in arrays.

Rules: every change of state goes through the table of `execution_states`. A reset, and an attempt beside the current
one, get the next number of their subtask: no two attempts share a number. A version only grows: code that waits records
the versions when it begins, and compares them when it continues; the state alone cannot show that a subtask was
superseded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from ..structures.arrays import FlagArray, GrowingArray, IndexArray
from .execution_states import (
    ON_TASKMANAGER,
    TERMINAL,
    ExecutionInput,
    ExecutionState,
    StateCodes,
    allows,
    mask_of,
    next_states,
    state_of,
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class RecordedVersions:
    """The versions of some subtasks at one moment.

    Attributes:
        subtasks: their numbers.
        versions: one each.
    """

    subtasks: IndexArray
    versions: npt.NDArray[np.uint32]

    def __getitem__(self, part: slice) -> RecordedVersions:
        return RecordedVersions(self.subtasks[part], self.versions[part])


@final
class ExecutionVersions:
    """The versions of all subtasks."""

    __slots__ = ("_versions",)

    def __init__(self) -> None:
        self._versions = GrowingArray(np.uint32)

    def grow(self, count: int) -> None:
        """Adds subtasks."""
        self._versions.extend_with(0, count)

    def record(self, subtasks: IndexArray) -> RecordedVersions:
        """Records the present versions."""
        return RecordedVersions(subtasks, self._versions.view[subtasks])

    def bump(self, subtasks: IndexArray) -> RecordedVersions:
        """Makes everything recorded of these subtasks stale, and records them anew; no subtask may occur twice."""
        self._versions.view[subtasks] += 1
        return self.record(subtasks)

    def current(self, recorded: RecordedVersions) -> IndexArray:
        """The subtasks whose version is still the recorded one."""
        current: IndexArray = recorded.subtasks[self._versions.view[recorded.subtasks] == recorded.versions]
        return current


_IS_TERMINAL: Final = mask_of(TERMINAL)
_IS_ON_TASKMANAGER: Final = mask_of(ON_TASKMANAGER)
_IS_PRODUCING: Final = mask_of(
    frozenset(
        {
            ExecutionState.SCHEDULED,
            ExecutionState.DEPLOYING,
            ExecutionState.INITIALIZING,
            ExecutionState.RUNNING,
            ExecutionState.FINISHED,
        }
    )
)


@final
class Executions:
    """The current execution of each subtask."""

    __slots__ = ("_attempts", "_counts", "_newest", "_states")

    def __init__(self) -> None:
        self._states = GrowingArray(np.uint8)
        self._attempts = GrowingArray(np.uint32)
        self._newest = GrowingArray(np.uint32)
        self._counts = np.zeros(len(ExecutionState), np.int64)

    def __len__(self) -> int:
        return len(self._states)

    def grow(self, count: int) -> None:
        """Adds subtasks in state CREATED."""
        self._states.extend_with(ExecutionState.CREATED.code, count)
        self._attempts.extend_with(0, count)
        self._newest.extend_with(0, count)
        self._counts[ExecutionState.CREATED.code] += count

    @property
    def states(self) -> StateCodes:
        """The state code of each subtask; a view."""
        return self._states.view

    @property
    def attempts(self) -> npt.NDArray[np.uint32]:
        """The current attempt of each subtask; a view."""
        return self._attempts.view

    def state(self, subtask: int) -> ExecutionState:
        """The state of one subtask."""
        return state_of(int(self._states.view[subtask]))

    def count(self, *states: ExecutionState) -> int:
        """Number of subtasks in any of these states."""
        return int(sum(self._counts[state.code] for state in states))

    def apply(self, subtasks: IndexArray, what: ExecutionInput) -> None:
        """Applies an input to subtasks; none may occur twice.

        Raises:
            LocalProtocolError: the input is illegal for one of them; nothing is changed.
        """
        before = self._states.view[subtasks]
        after = next_states(before, what)
        self._states.view[subtasks] = after
        self._counts += np.bincount(after, minlength=len(ExecutionState))
        self._counts -= np.bincount(before, minlength=len(ExecutionState))
        if what is ExecutionInput.RESET:
            self._newest.view[subtasks] += np.uint32(1)
            self._attempts.view[subtasks] = self._newest.view[subtasks]

    def take_attempt(self, subtask: int) -> int:
        """Takes a number for another attempt beside the current one."""
        self._newest.view[subtask] += np.uint32(1)
        return int(self._newest.view[subtask])

    def replace(self, subtask: int, attempt: int, state: ExecutionState) -> None:
        """Makes another attempt the current one, in its present state."""
        self._counts[self._states.view[subtask]] -= 1
        self._counts[state.code] += 1
        self._states.view[subtask] = state.code
        self._attempts.view[subtask] = attempt

    def allowed(self, subtasks: IndexArray, what: ExecutionInput) -> IndexArray:
        """The subtasks in whose state an input is legal."""
        is_allowed: IndexArray = subtasks[allows(self._states.view[subtasks], what)]
        return is_allowed

    def current(self, subtasks: IndexArray, attempts: npt.NDArray[np.uint32]) -> FlagArray:
        """For each, whether this is its current attempt; False for a number that no subtask has."""
        known = (subtasks >= 0) & (subtasks < len(self))
        is_current: FlagArray = known & (self._attempts.view[np.where(known, subtasks, 0)] == attempts)
        return is_current

    def in_state(self, subtasks: IndexArray, state: ExecutionState) -> IndexArray:
        """The subtasks in a state."""
        result: IndexArray = subtasks[self._states.view[subtasks] == state.code]
        return result

    def not_in_state(self, subtasks: IndexArray, state: ExecutionState) -> IndexArray:
        """The subtasks in any other state."""
        result: IndexArray = subtasks[self._states.view[subtasks] != state.code]
        return result

    def terminal(self, subtasks: IndexArray) -> FlagArray:
        """For each, whether it has ended."""
        result: FlagArray = _IS_TERMINAL[self._states.view[subtasks]]
        return result

    def on_taskmanager(self, subtasks: IndexArray) -> FlagArray:
        """For each, whether it is on a TaskManager or on its way there."""
        result: FlagArray = _IS_ON_TASKMANAGER[self._states.view[subtasks]]
        return result

    def producing(self, subtasks: IndexArray) -> FlagArray:
        """For each, whether its partitions may be named to consumers: from SCHEDULED on, unless failed or canceled."""
        result: FlagArray = _IS_PRODUCING[self._states.view[subtasks]]
        return result

    @property
    def are_all_finished(self) -> bool:
        """Whether every subtask has finished."""
        return self.count(ExecutionState.FINISHED) == len(self)

    @property
    def are_all_terminal(self) -> bool:
        """Whether every subtask has ended."""
        return self.count(*TERMINAL) == len(self)
