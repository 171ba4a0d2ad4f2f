"""A worker process that plays simulations; PYTHONHASHSEED=0 makes the order of sets the same in each.

It reads JSON documents from standard input, one a line: `{"seed": 7}` or `{"scenario": {...}}`, optionally with
`"shrink": attempts`. It writes the document of each outcome to standard output, in the same order.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from typing import Any, Final

from .cluster import Outcome, simulate
from .determinism import hash_is_fixed
from .scenario import Scenario, random_scenario, smaller


def shrink(failed: Outcome, play: Callable[[Scenario], Outcome], *, attempts: int) -> tuple[Outcome, int]:
    """Plays simpler scenarios and continues with each one that fails, for whatever reason.

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


_WARM: Final = 8
"""After so many simulations the objects that live as long as the process exist: later collections skip them."""


def main() -> int:
    """Plays requests until standard input ends; returns the exit code."""
    if not hash_is_fixed():
        sys.stderr.write("set PYTHONHASHSEED=0: otherwise two processes play the same seed differently\n")
        return 2
    gc.disable()  # one collection after each simulation: its garbage is still in the processor's cache
    for number, line in enumerate(sys.stdin):
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()
        gc.collect()
        if number < _WARM:
            gc.freeze()
    return 0


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Plays the scenario of one request, and shrinks it if it fails and the request says so."""
    scenario = Scenario.from_dict(asked["scenario"]) if "scenario" in asked else random_scenario(asked["seed"])
    outcome = simulate(scenario)
    summary = document(outcome)
    if outcome.failure and asked.get("shrink"):
        small, played = shrink(outcome, simulate, attempts=asked["shrink"])
        summary |= {"shrunk": document(small), "shrunk_in": played}
    return summary


def document(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON values; events, traceback and scenario only of a failure."""
    summary: dict[str, Any] = {
        "seed": outcome.scenario.seed,
        "line": outcome.line,
        "failure": outcome.failure,
        "clock_s": outcome.clock_s,
        "deaths": outcome.deaths,
        "faults": len(outcome.scenario.faults),
        "situations": outcome.situations,
    }
    if outcome.failure:
        summary |= {"events": [*outcome.events], "detail": outcome.detail, "scenario": outcome.scenario.as_dict()}
    return summary


if __name__ == "__main__":
    sys.exit(main())
