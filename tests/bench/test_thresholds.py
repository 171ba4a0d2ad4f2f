"""Thresholds: what they mean, which runs they judge, and the exit code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError
from netstack_bench.store import Row
from netstack_bench.thresholds import Threshold, judge


@pytest.mark.parametrize(
    ("text", "bound", "worst"),
    [
        ("p99>20ms", 20_000.0, "20 ms"),
        (" p99.9 >= 1s", 1e6, "1 s"),
        ("max>50us", 50.0, "50 us"),
        ("throughput<200MB/s", 200.0, "200 MB/s"),
        ("records/s<1M", 1e6, "1 M records/s"),
    ],
)
def test_a_condition_is_a_figure_an_operator_and_a_value(text: str, bound: float, worst: str) -> None:
    threshold = Threshold.parse(text)
    assert threshold.bound == pytest.approx(bound)
    assert threshold.write(threshold.bound) == worst
    above = threshold.operator.startswith(">")
    assert threshold.is_crossed(bound * 1.01) == above
    assert threshold.is_crossed(bound * 0.99) != above
    assert threshold.is_crossed(threshold.bound) == ("=" in threshold.operator)


@pytest.mark.parametrize(
    "text", ["", "p99", "p98>1ms", "p99=1ms", "p99>", "p99>1", "p99>none", "throughput<fast", "worse"]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Threshold.parse(text)


def row(rate: float | None, p99: float | None, mb_per_s: float = 100.0, **more: Any) -> Row:
    return {"settings_rate_per_s": rate, "latency_us_p99": p99, "payload_mb_per_s": mb_per_s, **more}


def name_of(each: Row) -> str:
    return str(each["settings_rate_per_s"])


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9), st.floats(1.0, 1e6))
def test_it_fails_exactly_where_the_median_of_a_setting_crosses_it(values: list[float], bound_us: float) -> None:
    threshold = Threshold("p99>x", "p99", ">", bound_us)
    (verdict,) = judge([threshold], [row(1000.0, value) for value in values], name_of)
    middle = sorted(values)[len(values) // 2] if len(values) % 2 else None
    assert verdict.value is not None
    assert min(values) <= verdict.value <= max(values)
    assert middle is None or verdict.value == middle
    assert verdict.has_failed == (verdict.value > bound_us)


def test_latencies_are_those_at_a_rate_and_rates_those_without() -> None:
    rows = [row(None, 90_000.0, 300.0), row(1000.0, 900.0, 1.0), row(50_000.0, 30_000.0, 50.0)]
    latency, rate = judge(map(Threshold.parse, ("p99>20ms", "throughput<200MB/s")), rows, name_of)
    assert (latency.value, latency.where, latency.crossed, latency.count) == (30_000.0, "50000.0", 1, 2)
    assert (rate.value, rate.has_failed, rate.count) == (300.0, False, 1)
    (under_load,) = judge([Threshold.parse("p99>20ms")], rows[:1], name_of)
    assert under_load.value == 90_000.0, "samples under load, where there is nothing else"


def test_a_condition_without_a_figure_has_failed() -> None:
    for rows in ([], [row(1000.0, None)], [row(1000.0, 5.0, error="it broke")]):
        (verdict,) = judge([Threshold.parse("p99>20ms")], rows, name_of)
        assert verdict.has_failed
        assert verdict.value is None
        assert "was not checked" in verdict.sentence()


def test_a_round_trip_is_a_latency() -> None:
    rows = [row(1000.0, None, round_trip_latency_us_p99=5_000.0)]
    (verdict,) = judge([Threshold.parse("p99>1ms")], rows, name_of)
    assert verdict.value == 5_000.0
