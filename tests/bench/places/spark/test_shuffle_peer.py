"""PySpark's side of `netstack-bench shuffle`: it moves the very rows that netstack does."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.spark.end_stage import numbers_for
from netstack_bench.shuffle import spark_peer
from netstack_bench.shuffle.rows import expected

pytestmark = [pytest.mark.java, pytest.mark.whole, pytest.mark.xdist_group("spark")]


def test_the_same_rows_come_to_the_same_ranges(spark: Any) -> None:
    shape = {"batches": 2, "producers": 2, "consumers": 3}
    actual = spark_peer.run(spark, **shape)
    assert actual["results"] == expected(**shape)
    assert actual["duration_s"] > 0


@pytest.mark.parametrize("consumers", [1, 2, 5])
def test_each_range_has_a_partition_of_its_own(spark: Any, consumers: int) -> None:
    """Else a task would have two ranges and another none, whatever their number."""
    values = numbers_for(consumers)
    rows = spark.createDataFrame([(value,) for value in values], "part int").repartition(consumers, "part")
    placed = rows.selectExpr("spark_partition_id() at", "part").collect()
    assert sorted((row["at"], row["part"]) for row in placed) == list(enumerate(values))
