"""Restart strategies: how often, and after which delay."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack.schedule.failover.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy


def delays(strategy: RestartStrategy, *times_s: float) -> list[float | None]:
    return [strategy.on_failure(now_s).delay_s for now_s in times_s]


def no_jitter() -> float:
    return 0.0


def test_none_never_restarts() -> None:
    decision = NoRestart().on_failure(0.0)
    assert (decision.delay_s, decision.reason) == (None, "the restart strategy is none; set StreamSettings.restart")


def test_fixed_delay_refuses_after_so_many() -> None:
    strategy = FixedDelay(2, 3.0)
    assert delays(strategy, 0.0, 1.0, 2.0) == [3.0, 3.0, None]
    assert "2 restarts are used up" in strategy.on_failure(3.0).reason
    assert delays(FixedDelay(None, 0.5), *[0.0] * 100) == [0.5] * 100


def test_failure_rate_counts_within_the_interval() -> None:
    strategy = FailureRate(2, 10.0, 1.0)
    assert delays(strategy, 0.0, 5.0, 10.5, 11.0) == [1.0, 1.0, 1.0, None]
    assert delays(strategy, 30.0, 31.0, 32.0) == [1.0, 1.0, None]
    assert delays(FailureRate(0, 10.0), 0.0) == [None]


def test_exponential_delay_grows_to_its_cap() -> None:
    strategy = ExponentialDelay(initial_s=1.0, max_s=5.0, multiplier=2.0, chance=no_jitter)
    assert delays(strategy, 0.0, 10.0, 20.0, 30.0, 40.0) == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_exponential_delay_begins_again_after_a_quiet_time() -> None:
    strategy = ExponentialDelay(initial_s=1.0, max_s=60.0, multiplier=2.0, quiet_s=100.0, attempts=2, chance=no_jitter)
    # The quiet time begins when the restart does: 1 s after the first failure.
    assert delays(strategy, 0.0, 100.0) == [1.0, 2.0]
    assert delays(strategy, 150.0) == [None]
    assert delays(strategy, 202.0, 203.0, 204.0) == [1.0, 2.0, None]


def test_jitter_moves_the_delay_within_bounds() -> None:
    moves = iter([-1.0, 1.0, 1.0, 1.0])
    strategy = ExponentialDelay(initial_s=1.0, max_s=4.0, multiplier=2.0, jitter=0.1, chance=lambda: next(moves))
    assert delays(strategy, 0.0, 10.0, 20.0, 30.0) == [1.0, 2.2, 4.0, 4.0]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: FixedDelay(-1), "attempts=-1"),
        (lambda: FixedDelay(1, -1.0), "delay_s"),
        (lambda: FailureRate(1, 0.0), "interval_s"),
        (lambda: ExponentialDelay(initial_s=0.0, chance=no_jitter), "initial_s"),
        (lambda: ExponentialDelay(initial_s=2.0, max_s=1.0, chance=no_jitter), "max_s"),
        (lambda: ExponentialDelay(multiplier=0.5, chance=no_jitter), "multiplier"),
        (lambda: ExponentialDelay(jitter=1.5, chance=no_jitter), "jitter"),
    ],
)
def test_values_that_cannot_work(make: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        make()
