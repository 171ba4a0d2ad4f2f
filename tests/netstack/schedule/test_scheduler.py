"""The scheduler, event by event: what it says, what it ignores, and how jobs end."""

from __future__ import annotations

import numpy as np
import pytest
from schedule.played import (
    ALL_TO_ALL,
    BLOCKING,
    PIPELINED,
    POINTWISE,
    Play,
    canceled,
    deployed,
    end,
    released,
    timer,
    two_vertices,
)

from netstack.base.errors import ConfigError, LocalProtocolError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation
from netstack.schedule.events import (
    CancelJob,
    CheckpointStored,
    GlobalFailure,
    PartitionConsumable,
    Proceed,
    SlotsOffered,
    StartJob,
    TaskFailed,
    TaskManagerLost,
    TaskManagerRegistered,
    TasksReported,
    TasksWaiting,
    Tick,
    TimerDue,
)
from netstack.schedule.execution import ExecutionInput, ExecutionState, JobState
from netstack.schedule.failover.restart import FixedDelay
from netstack.schedule.graph.job_graph import (
    UNDECIDED,
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    ResourceProfile,
    SlotSharingGroup,
)
from netstack.schedule.graph.settings import SpeculationSettings
from netstack.schedule.instructions import (
    CommitTasks,
    Continue,
    Deploy,
    EndJob,
    Instruction,
    RequireSlots,
    ReturnSlots,
    StartTimer,
    UpdateGate,
)
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.slot_pool import SlotPoolSettings
from netstack.schedule.slots.slots import LoadBalanceMode
from netstack.schedule.strategies.scheduling_types import InputConstraint, SchedulingType
from netstack.schedule.structures import index_array

SMALL, LARGE = ResourceProfile("concrete", 1.0, 1 << 20), ResourceProfile("concrete", 1.0, 1 << 30)


# ------------------------------------------------------------------------------------------------- the main road


def test_a_streaming_job_is_deployed_as_a_whole_and_finishes() -> None:
    play = Play(two_vertices(2, PIPELINED))
    assert deployed(play.start()) == [0, 1, 2, 3]
    play.run(0, 1, 2, 3)
    assert play.states() == ["running"] * 4
    assert play.finish(0, 1, 2) == []
    assert end(play.finish(3)) == EndJob(JobState.FINISHED)
    assert play.give(StartJob()) == []
    assert play.scheduler.next_deadline() is None


def test_a_batch_job_goes_stage_by_stage_and_releases_what_was_read() -> None:
    play = Play(two_vertices(2, BLOCKING))
    assert deployed(play.start()) == [0, 1]
    play.run(0, 1)
    assert deployed(play.finish(0)) == []
    assert deployed(play.finish(1)) == [2, 3]
    play.run(2, 3)
    assert released(play.finish(2)) == []
    message = play.finish(3)
    assert sorted(released(message)) == [0, 1]
    assert end(message).state is JobState.FINISHED


def test_persistent_results_outlive_the_job() -> None:
    play = Play(two_vertices(1, ResultPartitionType.BLOCKING_PERSISTENT))
    play.start()
    play.finish(0)
    assert released(play.finish(1)) == []


def test_nothing_is_deployed_before_the_whole_bulk_has_slots() -> None:
    play = Play(two_vertices(2, PIPELINED), taskmanagers=1, slots=1)
    message = play.start()
    assert message == [RequireSlots(2, 1)]
    assert play.states() == ["scheduled"] * 4
    message = play.register("late", 1)
    assert deployed(message) == [0, 1, 2, 3]
    assert RequireSlots(0, 0) in message
    assert {play.where[0], play.where[1]} == {"tm-0", "late"}


def test_a_task_begins_with_the_newest_checkpoint() -> None:
    play = Play(two_vertices(1, PIPELINED), restart=FixedDelay(1, 0.0))
    assert [actual.restore for actual in play.start() if isinstance(actual, Deploy)] == [None]
    play.give(CheckpointStored(7))
    message = play.fail(0)
    play.report(ExecutionInput.CANCELED, 1)
    message = play.give(TimerDue(timer(message).timer))
    assert [actual.restore for actual in message if isinstance(actual, Deploy)] == [7]


