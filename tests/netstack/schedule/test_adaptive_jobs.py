"""Whole adaptive jobs through the scheduler: numbers of subtasks come from what finished tasks have written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedule.played import ALL_TO_ALL, BLOCKING, POINTWISE, Play, canceled, deployed, end, released, timer

from netstack.schedule.execution import ExecutionInput, JobState
from netstack.schedule.failover.restart import FixedDelay
from netstack.schedule.graph.job_graph import UNDECIDED, Dataset, JobEdge, JobGraph, JobVertex
from netstack.schedule.graph.settings import AdaptiveSettings
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.slots import LoadBalanceMode


def settings(volume: int, **more: int) -> SchedulerSettings:
    return SchedulerSettings(adaptive=AdaptiveSettings(data_volume_per_task_bytes=volume, **more))


def written(play: Play, dataset: int) -> tuple[int, int]:
    """What is on record of a dataset: partitions and bytes."""
    growing = play.scheduler._deployer._dynamic
    assert growing is not None
    sizes = growing._sizes[dataset]
    return sizes.recorded, sizes.total_bytes


def two_sources() -> Play:
    """Six and four subtasks, and a sink of both that nobody has decided: 26,000 bytes in all, 2,600 for a task."""
    job = JobGraph(
        "job",
        (JobVertex("one", 6, is_source=True), JobVertex("other", 4, is_source=True), JobVertex("sink", UNDECIDED)),
        (Dataset("ones", 0, BLOCKING), Dataset("others", 1, BLOCKING)),
        (JobEdge(0, 2, POINTWISE, "rescale", 1), JobEdge(1, 2, POINTWISE, "rescale", 2)),
        is_dynamic=True,
    )
    return Play(job, settings=settings(2_600), restart=FixedDelay(9, 0.0))


def test_a_sink_of_two_sources_waits_for_both_and_gets_ten_subtasks() -> None:
    play = two_sources()
    topology = play.scheduler.topology
    assert deployed(play.start()) == list(range(10))
    assert [topology.subpartition_counts(dataset).tolist() for dataset in (0, 1)] == [[22] * 6, [32] * 4]
    assert deployed(play.finish_with(100, *range(6))) == []
    assert topology.parallelism_of(2) == UNDECIDED
    assert deployed(play.finish_with(100, 6, 7, 8)) == []
    assert deployed(play.finish_with(100, 9)) == list(range(10, 20))
    assert (written(play, 0), written(play, 1)) == ((6, 13_200), (4, 12_800))
    assert end(play.finish_with(0, *range(10, 20))).state is JobState.FINISHED


@pytest.mark.parametrize("mode", LoadBalanceMode)
def test_each_load_balance_mode_runs_adaptive_jobs(mode: LoadBalanceMode) -> None:
    """Mode `tasks` refused them: it distributes subtasks that do not exist yet."""
    chosen = replace(settings(2_600), mode=mode)
    play = Play(two_sources().scheduler.topology.job, settings=chosen, taskmanagers=1, slots=3)
    running, ran = deployed(play.start()), 0
    while running:
        ran += len(running)
        message = play.finish_with(100 if running[0] < 10 else 0, *running)
        running = deployed(message)
    assert ran == 20
    assert end(message).state is JobState.FINISHED


def test_what_a_consumer_cannot_find_is_not_on_record_until_it_is_written_again() -> None:
    play = two_sources()
    play.start()
    play.finish_with(100, *range(10))
    topology = play.scheduler.topology
    message = play.fail(10, missing_partition=0, missing_attempt=0)
    assert written(play, 0) == (5, 5 * 22 * 100)
    readers = sorted(
        {consumer for group in topology.groups_of_partition(0) for consumer in topology.groups.consumers_of(group)}
    )
    assert sorted([10, *canceled(message)]) == readers
    assert released(message) == [0]
    play.report(ExecutionInput.CANCELED, *canceled(message))
    from_delay = play.scheduler.statistics().restarted
    assert deployed(play.due(timer(message))) == [0]
    assert play.scheduler.statistics().restarted - from_delay == 1 + len(readers)
    assert deployed(play.finish_with(100, 0)) == readers
    assert written(play, 0) == (6, 13_200)
    assert topology.parallelism_of(2) == 10
    assert end(play.finish_with(0, *range(10, 20))).state is JobState.FINISHED


def test_a_forward_target_gets_the_parallelism_of_its_source_and_starts_with_it() -> None:
    job = JobGraph(
        "job",
        (JobVertex("map", 5, is_source=True), JobVertex("sink", UNDECIDED)),
        (Dataset("words", 0, BLOCKING),),
        (JobEdge(0, 1, POINTWISE, "forward", 1, True),),
        is_dynamic=True,
    )
    play = Play(job, settings=settings(1))
    assert deployed(play.start()) == [0, 1, 2, 3, 4]
    assert play.scheduler.topology.subpartition_counts(0).tolist() == [26] * 5
    assert deployed(play.finish_with(100, 0)) == [5]
    assert deployed(play.finish_with(100, 1, 2, 3, 4)) == [6, 7, 8, 9]
    assert written(play, 0) == (5, 13_000)
    assert end(play.finish_with(0, *range(5, 10))).state is JobState.FINISHED


def test_a_result_that_is_read_twice_counts_twice() -> None:
    job = JobGraph(
        "job",
        (JobVertex("source", 1, is_source=True), JobVertex("sink", UNDECIDED, 16)),
        (Dataset("words", 0, BLOCKING),),
        (JobEdge(0, 1, ALL_TO_ALL, "hash", 1), JobEdge(0, 1, ALL_TO_ALL, "hash", 2)),
        is_dynamic=True,
    )
    play = Play(job, settings=settings(400))
    play.start()
    assert deployed(play.finish_with(100, 0)) == list(range(1, 9))


def test_bounds_of_the_job_and_of_the_vertex() -> None:
    def parallelism(max_of_vertex: int, size: int = 1 << 30, **bounds: int) -> int:
        job = JobGraph(
            "job",
            (JobVertex("source", UNDECIDED, max_of_vertex, is_source=True), JobVertex("sink", UNDECIDED, 128)),
            (Dataset("words", 0, BLOCKING),),
            (JobEdge(0, 1, ALL_TO_ALL, "hash"),),
            is_dynamic=True,
        )
        play = Play(job, settings=settings(1, **bounds), taskmanagers=2, slots=200)
        sources = deployed(play.start())
        sinks = deployed(play.finish_with(size, *sources))
        return len(sources) * 1000 + len(sinks)

    assert parallelism(8, min_parallelism=16, max_parallelism=128, default_source_parallelism=32) == 8_128
    assert parallelism(128, min_parallelism=1, max_parallelism=32, default_source_parallelism=4) == 4_032
