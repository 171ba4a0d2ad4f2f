"""The inputs and outputs of a checkpoint coordinator: tasks, settings and instructions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from ...base.errors import ConfigError
from ...base.events import Alignment, CheckpointBarrier
from ...base.setting_types import check_types
from .snapshot import Manifest, TaskFile

Subtask: TypeAlias = tuple[str, int]
"""Name of the task, and index of the subtask."""

NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class JobTask:
    """One task of the job.

    Attributes:
        name: unique in the job.
        inputs: the tasks whose records it reads; none for a source.
    """

    name: str
    parallelism: int
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """The checkpoint settings of a job.

    Attributes:
        interval_s: time from one trigger to the next; None takes checkpoints on request only.
        min_pause_s: minimum time from the end of one checkpoint to the next trigger, except requested ones.
        timeout_s: a checkpoint that not all tasks have acknowledged by then is aborted.
        tolerable_failures: number of checkpoints in a row that may be declined, time out or fail to be stored. One more
            fails the job, which restarts according to its restart strategy. Savepoints do not count. None: failed
            checkpoints never fail the job. (Flink's default is 0; but a disk that is full for a moment needs no
            restart.)
        max_concurrent: maximum number of checkpoints in progress; 1 for unaligned checkpoints.
        exactly_once: False disables alignment: after a recovery some records may be processed twice.
        unaligned: whether barriers overtake data, which becomes part of the checkpoint.
        aligned_timeout_s: age at which an aligned checkpoint becomes unaligned; 0 is at once.

    Raises:
        ConfigError: a setting has an invalid value.
    """

    interval_s: float | None = None
    min_pause_s: float = 0.0
    timeout_s: float = 600.0
    tolerable_failures: int | None = 3
    max_concurrent: int = 1
    exactly_once: bool = True
    unaligned: bool = False
    aligned_timeout_s: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        if self.interval_s is not None and not self.interval_s > 0:
            raise ConfigError(f"interval_s={self.interval_s}; give more than 0, or None for checkpoints on request")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s={self.timeout_s}; give more than 0")
        for name in ("min_pause_s", "aligned_timeout_s", "tolerable_failures"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"{name}={value}; give at least 0")
        if self.max_concurrent < 1:
            raise ConfigError(f"max_concurrent={self.max_concurrent}; give at least 1")
        if self.unaligned and (self.max_concurrent > 1 or not self.exactly_once):
            raise ConfigError(
                f"unaligned checkpoints with max_concurrent={self.max_concurrent}, exactly_once={self.exactly_once}:"
                " set max_concurrent=1 and exactly_once=True, which unaligned checkpoints need"
            )

    def alignment(self, *, savepoint: bool) -> tuple[Alignment, int]:
        """The alignment of barriers, and their `aligned_timeout_ns`. A savepoint is always aligned."""
        if not self.exactly_once:
            return Alignment.AT_LEAST_ONCE, 0
        if savepoint or not self.unaligned:
            return Alignment.ALIGNED, 0
        if not self.aligned_timeout_s:
            return Alignment.UNALIGNED, 0
        return Alignment.ALIGNED, round(self.aligned_timeout_s * NS_PER_S)


class AbortCause(enum.Enum):
    """Why a checkpoint was aborted."""

    DECLINED = "declined"
    TIMED_OUT = "timed out"
    NOT_STORED = "not stored"
    SUBSUMED = "subsumed"
    TASK_FAILED = "task failed"
    STOPPED = "stopped"

    @property
    def is_failure(self) -> bool:
        """Whether it counts against `tolerable_failures`, unless it was a savepoint."""
        return self in (AbortCause.DECLINED, AbortCause.TIMED_OUT, AbortCause.NOT_STORED)


@dataclass(frozen=True, slots=True)
class Trigger:
    """Trigger a checkpoint at these subtasks; a subtask that has already begun it does nothing.

    Attributes:
        subtasks: subtasks without running producers.
        stops: whether sources end after the barrier.
    """

    barrier: CheckpointBarrier
    subtasks: tuple[Subtask, ...]
    is_savepoint: bool
    stops: bool = False


@dataclass(frozen=True, slots=True)
class StoreFinal:
    """Copy the final states of ended subtasks into a checkpoint, and acknowledge (or decline) it for them."""

    checkpoint_id: int
    subtasks: tuple[Subtask, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """All subtasks have acknowledged: store the manifest, then call `completed` or `not_stored`.

    Attributes:
        job_goes_on: whether it is a savepoint that does not stop the job; see `Manifest`.
    """

    checkpoint_id: int
    parallelism: Mapping[str, int]
    files: tuple[TaskFile, ...]
    is_savepoint: bool
    job_goes_on: bool = False

    def manifest(self, created_at: datetime) -> Manifest:
        """The manifest to store."""
        return Manifest(
            self.checkpoint_id, created_at, self.parallelism, self.files, self.is_savepoint, self.job_goes_on
        )


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort a checkpoint at these subtasks, and discard its files."""

    checkpoint_id: int
    cause: AbortCause
    reason: str
    subtasks: tuple[Subtask, ...]


@dataclass(frozen=True, slots=True)
class FailJob:
    """Fail the job: more checkpoints failed in a row than allowed. None is triggered before `resume`."""

    reason: str


Instruction: TypeAlias = Trigger | StoreFinal | Complete | Abort | FailJob