def test_modes_of_placement() -> None:
    for mode in LoadBalanceMode:
        settings = SchedulerSettings(mode=mode, slots=SlotPoolSettings(max_interval_s=0.0))
        play = Play(two_vertices(2, PIPELINED), settings=settings)
        message = play.start() + play.give(Tick())
        assert deployed(message) == [0, 1, 2, 3]
        if mode is LoadBalanceMode.TASKS:
            assert sorted(play.where.values()) == ["tm-0", "tm-0", "tm-1", "tm-1"]


# ---------------------------------------------------------------------------------------------- older scheduling types


def test_all_at_once() -> None:
    play = Play(two_vertices(2, BLOCKING), settings=SchedulerSettings(scheduling=SchedulingType.ALL_AT_ONCE))
    assert deployed(play.start()) == [0, 1, 2, 3]


def lazy(constraint: InputConstraint) -> Play:
    """Two sources and what reads both."""
    job = JobGraph(
        "job",
        (JobVertex("one", 1, is_source=True), JobVertex("other", 1, is_source=True), JobVertex("both", 1)),
        (Dataset("ones", 0, PIPELINED), Dataset("others", 1, BLOCKING)),
        (JobEdge(0, 2, ALL_TO_ALL), JobEdge(1, 2, ALL_TO_ALL)),
    )
    scheduling = SchedulingType.NEXT_STAGE_ON_FIRST_OUTPUT
    settings = SchedulerSettings(scheduling=scheduling, constraint=constraint)
    play = Play(job, settings=settings, restart=FixedDelay(9, 0.0))
    assert deployed(play.start()) == [0, 1]
    return play


def test_the_next_stage_comes_on_the_first_output_of_any_input() -> None:
    play = lazy(InputConstraint.ANY)
    assert play.give(PartitionConsumable(0, 7)) == []
    assert deployed(play.give(PartitionConsumable(0, 0))) == [2]
    assert deployed(play.give(PartitionConsumable(0, 0))) == []


def test_or_of_all_inputs() -> None:
    play = lazy(InputConstraint.ALL)
    assert play.give(PartitionConsumable(0, 0)) == []
    assert deployed(play.finish(1)) == [2]


def test_output_counts_for_its_attempt() -> None:
    play = lazy(InputConstraint.ANY)
    message = play.fail(0)
    assert play.give(PartitionConsumable(0, 0)) == []
    assert deployed(play.give(TimerDue(timer(message).timer))) == [0]
    assert deployed(play.give(PartitionConsumable(0, 1))) == [2]


def test_a_dynamic_job_has_a_way_of_its_own() -> None:
    job = JobGraph("job", (JobVertex("source", UNDECIDED, is_source=True),), is_dynamic=True)
    settings = SchedulerSettings(scheduling=SchedulingType.ALL_AT_ONCE)
    with pytest.raises(ConfigError, match="scheduling=all_at_once"):
        Scheduler(job, "run-1", settings=settings)


# --------------------------------------------------------------------------------------- failures and restarts (F3)


def test_a_restart_waits_for_the_cancellations_and_the_delay() -> None:
    play = Play(two_vertices(2, PIPELINED), restart=FixedDelay(3, 5.0))
    play.start()
    play.run(0, 1, 2, 3)
    message = play.fail(0)
    assert canceled(message) == [1, 2, 3]
    assert timer(message).delay_s == 5.0
    assert play.scheduler.state is JobState.RESTARTING
    assert deployed(play.report(ExecutionInput.CANCELED, 1, 2)) == []
    assert deployed(play.give(TimerDue(timer(message).timer))) == []
    assert deployed(play.report(ExecutionInput.CANCELED, 3)) == [0, 1, 2, 3]
    assert play.scheduler.state is JobState.RUNNING
    assert set(play.attempts.values()) == {1}
    assert play.scheduler.statistics().restarted == 4


