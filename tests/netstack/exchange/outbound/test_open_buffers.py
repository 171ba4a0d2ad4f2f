"""When an open buffer leaves: full, flushed by timeout, or kept small as its consumer asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exchange.writer_stage import SIZE, Stage, buffers

from netstack.exchange.buffer.lent import LentPart
from netstack.exchange.outbound.batches import LEND_BYTES
from netstack.exchange.outbound.emitter import BUSY_CHECKS, GRANTED
from netstack.exchange.outbound.open_buffers import SHORTEST_PAUSE_S, SLICE_S
from netstack.exchange.outbound.selector import (
    BroadcastSelector,
)
from netstack.exchange.outbound.spanning_write import SEND_BUFFERS
from netstack.exchange.record.framing import frame


def test_subpartitions_that_are_due_together_are_sent_together() -> None:
    stage = Stage(subpartitions=3, timeout_s=0.1)
    for record in (b"0", b"1", b"2"):  # each finds its channel quiet, and leaves at once
        stage.emit(record)
    assert [stage.read(index) for index in range(3)] == [frame(b"0"), frame(b"1"), frame(b"2")]
    for record in (b"3", b"4", b"5"):
        stage.emit(record)
    kicks = stage.host.kicks
    stage.host.advance(0.1)
    assert stage.host.kicks == kicks + 1
    assert [stage.read(index) for index in range(3)] == [frame(b"3"), frame(b"4"), frame(b"5")]


def test_a_timeout_of_0_flushes_every_record() -> None:
    stage = Stage(timeout_s=0)
    for record in (b"a", b"b", b"c"):
        stage.emit(record)
        assert stage.read() == frame(record)


def test_with_a_timeout_of_0_a_writer_that_never_waits_sends_in_slices() -> None:
    stage = Stage(timeout_s=0, segment_bytes=16 * 1024)
    stage.emit(b"a")
    kicks = stage.host.kicks
    for _ in range(10):
        stage.emit(b"b")
    assert stage.host.kicks == kicks
    assert stage.visible()  # whoever looks gets it all
    stage.host.advance(2 * SLICE_S)
    stage.emit(b"c")
    assert stage.host.kicks == kicks + 1


def test_with_a_timeout_of_0_a_record_after_a_pause_is_sent_at_once_within_a_slice_too() -> None:
    stage = Stage(timeout_s=0)
    stage.emit(b"a")
    kicks = stage.host.kicks
    stage.host.advance(SHORTEST_PAUSE_S / 2)
    stage.emit(b"b")
    assert stage.host.kicks == kicks
    for count in range(1, 4):
        stage.read()  # sent: the next record takes the slow path
        stage.host.advance(1.01 * SHORTEST_PAUSE_S)
        stage.emit(b"c")
        assert stage.host.kicks == kicks + count
    assert 3 * 1.01 * SHORTEST_PAUSE_S < SLICE_S


def test_with_a_timeout_of_0_a_writer_in_a_hurry_looks_at_the_clock_every_few_records() -> None:
    stage = Stage(timeout_s=0, segment_bytes=16 * 1024)
    for _ in range(1 + BUSY_CHECKS + 1):  # the first one sends
        stage.emit(b"a")
    kicks = stage.host.kicks
    stage.host.advance(2 * SLICE_S)
    for _ in range(GRANTED - 1):  # it was in a hurry until now
        stage.emit(b"b")
    assert stage.host.kicks == kicks
    stage.emit(b"c")
    assert stage.host.kicks == kicks + 1
    stage.read()
    stage.host.advance(2 * SLICE_S)
    for count in range(2, 4):  # it is not any more: its first record sends, and its next ones
        stage.emit(b"d")
        assert stage.host.kicks == kicks + count
        stage.host.advance(2 * SLICE_S)


def test_records_of_a_run_are_counted_at_once() -> None:
    stage = Stage(subpartitions=2, segment_bytes=1024)
    for count in range(1, 100):
        stage.emit(b"12345678")
        if count % 10 == 0:
            stage.read(count // 10 % 2)
        assert stage.partition.statistics().records == count
    stage.writer.abandon()
    assert stage.partition.statistics().records == 99


def test_a_run_of_full_buffers_is_sent_every_few() -> None:
    stage = Stage(timeout_s=None, subpartitions=1)
    kicks = stage.host.kicks
    stage.emit(b"x" * (SIZE * SEND_BUFFERS * 2))
    assert stage.host.kicks - kicks >= 2


def test_a_broadcast_buffer_timeout_flushes_every_subpartition() -> None:
    stage = Stage(subpartitions=2, selector=BroadcastSelector(), timeout_s=0.1)
    stage.emit(b"a")
    stage.host.advance(0.1)
    assert stage.told == [1, 1]
    assert stage.read(0) == stage.read(1) == frame(b"a")


# Buffers kept small, as a consumer asked (debloating).


def kept_small(size_bytes: int, **settings: Any) -> Stage:
    stage = Stage(**settings)
    for subpartition in stage.partition.subpartitions:
        subpartition.set_buffer_size(size_bytes)
    return stage


def test_a_buffer_holds_what_was_asked_for() -> None:
    stage = kept_small(20)
    for _ in range(5):
        stage.emit(b"x" * 6)
    assert buffers(stage) == [20, 20, 10]


def test_a_buffer_holds_its_first_record_whole() -> None:
    stage = kept_small(8)
    for record in (b"x" * 20, b"x" * 28, b"x", b"x" * 7, b"x"):
        stage.emit(record)
    assert buffers(stage) == [24, 32, 8, 8, 5]


def test_what_is_left_of_a_record_is_its_buffers_first() -> None:
    stage = kept_small(8)
    stage.emit(b"x" * 100)
    stage.emit(b"x" * (96 - 4))
    stage.emit(b"x" * (66 - 4))
    assert buffers(stage) == [32, 32, 32, 8, 32, 32, 32, 32, 32, 2]


@pytest.mark.parametrize("size_bytes", [32, 33, 1 << 31])
def test_a_wish_above_the_segment_is_the_segment(size_bytes: int) -> None:
    stage = kept_small(size_bytes)
    stage.emit(b"x" * 60)
    assert buffers(stage) == [32, 32]


def test_a_wish_is_for_buffers_that_are_opened_later() -> None:
    stage = Stage()
    (subpartition,) = stage.partition.subpartitions
    stage.emit(b"x")
    subpartition.set_buffer_size(8)
    for _ in range(6):
        stage.emit(b"x" * 4)
    subpartition.set_buffer_size(32)
    for _ in range(7):
        stage.emit(b"x" * 4)
    assert buffers(stage) == [32, 8, 8, 8, 32, 21]


def test_every_subpartition_has_its_own_size() -> None:
    stage = Stage(subpartitions=2)
    stage.partition.subpartitions[1].set_buffer_size(8)
    for _ in range(8):
        stage.emit(b"x" * 4)
    assert (buffers(stage, 0), buffers(stage, 1)) == ([32], [8, 8, 8, 8])


def test_a_broadcast_buffer_is_as_small_as_any_consumer_asked() -> None:
    stage = Stage(subpartitions=3, selector=BroadcastSelector())
    for subpartition, size_bytes in zip(stage.partition.subpartitions, (24, 16, 30), strict=True):
        subpartition.set_buffer_size(size_bytes)
    for _ in range(5):
        stage.emit(b"x" * 4)
    assert [buffers(stage, index) for index in range(3)] == [[16, 16, 8]] * 3


def test_a_reader_that_takes_an_open_buffer_does_not_change_its_size() -> None:
    stage = kept_small(20, timeout_s=0)
    stage.emit(b"x" * 6)
    assert stage.read() == frame(b"x" * 6)
    stage.emit(b"y" * 6)
    assert stage.told == [2]
    assert not stage.partition.subpartitions[0].has_open_buffer
    assert stage.read() == frame(b"y" * 6)


def test_arrays_fill_buffers_to_the_size() -> None:
    stage = kept_small(20)
    rows = np.zeros((12, 8), np.uint8)
    for _, _, write in stage.writer.batches.plan_batch(rows, []):
        assert write.advance()
    assert buffers(stage) == [20] * 7 + [4]


def test_arrays_that_would_be_lent_fill_buffers_to_the_size() -> None:
    stage = kept_small(20)
    for _, _, write in stage.writer.batches.plan_batch(np.zeros((40, 8), np.uint8), []):
        assert write.advance()
    assert buffers(stage) == [20] * 24


@pytest.mark.parametrize(
    ("record_bytes", "size_bytes", "expected"),
    [
        (LEND_BYTES, 1000, [8196] * 4),  # a record each
        (LEND_BYTES, 12000, [12000, 12000, 8784]),
        (LEND_BYTES, 20000, [20000, 12784]),
        (20000, 1000, [16384, 3620] * 4),
        (20000, 9000, [16384, 9000, 14624] * 2),
    ],
)
def test_large_records_of_an_array_stay_where_they_lie_in_smaller_buffers(
    record_bytes: int, size_bytes: int, expected: list[int]
) -> None:
    stage = kept_small(size_bytes, segment_bytes=16384 if record_bytes == 20000 else 32768)
    rows = np.random.default_rng(1).integers(0, 256, (4, record_bytes), np.uint8)
    for _, _, write in stage.writer.batches.plan_batch(rows, []):
        assert write.advance()
    stage.writer.flush()
    actual = []
    while (buffer := stage.partition.subpartitions[0].poll()) is not None:
        actual.append(bytes(buffer.contiguous()))
        assert isinstance(buffer, LentPart) or len(actual) == len(expected)
        buffer.recycle()
    assert list(map(len, actual)) == expected
    assert b"".join(actual) == b"".join(frame(row.tobytes()) for row in rows)


def test_a_record_that_begins_in_a_small_buffer_ends_there_when_there_is_no_other() -> None:
    stage = kept_small(16, buffers=(2, 2))
    stage.emit(b"a" * 12)
    stage.emit(b"b" * 4)
    assert not stage.pool.is_available
    stage.emit(b"c" * 20)  # 8 of its 24 bytes fit
    assert not stage.partition.subpartitions[0].has_open_buffer
    assert not stage.writer.try_emit(b"d")  # the size holds under back-pressure: record after record would undo it
    assert buffers(stage) == [16, 32]
    stage.emit(b"d")
    assert buffers(stage) == [5]


def test_a_small_buffer_grows_before_overdraft_is_taken() -> None:
    stage = kept_small(16, buffers=(2, 2), overdraft=2)
    stage.emit(b"a" * 12)
    stage.emit(b"b" * 4)
    stage.emit(b"c" * 12)
    assert stage.pool.statistics().overdraft == 0
    assert buffers(stage) == [16, 24]


def test_a_small_buffer_does_not_grow_while_there_is_another() -> None:
    stage = kept_small(16, buffers=(3, 3))
    stage.emit(b"a" * 12)
    stage.emit(b"b" * 4)
    stage.emit(b"c" * 12)
    assert buffers(stage) == [16, 16, 8]


def test_a_small_buffer_that_cannot_hold_the_record_does_not_grow_for_nothing() -> None:
    stage = kept_small(16, buffers=(2, 2))
    stage.emit(b"a" * 12)
    stage.emit(b"b" * 4)
    assert not stage.writer.try_emit(b"c" * 21)
    assert stage.writer.buffers.builders[0].capacity == 16
    stage.emit(b"d" * 4)
    assert buffers(stage) == [16, 16]


def test_a_small_buffer_grows_for_a_consumer_over_its_quota() -> None:
    stage = kept_small(16, quota=2)
    stage.emit(b"a" * 12)
    stage.emit(b"b" * 4)
    assert stage.pool.is_over_quota
    stage.emit(b"c" * 12)
    assert buffers(stage) == [16, 24]


def test_an_array_that_runs_out_of_buffers_is_not_left_inside_a_record() -> None:
    stage = kept_small(16, buffers=(2, 2))
    rows = np.arange(80, dtype=np.uint8).reshape(8, 10)
    ((_, _, write),) = stage.writer.batches.plan_batch(rows, [])
    actual = []
    while not write.advance():
        actual += buffers(stage)
        assert sum(actual) % 14 == 0
    assert actual + buffers(stage) == [16, 26, 16, 26, 16, 12]


def test_a_record_larger_than_all_buffers_takes_what_the_open_one_can_hold() -> None:
    stage = kept_small(16, buffers=(2, 2))
    stage.emit(b"a" * 12)
    stage.emit(b"b" * 4)
    slot, write = stage.writer.plan_record(b"c" * 46)
    assert not write.advance()
    assert buffers(stage) == [16, 32]
    assert write.advance()
    stage.writer.buffers.after_write(slot)
    assert buffers(stage) == [50 - 24]


def test_growing_keeps_the_quick_way_for_what_follows_a_flush() -> None:
    """A buffer whose flush is armed still takes records by comparison alone after it was cut."""
    stage = kept_small(24, timeout_s=0.1)
    stage.emit(b"x" * 4)
    builder = stage.writer.buffers.builders[0]
    assert builder.limit == builder.capacity == 24
