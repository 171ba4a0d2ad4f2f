"""What a JobMaster writes down about its job for people: the log, failures with their decisions, blocked slots.

Takes: failures and decisions of the scheduler, reports of blocked slots. Gives: entries of the job's log and of its
failure history, and lines of the JobManager's log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

from ....base.errors import ErrorCode, RemoteProtocolError
from ....base.text.limited_log import LimitedLog
from ....schedule import events
from ....schedule.descriptors.shuffle import TaskManagerLocation
from ....schedule.execution import JobState
from ....schedule.recovery import Failure
from ...control.reports import SlotBlocked
from ..log import ENDED, Failed, FailureHistory, JobLog, blocked_text, place_of

LOGGER: Final = logging.getLogger("netstack.jobmanager")


@final
class JobJournal:
    """The journal of one job.

    Attributes:
        blocked: slots whose event loop is blocked by user code, by TaskManager and slot.
    """

    def __init__(self, job_id: str, name: str) -> None:
        self._job = f"job {job_id} ({name})"
        self.log = JobLog()
        self.failures = FailureHistory()
        self.blocked: dict[tuple[str, int], SlotBlocked] = {}
        self._slots_missing = 0
        self._limited = LimitedLog(LOGGER, time.monotonic)

    def note(self, what: str, text: str) -> None:
        """Adds an entry to the job's log."""
        self.log.add(time.time(), what, text)

    def state_changed(self, before: JobState, after: JobState) -> None:
        """Logs a new state of the job."""
        self.note("job", f"{before.value} -> {after.value}")
        LOGGER.info("%s is now %s", self._job, after.value)

    def failed(self, event: events.Event, roots: Sequence[Failure], reported: Failed | None, now: JobState) -> None:
        """Logs each root failure with its decision in one line; attaches secondary failures to it."""
        for root in roots:
            led_to = ENDED if root.decision.delay_s is None else str(root.decision)
            self.failures.add(time.time(), reported or Failed(root.cause), led_to)
            self.note("failure", f"{root.cause}; {root.decision}")
            LOGGER.warning("%s: %s; %s", self._job, root.cause, root.decision)
        if not roots and isinstance(event, events.TaskFailed | events.TasksLost | events.GlobalFailure):
            self.note("task", event.cause)
            if reported is not None and now is not JobState.RUNNING:
                self.failures.beside(time.time(), reported)

    def slots_missing(self, missing: int, describe_slots: Callable[[], str]) -> None:
        """Logs another number of missing slots, unless it is 0."""
        if missing not in (0, self._slots_missing):
            self.note("slots", f"missing slots: {missing}; {describe_slots()}")
        self._slots_missing = missing

    def slot_blocked(self, location: TaskManagerLocation, message: SlotBlocked) -> None:
        """Logs the begin and the end of a blocked slot once.

        Raises:
            RemoteProtocolError: the TaskManager has no such slot.
        """
        taskmanager, slot = location.name, message.slot
        if not 0 <= slot < len(location.slot_addresses):
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"{taskmanager} reports slot {slot} as blocked, but has no such slot"
            )
        message = replace(message, where=place_of(message))
        before = self.blocked.pop((taskmanager, slot), None)
        if message.blocked_s:
            self.blocked[taskmanager, slot] = message
        if (before is None) == bool(message.blocked_s):
            text = blocked_text(message) if message.blocked_s else "its event loop is no longer blocked"
            self.note("blocked", f"{taskmanager}, slot {slot}: {text}")
            self._limited.log(logging.WARNING, "blocked", f"{self._job}: {taskmanager}, slot {slot}: {text}")

    def lost(self, taskmanager: str, reason: str) -> None:
        """Logs the loss of a TaskManager; none of its slots is blocked any more."""
        for place in [place for place in self.blocked if place[0] == taskmanager]:
            del self.blocked[place]
        self.note("taskmanager", f"{taskmanager} is lost: {reason}")
