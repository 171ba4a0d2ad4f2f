"""Values and stream elements in Flink's bytes: they come back, and whatever does not fit is a RecordError."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError, RecordError
from netstack.exchange.record.flink import (
    ByteArrayFormat,
    LatencyMarker,
    LongFormat,
    RecordAttributes,
    StreamElement,
    StreamElementFormat,
    StreamRecord,
    StringFormat,
    SubpartitionWatermark,
    Watermark,
    WatermarkStatus,
    value_format_named,
)
from netstack.exchange.record.formats import RecordFormat

LONG, STRING, BYTES = LongFormat(), StringFormat(), ByteArrayFormat()
ELEMENTS = StreamElementFormat(LONG)

longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=()), max_size=40) | st.text("abc", min_size=100, max_size=300)
others: st.SearchStrategy[StreamElement] = st.one_of(
    st.builds(Watermark, longs),
    st.builds(LatencyMarker, longs, st.binary(min_size=16, max_size=16), ints),
    st.builds(WatermarkStatus, st.booleans()),
    st.builds(RecordAttributes, st.booleans()),
    st.builds(SubpartitionWatermark, ints, longs),
)


@given(longs)
def test_longs_come_back(value: int) -> None:
    data = LONG.encode(value)
    assert data == value.to_bytes(8, "big", signed=True)
    assert LONG.decode(memoryview(data)) == value


@given(st.none() | texts)
def test_strings_come_back(value: str | None) -> None:
    # Two surrogates in a row are one character in UTF-16, so they come back as that.
    expected = None if value is None else value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert STRING.decode(memoryview(STRING.encode(value))) == expected


@given(st.binary(max_size=100))
def test_byte_arrays_come_back(value: bytes) -> None:
    assert BYTES.decode(memoryview(BYTES.encode(bytearray(value)))) == value


@given(longs, st.none() | longs)
def test_records_with_and_without_a_timestamp(value: int, timestamp: int | None) -> None:
    element = StreamRecord(value, timestamp)
    assert ELEMENTS.decode(memoryview(ELEMENTS.encode(element))) == element


@given(others)
def test_other_elements_come_back(element: StreamElement) -> None:
    assert ELEMENTS.decode(memoryview(ELEMENTS.encode(element))) == element


@pytest.mark.parametrize(
    ("format", "record", "expected"),
    [
        (ELEMENTS, StreamRecord(3, 1003), "00 00000000000003eb 0000000000000003"),
        (ELEMENTS, StreamRecord(3), "01 0000000000000003"),
        (ELEMENTS, Watermark(1002), "02 00000000000003ea"),
        (
            ELEMENTS,
            LatencyMarker(1234567890, b"\x11" * 8 + b"\x22" * 8, 5),
            "03 00000000499602d2 11111111111111112222222222222222 00000005",
        ),
        (ELEMENTS, WatermarkStatus(is_active=False), "04 ffffffff"),
        (ELEMENTS, WatermarkStatus(is_active=True), "04 00000000"),
        (ELEMENTS, RecordAttributes(is_backlog=True), "05 01"),
        (ELEMENTS, SubpartitionWatermark(2, 1), "06 00000002 0000000000000001"),
        (StreamElementFormat(STRING), StreamRecord("rec"), "01 04 72 65 63"),
        (StreamElementFormat(BYTES), StreamRecord(b"ab"), "01 00000002 6162"),
        (STRING, None, "00"),
        (STRING, "", "01"),
        (STRING, "é€", "03 e901 ac41"),
        (STRING, "\U0001f600", "03 bdb003 80bc03"),
        (STRING, "a" * 127, "8001" + " 61" * 127),
    ],
)
def test_flinks_bytes(format: RecordFormat, record: Any, expected: str) -> None:
    data = bytes.fromhex(expected)
    assert format.encode(record) == data
    assert format.decode(memoryview(data)) == record


def test_longs_as_arrays() -> None:
    rows = np.array([1, -2, 2**40], ">i8").view(np.uint8).reshape(3, 8)
    assert LONG.decode_many(rows) == [1, -2, 2**40]
    assert LONG.decode_many(rows[:0]) == []
    with pytest.raises(RecordError, match="exactly 8 bytes"):
        LONG.decode_many(np.zeros((2, 7), np.uint8))


@pytest.mark.parametrize(
    ("format", "record"),
    [
        (LONG, 2**63),
        (LONG, "1"),
        (STRING, b"x"),
        (BYTES, "x"),
        (ELEMENTS, 5),
        (ELEMENTS, StreamRecord("x")),
        (ELEMENTS, StreamRecord(1, 2**63)),
        (ELEMENTS, Watermark(2**63)),
        (ELEMENTS, LatencyMarker(1, b"short", 1)),
        (ELEMENTS, SubpartitionWatermark(2**31, 1)),
    ],
)
def test_what_does_not_fit_is_refused(format: RecordFormat, record: Any) -> None:
    with pytest.raises(RecordError, match="does not fit the format 'flink-"):
        format.encode(record)


@pytest.mark.parametrize(
    ("format", "data"),
    [
        (LONG, ""),
        (LONG, "00" * 7),
        (LONG, "00" * 9),
        (BYTES, "000000"),
        (BYTES, "00000002 61"),
        (BYTES, "ffffffff"),
        (STRING, ""),
        (STRING, "00 61"),
        (STRING, "80"),
        (STRING, "ffffffffff01"),
        (STRING, "ffffffff0f 61"),
        (STRING, "03 61"),
        (STRING, "02 61 61"),
        (STRING, "02 808004"),
        (STRING, "02 80"),
        (ELEMENTS, ""),
        (ELEMENTS, "07"),
        (ELEMENTS, "00 00"),
        (ELEMENTS, "02 00"),
        (ELEMENTS, "03" + "00" * 27),
        (ELEMENTS, "04 00000001"),
        (ELEMENTS, "05 02"),
        (ELEMENTS, "05"),
        (ELEMENTS, "06 00000000"),
    ],
)
def test_malformed_records_are_refused(format: RecordFormat, data: str) -> None:
    with pytest.raises(RecordError, match="not a record of format 'flink-"):
        format.decode(memoryview(bytes.fromhex(data)))


@given(st.binary(max_size=40), st.sampled_from([STRING, BYTES, ELEMENTS, StreamElementFormat(STRING)]))
def test_any_bytes_are_a_record_or_refused(data: bytes, format: RecordFormat) -> None:
    record: Any
    try:
        record = format.decode(memoryview(data))
    except RecordError as error:
        record = error
    if not isinstance(record, RecordError):
        assert format.decode(memoryview(format.encode(record))) == record


def test_formats_by_name() -> None:
    assert [value_format_named(name).name for name in ("long", "string", "bytes")] == [
        "flink-long",
        "flink-string",
        "flink-bytes",
    ]
    with pytest.raises(ConfigError, match="give one of long, string, bytes"):
        value_format_named("int")
