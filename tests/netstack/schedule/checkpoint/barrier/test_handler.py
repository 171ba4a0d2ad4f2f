"""Aligned checkpoints at the barrier handler, cancel markers, and its end."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.errors import LocalProtocolError
from netstack.schedule.checkpoint.barrier import AlignmentStatistics, BarrierHandler

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
    with pytest.raises(LocalProtocolError, match=r"checkpoint 1 in state [WC] .*unaligned barrier of channel 1"):
        handler.on_barrier(1, stage.unaligned(1))


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
    actual = handler.statistics()
    assert (actual.checkpoint_id, actual.pending) == (7, (7,))
    assert (actual.received_barriers, actual.expected_barriers, actual.alignment_started_s) == (0, 3, None)
    stage.wait_ms(5)
    handler.on_barrier(0, stage.aligned(7, timeout_ms=1000))
    handler.on_end_of_partition(2)
    actual = handler.statistics()
    assert (actual.received_barriers, actual.expected_barriers, actual.open_channels) == (2, 3, 2)
    assert actual.alignment_started_s == stage.now_s
    assert (actual.blocked_channels, actual.completed, actual.last) == (1, 0, None)
    stage.wait_ms(20)
    handler.on_barrier(1, stage.aligned(7, timeout_ms=1000))
    actual = handler.statistics()
    assert (actual.pending, actual.received_barriers, actual.expected_barriers) == ((), 0, 0)
    assert (actual.blocked_channels, actual.completed, actual.alignment_started_s) == (0, 1, None)
    assert actual.last == AlignmentStatistics(7, 3, start_delay_ns=8 * MS, duration_ns=20 * MS, timed_out=False)
    assert stage.triggered[0][0].elapsed_ns == 28 * MS


def test_the_alignment_of_an_unaligned_checkpoint_is_told_twice(stage: Any) -> None:
    handler = turning(stage, 2)
    handler.on_barrier(0, stage.unaligned(1))
    stage.wait_ms(30)
    handler.on_barrier(1, stage.unaligned(1))
    assert stage.triggered[0][1].duration_ns == 0
    assert stage.completed[0].duration_ns == 30 * MS
