"""Records read as arrays: the very records that the format alone gives, however the stream is cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import RecordError
from netstack.exchange.record.batches import BatchFormat, can_batch
from netstack.exchange.record.deserializer import RecordDeserializer
from netstack.exchange.record.formats import FORMATS, format_named, rows_as_bytes
from netstack.exchange.record.framing import frame
from netstack.exchange.record.spill import SpillDirectory


def _read(format: str, stream: bytes, cuts: list[int]) -> list[Any]:
    """Joined by pairs of pieces, as a task does it that found so many buffers."""
    batches = BatchFormat(format_named(format))
    deserializer = RecordDeserializer(batches, spill=SpillDirectory(None), spill_threshold_bytes=1 << 20)
    pieces = [stream[start:stop] for start, stop in pairwise([0, *sorted(cuts), len(stream)])]
    actual: list[Any] = []
    for at in range(0, len(pieces), 2):
        elements = [element for piece in pieces[at : at + 2] for element in deserializer.feed(memoryview(piece))]
        joined = batches.joined(elements) if elements else []
        actual += joined if isinstance(joined, list) else _plain(joined)
    return actual


def _plain(array: Any) -> list[Any]:
    return rows_as_bytes(array) if array.ndim == 2 else array.tolist()


@given(st.data(), st.sampled_from([(0,), (1,), (100,), (3, 100), (8, 8, 9), (4000,)]))
def test_bytes_are_the_records_whatever_their_lengths_and_cuts(data: st.DataObject, widths: tuple[int, ...]) -> None:
    sizes = data.draw(st.lists(st.sampled_from(widths), max_size=60))
    records = [bytes([index % 251]) * size for index, size in enumerate(sizes)]
    stream = b"".join(map(frame, records))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    assert _read("bytes", stream, cuts) == records


@pytest.mark.parametrize(("format", "values"), [("int64", [*range(-40, 40)]), ("float64", [n / 8 for n in range(80)])])
def test_numbers_become_arrays_of_numbers(format: str, values: list[Any]) -> None:
    encode = format_named(format).encode
    stream = b"".join(frame(bytes(encode(value))) for value in values)
    for cut in (0, 5, 12, 500, len(stream) - 1):
        assert _read(format, stream, [cut]) == values


def test_equal_lengths_give_one_array_that_stays_as_it_is() -> None:
    batches = BatchFormat(format_named("bytes"))
    deserializer = RecordDeserializer(batches, spill=SpillDirectory(None), spill_threshold_bytes=1 << 20)
    arrays = []
    for turn in range(3):
        stream = b"".join(frame(bytes([turn, index]) * 50) for index in range(100))
        array = batches.joined(deserializer.feed(memoryview(stream)) + deserializer.feed(memoryview(stream)))
        assert isinstance(array, np.ndarray)
        assert array.shape == (200, 100)
        assert array.dtype == np.uint8
        arrays.append(array)
    assert [int(array[:, 0].max()) for array in arrays] == [0, 1, 2]


def test_a_run_of_the_wrong_width_is_refused_as_the_format_does() -> None:
    with pytest.raises(RecordError, match="exactly 8 bytes"):
        _read("int64", frame(b"x" * 7) * 40, [])


def test_which_formats_have_arrays() -> None:
    assert {name for name in FORMATS if name != "arrow" and can_batch(format_named(name))} == {
        "bytes",
        "int64",
        "float64",
    }
