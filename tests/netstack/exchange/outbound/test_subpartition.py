"""The queue of one consumer: what is available, in which order, and when that is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from exchange.subpartition_stage import EVENT, UNALIGNED, Stage
from hypothesis import given, strategies as st

from netstack.base.errors import LocalProtocolError
from netstack.base.events import (
    Alignment,
    CheckpointBarrier,
    EndOfPartition,
    encode_event,
)
from netstack.exchange.buffer.builder import BufferBuilder

ALIGNED = CheckpointBarrier(1)


@pytest.fixture
def stage() -> Stage:
    return Stage()


# The golden scenarios, with the difference that a buffer is announced when it finishes.


def test_an_empty_open_buffer_is_nothing(stage: Stage) -> None:
    stage.add_open()
    assert stage.told == 0
    assert not stage.is_available()
    assert stage.poll() is None
    assert stage.backlog() == 0


def test_an_open_buffer_with_data_waits_for_a_flush(stage: Stage) -> None:
    stage.add_open(b"ab")
    assert stage.told == 0
    assert not stage.is_available()
    assert stage.backlog() == 0
    stage.subpartition.flush()
    assert stage.told == 1
    assert stage.is_available()
    assert stage.backlog() == 1
    assert stage.poll() == (b"ab", 0, False)
    assert not stage.is_available()


def test_finishing_the_last_buffer_announces_it(stage: Stage) -> None:
    builder = stage.add_open(b"ab")
    assert stage.told == 0
    stage.finish(builder)
    assert stage.told == 1
    assert stage.is_available()
    assert stage.poll() == (b"ab", 0, False)


def test_finished_then_open(stage: Stage) -> None:
    stage.add_finished(b"ab")
    stage.add_open(b"cd")
    assert stage.told == 1
    assert stage.backlog() == 1
    assert stage.poll() == (b"ab", 0, False)
    assert not stage.is_available()
    stage.subpartition.flush()
    assert stage.told == 2
    assert stage.poll() == (b"cd", 0, False)


def test_a_flush_behind_a_finished_buffer_sets_the_flag_only(stage: Stage) -> None:
    stage.add_finished(b"ab")
    stage.add_open(b"cd")
    assert stage.backlog() == 1
    stage.subpartition.flush()
    assert stage.told == 1
    assert stage.backlog() == 2
    assert stage.poll() == (b"ab", 1, True)
    assert stage.poll() == (b"cd", 0, False)
    assert stage.poll() is None


def test_only_the_first_finished_buffer_is_told(stage: Stage) -> None:
    for data in (b"a", b"b", b"c"):
        stage.add_finished(data)
    assert stage.told == 1
    assert [stage.poll(), stage.poll(), stage.poll()] == [(b"a", 2, True), (b"b", 1, True), (b"c", 0, False)]
    stage.add_finished(b"d")
    assert stage.told == 2


def test_two_open_buffers_are_a_mistake_of_the_writer(stage: Stage) -> None:
    stage.add_open(b"ab")
    stage.add_open(b"cd")
    with pytest.raises(LocalProtocolError, match="subpartition 3: an unfinished buffer"):
        stage.subpartition.poll()


def test_a_poll_skips_empty_finished_buffers(stage: Stage) -> None:
    for _ in range(3):
        stage.add_finished(b"")
    stage.add_finished(b"ab")
    assert stage.poll() == (b"ab", 0, False)
    stage.add_finished(b"")
    assert stage.poll() is None
    stage.assert_all_home()


def test_a_flush_of_nothing_does_nothing(stage: Stage) -> None:
    stage.subpartition.flush()
    assert stage.told == 0
    stage.add_open(b"ab")
    assert not stage.is_available()  # the flag was not kept
    stage.subpartition.flush()
    stage.poll()
    stage.subpartition.flush()
    assert stage.told == 1  # no new bytes
    assert not stage.is_available()


def test_a_buffer_taken_in_parts_never_repeats_a_byte(stage: Stage) -> None:
    builder = stage.add_open(b"ab")
    stage.subpartition.flush()
    assert stage.poll() == (b"ab", 0, False)
    builder.append(b"cd")
    assert stage.poll() == (b"cd", 0, False)  # whoever polls gets what is there
    builder.append(b"ef")
    stage.finish(builder)
    assert stage.told == 2
    assert stage.poll() == (b"ef", 0, False)
    assert stage.poll() is None
    stage.assert_all_home()


def test_an_open_buffer_that_was_all_taken_is_swallowed_when_it_finishes(stage: Stage) -> None:
    builder = stage.add_open(b"ab")
    stage.subpartition.flush()
    stage.poll()
    stage.finish(builder)
    assert stage.poll() is None
    assert stage.backlog() == 0
    stage.assert_all_home()


def test_sequence_numbers_are_consecutive_over_data_and_events(stage: Stage) -> None:
    stage.add_finished(b"a")
    stage.add_event()
    stage.add_finished(b"")
    stage.add_finished(b"b")
    sequences = []
    while (buffer := stage.subpartition.poll()) is not None:
        sequences.append(buffer.sequence)
        buffer.recycle()
    assert sequences == [0, 1, 2]


# Events.


def test_an_event_is_told_and_makes_everything_before_it_available(stage: Stage) -> None:
    builder = stage.add_open(b"ab")
    stage.finish(builder)
    stage.add_event()
    assert stage.backlog() == 1  # events are not counted
    buffer = stage.subpartition.poll()
    assert buffer is not None
    assert (buffer.more_available, buffer.next_is_event, buffer.backlog) == (True, True, 0)
    buffer.recycle()
    assert stage.is_available()
    assert stage.poll() == (encode_event(EVENT), 0, False)


def test_without_credit_only_an_event_at_the_head_counts(stage: Stage) -> None:
    stage.add_event()
    assert stage.subpartition.is_available(has_credit=False)
    stage.poll()
    stage.add_finished(b"a")
    stage.add_event()
    assert not stage.subpartition.is_available(has_credit=False)
    assert stage.subpartition.is_available(has_credit=True)


def test_priority_events_overtake_in_order_of_arrival(stage: Stage) -> None:
    stage.add_finished(b"\1")
    stage.add_finished(b"\2")
    stage.add_event()
    stage.add_open(b"\4")
    reported = stage.told
    stage.add_event(UNALIGNED)
    assert stage.told == reported + 1
    later = CheckpointBarrier(3, alignment=Alignment.UNALIGNED)
    stage.add_event(later)
    polled = [stage.poll() for _ in range(5)]
    assert polled == [
        (encode_event(UNALIGNED), 2, True),
        (encode_event(later), 2, True),
        (b"\1", 1, True),
        (b"\2", 0, True),
        (encode_event(EVENT), 0, False),
    ]
    assert stage.poll() == (b"\4", 0, False)


def test_a_priority_event_on_an_empty_queue(stage: Stage) -> None:
    stage.add_event(UNALIGNED)
    assert stage.told == 1
    stage.add_finished(b"a")
    assert [stage.poll(), stage.poll()] == [(encode_event(UNALIGNED), 1, True), (b"a", 0, False)]


# Blocked by an aligned barrier.


def test_a_polled_barrier_blocks_until_resume(stage: Stage) -> None:
    stage.add_event(ALIGNED)
    stage.add_finished(b"a")
    assert stage.poll() == (encode_event(ALIGNED), 0, False)
    reported = stage.told
    assert stage.subpartition.statistics().is_blocked
    assert stage.poll() is None
    assert stage.backlog() == 0
    stage.add_finished(b"b")
    stage.add_open(b"c")
    stage.subpartition.flush()
    stage.add_event(UNALIGNED)
    assert stage.told == reported
    assert not stage.is_available()
    assert not stage.subpartition.is_available(has_credit=False)
    stage.subpartition.resume()
    assert stage.told == reported + 1
    with pytest.raises(LocalProtocolError, match="not blocked"):
        stage.subpartition.resume()
    assert stage.poll() == (encode_event(UNALIGNED), 3, True)


RESUMED: dict[str, tuple[Callable[[Stage], object], bool]] = {
    "an event": (lambda stage: stage.add_event(), True),
    "an open buffer, flushed": (lambda stage: (stage.add_open(b"a"), stage.subpartition.flush()), True),
    "an open buffer, not flushed": (lambda stage: stage.add_open(b"a"), False),
    "a finished buffer": (lambda stage: stage.add_finished(b"a"), True),
    "nothing": (lambda stage: None, False),
}


@pytest.mark.parametrize("what", RESUMED)
def test_what_is_available_after_resume(stage: Stage, what: str) -> None:
    prepare, available = RESUMED[what]
    stage.add_event(ALIGNED)
    stage.poll()
    prepare(stage)
    reported = stage.told
    stage.subpartition.resume()
    assert stage.is_available() is available
    assert stage.told - reported == available


def test_an_unblocking_finish_is_told_even_while_blocked(stage: Stage) -> None:
    stage.add_event(ALIGNED)
    stage.poll()
    stage.add_event(EndOfPartition(), is_last=True)
    stage.subpartition.resume()
    assert stage.poll() == (encode_event(EndOfPartition()), 0, False)


# The end.


def test_nothing_is_added_behind_the_end(stage: Stage) -> None:
    stage.add_open(b"a").finish()
    assert stage.add_event(EndOfPartition(), is_last=True)
    assert stage.told == 1
    assert stage.backlog() == 1
    segment = stage.pool.try_acquire()
    assert segment is not None
    late = BufferBuilder(segment, stage.pool, 0)
    assert stage.subpartition.add(late.create_consumer()) is False
    used = stage.pool.statistics().used
    late.close()
    assert stage.pool.statistics().used == used - 1  # its consumer was closed
    assert stage.subpartition.statistics().is_finished


@pytest.mark.parametrize("with_view", [True, False])
def test_release_returns_everything_and_tells_the_reader(with_view: bool) -> None:
    stage = Stage(view=with_view)
    stage.add_finished(b"a")
    builder = stage.add_open(b"b")
    reported = stage.told
    stage.subpartition.discard()
    stage.subpartition.discard()
    assert stage.told == reported + with_view
    builder.finish()
    builder.close()
    stage.assert_all_home()
    assert stage.poll() is None
    assert stage.backlog() == 0
    assert not stage.is_available()
    assert stage.add_event() is False
    if stage.view is not None:
        assert stage.view.is_released
        assert stage.view.failure is None


def test_a_slice_outlives_the_release(stage: Stage) -> None:
    stage.add_finished(b"abc")
    buffer = stage.subpartition.poll()
    stage.subpartition.discard()
    assert buffer is not None
    assert bytes(buffer.memory) == b"abc"
    assert stage.pool.statistics().used == 1
    buffer.recycle()
    stage.assert_all_home()


def test_failure_keeps_the_first_cause(stage: Stage) -> None:
    stage.add_finished(b"a")
    stage.subpartition.fail("disk full")
    stage.subpartition.fail("something else")
    assert stage.view is not None
    assert stage.view.failure == stage.subpartition.failure == "disk full"
    assert stage.view.is_released
    stage.assert_all_home()


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12))
def test_queued_events_are_counted_with_the_data_in_front_until_they_are_taken(steps: list[int], takes: int) -> None:
    """Step 0 adds an event, and another number a buffer of so many bytes."""
    stage = Stage()
    queue: list[int] = []
    for size in steps:
        stage.add_finished(b"x" * size) if size else stage.add_event()
    for size in steps[min(takes, len(steps)) :]:
        queue.append(size)
    for _ in range(min(takes, len(steps))):
        assert stage.poll() is not None
    expected = [sum(queue[:index]) for index, size in enumerate(queue) if not size]
    assert stage.subpartition.queued_events() == [(encode_event(EVENT), ahead) for ahead in expected]
