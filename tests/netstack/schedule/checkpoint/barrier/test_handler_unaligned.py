"""Unaligned checkpoints, forced alignments and refusals at the barrier handler."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.errors import LocalProtocolError
from netstack.base.events import Alignment
from netstack.schedule.checkpoint.barrier import BarrierHandler

MS = 1_000_000


def aligning(stage: Any, channels: int) -> BarrierHandler:
    return BarrierHandler(channels, stage, stage, unaligned=False, now=stage.now, call_at=stage.call_at)


def turning(stage: Any, channels: int) -> BarrierHandler:
    return BarrierHandler(channels, stage, stage, unaligned=True, now=stage.now, call_at=stage.call_at)


@pytest.fixture(params=[aligning, turning])
def any_handler(request: pytest.FixtureRequest) -> Any:
    return request.param


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
        with pytest.raises(LocalProtocolError, match="has ended or does not exist"):
            call()


def test_the_end_of_an_announced_channel_without_its_barrier_is_refused(stage: Any) -> None:
    handler = turning(stage, 1)
    handler.on_announcement(0, stage.aligned(1, timeout_ms=10), 5)
    with pytest.raises(LocalProtocolError, match=r"state AW .*end of the last channel"):
        handler.on_end_of_partition(0)
