"""Executions: the state machines of an execution and of a job, and the state, attempt and version of every subtask.

`tools/render_states.py` renders the tables of transitions into `DESIGN.md`.

Rules: an execution is one attempt of a subtask. A subtask that runs again is reset: CREATED, with the next attempt. A
reset, and an attempt beside the current one, get the next number of their subtask: no two attempts share a number.
Arrays hold the code of a state: its place in the enum. A version only grows: code that waits records the versions when
it begins, and compares them when it continues; the state alone cannot show that a subtask was superseded.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..base.errors import LocalProtocolError
from .structures import FlagArray, GrowingArray, IndexArray

StateCodes: TypeAlias = npt.NDArray[np.uint8]
"""Codes of `ExecutionState`s, by subtask."""


class ExecutionState(enum.Enum):
    """The state of an execution."""

    CREATED = "created"
    """No slot was requested yet."""
    SCHEDULED = "scheduled"
    """Its slot is requested."""
    DEPLOYING = "deploying"
    """Its descriptor was sent to the TaskManager."""
    INITIALIZING = "initializing"
    """The task opens its gates and partitions, and restores its state."""
    RUNNING = "running"
    """It processes records."""
    FINISHED = "finished"
    """It has ended without an error."""
    CANCELING = "canceling"
    """The order to stop was sent; it has not stopped yet."""
    CANCELED = "canceled"
    """It has stopped, or never ran."""
    FAILED = "failed"
    """It ended with an error, or its TaskManager is lost."""

    code: int
    """Its number in arrays."""

    def __init__(self, _: str) -> None:
        self.code = len(type(self).__members__)


class ExecutionInput(enum.Enum):
    """An input of an execution's state machine."""

    SCHEDULE = "schedule"
    DEPLOY = "deploy"
    INITIALIZE = "initializes"
    RUN = "runs"
    FINISH = "finishes"
    CANCEL = "cancel"
    CANCELED = "has canceled"
    FAIL = "fails"
    RESET = "reset"


TERMINAL: Final = frozenset({ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED})
ON_TASKMANAGER: Final = frozenset(
    {ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, ExecutionState.RUNNING, ExecutionState.CANCELING}
)
"""The execution is on a TaskManager, or on its way there."""

# A task that cancels itself without an order has failed.
EXECUTION_TRANSITIONS: Final[dict[tuple[ExecutionState, ExecutionInput], ExecutionState]] = {
    (ExecutionState.CREATED, ExecutionInput.SCHEDULE): ExecutionState.SCHEDULED,
    (ExecutionState.CREATED, ExecutionInput.CANCEL): ExecutionState.CANCELED,
    (ExecutionState.CREATED, ExecutionInput.FAIL): ExecutionState.FAILED,
    (ExecutionState.SCHEDULED, ExecutionInput.DEPLOY): ExecutionState.DEPLOYING,
    (ExecutionState.SCHEDULED, ExecutionInput.CANCEL): ExecutionState.CANCELED,
    (ExecutionState.SCHEDULED, ExecutionInput.FAIL): ExecutionState.FAILED,
    (ExecutionState.DEPLOYING, ExecutionInput.INITIALIZE): ExecutionState.INITIALIZING,
    (ExecutionState.DEPLOYING, ExecutionInput.FINISH): ExecutionState.FINISHED,
    (ExecutionState.DEPLOYING, ExecutionInput.CANCEL): ExecutionState.CANCELING,
    (ExecutionState.DEPLOYING, ExecutionInput.CANCELED): ExecutionState.FAILED,
    (ExecutionState.DEPLOYING, ExecutionInput.FAIL): ExecutionState.FAILED,
    (ExecutionState.INITIALIZING, ExecutionInput.RUN): ExecutionState.RUNNING,
    (ExecutionState.INITIALIZING, ExecutionInput.FINISH): ExecutionState.FINISHED,
    (ExecutionState.INITIALIZING, ExecutionInput.CANCEL): ExecutionState.CANCELING,
    (ExecutionState.INITIALIZING, ExecutionInput.CANCELED): ExecutionState.FAILED,
    (ExecutionState.INITIALIZING, ExecutionInput.FAIL): ExecutionState.FAILED,
    (ExecutionState.RUNNING, ExecutionInput.FINISH): ExecutionState.FINISHED,
    (ExecutionState.RUNNING, ExecutionInput.CANCEL): ExecutionState.CANCELING,
    (ExecutionState.RUNNING, ExecutionInput.CANCELED): ExecutionState.FAILED,
    (ExecutionState.RUNNING, ExecutionInput.FAIL): ExecutionState.FAILED,
    # Whatever a task reports while its cancellation is on the way, it ends as canceled.
    (ExecutionState.CANCELING, ExecutionInput.INITIALIZE): ExecutionState.CANCELING,
    (ExecutionState.CANCELING, ExecutionInput.RUN): ExecutionState.CANCELING,
    (ExecutionState.CANCELING, ExecutionInput.FINISH): ExecutionState.CANCELED,
    (ExecutionState.CANCELING, ExecutionInput.CANCELED): ExecutionState.CANCELED,
    (ExecutionState.CANCELING, ExecutionInput.FAIL): ExecutionState.FAILED,
    (ExecutionState.FINISHED, ExecutionInput.RESET): ExecutionState.CREATED,
    (ExecutionState.CANCELED, ExecutionInput.RESET): ExecutionState.CREATED,
    (ExecutionState.FAILED, ExecutionInput.RESET): ExecutionState.CREATED,
}


