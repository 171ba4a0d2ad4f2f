"""Alignments whose time is up, announced barriers, and timers."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.events import Alignment
from netstack.schedule.checkpoint.barrier import AlignmentStatistics, BarrierHandler

MS = 1_000_000


def turning(stage: Any, channels: int) -> BarrierHandler:
    return BarrierHandler(channels, stage, stage, unaligned=True, now=stage.now, call_at=stage.call_at)


# Timeouts.


def test_the_timer_turns_an_alignment(stage: Any) -> None:
    handler = turning(stage, 3)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    handler.on_announcement(1, stage.aligned(1, timeout_ms=10), 12)
    stage.wait_ms(9)
    assert stage.took() == []
    stage.wait_ms(1)
    assert stage.took() == ["prioritize 1 @12", "capture 1", "trigger 1 UNALIGNED"]
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    handler.on_barrier(2, stage.unaligned(1))
    assert stage.took() == ["stop 1", "resume 0", "resume 1", "complete 1"]  # also who was blocked before
    assert stage.completed[0].timed_out
    assert handler.statistics().timed_out == 1


def test_the_age_that_a_barrier_brings_counts(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10, age_ms=7))
    stage.wait_ms(2)
    assert stage.took() == []
    stage.wait_ms(1)
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED"]
    (barrier, alignment) = stage.triggered[0]
    assert (barrier.checkpoint_id, barrier.timestamp_ns) == (1, 17)
    assert (barrier.alignment, barrier.aligned_timeout_ns, barrier.elapsed_ns) == (Alignment.UNALIGNED, 0, 10 * MS)
    assert alignment == AlignmentStatistics(1, 2, start_delay_ns=7 * MS, duration_ns=3 * MS, timed_out=True)
    assert stage.captured == [barrier]


def test_a_first_barrier_that_is_too_old_triggers_at_once(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10, age_ms=11))
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED"]
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10, age_ms=11))
    assert stage.took() == ["stop 1", "resume 0", "resume 1", "complete 1"]


def test_a_later_barrier_finds_the_timeout_before_the_timer_does(stage: Any) -> None:
    handler = turning(stage, 3)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    stage.sleep_ms(11)
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED"]
    stage.wait_ms(0)  # the timer comes too late
    assert stage.took() == []


def test_an_end_finds_the_timeout_too(stage: Any) -> None:
    handler = turning(stage, 3)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    stage.sleep_ms(11)
    handler.on_end_of_partition(1)
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED"]


def test_the_last_barrier_is_never_too_late(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    stage.sleep_ms(11)
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["trigger 1 ALIGNED", "resume 0", "resume 1", "complete 1"]
    assert stage.triggered[0][0].aligned_timeout_ns == 10 * MS
    stage.wait_ms(0)
    assert stage.took() == []


def test_announced_barriers_go_first_after_a_timeout_without_any_barrier(stage: Any) -> None:
    handler = turning(stage, 3)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10, age_ms=4), 5)
    stage.wait_ms(6)
    assert stage.took() == ["prioritize 0 @5"]
    handler.on_announcement(1, stage.aligned(1, timeout_ms=10), 6)
    assert stage.took() == ["prioritize 1 @6"]  # at once
    handler.on_end_of_partition(2)
    assert stage.took() == []
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED"]
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["stop 1", "resume 0", "resume 1", "complete 1"]


def test_a_single_channel_is_prioritized_and_complete(stage: Any) -> None:
    handler = turning(stage, 1)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    stage.wait_ms(10)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["prioritize 0 @5", "capture 1", "trigger 1 UNALIGNED", "stop 1", "resume 0", "complete 1"]


@pytest.mark.parametrize("last", [False, True])
def test_an_unaligned_barrier_after_a_timeout_without_any_barrier(stage: Any, last: bool) -> None:
    handler = turning(stage, 2)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    if last:
        handler.on_end_of_partition(1)
    stage.wait_ms(10)
    stage.took()
    handler.on_barrier(0, stage.unaligned(1))
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED", *(["stop 1", "complete 1"] if last else [])]


def test_a_late_end_before_any_barrier_leaves_it_to_the_timer(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    stage.sleep_ms(11)
    handler.on_end_of_partition(1)
    assert stage.took() == []
    stage.wait_ms(0)
    assert stage.took() == ["prioritize 0 @5"]


def test_an_announcement_while_capturing_is_obeyed_at_once(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.unaligned(1))
    stage.took()
    handler.on_announcement(1, stage.aligned(1, timeout_ms=10), 9)
    assert stage.took() == ["prioritize 1 @9"]


def test_a_barrier_at_its_place_makes_its_announcement_forgotten(stage: Any) -> None:
    handler = turning(stage, 3)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    handler.on_announcement(1, stage.aligned(1, timeout_ms=10), 6)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)  # it cannot be moved any more
    stage.wait_ms(10)
    assert stage.took() == ["prioritize 1 @6", "capture 1", "trigger 1 UNALIGNED"]


def test_an_announcement_begins_a_newer_checkpoint(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    handler.on_announcement(1, stage.aligned(2, timeout_ms=10), 5)
    assert stage.took() == ["resume 0", "abort 1 SUBSUMED"]
    handler.on_announcement(1, stage.aligned(1, timeout_ms=10), 4)  # obsolete
    stage.wait_ms(10)
    assert stage.took() == ["prioritize 1 @5"]


def test_a_prioritized_barrier_whose_checkpoint_is_over_resumes_its_channel(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    stage.wait_ms(10)
    handler.on_cancel(1, 1)
    assert stage.took() == ["prioritize 0 @5", "abort 1 DECLINED"]
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["resume 0"]


def test_a_cancel_marker_aborts_what_was_only_announced(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    handler.on_cancel(1, 1)
    assert stage.took() == ["abort 1 DECLINED"]
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))  # nobody else would resume it
    assert stage.took() == ["resume 0"]


def test_announcements_of_an_older_checkpoint_are_forgotten(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    handler.on_cancel(1, 1)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    handler.on_barrier(1, stage.aligned(2, timeout_ms=10))
    stage.took()
    stage.wait_ms(10)
    assert stage.took() == ["capture 2", "trigger 2 UNALIGNED"]


@pytest.mark.parametrize("how", ["last barrier", "cancel", "newer", "close"])
def test_no_timeout_after_the_end(stage: Any, how: str) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    if how == "last barrier":
        handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    elif how == "cancel":
        handler.on_cancel(1, 1)
    elif how == "newer":
        handler.on_barrier(0, stage.aligned(2))
    else:
        handler.close()
    stage.took()
    stage.wait_ms(10)
    assert stage.took() == []


def test_the_timer_of_an_older_checkpoint_does_not_turn_a_newer_one(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    stage.wait_ms(4)
    handler.on_barrier(0, stage.aligned(2, timeout_ms=10))
    stage.took()
    stage.wait_ms(6)
    assert stage.took() == []
    stage.wait_ms(4)
    assert stage.took() == ["capture 2", "trigger 2 UNALIGNED"]


def test_a_shorter_timeout_does_not_wait_for_the_timer_of_a_longer_one(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=1000))
    handler.on_barrier(0, stage.aligned(2, timeout_ms=10))
    stage.took()
    stage.wait_ms(10)
    assert stage.took() == ["capture 2", "trigger 2 UNALIGNED"]
    stage.wait_ms(1000)
    assert stage.took() == []


def test_timers_do_not_pile_up(stage: Any) -> None:
    handler = turning(stage, 1)
    for checkpoint_id in range(1000):
        handler.on_barrier(0, stage.aligned(checkpoint_id, timeout_ms=10_000))
        stage.wait_ms(1)
    assert len(stage.timers) == 1
    stage.wait_ms(20_000)
    assert stage.timers == []