def test_the_delay_may_be_the_last_to_pass() -> None:
    play = Play(two_vertices(1, PIPELINED), restart=FixedDelay(3, 5.0))
    play.start()
    message = play.fail(0)
    assert deployed(play.report(ExecutionInput.CANCELED, 1)) == []
    assert deployed(play.give(TimerDue(timer(message).timer))) == [0, 1]


def test_a_timer_of_a_restart_that_was_superseded_is_ignored() -> None:
    play = Play(two_vertices(2, PIPELINED, POINTWISE), restart=FixedDelay(3, 5.0))
    play.start()
    first = timer(play.fail(0))
    second = timer(play.give(GlobalFailure("all of it")))
    # The first restart has lost both of its subtasks to the second.
    assert play.give(TimerDue(first.timer)) == []
    play.report(ExecutionInput.CANCELED, 1, 2, 3)
    assert sorted(deployed(play.give(TimerDue(second.timer)))) == [0, 1, 2, 3]
    stale = play.scheduler.statistics().stale
    assert play.give(TimerDue(first.timer)) == []
    assert play.scheduler.statistics().stale == stale + 1


def test_reports_of_an_earlier_attempt_are_ignored() -> None:
    play = Play(two_vertices(1, PIPELINED), restart=FixedDelay(3, 0.0))
    play.start()
    message = play.fail(0)
    play.report(ExecutionInput.CANCELED, 1)
    play.give(TimerDue(timer(message).timer))
    old = np.array([0], np.uint32)
    for what in (ExecutionInput.INITIALIZE, ExecutionInput.FINISH, ExecutionInput.CANCELED):
        assert play.give(TasksReported(what, index_array([1]), old)) == []
    assert play.give(TaskFailed(1, 0, "late")) == []
    assert play.give(TaskFailed(77, 0, "of nobody")) == []
    assert play.states() == ["deploying", "deploying"]


def test_a_slot_that_comes_for_a_superseded_request_serves_the_next_one() -> None:
    play = Play(two_vertices(1, PIPELINED), restart=FixedDelay(3, 0.0), taskmanagers=0)
    play.start()
    message = play.give(GlobalFailure("before there is a slot"))
    assert play.states() == ["canceled", "canceled"]
    assert deployed(play.register("tm", 1)) == []
    assert deployed(play.give(TimerDue(timer(message).timer))) == [0, 1]
    assert play.attempts == {0: 1, 1: 1}


def test_restarts_used_up_fail_the_job_with_the_reason() -> None:
    play = Play(two_vertices(2, PIPELINED), restart=FixedDelay(0))
    play.start()
    message = play.fail(0)
    assert canceled(message) == [1, 2, 3]
    assert play.scheduler.state is JobState.FAILING
    assert play.fail(1) == []
    assert end(play.report(ExecutionInput.CANCELED, 2, 3)) == EndJob(
        JobState.FAILED, "it broke (0 restarts are used up)"
    )


def test_some_failures_cannot_be_recovered_from() -> None:
    play = Play(two_vertices(1, BLOCKING), restart=FixedDelay(None))
    play.start()
    assert end(play.fail(0, is_recoverable=False)).reason == "it broke (a restart cannot help)"


def test_a_user_cancels() -> None:
    play = Play(two_vertices(1, PIPELINED), restart=FixedDelay(None))
    play.start()
    assert canceled(play.give(CancelJob())) == [0, 1]
    assert play.give(CancelJob()) == []
    play.finish(0)
    assert end(play.report(ExecutionInput.CANCELED, 1)) == EndJob(JobState.CANCELED)
    unstarted = Play(two_vertices(1, PIPELINED))
    assert end(unstarted.give(CancelJob())).state is JobState.CANCELED


def test_a_task_that_cancels_itself_has_failed() -> None:
    play = Play(two_vertices(1, PIPELINED), restart=FixedDelay(1, 0.0))
    play.start()
    assert canceled(play.report(ExecutionInput.CANCELED, 1)) == [0]


