"""The command `netstack-bench simulate`.

Takes: flags. Gives: a summary, or one JSON document, on standard output; an exit code.
"""

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

from netstack.cli.values import COUNT
from netstack.errors import ConfigError

from .. import console
from ..flags import json_flag
from ..processes import MeasurementFailed
from ..stopping import stopped_by
from .players import play
from .scenario import Scenario
from .situations import LEAST_SEEDS, SITUATIONS, missing

_SHRINK_ATTEMPTS: Final = 200

_KEPT_WHOLE: Final = 100
"""Failures that are kept with all that led to them; of later ones the line and the scenario."""

_BRIEF: Final = ("seed", "line", "failure", "scenario")

_PROGRESS_LEAST: Final = 100
_PROGRESS_PARTS: Final = 100
"""How often a campaign prints its progress."""


@final
class Campaign:
    """What has become of simulations, in memory that does not grow with their number.

    Args:
        first: the lowest seed.

    Attributes:
        played: how many.
        failed: the documents of those that did.
        situations: how often each came about.
    """

    def __init__(self, first: int) -> None:
        self.played = 0
        self.failed: list[dict[str, Any]] = []
        self.situations = Counter[str]()
        self._faults = 0
        self._deaths = 0
        self._clock_s = 0.0
        self._next = first
        self._beyond: set[int] = set()  # were played before some that are lower

    def add(self, outcome: dict[str, Any]) -> None:
        """One more has been played."""
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
        """All seeds below it have been played."""
        return self._next

    def document(self, never: list[str]) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "simulations": self.played,
            "failed": sorted(self.failed, key=lambda each: each["seed"]),
            "faults": self._faults,
            "deaths": self._deaths,
            "clock_s": round(self._clock_s, 3),
            "situations": {name: self.situations[name] for name in SITUATIONS},
            "never": never,
        }


@click.command(short_help="A whole cluster on a virtual clock: whatever fails, is every result exact?")
@click.option("--seeds", type=COUNT, default=100, show_default=True, help="How many simulations.")
@click.option("--from", "first", type=COUNT, default=0, show_default=True, help="The first seed.")
@click.option(
    "--scenario",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Play this one instead: a file with the JSON that a failure is told with.",
)
@click.option(
    "--shrink",
    type=COUNT,
    default=_SHRINK_ATTEMPTS,
    show_default=True,
    help="Tries to find a smaller scenario that fails too; 0 looks for none.",
)
@click.option("--processes", type=COUNT, default=None, help="At the same time; one for each processor if not given.")
@json_flag
def simulate(seeds: int, first: int, file: Path | None, shrink: int, processes: int | None, as_json: bool) -> int:
    """A JobManager, TaskManagers, a job with checkpoints and its data: all real, in one process, on a virtual clock.

    Hosts are killed and lose their power, links are cut, slow, or dead in one direction, disks are full, reports come
    late and twice. A seed decides everything, so one that fails fails again, with the same line.

    Users rescale, cancel and make mistakes. Situations that have to come about are counted.

    Exit code 1 when a job did not end with exactly its result, an invariant broke, something was left behind; or when
    1000 seeds or more never came to one of the situations.
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
    ended = ""
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
        ended = f"stopped by {stopped_by()}"
    except MeasurementFailed as error:
        ended = str(error)
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
            out.print(f"never came about: {name}", highlight=False)
        out.print(
            f"{campaign.played} simulations, {result['faults']} faults, {result['deaths']} deaths,"
            f" {result['clock_s'] / 3600:.2f} hours by their clocks: {len(campaign.failed) or 'none'} failed",
            highlight=False,
        )
    if ended:
        errors.print(f"{escape(ended)}; {campaign.played} of {seeds} were played", soft_wrap=True)
        if file is None:
            rest = f"--from {campaign.next_seed} --seeds {first + seeds - campaign.next_seed}"
            errors.print(f"the rest: netstack-bench simulate {rest}", soft_wrap=True)
    return 1 if campaign.failed or never or ended else 0


def print_failure(told: dict[str, Any], console: Console) -> None:
    """What happened before it, the smallest scenario that fails too, and how to play it again."""
    small = told.get("shrunk", told)
    for text in (
        *small["events"],
        small["detail"],
        f"the smallest found in {told.get('shrunk_in', 0)} tries: {small['line']}",
        json.dumps(small["scenario"]),
        f"again: netstack-bench simulate --from {told['seed']} --seeds 1; or the JSON in a file, and --scenario FILE",
        told["line"],
    ):
        console.print(escape(text), soft_wrap=True, highlight=False)


def _scenario_in(file: Path) -> dict[str, Any]:
    try:
        return Scenario.from_dict(json.loads(file.read_text())).as_dict()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"--scenario {file}: it is no scenario ({type(error).__name__}); give the JSON of one"
        ) from error
