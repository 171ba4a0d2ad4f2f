"""BarrierTracker: counting, skipping, late barriers, cancel markers and ends."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.errors import LocalProtocolError
from netstack.schedule.checkpoint.barrier import AlignmentStatistics, BarrierTracker
from netstack.schedule.checkpoint.barrier.tracker import MAX_PENDING

MS = 1_000_000


def tracking(stage: Any, channels: int) -> BarrierTracker:
    return BarrierTracker(channels, stage, stage, now=stage.now)


def began(checkpoint_id: int) -> list[str]:
    return [f"trigger {checkpoint_id} AT_LEAST_ONCE", f"complete {checkpoint_id}"]


def test_a_single_channel_triggers_at_once(stage: Any) -> None:
    tracker = tracking(stage, 1)
    for checkpoint_id in (1, 2, 7):
        tracker.on_barrier(0, stage.counted(checkpoint_id))
        assert stage.took() == began(checkpoint_id)


def test_every_channel_is_counted_and_none_blocked(stage: Any) -> None:
    tracker = tracking(stage, 3)
    for checkpoint_id in (1, 2):
        tracker.on_barrier(2, stage.counted(checkpoint_id))
        tracker.on_barrier(0, stage.counted(checkpoint_id))
        assert stage.took() == []
        tracker.on_barrier(1, stage.counted(checkpoint_id))
        assert stage.took() == began(checkpoint_id)
    assert tracker.statistics().blocked_channels == 0


def test_checkpoints_may_overlap(stage: Any) -> None:
    tracker = tracking(stage, 2)
    tracker.on_barrier(0, stage.counted(1))
    tracker.on_barrier(0, stage.counted(2))
    assert tracker.statistics().pending == (1, 2)
    tracker.on_barrier(1, stage.counted(1))
    tracker.on_barrier(1, stage.counted(2))
    assert stage.took() == began(1) + began(2)


def test_completing_one_drops_all_older_ones(stage: Any) -> None:
    tracker = tracking(stage, 2)
    for checkpoint_id in (1, 2, 3):
        tracker.on_barrier(0, stage.counted(checkpoint_id))
    tracker.on_barrier(1, stage.counted(3))  # 1 and 2 were lost on this channel
    assert stage.took() == ["abort 1 SUBSUMED", "abort 2 SUBSUMED", *began(3)]


def test_late_barriers_of_a_dropped_checkpoint_count_for_nothing(stage: Any) -> None:
    tracker = tracking(stage, 3)
    tracker.on_barrier(0, stage.counted(1))
    for channel in range(3):
        tracker.on_barrier(channel, stage.counted(2))
    stage.took()
    tracker.on_barrier(1, stage.counted(1))
    tracker.on_barrier(2, stage.counted(1))
    tracker.on_barrier(2, stage.counted(2))
    assert stage.took() == []
    assert tracker.statistics().pending == ()


def test_only_so_many_are_pending(stage: Any) -> None:
    tracker = tracking(stage, 2)
    for checkpoint_id in range(MAX_PENDING + 1):
        tracker.on_barrier(0, stage.counted(checkpoint_id))
    assert stage.took() == ["abort 0 SUBSUMED"]
    assert len(tracker.statistics().pending) == MAX_PENDING
    tracker.on_barrier(1, stage.counted(0))
    assert stage.took() == []
    tracker.on_barrier(1, stage.counted(1))
    assert stage.took() == began(1)


def test_an_aligned_barrier_is_resumed_at_once(stage: Any) -> None:
    tracker = tracking(stage, 2)
    tracker.on_barrier(0, stage.aligned(1))
    assert stage.took() == ["resume 0"]
    tracker.on_barrier(1, stage.forced(1))
    assert stage.took() == ["resume 1", "trigger 1 ALIGNED", "complete 1"]
    tracker.on_barrier(1, stage.aligned(1))  # late
    assert stage.took() == ["resume 1"]


def test_an_unaligned_barrier_is_refused(stage: Any) -> None:
    with pytest.raises(LocalProtocolError, match="UNALIGNED"):
        tracking(stage, 2).on_barrier(0, stage.unaligned(1))


def test_announcements_are_ignored(stage: Any) -> None:
    tracker = tracking(stage, 2)
    tracker.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    assert stage.took() == []
    assert tracker.statistics().checkpoint_id == -1


# Cancel markers.


def test_a_cancel_marker_aborts_once_and_later_barriers_are_swallowed(stage: Any) -> None:
    tracker = tracking(stage, 3)
    tracker.on_barrier(0, stage.counted(1))
    tracker.on_cancel(1, 1)
    tracker.on_cancel(2, 1)
    tracker.on_barrier(1, stage.counted(1))
    assert stage.took() == ["abort 1 DECLINED"]
    assert tracker.statistics().pending == ()
    for channel in range(3):
        tracker.on_barrier(channel, stage.counted(2))
    assert stage.took() == began(2)


def test_a_cancel_marker_may_be_the_first_word(stage: Any) -> None:
    tracker = tracking(stage, 3)
    tracker.on_cancel(0, 4)
    tracker.on_barrier(1, stage.counted(4))
    tracker.on_barrier(2, stage.counted(4))
    tracker.on_barrier(2, stage.counted(4))
    tracker.on_cancel(2, 3)
    assert stage.took() == ["abort 4 DECLINED"]


def test_the_cancel_marker_of_a_single_channel(stage: Any) -> None:
    tracker = tracking(stage, 1)
    tracker.on_cancel(0, 1)
    tracker.on_barrier(0, stage.counted(1))
    tracker.on_cancel(0, 1)
    assert stage.took() == ["abort 1 DECLINED"]
    tracker.on_barrier(0, stage.counted(2))
    assert stage.took() == began(2)


def test_a_cancel_marker_ends_all_older_ones_and_no_newer_one(stage: Any) -> None:
    tracker = tracking(stage, 2)
    for checkpoint_id in (1, 2, 3, 4):
        tracker.on_barrier(0, stage.counted(checkpoint_id))
    tracker.on_cancel(1, 1)
    tracker.on_cancel(1, 3)
    assert stage.took() == ["abort 1 DECLINED", "abort 2 SUBSUMED", "abort 3 DECLINED"]
    assert tracker.statistics().pending == (4,)
    tracker.on_barrier(1, stage.counted(4))
    assert stage.took() == began(4)


def test_interleaved_cancels_leave_nothing_behind(stage: Any) -> None:
    tracker = tracking(stage, 3)
    tracker.on_barrier(0, stage.counted(1))
    tracker.on_cancel(0, 2)
    tracker.on_cancel(1, 1)
    tracker.on_cancel(1, 2)
    tracker.on_barrier(2, stage.counted(1))
    tracker.on_barrier(2, stage.counted(2))
    assert stage.took() == ["abort 1 SUBSUMED", "abort 2 DECLINED"]
    assert tracker.statistics().aborted == 2


# Ends.


def test_an_end_counts_as_a_barrier(stage: Any) -> None:
    tracker = tracking(stage, 2)
    tracker.on_barrier(0, stage.counted(1))
    tracker.on_end_of_partition(1)
    assert stage.took() == began(1)
    tracker.on_barrier(0, stage.counted(2))
    assert stage.took() == began(2)


def test_an_end_completes_the_newest_that_waited_for_it_alone(stage: Any) -> None:
    tracker = tracking(stage, 3)
    for checkpoint_id in (1, 2):
        tracker.on_barrier(0, stage.counted(checkpoint_id))
        tracker.on_barrier(1, stage.counted(checkpoint_id))
    tracker.on_barrier(0, stage.counted(3))
    tracker.on_end_of_partition(2)
    assert stage.took() == ["abort 1 SUBSUMED", *began(2)]
    tracker.on_barrier(1, stage.counted(3))
    assert stage.took() == began(3)


def test_a_pending_one_is_completed_when_a_single_channel_is_left(stage: Any) -> None:
    tracker = tracking(stage, 2)
    tracker.on_barrier(0, stage.counted(1))
    tracker.on_end_of_partition(0)  # counted once: its barrier was there
    assert stage.took() == []
    tracker.on_barrier(1, stage.counted(1))
    assert stage.took() == began(1)


def test_an_end_completes_a_cancelled_one_in_silence(stage: Any) -> None:
    tracker = tracking(stage, 2)
    tracker.on_cancel(0, 1)
    tracker.on_end_of_partition(1)
    assert stage.took() == ["abort 1 DECLINED"]
    tracker.on_end_of_partition(0)
    with pytest.raises(LocalProtocolError, match="has ended"):
        tracker.on_barrier(0, stage.counted(2))


# Refusal, closing, and what can be read.


def test_a_task_may_refuse(stage: Any) -> None:
    tracker = tracking(stage, 1)
    stage.refuses_to.add("trigger")
    tracker.on_barrier(0, stage.counted(1))
    assert stage.took() == ["trigger 1 AT_LEAST_ONCE", "abort 1 DECLINED"]
    assert (tracker.statistics().completed, tracker.statistics().aborted) == (0, 1)


def test_closing_aborts_what_is_pending(stage: Any) -> None:
    tracker = tracking(stage, 2)
    tracker.on_barrier(0, stage.counted(1))
    tracker.on_cancel(0, 2)
    tracker.on_barrier(0, stage.counted(3))
    stage.took()
    tracker.close()
    tracker.close()
    assert stage.took() == ["abort 3 CLOSED"]
    with pytest.raises(LocalProtocolError, match="closed"):
        tracker.on_end_of_partition(0)


def test_statistics_follow_a_checkpoint(stage: Any) -> None:
    tracker = tracking(stage, 2)
    tracker.on_barrier(0, stage.counted(3, age_ms=7))
    actual = tracker.statistics()
    assert (actual.checkpoint_id, actual.pending, actual.alignment_started_s) == (3, (3,), stage.now_s)
    assert (actual.received_barriers, actual.expected_barriers, actual.open_channels) == (1, 2, 2)
    stage.wait_ms(5)
    tracker.on_barrier(1, stage.counted(3))
    actual = tracker.statistics()
    assert (actual.pending, actual.completed, actual.alignment_started_s) == ((), 1, None)
    assert actual.last == AlignmentStatistics(3, 2, start_delay_ns=7 * MS, duration_ns=5 * MS, timed_out=False)
    assert stage.triggered[0][0].elapsed_ns == 12 * MS
