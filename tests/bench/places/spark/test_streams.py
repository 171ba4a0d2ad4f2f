"""Every stream source is read to its last row, and has its figures."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.places.spark.streams import StreamsSpec, measure_streams

pytestmark = [pytest.mark.java, pytest.mark.long, pytest.mark.xdist_group("spark")]


def test_every_source_has_its_figures(spark: Any) -> None:
    actual = measure_streams(spark, StreamsSpec(rows=100, batches=1))["sources"]
    assert list(actual) == ["netstack", "rate-micro-batch", "files", "socket"]
    for figures in actual.values():
        assert figures["rows_per_s"] > 0
        assert 0 < figures["batch_s"] <= figures["longest_batch_s"]


def test_numbers_that_cannot_be_are_refused(spark: Any) -> None:
    with pytest.raises(ConfigError, match="--batches 0: the minimum is 1"):
        StreamsSpec(rows=1, batches=0)
