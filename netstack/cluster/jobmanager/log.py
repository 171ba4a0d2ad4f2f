"""The log of a job for people: events with times, the failure history, and texts about blocked slots.

Takes: sentences; failures with the scheduler's decisions; reports of blocked slots. Gives: plain data, oldest first.

A failure is an entry of `FailureHistory`: `at` (seconds since 1970), `task`, `subtask`, `attempt`, `taskmanager`,
`host` (None or empty if no task caused it), `text`, `type` and `traceback` (empty without a Python exception),
`report` (`cluster.failure_report`), `led_to`, and `beside`: entries of tasks that failed because of it, or at the same
time.

Rules: the log has the last `REMEMBERED` events; the history has the first failure and the newest ones, limited by
`KEPT` and `MAX_BYTES`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from ...base.text.safe_text import safe_text
from ..control.reports import NO_PLACE, SlotBlocked
from ..failure_report import rendered, size_bytes

REMEMBERED: Final = 1_000


@final
@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a job's log.

    Attributes:
        at: seconds since 1970.
        what: category: `job`, `slots`, `deploy`, `failure` (a root failure), `task` (a secondary failure), `restart`,
            `checkpoint`, `taskmanager`, `speculation`, `blocklist`, `dataset`.
    """

    at: float
    what: str
    text: str

    def document(self) -> dict[str, Any]:
        """Returns the entry as plain data."""
        return {"at": self.at, "what": self.what, "text": self.text}


@final
class JobLog:
    """The log entries of one job."""

    def __init__(self) -> None:
        self.added = 0
        """The number of entries so far, including discarded ones."""
        self._entries: deque[LogEntry] = deque(maxlen=REMEMBERED)

    def add(self, at: float, what: str, text: str) -> None:
        """Adds an entry."""
        self.added += 1
        self._entries.append(LogEntry(at, what, text))

    def all(self) -> list[LogEntry]:
        """Returns the stored entries, oldest first."""
        return [*self._entries]

    def since(self, added: int) -> list[LogEntry]:
        """Returns the stored entries after the first `added`."""
        new = self.added - added
        return self.all()[-new:] if new > 0 else []


KEPT: Final = 16
"""Number of stored newest failures, in addition to the first one."""

BESIDE: Final = 4
"""Number of stored secondary failures of one failure."""

MAX_BYTES: Final = 128 << 10
"""Limit of all entries as JSON."""

ENDED: Final = "the end of the job"
"""Value of `led_to` if the job did not restart after the failure."""


@final
@dataclass(frozen=True, slots=True)
class Failed:
    """A failure before the scheduler has decided about it.

    Attributes:
        text: task, place and error.
        task: name of the job vertex; empty if no task caused the failure.
        report: checked failure report; empty without a Python exception, for example when a process died.
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
    """The first and the newest failures of a job."""

    def __init__(self) -> None:
        self.left_out = 0
        self._entries: list[dict[str, Any]] = []
        self._sizes: list[int] = []

    def add(self, at: float, failed: Failed, led_to: str) -> None:
        """Adds a root failure.

        Args:
            at: seconds since 1970.
            failed: the failure.
            led_to: the scheduler's decision: a restart, or the end of the job.
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
        """Attaches a secondary failure to the newest root failure."""
        if not self._entries or len(self._entries[-1]["beside"]) == BESIDE:
            return
        entry = _entry(at, failed)
        added = size_bytes(entry) + len(", ")
        if sum(self._sizes) + added <= MAX_BYTES:
            self._entries[-1]["beside"].append(entry)
            self._sizes[-1] += added

    def all(self) -> list[dict[str, Any]]:
        """Returns the stored entries, oldest first."""
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
    """Returns the failures of a job for its document and its stored end."""
    if history is None:
        return {"failures": [], "failures_left_out": 0}
    return {"failures": history.all(), "failures_left_out": history.left_out}


def fatal_traceback(document: Mapping[str, Any]) -> str:
    """Returns the traceback of the failure that ended a job; empty without failure or Python exception."""
    last = (document.get("failures") or [{"led_to": ""}])[-1]
    return str(last["traceback"]) if last["led_to"] == ENDED and document["state"] == "failed" else ""


def place_of(message: SlotBlocked) -> dict[str, Any]:
    """Returns the fields of `SlotBlocked.where`, texts as short lines; a field of a wrong type becomes None."""
    return checked_fields(message.where, _PLACE)


_PLACE: Final = {"task": str, "subtask": int, "operator": str, "file": str, "line": int, "function": str}

PLACE_CHARACTERS: Final = 400
"""Maximum length of a text about a place in code."""


def checked_fields(document: dict[str, Any], kinds: dict[str, type]) -> dict[str, Any]:
    """Returns fields of a peer's document: texts as short lines, None for what is missing or of another type."""
    values = {name: document.get(name) for name in kinds}
    return {
        name: (safe_text(value, PLACE_CHARACTERS) if type(value) is str else value) if type(value) is kind else None
        for (name, value), kind in zip(values.items(), kinds.values(), strict=True)
    }


def blocked_text(message: SlotBlocked) -> str:
    """Describes a blocked slot in one sentence."""
    where = place_of(message)
    place = f"{where['file']}:{where['line']} in {where['function']}" if where["file"] else NO_PLACE
    operator = f"operator {where['operator']!r}, " if where["operator"] else ""
    task = f"task {where['task']} ({where['subtask']}), " if where["task"] else ""
    return safe_text(f"its event loop has been blocked for {message.blocked_s:.0f} s: {task}{operator}at {place}", 600)
