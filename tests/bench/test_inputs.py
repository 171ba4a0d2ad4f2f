from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import msgpack
import pytest

from netstack_bench.rows import InputError, read_rows


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "id": pa.array(range(100), pa.int64()),
        "name": pa.array([f"n{at % 3}" for at in range(100)]).dictionary_encode(),
        "when": pa.array([datetime.date(2026, 1, 1)] * 100),
        "price": pa.array([decimal.Decimal("1.50"), None] * 50),
    }
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=40)
    return str(tmp_path / "t.parquet")


def test_rows_of_a_csv_file_are_its_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,name\r\n1,Ann\r\n2,Jörg\r\n\r\n3,\r\n")
    rows = read_rows(path, key_column="name")
    assert rows.records == [b"1,Ann", "2,Jörg".encode(), b"3,"]
    assert rows.keys == ["Ann", "Jörg", ""]
    assert rows.count == 3
    assert read_rows(path).keys is None


def test_a_quoted_field_may_contain_line_ends_and_commas(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufeffid,note\n1,"a, ""b""\nc"\n2,plain\n3,"x"')
    rows = read_rows(path, key_column="note")
    assert rows.records == [b'1,"a, ""b""\nc"', b"2,plain", b'3,"x"']
    assert rows.keys == ['a, "b"\nc', "plain", "x"]


def test_tabs(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "a.tsv", "id\tname\n1\tA,B\n"), key_column="name")
    assert (rows.records, rows.keys) == ([b"1\tA,B"], ["A,B"])


def test_bytes_that_are_not_utf_8_stay_as_they_are(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "a.csv", b"k,v\n\xff,1\n\xfe,2\n"), key_column="k")
    assert rows.records == [b"\xff,1", b"\xfe,2"]
    assert rows.keys is not None
    assert rows.keys[0] != rows.keys[1]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.log"])
def test_rows_of_json_lines(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, '{"k": 1, "v": [2]}\n\n  {"k": "x"} \r\n{"k": null, "z": 0}')
    rows = read_rows(path, key_column="k")
    assert rows.records == [b'{"k": 1, "v": [2]}', b'{"k": "x"}', b'{"k": null, "z": 0}']
    assert rows.keys == [1, "x", None]


def test_rows_of_parquet_are_msgpack_maps(table: str) -> None:
    rows = read_rows(table, key_column="name")
    assert rows.count == 100
    assert msgpack.unpackb(rows.records[7]) == {"id": 7, "name": "n1", "when": "2026-01-01", "price": None}
    assert rows.keys is not None
    assert rows.keys[:4] == ["n0", "n1", "n2", "n0"]
    assert read_rows(table, key_column="when").keys == ["2026-01-01"] * 100


def test_columnar_batches_of_parquet_stand_alone(table: str) -> None:
    rows = read_rows(table, arrow_batch_records=30)
    assert rows.batches is not None
    assert [batch.num_rows for batch in rows.batches] == [30, 10, 30, 10, 20]
    assert rows.count == 100
    assert [value for batch in rows.batches for value in batch.column(0).to_pylist()] == list(range(100))
    assert all(str(batch.schema.field("name").type) == "string" for batch in rows.batches)


@pytest.mark.parametrize(
    ("name", "content", "settings", "words"),
    [
        ("a.csv", "", {}, "is empty; give a file with at least one row"),
        ("a.csv", "id,name\n", {}, "has no rows"),
        ("a.jsonl", "\n\n", {}, "has no rows"),
        ("a.csv", "id,name\n1,a\n2\n", {}, "line 3: 1 fields where the first line names 2 columns"),
        ("a.csv", 'id,name\n1,"a\nb"\n2\n', {}, "line 4: 1 fields"),
        ("a.csv", 'id,name\n1,a\n2,"open\n3,c\n', {}, "line 3: unexpected end of data"),
        ("a.csv", 'id,name\n1,"a"b\n', {}, "line 2: "),
        ("a.csv", "id,name\n1,a\n", {"key_column": "nome"}, "has no column 'nome'; it has 'id', 'name': name one"),
        ("a.csv", "id,id\n1,2\n", {"key_column": "id"}, "has 2 columns 'id': rename them"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', {}, "line 2: not a JSON document"),
        ("a.jsonl", b'{"a": "\xff"}\n', {}, "line 1: not a JSON document"),
        ("a.jsonl", '{"a": 1}\n[1]\n', {"key_column": "a"}, "line 2: not an object"),
        ("a.jsonl", '{"a": 1}\n{"b": 1}\n', {"key_column": "a"}, "line 2 has no column 'a'; it has 'b'"),
        ("a.jsonl", '{"a": {}}\n', {"key_column": "a"}, "line 1: 'a' is a dict, which cannot be a key"),
        ("a.parquet", "PAR1 and then nonsense", {}, "is not a readable Parquet file"),
        ("a.bin", "\x00\x01", {}, "unknown suffix '.bin'; rename it by its format"),
        ("a.csv", "a,b\n1\n", {"arrow_batch_records": 5}, "cannot be read as csv: CSV parse error: Expected 2 columns"),
        ("a.jsonl", '{"a": 1}\n{', {"arrow_batch_records": 5}, "cannot be read as jsonl: "),
        ("a.csv", "a,b\n", {"arrow_batch_records": 5}, "has no rows"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: str | bytes, settings: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        read_rows(path, **settings)
    assert words in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'id,name\n1,"a\nb"\n2,c\n3,\n'),
        ("a.tsv", 'id\tname\n1\t"a\nb"\n2\tc\n3\t\n'),
        ("a.jsonl", '{"id": 1, "name": "a\\nb"}\n{"id": 2, "name": "c"}\n{"id": 3, "name": ""}\n'),
    ],
)
def test_columnar_batches_of_text(tmp_path: Path, name: str, content: str) -> None:
    pytest.importorskip("pyarrow")
    rows = read_rows(write(tmp_path / name, content), arrow_batch_records=2)
    assert rows.batches is not None
    assert [batch.num_rows for batch in rows.batches] == [2, 1]
    assert [row for batch in rows.batches for row in batch.to_pylist()] == [
        {"id": 1, "name": "a\nb"},
        {"id": 2, "name": "c"},
        {"id": 3, "name": ""},
    ]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory; check"):
        read_rows(str(tmp_path / "none.csv"))


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        read_rows(str(tmp_path))


def test_a_parquet_column_that_is_not_there(table: str) -> None:
    with pytest.raises(InputError, match="'x'; it has 'id', 'name', 'when', 'price'"):
        read_rows(table, key_column="x")


def test_a_batch_has_no_key_of_its_own(table: str) -> None:
    with pytest.raises(InputError, match="use --emit record"):
        read_rows(table, key_column="id", arrow_batch_records=10)


def test_a_file_too_large_to_hold(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.truncate((1 << 30) + 1)  # sparse
    with pytest.raises(InputError, match="limit in memory"):
        read_rows(str(path))
