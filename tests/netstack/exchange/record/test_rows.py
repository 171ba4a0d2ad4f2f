"""Fixed-width records read as arrays."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest

from netstack.base.errors import ConfigError, LocalProtocolError, RecordError
from netstack.exchange.record.framing import BULK_LIMIT_BYTES, MAX_RECORD_BYTES, FramedBatch, frame, head_of
from netstack.exchange.record.rows import RowDeserializer


def make_rows(count: int, width: int) -> npt.NDArray[np.uint8]:
    return (np.arange(count * width) * 7 + 1).astype(np.uint8).reshape(count, width)


def make_stream(rows: npt.NDArray[np.uint8]) -> bytes:
    out = bytearray(len(rows) * (rows.shape[1] + 4))
    FramedBatch(rows).write(0, len(out), memoryview(out))
    return bytes(out)


def feed_cut(reader: RowDeserializer, stream: bytes, buffer_bytes: int) -> int:
    """Feeds through one buffer that is overwritten each time, as a network buffer is."""
    buffer = bytearray(buffer_bytes)
    fed = 0
    for start in range(0, len(stream), buffer_bytes):
        piece = stream[start : start + buffer_bytes]
        buffer[: len(piece)] = piece
        fed += reader.feed(memoryview(buffer)[: len(piece)])
        buffer[:] = b"\xee" * buffer_bytes
    return fed


def joined(arrays: list[npt.NDArray[np.uint8]], width: int) -> npt.NDArray[np.uint8]:
    return np.concatenate(arrays) if arrays else np.empty((0, width), np.uint8)


@pytest.mark.parametrize("width", [0, 1, 2, 4, 7, 8, 24, 100, 3000, BULK_LIMIT_BYTES, BULK_LIMIT_BYTES + 1])
@pytest.mark.parametrize("buffer_bytes", [3, 64, 4096])
def test_rows_come_back_whatever_the_buffer_size(width: int, buffer_bytes: int) -> None:
    rows = make_rows(max(3, min(700, 9000 // (width + 1))), width)
    reader = RowDeserializer(width)
    assert feed_cut(reader, make_stream(rows), buffer_bytes) == len(rows)
    taken = reader.take()
    assert len(taken) == 1
    assert taken[0].flags.c_contiguous
    assert np.array_equal(taken[0], rows)
    assert reader.take() == []
    assert reader.pending_bytes == 0
    assert reader.unconsumed() == b""


@pytest.mark.parametrize("width", [32764, 32768, 65536])
def test_records_as_long_as_a_buffer_and_longer(width: int) -> None:
    rows = make_rows(4, width)
    reader = RowDeserializer(width)
    assert feed_cut(reader, make_stream(rows), 32768) == 4
    assert np.array_equal(joined(reader.take(), width), rows)


@pytest.mark.parametrize(("width", "block_bytes"), [(8, 1), (8, 24), (8, 100), (3, 7), (20_000, 50_000), (1, 5)])
def test_rows_straddle_blocks(width: int, block_bytes: int) -> None:
    rows = make_rows(41, width)
    reader = RowDeserializer(width, block_bytes=block_bytes)
    feed_cut(reader, make_stream(rows), 1000)
    taken = reader.take()
    assert len(taken) > 1
    assert all(len(array) for array in taken)
    assert np.array_equal(joined(taken, width), rows)


def test_taken_rows_are_never_written_again() -> None:
    rows = make_rows(1000, 8)
    stream = make_stream(rows)
    reader = RowDeserializer(8, block_bytes=640)
    taken: list[npt.NDArray[np.uint8]] = []
    copies: list[npt.NDArray[np.uint8]] = []
    for start in range(0, len(stream), 77):
        reader.feed(memoryview(stream)[start : start + 77])
        for array in reader.take():
            taken.append(array)
            copies.append(array.copy())
    assert np.array_equal(joined(taken, 8), rows)
    for array, copy in zip(taken, copies, strict=True):
        assert np.array_equal(array, copy)


def test_taken_arrays_are_aligned_views_that_serve_as_numbers() -> None:
    numbers = np.arange(5000, dtype="<i8")
    reader = RowDeserializer(8)
    feed_cut(reader, make_stream(numbers.view(np.uint8).reshape(-1, 8)), 32768)
    (taken,) = reader.take()
    assert taken.flags.writeable
    assert np.array_equal(taken.view("<i8")[:, 0], numbers)


def test_feed_counts_the_records_it_completed() -> None:
    reader = RowDeserializer(2)
    assert reader.feed(memoryview(b"\0\0")) == 0
    assert reader.feed(memoryview(b"\0\2a")) == 0
    assert reader.feed(memoryview(b"")) == 0
    assert reader.feed(memoryview(b"b" + frame(b"cd") + b"\0")) == 2
    assert [array.tobytes() for array in reader.take()] == [b"abcd"]


def test_a_torn_record_can_be_snapshot_at_every_byte() -> None:
    cell = frame(b"abcdefgh")
    for size in range(1, len(cell)):
        reader = RowDeserializer(8)
        for index in range(size):
            reader.feed(memoryview(cell)[index : index + 1])
        assert reader.unconsumed() == cell[:size]
        assert reader.pending_bytes == size
        other = RowDeserializer(8)
        other.feed(memoryview(reader.unconsumed()))
        assert other.feed(memoryview(cell)[size:]) == 1
        assert other.take()[0].tobytes() == b"abcdefgh"


@pytest.mark.parametrize("good", [0, 1, 3, 4, 100])
@pytest.mark.parametrize("buffer_bytes", [1, 5, 4096])
def test_another_width_is_an_error_that_names_both(good: int, buffer_bytes: int) -> None:
    rows = make_rows(good, 8)
    stream = make_stream(rows) + frame(b"123456789") + frame(b"12345678")
    reader = RowDeserializer(8)
    with pytest.raises(RecordError, match=rf"record {good} .* has 9 bytes .* records of 8 bytes"):
        feed_cut(reader, stream, buffer_bytes)
    assert np.array_equal(joined(reader.take(), 8), rows)  # what came before is good
    assert reader.pending_bytes == 0
    assert reader.unconsumed() == b""
    with pytest.raises(LocalProtocolError, match=f"record {good} "):
        reader.feed(memoryview(b"\0"))


@pytest.mark.parametrize("width", [20_000, BULK_LIMIT_BYTES + 1])
def test_another_width_among_long_records(width: int) -> None:
    reader = RowDeserializer(width)
    memory = memoryview(frame(bytes(width)) + frame(bytes(width - 1)) + bytes(100))
    with pytest.raises(RecordError, match="record 1 "):
        reader.feed(memory)


def test_a_wrong_length_is_found_before_its_payload_comes() -> None:
    reader = RowDeserializer(8)
    with pytest.raises(RecordError, match=f"{2**31 - 1} bytes"):
        reader.feed(memoryview(b"\x7f\xff\xff\xff"))


def test_a_run_of_another_width_is_found_before_its_payload_comes() -> None:
    reader = RowDeserializer(8)
    with pytest.raises(RecordError, match=r"record 0 .* 9 bytes .* head of its run"):
        reader.feed(memoryview(head_of(2, 9)))


def test_where_runs_are_not_spoken_their_head_is_a_length() -> None:
    reader = RowDeserializer(8, accepts_runs=False)
    with pytest.raises(RecordError, match=f"{2**31 + 2} bytes"):
        reader.feed(memoryview(head_of(2, 8)))


def test_no_memory_is_asked_for_before_the_first_byte() -> None:
    tracemalloc.start()
    try:
        readers = [RowDeserializer(8) for _ in range(100)]
        assert tracemalloc.get_traced_memory()[1] < 100_000
        readers[0].feed(memoryview(frame(b"12345678")))
        assert tracemalloc.get_traced_memory()[1] > 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("width", [-1, MAX_RECORD_BYTES + 1])
def test_widths_no_record_can_have(width: int) -> None:
    with pytest.raises(ConfigError, match="record_bytes"):
        RowDeserializer(width)


def test_blocks_hold_something() -> None:
    with pytest.raises(ConfigError, match="block_bytes=0"):
        RowDeserializer(8, block_bytes=0)
