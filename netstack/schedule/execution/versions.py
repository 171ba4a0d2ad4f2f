"""A version for every subtask: how a late callback learns that what it was for has been superseded.

Takes: numbers of subtasks. Gives: versions to remember, and which of them still hold.

Rules: a version only grows. Whoever waits for something remembers the versions when it begins and asks again when it
comes; the state alone would not tell, as a subtask may be in the same state for another reason by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from ..structures.arrays import GrowingArray, IndexArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class RecordedVersions:
    """The versions of some subtasks at one moment.

    Attributes:
        subtasks: their numbers.
        versions: one each.
    """

    subtasks: IndexArray
    versions: npt.NDArray[np.uint32]

    def __getitem__(self, part: slice) -> RecordedVersions:
        """Some of them."""
        return RecordedVersions(self.subtasks[part], self.versions[part])


@final
class ExecutionVersions:
    """The versions of all subtasks."""

    __slots__ = ("_versions",)

    def __init__(self) -> None:
        self._versions = GrowingArray(np.uint32)

    def grow(self, count: int) -> None:
        """So many more subtasks."""
        self._versions.extend_with(0, count)

    def record(self, subtasks: IndexArray) -> RecordedVersions:
        """The versions as they are now."""
        return RecordedVersions(subtasks, self._versions.view[subtasks])

    def bump(self, subtasks: IndexArray) -> RecordedVersions:
        """Makes everything recorded of these subtasks stale, and records them anew. No subtask occurs twice."""
        self._versions.view[subtasks] += 1
        return self.record(subtasks)

    def current(self, recorded: RecordedVersions) -> IndexArray:
        """The subtasks whose version is still the recorded one."""
        current: IndexArray = recorded.subtasks[self._versions.view[recorded.subtasks] == recorded.versions]
        return current
