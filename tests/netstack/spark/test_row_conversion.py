"""Records as rows of Spark's schema, without a session: nothing is NULL, truncated or dropped without a word."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from netstack.base.errors import ConfigError, RecordError
from netstack.spark.exchange_frame import PlainColumns
from netstack.spark.row_conversion import RowConverter
from netstack.spark.source_options import Settings

USERS = StructType([StructField("id", LongType()), StructField("user", StringType())])
CORRUPT = StructType([*USERS, StructField("_corrupt_record", StringType())])
NESTED = StructType(
    [
        StructField("id", LongType(), False),
        StructField("at", StructType([StructField("x", IntegerType()), StructField("y", IntegerType())])),
        StructField("list", ArrayType(DoubleType())),
        StructField("map", MapType(StringType(), LongType())),
    ]
)


def rows(schema: Any, records: list[Any], **settings: Any) -> list[dict[str, Any]]:
    batches = RowConverter(schema, **{"is_case_sensitive": False, **settings}).batches(records)
    return [row for batch in batches for row in batch.to_pylist()]


def batch_of(**columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict(columns)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "id": st.integers(-(1 << 63), (1 << 63) - 1),
                "at": st.none() | st.fixed_dictionaries({name: st.none() | st.integers(0, 99) for name in "xy"}),
                "list": st.none() | st.lists(st.none() | st.floats(allow_nan=False), max_size=3),
                "map": st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 99), max_size=3),
            }
        ),
        max_size=4,
    )
)
def test_a_record_is_the_same_row_as_a_map_a_list_and_in_a_batch(records: list[dict[str, Any]]) -> None:
    wanted = [{**each, "map": each["map"] if each["map"] is None else list(each["map"].items())} for each in records]
    assert rows(NESTED, records) == wanted
    assert rows(NESTED, [[each[name] for name in NESTED.names] for each in records]) == wanted
    target = RowConverter(NESTED, is_case_sensitive=False)._target
    if records:
        assert rows(NESTED, [pa.RecordBatch.from_pylist(wanted, schema=target)]) == wanted


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (
            {"id": 1, "usr": "a"},
            r"column 'user' is missing; the records have \(id int, usr str\), the schema",
        ),
        ({"id": "x", "user": "a"}, "column 'id' of type int64: .*'x'"),
        ({"id": 1.5, "user": "a"}, "column 'id' of type int64 has 1.5"),
        ({"id": True, "user": "a"}, "column 'id' of type int64: .*bool"),
        ({"id": 1 << 70, "user": "a"}, "column 'id' of type int64: .*too large"),
        ({"id": 1, "user": "a", "USER": "b"}, "several columns are named 'user': user, USER"),
        ((1,), "a record has 1 values and the schema 2 columns"),
        (7, "a record has 1 values and the schema 2 columns"),
        (
            batch_of(id=[1], usr=["a"]),
            r"column 'user' is missing; the records have \(id int64, usr string\)",
        ),
        (batch_of(id=["x"], user=["a"]), "column 'id' of type int64: Failed to parse string: 'x'"),
        (batch_of(id=[1.5], user=["a"]), "column 'id' of type int64: Float value 1.5"),
        (batch_of(id=[1], user=["a"], USER=["b"]), "several columns are named 'user': user, USER"),
        (pa.RecordBatch.from_arrays([pa.array([1])] * 2, names=["id", "id"]), "several columns are named 'id'"),
    ],
)
def test_a_record_that_does_not_fit_is_an_error_or_kept_as_text(record: Any, says: str) -> None:
    with pytest.raises(RecordError, match=says) as caught:
        rows(USERS, [record])
    assert "id bigint, user string" in str(caught.value)
    assert "mode=PERMISSIVE" in str(caught.value)
    good = {"id": 5, "user": "e"}
    actual = rows(CORRUPT, [good, record, good], corrupt="_corrupt_record")
    assert [row for row in actual if row["_corrupt_record"] is None] == [{**good, "_corrupt_record": None}] * 2
    (bad,) = (row for row in actual if row["_corrupt_record"] is not None)
    if isinstance(record, dict):
        assert json.loads(bad["_corrupt_record"]) == record
        kept = {name for name in ("id", "user") if bad[name] is not None}
        assert all(bad[name] == record[name] for name in kept)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"id": None, "at": None, "list": None, "map": None}, "column 'id' is NULL, and not nullable"),
        ({"id": 1, "at": {"x": 1}, "list": None, "map": None}, "column 'y' is missing"),
        ({"id": 1, "at": [1], "list": None, "map": None}, "column 'at' is a struct of 2 fields"),
        ({"id": 1, "at": None, "list": 5, "map": None}, "column 'list' is a list"),
        ({"id": 1, "at": None, "list": None, "map": 5}, "column 'map' is a map"),
        ({"id": 1, "at": None, "list": None, "map": {"a": 1.5}}, "has 1.5"),
    ],
)
def test_nested_values_follow_the_same_rules(record: dict[str, Any], says: str) -> None:
    with pytest.raises(RecordError, match=says):
        rows(NESTED, [record])
    if not isinstance(record["list"], int) and not isinstance(record["map"], int) and record["at"] != [1]:
        kinds = pa.struct([("x", pa.int32())])
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([record["id"]], pa.int64()),
                pa.array([record["at"]], kinds),
                pa.array([record["list"]], pa.list_(pa.float64())),
                pa.array([list((record["map"] or {"a": 1}).items())], pa.map_(pa.string(), pa.float64())),
            ],
            names=["id", "at", "list", "map"],
        )
        with pytest.raises(RecordError):  # a cast would make the missing field NULL
            rows(NESTED, [batch])


def test_names_follow_sparks_case_rule() -> None:
    for record in ({"ID": 1, "User": "a"}, batch_of(User=["a"], ID=[1])):
        assert rows(USERS, [record]) == [{"id": 1, "user": "a"}]
        with pytest.raises(RecordError, match="column 'id' is missing"):
            rows(USERS, [record], is_case_sensitive=True)
    both = {"id": 1, "ID": 2, "user": "a"}
    assert rows(USERS, [both], is_case_sensitive=True) == [{"id": 1, "user": "a"}]
    at = StructType([StructField("at", StructType([StructField("x", LongType())]))])
    assert rows(at, [batch_of(at=[{"X": 1, "y": 2}])]) == [{"at": {"x": 1}}]


def test_the_mode_is_an_option_and_permissive_needs_its_column() -> None:
    where = {"address": "tcp://a:1", "partition": "p"}
    assert Settings.of(where, USERS).corrupt_column is None
    assert Settings.of({**where, "mode": "PERMISSIVE"}, CORRUPT).corrupt_column == "_corrupt_record"
    named = {**where, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "user"}
    assert Settings.of(named, USERS).corrupt_column == "user"
    with pytest.raises(ConfigError, match="no column _corrupt_record string"):
        Settings.of({**where, "mode": "permissive"}, USERS)
    with pytest.raises(ConfigError, match="mode='dropmalformed': give failfast or permissive"):
        Settings.of({**where, "mode": "DROPMALFORMED"}, USERS)
    fixed = StructType([StructField("id", LongType(), False), *CORRUPT[1:]])
    with pytest.raises(ConfigError, match="column id is NOT NULL"):
        Settings.of({**where, "mode": "PERMISSIVE"}, fixed)
    months = StructType([StructField("span", YearMonthIntervalType())])
    with pytest.raises(ConfigError, match="'span' of type interval year to month: "):
        Settings.of(where, months)


def test_an_exchange_refuses_calendar_intervals_and_takes_times_and_durations_as_keys() -> None:
    class Field:
        def __init__(self, name: str, kind: str) -> None:
            self.name = name
            self.dataType = self
            self.simpleString = lambda: kind

    for kind in ("interval", "array<interval>", "map<string,interval>", "struct<a:interval,b:int>"):
        with pytest.raises(ConfigError, match=r"column 'span' of type .* has calendar intervals"):
            PlainColumns([Field("span", kind)])
    kinds = ("time(6)", "interval day to second", "interval hour", "struct<interval:bigint>")
    columns = PlainColumns([Field(kind, kind) for kind in kinds])
    assert columns.keys(kinds[:3], is_case_sensitive=False) == ("c0", "c1", "c2")
    with pytest.raises(ConfigError, match="cannot be a key"):
        columns.keys(kinds[3:], is_case_sensitive=False)
