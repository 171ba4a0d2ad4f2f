"""The blocking readers: nothing that was fetched is lost, and nothing counts as processed too early."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from netstack import CheckpointBarrier, LocalProtocolError, ProducerFailed, RecordError, UserEvent, blocking
from netstack.exchange.inbound.closing import UnreadRecordsWarning

from .conftest import PATIENCE_S, Pair


def test_an_iteration_that_was_left_goes_on(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="int64")
    writer.emit_batch(np.arange(10))
    writer.finish()
    reader = blocking.RecordReader(gate, format="int64")
    actual = []
    for number in reader:
        actual.append(number)
        if number == 3:
            break
    assert reader.next_records() == [4, 5, 6, 7, 8, 9]
    assert actual + list(reader) == [0, 1, 2, 3]
    assert reader.next_records() is None


def test_a_with_block_closes_readers_and_gates_and_warns_of_what_was_not_read(pair: Pair) -> None:
    def begin() -> blocking.InputGate:
        partition, gate = pair.join()
        writer = blocking.RecordWriter(partition, format="int64")
        writer.emit_batch(np.arange(3))
        writer.finish()
        return gate

    with blocking.RecordReader(begin(), format="int64") as reader:
        assert list(reader) == [0, 1, 2]
    with blocking.ArrayReader(begin(), "<i8") as arrays:
        assert np.concatenate(list(arrays)).tolist() == [0, 1, 2]
    reader = blocking.RecordReader(begin(), format="int64")
    with pytest.warns(UnreadRecordsWarning, match="left 2 records"), reader:
        assert next(iter(reader)) == 0
    arrays = blocking.ArrayReader(begin(), "<i8")
    with pytest.warns(UnreadRecordsWarning, match="1 of 1 channels"), arrays:
        pass
    with pytest.raises(LocalProtocolError):
        arrays.next_array(timeout_s=PATIENCE_S)
    with pytest.warns(UnreadRecordsWarning, match="1 of 1 channels"), begin():
        pass
    with blocking.RecordReader(begin(), format="int64") as reader:
        assert next(iter(reader)) == 0
        reader.close()  # stopping early on purpose
    with pytest.raises(ZeroDivisionError), blocking.RecordReader(begin(), format="int64"):
        raise ZeroDivisionError  # an error is no mistake of the reader
    with blocking.RecordReader(begin(), format="int64"):
        pair.consumer.close()


def test_the_producer_hears_of_the_end_only_when_more_is_asked_for(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="str")
    writer.emit("to be processed")
    writer.finish()
    reader = blocking.RecordReader(gate, format="str")
    for word in reader:
        assert word == "to be processed"
        with pytest.raises(TimeoutError, match="waiting for the consumers of partition"):
            writer.wait_consumed(timeout_s=0.02)
    writer.wait_consumed(timeout_s=PATIENCE_S)


def test_a_barrier_is_seen_before_its_channel_goes_on(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="str")
    writer.emit("before")
    writer.broadcast_event(CheckpointBarrier(1, 0))
    writer.emit("after")
    writer.broadcast_event(UserEvent("tell", b"x"), priority=True)
    writer.finish()
    seen = list(blocking.RecordReader(gate, format="str"))
    assert [element for element in seen if isinstance(element, str)] == ["before", "after"]
    assert seen.index("before") < next(i for i, e in enumerate(seen) if isinstance(e, CheckpointBarrier)) < len(seen)
    assert UserEvent("tell", b"x") in seen


def test_a_barrier_is_aligned_over_the_channels(pair: Pair) -> None:
    (first, one), (second, other) = pair.join_later(), pair.join_later()
    gate = pair.consumer.open_gate([one, other], timeout_s=PATIENCE_S)
    reader = blocking.RecordReader[Any](gate, format="str", aligns_barriers=True)
    writers = [blocking.RecordWriter(each, format="str", buffer_timeout_s=0) for each in (first, second)]
    writers[0].broadcast_event(CheckpointBarrier(1))
    writers[0].emit("after")
    writers[0].finish()
    writers[1].emit("before")
    assert reader.next_records(timeout_s=PATIENCE_S) == ["before"]
    with pytest.raises(TimeoutError):
        reader.next_records(timeout_s=0)
    writers[1].finish()  # the end counts as a barrier
    barrier, after = reader
    assert (barrier.checkpoint_id, after) == (1, "after")


def test_an_array_without_records_marks_an_aligned_barrier(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="int64", buffer_timeout_s=0)
    writer.emit(1)
    writer.broadcast_event(CheckpointBarrier(1))
    writer.emit(2)
    writer.finish()
    reader = blocking.ArrayReader(gate, "<i8", aligns_barriers=True)
    assert [(array.tolist(), len(reader.events)) for array in reader] == [([1], 0), ([], 1), ([2], 1)]


def test_arrays_and_their_events(pair: Pair, background: Any) -> None:
    partition, gate = pair.join(subpartitions=2)
    writer = blocking.RecordWriter(partition, format="int64")

    def write() -> None:
        writer.emit_batch(np.arange(100_000))
        writer.broadcast_event(UserEvent("tell", b"half"))
        writer.emit_batch(np.arange(100_000, 200_000))
        writer.finish()

    writing = background(write)
    reader = blocking.ArrayReader(gate, "<i8")
    each: list[list[Any]] = [[], []]
    for array in reader:
        each[reader.channel_index].append(array)
    writing.outcome()
    assert [np.concatenate(arrays).tolist() for arrays in each] == [list(range(s, 200_000, 2)) for s in (0, 1)]
    assert sorted(reader.events, key=lambda met: met[0]) == [
        (0, UserEvent("tell", b"half")),
        (1, UserEvent("tell", b"half")),
    ]
    writer.wait_consumed(timeout_s=PATIENCE_S)


def test_rows_of_bytes(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition)
    rows = np.arange(60, dtype=np.uint8).reshape(20, 3)
    writer.emit_batch(rows)
    writer.finish()
    assert np.concatenate(list(blocking.ArrayReader(gate, record_bytes=3))).tolist() == rows.tolist()


def test_what_came_before_a_failure_is_handed_out_first(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="str", buffer_timeout_s=0)
    reader = blocking.RecordReader(gate, format="str")
    writer.emit("first")
    assert reader.next_records(timeout_s=PATIENCE_S) == ["first"]
    partition.fail("out of luck")
    with pytest.raises(ProducerFailed, match="out of luck"):
        reader.next_records(timeout_s=PATIENCE_S)


def test_bytes_that_are_no_records_are_told_behind_those_that_are(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, buffer_timeout_s=None)
    writer.emit(b"12345678")
    writer.flush()
    writer.emit(b"123")
    writer.finish()
    reader = blocking.RecordReader(gate, format="int64")
    with pytest.raises(RecordError, match=r"3 bytes .* int64"):
        list(reader)


def test_a_timeout_loses_nothing(pair: Pair, background: Any) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="int64", buffer_timeout_s=0)

    def write() -> None:
        for number in range(3000):
            writer.emit(number)
        writer.finish()

    writing = background(write)
    reader = blocking.RecordReader(gate, format="int64")
    actual: list[int] = []
    while True:
        try:
            records = reader.next_records(timeout_s=0)
        except TimeoutError:
            continue
        if records is None:
            break
        actual += records
    writing.outcome()
    assert actual == list(range(3000))


@pytest.mark.parametrize("what", ["reader", "gate", "manager"])
def test_closing_wakes_a_reader_that_waits(pair: Pair, background: Any, what: str) -> None:
    partition, gate = pair.join()
    blocking.RecordWriter(partition, format="str", buffer_timeout_s=0).emit("one")
    reader = blocking.RecordReader(gate, format="str")
    assert reader.next_records(timeout_s=PATIENCE_S) == ["one"]
    waiting = background(reader.next_records)
    with pytest.raises(LocalProtocolError, match="another call of this reader is under way"):
        _ask_until_refused(reader)
    {"reader": reader.close, "gate": gate.close, "manager": pair.consumer.close}[what]()
    with pytest.raises(LocalProtocolError, match="closed"):
        waiting.outcome()
    with pytest.raises(LocalProtocolError, match="closed"):
        reader.next_records()


def _ask_until_refused(reader: blocking.RecordReader) -> None:
    """Asks for records until the other thread is in its call."""
    while True:
        with contextlib.suppress(TimeoutError):
            reader.next_records(timeout_s=0)
