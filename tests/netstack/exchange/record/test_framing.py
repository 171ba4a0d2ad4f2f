"""Framing: single records, whole batches, and any cut of a batch's stream."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from netstack.base.errors import RecordError
from netstack.exchange.record import framing
from netstack.exchange.record.framing import (
    BULK_LIMIT_BYTES,
    LENGTH,
    MAX_RECORD_BYTES,
    PACKER_LIMIT_BYTES,
    FramedBatch,
    check_record_bytes,
    frame,
    packer,
    template,
)

# Around every switch between ways of copying: empty, stamped, scattered, record by record.
WIDTHS = (0, 1, 2, 3, 4, 7, 8, 9, 16, 33, 1000, BULK_LIMIT_BYTES, BULK_LIMIT_BYTES + 1)


def make_rows(count: int, width: int) -> npt.NDArray[np.uint8]:
    return (np.arange(count * width) * 7 + 1).astype(np.uint8).reshape(count, width)


def framed_slice(rows: npt.NDArray[np.uint8], start: int, stop: int, out: memoryview) -> None:
    FramedBatch(rows).write(start, stop, out)


def framed_batch_into(rows: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    batch = FramedBatch(rows)
    batch.write(0, batch.size_bytes, out.data)


def expected_stream(rows: npt.NDArray[np.uint8]) -> bytes:
    return b"".join(frame(row.tobytes()) for row in rows)


def test_a_frame_is_a_big_endian_length_and_the_payload() -> None:
    assert frame(b"abc") == b"\x00\x00\x00\x03abc"
    assert frame(b"") == b"\x00\x00\x00\x00"
    assert frame(memoryview(b"x" * 258)) == b"\x00\x00\x01\x02" + b"x" * 258


@pytest.mark.parametrize("size_bytes", [-1, MAX_RECORD_BYTES + 1])
def test_a_length_the_prefix_cannot_hold_is_refused(size_bytes: int) -> None:
    with pytest.raises(RecordError, match=str(size_bytes)):
        check_record_bytes(size_bytes)
    with pytest.raises(RecordError):
        template(size_bytes)


def test_the_longest_record_is_accepted() -> None:
    check_record_bytes(MAX_RECORD_BYTES)
    assert template(MAX_RECORD_BYTES).prefix == b"\x7f\xff\xff\xff"


def test_packer_packs_what_frame_makes_and_is_cached_for_small_records() -> None:
    assert packer(5).pack(5, b"hello") == frame(b"hello")
    assert packer(0).pack(0, b"") == frame(b"")
    assert packer(PACKER_LIMIT_BYTES) is packer(PACKER_LIMIT_BYTES)
    assert packer(PACKER_LIMIT_BYTES + 1) is not packer(PACKER_LIMIT_BYTES + 1)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [0, 1, 3, 4, 50])
def test_a_batch_is_framed_as_if_each_record_were_alone(width: int, count: int) -> None:
    rows = make_rows(count, width)
    out = np.full(count * (width + 4) + 3, 0xEE, np.uint8)
    framed_batch_into(rows, out)
    assert out.tobytes() == expected_stream(rows) + b"\xee\xee\xee"


@pytest.mark.parametrize("width", [0, 1, 8, 24])
def test_batches_longer_than_one_chunk(width: int) -> None:
    rows = make_rows(2 * template(width).chunk_cells + 5, width)
    out = np.zeros(len(rows) * (width + 4), np.uint8)
    framed_batch_into(rows, out)
    assert out.tobytes() == expected_stream(rows)


@pytest.mark.parametrize("width", [0, 1, 5, 8])
def test_every_slice_of_a_small_batch(width: int) -> None:
    rows = make_rows(9, width)
    stream = expected_stream(rows)
    for start, stop in itertools.combinations_with_replacement(range(len(stream) + 1), 2):
        out = bytearray(b"\xee") * (stop - start + 1)
        framed_slice(rows, start, stop, memoryview(out))
        assert out == stream[start:stop] + b"\xee", (start, stop)


@pytest.mark.parametrize("width", [100, BULK_LIMIT_BYTES + 1, 70_000])
def test_records_longer_than_a_buffer(width: int) -> None:
    rows = make_rows(4, width)
    batch = FramedBatch(rows)
    got = bytearray()
    room = bytearray(96)
    for start in range(0, batch.size_bytes, 96):
        stop = min(start + 96, batch.size_bytes)
        batch.write(start, stop, memoryview(room))
        got += room[: stop - start]
    assert got == expected_stream(rows)


def test_rows_need_not_be_contiguous_nor_writable() -> None:
    rows = make_rows(40, 8)[::2]
    frozen = np.frombuffer(make_rows(20, 8).tobytes(), np.uint8).reshape(20, 8)
    for some in (rows, frozen, make_rows(8, 20).T):
        out = np.zeros(some.shape[0] * (some.shape[1] + 4), np.uint8)
        framed_batch_into(some, out)
        assert out.tobytes() == expected_stream(some)


def test_contiguous_rows_are_not_copied() -> None:
    rows = make_rows(20, 8)
    batch = FramedBatch(rows)
    rows[3] = 0xAB  # seen, because the batch reads where the rows lie
    out = bytearray(batch.size_bytes)
    batch.write(0, batch.size_bytes, memoryview(out))
    assert out == expected_stream(rows)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 4), (0, 121)])
def test_positions_outside_the_stream_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="120 bytes"):
        framed_slice(make_rows(10, 8), start, stop, np.zeros(200, np.uint8).data)


def test_too_little_room_is_refused_before_anything_is_written() -> None:
    out = np.zeros(119, np.uint8)
    with pytest.raises(ValueError, match="do not fit into 119"):
        framed_batch_into(make_rows(10, 8), out)
    assert not out.any()


def test_count_uniform_finds_the_first_other_length() -> None:
    same = template(8)
    stream = bytearray(expected_stream(make_rows(30, 8)))
    memory = memoryview(stream)
    assert same.count_uniform(same.cells(memory, 0, 30)) == 30
    for index in (29, 17, 0):
        LENGTH.pack_into(stream, index * 12, 9)
        assert same.count_uniform(same.cells(memory, 0, 30)) == index


def test_templates_are_shared() -> None:
    assert template(8) is template(8)
    assert framing.template(9).cell_bytes == 13
