"""Intervals hold the truth as often as they say, and are told in digits that mean something."""

from __future__ import annotations

import math
import random

import pytest

from netstack.base.units import format_latency
from netstack_bench.interval import Interval, digits_of


def noisy(rng: random.Random, truth: float, noise: float, count: int) -> list[float]:
    return [truth * math.exp(rng.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize("confidence", [0.95, 0.99])
@pytest.mark.parametrize("repeats", [3, 5, 12])
def test_the_truth_is_inside_as_often_as_is_said(repeats: int, confidence: float) -> None:
    rng = random.Random(repeats)
    runs = 3000
    held = dict.fromkeys(("one", "pairs", "apart"), 0)
    for _ in range(runs):
        a, b = noisy(rng, 50.0, 0.1, repeats), noisy(rng, 46.0, 0.05, repeats)
        drift = [math.exp(rng.gauss(0, 0.5)) for _ in range(repeats)]  # of the machine: both of a pair have it
        pairs = [(x * each, y * each) for x, y, each in zip(a, b, drift, strict=True)]
        for name, actual, truth in (
            ("one", Interval.of(a, confidence), 50.0),
            ("pairs", Interval.of([y / x for x, y in pairs], confidence), 0.92),
            ("apart", Interval.of_ratio(a, b, confidence), 0.92),
        ):
            assert actual is not None
            held[name] += actual.low <= truth <= actual.high
    for name, count in held.items():
        assert confidence - 0.02 <= count / runs <= min(1.0, confidence + (0.04 if name == "apart" else 0.02)), name


def test_pairs_do_not_hear_of_a_machine_that_drifts() -> None:
    pairs = [(100.0, 90.0), (50.0, 45.1), (200.0, 179.0)]
    actual = Interval.of_pairs(pairs)
    assert actual is not None
    assert actual.spread < 0.02
    separate = Interval.of_ratio(*zip(*pairs, strict=True))
    assert separate is not None
    assert separate.spread > 1


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [1.0, 2.0, 0.0], [1.0, math.nan, 2.0]])
def test_too_few_or_none_above_zero_say_nothing(values: list[float]) -> None:
    assert Interval.of(values) is None
    assert Interval.of_ratio([1.0, 1.1, 1.2], values) is None


def test_equal_repeats_have_no_width() -> None:
    actual = Interval.of([5.0, 5.0, 5.0])
    assert actual is not None
    assert (actual.middle, actual.low, actual.high) == (pytest.approx(5.0), pytest.approx(5.0), pytest.approx(5.0))
    assert actual.percent() == "500 %"


@pytest.mark.parametrize(("value", "half", "digits"), [(4123.0, 300.0, 2), (4123.0, 2.0, 3), (4123.0, 5000.0, 1)])
def test_digits_that_the_error_leaves_meaning_to(value: float, half: float, digits: int) -> None:
    assert digits_of(value, half) == digits


def test_a_range_that_tells_nothing_is_not_printed() -> None:
    """Three repeats of which one is far off gave `10 ms (0.2 us to 600 s)`."""
    interval = Interval.of([1_000.0, 1_100.0, 900_000.0])
    assert interval is not None
    assert interval.text(format_latency).startswith("10 ms")
    assert " to " not in interval.text(format_latency)


def test_the_text_has_no_more_digits_than_that() -> None:
    assert Interval(4123.0, 3871.0, 4492.0).text(format_latency) == "4.1 ms (3.9 ms to 4.5 ms)"
    assert Interval(0.9234, 0.8911, 0.9571).percent() == "92 \u00b1 3 %"
    assert Interval(0.92341, 0.92111, 0.92571).percent() == "92.3 \u00b1 0.2 %"
