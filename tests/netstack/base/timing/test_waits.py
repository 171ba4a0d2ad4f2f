"""WaitMeter: the last minute, waits that go on, waits that overlap."""

from __future__ import annotations

import sys

import pytest

from netstack.base.timing.waits import WaitMeter, WaitStatistics


def wait(meter: WaitMeter, begin: float, end: float) -> None:
    meter.begin(begin)
    meter.end(end)


def test_nothing_waited_is_nothing() -> None:
    meter = WaitMeter(7.0)
    assert meter.statistics(7.0) == meter.statistics(1e9) == WaitStatistics(0.0, 0.0, 0.0)


def test_a_young_meter_looks_back_to_when_it_was_made() -> None:
    meter = WaitMeter(2.0)
    wait(meter, 2.0, 3.0)
    assert meter.ms_per_s(4.0) == 500.0
    assert meter.ms_per_s(12.0) == 100.0


def test_a_wait_that_goes_on_counts_as_far_as_it_has_come() -> None:
    meter = WaitMeter(0.0)
    meter.begin(10.0)
    assert meter.statistics(20.0) == WaitStatistics(10.0, 500.0, 10.0)
    assert meter.statistics(1000.0) == WaitStatistics(990.0, 1000.0, 990.0)
    meter.end(1000.0)
    assert meter.statistics(1000.0) == WaitStatistics(990.0, 1000.0, 990.0)


def test_what_is_older_than_a_minute_is_forgotten_in_spans_of_five_seconds() -> None:
    meter = WaitMeter(0.0)
    wait(meter, 3.0, 6.0)  # 2 s of the first span, 1 s of the second
    assert meter.ms_per_s(59.0) == pytest.approx(3000 / 59)
    assert meter.ms_per_s(60.0) == pytest.approx(1000 / 55)
    assert meter.ms_per_s(64.0) == pytest.approx(1000 / 59)
    assert meter.ms_per_s(65.0) == 0.0
    assert (meter.total_s(65.0), meter.longest_s(65.0)) == (3.0, 3.0)


def test_several_who_wait_at_once_count_once() -> None:
    meter = WaitMeter(0.0)
    meter.begin(0.0)
    meter.begin(1.0)
    meter.end(2.0)
    meter.end(4.0)
    assert meter.statistics(8.0) == WaitStatistics(4.0, 500.0, 4.0)


def test_a_meter_is_small_and_stays_so() -> None:
    meter = WaitMeter(0.0)
    before = sys.getsizeof(meter) + sys.getsizeof(meter._before_s)
    for second in range(0, 10_000, 7):
        wait(meter, second, second + 1)
    assert sys.getsizeof(meter) + sys.getsizeof(meter._before_s) == before < 400
