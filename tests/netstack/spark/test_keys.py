"""Hashes of columns are those of their values one by one."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import RecordError
from netstack.exchange.keygroups import group_owners, key_group, operator_index, stable_hash
from netstack.spark.keys import hash_column, hash_columns, owners_of

KINDS = {
    pa.string(): st.text(max_size=8),
    pa.large_string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=8),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.dictionary(pa.int32(), pa.string()): st.text(max_size=3),
}


@given(st.data())
def test_a_column_hashes_as_its_values(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(KINDS)))
    values = data.draw(st.lists(st.none() | KINDS[kind], max_size=30))
    column = pa.array(values, kind)
    skip = data.draw(st.integers(0, len(values)))
    assert hash_column(column[skip:]).tolist() == [stable_hash(value) for value in values[skip:]]


@given(st.lists(st.tuples(st.text(max_size=4), st.none() | st.integers(-5, 5)), min_size=1))
def test_several_columns_are_a_tuple(keys: list[tuple[str, int | None]]) -> None:
    columns = [pa.array([key[at] for key in keys], kind) for at, kind in enumerate((pa.string(), pa.int64()))]
    assert hash_columns(columns).tolist() == [stable_hash(key) for key in keys]
    owners = owners_of(columns, group_owners(3, 128)).tolist()
    assert owners == [operator_index(key_group(key, 128), 3, 128) for key in keys]


@pytest.mark.parametrize(
    ("text", "java"),  # of `new BigDecimal(text).hashCode()`
    [
        ("0.00", 2),
        ("1.00", 3102),
        ("-1.00", -3098),
        ("-0.01", -29),
        ("12345678901234567.89", -1876408959),
        ("-170141183460469231731687303715884105.72", -1931971838),
    ],
)
def test_decimals_hash_as_javas(text: str, java: int) -> None:
    column = pa.array([None, decimal.Decimal(text)], pa.decimal128(38, 2))
    assert hash_column(column).tolist() == [0, java]


def test_days_and_moments_are_numbers() -> None:
    day = datetime.date(2026, 11, 22)
    assert hash_column(pa.array([day], pa.date32())).tolist() == [(day - datetime.date(1970, 1, 1)).days]
    moment = datetime.datetime(2026, 11, 22, 9, 30, tzinfo=datetime.UTC)
    micros = int(moment.timestamp()) * 1_000_000
    for unit in ("s", "ms", "us", "ns"):
        column = pa.array([moment, None], pa.timestamp(unit, "UTC"))
        assert hash_column(column).tolist() == [stable_hash(micros), 0]


@pytest.mark.parametrize("column", [pa.array([[1]]), pa.array([{"a": 1}])])
def test_what_cannot_be_a_key_is_refused(column: Any) -> None:
    with pytest.raises(RecordError, match="cannot be a key"):
        hash_column(column)


def test_text_that_is_none_is_refused() -> None:
    column = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    with pytest.raises(RecordError, match="not text in UTF-8"):
        hash_column(column)


def test_times_and_durations_are_their_microseconds() -> None:
    time = datetime.time(1, 2, 3, 4)
    micros = 3_723_000_004
    for kind in (pa.time64("us"), pa.time64("ns")):
        assert hash_column(pa.array([time, None], kind)).tolist() == [stable_hash(micros), 0]
    span = datetime.timedelta(microseconds=-micros)
    assert hash_column(pa.array([span, None], pa.duration("us"))).tolist() == [stable_hash(-micros), 0]
