"""From a scenario that fails to a small one that still does.

Takes: a scenario, a way to play one. Gives: the smallest that was found.
"""

from __future__ import annotations

from collections.abc import Callable

from .cluster import Outcome
from .scenario import Scenario, smaller


def shrink(failed: Outcome, play: Callable[[Scenario], Outcome], *, attempts: int) -> tuple[Outcome, int]:
    """Tries simpler scenarios as long as they fail, in whatever way.

    Args:
        failed: what failed.
        play: plays one.
        attempts: at most so many are played.

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
