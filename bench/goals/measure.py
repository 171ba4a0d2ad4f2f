"""Measures the rows of README's table, everything in turn, so that a drifting machine disturbs all alike.

Takes: how often, how long, which rows. Gives: the median result of each measurement and build.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from netstack.errors import NetstackError

from ..mesh.driver import run_over_hosts
from ..mesh.spec import MeshSpec
from ..runner import run_once
from ..spec import RunSpec
from ..sweep import median_result
from ..taskmanagers import local_taskmanagers
from .jobs import measure_job
from .rows import Measured

PARALLELISM: Final = 4
"""Sources, and sinks, of an all-to-all."""

PURE: Final[Mapping[str, Mapping[str, str]]] = {
    "": {},
    "compiled": {"NETSTACK_PURE": ""},
    "python": {"NETSTACK_PURE": "1"},
}
"""What is set for the processes of a build."""

Key = tuple[Measured, str]


def measure(
    wanted: Sequence[Measured], builds: Sequence[str], repeats: int, seconds: float, tell: Callable[[str], None]
) -> dict[Key, dict[str, Any]]:
    """Measures everything `repeats` times, round after round.

    Args:
        wanted: what, each once.
        builds: of netstack.
        repeats: rounds.
        seconds: the length of most measurements.
        tell: hears of each one that has failed; the others go on.

    Returns:
        The median result of each measurement that succeeded at least once.
    """
    found: dict[Key, list[dict[str, Any]]] = {}
    for number in range(repeats):
        for each in wanted:
            for build in each.builds:
                if build and build not in builds:
                    continue
                try:
                    result = _measure_once(each, build, seconds * each.seconds)
                except NetstackError as error:
                    tell(f"round {number + 1}, {each.engine} {build}: {error}")
                    continue
                found.setdefault((each, build), []).append(result)
        tell(f"round {number + 1} of {repeats} is done")
    return {key: median_result(results) for key, results in found.items()}


def _measure_once(each: Measured, build: str, seconds: float) -> dict[str, Any]:
    if each.job:
        return measure_job(each.job, each.engine, PURE[build], seconds)
    spec = dataclasses.replace(each.spec, seconds=seconds)
    if not each.taskmanagers:
        return run_once(spec, engine=each.engine, environment=PURE[build])
    count = each.taskmanagers
    with local_taskmanagers(count, slots=2 * PARALLELISM, environment=PURE[build]) as taskmanagers:
        return over(spec, taskmanagers.hosts(PARALLELISM))


def over(spec: RunSpec, hosts: tuple[str, ...]) -> dict[str, Any]:
    """The same settings as an all-to-all among TaskManagers."""
    return run_over_hosts(MeshSpec(**{**spec.as_dict(), "hosts": hosts}))
