"""A keyed job of sources and sinks that record their history for `history.check`.

Takes: a scenario, or settings. Gives: the job, and its history.

In one process the history is a list (`REMEMBERED`); with a folder it is a file per attempt, which outlives its process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from ...base.config import NetworkConfig
from ...cluster.task.context import OperatorContext
from ...cluster.task.operators import Output
from ...schedule.checkpoint.instructions import CheckpointSettings
from ...schedule.graph.settings import RestartSettings
from ...schedule.graph.stream_builder import StreamEnvironment
from ...schedule.graph.stream_graph import StreamSettings
from .history import (
    APPLIED,
    BEGUN,
    COMMITTED,
    COMPLETE,
    FINISHED,
    RESTORED,
    SENT,
    SINK,
    SNAPSHOT,
    SOURCE,
    Anomaly,
    Event,
    check,
    write_event,
)

Record = list[Any]

_MEMORY: Final[list[list[Event]]] = []
_LIVES: Final[list[str]] = []


@contextmanager
def remembered() -> Iterator[list[Event]]:
    """The history of the jobs of this process within the block."""
    events: list[Event] = []
    _MEMORY.append(events)
    _LIVES.clear()
    try:
        yield events
    finally:
        _MEMORY.pop()


class _Historian:
    """The common part of both operators: a life, and the destination of its history."""

    operator = ""

    def __init__(self, history: str) -> None:
        self._folder = history
        self._file: Any = None
        self._subtask = 0
        self._life = ""
        self._taken = 0

    def open(self, context: OperatorContext) -> None:
        """A life begins."""
        self._subtask = context.subtask
        if self._folder:
            unique = f"{os.getpid()}-{time.monotonic_ns()}"
            path = Path(self._folder) / f"{self.operator}-{context.subtask}-{unique}"
            self._file = path.open("w")
        else:
            unique = str(len(_LIVES))
            _LIVES.append(unique)
        self._life = f"{context.attempt}@{unique}"
        self._log_event(BEGUN)

    def close(self) -> None:
        """A life ends."""
        if self._file is not None:
            self._file.close()

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Records a completed checkpoint."""
        self._log_event(COMPLETE, number=checkpoint_id)

    def _took(self, number: int = -1) -> str:
        self._taken += 1
        token = f"{self.operator}-{self._subtask}/{self._life}/{self._taken}"
        self._log_event(SNAPSHOT, token=token, number=number)
        return token

    def _log_event(self, what: str, **values: Any) -> None:
        if self._file is not None:
            write_event(self._file, Event(time.monotonic(), what, self.operator, self._subtask, self._life, **values))
        elif _MEMORY:
            at_s = trio.current_time()
            _MEMORY[-1].append(Event(at_s, what, self.operator, self._subtask, self._life, **values))


class Source(_Historian):
    """Creates the records of one split: `[split, number, life of the source]`."""

    operator = SOURCE

    def __init__(self, records: int, pace_s: float, batch: int, history: str = "") -> None:
        super().__init__(history)
        self._end = records
        self._pace_s = pace_s
        self._batch = batch
        self._next = 0
        self._due_s: float | None = None

    def restore(self, states: list[Any]) -> None:
        """Continues at the position of the checkpoint."""
        (state,) = states
        self._next = state["next"]
        self._log_event(RESTORED, token=state["token"], number=self._next)

    async def read(self) -> list[Record] | None:
        """The next few."""
        if self._next == self._end:
            return None
        if self._due_s is None:
            self._due_s = trio.current_time() + self._pace_s
        await trio.sleep_until(self._due_s)  # cancelled when a checkpoint is due, and called again
        self._due_s = None
        first, self._next = self._next, min(self._next + self._batch, self._end)
        for number in range(first, self._next):
            self._log_event(SENT, split=self._subtask, number=number, of_life=self._life)
        return [[self._subtask, number, self._life] for number in range(first, self._next)]

    def snapshot(self, unsent: int) -> dict[str, Any]:
        """Returns the position."""
        return {"next": self._next - unsent, "token": self._took(self._next - unsent)}


class Sink(_Historian):
    """Counts a record and records the event."""

    operator = SINK

    def __init__(self, history: str = "") -> None:
        super().__init__(history)
        self._count = 0
        self._uncommitted: list[list[int]] = []

    def restore(self, states: list[Any]) -> None:
        """Continues with the counts of the checkpoint."""
        (state,) = states
        self._count = state["count"]
        self._log_event(RESTORED, token=state["token"])

    def process(self, record: Record, out: Output) -> None:
        """One record."""
        split, number, life = record
        self._count += 1
        self._log_event(APPLIED, split=split, number=number, of_life=life)
        self._uncommitted.append([split, number])

    def prepare_commit(self) -> dict[str, Any] | None:
        """Returns the records since the last call."""
        rows, self._uncommitted = self._uncommitted, []
        return {"token": f"{self._life}/{self._taken}", "rows": rows} if rows else None

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """Records the committed records."""
        for each in committables:
            for split, number in each["rows"]:
                self._log_event(COMMITTED, split=split, number=number, token=each["token"])

    def snapshot(self) -> dict[str, Any]:
        """The counts."""
        return {"count": self._count, "token": self._took()}

    def finish(self, out: Output) -> list[Any]:
        """Returns the life of this attempt and its counts."""
        self._log_event(FINISHED)
        return [self._life, self._count]


def key_of(record: Record) -> int:
    """The key of a record."""
    return int(record[0] * 31 + record[1] * 7) % 40


def checked_job(
    name: str,
    *,
    sources: int,
    sinks: int,
    records: int,
    pace_s: float,
    batch: int,
    checkpoints: CheckpointSettings,
    network: NetworkConfig | None = None,
    history: str = "",
) -> StreamEnvironment:
    """Builds the job.

    Args:
        name: name of the job.
        sources: number of source subtasks and splits.
        sinks: number of sink subtasks.
        records: records of each split.
        pace_s: between reads of up to `batch` records.
        batch: records per read.
        checkpoints: checkpoint settings.
        network: network settings of the job.
        history: folder of the history; empty: in memory.
    """
    settings = StreamSettings(
        checkpoints=checkpoints, restart=RestartSettings(kind="fixed_delay", delay_s=0.2), network=network
    )
    environment = StreamEnvironment(name, max_parallelism=32, settings=settings)
    parameters = {"records": records, "pace_s": pace_s, "batch": batch, "history": history}
    made = environment.source(f"{__name__}:Source", name=SOURCE, parameters=parameters)
    made.set_parallelism(sources).set_buffer_timeout(0.02)
    counted = made.key_by(f"{__name__}:key_of").sink(f"{__name__}:Sink", name=SINK, history=history)
    counted.set_parallelism(sinks)
    return environment


def job(history: str, records: int = 1_600, sources: int = 2, mode: str = "aligned") -> StreamEnvironment:
    """Builds the job from command line arguments: 120 records/s per source, history in a folder."""
    return checked_job(
        "checked",
        sources=sources,
        sinks=sources,
        records=records,
        pace_s=0.05,
        batch=6,
        checkpoints=CheckpointSettings(interval_s=0.4, unaligned=mode != "aligned", tolerable_failures=1_000),
        history=history,
    )


def verdict(
    events: Sequence[Event], results: Mapping[str, Any], *, sources: int, records: int, aligned: bool, settled_s: float
) -> list[Anomaly]:
    """Returns the anomalies of a finished job, from its history and the results of its sinks."""
    final = {int(subtask): life for subtask, (life, _) in results[SINK].items()}
    return check(events, dict.fromkeys(range(sources), records), final, aligned=aligned, settled_s=settled_s)