# ------------------------------------------------------------------------------ lost TaskManagers and partitions (9.2)


def batch_with_sinks_running() -> Play:
    """Sources 0 and 1 finished, each on a TaskManager; sinks 2 and 3 run there."""
    play = Play(two_vertices(2, BLOCKING), restart=FixedDelay(9, 0.0), slots=1)
    play.start()
    play.finish(0, 1)
    play.run(2, 3)
    return play


def test_a_lost_taskmanager_restarts_what_a_restarting_consumer_lacks() -> None:
    play = batch_with_sinks_running()
    lost = play.where[2]
    message = play.give(TaskManagerLost(lost, "gone"))
    # The sink there, the source whose partition was there, and so its other consumer.
    assert canceled(message) == [3]
    producer = 0 if play.where[0] == lost else 1
    play.register("next", 1)
    play.report(ExecutionInput.CANCELED, 3)
    assert deployed(play.give(TimerDue(timer(message).timer))) == [producer]
    assert play.states()[1 - producer] == "finished"
    assert deployed(play.finish(producer)) == [2, 3]


def test_finished_producers_survive_a_loss_that_nobody_notices() -> None:
    play = Play(two_vertices(2, BLOCKING), restart=FixedDelay(9, 0.0), slots=1)
    play.start()
    play.finish(0)
    assert play.give(TaskManagerLost(play.where[0], "gone")) == []
    assert play.states()[0] == "finished"
    play.register("next", 1)
    play.finish(1)
    assert play.states() == ["finished", "finished", "deploying", "deploying"]
    # A consumer misses the partition: now its producer runs again, and so do all consumers of that.
    message = play.fail(2, missing_partition=0, missing_attempt=0)
    assert canceled(message) == [3]
    play.report(ExecutionInput.CANCELED, 3)
    assert deployed(play.give(TimerDue(timer(message).timer))) == [0]


@pytest.mark.parametrize("reporter", ["current", "rival"])
def test_a_lost_producer_runs_again_although_another_attempt_of_its_consumer_runs(reporter: str) -> None:
    speculation = SpeculationSettings(baseline_lower_bound_s=1.0, baseline_ratio=0.0)
    play = Play(
        two_vertices(1, BLOCKING), restart=FixedDelay(1, 1.0), settings=SchedulerSettings(speculation=speculation)
    )
    play.start()
    play.finish(0)
    before = play.attempts[1]
    assert deployed(play.give(Tick(), play.now_s + 2.0)) == [1], "the consumer is slow, and gets a second attempt"
    if reporter == "current":
        play.attempts[1] = before
    message = play.fail(1, missing_partition=0, missing_attempt=0)
    assert canceled(message) == [1]
    play.attempts[1] = 1 - play.attempts[1]
    play.report(ExecutionInput.CANCELED, 1)
    assert deployed(play.give(TimerDue(timer(message).timer))) == [0]


def test_a_partition_of_an_earlier_attempt_is_not_missing() -> None:
    play = batch_with_sinks_running()
    message = play.fail(2, missing_partition=0, missing_attempt=5)
    assert deployed(play.give(TimerDue(timer(message).timer))) == [2]


def test_results_of_producers_that_run_again_are_dropped_where_they_are() -> None:
    play = batch_with_sinks_running()
    message = play.fail(2, missing_partition=0, missing_attempt=0)
    assert released(message) == [0]


def test_an_unknown_taskmanager_is_nobodys_loss() -> None:
    play = Play(two_vertices(1, PIPELINED))
    play.start()
    assert play.give(TaskManagerLost("who", "gone")) == []
    assert play.give(SlotsOffered("who", (0,))) == []
    assert play.scheduler.statistics().stale == 2


