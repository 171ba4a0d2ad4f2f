"""The answer is the right one where it is known, and says so where the data do not decide."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from netstack.bench.recommend.answer import Answer, Goal, Point, answer
from netstack.bench.recommend.search import LADDER_S, MOST_REPEATS, Sample, Search

BASE_US, BEST_MB_PER_S = 400.0, 500.0


def kept_at(timeout_s: float) -> float:
    """Of the synthetic frontier, against 100 ms."""
    return (0.6 + 0.4 * timeout_s / (timeout_s + 0.001)) / (0.6 + 0.4 * 0.1 / 0.101)


def p99_at(timeout_s: float) -> float:
    return BASE_US + timeout_s * 1e6


def frontier(rng: random.Random, noise: float, drift: float) -> Callable[[float], Sample]:
    """Measures the synthetic frontier: both runs of a pair have the same drift, each its own noise."""

    def measure(timeout_s: float) -> Sample:
        machine = BEST_MB_PER_S * math.exp(rng.gauss(0, drift if noise else 0))
        here, there = (math.exp(rng.gauss(0, noise)) for _ in range(2))
        p99 = p99_at(timeout_s) * math.exp(rng.gauss(0, noise))
        return Sample(machine * there, machine * kept_at(timeout_s) * here, p99, "the producer")

    return measure


def searched(goal: Goal, noise: float = 0.0, seed: int = 0) -> tuple[Answer, int]:
    """The answer, and the number of measurements."""
    drift = 0.2 if goal.mb_per_s is None else 0.0  # absolute figures are those of a machine that stands still
    measure = frontier(random.Random(seed), noise, drift)
    samples: list[Sample] = []

    def measured(timeout_s: float) -> Sample:
        samples.append(measure(timeout_s))
        return samples[-1]

    found = Search(measured, goal).run()
    assert found is not None
    return found, len(samples)


@pytest.mark.parametrize("bound_us", [500.0, 1000.0, 4000.0, 15_000.0, 20_400.0, 90_000.0, 1e6])
def test_the_longest_timeout_within_a_latency_or_one_that_keeps_as_much(bound_us: float) -> None:
    found, repeats = searched(Goal(p99_us=bound_us))
    within = [timeout_s for timeout_s in LADDER_S if p99_at(timeout_s) <= bound_us]
    most = max(map(kept_at, within))
    assert found.is_decided
    assert found.is_reached
    assert found.point.timeout_s in within
    assert kept_at(found.point.timeout_s or 0.0) >= most - 0.03
    assert repeats <= 3 * 4, "bisection measures few of the timeouts"


@pytest.mark.parametrize("part", [0.55, 0.7, 0.9, 0.99])
def test_the_shortest_timeout_that_keeps_a_part_or_carries_a_throughput(part: float) -> None:
    right = next(timeout_s for timeout_s in LADDER_S if kept_at(timeout_s) >= part)
    for goal in (Goal(kept=part), Goal(mb_per_s=part * BEST_MB_PER_S)):
        found, _ = searched(goal)
        assert (found.point.timeout_s, found.is_reached, found.is_decided) == (right, True, True)


def test_what_no_timeout_reaches_is_said_with_the_nearest() -> None:
    for goal, nearest in ((Goal(p99_us=100.0), 0.0), (Goal(mb_per_s=900.0), 0.1)):
        found, _ = searched(goal)
        assert (found.is_reached, found.is_decided, found.point.timeout_s) == (False, True, nearest)
        assert found.paragraph().startswith(f"No timeout that was measured reaches {goal}. Nearest is ")


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("goal", [Goal(p99_us=20_000.0), Goal(mb_per_s=450.0), Goal()])
def test_what_is_decided_is_right(goal: Goal, noise: float) -> None:
    decided = wrong = 0
    rounds = 80
    for seed in range(rounds):
        found, repeats = searched(goal, noise, seed)
        assert repeats <= 5 * MOST_REPEATS
        if not found.is_decided or not found.is_reached:
            continue
        decided += 1
        timeout_s = found.point.timeout_s
        assert timeout_s is not None
        if goal.p99_us is not None:
            wrong += p99_at(timeout_s) > goal.p99_us
        else:
            least = goal.kept if goal.mb_per_s is None else goal.mb_per_s / BEST_MB_PER_S
            wrong += kept_at(timeout_s) < least
    assert wrong <= 0.05 * rounds
    if noise == 0.02:
        assert decided > 0.9 * rounds, "little noise is no excuse"
    if noise == 0.3:
        assert decided < 0.5 * rounds, "much noise decides nothing"


def test_one_repeat_decides_nothing() -> None:
    points = [
        Point(0.0, [(100.0, 75.0)], [500.0]),
        Point(0.001, [(100.0, 106.0)], [1500.0]),
        Point(0.01, [(100.0, 93.0)], [9000.0]),
        Point(0.1, [(100.0, 100.0)], [90_000.0]),
    ]
    found = answer(points, Goal(), 0.1)
    assert found is not None
    assert not found.is_decided
    assert found.paragraph() == (
        "The data do not decide (points were measured once, so their noise is unknown). As far as they go, set 1 ms; it"
        " keeps 106% of the throughput at 100 ms; 106 MB/s; p99 1.5 ms."
    )


@pytest.mark.parametrize("goal", [Goal(p99_us=1000.0), Goal(mb_per_s=500.0), Goal()])
def test_what_probably_no_timeout_reaches_is_not_told_to_be_set(goal: Goal) -> None:
    """Two repeats leave everything open, but both points are far from the goal."""
    points = [
        Point(0.0, [(100.0, 20.0)] * 2, [3_000.0] * 2),
        Point(0.01, [(100.0, 60.0)] * 2, [200_000.0] * 2),
    ]
    found = answer(points, goal, 0.1)
    assert found is not None
    assert f"no timeout reaches {goal}; nearest is {'0' if goal.p99_us else '10 ms'};" in found.paragraph()
    assert "set" not in found.paragraph()


def test_a_prompter_setting_that_may_do_is_a_doubt() -> None:
    steady = [(100.0, 97.0), (100.0, 97.5), (100.0, 96.5)]
    wild = [(100.0, 80.0), (100.0, 97.0), (100.0, 93.0)]
    points = [Point(0.0, wild, [500.0] * 3), Point(0.001, steady, [1500.0] * 3, "the consumer")]
    found = answer(points, Goal(), 0.1)
    assert found is not None
    assert found.point.timeout_s == 0.001
    assert found.is_reached
    assert found.doubts == ("0 might do: it has 70% to 115% of the throughput",)
    told = found.paragraph(96 << 20)
    assert told.endswith(
        "set 1 ms; it keeps 97 \u00b1 1 % of the throughput at 100 ms; 97 MB/s (96 MB/s to 98 MB/s); p99 1.5 ms;"
        " bottleneck: the consumer; memory 96 MiB."
    )


def test_time_that_ends_leaves_an_answer_or_none() -> None:
    measure = frontier(random.Random(1), 0.05, 0.2)
    for allowed in range(4):
        left = [allowed]

        def has_time(left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] >= 0

        found = Search(measure, Goal(p99_us=20_000.0), has_time=has_time).run()
        assert (found is None) == (allowed == 0)
        if found is not None and allowed < 3:
            assert not found.is_decided


def test_a_goal_of_latency_without_latencies_has_no_answer() -> None:
    assert answer([Point(0.1, [(1.0, 1.0)])], Goal(p99_us=1.0), 0.1) is None


def test_a_search_that_was_cut_short_does_not_decide() -> None:
    """All repeats were of 5 ms, which keeps enough: shorter timeouts were never measured."""
    left = iter(range(3))
    measure = frontier(random.Random(0), 0.0, 0.0)
    found = Search(measure, Goal(kept=0.9), has_time=lambda: next(left, None) is not None).run()
    assert found is not None
    assert found.point.timeout_s == 0.005
    assert not found.is_decided
    assert "the search ended before all timeouts in question were measured" in found.paragraph()
