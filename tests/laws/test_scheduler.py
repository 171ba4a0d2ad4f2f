"""Whatever fails, whenever: no subtask runs twice, no slot is used twice, nothing stale acts, and every job ends."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from simulated_cluster import Cluster, Weather, assert_ended

from netstack.ids import ResultPartitionType
from netstack.schedule.descriptors.blob_store import MemoryBlobStore, OffloadRule
from netstack.schedule.execution.execution_states import ExecutionState, JobState
from netstack.schedule.failover.restart import ExponentialDelay, FixedDelay, NoRestart
from netstack.schedule.graph.job_graph import (
    UNDECIDED,
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    SlotSharingGroup,
)
from netstack.schedule.graph.speculation_settings import SpeculationSettings
from netstack.schedule.heartbeats import HeartbeatSettings
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.slot_pool import SlotPoolSettings
from netstack.schedule.slots.slots import LoadBalanceMode
from netstack.schedule.strategies.scheduling_types import InputConstraint, SchedulingType
from netstack.schedule.strategies.vertexwise_scheduling import HybridConsumption

EVERYDAY_SEEDS = 30

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


def play(seed: int, *, is_dynamic: bool) -> None:
    chance = random.Random(seed)
    job = random_job(chance, is_dynamic=is_dynamic)
    restart = chance.choice(
        (
            NoRestart(),
            FixedDelay(30, chance.choice((0.0, 0.3, 2.0))),
            ExponentialDelay(initial_s=0.1, max_s=5.0, attempts=30, chance=lambda: chance.uniform(-1, 1)),
        )
    )
    modes = (LoadBalanceMode.NONE, LoadBalanceMode.SLOTS) if is_dynamic else tuple(LoadBalanceMode)
    mode = chance.choice(modes)
    settings = SchedulerSettings(
        mode=mode,
        heartbeats=HeartbeatSettings(interval_s=2.0, timeout_s=20.0),
        slots=SlotPoolSettings(idle_timeout_s=5.0, waits_for_running=chance.choice((None, False, True))),
        offload=OffloadRule(min_products=chance.choice((0, 1 << 40))),
        step_budget=chance.choice((1, 8, 1000)),
        scheduling=None if is_dynamic else chance.choice((None, None, *SchedulingType)),
        hybrid=chance.choice(tuple(HybridConsumption)),
        constraint=chance.choice(tuple(InputConstraint)),
    )
    store = MemoryBlobStore()
    scheduler = Scheduler(job, "job-1", restart=restart, store=store, settings=settings)
    needed = sum(max(vertex.parallelism, vertex.max_parallelism * is_dynamic) for vertex in job.vertices)
    slots = chance.randint(1, 3)
    weather = random_weather(chance)
    cluster = Cluster(scheduler, seed, weather, taskmanagers=-(-needed // slots), slots=slots, store=store)
    end = cluster.run()
    assert store.keys("job-1") == []
    assert_ended(end)
    statistics = scheduler.statistics()
    if end.state is JobState.FINISHED:
        assert statistics.executions[ExecutionState.FINISHED] == scheduler.topology.subtask_count
    if isinstance(restart, NoRestart):
        assert statistics.restarted == 0


def test_slow_tasks_get_second_attempts(seed: int) -> None:
    """Some TaskManagers are slow, besides all that goes wrong: the first that finishes wins, whoever that is."""
    chance = random.Random(seed)
    types = chance.choice(((ResultPartitionType.BLOCKING,), BATCH))
    job = random_job(chance, is_dynamic=types == (ResultPartitionType.BLOCKING,) and chance.random() < 0.5, types=types)
    settings = SchedulerSettings(
        heartbeats=HeartbeatSettings(interval_s=2.0, timeout_s=20.0),
        slots=SlotPoolSettings(idle_timeout_s=5.0),
        step_budget=chance.choice((1, 8, 1000)),
        speculation=SpeculationSettings(
            max_concurrent_executions=chance.choice((2, 3)),
            block_slow_node_duration_s=chance.choice((0.0, 3.0, 60.0)),
            baseline_lower_bound_s=chance.choice((0.0, 1.0)),
            baseline_ratio=chance.choice((0.0, 0.5)),
        ),
    )
    store, restart = MemoryBlobStore(), FixedDelay(60, chance.choice((0.0, 0.3)))
    scheduler = Scheduler(job, "job-1", restart=restart, store=store, settings=settings)
    weather = replace(random_weather(chance), is_slow=0.4)
    most, slots = chance.randint(6, 12), chance.randint(1, 3)
    cluster = Cluster(scheduler, seed, weather, taskmanagers=most, slots=slots, store=store)
    end = cluster.run()
    assert_ended(end)
    if end.state is JobState.FINISHED:
        assert scheduler.statistics().executions[ExecutionState.FINISHED] == scheduler.topology.subtask_count
        cluster.assert_released()


def test_a_slow_taskmanager_costs_little() -> None:
    """One of three takes sixty times as long for everything: with second attempts nobody waits for it."""
    ended_s = {}
    for speculation in (None, SpeculationSettings(baseline_lower_bound_s=1.0, baseline_ratio=0.3)):
        job = wide_job(6, ResultPartitionType.BLOCKING)
        scheduler = Scheduler(job, "job-1", settings=SchedulerSettings(heartbeats=None, speculation=speculation))
        cluster = Cluster(scheduler, 3, Weather(slow_factor=60.0), taskmanagers=3, slots=4)
        cluster.at(0.0, lambda made=cluster: setattr(made.taskmanagers["tm-0"], "slowness", 60.0))
        assert cluster.run().state is JobState.FINISHED
        ended_s[speculation is not None] = cluster.now_s
        statistics = scheduler.statistics()
        assert statistics.failures == 0
        cluster.assert_released()
    assert statistics.speculation is not None
    assert statistics.speculation.won >= 2
    assert ended_s[True] < 0.3 * ended_s[False]


def test_jobs_survive_or_fail_with_a_reason(seed: int) -> None:
    play(seed, is_dynamic=False)


def test_adaptive_jobs_do_too(seed: int) -> None:
    play(seed, is_dynamic=True)


def wide_job(parallelism: int, result: ResultPartitionType) -> JobGraph:
    return JobGraph(
        "wide",
        (JobVertex("source", parallelism, 4096, is_source=True), JobVertex("sink", parallelism, 4096)),
        (Dataset("words", 0, result),),
        (JobEdge(0, 1, DistributionPattern.ALL_TO_ALL),),
    )


@pytest.mark.slow
@pytest.mark.parametrize("result", [ResultPartitionType.BLOCKING, ResultPartitionType.PIPELINED_BOUNDED])
def test_a_thousand_taskmanagers(result: ResultPartitionType) -> None:
    scheduler = Scheduler(wide_job(1000, result), "job-1", restart=FixedDelay(12, 0.5))
    weather = Weather(task_fails=0.0005, taskmanager_dies_every_s=0.7, repeated=0.01, is_silent=0.1)
    cluster = Cluster(scheduler, 7, weather, taskmanagers=1000, slots=2)
    end = cluster.run()
    assert_ended(end)
    assert cluster.deaths > 0
    assert scheduler.statistics().restarted > 0
