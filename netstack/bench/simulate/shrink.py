"""Reduces a scenario that fails to a smaller one that fails too."""

from __future__ import annotations

from collections.abc import Callable

from .cluster import Outcome
from .scenario import Scenario, smaller


def shrink(failed: Outcome, play: Callable[[Scenario], Outcome], *, attempts: int) -> tuple[Outcome, int]:
    """Plays simpler scenarios and continues with each one that fails, for whatever reason.

    Args:
        failed: the outcome to begin with.
        play: plays one scenario.
        attempts: maximum number of scenarios to play.

    Returns:
        The outcome of the simplest that failed, and how many were played.
    """
    played = 0
    is_better = True
    while is_better and played < attempts:
        is_better = False
        for candidate in smaller(failed.scenario):
            if played == attempts:
                break
            played += 1
            outcome = play(candidate)
            if outcome.failure:
                failed = outcome
                is_better = True
                break
    return failed, played
