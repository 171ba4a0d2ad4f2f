"""Where the partitions of a job are: which TaskManager has which attempt of each.

Takes: partitions as their producers are deployed, fail, or are released, and lost TaskManagers. Gives: which are there.

Rules: a partition is tracked from the moment its producer has a slot. It is forgotten when it is released, when its
producer fails, is canceled or is reset, and when its TaskManager is lost: then it is not available any more.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np
import numpy.typing as npt

from .arrays import FlagArray, GrowingArray, IndexArray, index_array

NOWHERE: Final = -1


@final
class PartitionTracker:
    """The places of all partitions."""

    __slots__ = ("_attempts", "_taskmanagers")

    def __init__(self) -> None:
        self._taskmanagers = GrowingArray(np.int32)
        self._attempts = GrowingArray(np.uint32)

    def grow(self, count: int) -> None:
        """So many more partitions, nowhere yet."""
        self._taskmanagers.extend_with(NOWHERE, count)
        self._attempts.extend_with(0, count)

    @property
    def taskmanagers(self) -> IndexArray:
        """The number of the TaskManager of each partition, or `NOWHERE`; a view."""
        return self._taskmanagers.view

    @property
    def attempts(self) -> npt.NDArray[np.uint32]:
        """The attempt of the producer of each tracked partition; a view."""
        return self._attempts.view

    @property
    def is_tracked(self) -> FlagArray:
        """Whether each partition is somewhere."""
        tracked: FlagArray = self._taskmanagers.view != NOWHERE
        return tracked

    def track(self, partitions: IndexArray, taskmanagers: IndexArray, attempts: npt.NDArray[np.uint32]) -> None:
        """Partitions are, or will be, on these TaskManagers."""
        self._taskmanagers.view[partitions] = taskmanagers
        self._attempts.view[partitions] = attempts

    def tracked(self, partitions: IndexArray) -> IndexArray:
        """Those that are somewhere."""
        tracked: IndexArray = partitions[self._taskmanagers.view[partitions] != NOWHERE]
        return tracked

    def forget(self, partitions: IndexArray) -> None:
        """Partitions are gone."""
        self._taskmanagers.view[partitions] = NOWHERE

    def lose(self, taskmanager: int) -> IndexArray:
        """Forgets all that a TaskManager had, and returns those partitions."""
        lost = index_array(np.flatnonzero(self._taskmanagers.view == taskmanager))
        self.forget(lost)
        return lost
