"""The expected end of the job of a simulation.

Takes: a `Scenario`, the results and commits of its job, and its history. Gives: the first violation in one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from . import feature_job
from .history import Event
from .operators import SINK, Committed, made, two_thirds
from .recorded_job import verdict
from .scenario import CHECKED, FEATURED, TWO_SOURCES, Scenario

_SETTLED_S: Final = 10.0
"""How long a slow link or disk may delay a deployment or a restore."""


def problems(scenario: Scenario, results: Mapping[str, Any], committed: Committed, history: Sequence[Event]) -> str:
    """Returns what is wrong with the results and the history of a finished job; empty if nothing is."""
    if scenario.case is not None:
        return feature_job.problems(scenario.case, results, feature_job.commits_of(committed.values()))
    if scenario.movement == CHECKED:
        anomalies = verdict(
            history,
            results,
            sources=scenario.parallelism[0],
            records=scenario.records,
            aligned=scenario.mode == "aligned",
            settled_s=_SETTLED_S,
        )
        return str(anomalies[0]) if anomalies else ""
    sums: dict[int, list[int]] = {}
    for rows in results.get(SINK, {}).values():
        for key, *counted in rows:
            if key in sums:
                return f"key {key} is counted in two sinks"
            sums[key] = counted
    right = {key: [count, count * (count + 1) // 2, 0] for key, count in expected(scenario).items()}
    wrong = [key for key in {**right, **sums} if right.get(key) != sums.get(key)]
    if wrong:
        key = wrong[0]
        return (
            f"{len(wrong)} keys are wrong: of key {key} (records, sum of numbers, damaged) are {sums.get(key)} instead"
            f" of {right.get(key)}"
        )
    return wrong_commits(scenario, committed)


def wrong_commits(scenario: Scenario, committed: Committed, *, is_finished: bool = True) -> str:
    """Returns what is wrong with the commits: each record once, or at most once for an unfinished job."""
    if scenario.movement in (CHECKED, FEATURED):
        return ""
    counts = Counter((key, number) for rows in committed.values() for key, number in rows)
    right = Counter({(key, number): 1 for key, most in expected(scenario).items() for number in range(1, most + 1)})
    wrong = sorted((counts - right) + ((right - counts) if is_finished else Counter()))
    return f"{len(wrong)} records were not committed once: {wrong[0]} {counts[wrong[0]]} times" if wrong else ""


def expected(scenario: Scenario) -> dict[int, int]:
    """Returns the number of records by key."""
    streams = [
        made(split, number, scenario.keys)
        for split in range(scenario.parallelism[0])
        for number in range(scenario.records)
    ]
    splits = scenario.parallelism[0]
    for number, stage in enumerate(scenario.stages):
        if stage == "filter":
            streams = [each for each in streams if two_thirds(each)]
        elif stage == "double":
            streams = [each for each in streams for _ in range(2)]
        elif stage in TWO_SOURCES:
            width = scenario.parallelism[number + 1]
            streams += [
                made(split, each, scenario.keys)
                for split in range(splits, splits + width)
                for each in range(scenario.records // 2)
            ]
            splits += width
    return dict(Counter(each[0] for each in streams))
