"""One run as its leader sees it, over either carrier: the pipes of two processes, or the operator events of a job.

Takes: messages of tasks, and the time. Gives: which tasks are ready, stopped and done, the records that arrived, and
the progress to report.

    task -> leader    ready      it is set up; when all are, the leader sends each one `go` with the start of the run
                      progress   its records so far, every 0.25 s
                      stopped    a source has sent its last record (over pipes: and all of them have arrived)
                      done       all records have arrived; over pipes the messages `stopped` and `done` are summaries

Then a leader sends sinks what only sources know (`finish`): when they stopped, and the emit times of sampled records.
Further messages are those of one carrier. This module has no clock and no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, final

from netstack.base.errors import NetstackError

from ..spec import RunSpec

Task = TypeVar("Task")
Message: TypeAlias = Mapping[str, Any]


class MeasurementFailed(NetstackError):
    """A worker died, sent nothing or made no progress; the message names it and quotes its last words."""


@final
@dataclass(frozen=True, slots=True)
class RunState:
    """Where a measurement is.

    `phase` is `starting`, `running` or `draining` (a source has stopped); `fraction` (0 to 1) is None if unknown.
    """

    engine: str
    phase: str
    records: int
    elapsed_s: float
    fraction: float | None


OnProgress: TypeAlias = Callable[[RunState], None]


@final
class Conversation(Generic[Task]):
    """What the leader of a run knows of its tasks.

    Attributes:
        ready, done: the tasks that have sent this.
        stopped: the message of each source that has stopped.
        counts: records of each task so far.
        start_ns: the first start; 0 before.
        stalled_s: how long no record may move.
        deadline_s: until when all tasks must be ready, and after the start some record must move.
    """

    def __init__(
        self, tasks: Collection[Task], sinks: Collection[Task], *, ready_by_s: float, stalled_s: float
    ) -> None:
        """Begins the conversation with some tasks; `sinks` are those at which records arrive."""
        self._tasks = tasks
        self._sinks = sinks
        self.ready: set[Task] = set()
        self.stopped: dict[Task, Message] = {}
        self.done: set[Task] = set()
        self.counts: dict[Task, int] = {}
        self.start_ns = 0
        self.stalled_s = stalled_s
        self.deadline_s = ready_by_s

    @property
    def is_ready(self) -> bool:
        """Whether all tasks are ready."""
        return len(self.ready) == len(self._tasks)

    @property
    def is_done(self) -> bool:
        """Whether all tasks are done."""
        return len(self.done) == len(self._tasks)

    @property
    def records(self) -> int:
        """Records that have arrived."""
        return sum(self.counts.get(each, 0) for each in self._sinks)

    def begin(self, start_ns: int, now_s: float) -> None:
        """Sets the start that all tasks are sent; they may become ready, and begin, several times."""
        self.start_ns = self.start_ns or start_ns
        self.deadline_s = now_s + self.stalled_s
        self.ready.clear()

    def on_message(self, task: Task, message: Message, now_s: float) -> None:
        """Handles a message of a task."""
        event, records = message["event"], message.get("records")
        if not isinstance(records, int):  # none, or a summary that counts the records of each subtask
            records = self.counts.get(task)
        if event == "ready":
            self.ready.add(task)
        elif event == "stopped":
            self.stopped[task] = message
        elif event == "done":
            self.done.add(task)
        if self.start_ns and (event != "progress" or records != self.counts.get(task)):
            self.deadline_s = now_s + self.stalled_s
        if records is not None:
            self.counts[task] = records

    def state(self, engine: str, now_ns: int, fraction: Callable[[int, float], float | None]) -> RunState:
        """The progress; `fraction` computes the finished part from records and seconds since the start."""
        elapsed_s = max(0.0, (now_ns - self.start_ns) / 1e9) if self.start_ns else 0.0
        phase = "draining" if self.stopped or self.done else "running" if self.start_ns else "starting"
        return RunState(engine, phase, self.records, elapsed_s, fraction(self.records, elapsed_s))

    def waited_for(self) -> list[Task]:
        """The tasks that are not ready, or after the start those that are not done."""
        return [each for each in self._tasks if each not in (self.done if self.start_ns else self.ready)]


def fraction_of(spec: RunSpec, records: int, elapsed_s: float, *, sources: int = 1) -> float | None:
    """The finished part of a run; None without a length."""
    if spec.records is not None:
        return min(1.0, records / (spec.records * sources))
    return None if spec.seconds is None else min(1.0, elapsed_s / spec.seconds)


def stalled_s(spec: RunSpec, least_s: float, *, sources: int = 1) -> float:
    """How long no record may move: at a slow rate longer than `least_s`."""
    link = None if spec.link_bytes_per_s is None else spec.link_bytes_per_s / spec.record_bytes
    rates = [spec.rate_per_s and spec.rate_per_s * sources, spec.consume_rate_per_s, link]
    slowest = min((rate for rate in rates if rate), default=math.inf)
    at_once = spec.effective_batch_records if spec.emit == "arrow" else 1  # a columnar batch arrives at once
    return max(least_s, 3 * at_once / slowest)
