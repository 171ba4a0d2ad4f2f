"""Counts the situations that a campaign must reach; without them its success proves nothing.

Situations are recognised in log lines and events of jobs, and in calls of a few methods of the product. Counting does
not change the run. In the compiled build classes cannot be watched from outside: `SITUATIONS` lacks what needs that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from ...cluster.jobmanager.job_master.checkpoints import JobCheckpoints
from ...cluster.jobmanager.job_master.task_reports import TaskReports
from ...exchange.buffer.pools import LocalBufferPool
from ...exchange.outbound import subpartition
from ...exchange.stored.store import PartitionStore
from .features import AXES

LEAST_SEEDS: Final = 1_000
"""A campaign of so many seeds must reach every situation."""

_SEEN: Final[list[Counter[str]]] = [Counter()]


def happened(what: str) -> None:
    """Counts one of `SITUATIONS`."""
    _SEEN[-1][what] += 1


# ------------------------------------------------------------------------------------------------- by log lines

_TOLD: Final[Mapping[str, str]] = {
    "connections that go on after a cut": r"was resumed after ",
    "prompt connections that go on after a cut": r"\(prompt\) was resumed after ",
    "connections that go on and send bytes again": r"was resumed after .*; [1-9]\d* bytes are resent",
    "connections that are given up": r"the connection to .* is given up",
    "jobs that another JobManager takes up": r"taken up again$",
    "jobs that wait for a full disk": r"cannot be taken up again now|storing its end|tasks wait to commit",
    "TaskManagers that are shut out for a lie": r"TaskManager .* lost: (MALFORMED|UNEXPECTED)_FRAME",
    "second attempts of slow tasks": r"^ *[\d.]+ speculation: ",
    "tasks that are sent to no slow host": r"^ *[\d.]+ blocklist: blocked TaskManagers: tm",
    "batch jobs that run without the checkpoints of their settings": r"runs without the checkpoints of its settings",
    "checkpoints that are not completed": r"checkpoint \d+ .*(declined|abort|time)",
}
_TOLD_AS: Final = {name: re.compile(pattern) for name, pattern in _TOLD.items()}
_REGIONS: Final = re.compile(r"(\d+) of (\d+) tasks, in the regions")
_ALONE: Final = "regions that restart alone"


def note_line(line: str) -> None:
    """Counts the situations that a log line or event shows."""
    for name, pattern in _TOLD_AS.items():
        if pattern.search(line):
            happened(name)
    region = _REGIONS.search(line)
    if region is not None and region[1] != region[2]:
        happened(_ALONE)


# ---------------------------------------------------------------------------------------------------- by calls


def _acquired(result: object, pool: LocalBufferPool, *_: object) -> str:
    return "buffers beyond a full pool" if result is not None and pool._requested > pool.present_size else ""


def _copied(result: bytes, *_: object, **__: object) -> str:
    return "barriers that overtake data" if result else ""


def _viewed(_: object, store: Any, first: int, *__: object, **___: object) -> str:
    seen = _VIEWED.setdefault(id(store), (store, set()))[1]
    if first in seen:
        return "kept subpartitions that are read again"
    seen.add(first)
    return ""


_VIEWED: Final[dict[int, tuple[Any, set[int]]]] = {}


def _placed(_: object, reports: TaskReports, taskmanager: str, attempt: Any, *__: object) -> str:
    is_old = reports._scheduler.attempt(reports._translator.subtask(attempt)) > attempt[2]
    return "reports of attempts that are over" if is_old else ""


def _stored_finals(*_: object) -> str:
    return "checkpoints of jobs with tasks that have ended"


_CALLS: Final[tuple[tuple[Any, str, Callable[..., str], tuple[str, ...]], ...]] = (
    (LocalBufferPool, "try_acquire", _acquired, ("buffers beyond a full pool",)),
    (subpartition, "copy_data", _copied, ("barriers that overtake data",)),
    (PartitionStore, "create_view", _viewed, ("kept subpartitions that are read again",)),
    (TaskReports, "check_place", _placed, ("reports of attempts that are over",)),
    (JobCheckpoints, "_store_finals", _stored_finals, ("checkpoints of jobs with tasks that have ended",)),
)

_OWN: Final = (
    "mistakes of users",
    "reads without records",
    "commits that fail",
    "commits that were made before",
    "commits behind the end of the input",
    "jobs that failed because they were committing",
    "parallelism above 1 that was decided when the input was there",
    "savepoints",
    "jobs that go on from a savepoint with another parallelism",
    "cancelled jobs that begin again from a checkpoint",
    "cancelled jobs that begin anew",
    "second jobs",
    "operators that take arrays",
    "jobs that act as Flink",
    "lies",
)


def _watched(inner: Callable[..., Any], seen: Callable[..., str]) -> Callable[..., Any]:
    def outer(*arguments: Any, **named: Any) -> Any:
        result = inner(*arguments, **named)
        what = seen(result, *arguments, **named)
        if what:
            happened(what)
        return result

    return outer


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts how often each situation is reached within the block."""
    with ExitStack() as stack:
        for holder, name, seen, _ in _CALLS:
            inner = getattr(holder, name)
            try:
                setattr(holder, name, _watched(inner, seen))
            except TypeError:
                continue  # compiled
            stack.callback(setattr, holder, name, inner)
        stack.callback(_VIEWED.clear)
        _SEEN.append(Counter())
        stack.callback(_SEEN.pop)
        yield _SEEN[-1]


SITUATIONS: Final = (
    *_TOLD,
    _ALONE,
    *_OWN,
    *(f"jobs with {axis}: {value}" for axis, values in AXES.items() for value in values),
    *(name for holder, method, _, names in _CALLS for name in names if hasattr(getattr(holder, method), "__code__")),
)


def missing(seen: Mapping[str, int]) -> list[str]:
    """The situations that were never reached."""
    return [name for name in SITUATIONS if not seen.get(name)]
