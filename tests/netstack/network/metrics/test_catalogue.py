"""The catalogue: every metric once, named and defined as Prometheus wants it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from netstack.network.metrics.catalogue import CATALOGUE, Metric

UNITS = {
    "announcements",
    "buffers",
    "bytes",
    "connections",
    "credits",
    "events",
    "flushes",
    "ms per second",
    "percent",
    "ratio",
    "records",
    "seconds",
    "segments",
}


def test_every_name_and_every_source_is_there_once() -> None:
    assert [name for name, count in Counter(metric.name for metric in CATALOGUE).items() if count > 1] == []
    sources = Counter((metric.scope.path, metric.source) for metric in CATALOGUE)
    assert [source for source, count in sources.items() if count > 1] == []


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_metric_is_named_and_defined_as_it_should_be(metric: Metric) -> None:
    assert re.fullmatch(r"netstack(_[a-z]+)+", metric.name)
    assert metric.unit in UNITS
    assert metric.kind == ("counter" if metric.name.endswith("_total") else "gauge")
    assert metric.definition[0].isupper() or metric.definition[0] == "("
    assert metric.definition.endswith(".")
    assert len(metric.scope.labels) <= 1 or metric.is_detailed
