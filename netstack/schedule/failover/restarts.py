"""Restarts that wait: for every canceled task to be gone, with its slot, and for the delay to pass.

Takes: the subtasks of a restart with their versions; which subtasks are gone; timers. Gives: restarts that may be
carried out.

Rules: a subtask waits in the newest restart that it is part of; the older one does not wait for it any more, and its
version there is stale. A restart is ready once, when both conditions hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from ..execution.versions import RecordedVersions
from ..structures.arrays import FlagArray, GrowingArray, IndexArray

_NONE: Final = -1


@final
@dataclass(slots=True)
class _Restart:
    recorded: RecordedVersions
    running: int
    is_due: bool = False

    @property
    def is_ready(self) -> bool:
        return self.is_due and not self.running


@final
class Restarts:
    """The restarts of one job that have begun and are not done."""

    def __init__(self) -> None:
        self._waits_in = GrowingArray(np.int64)
        self._restarts: dict[int, _Restart] = {}
        self._next = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._restarts)

    def grow(self, subtasks: int) -> None:
        """There are so many subtasks by now."""
        self._waits_in.extend_with(_NONE, subtasks - len(self._waits_in))

    def begin(self, recorded: RecordedVersions, is_running: FlagArray) -> int:
        """A restart of these subtasks; it waits for those of them that are running. Returns its timer."""
        running = recorded.subtasks[is_running]
        self.ended(running)  # for the older restarts that waited for them
        number = self._next
        self._next += 1
        self._restarts[number] = _Restart(recorded, running.size)
        self._waits_in.view[running] = number
        return number

    def ended(self, subtasks: IndexArray) -> None:
        """Subtasks are gone; those that nobody waits for, or has ever waited for, do not matter."""
        subtasks = subtasks[subtasks < len(self._waits_in)]
        waited = self._waits_in.view[subtasks]
        numbers, counts = np.unique(waited[waited != _NONE], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._restarts[number].running -= count
        self._waits_in.view[subtasks] = _NONE

    def due(self, timer: int) -> bool:
        """The delay of a restart has passed; False for a restart that is gone."""
        restart = self._restarts.get(timer)
        if restart is None:
            return False
        restart.is_due = True
        return True

    def take_ready(self) -> list[RecordedVersions]:
        """Removes the restarts that may be carried out, in the order in which they began."""
        ready = [number for number, restart in self._restarts.items() if restart.is_ready]
        return [self._restarts.pop(number).recorded for number in ready]

    def clear(self) -> None:
        """Forgets all of them: the job will not restart."""
        self._restarts.clear()
        self._waits_in.view[:] = _NONE
