"""Records found in buffers, gathered over buffers, and decoded."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from netstack.base.errors import ConfigError, LocalProtocolError, RecordError, SpillError
from netstack.exchange.record.deserializer import RecordDeserializer
from netstack.exchange.record.formats import BytesFormat, Int64Format, RecordFormat, StrFormat
from netstack.exchange.record.framing import LENGTH, MAX_RECORD_BYTES, frame
from netstack.exchange.record.spill import FileSystem, SpillDirectory

THRESHOLD_BYTES = 1000


class Windows(RecordFormat):
    """Bytes, counting which way they came."""

    name = "windows"

    def __init__(self) -> None:
        self.one_by_one = 0
        self.by_array = 0

    def encode(self, record: Any) -> bytes:
        return bytes(record)

    def decode(self, view: memoryview) -> bytes:
        self.one_by_one += 1
        return bytes(view)

    def decode_many(self, rows: npt.NDArray[np.uint8]) -> list[Any]:
        assert rows.flags.c_contiguous
        self.by_array += len(rows)
        return [row.tobytes() for row in rows]


class Owning(Windows):
    """Keeps the memory it is given for spanning records."""

    def decode_owned(self, memory: memoryview) -> memoryview:
        return memory


class Picky(Windows):
    """Refuses one record."""

    def __init__(self, refused: bytes) -> None:
        super().__init__()
        self.refused = refused

    def decode(self, view: memoryview) -> bytes:
        if view == self.refused:
            raise KeyError("refused")
        return super().decode(view)

    def decode_many(self, rows: npt.NDArray[np.uint8]) -> list[Any]:
        return [self.decode(row.data) for row in rows]


@pytest.fixture
def no_descriptor_lost() -> Iterator[None]:
    gc.collect()
    before = sorted(os.listdir("/dev/fd"))
    yield
    gc.collect()
    assert sorted(os.listdir("/dev/fd")) == before


pytestmark = pytest.mark.usefixtures("no_descriptor_lost")


@pytest.fixture
def spill(tmp_path: Path) -> SpillDirectory:
    return SpillDirectory([str(tmp_path)])


Make = Callable[..., RecordDeserializer]


@pytest.fixture
def make(spill: SpillDirectory) -> Make:
    def made(format: RecordFormat | None = None, **settings: Any) -> RecordDeserializer:
        settings = {"spill": spill, "spill_threshold_bytes": THRESHOLD_BYTES, **settings}
        return RecordDeserializer(format or BytesFormat(), **settings)

    return made


def feed_cut(deserializer: RecordDeserializer, stream: bytes, buffer_bytes: int) -> list[Any]:
    """Feeds through one buffer that is overwritten each time, as a network buffer is."""
    buffer = bytearray(buffer_bytes)
    elements: list[Any] = []
    for start in range(0, len(stream), buffer_bytes):
        piece = stream[start : start + buffer_bytes]
        buffer[: len(piece)] = piece
        elements += deserializer.feed(memoryview(buffer)[: len(piece)])
        buffer[:] = b"\xee" * buffer_bytes
    return elements


RECORDS = (
    [b"", b"a", b"bc" * 40, b"", b"", b"d" * 999, b"e" * 1001, b"f" * 5000, b"g", b""] + [b"12345678"] * 60 + [b"h"]
)
STREAM = b"".join(map(frame, RECORDS))


@pytest.mark.parametrize("buffer_bytes", [1, 2, 3, 5, 64, 700, 4096, len(STREAM)])
@pytest.mark.parametrize("format", [BytesFormat, Owning])
def test_records_come_back_whatever_the_buffer_size(
    make: Make, format: Callable[[], RecordFormat], buffer_bytes: int, tmp_path: Path
) -> None:
    deserializer = make(format())
    assert [bytes(element) for element in feed_cut(deserializer, STREAM, buffer_bytes)] == RECORDS
    assert deserializer.pending_bytes == 0
    assert deserializer.unconsumed() == b""
    assert list(tmp_path.iterdir()) == []


def test_each_format_gets_exactly_its_record(make: Make) -> None:
    assert make(StrFormat()).feed(memoryview(frame("hä".encode()) + frame(b""))) == ["hä", ""]
    numbers = [1, -2, 2**62] * 20
    stream = b"".join(frame(number.to_bytes(8, "little", signed=True)) for number in numbers)
    assert feed_cut(make(Int64Format()), stream, 100) == numbers


def test_equal_lengths_are_decoded_as_arrays(make: Make) -> None:
    format = Windows()
    stream = b"".join(map(frame, [b"12345678"] * 100))
    assert make(format).feed(memoryview(stream + b"\0\0")) == [b"12345678"] * 100
    assert (format.by_array, format.one_by_one) == (100, 0)


def test_a_run_of_equal_lengths_ends_where_another_comes(make: Make) -> None:
    format = Windows()
    records = [b"12345678"] * 50 + [b"123"] + [b"12345678"] * 50
    assert make(format).feed(memoryview(b"".join(map(frame, records)))) == records
    assert (format.by_array, format.one_by_one) == (50, 51)


def test_payloads_that_look_like_lengths_do_not_make_a_run(make: Make) -> None:
    # Every cell boundary of the first length carries that length, but inside a longer record.
    inner = b"".join(map(frame, [b"12345678"] * 30))
    records = [b"12345678", inner, b"x"]
    assert make(Windows()).feed(memoryview(b"".join(map(frame, records)))) == records


def test_runs_longer_than_one_chunk(make: Make) -> None:
    format = Windows()
    records = [bytes((index % 251,)) for index in range(40_000)]
    assert make(format).feed(memoryview(b"".join(map(frame, records)))) == records
    assert format.by_array == 40_000


def test_many_empty_records(make: Make) -> None:
    assert feed_cut(make(), bytes(4 * 100), 7) == [b""] * 100


class AsBytes(Windows):
    def decode_list(self, payloads: list[bytes]) -> list[bytes]:
        return payloads


def test_small_records_as_a_list_when_the_format_offers_it(make: Make) -> None:
    class Upper(Windows):
        def decode_list(self, payloads: list[bytes]) -> list[bytes]:
            assert {type(payload) for payload in payloads} <= {bytes}
            return [payload.upper() for payload in payloads]

    records = [b"a" * (index % 7) for index in range(100)]
    stream = b"".join(map(frame, records))
    format = AsBytes()
    got = make(format).feed(memoryview(bytearray(stream + b"\0\0\0\1")))
    assert got == records
    assert {type(element) for element in got} == {bytes}
    assert format.one_by_one == 0
    for buffer_bytes in (100, 128, 5000):
        assert [element.upper() for element in feed_cut(make(Upper()), stream, buffer_bytes)] == [
            record.upper() for record in records
        ]
    big = [bytes(600)] * 3
    format = AsBytes()
    assert make(format).feed(memoryview(b"".join(map(frame, big)))) == big
    assert format.one_by_one == 3  # copying the buffer would not pay


def test_spanning_records_are_handed_over_with_their_memory(make: Make) -> None:
    deserializer = make(Owning())
    (small,) = feed_cut(deserializer, frame(b"s" * 500), 300)
    (large,) = feed_cut(deserializer, frame(b"L" * 5000), 300)
    assert (bytes(small), bytes(large)) == (b"s" * 500, b"L" * 5000)
    assert large.readonly  # a map of the file
    assert not small.readonly
    feed_cut(deserializer, frame(b"t" * 500) + frame(b"M" * 5000), 300)
    assert (bytes(small), bytes(large)) == (b"s" * 500, b"L" * 5000)


def test_a_format_that_keeps_its_window_keeps_the_map(make: Make) -> None:
    class Keeping(Windows):
        def decode(self, view: memoryview) -> Any:
            return np.frombuffer(view, np.uint8)

    (element,) = feed_cut(make(Keeping()), frame(b"k" * 5000), 300)
    assert element.tobytes() == b"k" * 5000


@pytest.mark.parametrize(("length", "spilled"), [(THRESHOLD_BYTES, False), (THRESHOLD_BYTES + 1, True)])
def test_the_threshold_itself_stays_in_memory(tmp_path: Path, make: Make, length: int, spilled: bool) -> None:
    made: list[str] = []

    class Watching(FileSystem):
        def unlink(self, path: str) -> None:
            made.append(path)
            super().unlink(path)

    deserializer = make(spill=SpillDirectory([str(tmp_path)], files=Watching()))
    assert feed_cut(deserializer, frame(b"x" * length), 300) == [b"x" * length]
    assert bool(made) == spilled


@pytest.mark.parametrize("length", [2**31, 2**32 - 1, 101])
@pytest.mark.parametrize("buffer_bytes", [1, 4, 4096])
def test_lengths_beyond_the_limit_raise_before_allocating(make: Make, length: int, buffer_bytes: int) -> None:
    deserializer = make(
        max_record_bytes=100 if length == 101 else MAX_RECORD_BYTES, spill_threshold_bytes=2**31, accepts_runs=False
    )
    stream = frame(b"ok") + LENGTH.pack(length) + bytes(200)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match=rf"record 1 .* declares {length} bytes"):
            feed_cut(deserializer, stream, buffer_bytes)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # what pytest does meanwhile counts too
    finally:
        tracemalloc.stop()
    assert deserializer.pending_bytes == 0
    assert deserializer.unconsumed() == b""


def test_a_negative_length_is_named_as_one(make: Make) -> None:
    with pytest.raises(RecordError, match=r"4294967294 bytes \(-2 as a signed number\)"):
        make(accepts_runs=False).feed(memoryview(b"\xff\xff\xff\xfe"))


def test_the_limit_itself_is_accepted_also_in_runs(make: Make) -> None:
    stream = b"".join(map(frame, [b"1234"] * 30))
    assert make(max_record_bytes=4).feed(memoryview(stream)) == [b"1234"] * 30
    with pytest.raises(RecordError, match="record 0 "):
        make(max_record_bytes=3).feed(memoryview(stream))


def test_the_limit_holds_among_records_given_as_bytes(make: Make) -> None:
    stream = b"".join(map(frame, [b"1234", b"123", b"12345"] * 30))
    with pytest.raises(RecordError, match="record 2 "):
        make(AsBytes(), max_record_bytes=4).feed(memoryview(stream))


def test_a_declared_length_takes_only_what_arrives(make: Make, tmp_path: Path) -> None:
    deserializer = make()
    tracemalloc.start()
    try:
        deserializer.feed(memoryview(LENGTH.pack(MAX_RECORD_BYTES) + b"abc"))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # what pytest does meanwhile counts too
    finally:
        tracemalloc.stop()
    assert deserializer.unconsumed() == LENGTH.pack(MAX_RECORD_BYTES) + b"abc"
    deserializer.clear()
    assert deserializer.unconsumed() == b""


@pytest.mark.parametrize("length", [8, 5000])
def test_what_is_torn_can_be_snapshot_and_replayed(make: Make, length: int) -> None:
    cell = frame(bytes(index % 251 for index in range(length)))
    for size in [*range(1, 12), len(cell) - 1]:
        deserializer = make()
        assert feed_cut(deserializer, frame(b"before") + cell[:size], 500) == [b"before"]
        assert deserializer.pending_bytes == size
        kept = deserializer.unconsumed()
        assert kept == cell[:size]
        assert feed_cut(make(), kept + cell[size:], 300) == [cell[4:]]
        assert deserializer.feed(memoryview(cell)[size:]) == [cell[4:]]  # and taking it disturbs nothing


@pytest.mark.parametrize("size", [2, 4, 300, 3000])
def test_clear_starts_on_a_record_boundary(make: Make, size: int) -> None:
    for length in (500, 5000):
        deserializer = make()
        feed_cut(deserializer, frame(bytes(length))[: min(size, length)], 200)
        deserializer.clear()
        assert deserializer.pending_bytes == 0
        assert deserializer.feed(memoryview(frame(b"new"))) == [b"new"]


@pytest.mark.parametrize("lengths", [(3, 4), (8, 8), (500, 500), (3, 5000)])
@pytest.mark.parametrize("buffer_bytes", [7, 20_000])
def test_a_format_that_raises_stops_the_channel_until_clear(
    make: Make, lengths: tuple[int, int], buffer_bytes: int
) -> None:
    good, bad = b"g" * lengths[0], b"b" * lengths[1]
    deserializer = make(Picky(bad))
    with pytest.raises(KeyError, match="refused"):
        feed_cut(deserializer, b"".join(map(frame, [good] * 20 + [bad] + [good] * 20)), buffer_bytes)
    assert deserializer.pending_bytes == 0
    assert deserializer.unconsumed() == b""
    with pytest.raises(LocalProtocolError, match=r"failed after .* clear"):
        deserializer.feed(memoryview(frame(good)))
    deserializer.clear()
    assert deserializer.feed(memoryview(frame(good))) == [good]


def test_a_refused_record_gives_its_file_back_while_the_error_lives(make: Make) -> None:
    before = sorted(os.listdir("/dev/fd"))
    with pytest.raises(KeyError) as caught:
        feed_cut(make(Picky(b"b" * 5000)), frame(b"b" * 5000), 300)
    assert len(caught.traceback) > 1  # its frames still refer to everything
    assert sorted(os.listdir("/dev/fd")) == before


def test_a_full_disk_stops_the_channel_and_gives_the_file_back(make: Make, tmp_path: Path) -> None:
    class Full(FileSystem):
        def write(self, file: Any, data: memoryview) -> int:
            raise OSError(28, "No space left on device")

    deserializer = make(spill=SpillDirectory([str(tmp_path)], files=Full()))
    with pytest.raises(SpillError, match="record of 5000 bytes"):
        feed_cut(deserializer, frame(bytes(5000)), 300)
    with pytest.raises(LocalProtocolError):
        deserializer.feed(memoryview(b""))


@pytest.mark.parametrize(
    "settings", [{"max_record_bytes": 2**31}, {"max_record_bytes": -1}, {"spill_threshold_bytes": -1}]
)
def test_settings_that_cannot_work(make: Make, settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        make(**settings)
