"""When checkpoints are triggered, what they wait for, and how they end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from netstack.base.errors import ConfigError, LocalProtocolError
from netstack.base.events import Alignment, CheckpointBarrier
from netstack.schedule.checkpoint.coordinator import CheckpointCoordinator
from netstack.schedule.checkpoint.instructions import (
    Abort,
    AbortCause,
    CheckpointSettings,
    Complete,
    FailJob,
    Instruction,
    JobTask,
    StoreFinal,
    Trigger,
)
from netstack.schedule.checkpoint.snapshot import Manifest, TaskFile

JOB = [JobTask("source", 2), JobTask("map", 1, ("source",)), JobTask("sink", 1, ("map",))]
ALL = [("map", 0), ("sink", 0), ("source", 0), ("source", 1)]
SOURCES = (("source", 0), ("source", 1))


def coordinator(first_id: int = 1, **settings: Any) -> CheckpointCoordinator:
    return CheckpointCoordinator(
        JOB, CheckpointSettings(**{"interval_s": 10.0, **settings}), first_id=first_id, now_s=100.0
    )


def file(task: str, subtask: int) -> TaskFile:
    return TaskFile(task, subtask, 10 + subtask, 7)


def acknowledge(
    made: CheckpointCoordinator, checkpoint_id: int, now_s: float, subtasks: list[tuple[str, int]] = ALL
) -> list[Instruction]:
    instructions = []
    for task, subtask in subtasks:
        instructions += made.acknowledged(checkpoint_id, file(task, subtask), now_s)
    return instructions


def trigger(checkpoint_id: int, now_s: float, subtasks: tuple[tuple[str, int], ...] = SOURCES) -> Trigger:
    return Trigger(CheckpointBarrier(checkpoint_id, int(now_s * 1e9)), subtasks, is_savepoint=False)


def test_from_trigger_to_completion() -> None:
    made = coordinator(first_id=42)
    assert made.next_deadline() == 110.0
    assert made.tick(109.9) == []
    assert made.tick(110.5) == [trigger(42, 110.5)]
    assert made.next_deadline() == 710.5  # only its time-out is left
    assert acknowledge(made, 42, 111.0, ALL[:3]) == []
    (complete,) = acknowledge(made, 42, 112.0, ALL[3:])
    files = tuple(file(*subtask) for subtask in ALL)
    parallelism = {"source": 2, "map": 1, "sink": 1}
    assert complete == Complete(42, parallelism, files, is_savepoint=False)
    created = datetime(2026, 11, 21, tzinfo=UTC)
    assert complete.manifest(created) == Manifest(42, created, parallelism, files)
    assert made.next_deadline() is None  # storing has no time-out, and no other may begin
    assert made.tick(5000.0) == []
    assert made.completed(42, 114.5) == []
    assert made.next_deadline() == 120.5
    assert made.tick(120.5) == [trigger(43, 120.5)]


def test_missed_intervals_do_not_pile_up() -> None:
    made = coordinator()
    assert made.tick(155.0) == [trigger(1, 155.0)]
    acknowledge(made, 1, 190.0)
    made.completed(1, 190.0)
    assert made.next_deadline() == 190.0
    assert made.tick(190.0) == [trigger(2, 190.0)]
    assert made.tick(190.0) == []


def test_a_pause_between_checkpoints() -> None:
    made = coordinator(min_pause_s=8.0)
    made.tick(110.0)
    acknowledge(made, 1, 117.0)
    made.completed(1, 118.0)
    assert made.next_deadline() == 126.0
    assert made.tick(125.9) == []
    assert made.request(125.9) == [trigger(2, 125.9)]  # who asks does not wait for the pause


def test_a_time_out_names_who_is_missing() -> None:
    made = coordinator(timeout_s=5.0)
    made.tick(110.0)
    acknowledge(made, 1, 111.0, ALL[1:3])
    assert made.next_deadline() == 115.0
    (abort,) = made.tick(115.0)
    assert abort == Abort(
        1,
        AbortCause.TIMED_OUT,
        "2 of 4 subtasks have not acknowledged within 5.0 s: map-0, source-1",
        tuple(ALL),
    )
    assert acknowledge(made, 1, 116.0, [ALL[0], ALL[3]]) == []
    assert made.tick(120.0) == [trigger(2, 120.0)]


def test_a_decline_aborts() -> None:
    made = coordinator()
    made.tick(110.0)
    (abort,) = made.declined(1, "map", 0, "no space left", 111.0)
    assert isinstance(abort, Abort)
    assert (abort.checkpoint_id, abort.cause, abort.reason) == (
        1,
        AbortCause.DECLINED,
        "map-0 declined: no space left",
    )
    assert made.declined(1, "sink", 0, "late", 111.0) == []


def test_what_was_not_stored_is_aborted() -> None:
    made = coordinator()
    made.tick(110.0)
    acknowledge(made, 1, 111.0)
    assert made.declined(1, "sink", 0, "too late", 111.5) == []
    (abort,) = made.not_stored(1, "disk full", 112.0)
    assert isinstance(abort, Abort)
    assert (abort.cause, abort.reason) == (AbortCause.NOT_STORED, "disk full")
    for late in (made.not_stored, made.completed):
        with pytest.raises(LocalProtocolError, match="checkpoint 1 is not being stored"):
            late(1, *["twice"][: late == made.not_stored], 113.0)


def test_failures_in_a_row_fail_the_job_and_are_counted_anew_when_it_runs_again() -> None:
    made = coordinator(tolerable_failures=1, timeout_s=1.0)
    made.tick(110.0)
    assert len(made.declined(1, "sink", 0, "why", 110.0)) == 1
    made.tick(120.0)
    acknowledge(made, 2, 120.0)
    made.completed(2, 120.0)
    made.tick(130.0)
    assert len(made.tick(131.0)) == 1
    made.tick(140.0)
    acknowledge(made, 4, 140.0)
    abort, fail = made.not_stored(4, "disk full", 141.0)
    assert isinstance(abort, Abort)
    assert fail == FailJob("2 checkpoints failed in a row, 1 are tolerated; the last, 4: not stored: disk full")
    assert made.next_deadline() is None
    assert made.tick(1000.0) == []
    (trigger,) = made.resume([], 1001.0)
    assert isinstance(trigger, Trigger)
    assert len(made.declined(5, "sink", 0, "why", 1002.0)) == 1
    made.tick(1012.0)
    assert isinstance(made.declined(6, "sink", 0, "why", 1012.0)[1], FailJob)


def test_a_job_that_fails_for_want_of_checkpoints_is_not_failed_again_before_it_runs() -> None:
    made = coordinator(tolerable_failures=0, max_concurrent=3)
    made.tick(110.0)
    made.tick(120.0)
    made.tick(130.0)
    acknowledge(made, 1, 131.0)
    declined, fail, also = made.declined(2, "sink", 0, "", 131.0)
    assert isinstance(fail, FailJob)
    assert isinstance(declined, Abort)
    assert isinstance(also, Abort)
    assert (also.checkpoint_id, also.cause) == (3, AbortCause.TASK_FAILED)
    (abort,) = made.not_stored(1, "disk full", 132.0)
    assert isinstance(abort, Abort)


def test_a_savepoint_that_fails_is_its_user_s_affair_alone() -> None:
    made = coordinator(tolerable_failures=0)
    made.request(101.0, savepoint=True)
    (abort,) = made.declined(1, "sink", 0, "why", 102.0)
    assert isinstance(abort, Abort)


def test_without_a_word_a_job_tolerates_three_failures_in_a_row() -> None:
    made = coordinator()
    for number in range(1, 4):
        made.tick(100.0 + 10 * number)
        assert len(made.declined(number, "sink", 0, "why", 100.0 + 10 * number)) == 1
    made.tick(140.0)
    assert isinstance(made.declined(4, "sink", 0, "why", 140.0)[1], FailJob)


def test_a_failed_task_aborts_everything_but_what_is_being_stored() -> None:
    made = coordinator(max_concurrent=2, tolerable_failures=0)
    made.tick(110.0)
    made.tick(120.0)
    acknowledge(made, 1, 121.0)
    (abort,) = made.pause("sink-0 failed: killed", 122.0)
    assert isinstance(abort, Abort)
    assert (abort.checkpoint_id, abort.cause, abort.reason) == (2, AbortCause.TASK_FAILED, "sink-0 failed: killed")
    assert made.pause("map-0 failed: killed", 122.0) == []
    assert made.completed(1, 123.0) == []
    assert made.next_deadline() is None


def test_checkpoints_go_on_when_the_job_runs_again() -> None:
    made = coordinator()
    made.tick(110.0)
    made.pause("sink-0 failed: killed", 111.0)
    assert made.tick(140.0) == []
    assert made.request(141.0, savepoint=True) == []  # served when it can be
    (acknowledged,) = (made.acknowledged(1, file("sink", 0), 141.0),)
    assert acknowledged == []
    (savepoint,) = made.resume((), 142.0)
    assert isinstance(savepoint, Trigger)
    assert (savepoint.barrier.checkpoint_id, savepoint.is_savepoint, savepoint.subtasks) == (2, True, SOURCES)
    assert len(acknowledge(made, 2, 143.0)) == 1


def test_a_subtask_that_had_ended_and_runs_again_is_asked_again() -> None:
    made = coordinator()
    made.task_ended("source", 1, 105.0)
    made.pause("its TaskManager is lost", 106.0)
    assert [*made.ended_subtasks] == [("source", 1)]
    assert made.resume([("source", 1)], 107.0) == []
    assert made.tick(110.0) == [trigger(1, 110.0, SOURCES)]
    assert made.task_ended("source", 1, 111.0) == [StoreFinal(1, (("source", 1),))]


def test_stop_aborts_and_triggers_no_more() -> None:
    made = coordinator()
    made.tick(110.0)
    made.request(111.0)
    (abort,) = made.stop(112.0)
    assert isinstance(abort, Abort)
    assert abort.cause is AbortCause.STOPPED
    assert made.stop(112.0) == []
    assert made.next_deadline() is None


def test_a_newer_one_that_is_complete_subsumes_older_ones() -> None:
    made = coordinator(max_concurrent=3)
    for now_s in (110.0, 120.0, 130.0):
        assert len(made.tick(now_s)) == 1
    assert made.tick(140.0) == []
    acknowledge(made, 1, 141.0)
    acknowledge(made, 3, 142.0)
    (abort,) = made.completed(3, 143.0)
    assert isinstance(abort, Abort)
    assert (abort.checkpoint_id, abort.cause) == (2, AbortCause.SUBSUMED)
    assert made.completed(1, 144.0) == []


@pytest.mark.parametrize("stops", [False, True])
def test_only_a_savepoint_that_stops_the_job_counts_as_a_checkpoint(stops: bool) -> None:
    made = coordinator(max_concurrent=2)
    assert len(made.tick(110.0)) == 1
    made.task_waits("sink", 0, 110.5)
    (savepoint,) = made.request(111.0, savepoint=True, stops=stops)
    assert isinstance(savepoint, Trigger)
    (complete,) = acknowledge(made, 2, 112.0)
    assert isinstance(complete, Complete)
    assert complete.manifest(datetime.now(UTC)).job_goes_on is not stops
    assert [type(each) for each in made.completed(2, 113.0)] == [Abort] * stops
    assert made.is_covered is stops
    assert [*made.waiting_subtasks] == [("sink", 0)] * (not stops)


def test_an_older_one_that_is_complete_subsumes_no_newer_one() -> None:
    made = coordinator(max_concurrent=2)
    made.tick(110.0)
    made.tick(120.0)
    acknowledge(made, 1, 121.0)
    assert made.completed(1, 122.0) == []
    assert len(acknowledge(made, 2, 123.0)) == 1


def test_requests_wait_for_their_turn() -> None:
    made = coordinator(interval_s=None, unaligned=True)
    assert made.next_deadline() is None
    (first,) = made.request(101.0, savepoint=True)
    assert isinstance(first, Trigger)
    assert (first.is_savepoint, first.barrier.alignment) == (True, Alignment.ALIGNED)
    assert made.request(102.0) == []
    (complete,) = acknowledge(made, 1, 103.0)
    assert isinstance(complete, Complete)
    assert complete.is_savepoint
    made.completed(1, 104.0)
    assert made.next_deadline() == 102.0
    (second,) = made.tick(104.0)
    assert isinstance(second, Trigger)
    assert (second.is_savepoint, second.barrier.alignment) == (False, Alignment.UNALIGNED)
    made.declined(2, "sink", 0, "", 105.0)
    assert made.next_deadline() is None


def test_an_ended_source_is_not_asked_again_and_its_state_counts() -> None:
    made = coordinator()
    assert made.task_ended("source", 1, 105.0) == []
    assert made.tick(110.0) == [trigger(1, 110.0, (("source", 0),)), StoreFinal(1, (("source", 1),))]
    assert len(acknowledge(made, 1, 111.0)) == 1
    with pytest.raises(LocalProtocolError, match="source-1 has already ended"):
        made.task_ended("source", 1, 112.0)


def test_a_checkpoint_that_waits_for_an_ended_task_gets_its_final_state() -> None:
    made = coordinator()
    made.tick(110.0)
    acknowledge(made, 1, 111.0, [("source", 0)])
    assert made.task_ended("source", 0, 112.0) == []  # it had acknowledged
    # Nobody in front of the map runs any more: if the trigger came too late for the sources, it never sees a barrier.
    again = Trigger(CheckpointBarrier(1, 110 * 10**9, elapsed_ns=3 * 10**9), (("map", 0),), is_savepoint=False)
    assert made.task_ended("source", 1, 113.0) == [again, StoreFinal(1, (("source", 1),))]
    assert len(acknowledge(made, 1, 114.0, [("source", 1), ("map", 0), ("sink", 0)])) == 1


def test_tasks_without_running_producers_are_triggered_until_all_have_ended() -> None:
    made = coordinator()
    finals = [("source", 0), ("source", 1), ("map", 0), ("sink", 0)]
    for final in finals[:2]:
        made.task_ended(*final, 105.0)
    assert made.tick(110.0) == [trigger(1, 110.0, (("map", 0),)), StoreFinal(1, tuple(finals[:2]))]
    (abort,) = made.declined(1, "map", 0, "", 111.0)
    assert isinstance(abort, Abort)
    assert abort.subtasks == (("map", 0), ("sink", 0))
    for final in finals[2:]:
        made.task_ended(*final, 112.0)
    assert made.next_deadline() is None
    assert made.request(113.0) == [trigger(2, 113.0, ()), StoreFinal(2, tuple(finals))]


@pytest.mark.parametrize(
    ("settings", "savepoint", "expected"),
    [
        ({}, False, (Alignment.ALIGNED, 0)),
        ({"aligned_timeout_s": 1.0}, False, (Alignment.ALIGNED, 0)),
        ({"unaligned": True}, False, (Alignment.UNALIGNED, 0)),
        ({"unaligned": True, "aligned_timeout_s": 0.25}, False, (Alignment.ALIGNED, 250_000_000)),
        ({"unaligned": True, "aligned_timeout_s": 0.25}, True, (Alignment.ALIGNED, 0)),
        ({"exactly_once": False}, True, (Alignment.AT_LEAST_ONCE, 0)),
    ],
)
def test_alignment(settings: dict[str, Any], savepoint: bool, expected: tuple[Alignment, int]) -> None:
    assert CheckpointSettings(**settings).alignment(savepoint=savepoint) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"interval_s": 0.0},
        {"timeout_s": 0.0},
        {"min_pause_s": -1.0},
        {"aligned_timeout_s": -1.0},
        {"tolerable_failures": -1},
        {"max_concurrent": 0},
        {"unaligned": True, "max_concurrent": 2},
        {"unaligned": True, "exactly_once": False},
        {"interval_s": float("nan")},
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(reversed(settings))):
        CheckpointSettings(**settings)


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        ([JobTask("a", 1), JobTask("a", 2)], "two tasks have the name 'a'"),
        ([JobTask("a", 0)], "'a' has parallelism 0"),
        ([JobTask("a", 1), JobTask("b", 1, ("c",))], "'b' reads 'c'"),
        ([JobTask("a", 1, ("a",))], "no source"),
        ([], "no source"),
    ],
)
def test_tasks_that_are_no_job(tasks: list[JobTask], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        CheckpointCoordinator(tasks, CheckpointSettings(), now_s=0.0)


def test_unknown_subtasks_are_a_mistake() -> None:
    made = coordinator()
    for task, subtask in (("sunk", 0), ("sink", 1)):
        with pytest.raises(LocalProtocolError, match=f"no subtask {task}-{subtask}"):
            made.acknowledged(1, file(task, subtask), 0.0)
        with pytest.raises(LocalProtocolError):
            made.declined(1, task, subtask, "", 0.0)
        with pytest.raises(LocalProtocolError):
            made.task_ended(task, subtask, 0.0)


def test_a_checkpoint_in_progress_names_the_tasks_in_front_of_the_barriers() -> None:
    made = coordinator(first_id=7)
    assert made.in_progress() == []
    made.tick(110.0)
    seen = [made.in_progress()[0]]
    for subtask in (*SOURCES, ("map", 0), ("sink", 0)):
        acknowledge(made, 7, 111.0, [subtask])
        seen += made.in_progress()
    assert [(each.acknowledged, each.waits_for) for each in seen] == [
        (0, SOURCES),
        (1, (("source", 1),)),
        (2, (("map", 0),)),
        (3, (("sink", 0),)),
        (4, ()),
    ]
    assert {(each.checkpoint_id, each.subtasks, each.triggered_s) for each in seen} == {(7, 4, 110.0)}
    made.completed(7, 112.0)
    assert made.in_progress() == []
