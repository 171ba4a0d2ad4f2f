"""Every format gives back what it was given, refuses what is not its own, and reads arrays as it reads records."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError, RecordError
from netstack.exchange.record.formats import FORMATS, RecordFormat, format_named, rows_as_bytes

INT64 = st.integers(-(2**63), 2**63 - 1)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.builds(msgpack.Timestamp, st.integers(0, 2**34), st.integers(0, 10**9 - 1))
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | INT64 | st.binary(), inner, max_size=4),
    max_leaves=12,
)
RECORDS: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(),
    "str": st.text(st.characters(codec="utf-8")),
    "int64": INT64,
    "float64": st.floats(allow_nan=False),
    "msgpack": PLAIN,
}


def rows_of(encoded: list[bytes]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(b"".join(encoded), np.uint8).reshape(len(encoded), -1)


@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    record = data.draw(RECORDS[name])
    form = format_named(name)
    raw = bytes(form.encode(record))
    assert b"".join(form.encode_pieces(record)) == raw
    assert form.fixed_width_bytes in (None, len(raw))
    scratch = bytearray(raw)
    back = form.decode(memoryview(scratch))
    scratch[:] = b"\xff" * len(scratch)  # the segment is recycled at once
    assert back == record
    assert type(back) is type(record)
    decode_list = getattr(form, "decode_list", None)
    if decode_list is not None:
        assert decode_list([raw, raw]) == [record, record]
    encode_many = getattr(form, "encode_many", None)
    if encode_many is not None:
        assert encode_many([record, record]) == [raw, raw]


@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data())
def test_an_array_of_records_reads_like_one_by_one(name: str, data: st.DataObject) -> None:
    form = format_named(name)
    first = bytes(form.encode(data.draw(RECORDS[name])))
    # A second record of the same length: the formats of variable length get the same one twice.
    other = data.draw(RECORDS[name])
    encoded = [raw for raw in (first, bytes(form.encode(other)), first) if len(raw) == len(first)]
    rows = rows_of(encoded)
    assert form.decode_many(rows) == [form.decode(memoryview(raw)) for raw in encoded]
    # The payload column between the length prefixes of framed records.
    framed = np.zeros((len(encoded), 4 + len(first)), np.uint8)
    framed[:, 4:] = rows
    assert form.decode_many(framed[:, 4:]) == form.decode_many(rows)


def test_formats_that_read_and_write_lists() -> None:
    assert [name for name in RECORDS if hasattr(format_named(name), "decode_list")] == ["bytes", "str", "msgpack"]
    unchanging = [name for name in RECORDS if hasattr(format_named(name), "encode_many")]
    assert unchanging == ["str", "int64", "float64"], "others may change while they are staged"


@pytest.mark.parametrize(
    ("name", "bad"),
    [("str", 3), ("str", "\ud800"), ("int64", 1 << 63), ("float64", "1"), ("float64", 2**53 + 1)],
)
def test_a_list_with_a_record_that_does_not_fit_is_refused(name: str, bad: object) -> None:
    good = {"str": "word", "int64": 1, "float64": 1.0}[name]
    with pytest.raises((TypeError, UnicodeEncodeError, struct.error, RecordError)):
        format_named(name).encode_many([good, bad])  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", RECORDS)
def test_no_rows_are_no_records(name: str) -> None:
    width = format_named(name).fixed_width_bytes or 3
    assert format_named(name).decode_many(np.empty((0, width), np.uint8)) == []


def test_empty_records() -> None:
    rows = np.empty((3, 0), np.uint8)
    assert format_named("bytes").decode_many(rows) == [b"", b"", b""]
    assert format_named("str").decode_many(rows) == ["", "", ""]
    for name in ("int64", "float64", "msgpack"):
        with pytest.raises(RecordError):
            format_named(name).decode_many(rows)


def test_zeros_at_the_end_are_kept() -> None:
    rows = np.zeros((2, 5), np.uint8)
    actual = rows_as_bytes(rows)
    assert actual == [bytes(5), bytes(5)]
    assert all(type(row) is bytes for row in actual)


def test_nan_keeps_its_bits() -> None:
    form = format_named("float64")
    raw = struct.pack("<Q", 0x7FF8000000001234)
    assert form.encode(form.decode(memoryview(raw))) == raw
    assert all(math.isnan(number) for number in form.decode_many(rows_of([raw, raw])))


def test_numbers_are_little_endian_and_match_their_dtype() -> None:
    assert format_named("int64").encode(1) == b"\x01" + bytes(7)
    for name in ("int64", "float64"):
        form = format_named(name)
        assert form.numpy_dtype is not None
        array = np.array([1, -2, 3], form.numpy_dtype)
        assert [form.encode(item) for item in array.tolist()] == [array[at : at + 1].tobytes() for at in range(3)]
        assert form.encode(array[0]) == array[:1].tobytes()


def test_mutable_bytes_are_copied() -> None:
    form = format_named("bytes")
    mine = bytearray(b"before")
    for record in (mine, memoryview(mine)):
        encoded = form.encode(record)
        mine[:] = b"after!"
        assert encoded == b"before"
        mine[:] = b"before"


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("bytes", "text"),
        ("bytes", 3),
        ("str", b"bytes"),
        ("str", "\ud800"),
        ("int64", 2**63),
        ("int64", np.array([1])),
        ("int64", -(2**63) - 1),
        pytest.param("int64", 10**5000, id="int64-huge"),
        ("int64", 1.5),
        ("int64", "1"),
        ("float64", "1.0"),
        ("float64", 10**400),
        ("float64", 2**53 + 1),
        ("float64", np.int64(2**53 + 1)),
        ("msgpack", 2**64),
        ("msgpack", object()),
        ("msgpack", {1, 2}),
        ("msgpack", "\ud800"),
    ],
)
def test_a_record_of_another_type_is_refused(name: str, record: object) -> None:
    form = format_named(name)
    with pytest.raises(RecordError, match=f"does not fit format {name}"):
        form.encode(record)
    # The failure leaves nothing behind that would spoil the next record.
    good: Any = {"bytes": b"x", "str": "x", "int64": 1, "float64": 1.0, "msgpack": [1]}[name]
    assert form.decode(memoryview(bytes(form.encode(good)))) == good


def test_too_deep_a_value_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    form = format_named("msgpack")
    with pytest.raises(RecordError):
        form.encode(deep)
    with pytest.raises(RecordError):
        form.decode(memoryview(b"\x91" * 5000 + b"\xc0"))


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("str", b"\xff"),
        ("str", b"ok\xc3"),
        ("int64", bytes(7)),
        ("int64", bytes(9)),
        ("int64", b""),
        ("float64", bytes(4)),
        ("msgpack", b""),
        ("msgpack", b"\x01\x02"),  # a value and one more
        ("msgpack", b"\x92\x01"),  # a list of two with one
        ("msgpack", b"\xdd\xff\xff\xff\xff"),  # a list of 4 billion
        ("msgpack", b"\xc6\xff\xff\xff\xff"),  # 4 GB of bytes
        ("msgpack", b"\xc1"),  # never used by msgpack
        ("msgpack", b"\xa1\xff"),  # not UTF-8
        ("msgpack", b"\x81\x80\x01"),  # a map as a key
    ],
)
def test_malformed_bytes_are_refused(name: str, raw: bytes) -> None:
    form = format_named(name)
    with pytest.raises(RecordError, match=f"not a record of format {name}"):
        form.decode(memoryview(raw))
    if raw:
        with pytest.raises(RecordError, match=f"format {name}"):
            form.decode_many(rows_of([raw, raw]))


@given(st.binary())
def test_msgpack_reads_anything_or_says_why_not(raw: bytes) -> None:
    form = format_named("msgpack")
    try:
        value = form.decode(memoryview(raw))
    except RecordError:
        return
    assert repr(form.decode_many(rows_of([raw, raw]))) == repr([value, value]), "a NaN differs from itself"


def test_a_map_with_tuples_as_keys_is_read_as_it_was_written() -> None:
    form = format_named("msgpack")
    record = {("a", 1): 2, (("b", ()), 3): [{("c",): 4}]}
    payload = form.encode(record)
    assert form.decode(memoryview(payload)) == record
    assert form.decode_list([form.encode(1), payload]) == [1, record]  # type: ignore[attr-defined]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'pickle'; give one of bytes, str"):
        format_named("pickle")


def test_every_name_is_the_formats_own() -> None:
    pytest.importorskip("pyarrow")
    for name in FORMATS:
        assert format_named(name).name == name
        assert format_named(name) is not format_named(name), "a format may keep scratch space: never shared"


class _Reversed(RecordFormat):
    """A format of a user's own, with nothing but what it has to define."""

    name = "reversed"

    def encode(self, record: Any) -> bytes:
        return bytes(reversed(record))

    def decode(self, view: memoryview) -> bytes:
        return bytes(view[::-1])


def test_a_format_of_ones_own_needs_two_methods() -> None:
    form = _Reversed()
    assert form.encode_pieces(b"abc") == [b"cba"]
    rows = np.zeros((2, 7), np.uint8)
    rows[:, 4:] = np.frombuffer(b"cbafed", np.uint8).reshape(2, 3)
    assert form.decode_many(rows[:, 4:]) == [b"abc", b"def"]
    assert form.fixed_width_bytes is None
    assert form.numpy_dtype is None
