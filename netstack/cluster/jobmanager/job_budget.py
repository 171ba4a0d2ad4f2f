"""How many jobs a JobManager takes at a time: clients that submit without end must not use up its memory.

Takes: the sizes of the jobs that have not ended. Gives: a `ConfigError` for the job that is too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from ...base.errors import ConfigError
from ...base.units import format_size

MAX_SUBTASKS_OF_ALL: Final = 1 << 20
"""Subtasks of all jobs that have not ended."""

MAX_DEFINITIONS_BYTES: Final = 256 << 20
"""Packed documents of all jobs that have not ended."""


@final
@dataclass(frozen=True, slots=True)
class JobSize:
    """What a job costs a JobManager until it ends.

    Attributes:
        subtasks: their number; vertices whose parallelism is decided at run time count as 1.
        definition_bytes: size of its document, packed.
    """

    subtasks: int = 0
    definition_bytes: int = 0


@final
class JobBudget:
    """The jobs of one JobManager that have not ended, with their sizes."""

    def __init__(self, max_jobs: int) -> None:
        """Starts empty.

        Args:
            max_jobs: how many jobs may be there at a time.
        """
        self._max_jobs = max_jobs
        self._sizes: dict[str, JobSize] = {}
        self._subtasks = 0
        self._bytes = 0

    def admit(self, job_id: str, size: JobSize) -> None:
        """Counts a submitted job.

        Raises:
            ConfigError: there is no room for it until other jobs have ended.
        """
        for what, there, more, most in (
            ("jobs", len(self._sizes), 1, self._max_jobs),
            ("subtasks", self._subtasks, size.subtasks, MAX_SUBTASKS_OF_ALL),
        ):
            if there + more > most:
                self._refuse(f"{there:,} {what}", f"{more:,} more", f"{most:,}")
        if self._bytes + size.definition_bytes > MAX_DEFINITIONS_BYTES:
            self._refuse(
                f"definitions of {format_size(self._bytes)}",
                f"{format_size(size.definition_bytes)} more",
                format_size(MAX_DEFINITIONS_BYTES),
            )
        self.take_up(job_id, size)

    def take_up(self, job_id: str, size: JobSize) -> None:
        """Counts a job of an earlier JobManager, which is never refused."""
        self._sizes[job_id] = size
        self._subtasks += size.subtasks
        self._bytes += size.definition_bytes

    def leave(self, job_id: str) -> None:
        """Forgets a job that has ended, or was refused."""
        size = self._sizes.pop(job_id, None)
        if size is not None:
            self._subtasks -= size.subtasks
            self._bytes -= size.definition_bytes

    def _refuse(self, there: str, more: str, most: str) -> None:
        raise ConfigError(
            f"the JobManager has {there} that have not ended, and the job has {more}; the maximum is {most}: submit it"
            " when others have ended (`netstack jobs` lists them)"
        )
