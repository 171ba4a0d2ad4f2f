"""What every scheduling strategy offers: told what happened, it says which subtasks are deployed now.

Takes: events, after the topology was told of them. Gives: batches; the slots of a batch are requested together, and it
is deployed when it has all of them.

Rules: a strategy names a subtask at most once until it is restarted. It looks at the topology and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from ..structures.arrays import NOTHING, Batches, FlagArray, IndexArray


class SchedulingStrategy(Protocol):
    """Decides when which subtasks are deployed."""

    def extend(self) -> None:
        """The topology, and with it the regions, has grown; the new subtasks are considered at the next event."""

    def start(self) -> Batches:
        """The job begins.

        Returns:
            What needs nothing of others, in topological order.
        """

    def on_finished(self, subtask: int) -> Batches:
        """A subtask has finished; `Topology.finish` was called before.

        Returns:
            What can be deployed because of it, in topological order.
        """

    def restart(self, subtasks: IndexArray) -> Batches:
        """Subtasks were cancelled and reset; `Topology.reset` was called before.

        Returns:
            Those of them that can be deployed at once; the others follow when their inputs are there again.
        """


def taken_in_rounds(
    candidates: IndexArray,
    is_scheduled: FlagArray,
    consumable: Callable[[IndexArray], IndexArray],
    reading_early: Callable[[IndexArray], IndexArray],
) -> IndexArray:
    """Takes those of some candidates that can be deployed, then what can be because of these, and so on.

    Args:
        candidates: ascending.
        is_scheduled: by candidate; set for those that are taken.
        consumable: of ascending candidates, those whose inputs are all there.
        reading_early: of what was taken, those that may read its results while they are made, ascending.

    Returns:
        What was taken, ascending.
    """
    taken: list[IndexArray] = []
    while candidates.size:
        ready = consumable(candidates[~is_scheduled[candidates]])
        if not ready.size:
            break
        is_scheduled[ready] = True
        taken.append(ready)
        candidates = reading_early(ready)
    return np.sort(np.concatenate(taken)) if taken else NOTHING
