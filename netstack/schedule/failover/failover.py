"""Which subtasks restart when some have failed: their regions, and all that lost or will lose an input by that.

Takes: the subtasks that failed, and which partitions can still be read. Gives: the subtasks to restart.

Rules:
- A region that restarts produces again, so every region that reads from it restarts, finished or not.
- What it reads must be there: the producers of every partition that is unavailable restart too.
- Regions and groups are taken by whole arrays, each once: the work is linear in subtasks, with about 35 microseconds
  for each stage of a chain. It is not cut: what restarts is superseded at once, all of it.
"""

from __future__ import annotations

from typing import final

import numpy as np

from ...errors import ConfigError
from ...ids import ResultPartitionType
from ..structures.arrays import FlagArray, IndexArray, index_array
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
        """The closure of one failure.

        Args:
            failed: the subtask, or all that failed with one TaskManager.
            is_tracked: by partition: whether the scheduler knows of a TaskManager that has it and has not released it.
            missing: a partition that a consumer could not read, when that was the cause.

        Returns:
            Numbers of all subtasks of the regions concerned, ascending, whatever their state.

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
        """Whether consumers that start anew can read each partition."""
        available = is_tracked[partitions] & self._can_be_read_again[self._topology.dataset_of_partition[partitions]]
        if missing is not None:
            available &= partitions != missing
        return available


def _unseen(groups: IndexArray, is_seen: FlagArray) -> IndexArray:
    """Those not met before; marks them."""
    new = groups[~is_seen[groups]]
    is_seen[new] = True
    return new
