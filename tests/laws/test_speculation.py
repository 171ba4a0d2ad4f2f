"""Second attempts of slow tasks, whatever else goes wrong: one of them counts, and nothing of the others stays."""

from __future__ import annotations

import random
from dataclasses import replace

from laws.random_jobs import BATCH, random_job, random_weather, wide_job
from laws.simulated_cluster import Cluster, Weather, assert_ended

from netstack.base.ids import ResultPartitionType
from netstack.schedule.descriptors.blob_store import MemoryBlobStore
from netstack.schedule.execution import ExecutionState, JobState
from netstack.schedule.failover.restart import FixedDelay
from netstack.schedule.graph.settings import SpeculationSettings
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.slot_pool import SlotPoolSettings

EVERYDAY_SEEDS = 5


def test_slow_tasks_get_second_attempts(seed: int) -> None:
    """Some TaskManagers are slow, besides all that goes wrong: the first that finishes wins, whoever that is."""
    chance = random.Random(seed)
    types = chance.choice(((ResultPartitionType.BLOCKING,), BATCH))
    job = random_job(chance, is_dynamic=types == (ResultPartitionType.BLOCKING,) and chance.random() < 0.5, types=types)
    settings = SchedulerSettings(
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
        scheduler = Scheduler(job, "job-1", settings=SchedulerSettings(speculation=speculation))
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
