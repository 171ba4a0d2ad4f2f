"""What a coordinator is told of its job, and what it tells the job to do.

Takes: tasks and settings. Gives: frozen instructions, which say what to do, and to whom.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from ..errors import ConfigError
from ..events import Alignment, CheckpointBarrier
from .snapshot import Manifest, TaskFile

Subtask: TypeAlias = tuple[str, int]
"""Name of the task, and which of its subtasks."""

NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class JobTask:
    """One task of the job.

    Attributes:
        name: unique in the job.
        parallelism: how many subtasks it has.
        inputs: the tasks whose records it reads; none for a source.
    """

    name: str
    parallelism: int
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When checkpoints are taken, and how.

    Attributes:
        interval_s: from one trigger to the next; None takes checkpoints on request only.
        min_pause_s: at least so long from the end of one to the next, requested ones excepted.
        timeout_s: one that not all tasks have acknowledged by then is aborted.
        tolerable_failures: so many in a row may be declined, time out or not be stored; one more fails the job, which
            then restarts as its strategy says. Savepoints do not count. None: a job never fails for want of a
            checkpoint. (Flink's default is 0; a disk that is full for a moment is no reason to restart.)
        max_concurrent: how many may be under way at once. One, for unaligned ones.
        exactly_once: False does not align: records around a barrier may be processed twice after a recovery.
        unaligned: barriers overtake data, which becomes part of the checkpoint.
        aligned_timeout_s: unaligned only from this age on; 0 is at once.
        history: of so many ended checkpoints the statistics tell.

    Raises:
        ConfigError: a value that cannot work.
    """

    interval_s: float | None = None
    min_pause_s: float = 0.0
    timeout_s: float = 600.0
    tolerable_failures: int | None = 3
    max_concurrent: int = 1
    exactly_once: bool = True
    unaligned: bool = False
    aligned_timeout_s: float = 0.0
    history: int = 16

    def __post_init__(self) -> None:
        if self.interval_s is not None and not self.interval_s > 0:
            raise ConfigError(f"interval_s={self.interval_s}; give more than 0, or None for checkpoints on request")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s={self.timeout_s}; give more than 0")
        for name in ("min_pause_s", "aligned_timeout_s", "tolerable_failures", "history"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"{name}={value}; give at least 0")
        if self.max_concurrent < 1:
            raise ConfigError(f"max_concurrent={self.max_concurrent}; give at least 1")
        if self.unaligned and (self.max_concurrent > 1 or not self.exactly_once):
            raise ConfigError(
                f"unaligned checkpoints with max_concurrent={self.max_concurrent}, exactly_once={self.exactly_once}:"
                " barriers that overtake need one at a time, exactly once"
            )

    def alignment(self, *, savepoint: bool) -> tuple[Alignment, int]:
        """How barriers are treated, and their `aligned_timeout_ns`. A savepoint is never unaligned."""
        if not self.exactly_once:
            return Alignment.AT_LEAST_ONCE, 0
        if savepoint or not self.unaligned:
            return Alignment.ALIGNED, 0
        if not self.aligned_timeout_s:
            return Alignment.UNALIGNED, 0
        return Alignment.ALIGNED, round(self.aligned_timeout_s * NS_PER_S)


class AbortCause(enum.Enum):
    """Why a checkpoint was aborted, in one word."""

    DECLINED = "declined"
    TIMED_OUT = "timed out"
    NOT_STORED = "not stored"
    SUBSUMED = "subsumed"
    TASK_FAILED = "task failed"
    STOPPED = "stopped"

    @property
    def is_failure(self) -> bool:
        """Whether it counts against `tolerable_failures`, unless it was a savepoint: the job runs, and got none."""
        return self in (AbortCause.DECLINED, AbortCause.TIMED_OUT, AbortCause.NOT_STORED)


@dataclass(frozen=True, slots=True)
class Trigger:
    """Have these subtasks take a snapshot and send the barrier; one that has already done so for this id does nothing.

    Attributes:
        barrier: what they broadcast.
        subtasks: those without running producers.
        is_savepoint: whether it was asked for and is kept.
        stops: whether sources end behind the barrier.
    """

    barrier: CheckpointBarrier
    subtasks: tuple[Subtask, ...]
    is_savepoint: bool
    stops: bool = False


@dataclass(frozen=True, slots=True)
class StoreFinal:
    """Copy the final states of ended subtasks into a checkpoint, and acknowledge (or decline) in their place."""

    checkpoint_id: int
    subtasks: tuple[Subtask, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """Everybody has acknowledged: store the manifest, then call `completed` or `not_stored`.

    Attributes:
        checkpoint_id: of which.
        parallelism: how many subtasks each task has.
        files: one for each subtask.
        is_savepoint: whether it was asked for and is kept.
        job_goes_on: whether it is a savepoint that does not stop the job; see `Manifest`.
    """

    checkpoint_id: int
    parallelism: Mapping[str, int]
    files: tuple[TaskFile, ...]
    is_savepoint: bool
    job_goes_on: bool = False

    def manifest(self, created_at: datetime) -> Manifest:
        """What to store."""
        return Manifest(
            self.checkpoint_id, created_at, self.parallelism, self.files, self.is_savepoint, self.job_goes_on
        )


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell these subtasks that the checkpoint will not happen, and discard what was written of it."""

    checkpoint_id: int
    cause: AbortCause
    reason: str
    subtasks: tuple[Subtask, ...]


@dataclass(frozen=True, slots=True)
class FailJob:
    """More failed in a row than the settings tolerate. None is triggered before `resume`; then it is counted anew."""

    reason: str


Instruction: TypeAlias = Trigger | StoreFinal | Complete | Abort | FailJob
