"""Work that is cut into pieces, so that no step takes long: what is still to be done, in order.

Takes: jobs on many subtasks, with the versions that the subtasks had then. Gives: pieces of bounded cost, without the
subtasks that have been superseded meanwhile.

Rules: first in, first out; a piece is never larger than what is left of the step's budget, but always makes progress.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import Final, final

from .execution.executions import ExecutionVersions, RecordedVersions
from .structures.arrays import IndexArray


class WorkKind(enum.Enum):
    """What is to be done with subtasks; the value is the cost of one, relative to the others."""

    RELEASE = "release"
    """Return their shares of slots."""
    ALLOCATE = "allocate"
    """Ask for their slots."""
    DEPLOY = "deploy"
    """Send them to their slots."""
    FINISH = "finish"
    """Handle what their end makes possible."""


COSTS: Final = {WorkKind.RELEASE: 2, WorkKind.ALLOCATE: 4, WorkKind.DEPLOY: 3, WorkKind.FINISH: 8}
"""Measured: one unit is about 10 microseconds, with what is done to carry out the instructions."""
MATCHES_PER_UNIT: Final = 3
"""Slots that come after their requests are matched at once, however many: so much less is done in the same step."""


@final
@dataclass(slots=True)
class _Item:
    kind: WorkKind
    recorded: RecordedVersions
    done: int = 0


@final
class WorkQueue:
    """The work of one scheduler.

    Args:
        versions: of the subtasks.
    """

    def __init__(self, versions: ExecutionVersions) -> None:
        self._versions = versions
        self._items: deque[_Item] = deque()

    def __len__(self) -> int:
        """How many jobs are not done."""
        return len(self._items)

    def add(self, kind: WorkKind, subtasks: IndexArray) -> None:
        """More to do; nothing for no subtasks."""
        if subtasks.size:
            self._items.append(_Item(kind, self._versions.record(subtasks)))

    def take(self, budget: int) -> tuple[WorkKind, IndexArray, int]:
        """The next piece, and what is left of the budget. There must be work.

        A piece of RELEASE has all its subtasks, of whatever version: a share is returned exactly once.
        """
        item = self._items[0]
        stop = item.done + max(1, budget // COSTS[item.kind])
        piece = item.recorded[item.done : stop]
        item.done = stop
        if stop >= item.recorded.subtasks.size:
            self._items.popleft()
        left = budget - COSTS[item.kind] * piece.subtasks.size
        return item.kind, piece.subtasks if item.kind is WorkKind.RELEASE else self._versions.current(piece), left

    def clear(self) -> None:
        """Drops everything: the job has ended."""
        self._items.clear()
