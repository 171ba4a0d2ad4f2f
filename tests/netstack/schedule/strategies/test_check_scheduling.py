"""Outputs and scheduling types that cannot work together are refused before anything runs."""

from __future__ import annotations

import pytest

from netstack.base.errors import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_graph import Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex
from netstack.schedule.strategies.scheduling_types import SchedulingType, check_scheduling

EAGER, FIRST, COMPLETE = SchedulingType
WORKS = {
    ResultPartitionType.BLOCKING: {FIRST, COMPLETE},
    ResultPartitionType.BLOCKING_PERSISTENT: {FIRST, COMPLETE},
    ResultPartitionType.PIPELINED: {EAGER, FIRST},
    ResultPartitionType.PIPELINED_BOUNDED: {EAGER, FIRST},
    ResultPartitionType.PIPELINED_APPROXIMATE: {EAGER, FIRST, COMPLETE},
    ResultPartitionType.HYBRID_FULL: {EAGER, FIRST, COMPLETE},
    ResultPartitionType.HYBRID_SELECTIVE: {EAGER, FIRST, COMPLETE},
}


@pytest.mark.parametrize("scheduling", SchedulingType)
@pytest.mark.parametrize("output", ResultPartitionType)
def test_pairs(output: ResultPartitionType, scheduling: SchedulingType) -> None:
    job = JobGraph(
        "job",
        (JobVertex("source", 2, 8, is_source=True), JobVertex("sink", 2, 8)),
        (Dataset("words", 0, output),),
        (JobEdge(0, 1, DistributionPattern.ALL_TO_ALL),),
    )
    if scheduling in WORKS[output]:
        check_scheduling(job, scheduling)
    else:
        with pytest.raises(ConfigError, match=f"'words' is {output.value}.*scheduling={scheduling.value}.*give"):
            check_scheduling(job, scheduling)
