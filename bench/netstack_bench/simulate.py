"""The command `netstack-bench simulate`: plays seeds, prints failures and how often each situation was reached."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, final

import click
from rich.console import Console
from rich.markup import escape

from netstack.base.errors import ConfigError
from netstack.cli.stopping import keep_results, stopped_by
from netstack.cli.values import COUNT
from netstack.testing.simulate.campaign import WorkerDied, play
from netstack.testing.simulate.scenario import Scenario
from netstack.testing.simulate.situations import LEAST_SEEDS, SITUATIONS, missing

from . import console
from .flags import json_flag

_SHRINK_ATTEMPTS: Final = 200

_KEPT_WHOLE: Final = 100
"""Failures that are kept with their events; of later ones only the line and the scenario are kept."""

_BRIEF: Final = ("seed", "line", "failure", "scenario")

_PROGRESS_LEAST: Final = 100
_PROGRESS_PARTS: Final = 100
"""A campaign prints its progress so many times, but not more often than every `_PROGRESS_LEAST` simulations."""


@final
class Campaign:
    """The sums of the outcomes of many simulations, in memory that does not grow with their number.

    Args:
        first: the lowest seed.

    Attributes:
        played: number of simulations.
        failed: documents of those that failed.
        situations: how often each was reached.
    """

    def __init__(self, first: int) -> None:
        self.played = 0
        self.failed: list[dict[str, Any]] = []
        self.situations = Counter[str]()
        self._faults = 0
        self._deaths = 0
        self._clock_s = 0.0
        self._next = first
        self._beyond: set[int] = set()  # seeds that were played before a lower one

    def add(self, outcome: dict[str, Any]) -> None:
        """Counts the outcome of one simulation."""
        self.played += 1
        self.situations.update(outcome["situations"])
        self._faults += outcome["faults"]
        self._deaths += outcome["deaths"]
        self._clock_s += outcome["clock_s"]
        if outcome["failure"]:
            is_whole = len(self.failed) < _KEPT_WHOLE
            self.failed.append(outcome if is_whole else {name: outcome[name] for name in _BRIEF})
        self._beyond.add(outcome["seed"])
        while self._next in self._beyond:
            self._beyond.remove(self._next)
            self._next += 1

    @property
    def next_seed(self) -> int:
        """The lowest seed that was not played yet."""
        return self._next

    def document(self, never: list[str]) -> dict[str, Any]:
        """The sums as JSON values."""
        return {
            "simulations": self.played,
            "failed": sorted(self.failed, key=lambda each: each["seed"]),
            "faults": self._faults,
            "deaths": self._deaths,
            "clock_s": round(self._clock_s, 3),
            "situations": {name: self.situations[name] for name in SITUATIONS},
            "never": never,
        }


@click.command(short_help="Play whole clusters on a virtual clock, with faults, and check that every result is exact.")
@click.option("--seeds", type=COUNT, default=100, show_default=True, help="Number of simulations.")
@click.option("--from", "first", type=COUNT, default=0, show_default=True, help="First seed.")
@click.option(
    "--scenario",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Play one scenario instead: a file with the JSON that a failure prints.",
)
@click.option(
    "--shrink",
    type=COUNT,
    default=_SHRINK_ATTEMPTS,
    show_default=True,
    help="At most so many attempts to find a smaller scenario that also fails; 0: none.",
)
@click.option(
    "--processes", type=COUNT, default=None, help="Number of worker processes; default: one for each processor."
)
@json_flag
def simulate(seeds: int, first: int, file: Path | None, shrink: int, processes: int | None, as_json: bool) -> int:
    """Run a JobManager, TaskManagers and a job with checkpoints in one process, on a virtual clock, with faults.

    The code is that of a real cluster. Hosts are killed or lose power, links are cut, slow, or dead in one direction,
    disks are full or slow, reports arrive late and twice. Users rescale jobs, cancel them, and write code that fails.
    The seed decides everything: a seed that fails will fail again, with the same line.

    A campaign counts the situations that its seeds reach. After `make compiled` it is a little faster, but does not
    count those that need the Python classes.

    Exit code 1: a job did not end with exactly its result, an invariant did not hold, or something was left behind;
    or 1000 seeds or more never reached one of the situations.
    """
    if not seeds:
        raise ConfigError("--seeds 0: the minimum is 1")
    asked: Iterator[dict[str, Any]] = ({"seed": seed, "shrink": shrink} for seed in range(first, first + seeds))
    if file is not None:
        seeds = 1
        asked = iter([{"scenario": _scenario_in(file), "shrink": shrink}])
    count = max(1, min(processes or os.cpu_count() or 1, seeds))
    errors = console.err()
    campaign = Campaign(first)
    line = ""
    ended, has_died = "", False
    began_s = time.monotonic()
    try:
        for each in play(asked, count):
            campaign.add(each)
            line = each["line"]
            if each["failure"]:
                print_failure(each, errors)
            elif campaign.played % max(_PROGRESS_LEAST, seeds // _PROGRESS_PARTS) == 0:
                rate = campaign.played / (time.monotonic() - began_s)
                errors.print(f"{campaign.played} of {seeds}, {len(campaign.failed)} failed, {rate:.1f}/s")
    except KeyboardInterrupt:
        keep_results()
        ended = f"stopped by {stopped_by()}"
    except WorkerDied as error:
        ended, has_died = str(error), True
    never = missing(campaign.situations) if file is None and campaign.played >= LEAST_SEEDS else []
    result = campaign.document(never)
    if as_json:
        console.print_json(result)
    else:
        out = console.out()
        for each in result["failed"]:
            out.print(escape(each["line"]), soft_wrap=True, highlight=False)
        if file is not None and line and not campaign.failed:
            out.print(escape(line), soft_wrap=True, highlight=False)
        for name in SITUATIONS:
            out.print(f"{campaign.situations[name]:8d}  {name}", highlight=False)
        for name in never:
            out.print(f"never reached: {name}", highlight=False)
        out.print(
            f"{campaign.played} simulations, {result['faults']} faults, {result['deaths']} deaths,"
            f" {result['clock_s'] / 3600:.2f} virtual hours: {len(campaign.failed) or 'none'} failed",
            highlight=False,
        )
    if ended:
        errors.print(f"{escape(ended)}: {campaign.played} of {seeds} simulations were played", soft_wrap=True)
        if file is None:
            rest = f"--from {campaign.next_seed} --seeds {first + seeds - campaign.next_seed}"
            errors.print(f"to play the rest: netstack-bench simulate {rest}", soft_wrap=True)
    return 1 if campaign.failed or never or has_died else 0


def print_failure(outcome: dict[str, Any], console: Console) -> None:
    """Prints the events before a failure, the smallest scenario that also fails, and how to play it again."""
    small = outcome.get("shrunk", outcome)
    for text in (
        *small["events"],
        small["detail"],
        f"smallest scenario that fails, after {outcome.get('shrunk_in', 0)} attempts: {small['line']}",
        json.dumps(small["scenario"]),
        f"to play it again: netstack-bench simulate --from {outcome['seed']} --seeds 1;"
        " or --scenario FILE with that JSON",
        outcome["line"],
    ):
        console.print(escape(text), soft_wrap=True, highlight=False)


def _scenario_in(file: Path) -> dict[str, Any]:
    try:
        return Scenario.from_dict(json.loads(file.read_text())).as_dict()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"--scenario {file}: not a scenario ({type(error).__name__}); give the JSON that a failure prints"
        ) from error
