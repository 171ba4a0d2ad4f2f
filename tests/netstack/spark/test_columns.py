"""Names of columns and partitions, without a session."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from netstack.base.errors import ConfigError
from netstack.spark import driver
from netstack.spark.driver import check_version
from netstack.spark.end_stage import numbers_for, spark_hash
from netstack.spark.exchange_frame import PlainColumns

types = pytest.importorskip("pyspark.sql.types")


def columns(*names: str) -> PlainColumns:
    return PlainColumns(types.StructType([types.StructField(name, types.LongType()) for name in names]))


def test_a_key_is_named_as_spark_names_columns() -> None:
    actual = columns("id", "a.b", "a`b", "User")
    for key, place in (("id", 0), ("ID", 0), ("a.b", 1), ("`a.b`", 1), ("a`b", 2), ("`a``b`", 2), ("user", 3)):
        assert actual.keys([key], is_case_sensitive=False) == (f"c{place}",)
    assert actual.keys(["User", "id"], is_case_sensitive=True) == ("c3", "c0")
    with pytest.raises(ConfigError, match=r"'user'; it has id, a\.b, a`b, User"):
        actual.keys(["user"], is_case_sensitive=True)
    twice = columns("id", "ID")
    assert twice.keys(["ID"], is_case_sensitive=True) == ("c1",)
    with pytest.raises(ConfigError, match="several columns are named 'id'"):
        twice.keys(["id"], is_case_sensitive=False)
    with pytest.raises(ConfigError, match="at least one column"):
        twice.keys([], is_case_sensitive=False)


def test_a_number_is_hashed_as_spark_does() -> None:
    assert [spark_hash(number) for number in (0, 1, 42)] == [933211791, -559580957, 29417773]


def test_every_partition_has_a_number() -> None:
    for partitions in (1, 2, 7, 200):
        assert [spark_hash(number) % partitions for number in numbers_for(partitions)] == list(range(partitions))


def test_a_pyspark_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.9")
    check_version()
    with pytest.raises(ConfigError, match=r"data source needs pyspark 4\.2 .* 4\.1\.9"):
        from netstack.spark import register  # noqa: F401
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    with pytest.raises(ConfigError, match=r"pyspark 4\.0 or newer"):
        from netstack.spark import exchange  # noqa: F401
    monkeypatch.setattr("pyspark.__version__", "4.10.0.dev1")
    check_version(driver.OLDEST_SOURCE)


def test_every_timestamp_that_is_written_has_the_zone_utc() -> None:
    pytest.importorskip("pyspark", minversion="4.2")  # that of the data source
    from netstack.spark.sink import in_utc

    moment = datetime.datetime(2026, 11, 22, 9, 30, tzinfo=datetime.UTC)

    def kinds(zone: str) -> list[pa.DataType]:
        at = pa.timestamp("us", zone)
        nested = pa.struct([("at", at), ("map", pa.map_(pa.string(), at))])
        return [at, pa.list_(at), pa.large_list(pa.field("each", at, nullable=False)), nested, pa.timestamp("us")]

    names = ["at", "list", "large", "nested", "naive"]
    row = [moment, [moment], [moment], {"at": moment, "map": [("a", moment)]}, datetime.datetime(2026, 11, 22)]
    schema = pa.schema(list(zip(names, kinds("Etc/UTC"), strict=True)))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([each], kind) for each, kind in zip(row, schema.types, strict=True)], schema=schema
    )
    written = in_utc(batch)
    assert written.schema.types == kinds("UTC")
    assert written.to_pylist() == batch.to_pylist()
    assert in_utc(written) is written
