"""Measures the rows of the table of figures, everything in turn, so that a drifting machine disturbs all alike.

Takes: how often, how long, which rows. Gives: the results of each measurement and build, by round.

Every connection uses the system's congestion control, because a peer's connections cannot use another one. One JVM with
Flink serves the whole run: it starts with the first measurement that needs it, and is idle in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from netstack.base.errors import NetstackError
from netstack_transports.tcp import LOOPBACK_CONGESTION_VARIABLE

from ..engines.flink import FlinkSession
from ..places.hosts.coordinator import run_over_hosts
from ..places.hosts.result import of_all_channels
from ..places.hosts.spec import MeshSpec
from ..places.hosts.taskmanagers import local_taskmanagers
from ..places.local.processes import MeasurementFailed
from ..places.local.runner import run_once
from ..spec import RunSpec
from ..stopping import kept_at_interrupt
from ..sweep import median_result
from .jobs import measure_job
from .rows import Measured, Row

PARALLELISM: Final = 4
"""Sources, and sinks, of an all-to-all."""

ENVIRONMENT: Final[Mapping[str, Mapping[str, str]]] = {
    "": {LOOPBACK_CONGESTION_VARIABLE: ""},
    "compiled": {LOOPBACK_CONGESTION_VARIABLE: "", "NETSTACK_PURE": ""},
    "python": {LOOPBACK_CONGESTION_VARIABLE: "", "NETSTACK_PURE": "1"},
}
"""The environment of the processes of a build; without a name of a congestion control, TCP keeps the system's."""

Key = tuple[Measured, str]
Rounds = dict[Key, dict[int, dict[str, Any]]]
"""By number of the round; one that failed, or delivered something else than was sent, is missing."""


def measure(
    wanted: Sequence[Measured], builds: Sequence[str], repeats: int, seconds: float, report: Callable[[str], None]
) -> tuple[Rounds, int]:
    """Measures everything `repeats` times, round after round, every other round in the opposite order.

    Returns:
        What each measurement gave in which round, nothing for a round in which it failed; the number of rounds. Ctrl-C
        keeps the rounds that are complete, and is raised if there are none.
    """
    keys = [(each, build) for each in wanted for build in each.builds if not build or build in builds]
    rounds: Rounds = {key: {} for key in keys}
    made = 0
    with kept_at_interrupt(lambda: made > 0), contextlib.ExitStack() as stack:
        flink = _Flink(stack)
        for number in range(repeats):
            began_s = time.monotonic()
            for key in reversed(keys) if number % 2 else keys:
                each, build = key
                try:
                    result = _measure_once(each, build, seconds * each.seconds, flink)
                    if result.get("delivered") is False:
                        problems = "; ".join(map(str, result.get("warnings") or ("records are lost or damaged",)))
                        raise MeasurementFailed(f"not delivered: {problems}")
                    rounds[key][number] = result
                except NetstackError as error:
                    report(f"round {number + 1}, {each.job or 'run'}, {each.engine} {build}: {error}")
            report(f"round {number + 1} of {repeats} took {time.monotonic() - began_s:.0f} s")
            made = number + 1
    kept = {key: {number: each for number, each in results.items() if number < made} for key, results in rounds.items()}
    return kept, made


def failures(rounds: Rounds, repeats: int) -> list[str]:
    """The measurements that failed, each with its number of rounds."""
    return [
        f"{each.job or 'run'}, {each.engine} {build}".rstrip() + f": {repeats - len(results)} of {repeats} rounds"
        for (each, build), results in rounds.items()
        if len(results) < repeats
    ]


def medians(rounds: Rounds) -> dict[Key, dict[str, Any]]:
    """The median result of each measurement that succeeded at least once."""
    return {key: median_result(list(results.values())) for key, results in rounds.items() if results}


def figures(row: Row, build: str, rounds: Rounds) -> list[float]:
    """The row's figure in each round in which all of it was measured: what is divided was measured by turns."""
    ours = values_of(row, row.ours, build, rounds)
    if row.other is None:
        return list(ours.values())
    other = values_of(row, row.other, build, rounds)
    return [value / other[number] for number, value in ours.items() if other.get(number)]


def values_of(row: Row, measured: Measured, build: str, rounds: Rounds) -> dict[int, float]:
    """What a row reads off one of its two measurements, by round."""
    results = rounds.get((measured, build if build in measured.builds else ""), {})
    values = {number: row.figure(result) for number, result in results.items()}
    more = row.allowance if measured == row.other else 0.0
    return {number: value + more for number, value in values.items() if value is not None}


class _Flink:
    """One session with a JVM, opened when it is first needed."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._session: FlinkSession | None = None

    def session(self) -> FlinkSession:
        if self._session is None:
            self._session = self._stack.enter_context(FlinkSession())
        return self._session


def _measure_once(each: Measured, build: str, seconds: float, flink: _Flink) -> dict[str, Any]:
    environment = ENVIRONMENT[build]
    if each.job:
        session = flink.session() if each.engine == "flink" else None
        return measure_job(each.job, each.engine, environment, seconds, session)
    spec = dataclasses.replace(each.spec, seconds=seconds)
    if each.engine == "flink":
        return flink.session().run_once(spec)
    if each.taskmanagers:
        count = each.taskmanagers
        with local_taskmanagers(count, slots=2 * PARALLELISM, environment=environment) as taskmanagers:
            return over(spec, taskmanagers.hosts(PARALLELISM))
    specs = [dataclasses.replace(spec, batch_records=size) for size in each.batch_sizes] or [spec]
    results = [run_once(each_spec, engine=each.engine, environment=environment) for each_spec in specs]
    return max(results, key=lambda result: float(result["records_per_s"]))


def over(spec: RunSpec, hosts: tuple[str, ...]) -> dict[str, Any]:
    """The same settings as an all-to-all among TaskManagers; rates are those of all channels."""
    return of_all_channels(run_over_hosts(MeshSpec(**{**spec.as_dict(), "hosts": hosts})))
