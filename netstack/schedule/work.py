"""The work queue of a scheduler: work on many subtasks is cut into pieces, so that no step takes long.

Rules: first in, first out. A piece fits the rest of the step's budget but makes progress in any case. Subtasks that
were superseded since their work was queued are skipped.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import Final, final

from .execution import ExecutionVersions, RecordedVersions
from .structures import IndexArray


class WorkKind(enum.Enum):
    """What to do with subtasks."""

    RELEASE = "release"
    """Return their logical slots."""
    ALLOCATE = "allocate"
    """Request their slots."""
    DEPLOY = "deploy"
    """Send them to their slots."""
    FINISH = "finish"
    """Schedule their consumers and release their inputs."""


COSTS: Final = {WorkKind.RELEASE: 2, WorkKind.ALLOCATE: 4, WorkKind.DEPLOY: 3, WorkKind.FINISH: 8}
"""Cost of one subtask. Measured: a unit is about 10 microseconds, including the execution of the instructions."""
MATCHES_PER_UNIT: Final = 3
"""Slots that arrive after their requests are matched at once; so many matches use one unit of the step's budget."""


@final
@dataclass(slots=True)
class _Item:
    kind: WorkKind
    recorded: RecordedVersions
    done: int = 0


@final
class WorkQueue:
    """The queued work of one scheduler."""

    def __init__(self, versions: ExecutionVersions) -> None:
        self._versions = versions
        self._items: deque[_Item] = deque()

    def __len__(self) -> int:
        """Items that are not done."""
        return len(self._items)

    def add(self, kind: WorkKind, subtasks: IndexArray) -> None:
        """Queues work on subtasks, if there are any."""
        if subtasks.size:
            self._items.append(_Item(kind, self._versions.record(subtasks)))

    def take(self, budget: int) -> tuple[WorkKind, IndexArray, int]:
        """The next piece and the remaining budget. The queue must not be empty.

        A piece of RELEASE keeps superseded subtasks too: a share of a slot is returned exactly once.
        """
        item = self._items[0]
        stop = item.done + max(1, budget // COSTS[item.kind])
        piece = item.recorded[item.done : stop]
        item.done = stop
        if stop >= item.recorded.subtasks.size:
            self._items.popleft()
        left = budget - COSTS[item.kind] * piece.subtasks.size
        return item.kind, piece.subtasks if item.kind is WorkKind.RELEASE else self._versions.current(piece), left
