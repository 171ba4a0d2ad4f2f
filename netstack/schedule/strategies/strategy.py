"""What every scheduling strategy offers: told what happened, it says which subtasks are deployed now.

Takes: events, after the topology was told of them. Gives: batches; the slots of a batch are requested together, and it
is deployed when it has all of them.

Rules: a strategy names a subtask at most once until it is restarted. It looks at the topology and changes nothing.
"""

from __future__ import annotations

from typing import Protocol

from ..structures.arrays import Batches, IndexArray


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
