"""Whoever takes part in a job from inside the JobManager, as Flink's operator coordinators do.

Takes: what invokables of the job say. Gives: what it tells them, by `JobMaster.send_event`.

A coordinator is an object of the process that runs the JobManager: it is no part of a job's document, and a job that is
taken up again has none. Rules: no call waits or raises; an event of an attempt that is over is dropped.
"""

from __future__ import annotations

from typing import Protocol

from ..control.codec import Plain
from ..schedule.instructions import EndJob


class JobCoordinator(Protocol):
    """See the module."""

    def event(self, vertex: str, subtask: int, event: Plain) -> None:
        """A task says something (`InvokableTask.send`)."""

    def refused(self, taskmanager: str, reason: str) -> None:
        """A TaskManager does not take the job, or cannot go on with it; the JobManager asks it again later."""

    def ended(self, end: EndJob) -> None:
        """Nothing of the job runs any more, and its results are known; TaskManagers still release what it held."""
