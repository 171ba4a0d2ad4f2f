"""PySpark's side of `netstack-bench shuffle`: it moves the very rows that netstack does."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.bench.shuffle import spark_peer
from netstack.bench.shuffle.rows import expected

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.xdist_group("spark")]


def test_the_same_rows_come_to_the_same_ranges(spark: Any) -> None:
    shape = {"batches": 2, "producers": 2, "consumers": 3}
    found = spark_peer.run(spark, **shape)
    assert found["results"] == expected(**shape)
    assert found["duration_s"] > 0
