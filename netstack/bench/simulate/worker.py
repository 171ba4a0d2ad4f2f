"""A process that plays simulations: with an order of sets that is the same in each, and nothing else in it.

Takes: on standard input a JSON document a line, `{"seed": 7}`, `{"scenario": {...}}` or with `"shrink": attempts`.
Gives: a document for each on standard output, in order.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any, Final

from .cluster import Outcome, simulate
from .determined import hash_is_fixed
from .scenario import Scenario, random_scenario
from .shrink import shrink

_WARM: Final = 8
"""After so many simulations the objects that live as long as the process exist: later collections skip them."""


def main() -> int:
    """Answers until its input ends.

    Returns:
        The exit code.
    """
    if not hash_is_fixed():
        sys.stderr.write("set PYTHONHASHSEED=0, or no two processes play the same\n")
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
    """Plays what is asked for."""
    scenario = Scenario.from_dict(asked["scenario"]) if "scenario" in asked else random_scenario(asked["seed"])
    outcome = simulate(scenario)
    told = document(outcome)
    if outcome.failure and asked.get("shrink"):
        small, played = shrink(outcome, simulate, attempts=asked["shrink"])
        told |= {"shrunk": document(small), "shrunk_in": played}
    return told


def document(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain data; what led to it only where it failed."""
    told: dict[str, Any] = {
        "seed": outcome.scenario.seed,
        "line": outcome.line,
        "failure": outcome.failure,
        "clock_s": outcome.clock_s,
        "deaths": outcome.deaths,
        "faults": len(outcome.scenario.faults),
        "situations": outcome.situations,
    }
    if outcome.failure:
        told |= {"events": [*outcome.events], "detail": outcome.detail, "scenario": outcome.scenario.as_dict()}
    return told


if __name__ == "__main__":
    sys.exit(main())
