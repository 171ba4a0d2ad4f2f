"""Jobs and weather that laws of the scheduler play, from chance."""

from __future__ import annotations

import random

from laws.simulated_cluster import Weather
from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_graph import (
    UNDECIDED,
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    SlotSharingGroup,
)

STREAMING = (
    ResultPartitionType.PIPELINED_BOUNDED,
    ResultPartitionType.PIPELINED,
    ResultPartitionType.PIPELINED_APPROXIMATE,
)
BATCH = (
    ResultPartitionType.BLOCKING,
    ResultPartitionType.PIPELINED_BOUNDED,
    ResultPartitionType.HYBRID_FULL,
    ResultPartitionType.BLOCKING_PERSISTENT,
)
ADAPTIVE = (
    (ResultPartitionType.BLOCKING,),
    (ResultPartitionType.BLOCKING, ResultPartitionType.HYBRID_FULL, ResultPartitionType.HYBRID_SELECTIVE),
)


def random_job(
    chance: random.Random, *, is_dynamic: bool = False, types: tuple[ResultPartitionType, ...] | None = None
) -> JobGraph:
    """A job of a few vertices; each reads one or two of those before it."""
    types = types or chance.choice(ADAPTIVE if is_dynamic else (STREAMING, BATCH))
    count = chance.randint(1, 5)
    # With hybrid results all vertices are in one group; here no mix of both comes up.
    groups = 1 if ResultPartitionType.HYBRID_FULL in types else chance.randint(1, 2)
    vertices = [
        JobVertex(
            f"v{number}",
            UNDECIDED if is_dynamic and number and chance.random() < 0.7 else chance.randint(1, 6),
            16,
            slot_sharing_group=chance.randrange(groups),
            is_source=not number,
        )
        for number in range(count)
    ]
    datasets, edges = [], []
    for consumer in range(1, count):
        for producer in chance.sample(range(consumer), chance.randint(1, min(2, consumer))):
            pattern = chance.choice(tuple(DistributionPattern))
            datasets.append(Dataset(f"d{len(datasets)}", producer, chance.choice(types)))
            edges.append(JobEdge(len(datasets) - 1, consumer, pattern))
    names = tuple(SlotSharingGroup(f"g{number}") for number in range(groups))
    return JobGraph("job", tuple(vertices), tuple(datasets), tuple(edges), names, is_dynamic)


def random_weather(chance: random.Random) -> Weather:
    return Weather(
        task_fails=chance.choice((0.0, 0.02, 0.1)),
        taskmanager_dies_every_s=chance.choice((0.0, 1.0, 5.0)),
        repeated=chance.choice((0.0, 0.2)),
        is_silent=chance.choice((0.0, 0.3)),
        latency_s=chance.choice((0.001, 0.05, 0.5)),
        step_s=chance.choice((0.0, 0.05, 0.4)),
        registers_within_s=chance.choice((0.0, 3.0)),
    )


def wide_job(parallelism: int, result: ResultPartitionType) -> JobGraph:
    return JobGraph(
        "wide",
        (JobVertex("source", parallelism, 4096, is_source=True), JobVertex("sink", parallelism, 4096)),
        (Dataset("words", 0, result),),
        (JobEdge(0, 1, DistributionPattern.ALL_TO_ALL),),
    )
