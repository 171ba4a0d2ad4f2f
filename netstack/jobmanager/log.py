"""What happened to a job, for people: sentences with their times, who changed what, and its failures.

Takes: sentences; what was asked for, of which job, by whom; failures, and what the scheduler decided about each. Gives:
plain data, the oldest first; lines of the logger `netstack.audit`, at INFO.

A failure is kept apart from the log (`FailureHistory`), as `at` (seconds since 1970), `task`, `subtask`, `attempt`,
`taskmanager`, `host` (None and empty where no task is to blame), `text`, `type` and `traceback` (empty where no error
of Python is the cause), `report` (`runtime.failure_report`), `led_to`, and `beside`: entries of tasks that failed
because of it, or at the same time.

Rules: of the log the last `REMEMBERED` stay; of failures the first one, and the newest, as many as `KEPT` and as fit
into `MAX_BYTES`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from ..runtime.failure_report import rendered, size_bytes
from ..shown import shown_text

if TYPE_CHECKING:
    from .job_record import JobRecord


REMEMBERED: Final = 1_000


@final
@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened.

    Attributes:
        at: seconds since 1970.
        what: a word to filter by: `job`, `slots`, `deploy`, `failure` (that something was decided about), `task` (that
            failed besides), `restart`, `checkpoint`, `taskmanager`, `speculation`, `blocklist`, `dataset`.
        text: a sentence.
    """

    at: float
    what: str
    text: str

    def document(self) -> dict[str, Any]:
        """Returns plain data."""
        return {"at": self.at, "what": self.what, "text": self.text}


@final
class JobLog:
    """The happenings of one job."""

    def __init__(self) -> None:
        self.added = 0
        """How many there were ever."""
        self._happenings: deque[Happening] = deque(maxlen=REMEMBERED)

    def add(self, at: float, what: str, text: str) -> None:
        """Something happened."""
        self.added += 1
        self._happenings.append(Happening(at, what, text))

    def all(self) -> list[Happening]:
        """The last of them, the oldest first."""
        return [*self._happenings]

    def since(self, added: int) -> list[Happening]:
        """Those that came after the first `added`, as far as they are remembered."""
        new = self.added - added
        return self.all()[-new:] if new > 0 else []


LOGGER: Final = logging.getLogger("netstack.audit")


def audit(what: str, record: JobRecord, who: str) -> None:
    """Says that it was asked for; whether it succeeded the job's log says.

    Args:
        what: `submit`, `cancel`, `savepoint`, `savepoint and stop`.
        record: of the job.
        who: name and address, as far as they are known.
    """
    LOGGER.info("%s of job %s (%s) by %s", what, record.stored.job_id, shown_text(record.name), shown_text(who))


KEPT: Final = 16
"""Of the newest failures; the first of all is one more."""

BESIDE: Final = 4
"""Of one failure, as many others are kept."""

MAX_BYTES: Final = 128 << 10
"""Of all entries, as JSON."""

ENDED: Final = "the end of the job"
"""What a failure led to that the job did not restart after."""


@final
@dataclass(frozen=True, slots=True)
class Failed:
    """What is known of a failure before anything is decided about it.

    Attributes:
        text: error and text, who and where.
        task: name of the job vertex; empty where no task is to blame.
        subtask: index of it.
        attempt: of the subtask.
        taskmanager: where it ran.
        host: of that.
        report: a checked one; empty where no error of Python is the cause, as when a process died.
    """

    text: str
    task: str = ""
    subtask: int | None = None
    attempt: int | None = None
    taskmanager: str = ""
    host: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)


@final
class FailureHistory:
    """The last failures of a job.

    Attributes:
        left_out: how many entries are not kept any more.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._entries: list[dict[str, Any]] = []
        self._sizes: list[int] = []

    def add(self, at: float, failed: Failed, led_to: str) -> None:
        """A failure that the scheduler acted upon.

        Args:
            at: seconds since 1970.
            failed: it.
            led_to: a restart, or the end of the job.
        """
        entry = {**_entry(at, failed), "led_to": led_to, "beside": []}
        self._entries.append(entry)
        self._sizes.append(size_bytes(entry) + len(", "))
        while len(self._entries) > KEPT + 1 or (len(self._entries) > 2 and sum(self._sizes) > MAX_BYTES):
            del self._entries[1], self._sizes[1]
            self.left_out += 1
        if sum(self._sizes) > MAX_BYTES:
            self._entries[0]["beside"].clear()
            self._sizes[0] = size_bytes(self._entries[0])

    def beside(self, at: float, failed: Failed) -> None:
        """A failure that changed nothing any more: it belongs to the newest one."""
        if not self._entries or len(self._entries[-1]["beside"]) == BESIDE:
            return
        entry = _entry(at, failed)
        added = size_bytes(entry) + len(", ")
        if sum(self._sizes) + added <= MAX_BYTES:
            self._entries[-1]["beside"].append(entry)
            self._sizes[-1] += added

    def all(self) -> list[dict[str, Any]]:
        """The entries that are kept, the oldest first."""
        return [*self._entries]


def _entry(at: float, failed: Failed) -> dict[str, Any]:
    errors = failed.report.get("errors") or [{"type": ""}]
    return {
        "at": at,
        "task": failed.task,
        "subtask": failed.subtask,
        "attempt": failed.attempt,
        "taskmanager": failed.taskmanager,
        "host": failed.host,
        "text": failed.text,
        "type": errors[0]["type"],
        "traceback": rendered(failed.report),
        "report": failed.report,
    }


def failure_documents(history: FailureHistory | None) -> dict[str, Any]:
    """The failures of a job for its document, and for its end on disk; None has none."""
    if history is None:
        return {"failures": [], "failures_left_out": 0}
    return {"failures": history.all(), "failures_left_out": history.left_out}


def fatal_traceback(document: Mapping[str, Any]) -> str:
    """The traceback of the failure that a job ended with; empty if it ended otherwise, or no error of Python is it.

    Args:
        document: of the job, or of its end.
    """
    last = (document.get("failures") or [{"led_to": ""}])[-1]
    return str(last["traceback"]) if last["led_to"] == ENDED and document["state"] == "failed" else ""
