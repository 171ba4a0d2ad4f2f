"""Statistics of a job's checkpoints: `CheckpointStatistics` of each, `CoordinatorStatistics` of all."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class CheckpointState(enum.Enum):
    """The state of a checkpoint."""

    PENDING = "pending"
    STORING = "storing"
    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """A snapshot of one checkpoint.

    Attributes:
        triggered_s: time of its trigger, on the caller's clock.
        duration_s: time from its trigger to its end; None before.
        size_bytes: size of the acknowledged files.
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
        ignored_acknowledgements: number of acknowledgements that came late or twice.
        failures_in_a_row: number of failures since the last completed checkpoint.
        pending: checkpoints in progress, oldest first.
        ended: the last few ended checkpoints, oldest first.
    """

    triggered: int
    completed: int
    aborted: int
    ignored_acknowledgements: int
    failures_in_a_row: int
    pending: tuple[CheckpointStatistics, ...]
    ended: tuple[CheckpointStatistics, ...]
