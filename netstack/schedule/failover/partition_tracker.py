"""Where the partitions of a job are: which data port serves which attempt of each.

Takes: partitions as they are registered, released, or produced anew, and lost TaskManagers. Gives: which are there.
A place is the number of a data port: of a TaskManager, or of one of its slots where each slot is a process.

Rules: a partition is tracked from the moment its producer has a slot, until it is released, its TaskManager is lost, or
its producer runs again. One that was lost keeps its place: a consumer that is sent there finds it missing and says so,
and that is what makes its producer run again.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np
import numpy.typing as npt

from ..structures.arrays import FlagArray, GrowingArray, IndexArray

NOWHERE: Final = -1


@final
class PartitionTracker:
    """The places of all partitions."""

    __slots__ = ("_attempts", "_is_tracked", "_places")

    def __init__(self) -> None:
        self._places = GrowingArray(np.int32)
        self._attempts = GrowingArray(np.uint32)
        self._is_tracked = GrowingArray(np.bool_)

    def grow(self, count: int) -> None:
        """So many more partitions, nowhere yet."""
        self._places.extend_with(NOWHERE, count)
        self._attempts.extend_with(0, count)
        self._is_tracked.extend_with(False, count)

    def __len__(self) -> int:
        return len(self._is_tracked)

    @property
    def places(self) -> IndexArray:
        """The place that has or had each partition, or `NOWHERE`; a view."""
        return self._places.view

    @property
    def attempts(self) -> npt.NDArray[np.uint32]:
        """The attempt of the producer of each partition that has a place; a view."""
        return self._attempts.view

    @property
    def is_tracked(self) -> FlagArray:
        """Whether each partition is still there, as far as anybody knows; a view."""
        return self._is_tracked.view

    @property
    def is_registered(self) -> FlagArray:
        """Whether each partition has a place that consumers may be told, be it lost or not."""
        registered: FlagArray = self._places.view != NOWHERE
        return registered

    def track(self, partitions: IndexArray, places: IndexArray, attempts: npt.NDArray[np.uint32]) -> None:
        """Partitions are, or will be, in these places."""
        self._places.view[partitions] = places
        self._attempts.view[partitions] = attempts
        self._is_tracked.view[partitions] = True

    def tracked(self, partitions: IndexArray) -> IndexArray:
        """Those that are still there."""
        tracked: IndexArray = partitions[self._is_tracked.view[partitions]]
        return tracked

    def release(self, partitions: IndexArray) -> None:
        """Partitions are not there any more; their producers stay as they are."""
        self._is_tracked.view[partitions] = False

    def forget(self, partitions: IndexArray) -> None:
        """The producers of partitions run again: they have no place until then."""
        self._is_tracked.view[partitions] = False
        self._places.view[partitions] = NOWHERE

    def lose(self, places: range) -> None:
        """All that a TaskManager had in its places is lost."""
        numbers = self._places.view
        self._is_tracked.view[(numbers >= places.start) & (numbers < places.stop)] = False
