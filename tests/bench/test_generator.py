from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack_bench.generator import Source, filler, span_records, word_sum
from netstack_bench.spec import RunSpec

sizes = st.integers(8, 200)


def summed(records: list[bytes]) -> int:
    return sum(int.from_bytes(record[at : at + 8], "little") for record in records for at in range(0, len(record), 8))


@given(sizes, st.integers(0, 2**40), st.integers(0, 50))
def test_a_record_is_its_index_and_the_filler(size: int, first: int, count: int) -> None:
    made = Source(size, 50).records(first, count)
    assert made == [(first + at).to_bytes(8, "little") + filler(size) for at in range(count)]


@given(sizes, st.integers(0, 99), st.lists(st.tuples(st.integers(0, 99), st.integers(1, 3)), max_size=5))
def test_a_record_that_is_made_early_is_the_same(size: int, early: int, asked: list[tuple[int, int]]) -> None:
    source, plain = Source(size, 50), Source(size, 50)
    source.prepare(early)
    for first, count in [*asked, (early, 1), (early, 2)]:
        assert source.records(first, count) == plain.records(first, count)


@given(sizes, st.integers(0, 2**40), st.integers(1, 50))
def test_an_array_has_the_same_bytes(size: int, first: int, count: int) -> None:
    source = Source(size, 50)
    expected = b"".join(source.records(first, count))
    array = source.array(first, count)
    assert array.tobytes() == expected
    assert array.shape == (count, size)
    assert array.dtype == np.uint8


@pytest.mark.parametrize("size", [8, 16, 64])
def test_a_columnar_batch_has_the_same_words(size: int) -> None:
    pytest.importorskip("pyarrow")
    source = Source(size, 50)
    (batch,) = source.arrow(1000, 20)
    words = source.array(1000, 20).view("<i8").reshape(20, -1)
    assert batch.num_rows == 20
    assert batch.column(0).to_pylist() == words[:, 0].tolist()
    if size > 8:
        assert batch.column(1).to_pylist() == words[:, 1:].tolist()
    assert source.arrow_schema == batch.schema


def test_a_batch_keeps_its_values_when_the_next_one_is_made() -> None:
    pytest.importorskip("pyarrow")
    source = Source(16, 10)
    (batch,) = source.arrow(0, 10)
    column = batch.column(0).slice(5)  # keeps the memory as a batch does
    for first in range(10, 110, 10):
        source.arrow(first, 10)
    assert batch.column(0).to_pylist() == list(range(10))
    del batch
    for first in range(10, 110, 10):
        source.arrow(first, 10)
    assert column.to_pylist() == list(range(5, 10))


@given(sizes, st.integers(1, 200))
def test_the_checksum_is_that_of_the_data(size: int, records: int) -> None:
    source = Source(size, 200)
    expected = source.expected(records)
    made = source.records(0, records)
    assert expected == {"records": records, "payload_bytes": size * records, "checksum": summed(made) % (1 << 64)}


@given(st.binary(max_size=40))
def test_word_sums(data: bytes) -> None:
    assert word_sum(data) == summed([data]) % (1 << 64)


def test_a_record_does_not_compress_to_nothing() -> None:
    record = Source(10_000, 1).records(3, 1)[0]
    assert len(zlib.compress(record)) > 9_900


def test_an_array_reuses_its_memory() -> None:
    source = Source(100, 10)
    assert np.shares_memory(source.array(0, 10), source.array(10, 5))


def test_more_than_it_has_room_for_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 10"):
        Source(8, 10).records(0, 11)


@pytest.mark.parametrize(
    ("settings", "records"),
    [
        ({}, 16_384),
        ({"record_bytes": 1 << 20}, 1),
        ({"record_bytes": 1024}, 256),
        ({"record_bytes": 1024, "consume_rate_per_s": 2000.0}, 40),
        ({"consume_rate_per_s": 1e6}, 16_384),
        ({"consume_rate_per_s": 1.0}, 1),
        ({"emit": "batch"}, 131_072),
        ({"emit": "batch", "batch_records": 7}, 7),
    ],
)
def test_spans(settings: dict[str, Any], records: int) -> None:
    assert span_records(RunSpec(**settings)) == records