def test_a_consumer_that_came_first_is_told_of_its_producer() -> None:
    job = JobGraph(
        "job",
        (JobVertex("source", 2, is_source=True), JobVertex("sink", 1, slot_sharing_group=1)),
        (Dataset("words", 0, ResultPartitionType.HYBRID_FULL),),
        (JobEdge(0, 1, ALL_TO_ALL),),
        (SlotSharingGroup("sources", SMALL), SlotSharingGroup("sinks", LARGE)),
    )
    play = Play(job, taskmanagers=0)
    play.start()
    play.give(TaskManagerRegistered(TaskManagerLocation("tm", "tcp://tm:1")))
    assert deployed(play.give(SlotsOffered("tm", (0,), LARGE))) == [2]
    message = play.give(SlotsOffered("tm", (1,), SMALL))
    (update,) = [actual for actual in message if isinstance(actual, UpdateGate)]
    assert (update.subtasks.tolist(), update.gate, deployed(message)) == ([2], 0, [0])
    news = ShuffleDescriptors.decompress(update.descriptors)
    assert [news.channel(row, 0).partition_id for row in range(len(news))] == ["run-1/words/0.0"]


# ------------------------------------------------------------------------------------------------------------ slots


def test_no_slots_for_too_long_is_a_failure() -> None:
    play = Play(two_vertices(1, PIPELINED), taskmanagers=0)
    play.start()
    assert play.give(Tick(), 100.0) == []
    assert "2 tasks got no slot within 300.0 s" in end(play.give(Tick(), 302.0)).reason


def test_a_batch_job_with_few_slots_takes_its_time() -> None:
    play = Play(two_vertices(2, BLOCKING), taskmanagers=1, slots=1)
    assert deployed(play.start()) == [0]
    for subtask in range(3):
        play.now_s += 1000.0
        assert play.give(Tick()) == []
        assert deployed(play.finish(subtask)) == [subtask + 1]
    assert end(play.finish(3)).state is JobState.FINISHED
    # Without a slot that could come free it does not wait for ever; a streaming job never does.
    play = Play(two_vertices(2, BLOCKING), taskmanagers=0)
    play.start()
    assert "got no slot" in end(play.give(Tick(), 302.0)).reason
    play = Play(two_vertices(2, PIPELINED), taskmanagers=1, slots=1)
    play.start()
    assert "got no slot" in end(play.give(Tick(), 310.0)).reason


def test_a_consumer_that_holds_the_slot_that_its_producer_needs_is_a_failure() -> None:
    """It shares the slot of another producer."""
    play = Play(two_vertices(2, ResultPartitionType.HYBRID_FULL), taskmanagers=1, slots=1)
    assert deployed(play.start()) == [0, 2]
    play.finish(0)
    assert canceled(play.give(Tick(), 310.0)) == [2]
    assert "no slot within" in end(play.report(ExecutionInput.CANCELED, 2)).reason


def test_slots_that_nobody_wants_are_given_back() -> None:
    play = Play(two_vertices(1, PIPELINED), slots=2)
    play.start()
    (back,) = play.give(Tick(), 100.0)
    assert isinstance(back, ReturnSlots)
    assert len(back.slots) == 3


# ------------------------------------------------------------------------------------------------ descriptors (T2)


@pytest.mark.parametrize(("pattern", "shuffle"), [(ALL_TO_ALL, 1), (POINTWISE, 4)])
def test_blobs_go_when_their_readers_have_finished(pattern: DistributionPattern, shuffle: int) -> None:
    play = Play(two_vertices(4, BLOCKING, pattern), is_offloading=True)
    play.start()
    play.finish(0, 1, 2, 3)
    assert len(play.store.keys("run-1")) == 3 + shuffle
    play.finish(4)
    assert len(play.store.keys("run-1")) == (4 if pattern is ALL_TO_ALL else 6)
    play.finish(5, 6)
    assert len(play.store.keys("run-1")) == 4
    play.finish(7)
    assert play.store.keys("run-1") == []  # the job has ended with it


def test_blobs_of_shuffle_descriptors_go_with_a_global_failure() -> None:
    play = Play(two_vertices(4, BLOCKING), is_offloading=True, restart=FixedDelay(1, 0.0))
    play.start()
    play.finish(0, 1, 2, 3)
    assert len(play.store.keys("run-1")) == 4
    play.give(GlobalFailure("all of it"))
    assert len(play.store.keys("run-1")) == 3