class JobState(enum.Enum):
    """The state of a job."""

    CREATED = "created"
    """Not started."""
    RUNNING = "running"
    """Scheduled; no restart is pending."""
    RESTARTING = "restarting"
    """Subtasks that will restart are being canceled, or wait for the restart delay."""
    CANCELLING = "cancelling"
    """Its user canceled it; what runs is being canceled."""
    FAILING = "failing"
    """It cannot restart; what runs is being canceled."""
    FINISHED = "finished"
    """All subtasks have finished."""
    CANCELED = "canceled"
    """All subtasks have stopped."""
    FAILED = "failed"
    """All subtasks have stopped after a failure."""

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return self in (JobState.FINISHED, JobState.CANCELED, JobState.FAILED)


class JobInput(enum.Enum):
    """An input of a job's state machine."""

    START = "start"
    RESTART = "failure, restart"
    RESTARTED = "all restarts done"
    GIVE_UP = "failure, no restart"
    CANCEL = "cancel"
    FINISHED = "all finished"
    ENDED = "all ended"


JOB_TRANSITIONS: Final[dict[tuple[JobState, JobInput], JobState]] = {
    (JobState.CREATED, JobInput.START): JobState.RUNNING,
    (JobState.CREATED, JobInput.CANCEL): JobState.CANCELLING,
    (JobState.RUNNING, JobInput.RESTART): JobState.RESTARTING,
    (JobState.RUNNING, JobInput.GIVE_UP): JobState.FAILING,
    (JobState.RUNNING, JobInput.CANCEL): JobState.CANCELLING,
    (JobState.RUNNING, JobInput.FINISHED): JobState.FINISHED,
    (JobState.RESTARTING, JobInput.RESTART): JobState.RESTARTING,
    (JobState.RESTARTING, JobInput.RESTARTED): JobState.RUNNING,
    (JobState.RESTARTING, JobInput.GIVE_UP): JobState.FAILING,
    (JobState.RESTARTING, JobInput.CANCEL): JobState.CANCELLING,
    (JobState.CANCELLING, JobInput.CANCEL): JobState.CANCELLING,
    (JobState.CANCELLING, JobInput.ENDED): JobState.CANCELED,
    (JobState.FAILING, JobInput.CANCEL): JobState.CANCELLING,
    (JobState.FAILING, JobInput.ENDED): JobState.FAILED,
}

_STATES: Final = tuple(ExecutionState)
_INPUT_CODES: Final = {what: code for code, what in enumerate(ExecutionInput)}
_ILLEGAL: Final = 255


def _table() -> StateCodes:
    table = np.full((len(_INPUT_CODES), len(_STATES)), _ILLEGAL, np.uint8)
    for (state, what), following in EXECUTION_TRANSITIONS.items():
        table[_INPUT_CODES[what], state.code] = following.code
    return table


_TABLE: Final = _table()


def state_of(code: int) -> ExecutionState:
    """The state with this code."""
    return _STATES[code]


def mask_of(states: frozenset[ExecutionState]) -> npt.NDArray[np.bool_]:
    """An array of flags by state code: index it with an array of codes."""
    mask = np.zeros(len(_STATES), np.bool_)
    mask[[state.code for state in states]] = True
    return mask


def allows(states: StateCodes, what: ExecutionInput) -> npt.NDArray[np.bool_]:
    """For each state, whether the input is legal in it."""
    legal: npt.NDArray[np.bool_] = _TABLE[_INPUT_CODES[what]][states] != _ILLEGAL
    return legal


def next_states(states: StateCodes, what: ExecutionInput) -> StateCodes:
    """The next state for each state. Raises LocalProtocolError if the input is illegal in one of them."""
    following: StateCodes = _TABLE[_INPUT_CODES[what]][states]
    if _ILLEGAL in following.tobytes():
        wrong = int(states[np.argmax(following == _ILLEGAL)])
        raise LocalProtocolError(f"an execution in state {state_of(wrong).value} cannot take {what.value!r}")
    return following


@final
class JobStatus:
    """The state of one job, and why it fails.

    Attributes:
        reason: why it is failing or has failed; empty otherwise.
    """

    __slots__ = ("reason", "state")

    def __init__(self) -> None:
        self.state = JobState.CREATED
        self.reason = ""

    def change(self, what: JobInput) -> None:
        """Applies an input. Raises LocalProtocolError if the input is illegal in the present state."""
        self.state = next_job_state(self.state, what)

    def is_in(self, *states: JobState) -> bool:
        """Whether its state is one of these."""
        return self.state in states


def next_job_state(state: JobState, what: JobInput) -> JobState:
    """The next state of a job. Raises LocalProtocolError if the input is illegal in that state."""
    following = JOB_TRANSITIONS.get((state, what))
    if following is None:
        raise LocalProtocolError(f"a job in state {state.value} cannot take {what.value!r}")
    return following


@final
@dataclass(frozen=True, slots=True, eq=False)
class RecordedVersions:
    """The versions of some subtasks at one moment."""

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

    def count_within(self, subtasks: range) -> dict[ExecutionState, int]:
        """Number of some neighbouring subtasks in each state, without states that none is in."""
        counts = np.bincount(self._states.view[subtasks.start : subtasks.stop], minlength=len(ExecutionState))
        return {state: count for state in ExecutionState if (count := int(counts[state.code]))}

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
