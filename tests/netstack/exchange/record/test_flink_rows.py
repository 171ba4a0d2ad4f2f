"""Rows of Flink's SQL as Arrow: of random schemas by Flink's own serializers, written by hand, damaged."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from flink_schemas import plain_values, random_columns
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError, RecordError
from netstack.exchange.record.flink_rows import KINDS, FlinkRows
from netstack.exchange.record.flink_types import schema_of
from netstack_bench.engines.flink import jar

SCHEMA = schema_of("id BIGINT, name STRING")


def row(number: int, name: bytes, *, kind: int = 0, nulls: int = 0) -> bytes:
    """A row of SCHEMA, as it lies in a record."""
    if len(name) <= 7:
        slot, rest = name.ljust(7, b"\0") + bytes((0x80 | len(name),)), b""
    else:
        slot, rest = struct.pack("<Q", 24 << 32 | len(name)), name + bytes(-len(name) % 8)
    body = bytes((kind, nulls)) + bytes(6) + struct.pack("<q", number) + slot + rest
    return struct.pack(">i", len(body)) + body


@pytest.mark.java
@pytest.mark.flink
@pytest.mark.long
def test_rows_of_flinks_serializers_have_the_same_values(tmp_path: Path) -> None:
    """150 random schemas, 40 rows each, among watermarks, with timestamps and without."""
    rng = random.Random(27)
    columns = [random_columns(rng) for _ in range(150)]
    lines = "".join(f"{rng.getrandbits(30)} 40 ROW<{each}>\n" for each in columns)
    command = [*jar.java_command(Path(__file__).parent / "java"), "RowOracle", str(tmp_path / "records")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    reported = iter(map(json.loads, done.stdout.splitlines()))
    for each, records in zip(columns, records_of((tmp_path / "records").read_bytes()), strict=True):
        rows = FlinkRows(schema_of(each), kind="kind")
        batch = rows.batch(records)
        expected = list(iter(lambda: next(reported), []))
        values = zip(*(plain_values(column) for column in batch.columns[1:]), strict=True)
        actual = [[KINDS.index(kind), list(row)] for kind, row in zip(batch["kind"].to_pylist(), values, strict=True)]
        assert actual == expected, each
        halves = [rows.batch(records[:13]), rows.batch(records[13:])]
        assert pa.Table.from_batches(halves) == pa.Table.from_batches([batch]) or "FLOAT" in each or "DOUBLE" in each


def records_of(data: bytes) -> Iterator[list[bytes]]:
    """The oracle's file: by schema."""
    at, records = 0, []
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if size < 0:
            yield records
            records = []
        else:
            records.append(data[at : at + size])
            at += size


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=40)), max_size=30))
def test_rows_come_back(values: list[tuple[int, str | None]]) -> None:
    records = [b"\1" + row(number, (name or "").encode(), nulls=2 * (name is None)) for number, name in values]
    batch = FlinkRows(SCHEMA).batch(records)
    assert batch.schema == SCHEMA
    assert list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == values


def test_kinds_are_a_column_or_refused_and_watermarks_are_no_rows() -> None:
    records = [b"\1" + row(1, b"a"), b"\0" + bytes(8) + row(1, b"a", kind=1), b"\2" + struct.pack(">q", 17)]
    rows = FlinkRows(SCHEMA, kind="op")
    assert rows.batch(records).to_pydict() == {"op": ["+I", "-U"], "id": [1, 1], "name": ["a", "a"]}
    assert rows.watermark == 17
    with pytest.raises(RecordError, match="kind -U is not an insert"):
        FlinkRows(SCHEMA).batch(records)


def test_rows_without_heads() -> None:
    assert FlinkRows(SCHEMA, elements=False).batch([row(4, b"a longer one")])["name"].to_pylist() == ["a longer one"]


