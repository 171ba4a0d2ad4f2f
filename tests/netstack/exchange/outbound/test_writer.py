"""Records into buffers: whole or not at all, each once, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from exchange.writer_stage import SIZE, Refused, Stage
from record_streams import split_stream

from netstack.base.errors import ConfigError, LocalProtocolError, PoolDestroyed, RecordError
from netstack.base.events import CheckpointBarrier, DataType, UserEvent
from netstack.exchange.outbound.batches import LEND_BYTES, rows_of
from netstack.exchange.outbound.selector import (
    BroadcastSelector,
    CustomSelector,
)
from netstack.exchange.outbound.shares import Shares
from netstack.exchange.outbound.spanning_write import SpanningWrite
from netstack.exchange.record.framing import frame

# Framing into buffers.


def test_records_are_framed_one_behind_the_other_over_any_number_of_buffers() -> None:
    stage = Stage()
    records = [b"", b"a", b"b" * 27, b"c" * 28, b"d" * 29, b"e" * 100, b"", b"f" * 31]
    for record in records:
        stage.emit(record)
    stage.writer.flush()
    assert stage.read() == b"".join(map(frame, records))


@pytest.mark.parametrize("first", range(26, 33))
def test_the_prefix_itself_may_span(first: int) -> None:
    stage = Stage()
    stage.emit(b"x" * (first - 4))
    stage.emit(b"yz")
    stage.writer.flush()
    assert stage.read() == frame(b"x" * (first - 4)) + frame(b"yz")


def test_a_full_buffer_leaves_at_once_and_the_next_record_opens_a_new_one() -> None:
    stage = Stage()
    stage.emit(b"x" * 28)  # exactly one buffer
    assert stage.told == [1]
    assert stage.read_one() == frame(b"x" * 28)
    assert stage.pool.statistics().used == 0
    assert not stage.partition.subpartitions[0].has_open_buffer


def test_without_a_timeout_only_full_buffers_leave() -> None:
    stage = Stage(timeout_s=None)
    stage.emit(b"x" * 20)
    stage.host.advance(1e9)
    assert not stage.visible()
    stage.emit(b"y" * 20)
    assert stage.read_one() == (frame(b"x" * 20) + frame(b"y" * 20))[:SIZE]
    assert stage.read_one() is None
    stage.writer.flush()
    assert stage.read_one() == (frame(b"x" * 20) + frame(b"y" * 20))[SIZE:]


def test_counters() -> None:
    stage = Stage()
    for _ in range(5):
        stage.emit(b"x" * 12)
    stage.writer.broadcast_event(UserEvent("e"))
    statistics = stage.partition.statistics()
    assert (statistics.records, statistics.bytes, statistics.buffers) == (5, 5 * 16, 3)
    assert (statistics.flushes_full, statistics.flushes_event, statistics.events) == (2, 1, 1)


def test_a_barrier_that_cannot_be_sent_is_refused_by_its_call_and_harms_no_connection() -> None:
    stage = Stage()
    stage.emit(b"a")
    with pytest.raises(ConfigError, match="cannot be sent"):
        stage.writer.broadcast_event(CheckpointBarrier("1"))  # type: ignore[arg-type]
    stage.emit(b"b")
    assert stage.partition.statistics().events == 0


def test_a_record_that_does_not_fit_the_format_writes_nothing() -> None:
    stage = Stage()
    stage.emit(b"a")
    with pytest.raises(RecordError):
        stage.writer.try_emit("text")
    stage.emit(b"b")
    stage.writer.flush()
    assert stage.read() == frame(b"a") + frame(b"b")


def test_round_robin_by_default() -> None:
    stage = Stage(subpartitions=3)
    for number in range(7):
        stage.emit(b"%d" % number)
    stage.writer.flush()
    assert [stage.read(index) for index in range(3)] == [
        frame(b"0") + frame(b"3") + frame(b"6"),
        frame(b"1") + frame(b"4"),
        frame(b"2") + frame(b"5"),
    ]


# No buffer.


def test_a_record_is_written_whole_or_not_at_all() -> None:
    stage = Stage(buffers=(2, 2))
    stage.emit(b"a" * 20)
    assert stage.writer.try_emit(b"b" * 60) is False
    assert stage.writer.try_emit(b"c" * 36)
    assert stage.writer.try_emit(b"") is False
    assert stage.read() == frame(b"a" * 20) + frame(b"c" * 36)
    stage.emit(b"d" * 60)
    assert stage.read() == frame(b"d" * 60)


def test_emit_nowait_is_try_emit_with_an_exception() -> None:
    one, other = Stage(subpartitions=2, buffers=(3, 3)), Stage(subpartitions=2, buffers=(3, 3))
    for number in range(30):
        record = bytes([number]) * (number % 9)
        if one.writer.try_emit(record):
            other.writer.emit_nowait(record)
        else:
            with pytest.raises(Refused):
                other.writer.emit_nowait(record)
            assert one.read(number % 2) == other.read(number % 2)
    for stage in (one, other):
        stage.writer.flush()
    assert [one.read(0), one.read(1)] == [other.read(0), other.read(1)]
    assert one.partition.statistics() == other.partition.statistics()


def test_overdraft_lets_one_record_through() -> None:
    stage = Stage(buffers=(2, 2), overdraft=2)
    stage.emit(b"a" * 124)  # 2 and 2
    assert stage.writer.try_emit(b"b") is False
    assert stage.pool.statistics().overdraft == 2
    assert stage.read() == frame(b"a" * 124)
    assert stage.pool.statistics().requested <= 2


@pytest.mark.parametrize("record_bytes", [1, 8, 20, 28, 40, 90])
def test_no_record_begins_with_overdraft(record_bytes: int) -> None:
    """As Flink's soft back-pressure; what has begun ends all the same."""
    stage = Stage(buffers=(3, 3), overdraft=5)
    needs = -(-(record_bytes + 4) // SIZE)
    while stage.writer.try_emit(b"a" * record_bytes):
        assert stage.pool.statistics().requested <= 3 + needs - 1
    assert stage.pool.statistics().requested >= 3
    before = stage.partition.subpartitions[0].queued_buffers()
    assert before >= 3
    stage.writer.overdraws = True  # a task that has looked for room before its input
    assert stage.writer.try_emit(b"a" * record_bytes)
    assert stage.pool.statistics().overdraft > 0


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_a_record_that_is_lent_begins_with_overdraft_where_its_task_looked_for_room(segments: int) -> None:
    stage = Stage(buffers=(3, 3), overdraft=20, segment_bytes=LEND_BYTES)
    record = b"a" * (LEND_BYTES * segments - 4)  # whole segments, so that the next begins where no buffer is open
    while stage.writer.try_emit(record):
        pass
    stage.writer.overdraws = True
    assert stage.writer.try_emit(record)
    assert stage.pool.statistics().overdraft > 0


@pytest.mark.parametrize("lent", [False, True])
def test_an_array_takes_overdraft_to_end_a_record_that_has_taken_a_buffer(lent: bool) -> None:
    size = LEND_BYTES * 5 // 2
    stage = Stage(buffers=(3, 3), overdraft=20, segment_bytes=LEND_BYTES)
    slot, write = stage.writer.plan_record(b"a" * size if lent else memoryview(bytearray(size)))
    assert write.advance()
    stage.writer.buffers.after_write(slot)
    assert stage.pool.statistics().overdraft == 0
    slot, write = stage.writer.plan_record(b"b" * size if lent else memoryview(bytearray(size)))
    assert not write.advance(), "its first buffer would be one of the overdraft"
    stage.read_one()
    assert write.advance(), "one came back, and the others are beyond the size"
    assert stage.pool.statistics().overdraft > 0


def test_a_record_takes_its_overdraft_at_once() -> None:
    stage = Stage(buffers=(3, 3), overdraft=5, segment_bytes=LEND_BYTES)
    _, write = stage.writer.plan_record(b"a" * LEND_BYTES * 20)
    assert not write.advance()
    assert stage.pool.statistics().overdraft == 5
    assert stage.host.kicks <= 3, "nothing that could be sent was added meanwhile"


def test_overdraft_ends_the_record_in_progress_and_no_other() -> None:
    stage = Stage(buffers=(3, 3), overdraft=20, segment_bytes=LEND_BYTES)
    rows = np.ones((8, LEND_BYTES * 5 // 2 - 4), np.uint8)  # framed, two and a half buffers each
    ((_, _, write),) = stage.writer.batches.plan_batch(rows, [])
    assert not write.advance()
    assert stage.pool.statistics().overdraft == 0, "the second record has taken no buffer"
    stage.read_one()
    assert not write.advance()
    assert stage.pool.statistics().overdraft == 1, "what the second record needs; the third has none"


def test_a_step_lets_go_of_the_connections_whatever_happens() -> None:
    stage = Stage(buffers=(2, 2))
    seen: list[bool] = []

    def fails(start: int, stop: int, out: memoryview) -> None:
        seen.append(stage.host.is_held)
        raise RuntimeError("the source is broken")

    write = SpanningWrite(stage.writer.buffers, 0, 10, 10, fails, None, None)
    with pytest.raises(RuntimeError, match="the source is broken"):
        stage.writer.advance(0, write, 1)
    assert (seen, stage.host.is_held) == ([True], False)
    slot, write = stage.writer.plan_record(b"a" * 100)
    assert not stage.writer.advance(slot, write, 1), "two buffers are too few"
    assert not stage.host.is_held


def test_the_connections_are_asked_to_send_before_giving_up() -> None:
    stage = Stage(buffers=(2, 2))
    stage.emit(b"a" * 28)
    stage.emit(b"b" * 28)
    stage.host.on_kick = stage.read
    assert stage.writer.try_emit(b"c" * 28)


@pytest.mark.parametrize("record_bytes", [20, 28])
def test_a_refused_record_keeps_its_subpartition(record_bytes: int) -> None:
    stage = Stage(subpartitions=3, buffers=(4, 4))
    records = [bytes([number]) * record_bytes for number in range(30)]
    got = [bytearray() for _ in range(3)]
    for record in records:
        for _ in range(3):
            if stage.writer.try_emit(record):
                break
            for index in range(3):
                got[index] += stage.read(index)
        else:
            raise AssertionError("refused although everything was read")
    stage.writer.flush()
    for index in range(3):
        got[index] += stage.read(index)
    assert [bytes(part) for part in got] == [b"".join(map(frame, records[index::3])) for index in range(3)]


def test_a_record_that_waits_for_buffers_goes_where_it_was_selected() -> None:
    stage = Stage(subpartitions=3, buffers=(4, 4))
    records = [bytes([number]) * 100 for number in range(12)]
    got = [bytearray() for _ in range(3)]
    for record in records:
        if not stage.writer.try_emit(record):
            slot, write = stage.writer.plan_record(record)
            while not write.advance():
                for index in range(3):
                    got[index] += stage.read(index)
            stage.writer.buffers.after_write(slot)
    stage.writer.flush()
    for index in range(3):
        got[index] += stage.read(index)
    assert [bytes(part) for part in got] == [b"".join(map(frame, records[index::3])) for index in range(3)]


def test_a_slow_consumer_does_not_take_more_than_its_quota() -> None:
    stage = Stage(subpartitions=2, segments=64, quota=4, selector=CustomSelector(lambda record, channels: record[0]))
    written = stage.emit_until_full(b"\0" * 28)
    assert written <= 6  # each fills a buffer; a few above the quota may be granted, the pool has 64
    stage.read(0)
    assert stage.writer.try_emit(b"\1" * 28)


# A record that was given up half-way.


def torn_stage() -> Stage:
    """Two buffers hold the first part of a record of 100 bytes; its write was cancelled."""
    stage = Stage(buffers=(2, 2))
    record = bytes(range(100))
    assert stage.writer.try_emit(record) is False
    slot, write = stage.writer.plan_record(record)
    assert write.advance() is False
    stage.writer.tear(slot, write)
    return stage


def test_a_torn_record_is_completed_before_anything_else() -> None:
    stage = torn_stage()
    assert stage.writer.try_emit(b"next") is False
    assert stage.writer.complete_torn() is False
    first = stage.read()
    assert stage.writer.complete_torn() is True
    stage.emit(b"next")
    stage.writer.flush()
    assert first + stage.read() == frame(bytes(range(100))) + frame(b"next")


def test_the_next_record_completes_a_torn_one_by_itself() -> None:
    stage = torn_stage()
    first = stage.read()
    stage.emit(b"next")
    stage.writer.flush()
    assert first + stage.read() == frame(bytes(range(100))) + frame(b"next")


def test_an_emission_given_up_between_records_leaves_nothing_torn() -> None:
    stage = Stage(buffers=(2, 2))
    rows = np.arange(64, dtype=np.uint8).reshape(8, 8)
    (slot, count, write), *others = stage.writer.batches.plan_batch(rows, [])
    assert (count, others) == (8, [])
    assert write.advance() is False
    stage.writer.tear(slot, write)
    written = stage.read()
    stage.emit(b"next")
    stage.writer.flush()
    written += stage.read()
    assert split_stream(written) == [*(row.tobytes() for row in rows[:6]), b"next"]


# Large records are lent, within the bounds of copied ones.


def test_a_large_immutable_record_is_not_copied() -> None:
    stage = Stage(segment_bytes=4096, segments=16)
    record = bytes(range(256)) * (2 * LEND_BYTES // 256)
    stage.emit(record)
    assert stage.pool.statistics().used == 5  # 4 + 16,384 bytes in buffers of 4,096: each reserves one
    stage.writer.flush()
    buffer = stage.partition.subpartitions[0].poll()
    assert buffer is not None
    assert buffer.pieces is not None
    assert buffer.pieces[1].obj is record
    first = bytes(buffer.contiguous())
    buffer.recycle()
    assert first + stage.read() == frame(record)
    stage.writer.abandon()
    stage.read()
    assert stage.pool.statistics().used == 0


@pytest.mark.parametrize("wrap", [bytearray, lambda data: memoryview(bytearray(data))], ids=["bytearray", "memoryview"])
def test_a_large_record_that_may_change_is_copied(wrap: Callable[[bytes], Any]) -> None:
    stage = Stage(segment_bytes=4096, segments=16)
    record = wrap(b"x" * LEND_BYTES)
    stage.emit(record)
    record[0:1] = b"y"
    stage.writer.flush()
    assert stage.read() == frame(b"x" * LEND_BYTES)


# Broadcast.


def test_a_broadcast_buffer_is_one_segment_for_all() -> None:
    stage = Stage(subpartitions=3, selector=BroadcastSelector(), buffers=(4, 4))
    for record in (b"a" * 10, b"b" * 10):
        stage.emit(record)
    assert stage.pool.statistics().used == 1
    stage.writer.flush()
    assert stage.read(0) == stage.read(1) == frame(b"a" * 10) + frame(b"b" * 10)
    stage.emit(b"c" * 60)  # fills the first, and two more
    assert stage.pool.statistics().used == 3
    stage.writer.flush()
    assert stage.read(0) == stage.read(1) == frame(b"c" * 60)
    assert stage.pool.statistics().used == 3  # the third has not read anything
    assert stage.read(2) == frame(b"a" * 10) + frame(b"b" * 10) + frame(b"c" * 60)
    assert stage.pool.statistics().used == 1
    stage.writer.broadcast_event(UserEvent("e"))
    for index in range(3):
        assert stage.read(index) == b""
    assert stage.pool.statistics().used == 0
    assert stage.partition.statistics().records == 3


def test_a_large_broadcast_record_is_copied_once() -> None:
    stage = Stage(subpartitions=2, selector=BroadcastSelector(), segment_bytes=4096, segments=16)
    record = b"x" * LEND_BYTES
    stage.emit(record)
    assert stage.pool.statistics().used == 3
    stage.writer.flush()
    assert stage.read(0) == stage.read(1) == frame(record)


# Events, the end, and giving up.


def test_an_event_closes_the_open_buffers_and_stands_on_a_record_boundary() -> None:
    stage = Stage(subpartitions=2)
    stage.emit(b"a")
    stage.writer.broadcast_event(UserEvent("e"))
    stage.emit(b"b")
    assert stage.told == [1, 1]  # the event notifies the reader, of the buffer too
    kinds = []
    while (buffer := stage.partition.subpartitions[0].poll()) is not None:
        kinds.append(buffer.data_type)
        buffer.recycle()
    assert kinds == [DataType.DATA, DataType.EVENT]
    stage.writer.flush()
    assert stage.read(1) == frame(b"b")


def test_the_end_comes_behind_everything() -> None:
    stage = Stage()
    stage.emit(b"a")
    stage.writer.end(drain=True)
    kinds = []
    while (buffer := stage.partition.subpartitions[0].poll()) is not None:
        kinds.append(buffer.data_type)
        buffer.recycle()
    assert kinds == [DataType.DATA, DataType.END_OF_DATA, DataType.END_OF_PARTITION]
    with pytest.raises(LocalProtocolError, match="partition 'p' is finished"):
        stage.writer.try_emit(b"b")


def test_an_abandoned_writer_leaves_what_it_wrote() -> None:
    stage = Stage(subpartitions=2)
    stage.emit(b"a")
    stage.emit(b"b")
    stage.writer.abandon()
    stage.writer.abandon()
    assert [stage.read(0), stage.read(1)] == [frame(b"a"), frame(b"b")]
    assert stage.pool.statistics().used == 0


@pytest.mark.parametrize("end", ["release", "fail"])
def test_after_a_release_nothing_is_written_and_every_segment_is_home(end: str) -> None:
    stage = Stage(subpartitions=2)
    stage.emit(b"a")
    stage.emit(b"b")
    if end == "fail":
        stage.partition.fail("disk full")
    else:
        stage.partition.release()
    with pytest.raises((LocalProtocolError, PoolDestroyed)):
        stage.emit_until_full(b"c" * 20)
    stage.writer.abandon()
    assert stage.network.statistics().lent_segments == 0


# Arrays that are no batch.


def test_what_is_no_batch_of_records() -> None:
    for array in (np.zeros((2, 2)), np.zeros((1, 2, 3), np.uint8), np.array(1), np.array(["a", None], object)):
        with pytest.raises(RecordError, match="array of"):
            rows_of(array)
    assert rows_of(np.arange(3, dtype="<i8")).shape == (3, 8)
    assert rows_of(np.zeros((3, 0), np.uint8)).shape == (3, 0)
    strided = np.arange(10, dtype="<i4")[::2]
    assert rows_of(strided).tobytes() == strided.tobytes()


@pytest.mark.parametrize("size", [SIZE, 1024])
@pytest.mark.parametrize("way", ["encoded", "share", "longer", "write"])
def test_whatever_follows_a_run_comes_behind_it(way: str, size: int) -> None:
    stage = Stage(segment_bytes=size, segments=512, buffers=(512, None))
    stage.emit(b"long first")  # opens a buffer
    written = frame(b"long first")
    for number in range(20):
        for record in (b"%d" % (number % 10), b"a", b"b"):
            stage.emit(record)
            written += frame(record)
        payload = b"x" * (200 if way == "longer" else 1)
        if way == "encoded":
            assert stage.writer.try_write(0, payload)
        elif way == "longer":
            stage.emit(payload)
        else:
            shares = Shares([0], [1], 1, True, memoryview(payload))
            if way == "write" or not stage.writer.batches.write_shares(shares):
                _, _, write = stage.writer.batches.write_of_share(shares)
                assert write.advance()
                stage.writer.buffers.after_write(0)
        written += frame(payload)
    stage.writer.flush()
    assert stage.read() == written
