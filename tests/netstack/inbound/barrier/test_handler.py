"""BarrierHandler: aligned, unaligned, and the way from one to the other, one scenario at a time."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.errors import LocalProtocolError
from netstack.events import Alignment
from netstack.inbound.barrier import AlignmentStatistics, BarrierHandler

MS = 1_000_000


def aligning(stage: Any, channels: int) -> BarrierHandler:
    return BarrierHandler(channels, stage, stage, unaligned=False, now=stage.now, call_at=stage.call_at)


def turning(stage: Any, channels: int) -> BarrierHandler:
    return BarrierHandler(channels, stage, stage, unaligned=True, now=stage.now, call_at=stage.call_at)


@pytest.fixture(params=[aligning, turning])
def any_handler(request: pytest.FixtureRequest) -> Any:
    return request.param


# Aligned; the same whether or not a handler could do otherwise.


def test_without_barriers_nothing_happens(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 2)
    handler.on_end_of_partition(0)
    handler.on_end_of_partition(1)
    handler.close()
    assert stage.took() == []
    assert handler.statistics().checkpoint_id == -1


def test_a_single_channel_triggers_at_once(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 1)
    for checkpoint_id in (1, 2, 7):  # numbers may be missing
        handler.on_barrier(0, stage.aligned(checkpoint_id))
        assert stage.took() == [f"trigger {checkpoint_id} ALIGNED", "resume 0", f"complete {checkpoint_id}"]


def test_the_last_barrier_triggers_and_everybody_is_resumed_once(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 3)
    for first, second, third, checkpoint_id in [(0, 1, 2, 1), (2, 0, 1, 2), (1, 2, 0, 3)]:
        handler.on_barrier(first, stage.aligned(checkpoint_id))
        handler.on_barrier(second, stage.aligned(checkpoint_id))
        assert stage.took() == []
        assert handler.statistics().blocked_channels == 2
        handler.on_barrier(third, stage.aligned(checkpoint_id))
        assert stage.took() == [
            f"trigger {checkpoint_id} ALIGNED",
            "resume 0",
            "resume 1",
            "resume 2",
            f"complete {checkpoint_id}",
        ]
    assert handler.statistics().completed == 3


def test_a_newer_barrier_takes_the_place_of_a_pending_checkpoint(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 3)
    handler.on_barrier(1, stage.aligned(3))
    handler.on_barrier(2, stage.aligned(3))
    handler.on_barrier(0, stage.aligned(5))
    assert stage.took() == ["resume 1", "resume 2", "abort 3 SUBSUMED"]
    handler.on_barrier(1, stage.aligned(5))
    handler.on_barrier(2, stage.aligned(5))
    assert stage.took() == ["trigger 5 ALIGNED", "resume 0", "resume 1", "resume 2", "complete 5"]


def test_an_obsolete_barrier_resumes_its_channel(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 2)
    handler.on_barrier(0, stage.aligned(4))
    handler.on_barrier(1, stage.aligned(3))
    assert stage.took() == ["resume 1"]
    handler.on_barrier(1, stage.aligned(4))
    stage.took()
    handler.on_barrier(1, stage.aligned(4))  # complete
    handler.on_barrier(0, stage.unaligned(2))  # nobody waits behind it
    assert stage.took() == ["resume 1"]


def test_channels_that_ended_before_are_not_waited_for(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 3)
    handler.on_end_of_partition(1)
    handler.on_barrier(0, stage.aligned(1))
    handler.on_barrier(2, stage.aligned(1))
    assert stage.took() == ["trigger 1 ALIGNED", "resume 0", "resume 2", "complete 1"]
    assert stage.completed[0].channels == 2


def test_an_end_counts_as_a_barrier(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 3)
    handler.on_barrier(0, stage.aligned(1))
    handler.on_end_of_partition(1)
    assert stage.took() == []
    handler.on_end_of_partition(2)
    assert stage.took() == ["trigger 1 ALIGNED", "resume 0", "complete 1"]
    handler.on_barrier(0, stage.aligned(2))
    assert stage.took() == ["trigger 2 ALIGNED", "resume 0", "complete 2"]


def test_a_barrier_and_an_end_of_the_same_channel_count_once(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 3)
    handler.on_barrier(0, stage.aligned(1))
    handler.on_end_of_partition(0)
    handler.on_barrier(1, stage.aligned(1))
    assert stage.took() == []
    handler.on_barrier(2, stage.aligned(1))
    assert stage.took() == ["trigger 1 ALIGNED", "resume 1", "resume 2", "complete 1"]  # 0 has nothing to resume


def test_the_target_is_that_of_the_beginning(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 2)
    handler.on_barrier(0, stage.aligned(1))
    assert handler.statistics().expected_barriers == 2
    handler.on_end_of_partition(1)
    assert stage.completed[0].channels == 2
    handler.on_barrier(0, stage.aligned(2))
    assert stage.completed[1].channels == 1


# Cancel markers.


def test_a_cancel_marker_aborts_once(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 3)
    handler.on_barrier(0, stage.aligned(1))
    handler.on_cancel(1, 1)
    assert stage.took() == ["resume 0", "abort 1 DECLINED"]
    handler.on_barrier(2, stage.aligned(1))
    handler.on_cancel(0, 1)
    assert stage.took() == ["resume 2"]
    for channel in range(3):
        handler.on_barrier(channel, stage.aligned(2))
    assert "trigger 2 ALIGNED" in stage.took()


def test_a_cancel_marker_may_be_the_first_word_of_a_checkpoint(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 2)
    handler.on_cancel(0, 5)
    assert stage.took() == ["abort 5 DECLINED"]
    handler.on_barrier(1, stage.aligned(5))
    handler.on_cancel(1, 4)
    assert stage.took() == ["resume 1"]
    assert handler.statistics().pending == ()


def test_a_newer_cancel_marker_ends_a_pending_checkpoint(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 2)
    handler.on_barrier(0, stage.aligned(1))
    handler.on_cancel(1, 2)
    assert stage.took() == ["resume 0", "abort 1 SUBSUMED", "abort 2 DECLINED"]
    handler.on_barrier(1, stage.aligned(1))
    handler.on_barrier(0, stage.aligned(2))
    assert stage.took() == ["resume 1", "resume 0"]
    assert handler.statistics().aborted == 2


def test_the_cancel_marker_of_a_subsumed_checkpoint_is_ignored(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 3)
    handler.on_barrier(0, stage.aligned(1))
    handler.on_barrier(1, stage.aligned(2))
    stage.took()
    handler.on_cancel(2, 1)
    assert stage.took() == []
    handler.on_barrier(0, stage.aligned(2))
    handler.on_barrier(2, stage.aligned(2))
    assert "complete 2" in stage.took()


def test_the_cancel_marker_of_a_completed_checkpoint_is_ignored(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 1)
    handler.on_barrier(0, stage.aligned(1))
    stage.took()
    handler.on_cancel(0, 1)
    assert stage.took() == []


def test_missing_cancel_markers_are_made_up_for_by_the_next_checkpoint(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 2)
    handler.on_cancel(0, 1)  # the other channel says nothing of 1
    handler.on_barrier(0, stage.aligned(2))
    handler.on_barrier(1, stage.aligned(3))
    handler.on_barrier(0, stage.aligned(3))
    assert stage.took() == [
        "abort 1 DECLINED",
        "resume 0",
        "abort 2 SUBSUMED",
        "trigger 3 ALIGNED",
        "resume 0",
        "resume 1",
        "complete 3",
    ]


# Only aligned.


def test_an_aligned_handler_knows_no_timeout(stage: Any) -> None:
    handler = aligning(stage, 2)
    handler.on_announcement(1, stage.aligned(1, timeout_ms=10), 7)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10, age_ms=11))
    stage.wait_ms(20)
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["trigger 1 ALIGNED", "resume 0", "resume 1", "complete 1"]
    assert stage.timers == []


def test_an_announcement_tells_an_aligned_handler_of_a_newer_checkpoint(stage: Any) -> None:
    handler = aligning(stage, 3)
    handler.on_barrier(0, stage.aligned(1))
    handler.on_announcement(1, stage.aligned(2, timeout_ms=10), 7)
    assert stage.took() == ["resume 0", "abort 1 SUBSUMED"]
    handler.on_end_of_partition(2)
    handler.on_barrier(1, stage.aligned(2, timeout_ms=10))
    handler.on_announcement(0, stage.aligned(2, timeout_ms=10), 4)
    handler.on_barrier(0, stage.aligned(2, timeout_ms=10))
    assert stage.took() == ["trigger 2 ALIGNED", "resume 0", "resume 1", "complete 2"]


@pytest.mark.parametrize("others", [0, 1])
def test_an_aligned_handler_refuses_unaligned_barriers(stage: Any, others: int) -> None:
    handler = aligning(stage, 3)
    if others:
        handler.on_barrier(0, stage.aligned(1))
    with pytest.raises(LocalProtocolError, match=r"checkpoint 1, state [WC] .*unaligned barrier, channel 1"):
        handler.on_barrier(1, stage.unaligned(1))


# Unaligned.


def test_the_first_unaligned_barrier_triggers(stage: Any) -> None:
    handler = turning(stage, 3)
    handler.on_barrier(1, stage.unaligned(1))
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED"]
    handler.on_barrier(0, stage.unaligned(1))
    assert stage.took() == []
    handler.on_barrier(2, stage.unaligned(1))
    assert stage.took() == ["stop 1", "complete 1"]


def test_an_unaligned_barrier_of_a_single_channel(stage: Any) -> None:
    handler = turning(stage, 1)
    handler.on_barrier(0, stage.unaligned(1))
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED", "stop 1", "complete 1"]


def test_an_end_while_capturing_counts_as_a_barrier(stage: Any) -> None:
    handler = turning(stage, 3)
    handler.on_barrier(0, stage.unaligned(1))
    stage.took()
    handler.on_end_of_partition(0)  # it has brought its barrier
    handler.on_end_of_partition(1)
    assert stage.took() == []
    handler.on_end_of_partition(2)
    assert stage.took() == ["stop 1", "complete 1"]


def test_an_unaligned_barrier_of_somebody_else_turns_an_alignment(stage: Any) -> None:
    handler = turning(stage, 3)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    handler.on_announcement(1, stage.aligned(1, timeout_ms=10), 12)
    handler.on_barrier(2, stage.unaligned(1))  # its producer's timeout came first
    assert stage.took() == ["prioritize 1 @12", "capture 1", "trigger 1 UNALIGNED"]
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["stop 1", "resume 0", "resume 1", "complete 1"]
    assert not stage.completed[0].timed_out


def test_the_last_barrier_may_be_the_unaligned_one(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    handler.on_barrier(1, stage.unaligned(1))
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED", "stop 1", "resume 0", "complete 1"]


def test_an_announced_barrier_may_come_unaligned(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 3)
    handler.on_announcement(1, stage.aligned(1, timeout_ms=10), 4)
    handler.on_barrier(0, stage.unaligned(1))
    assert stage.took() == ["prioritize 1 @4", "capture 1", "trigger 1 UNALIGNED"]


def test_an_aligned_barrier_out_of_order_blocks_while_capturing(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.unaligned(1))
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED", "stop 1", "resume 1", "complete 1"]


def test_kinds_may_alternate(stage: Any) -> None:
    handler = turning(stage, 2)
    for checkpoint_id in (1, 3):
        handler.on_barrier(0, stage.aligned(checkpoint_id))
        handler.on_barrier(1, stage.aligned(checkpoint_id))
        assert stage.took() == [
            f"trigger {checkpoint_id} ALIGNED",
            "resume 0",
            "resume 1",
            f"complete {checkpoint_id}",
        ]
        unaligned = checkpoint_id + 1
        handler.on_barrier(0, stage.unaligned(unaligned))
        handler.on_barrier(1, stage.unaligned(unaligned))
        assert stage.took() == [
            f"capture {unaligned}",
            f"trigger {unaligned} UNALIGNED",
            f"stop {unaligned}",
            f"complete {unaligned}",
        ]


def test_a_savepoint_stays_aligned(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, age_ms=10_000))
    stage.wait_ms(60_000)
    handler.on_barrier(1, stage.aligned(1))
    assert stage.took() == ["trigger 1 ALIGNED", "resume 0", "resume 1", "complete 1"]
    assert stage.timers == []


def test_a_newer_checkpoint_ends_a_capture(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.unaligned(1))
    stage.took()
    handler.on_barrier(0, stage.unaligned(2))
    assert stage.took() == ["stop 1", "abort 1 SUBSUMED", "capture 2", "trigger 2 UNALIGNED"]
    handler.on_barrier(1, stage.unaligned(1))
    assert stage.took() == []
    handler.on_cancel(1, 2)
    assert stage.took() == ["stop 2", "abort 2 DECLINED"]


def test_an_aligned_savepoint_after_an_unaligned_checkpoint_that_was_cancelled(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.unaligned(1))
    handler.on_cancel(1, 1)
    stage.took()
    handler.on_barrier(1, stage.aligned(2))
    handler.on_barrier(0, stage.aligned(2))
    assert stage.took() == ["trigger 2 ALIGNED", "resume 0", "resume 1", "complete 2"]


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


# Barriers that an edge forced to align.


@pytest.mark.parametrize(("timeout_ms", "alignment"), [(0, Alignment.UNALIGNED), (10, Alignment.ALIGNED)])
def test_a_forced_barrier_is_aligned_here_and_restored_for_the_next(
    stage: Any, timeout_ms: int, alignment: Alignment
) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.forced(1, timeout_ms=timeout_ms))
    stage.wait_ms(20)  # it does not time out itself
    handler.on_barrier(1, stage.forced(1, timeout_ms=timeout_ms))
    assert stage.took() == [f"trigger 1 {alignment.name}", "resume 0", "resume 1", "complete 1"]
    assert stage.triggered[0][0].aligned_timeout_ns == timeout_ms * MS


def test_a_forced_barrier_meets_unaligned_ones(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.forced(1))
    handler.on_barrier(1, stage.unaligned(1))
    assert stage.took() == ["capture 1", "trigger 1 UNALIGNED", "stop 1", "resume 0", "complete 1"]


def test_a_checkpoint_that_began_with_a_forced_barrier_still_times_out(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.forced(1, timeout_ms=10))
    stage.wait_ms(4)
    handler.on_announcement(1, stage.aligned(1, timeout_ms=10), 5)
    stage.wait_ms(5)
    assert stage.took() == []
    stage.wait_ms(1)
    assert stage.took() == ["prioritize 1 @5", "capture 1", "trigger 1 UNALIGNED"]
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["stop 1", "resume 0", "resume 1", "complete 1"]


# Refusals.


def test_inputs_may_refuse_to_capture(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.aligned(1, timeout_ms=10))
    stage.refuses_to.add("capture")
    stage.wait_ms(10)
    assert stage.took() == ["capture 1", "stop 1", "resume 0", "abort 1 SUBSUMED"]
    handler.on_barrier(1, stage.aligned(1, timeout_ms=10))
    assert stage.took() == ["resume 1"]


@pytest.mark.parametrize("what", ["capture", "trigger"])
def test_a_refusal_at_the_last_barrier(stage: Any, what: str) -> None:
    handler = turning(stage, 1)
    stage.refuses_to.add(what)
    handler.on_barrier(0, stage.unaligned(1))
    assert stage.took()[-2:] == ["stop 1", f"abort 1 {'SUBSUMED' if what == 'capture' else 'DECLINED'}"]
    assert stage.completed == []
    handler.on_barrier(0, stage.aligned(2))
    assert stage.took() == ["trigger 2 ALIGNED", "resume 0", "complete 2"]


def test_a_task_may_refuse_an_aligned_checkpoint(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 2)
    stage.refuses_to.add("trigger")
    handler.on_barrier(0, stage.aligned(1))
    handler.on_barrier(1, stage.aligned(1))
    assert stage.took() == ["trigger 1 ALIGNED", "resume 0", "resume 1", "abort 1 DECLINED"]
    assert (handler.statistics().completed, handler.statistics().aborted) == (0, 1)


def test_what_cannot_come_is_refused(stage: Any) -> None:
    handler = turning(stage, 2)
    with pytest.raises(LocalProtocolError, match="AT_LEAST_ONCE"):
        handler.on_barrier(0, stage.counted(1))
    handler.on_barrier(0, stage.unaligned(1))
    with pytest.raises(LocalProtocolError, match="twice"):
        handler.on_barrier(0, stage.unaligned(1))
    handler.on_end_of_partition(0)
    for call in (
        lambda: handler.on_barrier(0, stage.aligned(2)),
        lambda: handler.on_announcement(0, stage.aligned(2), 1),
        lambda: handler.on_cancel(0, 2),
        lambda: handler.on_end_of_partition(0),
        lambda: handler.on_end_of_partition(2),
    ):
        with pytest.raises(LocalProtocolError, match="has ended, or never was"):
            call()


def test_the_end_of_an_announced_channel_without_its_barrier_is_refused(stage: Any) -> None:
    handler = turning(stage, 1)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    with pytest.raises(LocalProtocolError, match=r"state AW .*end of the last channel"):
        handler.on_end_of_partition(0)


# Closing, and what can be read.


def test_closing_aborts_and_resumes(stage: Any, any_handler: Any) -> None:
    handler = any_handler(stage, 2)
    handler.on_barrier(0, stage.aligned(1))
    handler.close()
    handler.close()
    assert stage.took() == ["resume 0", "abort 1 CLOSED"]
    with pytest.raises(LocalProtocolError, match="closed"):
        handler.on_barrier(1, stage.aligned(1))


def test_closing_ends_a_capture(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.unaligned(1))
    stage.took()
    handler.close()
    assert stage.took() == ["stop 1", "abort 1 CLOSED"]


def test_statistics_follow_a_checkpoint(stage: Any) -> None:
    handler = turning(stage, 3)
    stage.wait_ms(500)
    handler.on_announcement(1, stage.aligned(7, timeout_ms=1000, age_ms=3), 1)
    found = handler.statistics()
    assert (found.checkpoint_id, found.pending) == (7, (7,))
    assert (found.received_barriers, found.expected_barriers, found.alignment_started_s) == (0, 3, None)
    stage.wait_ms(5)
    handler.on_barrier(0, stage.aligned(7, timeout_ms=1000))
    handler.on_end_of_partition(2)
    found = handler.statistics()
    assert (found.received_barriers, found.expected_barriers, found.open_channels) == (2, 3, 2)
    assert found.alignment_started_s == stage.now_s
    assert (found.blocked_channels, found.completed, found.last) == (1, 0, None)
    stage.wait_ms(20)
    handler.on_barrier(1, stage.aligned(7, timeout_ms=1000))
    found = handler.statistics()
    assert (found.pending, found.received_barriers, found.expected_barriers) == ((), 0, 0)
    assert (found.blocked_channels, found.completed, found.alignment_started_s) == (0, 1, None)
    assert found.last == AlignmentStatistics(7, 3, start_delay_ns=8 * MS, duration_ns=20 * MS, timed_out=False)
    assert stage.triggered[0][0].elapsed_ns == 28 * MS


def test_the_alignment_of_an_unaligned_checkpoint_is_told_twice(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.unaligned(1))
    stage.wait_ms(30)
    handler.on_barrier(1, stage.unaligned(1))
    assert stage.triggered[0][1].duration_ns == 0
    assert stage.completed[0].duration_ns == 30 * MS
