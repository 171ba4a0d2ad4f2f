"""Memory of a scheduler's structures, and bytes of descriptors."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from netstack.schedule.execution import Executions
from netstack.schedule.failover.release import PartitionRelease
from netstack.schedule.recovery import RegionFailover
from netstack.schedule.strategies.strategy import RegionScheduling, VertexwiseScheduling
from netstack.schedule.topology.regions import Regions
from netstack.schedule.topology.topology import Topology

from .cluster import Cluster
from .trials import BATCH, STREAMING, job_of, scheduler_of


@final
@dataclass(frozen=True, slots=True)
class DescriptorSizes:
    """Bytes of the descriptors of a streaming job.

    `plain` and `compressed` are the list of shuffle descriptors that all sinks share, `tasks` the descriptors of all
    tasks.
    """

    plain: int
    compressed: int
    tasks: int


def descriptor_sizes(parallelism: int) -> DescriptorSizes:
    """Deploys a streaming job and returns the sizes of its descriptors."""
    cluster = Cluster(scheduler_of(parallelism, STREAMING), 2 * parallelism, parallelism)
    cluster.start()
    cache = cluster.scheduler.statistics().descriptors
    return DescriptorSizes(cache.plain_bytes, cache.compressed_bytes, cluster.done.deployed_bytes)


def peak_bytes(parallelism: int) -> dict[str, int]:
    """Peak memory of the construction of each structure.

    `topology` is Flink's execution graph: subtasks, partitions and groups, with states and attempts. `scheduler` is
    everything together.
    """
    job = job_of(parallelism, BATCH)
    topology = Topology(job)
    regions = Regions(topology)

    def execution_graph() -> object:
        executions = Executions()
        executions.grow(2 * parallelism)
        return Topology(job), executions

    return {
        "topology": _peak(execution_graph),
        "regions": _peak(lambda: Regions(topology)),
        "region_strategy": _peak(lambda: RegionScheduling(topology, regions)),
        "vertexwise_strategy": _peak(lambda: VertexwiseScheduling(topology)),
        "failover": _peak(lambda: RegionFailover(topology, regions)),
        "release": _peak(lambda: PartitionRelease(topology, regions)),
        "scheduler": _peak(lambda: scheduler_of(parallelism, BATCH)),
    }


def _peak(make: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        peak = tracemalloc.get_traced_memory()[1]
        del made
    finally:
        tracemalloc.stop()
    return peak
