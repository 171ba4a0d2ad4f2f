from __future__ import annotations

import numpy as np
import pytest

from netstack_bench.arrivals import Arrivals, column, lane_keys, round_robin_keys, warm_ns

MS = 1_000_000
START = 10_000 * MS


def steady(until_ms: int, *, every_ms: int = 1, records: int = 100) -> Arrivals:
    made = Arrivals()
    for at in range(0, until_ms, every_ms):
        made.add(records, START + at * MS)
    return made


def test_throughput_is_that_of_the_steady_part() -> None:
    made = Arrivals()
    for at in range(1000):  # a slow start, then 100 records a millisecond, then a burst from the queues
        made.add(1 if at < 300 else 100, START + at * MS)
    made.add(1_000_000, START + 1001 * MS)
    window = made.window(START, START + 1000 * MS, warmup_s=0.3)
    assert window.steady
    assert window.records_per_s == pytest.approx(100_000, rel=0.01)
    assert window.seconds == pytest.approx(0.69, abs=0.02)


def test_the_warm_up_is_at_most_a_third() -> None:
    window = steady(300).window(START, START + 300 * MS, warmup_s=10)
    assert window.seconds == pytest.approx(0.2, abs=0.02)


def test_a_run_too_short_is_counted_whole() -> None:
    made = steady(20)
    window = made.window(START, START + 20 * MS, warmup_s=0.3)
    assert not window.steady
    assert window.records == 2000
    assert window.seconds == pytest.approx(0.019)


def test_nothing_arrived() -> None:
    window = Arrivals().window(START, START, warmup_s=0.3)
    assert (window.records, window.seconds, window.records_per_s) == (0, 0, 0)


def test_first_and_last() -> None:
    made = steady(25, every_ms=5)
    assert (made.first_ns, made.last_ns, made.records) == (START, START + 20 * MS, 500)


def test_lanes_do_not_mix() -> None:
    made = Arrivals()
    made.log(lane_keys(column([0, 1]), column([0, 0])), column([10, 10]), column([100, 200]))
    made.log(lane_keys(1, column([10])), column([5]), column([300]))
    keys = lane_keys(column([0, 0, 1, 1, 1, 2]), column([9, 10, 9, 14, 15, 0]))
    actual = made.sampled_latency(keys, np.full(6, 50, dtype=np.int64), 0)
    assert actual.to_dict() == {"buckets": [50, 150, 250], "counts": [1, 1, 1], "min_ns": 50, "max_ns": 250}


def test_samples_of_the_warm_up_do_not_count() -> None:
    made = Arrivals()
    made.log(round_robin_keys(column([0]), 1), column([10]), column([100]))
    actual = made.sampled_latency(column([1, 2]), column([40, 60]), 50)
    assert (actual.count, actual.max_ns) == (1, 40)


def test_without_samples_there_is_no_latency() -> None:
    assert steady(5).sampled_latency(column([]), column([]), 0).count == 0


def test_the_end_of_the_warm_up() -> None:
    assert warm_ns(0, 3_000 * MS, 0.3) == 300 * MS
    assert warm_ns(0, 300 * MS, 0.3) == 100 * MS
    assert warm_ns(5, 5, 0.3) == 5
