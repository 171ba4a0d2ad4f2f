"""Whatever fails, whenever: no subtask runs twice, no slot is used twice, nothing stale acts, and every job ends."""

from __future__ import annotations

import random

import pytest
from laws.random_jobs import random_job, random_weather, wide_job
from laws.simulated_cluster import Cluster, Weather, assert_ended

from netstack.base.ids import ResultPartitionType
from netstack.schedule.descriptors.blob_store import MemoryBlobStore, OffloadRule
from netstack.schedule.execution import ExecutionState, JobState
from netstack.schedule.failover.restart import ExponentialDelay, FixedDelay, NoRestart
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.slot_pool import SlotPoolSettings
from netstack.schedule.slots.slots import LoadBalanceMode
from netstack.schedule.strategies.scheduling_types import InputConstraint, SchedulingType
from netstack.schedule.strategies.strategy import HybridConsumption

EVERYDAY_SEEDS = 30


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
        cluster.assert_released()
    if isinstance(restart, NoRestart):
        assert statistics.restarted == 0


def test_jobs_survive_or_fail_with_a_reason(seed: int) -> None:
    play(seed, is_dynamic=False)


def test_adaptive_jobs_do_too(seed: int) -> None:
    play(seed, is_dynamic=True)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("result", "taskmanagers"),
    [
        (ResultPartitionType.BLOCKING, 1000),
        (ResultPartitionType.PIPELINED_BOUNDED, 250),
        pytest.param(ResultPartitionType.PIPELINED_BOUNDED, 1000, marks=pytest.mark.long),  # every failure restarts all
    ],
)
def test_hundreds_of_taskmanagers(result: ResultPartitionType, taskmanagers: int) -> None:
    scheduler = Scheduler(wide_job(taskmanagers, result), "job-1", restart=FixedDelay(12, 0.5))
    weather = Weather(task_fails=0.5 / taskmanagers, taskmanager_dies_every_s=0.7, repeated=0.01, is_silent=0.1)
    cluster = Cluster(scheduler, 7, weather, taskmanagers=taskmanagers, slots=2)
    end = cluster.run()
    assert_ended(end)
    assert cluster.deaths > 0
    assert scheduler.statistics().restarted > 0
