"""What a barrier overtakes in a subpartition's queue, and who is told."""

from __future__ import annotations

import pytest
from exchange.subpartition_stage import EVENT, UNALIGNED, Stage

from netstack.base.events import (
    Alignment,
    CheckpointBarrier,
    data_type_of,
    encode_event,
)
from netstack.exchange.buffer.elements import BarrierBuffer
from netstack.exchange.credit.sending import SendCredit


@pytest.fixture
def stage() -> Stage:
    return Stage()


# What barriers overtake.

TIMED = CheckpointBarrier(4, alignment=Alignment.ALIGNED, aligned_timeout_ns=1)


def add_barrier(stage: Stage, barrier: CheckpointBarrier, now: float = 0.0) -> bool:
    if stage.view is not None:
        stage.view.attach_credit(SendCredit(2))  # behind a connection: the consumer announces it to itself
    return stage.subpartition.add_barrier(BarrierBuffer(barrier, data_type_of(barrier), lambda: now))


def test_an_unaligned_barrier_tells_what_it_overtakes_and_leaves_it(stage: Stage) -> None:
    stage.add_finished(b"ab")
    stage.add_event()
    stage.add_finished(b"cd")
    assert add_barrier(stage, UNALIGNED)
    assert stage.log == ["2 overtook b'abcd' of 3"]
    polled = [stage.poll() for _ in range(4)]
    assert [entry[0] for entry in polled if entry is not None] == [
        encode_event(UNALIGNED),
        b"ab",
        encode_event(EVENT),
        b"cd",
    ]


def test_only_what_was_not_taken_is_overtaken(stage: Stage) -> None:
    builder = stage.add_open(b"taken")
    stage.subpartition.flush()
    assert stage.poll() == (b"taken", 0, False)
    builder.append(b" left")
    builder.finish()
    builder.close()
    stage.subpartition.on_buffer_finished()
    assert add_barrier(stage, UNALIGNED)
    assert stage.log == ["2 overtook b' left' of 3"]


def test_a_timed_barrier_that_is_taken_overtook_nothing(stage: Stage) -> None:
    stage.add_finished(b"ab")
    assert add_barrier(stage, TIMED)
    assert stage.log == []
    assert stage.poll() == (b"ab", 0, True)
    assert stage.poll() == (encode_event(TIMED), 0, False)
    assert stage.log == ["4 overtook b'' of 3"]
    stage.subpartition.time_out_barrier(4)  # too late
    assert stage.log == ["4 overtook b'' of 3"]
    assert stage.subpartition.is_blocked


def test_a_timed_barrier_overtakes_when_its_time_is_up(stage: Stage) -> None:
    stage.add_finished(b"ab")
    assert add_barrier(stage, TIMED)
    stage.add_finished(b"behind")
    stage.subpartition.time_out_barrier(3)
    assert stage.log == []
    stage.subpartition.time_out_barrier(4)
    assert stage.log == ["4 overtook b'ab' of 3"]
    unaligned = CheckpointBarrier(4, alignment=Alignment.UNALIGNED, aligned_timeout_ns=1)
    assert stage.poll() == (encode_event(unaligned), 2, True)
    assert stage.poll() == (b"ab", 1, True)
    assert stage.poll() == (b"behind", 0, False)
    assert not stage.subpartition.is_blocked


def test_an_aborted_checkpoint_wants_nothing(stage: Stage) -> None:
    stage.add_finished(b"ab")
    assert add_barrier(stage, TIMED)
    stage.subpartition.forget_barrier(4)
    stage.subpartition.time_out_barrier(4)
    assert stage.poll() == (b"ab", 0, True)
    assert stage.poll() == (encode_event(TIMED), 0, False)
    assert stage.log == []


def test_a_barrier_tells_how_long_it_waited(stage: Stage) -> None:
    clock = [10.0]
    barrier = CheckpointBarrier(1, elapsed_ns=5)
    stage.subpartition.add_barrier(BarrierBuffer(barrier, data_type_of(barrier), lambda: clock[0]))
    clock[0] = 12.5
    assert stage.poll() == (encode_event(CheckpointBarrier(1, elapsed_ns=2_500_000_005)), 0, False)


def test_a_finished_subpartition_takes_no_barrier(stage: Stage) -> None:
    stage.subpartition.discard()
    assert not add_barrier(stage, UNALIGNED)
    assert stage.log == []
