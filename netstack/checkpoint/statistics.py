"""What can be said of a job's checkpoints at one moment.

Takes: what the coordinator counted. Gives: `CheckpointStatistics` of each, `CoordinatorStatistics` of all.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class CheckpointState(enum.Enum):
    """How far a checkpoint has come."""

    PENDING = "pending"
    STORING = "storing"
    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """A snapshot of one checkpoint.

    Attributes:
        checkpoint_id: which.
        state: how far it has come.
        is_savepoint: whether it was asked for and is kept.
        triggered_s: when, on the caller's clock.
        duration_s: from its trigger to its end; None before.
        size_bytes: of the files that were acknowledged.
        acknowledged: subtasks that have acknowledged.
        subtasks: all of them.
        reason: why it was aborted; empty otherwise.
    """

    checkpoint_id: int
    state: CheckpointState
    is_savepoint: bool
    triggered_s: float
    duration_s: float | None
    size_bytes: int
    acknowledged: int
    subtasks: int
    reason: str


@dataclass(frozen=True, slots=True)
class CoordinatorStatistics:
    """A snapshot of a coordinator.

    Attributes:
        triggered: checkpoints triggered.
        completed: of these, complete.
        aborted: of these, aborted.
        ignored_acknowledgements: that came late, or twice.
        failures_in_a_row: since the last complete one.
        pending: those under way, oldest first.
        ended: the last few that ended, oldest first.
    """

    triggered: int
    completed: int
    aborted: int
    ignored_acknowledgements: int
    failures_in_a_row: int
    pending: tuple[CheckpointStatistics, ...]
    ended: tuple[CheckpointStatistics, ...]
