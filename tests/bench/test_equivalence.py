"""A figure is equivalent only if that is known: noise never makes it so."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from netstack_bench.interval import AT_A_LOOK, LOOKS, Equivalence, Verdict, joint, looks_after

MARGIN = 0.15
MOST = math.log2(1 + MARGIN)


def noisy(rng: random.Random, truth: float, noise: float, count: int) -> list[float]:
    return [truth * math.exp(rng.gauss(0, noise)) for _ in range(count)]


def experiment(rng: random.Random, ratio: float, noise: float, looks: list[int]) -> Equivalence:
    """Measures until it is decided, or all looks were made."""
    ours, reference = noisy(rng, ratio, noise, looks[-1]), noisy(rng, 1.0, noise, looks[-1])
    result = Equivalence.of_ratio(reference[: looks[0]], ours[: looks[0]], MARGIN)
    for look in looks[1:]:
        if result.verdict is not Verdict.UNDECIDED:
            break
        result = Equivalence.of_ratio(reference[:look], ours[:look], MARGIN)
    return result


def verdicts(ratio: float, noise: float, looks: list[int], runs: int = 400) -> Counter[Verdict]:
    rng = random.Random(f"{ratio} {noise} {looks}")
    return Counter(experiment(rng, ratio, noise, looks).verdict for _ in range(runs))


@pytest.mark.parametrize(("ratio", "noise"), [(0.5, 0.3), (1.1, 0.05)])
def test_the_interval_of_a_look_holds_the_truth_as_often_as_it_says(ratio: float, noise: float) -> None:
    rng = random.Random(7)
    for count in (3, 6):
        runs, held = 1000, 0
        for _ in range(runs):
            result = Equivalence.of_ratio(noisy(rng, 1.0, noise, count), noisy(rng, ratio, noise, count), MARGIN)
            held += result.low <= math.log2(ratio) <= result.high
        assert held / runs >= AT_A_LOOK - 0.01


@pytest.mark.parametrize(("ratio", "noise"), [(1 + MARGIN, 0.003), (1 + MARGIN, 0.1), (1 / (1 + MARGIN), 0.03)])
def test_what_is_at_the_margin_is_called_within_or_outside_in_a_twentieth_of_all_experiments_at_most(
    ratio: float, noise: float
) -> None:
    """Also over all looks together, although it stops at the first that decides."""
    counts = verdicts(ratio, noise, looks_after(3, 6))
    assert counts[Verdict.WITHIN] / counts.total() <= 0.05
    assert counts[Verdict.OUTSIDE] / counts.total() <= 0.05


@pytest.mark.parametrize(("ratio", "noise"), [(1.3, 0.1), (1.6, 0.5), (0.7, 2.0)])
def test_what_is_far_away_is_never_called_within_however_noisy(ratio: float, noise: float) -> None:
    """Overlapping ranges of two repeats called most of these within."""
    assert verdicts(ratio, noise, [3, 4, 5, 6])[Verdict.WITHIN] <= 1


def test_more_noise_makes_fewer_verdicts_and_more_repeats_make_more() -> None:
    shares = [verdicts(1.0, noise, [3], 200)[Verdict.WITHIN] for noise in (0.01, 0.03, 0.05, 0.1, 0.5)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 190
    assert shares[-1] == 0
    assert verdicts(1.0, 0.05, [3, 4, 5, 6], 200)[Verdict.WITHIN] > 2 * shares[2] > 0
    assert verdicts(2.0, 0.05, [3, 4, 5, 6])[Verdict.OUTSIDE] == 400


FIGURES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6)


@given(FIGURES, FIGURES, st.floats(0.01, 100))
def test_verdicts_depend_on_neither_the_unit_nor_the_order_of_the_sides(
    a: list[float], b: list[float], unit: float
) -> None:
    result, back = Equivalence.of_ratio(a, b, MARGIN), Equivalence.of_ratio(b, a, MARGIN)
    scaled = Equivalence.of_ratio([each * unit for each in a], [each * unit for each in b], MARGIN)
    for ends, others in (((result.low, result.high), (-back.high, -back.low)), ((result.low,), (scaled.low,))):
        assert ends == pytest.approx(others, abs=1e-6)
    assert result.low <= result.error <= result.high
    if min(len(a), len(b)) < 3:
        assert result.verdict is Verdict.UNDECIDED, "the noise is unknown"


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=6), st.floats(-500, 500))
def test_a_known_difference_is_found(values: list[float], shift: float) -> None:
    result = Equivalence.of_difference(values, [each + shift for each in values], 150.0)
    assert result.error == pytest.approx(shift, abs=1e-6)
    inside = result.low >= -150 and result.high <= 150
    assert (result.verdict is Verdict.WITHIN) == inside
    if result.verdict is Verdict.OUTSIDE:
        assert abs(shift) > 150


def test_zeros_are_equal_apart_or_unknown() -> None:
    zero, some, mixed = [0.0] * 3, [1.0, 1.1, 0.9], [0.0, 1.0, 1.0]
    assert Equivalence.of_ratio(zero, zero, MARGIN).verdict is Verdict.WITHIN
    for a, b in ((zero, some), (some, zero)):
        assert Equivalence.of_ratio(a, b, MARGIN).verdict is Verdict.OUTSIDE
        assert Equivalence.of_ratio(a[:2], b, MARGIN).verdict is Verdict.UNDECIDED
    for other in (zero, some, mixed):
        assert Equivalence.of_ratio(mixed, other, MARGIN).verdict is Verdict.UNDECIDED


@given(st.lists(st.sampled_from(Verdict)))
def test_together_they_are_within_only_if_each_is(several: list[Verdict]) -> None:
    assert (joint(several) is Verdict.WITHIN) == (set(several) <= {Verdict.WITHIN})
    assert (joint(several) is Verdict.OUTSIDE) == (Verdict.OUTSIDE in several)


@given(st.integers(1, 50), st.integers(1, 50))
def test_there_are_at_most_as_many_looks_as_the_confidence_allows(first: int, most: int) -> None:
    looks = looks_after(first, most)
    assert looks[0] == first
    assert looks[-1] == max(first, most)
    assert len(looks) <= LOOKS
    assert all(before < look for before, look in pairwise(looks))
