"""The blocking RecordWriter: bounds, timeouts, lingering, order, and what happens to records that cannot be written."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from netstack import (
    AdaptiveRebalanceSelector,
    BroadcastSelector,
    ChannelDescriptor,
    CheckpointBarrier,
    ConsumerLost,
    CustomSelector,
    LocalProtocolError,
    NetworkConfig,
    ProducerFailed,
    RecordError,
    UserEvent,
    blocking,
)

from .conftest import PATIENCE_S, Pair

SMALL = NetworkConfig(segment_size_bytes=4096)
BIG = bytes(100_000)


def read_all(gate: blocking.InputGate, format: str) -> list[Any]:
    return list(blocking.RecordReader(gate, format=format))


def fill(writer: blocking.RecordWriter) -> int:
    """Emits until there is no room."""
    for count in itertools.count():
        try:
            writer.emit(BIG, timeout_s=0.05)
        except TimeoutError as error:
            assert "waiting for room in partition" in str(error)  # noqa: PT017 - any of the calls may be the one
            return count
    raise AssertionError("there was always room")


def test_without_room_a_call_waits_and_what_timed_out_was_not_taken(pair: Pair, background: Any) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, buffer_timeout_s=None)
    count = fill(writer)
    assert writer.unwritten_records <= 1
    with pytest.raises(blocking.WouldBlock):
        writer.emit_nowait(BIG)
    with pytest.raises(TimeoutError):
        writer.emit_batch(np.zeros((2, 7), np.uint8), timeout_s=0)
    reading = background(lambda: read_all(gate, "bytes"))
    writer.emit(b"last", timeout_s=PATIENCE_S)
    writer.finish(timeout_s=PATIENCE_S)
    assert reading.outcome() == [BIG] * count + [b"last"]
    writer.wait_consumed(timeout_s=PATIENCE_S)
    assert writer.unwritten_records == 0


def test_no_record_overtakes_a_batch_that_the_loop_completes(background: Any) -> None:
    pair = Pair(SMALL)
    partition, gate = pair.join(2)
    writer = blocking.RecordWriter(partition, buffer_timeout_s=None)
    writer.emit(b"\0")
    writer.emit(b"\0")  # the second channel has an open buffer with room now, in which the batch has no part yet
    batch = np.ones((401, 4000), np.uint8)  # odd, so that the next record is the second channel's
    writer.emit_batch(batch, timeout_s=0.05)  # taken; the loop writes the rest, first of the first channel
    assert writer.unwritten_records == len(batch)
    taken = 0
    for _ in range(4):
        with pytest.raises(TimeoutError):
            writer.flush(timeout_s=0)
        with contextlib.suppress(blocking.WouldBlock):
            writer.emit_nowait(b"\2")
            taken += 1
    reader = blocking.RecordReader(gate)
    actual: list[list[int]] = [[], []]

    def read() -> None:
        while (records := reader.next_records(timeout_s=PATIENCE_S)) is not None:
            actual[reader.channel_index] += [record[0] for record in records]

    reading = background(read)
    writer.finish(timeout_s=PATIENCE_S)
    reading.outcome()
    assert sum(map(len, actual)) == len(batch) + 2 + taken
    assert actual == [sorted(numbers) for numbers in actual]
    pair.close()


def test_a_call_waits_for_a_batch_that_waits_for_its_memory(pair: Pair, background: Any) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition)
    reading = background(lambda: sum(map(len, blocking.ArrayReader(gate, record_bytes=9000))))
    batch = np.ones((20, 9000), np.uint8)  # so large that it is sent from its own memory, for which a call waits 2 ms
    taken = 0
    for number in range(400):
        with contextlib.suppress(TimeoutError):
            writer.emit_batch(batch, timeout_s=0.001 * (number % 5))
            taken += len(batch)
            writer.flush(timeout_s=PATIENCE_S)
    writer.finish(timeout_s=PATIENCE_S)
    assert reading.outcome() == taken


@pytest.mark.parametrize("buffer_timeout_s", [0, 0.001, 0.02])
def test_a_record_leaves_within_the_buffer_timeout_though_no_call_follows(pair: Pair, buffer_timeout_s: float) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="str", buffer_timeout_s=buffer_timeout_s)
    reader = blocking.RecordReader(gate, format="str")
    for word in ["each", "of", "them", "alone"]:
        writer.emit(word)
        assert reader.next_records(timeout_s=PATIENCE_S) == [word]


def test_without_a_buffer_timeout_records_wait_for_a_flush(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="str", buffer_timeout_s=None)
    reader = blocking.RecordReader(gate, format="str")
    writer.emit("waits")
    with pytest.raises(TimeoutError, match="waiting for records"):
        reader.next_records(timeout_s=0.02)
    writer.flush()
    assert reader.next_records(timeout_s=PATIENCE_S) == ["waits"]


def test_everything_keeps_its_order(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="int64")
    writer.emit(0)
    numbers = np.arange(1, 1000)
    writer.emit_batch(numbers)
    numbers[:] = -1  # it was copied
    writer.emit_nowait(1000)
    writer.broadcast_event(CheckpointBarrier(1, 0))
    writer.emit_batch(np.array([], np.int64))
    writer.emit(1001)
    writer.finish()
    writer.finish()
    reader = blocking.RecordReader(gate, format="int64")
    actual = list(reader)
    assert isinstance(actual.pop(1001), CheckpointBarrier)
    assert actual == list(range(1002))
    writer.wait_consumed(timeout_s=PATIENCE_S)


def test_a_record_may_be_changed_once_it_was_taken(pair: Pair) -> None:
    partition, gate = pair.join(subpartitions=2)
    by_key = CustomSelector(lambda record, channels: record["key"])
    writer = blocking.RecordWriter(partition, format="msgpack", selector=by_key, buffer_timeout_s=None)
    record = {"key": 1}
    writer.emit(record)
    record["key"] = 0
    writer.emit(record)
    writer.finish()
    reader = blocking.RecordReader(gate, format="msgpack")
    actual = {}
    while (records := reader.next_records(timeout_s=PATIENCE_S)) is not None:
        actual[reader.channel_index] = records
    assert actual == {0: [{"key": 0}], 1: [{"key": 1}]}


@pytest.mark.parametrize("selector", [BroadcastSelector(), AdaptiveRebalanceSelector(), None])
def test_selectors_choose_as_they_do_in_trio(pair: Pair, selector: Any) -> None:
    partition, gate = pair.join(subpartitions=3)
    writer = blocking.RecordWriter(partition, format="int64", selector=selector)
    for number in range(50):
        writer.emit(number)
    writer.emit_batch(np.arange(0))
    writer.emit_batch(np.arange(50, 5000))
    writer.emit_batch(np.arange(5000, 5004))
    writer.finish()
    each: list[list[int]] = [[], [], []]
    reader = blocking.RecordReader(gate, format="int64")
    while (records := reader.next_records(timeout_s=PATIENCE_S)) is not None:
        each[reader.channel_index] += records
    if isinstance(selector, BroadcastSelector):
        assert each == [list(range(5004))] * 3
    elif selector is None:
        assert each == [list(range(start, 5004, 3)) for start in range(3)]
    else:
        assert sorted(itertools.chain(*each)) == list(range(5004))
        assert all(numbers == sorted(numbers) for numbers in each)


def test_an_arrow_batch_travels_as_one_record(pair: Pair) -> None:
    pa = pytest.importorskip("pyarrow")
    partition, gate = pair.join(subpartitions=2)
    writer = blocking.RecordWriter(partition, format="arrow")
    batch = pa.record_batch({"n": np.arange(10_000)})
    writer.emit_batch(batch)
    writer.emit(batch)
    with pytest.raises(RecordError, match="batch of arrow records"):
        writer.emit_batch(np.arange(3))
    writer.finish()
    assert read_all(gate, "arrow") == [batch, batch]


def test_an_error_of_a_record_belongs_to_its_call(pair: Pair) -> None:
    partition, gate = pair.join(subpartitions=2)
    picky = CustomSelector(lambda record, channels: {"left": 0, "right": 1}[record])
    writer = blocking.RecordWriter[str](partition, format="str", selector=picky)
    for emit in writer.emit, writer.emit_nowait:
        with pytest.raises(RecordError, match="format str"):
            emit(1)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="middle"):
        writer.emit("middle")
    with pytest.raises(RecordError, match="their width varies"):
        writer.emit_batch(np.arange(3))
    with pytest.raises(RecordError, match="give a numpy array"):
        writer.emit_batch(["left"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="user event"):
        writer.broadcast_event(UserEvent("long" * 100))
    writer.emit("left")
    writer.finish()
    assert read_all(gate, "str") == ["left"]


def test_one_thread_at_a_time(pair: Pair, background: Any) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, buffer_timeout_s=None)
    count = fill(writer)

    def emit() -> None:
        while True:
            with contextlib.suppress(LocalProtocolError):  # the main thread is in its call
                writer.emit(BIG)
                return

    waiting = background(emit)
    while not partition.statistics().is_finished:  # until the other thread is in its call
        try:
            writer.emit(BIG, timeout_s=0)
        except TimeoutError:
            continue
        except LocalProtocolError as error:
            assert "another thread is in a call of the writer of partition 'p0'" in str(error)  # noqa: PT017
            break
    reading = background(lambda: read_all(gate, "bytes"))
    waiting.outcome()
    background(writer.finish).outcome()  # another thread, but not at the same time
    assert reading.outcome() == [BIG] * (count + 1)


def test_what_fails_later_is_told_at_the_next_call_with_how_much_was_lost(pair: Pair, background: Any) -> None:
    partition, _ = pair.join()
    writer = blocking.RecordWriter(partition, buffer_timeout_s=None)
    fill(writer)
    waiting = background(lambda: writer.emit(BIG))
    partition.fail("the source is gone")
    with pytest.raises(Exception, match=r"the source is gone|released") as caught:
        waiting.outcome()
    lost = writer.unwritten_records
    assert lost <= 1
    assert f"{lost} records that its writer had taken were not written" in caught.value.__notes__[0]
    for call in writer.flush, writer.finish, writer.wait_consumed, lambda: writer.emit(BIG):
        with pytest.raises(LocalProtocolError, match=f"since its writer failed; {lost} records"):
            call()


def test_consumers_are_told_why_a_producer_failed(pair: Pair) -> None:
    partition, gate = pair.join()
    partition.fail("the source is gone")
    with pytest.raises(ProducerFailed, match="the source is gone"):
        read_all(gate, "bytes")
    pair.producer.release_partition("unknown")
    gate.close()
    assert gate.channel_count == len(gate.statistics().channels) == 1


def test_after_the_end_nothing_can_be_written(pair: Pair) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition)
    writer.finish()
    for call in writer.flush, lambda: writer.emit(b""), lambda: writer.emit_batch(np.zeros((1, 1), np.uint8)):
        with pytest.raises(LocalProtocolError, match="which is finished"):
            call()
    assert read_all(gate, "bytes") == []
    writer.wait_consumed(timeout_s=PATIENCE_S)


@pytest.mark.parametrize("seed", range(8))
def test_closing_at_any_moment_wakes_the_writer(seed: int, background: Any) -> None:
    pair = Pair(SMALL)
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="int64", buffer_timeout_s=[0, 0.001, None][seed % 3])
    reader = blocking.RecordReader(gate, format="int64")
    enough = threading.Event()

    def write() -> None:
        number = 0
        while True:
            writer.emit(number)
            number += 1
            if number == 3000 * seed:
                enough.set()

    def read() -> list[int]:
        actual: list[int] = []
        try:
            for number in reader:
                actual.append(number)
        finally:
            assert actual == list(range(len(actual)))
        return actual

    writing, reading = background(write), background(read)
    if seed:
        assert enough.wait(PATIENCE_S)
    (pair.producer if seed % 2 else pair.consumer).close()
    pair.close()
    with pytest.raises((ConsumerLost, LocalProtocolError), match=r"closed|released|before the end"):
        writing.outcome()
    with pytest.raises(Exception, match=r"closed|released|lost|ended"):
        reading.outcome()


def test_a_gate_that_does_not_open_in_time(pair: Pair) -> None:
    with pytest.raises(TimeoutError, match="opening a gate: not within 0 s"):
        pair.consumer.open_gate([ChannelDescriptor(pair.producer.address, "later")], timeout_s=0)
    assert pair.consumer.config == NetworkConfig()
    assert pair.consumer.metrics_address is None


def test_a_record_that_is_too_long_is_not_taken(background: Any) -> None:
    pair = Pair(NetworkConfig(segment_size_bytes=4096, max_record_bytes=5000))
    try:
        partition, gate = pair.join()
        writer = blocking.RecordWriter(partition)
        writer.emit(b"before")
        for emit in (
            lambda: writer.emit(bytes(5001)),
            lambda: writer.emit_nowait(bytes(5001)),
            lambda: writer.emit_batch(np.zeros((2, 5001), np.uint8)),
        ):
            with pytest.raises(RecordError, match=r"\b5001\b.*=5000"):
                emit()
        writer.emit(bytes(5000))
        writer.finish()
        assert read_all(gate, "bytes") == [b"before", bytes(5000)]
    finally:
        pair.close()


def test_a_batch_of_columns_that_is_too_long_is_not_taken() -> None:
    pair = Pair(NetworkConfig(segment_size_bytes=4096, max_record_bytes=5000))
    try:
        partition, gate = pair.join()
        writer = blocking.RecordWriter(partition, format="arrow")
        with pytest.raises(RecordError, match="max_record_bytes=5000"):
            writer.emit_batch(pa.record_batch({"x": np.zeros(1000)}))
        small = pa.record_batch({"x": np.zeros(10)})
        writer.emit_batch(small)
        writer.finish()
        assert read_all(gate, "arrow") == [small]
    finally:
        pair.close()


def test_what_is_closed_with_the_network_can_be_closed_again(pair: Pair) -> None:
    partition, gate = pair.join()
    reader = blocking.RecordReader(gate)

    def write_too_long() -> None:
        with blocking.RecordWriter[bytes](partition) as writer:
            writer.emit(b"x")
            pair.close()
            writer.emit(b"x")

    with pytest.raises(LocalProtocolError, match="closed with an open writer") as caught:
        write_too_long()
    assert caught.value.__notes__, "leaving the block must not replace the error that says how many records were lost"
    for close in (reader.close, gate.close, lambda: partition.fail("late"), pair.producer.close):
        close()
    pair.producer.release_partition(partition.partition_id)