# ------------------------------------------------------------------------------------------------- cut work, misuse


def test_long_work_is_cut_and_goes_on_with_proceed() -> None:
    job = two_vertices(4, PIPELINED)
    scheduler = Scheduler(job, "run-1", settings=SchedulerSettings(step_budget=1))
    scheduler.handle(TaskManagerRegistered(TaskManagerLocation("tm", "tcp://tm:1")), 0.0)
    scheduler.handle(SlotsOffered("tm", (0, 1, 2, 3)), 0.0)
    message = scheduler.handle(StartJob(), 0.0)
    steps = 0
    while message:
        assert message[-1] == Continue() or steps > 8
        assert scheduler.handle(Tick(), 0.0) == []
        message = scheduler.handle(Proceed(), 0.0)
        steps += 1
    assert steps == 16  # eight subtasks, once for their slots and once to be sent
    assert scheduler.statistics().executions[ExecutionState.DEPLOYING] == 8


def test_what_was_cut_and_superseded_is_not_done() -> None:
    job = two_vertices(4, PIPELINED)
    scheduler = Scheduler(job, "run-1", restart=FixedDelay(1, 9.0), settings=SchedulerSettings(step_budget=1))
    scheduler.handle(StartJob(), 0.0)
    scheduler.handle(GlobalFailure("all of it"), 0.0)
    message: list[Instruction] = [Continue()]
    while message and isinstance(message[-1], Continue):
        message = scheduler.handle(Proceed(), 0.0)
        assert deployed(message) == []
    assert scheduler.statistics().executions[ExecutionState.CANCELED] == 8


def test_a_restart_waits_for_slots_to_be_given_back() -> None:
    settings = SchedulerSettings(step_budget=1)
    play = Play(two_vertices(4, BLOCKING), restart=FixedDelay(1, 0.0), settings=settings, taskmanagers=1)
    play.start()
    message = play.scheduler.handle(TaskManagerLost("tm-0", "gone"), play.now_s)
    assert message[-1] == Continue()
    assert play.scheduler.handle(TimerDue(timer(message).timer), play.now_s) == []
    assert play.states()[:4] == ["failed"] * 4
    assert play.give(Proceed()) == [RequireSlots(20 + 4, 4)]
    assert play.states()[:4] == ["scheduled"] * 4
    assert deployed(play.register("next", 4)) == [0, 1, 2, 3]


def test_misuse_is_refused() -> None:
    play = Play(two_vertices(1, PIPELINED))
    play.start()
    with pytest.raises(LocalProtocolError, match=r"running .* 'start'"):
        play.start()
    with pytest.raises(LocalProtocolError, match="'tm-0' is already registered"):
        play.register("tm-0", 1)
    with pytest.raises(LocalProtocolError, match="cannot report 'schedule'"):
        play.report(ExecutionInput.SCHEDULE, 0)
    with pytest.raises(ConfigError, match="step_budget=0"):
        SchedulerSettings(step_budget=0)


# -------------------------------------------------------------------------------------------------- adaptive batch


def test_an_adaptive_job_decides_when_its_inputs_are_there() -> None:
    job = JobGraph(
        "job",
        (JobVertex("source", 2, is_source=True), JobVertex("sink", UNDECIDED, 8)),
        (Dataset("words", 0, BLOCKING),),
        (JobEdge(0, 1, ALL_TO_ALL),),
        is_dynamic=True,
    )
    play = Play(job, restart=FixedDelay(9, 0.0))
    assert deployed(play.start()) == [0, 1]
    sizes = np.full(8, 4 << 20, np.int64)  # 32 MiB each: four subtasks of 16 MiB
    one = np.zeros(1, np.uint32)
    play.give(TasksReported(ExecutionInput.FINISH, index_array([0]), one, {0: sizes}))
    # One has to run again: what it wrote is forgotten until then.
    message = play.give(GlobalFailure("all of it"))
    play.report(ExecutionInput.CANCELED, 1)
    play.give(TimerDue(timer(message).timer))
    for subtask in (0, 1):
        attempt = np.ones(1, np.uint32)
        message = play.give(TasksReported(ExecutionInput.FINISH, index_array([subtask]), attempt, {subtask: sizes}))
    assert deployed(message) == [2, 3, 4, 5]
    assert end(play.finish(2, 3, 4, 5)).state is JobState.FINISHED


