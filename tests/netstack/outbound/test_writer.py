"""PartitionWriter: records into buffers, when they become visible, and what happens when there is no buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from netstack.buffer.lent import LentBuffer
from netstack.buffer.network_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, PoolDestroyed, RecordError
from netstack.events import DataType, UserEvent
from netstack.ids import PartitionId, ResultPartitionType
from netstack.outbound.emission import KICK_BUFFERS
from netstack.outbound.open_buffers import SLICE_S
from netstack.outbound.partition import ResultPartition
from netstack.outbound.selector import (
    BroadcastSelector,
    ChannelSelector,
    CustomSelector,
    RebalanceSelector,
)
from netstack.outbound.writer import LEND_BYTES, PartitionWriter, rows_of
from netstack.record.formats import format_named
from netstack.record.framing import frame
from netstack.testing.scripted import VirtualHost

SIZE = 32


def nothing() -> None:
    pass


class Refused(Exception):
    pass


class Stage:
    """A partition, its writer, and a clock."""

    def __init__(
        self,
        *,
        subpartitions: int = 1,
        selector: ChannelSelector | None = None,
        timeout_s: float | None = None,
        buffers: tuple[int, int | None] | None = None,
        segments: int = 64,
        segment_bytes: int = SIZE,
        overdraft: int = 0,
        quota: int | None = None,
        format: str = "bytes",
    ) -> None:
        self.network = NetworkBufferPool(segments, segment_bytes)
        self.host = VirtualHost(nothing)
        self.pool = self.network.create_pool(
            *(buffers or (subpartitions + 1, None)),
            subpartitions=subpartitions,
            max_buffers_per_channel=quota,
            max_overdraft=overdraft,
        )
        self.partition = ResultPartition(
            PartitionId("p"),
            ResultPartitionType.PIPELINED,
            subpartitions,
            self.pool,
            on_released=lambda partition: None,
            host=self.host,
        )
        self.writer = PartitionWriter(
            self.partition,
            selector=selector or RebalanceSelector(),
            format=format_named(format),
            buffer_timeout_s=timeout_s,
            refuse=Refused,
        )
        self.told = [0] * subpartitions
        for index in range(subpartitions):
            self.partition.create_view(index, self.teller(index))

    def teller(self, index: int) -> Callable[[], None]:
        def tell() -> None:
            self.told[index] += 1

        return tell

    def visible(self, subpartition: int = 0) -> bool:
        return self.partition.subpartitions[subpartition].is_available(has_credit=True)

    def read_one(self, subpartition: int = 0) -> bytes | None:
        """The next data a reader would be given, if it is told of any."""
        while self.visible(subpartition):
            buffer = self.partition.subpartitions[subpartition].poll()
            if buffer is None:
                return None
            data, kind = bytes(buffer.contiguous()), buffer.data_type
            buffer.recycle()
            if kind is DataType.DATA:
                return data
        return None

    def read(self, subpartition: int = 0) -> bytes:
        """All a reader would be given now."""
        found = bytearray()
        while (data := self.read_one(subpartition)) is not None:
            found += data
        return bytes(found)

    def emit(self, record: Any) -> None:
        assert self.writer.try_emit(record)

    def emit_until_full(self, record: bytes, limit: int = 1000) -> int:
        count = 0
        while count < limit and self.writer.try_emit(record):
            count += 1
        return count


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


# The buffer timeout.


def test_the_first_unflushed_byte_arms_the_deadline() -> None:
    stage = Stage(timeout_s=0.1)
    stage.emit(b"a")
    stage.host.advance(0.06)
    stage.emit(b"b")
    stage.host.advance(0.03)
    assert not stage.visible()
    kicks = stage.host.kicks
    stage.host.advance(0.02)
    assert stage.host.kicks == kicks + 1
    assert stage.read() == frame(b"a") + frame(b"b")
    assert stage.partition.statistics().flushes_timeout == 1
    assert stage.host.pending_calls == 0  # an idle writer costs nothing


def test_what_follows_a_flush_gets_a_deadline_of_its_own() -> None:
    stage = Stage(timeout_s=0.1)
    stage.emit(b"a")
    stage.host.advance(0.1)
    assert stage.read() == frame(b"a")
    stage.host.advance(5)
    stage.emit(b"b")
    stage.host.advance(0.09)
    assert not stage.visible()
    stage.host.advance(0.02)
    assert stage.read() == frame(b"b")


def test_bytes_behind_a_flush_that_nobody_has_read_go_with_it() -> None:
    stage = Stage(timeout_s=0.1)
    stage.emit(b"a")
    stage.host.advance(0.1)
    stage.emit(b"b")
    assert stage.read() == frame(b"a") + frame(b"b")
    stage.emit(b"c")
    stage.host.advance(0.1)
    assert stage.read() == frame(b"c")


def test_a_deadline_of_a_buffer_that_left_is_forgotten() -> None:
    stage = Stage(timeout_s=0.1)
    stage.emit(b"a")
    stage.host.advance(0.05)
    stage.emit(b"x" * 23)  # fills it to the last byte
    stage.emit(b"b")
    stage.read()
    stage.host.advance(0.06)  # the first deadline has passed
    assert not stage.visible()
    assert stage.partition.statistics().flushes_timeout == 0
    stage.host.advance(0.05)
    assert stage.read() == frame(b"b")


def test_every_subpartition_has_its_own_deadline() -> None:
    stage = Stage(subpartitions=3, timeout_s=0.1)
    stage.emit(b"0")
    stage.host.advance(0.04)
    stage.emit(b"1")
    stage.host.advance(0.04)
    stage.emit(b"2")
    for index in range(3):
        stage.host.advance(0.04 if index else 0.021)
        assert [stage.visible(other) for other in range(3)] == [other == index for other in range(3)]
        assert stage.read(index) == frame(b"%d" % index)


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


def test_a_run_of_full_buffers_is_sent_every_few() -> None:
    stage = Stage(timeout_s=None, subpartitions=1)
    kicks = stage.host.kicks
    stage.emit(b"x" * (SIZE * KICK_BUFFERS * 2))
    assert stage.host.kicks - kicks >= 2


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
            slot, emission = stage.writer.plan_record(record)
            while not emission.advance():
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
    """Two buffers hold the first part of a record of 100 bytes; its emission was cancelled."""
    stage = Stage(buffers=(2, 2))
    record = bytes(range(100))
    assert stage.writer.try_emit(record) is False
    slot, emission = stage.writer.plan_record(record)
    assert emission.advance() is False
    stage.writer.tear(slot, emission)
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
    (slot, count, emission), *others = stage.writer.plan_batch(rows, [])
    assert (count, others) == (8, [])
    assert emission.advance() is False
    stage.writer.tear(slot, emission)
    written = stage.read()
    stage.emit(b"next")
    stage.writer.flush()
    written += stage.read()
    assert written == b"".join(frame(row.tobytes()) for row in rows[:6]) + frame(b"next")


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


def buffers(stage: Stage, subpartition: int = 0) -> list[int]:
    """The bytes of each buffer that is in the queue, the open one included."""
    stage.writer.flush()
    found = []
    while (data := stage.read_one(subpartition)) is not None:
        found.append(len(data))
    return found


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
    for _, _, emission in stage.writer.plan_batch(rows, []):
        assert emission.advance()
    assert buffers(stage) == [20] * 7 + [4]


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
    for _, _, emission in stage.writer.plan_batch(rows, []):
        assert emission.advance()
    stage.writer.flush()
    found = []
    while (buffer := stage.partition.subpartitions[0].poll()) is not None:
        found.append(bytes(buffer.contiguous()))
        assert isinstance(buffer, LentBuffer) or len(found) == len(expected)
        buffer.recycle()
    assert list(map(len, found)) == expected
    assert b"".join(found) == b"".join(frame(row.tobytes()) for row in rows)


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
    ((_, _, emission),) = stage.writer.plan_batch(rows, [])
    found = []
    while not emission.advance():
        found += buffers(stage)
        assert sum(found) % 14 == 0
    assert found + buffers(stage) == [16, 26, 16, 26, 16, 12]


def test_a_record_larger_than_all_buffers_takes_what_the_open_one_can_hold() -> None:
    stage = kept_small(16, buffers=(2, 2))
    stage.emit(b"a" * 12)
    stage.emit(b"b" * 4)
    slot, emission = stage.writer.plan_record(b"c" * 46)
    assert not emission.advance()
    assert buffers(stage) == [16, 32]
    assert emission.advance()
    stage.writer.buffers.after_write(slot)
    assert buffers(stage) == [50 - 24]


def test_growing_keeps_the_quick_way_for_what_follows_a_flush() -> None:
    """A buffer whose flush is armed still takes records by comparison alone after it was cut."""
    stage = kept_small(24, timeout_s=0.1)
    stage.emit(b"x" * 4)
    builder = stage.writer.buffers.builders[0]
    assert builder.limit == builder.capacity == 24


# Events, the end, and giving up.


def test_an_event_closes_the_open_buffers_and_stands_on_a_record_boundary() -> None:
    stage = Stage(subpartitions=2)
    stage.emit(b"a")
    stage.writer.broadcast_event(UserEvent("e"))
    stage.emit(b"b")
    assert stage.told == [2, 1]  # the buffer, then the event that follows it
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
