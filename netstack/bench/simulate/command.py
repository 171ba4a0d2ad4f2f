"""The command `netstack-bench simulate`.

Takes: flags. Gives: a summary, or one JSON document, on standard output; an exit code.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape

from netstack.cli.values import COUNT
from netstack.errors import ConfigError

from .. import console
from ..flags import json_flag
from ..stopping import stopped_by
from .players import play
from .scenario import Scenario
from .situations import LEAST_SEEDS, SITUATIONS, missing

_SHRINK_ATTEMPTS: Final = 200


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
        raise ConfigError("--seeds 0: the least is 1")
    asked: list[dict[str, Any]] = [{"seed": seed, "shrink": shrink} for seed in range(first, first + seeds)]
    if file is not None:
        asked = [{"scenario": _scenario_in(file), "shrink": shrink}]
    count = max(1, min(processes or os.cpu_count() or 1, len(asked)))
    errors = console.err()
    told: list[dict[str, Any]] = []
    stopped = False
    try:
        for each in play(asked, count):
            told.append(each)
            if each["failure"]:
                print_failure(each, errors)
            elif len(told) % 100 == 0:
                errors.print(f"{len(told)} of {len(asked)}", highlight=False)
    except KeyboardInterrupt:
        stopped = True
    failed = sorted((each for each in told if each["failure"]), key=lambda each: each["seed"])
    situations = Counter[str]()
    for each in told:
        situations.update(each["situations"])
    never = missing(situations) if file is None and len(told) >= LEAST_SEEDS else []
    result = {
        "simulations": len(told),
        "failed": failed,
        "faults": sum(each["faults"] for each in told),
        "deaths": sum(each["deaths"] for each in told),
        "clock_s": round(sum(each["clock_s"] for each in told), 3),
        "situations": {name: situations[name] for name in SITUATIONS},
        "never": never,
    }
    if as_json:
        console.print_json(result)
    else:
        out = console.out()
        for each in failed:
            out.print(escape(each["line"]), soft_wrap=True, highlight=False)
        if file is not None and not failed and told:
            out.print(escape(told[0]["line"]), soft_wrap=True, highlight=False)
        for name in SITUATIONS:
            out.print(f"{situations[name]:8d}  {name}", highlight=False)
        for name in never:
            out.print(f"never came about: {name}", highlight=False)
        out.print(
            f"{len(told)} simulations, {result['faults']} faults, {result['deaths']} deaths,"
            f" {result['clock_s'] / 3600:.2f} hours by their clocks: {len(failed) or 'none'} failed",
            highlight=False,
        )
    if stopped:
        errors.print(f"stopped by {stopped_by()} after {len(told)} of {len(asked)}")
    return 1 if failed or never or stopped else 0


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