# --------------------------------------------------------------------------------------------------- benchmarks (Q1)


def waits(play: Play, *subtasks: int) -> list[int]:
    """Returns the subtasks that the scheduler orders to commit after these begin to wait."""
    attempts = np.array([play.attempts[subtask] for subtask in subtasks], np.uint32)
    message = play.give(TasksWaiting(index_array(subtasks), attempts))
    return [subtask for each in message if isinstance(each, CommitTasks) for subtask in each.subtasks.tolist()]


@pytest.mark.parametrize("result", [BLOCKING, ResultPartitionType.HYBRID_FULL])
def test_where_results_are_kept_sinks_commit_together_since_a_lost_result_has_all_of_them_run_again(
    result: ResultPartitionType,
) -> None:
    """One had committed when a TaskManager with results died, and the job failed."""
    play = Play(two_vertices(2, result), restart=FixedDelay(9, 0.0), taskmanagers=3, slots=1)
    play.start()
    play.run(0, 1)
    play.finish(0, 1)
    play.run(2, 3)
    assert waits(play, 2) == []
    message = play.fail(3, missing_partition=0, missing_attempt=0)
    timer = next(each for each in message if isinstance(each, StartTimer))
    play.report(ExecutionInput.CANCELED, *canceled(message))
    assert 0 in deployed(play.due(timer))
    assert play.scheduler.state is not JobState.FAILING
    play.run(0)
    play.finish(0)
    play.run(2, 3)
    assert waits(play, 3) == []
    assert waits(play, 2) == [2, 3]


def test_a_sink_commits_at_once_where_another_needs_its_slot() -> None:
    play = Play(two_vertices(2, BLOCKING), taskmanagers=1, slots=1)
    play.start()
    play.run(0)
    play.finish(0)
    play.run(1)
    play.finish(1)
    play.run(2)
    assert waits(play, 2) == [2]
    play.finish(2)
    play.run(3)
    assert waits(play, 3) == [3]


@pytest.mark.parametrize("result", [PIPELINED, BLOCKING])
@pytest.mark.parametrize("mode", [LoadBalanceMode.NONE, LoadBalanceMode.SLOTS])
def test_each_benchmark_at_parallelism_ten(result: ResultPartitionType, mode: LoadBalanceMode) -> None:
    settings = SchedulerSettings(mode=mode)
    play = Play(two_vertices(10, result), restart=FixedDelay(2, 0.0), settings=settings, taskmanagers=5, slots=4)
    message = play.start()
    sources, sinks = list(range(10)), list(range(10, 20))
    if result is PIPELINED:
        assert deployed(message) == sources + sinks
        assert len(canceled(play.fail(0))) == 19
        play.report(ExecutionInput.CANCELED, *range(1, 20))
    else:
        assert deployed(message) == sources
        assert deployed(play.finish(*sources)) == sinks
        message = play.fail(10, missing_partition=0, missing_attempt=0)
        assert canceled(message) == list(range(11, 20))
        play.report(ExecutionInput.CANCELED, *range(11, 20))
    assert play.scheduler.statistics().descriptors.misses == 1
    (first,) = [actual.timer for actual in play.said if isinstance(actual, StartTimer)]
    play.give(TimerDue(first))
    if result is BLOCKING:
        assert deployed(play.finish(0)) == sinks
        assert sorted(released(play.finish(*sinks))) == sources
        assert play.scheduler.state is JobState.FINISHED
    else:
        message = play.give(GlobalFailure("all of it"))
        play.report(ExecutionInput.CANCELED, *range(20))
        assert deployed(play.give(TimerDue(timer(message).timer))) == sources + sinks
