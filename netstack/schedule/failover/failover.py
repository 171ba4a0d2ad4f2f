"""The restart set of a failure: the failed regions, the producers of unavailable inputs, and all consumers.

Rules:
- A region that restarts produces again, so every region that consumes from it restarts, finished or not.
- The inputs of a region that restarts must be available: the producers of unavailable partitions restart too.
- Regions and groups are handled as whole arrays, each once: the work is linear in subtasks, with about 35 microseconds
  per stage of a chain. It is not cut, because all of the set is superseded at once.
"""

from __future__ import annotations

from typing import final

import numpy as np

from ...errors import ConfigError
from ...ids import ResultPartitionType
from ..structures import FlagArray, IndexArray, index_array
from ..topology.regions import Regions
from ..topology.topology import Topology


@final
class RegionFailover:
    """Computes restart sets.

    Args:
        topology: of the job; it may grow.
        regions: of that topology.
    """

    def __init__(self, topology: Topology, regions: Regions) -> None:
        self._topology = topology
        self._regions = regions
        self._can_be_read_again = np.array(
            [
                dataset.type.is_reconsumable or dataset.type is ResultPartitionType.PIPELINED_APPROXIMATE
                for dataset in topology.job.datasets
            ],
            np.bool_,
        )

    def subtasks_to_restart(
        self, failed: int | IndexArray, is_tracked: FlagArray, missing: int | None = None
    ) -> IndexArray:
        """The restart set of one failure.

        Args:
            failed: the failed subtask, or all that failed with one TaskManager.
            is_tracked: by partition: whether a TaskManager has it, as far as the scheduler knows.
            missing: a partition that a consumer could not read, if that was the cause.

        Returns:
            Numbers of all subtasks of the affected regions, ascending, whatever their state.

        Raises:
            ConfigError: there is no such subtask, or `is_tracked` is not as long as there are partitions.
        """
        topology, regions = self._topology, self._regions
        seeds = np.unique(failed)
        topology.place_of(int(seeds[0]))
        topology.place_of(int(seeds[-1]))
        if is_tracked.size != topology.partition_count:
            raise ConfigError(f"is_tracked has {is_tracked.size} elements for {topology.partition_count} partitions")
        is_taken = np.zeros(len(regions), np.bool_)
        is_read = np.zeros(len(topology.groups), np.bool_)
        is_written = np.zeros(len(topology.groups), np.bool_)
        frontier = regions.of_subtasks(index_array(seeds))
        while frontier.size:
            is_taken[frontier] = True
            subtasks = np.sort(regions.members_of_all(frontier).subtasks)
            read = _unseen(topology.consumed_by_all(subtasks), is_read)
            written = _unseen(topology.produced_by_all(subtasks), is_written)
            needed = topology.groups.partitions_of_all(read)
            lost = needed[~self._are_available(needed, is_tracked, missing)]
            reached = np.concatenate([topology.producer_of_partition[lost], topology.groups.consumers_of_all(written)])
            frontier = regions.of_subtasks(reached)
            frontier = frontier[~is_taken[frontier]]
        return np.sort(regions.members_of_all(index_array(np.flatnonzero(is_taken))).subtasks)

    def _are_available(self, partitions: IndexArray, is_tracked: FlagArray, missing: int | None) -> FlagArray:
        """Whether a consumer that restarts can read each partition."""
        available = is_tracked[partitions] & self._can_be_read_again[self._topology.dataset_of_partition[partitions]]
        if missing is not None:
            available &= partitions != missing
        return available


def _unseen(groups: IndexArray, is_seen: FlagArray) -> IndexArray:
    """The groups that are not marked as seen yet; marks them."""
    new = groups[~is_seen[groups]]
    is_seen[new] = True
    return new
