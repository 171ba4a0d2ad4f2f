from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import NetstackError
from netstack_bench.histogram import Histogram

durations = st.lists(st.integers(0, 10**12), max_size=200)


def recorded(values: list[int]) -> Histogram:
    made = Histogram()
    made.record_many(np.array(values, dtype=np.int64))
    return made


def exact(values: list[int], fraction: float) -> int:
    return sorted(values)[max(0, math.ceil(fraction * len(values) - 1e-9) - 1)]


@given(durations, durations, durations)
def test_merging_in_any_order_is_recording_everything(a: list[int], b: list[int], c: list[int]) -> None:
    left = recorded(a)
    left.merge(recorded(b))
    left.merge(recorded(c))
    right = recorded(c)
    right.merge(recorded(a))
    right.merge(recorded(b))
    assert left.to_dict() == right.to_dict() == recorded(a + b + c).to_dict()
    assert left.count == len(a + b + c)


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=100), st.integers(-(10**6), 10**6))
def test_shifting_moves_every_duration(values: list[int], by_ns: int) -> None:
    moved = recorded(values).shifted(by_ns)
    truth = recorded([max(0, value + by_ns) for value in values])
    assert moved.count == truth.count
    assert (moved.min_ns, moved.max_ns) == (truth.min_ns, truth.max_ns)
    for fraction in (0.01, 0.5, 0.99, 1.0):
        reported, real = moved.percentile_ns(fraction), truth.percentile_ns(fraction)
        assert reported is not None
        assert real is not None
        assert abs(reported - real) <= 0.004 * (real + abs(by_ns)) + 2


@given(durations)
def test_shifting_by_nothing_is_a_copy(values: list[int]) -> None:
    made = recorded(values)
    copy = made.shifted(0)
    assert copy.to_dict() == made.to_dict()
    copy.record(5)
    assert made.count == len(values)


@given(durations)
def test_one_by_one_and_all_at_once_are_equal(values: list[int]) -> None:
    single = Histogram()
    for value in values:
        single.record(value)
    assert single.to_dict() == recorded(values).to_dict()


@given(durations.filter(bool), st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_percentile_is_exact_to_three_digits_and_never_too_low(values: list[int], fraction: float) -> None:
    actual, truth = recorded(values).percentile_ns(fraction), exact(values, fraction)
    assert actual is not None
    assert truth <= actual <= truth * 1.001 + 1


@given(durations)
def test_a_dictionary_carries_everything(values: list[int]) -> None:
    sent = recorded(values)
    came = Histogram.from_dict(json.loads(json.dumps(sent.to_dict())))
    assert came.to_dict() == sent.to_dict()
    assert came.summary_us() == sent.summary_us()
    assert came.count == sent.count


def test_a_summary_is_in_microseconds_with_an_exact_maximum() -> None:
    actual = recorded([*range(1000, 1_001_000, 1000), 7_654_321])
    summary = actual.summary_us()
    assert summary["p50"] == pytest.approx(501, rel=2e-3)
    assert summary["p99"] == pytest.approx(991, rel=2e-3)
    assert summary["max"] == 7654.321
    assert actual.min_ns == 1000


def test_an_empty_one_has_no_percentiles() -> None:
    assert set(Histogram().summary_us().values()) == {None}


def test_what_is_out_of_range_counts_at_the_ends() -> None:
    actual = Histogram()
    actual.record(-5)
    actual.record(1 << 60)
    assert actual.count == 2
    assert actual.min_ns == 0
    assert actual.max_ns == actual.percentile_ns(1.0) == (1 << 46) - 1


@pytest.mark.parametrize("field", [{"buckets": [1, 2]}, {"buckets": [10**6]}, {"counts": [0]}])
def test_a_dictionary_of_something_else_is_refused(field: dict[str, list[int]]) -> None:
    with pytest.raises(NetstackError, match="histogram"):
        Histogram.from_dict({**recorded([5]).to_dict(), **field})


def test_hgrm_tells_every_value_and_the_same_percentiles() -> None:
    histogram = Histogram()
    histogram.record_many(np.arange(1, 10_001, dtype=np.int64) * 1000)
    lines = histogram.hgrm().splitlines()
    assert lines[0].split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    rows = [[float(cell) for cell in line.split()] for line in lines[2:] if not line.startswith("#")]
    assert [row[:2] for row in (rows[0], rows[-1])] == [[1.0, 0.0], [10_000.0, 1.0]]
    for value, part, upto, *beyond in rows:
        assert histogram.percentile_ns(part) == pytest.approx(value * 1000)
        assert upto >= part * 10_000
        assert beyond == ([] if part == 1.0 else [pytest.approx(1 / (1 - part), abs=0.01)])
    assert [row[1] for row in rows] == sorted({row[1] for row in rows})
    assert "#[Mean    =     5002" in lines[-3]
    assert lines[-2] == "#[Max     =    10000.000, Total count    =        10000]"
    assert "Total count    =            0]" in Histogram().hgrm()
