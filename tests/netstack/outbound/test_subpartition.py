"""ResultSubpartition: what may be taken, when the reader is told, and what the backlog promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netstack.buffer.buffer import Buffer
from netstack.buffer.builder import BufferBuilder
from netstack.buffer.elements import EventBuffer
from netstack.buffer.network_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError
from netstack.events import (
    Alignment,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Event,
    UserEvent,
    data_type_of,
    encode_event,
)
from netstack.outbound.subpartition import ResultSubpartition
from netstack.outbound.subpartition_view import SubpartitionView
from netstack.wire.credit import SendCredit

SIZE = 16
EVENT = UserEvent("e")
ALIGNED = CheckpointBarrier(1)
UNALIGNED = CheckpointBarrier(2, alignment=Alignment.UNALIGNED)


class Stage:
    """A subpartition with a pool, a view, and a count of notifications."""

    def __init__(self, *, view: bool = True) -> None:
        self.network = NetworkBufferPool(16, SIZE)
        self.pool = self.network.create_pool(16, 16)
        self.log: list[str] = []
        self.told = 0
        self.subpartition = ResultSubpartition(
            3,
            lambda index: self.log.append(f"consumed {index}"),
            lambda index: self.log.append(f"acknowledged {index}"),
            lambda index, checkpoint_id, data: self.log.append(f"{checkpoint_id} overtook {data!r} of {index}"),
        )
        self.view: SubpartitionView | None = None
        self.taken: list[Buffer] = []
        if view:
            self.open_view()

    def open_view(self) -> SubpartitionView:
        self.view = self.subpartition.create_view(self.notify)
        return self.view

    def notify(self) -> None:
        self.told += 1

    def add_open(self, data: bytes = b"") -> BufferBuilder:
        """An open buffer in the queue from its first byte on."""
        segment = self.pool.try_acquire()
        assert segment is not None
        builder = BufferBuilder(segment, self.pool, 0)
        self.subpartition.add(builder.create_consumer())
        builder.append(data)
        return builder

    def finish(self, builder: BufferBuilder) -> None:
        builder.finish()
        builder.close()
        self.subpartition.on_buffer_finished()

    def add_finished(self, data: bytes) -> None:
        self.finish(self.add_open(data))

    def add_event(self, event: Event = EVENT, *, is_last: bool = False) -> bool:
        element = EventBuffer(encode_event(event), data_type_of(event))
        return self.subpartition.add(element, is_last=is_last)

    def poll(self) -> tuple[bytes, int, bool] | None:
        """(bytes, backlog, more available) of the next buffer."""
        buffer = self.subpartition.poll()
        if buffer is None:
            return None
        result = bytes(buffer.memory), buffer.backlog, buffer.more_available
        buffer.recycle()
        return result

    def is_available(self) -> bool:
        return self.subpartition.is_available(has_credit=True)

    def backlog(self) -> int:
        return self.subpartition.backlog_buffers()

    def assert_all_home(self) -> None:
        assert self.pool.statistics().used == 0


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
    with pytest.raises(LocalProtocolError, match="subpartition 3: an unfinished buffer is not the last"):
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
    told = stage.told
    stage.add_event(UNALIGNED)
    assert stage.told == told + 1
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
    told = stage.told
    assert stage.subpartition.statistics().is_blocked
    assert stage.poll() is None
    assert stage.backlog() == 0
    stage.add_finished(b"b")
    stage.add_open(b"c")
    stage.subpartition.flush()
    stage.add_event(UNALIGNED)
    assert stage.told == told
    assert not stage.is_available()
    assert not stage.subpartition.is_available(has_credit=False)
    stage.subpartition.resume()
    assert stage.told == told + 1
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
    told = stage.told
    stage.subpartition.resume()
    assert stage.is_available() is available
    assert stage.told - told == available


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
    told = stage.told
    stage.subpartition.release()
    stage.subpartition.release()
    assert stage.told == told + with_view
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
    stage.subpartition.release()
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


# The view.


def test_a_view_is_told_at_once_of_what_is_there() -> None:
    stage = Stage(view=False)
    stage.add_finished(b"a")
    assert stage.told == 0
    view = stage.open_view()
    assert stage.told == 1
    assert view.poll() is not None


def test_there_is_one_view_ever(stage: Stage) -> None:
    with pytest.raises(LocalProtocolError, match="subpartition 3 is consumed already"):
        stage.subpartition.create_view(stage.notify)
    assert stage.view is not None
    stage.view.release()
    with pytest.raises(LocalProtocolError, match="consumed already"):
        stage.subpartition.create_view(stage.notify)


def test_a_released_subpartition_has_no_view() -> None:
    stage = Stage(view=False)
    stage.subpartition.release()
    with pytest.raises(LocalProtocolError, match="subpartition 3 is released"):
        stage.open_view()


def test_releasing_the_view_says_so_once_and_keeps_the_queue(stage: Stage) -> None:
    stage.add_finished(b"a")
    assert stage.view is not None
    assert not stage.view.is_released
    stage.view.release()
    stage.view.release()
    assert stage.log == ["consumed 3"]
    assert stage.view.is_released
    told = stage.told
    stage.add_finished(b"b")
    stage.subpartition.flush()
    assert stage.told == told
    statistics = stage.subpartition.statistics()
    assert (statistics.queued_buffers, statistics.is_consumed) == (2, True)


def test_acknowledgement_reaches_the_partition(stage: Stage) -> None:
    assert stage.view is not None
    stage.add_event(EndOfData())
    with pytest.raises(LocalProtocolError, match="before it was sent"):
        stage.view.acknowledge_end_of_data()
    stage.poll()
    stage.view.acknowledge_end_of_data()
    assert stage.log == ["acknowledged 3"]


def test_statistics(stage: Stage) -> None:
    stage.add_finished(b"abc")
    stage.add_event()
    stage.add_open(b"d")
    stage.poll()
    statistics = stage.subpartition.statistics()
    assert (statistics.queued_buffers, statistics.buffers_added, statistics.buffers_sent) == (2, 3, 1)
    assert (statistics.bytes_sent, statistics.backlog_buffers) == (3, 0)
    assert (statistics.is_blocked, statistics.is_finished, statistics.is_consumed) == (False, False, False)
    assert stage.subpartition.queued_buffers() == 2
    assert stage.subpartition.has_open_buffer


def test_bytes_in_the_queue_are_those_written_and_not_taken(stage: Stage) -> None:
    stage.add_finished(b"abc")
    stage.add_event()
    stage.add_open(b"de")
    event_bytes = len(encode_event(EVENT))
    assert stage.subpartition.statistics().queued_bytes == 5 + event_bytes
    assert stage.subpartition.readable() == (2, 3 + event_bytes)
    stage.poll()
    stage.poll()
    assert stage.subpartition.statistics().queued_bytes == 2
    assert stage.subpartition.readable() == (0, 0)
    stage.subpartition.flush()
    assert stage.view is not None
    assert stage.view.readable() == (1, 2)
    stage.poll()
    statistics = stage.subpartition.statistics()
    assert (statistics.queued_buffers, statistics.queued_bytes) == (1, 0)  # still open, and empty


# What barriers overtake.

TIMED = CheckpointBarrier(4, alignment=Alignment.ALIGNED, aligned_timeout_ns=1)


def add_barrier(stage: Stage, barrier: CheckpointBarrier, now: float = 0.0) -> bool:
    if stage.view is not None:
        stage.view.attach_credit(SendCredit(2))  # behind a connection: the consumer announces it to itself
    return stage.subpartition.add_barrier(barrier, data_type_of(barrier), lambda: now)


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
    stage.subpartition.add_barrier(barrier, data_type_of(barrier), lambda: clock[0])
    clock[0] = 12.5
    assert stage.poll() == (encode_event(CheckpointBarrier(1, elapsed_ns=2_500_000_005)), 0, False)


def test_a_finished_subpartition_takes_no_barrier(stage: Stage) -> None:
    stage.subpartition.release()
    assert not add_barrier(stage, UNALIGNED)
    assert stage.log == []
