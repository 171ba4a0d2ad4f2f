"""Measures the rows of the table of figures, everything in turn, so that a drifting machine disturbs all alike.

Takes: how often, how long, which rows. Gives: the results of each measurement and build, round by round.
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
from ..taskmanagers import local_taskmanagers
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
) -> dict[Key, list[dict[str, Any] | None]]:
    """Measures everything `repeats` times, round after round, every other round in the opposite order.

    Args:
        wanted: what, each once.
        builds: of netstack.
        repeats: rounds.
        seconds: the length of most measurements.
        tell: hears of each one that has failed; the others go on.

    Returns:
        For each measurement a result a round; None for a round in which it failed.
    """
    keys = [(each, build) for each in wanted for build in each.builds if not build or build in builds]
    found: dict[Key, list[dict[str, Any] | None]] = {key: [] for key in keys}
    for number in range(repeats):
        for key in reversed(keys) if number % 2 else keys:
            each, build = key
            try:
                found[key].append(_measure_once(each, build, seconds * each.seconds))
            except NetstackError as error:
                tell(f"round {number + 1}, {each.engine} {build}: {error}")
                found[key].append(None)
        tell(f"round {number + 1} of {repeats} is done")
    return found


def _measure_once(each: Measured, build: str, seconds: float) -> dict[str, Any]:
    spec = dataclasses.replace(each.spec, seconds=seconds)
    if not each.taskmanagers:
        return run_once(spec, engine=each.engine, environment=PURE[build])
    count = each.taskmanagers
    with local_taskmanagers(count, slots=2 * PARALLELISM, environment=PURE[build]) as taskmanagers:
        return over(spec, taskmanagers.hosts(PARALLELISM))


def over(spec: RunSpec, hosts: tuple[str, ...]) -> dict[str, Any]:
    """The same settings as an all-to-all among TaskManagers."""
    return run_over_hosts(MeshSpec(**{**spec.as_dict(), "hosts": hosts}))
