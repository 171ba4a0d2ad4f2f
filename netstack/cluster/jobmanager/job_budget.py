"""How many jobs a JobManager takes and remembers: clients that submit without end must not use up its memory.

Takes: the sizes of jobs. Gives: a `ConfigError` for the job that is too much; the ended jobs to forget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from ...base.errors import ConfigError
from ...base.units import format_size

MAX_SUBTASKS_OF_ALL: Final = 1 << 20
"""Subtasks of all jobs that have not ended."""

MAX_DEFINITIONS_BYTES: Final = 1 << 30
"""Memory for the documents of all jobs that have not ended."""

MAX_REMEMBERED_BYTES: Final = 256 << 20
"""Memory for the documents, details and results of all ended jobs."""


@final
@dataclass(frozen=True, slots=True)
class JobSize:
    """What a job costs a JobManager until it ends.

    Attributes:
        subtasks: their number; vertices whose parallelism is decided at run time count as 1.
        definition_bytes: memory for its document.
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


@final
class RememberedJobs:
    """The ended jobs of one JobManager, in the order of their ends."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def add(self, job_id: str, size_bytes: int) -> None:
        """Adds the job that ended last, with the memory that it takes."""
        self._sizes[job_id] = size_bytes

    def forget(self, most_jobs: int) -> list[str]:
        """Removes jobs beyond the limits, and returns them; never the one that ended last.

        Of too many, the first to have ended are removed. If the rest takes too much memory, the largest are, so that a
        client with large jobs does not make the JobManager forget small ones of others.
        """
        forgotten = [*self._sizes][: max(0, len(self._sizes) - most_jobs)]
        left = [*self._sizes][len(forgotten) : -1]
        excess_bytes = sum(self._sizes[each] for each in [*self._sizes][len(forgotten) :]) - MAX_REMEMBERED_BYTES
        for each in sorted(left, key=lambda job_id: -self._sizes[job_id]):
            if excess_bytes <= 0:
                break
            excess_bytes -= self._sizes[each]
            forgotten.append(each)
        for each in forgotten:
            del self._sizes[each]
        return forgotten