GOOD = b"\1" + row(1, b"long enough")


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b"", "a record is empty"),
        (b"\7", "no element with tag 7"),
        (GOOD[:-1], "length differs from that of its row"),
        (b"\1" + struct.pack(">i", 8) + bytes(8), "2 columns need at least 24"),
        (b"\1" + row(1, b"a", kind=4), "no kind 4"),
        (GOOD.replace(struct.pack("<I", 24), struct.pack("<I", 40)), "column 'name': a value is outside its row"),
        (b"\1" + row(1, b"\xff"), "does not fit the schema"),
        (GOOD.replace(b"\x0b\0\0\0\x18", b"\x03\0\0\0\x18"), "do not add up"),
        (GOOD.replace(b"\x0b\0\0\0\x18", b"\0\0\0\0\0\0\0\x88"[:5]), "do not add up"),
        (b"\1" + row(1, b"").replace(b"\x80", b"\x88"), "a short value of 8 bytes"),
    ],
)
def test_damaged_rows_are_refused(record: bytes, text: str) -> None:
    with pytest.raises(RecordError, match=text):
        FlinkRows(SCHEMA).batch([b"\1" + row(0, b""), record])


@pytest.mark.parametrize("columns", ["id BIGINT", "id BIGINT, name STRING, more INT", "id BIGINT, name INT"])
def test_rows_of_another_schema_are_refused(columns: str) -> None:
    with pytest.raises(RecordError, match="another schema"):
        FlinkRows(schema_of(columns)).batch([GOOD])


def test_values_over_each_other_take_no_more_memory_than_they_are() -> None:
    """An array of texts, each of which says that it is all of the array."""
    count = 1000
    size = 4 + 128 + count * 8
    array = struct.pack("<i", count) + bytes(128) + struct.pack("<Q", size) * count
    body = bytes(8) + struct.pack("<Q", 16 << 32 | size) + array + bytes(-size % 8)
    with pytest.raises(RecordError, match="overlap"):
        FlinkRows(schema_of("a ARRAY<STRING>")).batch([b"\1" + struct.pack(">i", len(body)) + body])


@pytest.mark.parametrize(
    "type_", [pa.uint8(), pa.large_string(), pa.float16(), pa.time64("us"), pa.decimal256(40, 2), pa.list_(pa.null())]
)
def test_types_that_flink_has_not_are_refused_by_name(type_: Any) -> None:
    with pytest.raises(ConfigError, match="column 'x': rows of Flink have no "):
        FlinkRows(pa.schema([("x", type_)]))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("id", r"type \(none\) is not supported"),
        ("id BIGINT,", "a column's name was expected instead of the end"),
        ("id BIGINT name STRING", "a comma or the end was expected instead of name"),
        ("id INTERVAL DAY", "type INTERVAL is not supported; give one of BOOLEAN"),
        ("at TIMESTAMP(3) WITH TIME ZONE", "WITH TIME ZONE is not supported"),
        ("at TIMESTAMP(10)", "0 to 9 digits"),
        ("p DECIMAL(39, 2)", "1 to 38 digits"),
        ("a ARRAY<INT", "> was expected instead of the end"),
        ("a INT, a INT", "two columns have the name 'a'"),
        ("a ; INT", "';"),
        ("a " + "ARRAY<" * 60, "deeper than 50"),
    ],
)
def test_columns_that_are_none_are_refused_with_what_was_expected(columns: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        schema_of(columns)


def test_flinks_names_of_types() -> None:
    actual = schema_of("a INT NOT NULL, `b ``c` ROW(x CHAR, y TIME) NULL, d TIMESTAMP_LTZ, e DEC, f DOUBLE PRECISION")
    inner = pa.struct([("x", pa.string()), ("y", pa.time32("ms"))])
    assert actual == pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            pa.field("b `c", inner),
            pa.field("d", pa.timestamp("us", "UTC")),
            pa.field("e", pa.decimal128(10, 0)),
            pa.field("f", pa.float64()),
        ]
    )
