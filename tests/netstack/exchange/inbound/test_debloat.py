"""BufferDebloater: the reference vectors, the threshold, and where a constant load leads."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from netstack.exchange.inbound.debloat import BufferDebloater


def debloater(**settings: Any) -> BufferDebloater:
    """One without a threshold: whatever it calculates, it announces."""
    defaults = {"target_s": 1.0, "samples": 20, "threshold_percent": 0, "min_bytes": 1, "max_bytes": 32768}
    return BufferDebloater(**(defaults | settings))


def calculated(found: BufferDebloater, throughput_bytes_per_s: float, buffers_in_use: int) -> int:
    found.recalculate(throughput_bytes_per_s, buffers_in_use)
    return found.announced_bytes


# The vectors.


@pytest.mark.parametrize(
    ("throughput", "in_use", "expected"),
    [
        (3333, 16, 250),
        (0, 16, 50),
        (3333, 0, 1100),  # as one: 4,000 bytes, but no more than the largest
        (3333, 1, 1100),
        (900, 0, 1080),
        (900, 1, 1080),
    ],
)
def test_one_calculation(throughput: float, in_use: int, expected: int) -> None:
    actual = debloater(target_s=1.2, min_bytes=50, max_bytes=1100, samples=1)
    assert calculated(actual, throughput, in_use) == expected


GROWING = [19864, 21755, 23826, 26095, 28580, 31301, 32768]
SHRINKING = [32768, 29647, 26823, 24268, 21956, 19864]


@pytest.mark.parametrize(
    ("sizes", "throughput"), [(GROWING, 1e12), (SHRINKING, 0.0)], ids=["as fast as it can", "to nothing"]
)
def test_growing_is_as_fast_as_shrinking(sizes: list[int], throughput: float) -> None:
    """The vectors are cut to whole bytes at every step (here a size is rounded); each follows from the one before."""
    for size, following in itertools.pairwise(sizes):
        assert calculated(debloater(start_bytes=size), throughput, 1) - following in (0, 1)


def test_a_run_of_calculations_keeps_fractions() -> None:
    actual = debloater(start_bytes=19864)
    assert [calculated(actual, 1e12, 1) for _ in range(6)] == [21756, 23828, 26097, 28583, 31305, 32768]
    assert [calculated(actual, 0, 1) for _ in range(5)] == [29647, 26824, 24269, 21958, 19867]


# What is announced.


def test_it_begins_with_the_start_size_and_whole_segments_are_the_default() -> None:
    assert debloater().announced_bytes == 32768
    assert debloater(start_bytes=1024).announced_bytes == 1024
    assert debloater().estimated_time_to_consume_s is None


def test_small_changes_are_kept_for_later() -> None:
    actual = debloater(samples=1, threshold_percent=25, start_bytes=1000)
    assert actual.recalculate(1249, 1) is None
    assert actual.recalculate(751, 1) is None
    assert actual.announced_bytes == 1000
    assert actual.recalculate(1250, 1) == 1250
    assert actual.recalculate(1562, 1) == 1562  # 312 is 25 % in whole bytes
    assert actual.recalculate(1562, 1) is None


def test_small_changes_add_up() -> None:
    actual = debloater(threshold_percent=25, start_bytes=1000)
    reported = [actual.recalculate(2000, 1) for _ in range(4)]
    assert reported == [None, None, 1259, None]


@pytest.mark.parametrize(("start", "throughput", "reported"), [(51, 0, 50), (1099, 1e9, 1100)])
def test_the_smallest_and_the_largest_are_always_announced(start: int, throughput: float, reported: int) -> None:
    actual = debloater(samples=1, threshold_percent=25, min_bytes=50, max_bytes=1100, start_bytes=start)
    assert actual.recalculate(throughput, 1) == reported
    assert actual.recalculate(throughput, 1) is None


def test_the_time_to_consume_is_that_of_what_is_in_use() -> None:
    actual = debloater(samples=1, threshold_percent=100)
    actual.recalculate(8000, 4)
    assert actual.estimated_time_to_consume_s == 2000 * 4 / 8000
    actual.recalculate(0, 0)
    assert actual.estimated_time_to_consume_s == 1.0  # the smallest buffer, one of them, at a byte a second


# Properties.

LOADS = st.tuples(st.floats(0, 1e12), st.integers(0, 100_000))


@given(st.integers(1, 100), st.integers(100, 1 << 20), st.integers(1, 50), st.lists(LOADS, max_size=30))
def test_the_size_stays_between_the_smallest_and_the_largest(
    smallest: int, largest: int, samples: int, loads: list[tuple[float, int]]
) -> None:
    actual = debloater(min_bytes=smallest, max_bytes=largest, samples=samples)
    for throughput, in_use in loads:
        assert smallest <= calculated(actual, throughput, in_use) <= largest


@given(st.lists(LOADS, max_size=10), st.floats(0, 1e9), st.floats(0, 1e9), st.integers(0, 1000))
def test_more_throughput_never_gives_less(
    before: list[tuple[float, int]], one: float, other: float, in_use: int
) -> None:
    slower, faster = debloater(), debloater()
    for actual in (slower, faster):
        for throughput, buffers in before:
            actual.recalculate(throughput, buffers)
    slower.recalculate(min(one, other), in_use)
    faster.recalculate(max(one, other), in_use)
    assert slower.announced_bytes <= faster.announced_bytes


@given(st.floats(0, 1e7), st.integers(1, 100), st.floats(0.01, 10), st.integers(256, 32768), st.integers(1, 40))
def test_a_constant_load_ends_at_its_size(
    throughput: float, in_use: int, target_s: float, start: int, samples: int
) -> None:
    actual = debloater(target_s=target_s, min_bytes=256, start_bytes=start, samples=samples)
    wanted = min(max(throughput * target_s / in_use, 256), 32768)
    for _ in range(math.ceil(10 * (samples + 1))):
        actual.recalculate(throughput, in_use)
    assert actual.announced_bytes == pytest.approx(wanted, rel=1e-3, abs=1)
