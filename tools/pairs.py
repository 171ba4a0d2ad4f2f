"""Plays jobs with every pair of features, and writes the page that says what came of each pair.

Takes: the axes of `netstack.testing.simulate.features`. Gives: a line for each wrong case, counts, exit code 1 if any
was wrong, and with `--page` the table of pairs.

    python tools/pairs.py                            one array on the simulator
    python tools/pairs.py --arrays 20 --real 200     twenty arrays, and 200 cases on real processes
    python tools/pairs.py --page tools/docs/pages/reference/pairs.md

Every pair of values of two features is in some case of each covering array; each array combines other pairs in one job.
A pair that no job can have is in one case of its own, which must be refused.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import trio
from covertable import make

from netstack.base.errors import ConfigError, JobFailed, RequestRefused
from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.slots.slots import LoadBalanceMode
from netstack.testing.simulate import feature_job
from netstack.testing.simulate.cluster import simulate
from netstack.testing.simulate.feature_operators import KILLED, MISTAKE, committed
from netstack.testing.simulate.features import AXES, INCOMPATIBLE, Case
from netstack.testing.simulate.scenario import featured

Pair = frozenset[tuple[str, str]]

ROOT: Final = Path(__file__).resolve().parent.parent
NOT_PLAYED: Final = {"simulated": frozenset({"slots"}), "real": frozenset()}
"""Axes that make no difference there: a simulated slot is no process."""


def covering_array(seed: int) -> Iterator[Case]:
    """Yields cases that have every pair that a job can have, then each of the other pairs alone."""
    chance = random.Random(seed)
    axes = {name: chance.sample(AXES[name], len(AXES[name])) for name in chance.sample([*AXES], len(AXES))}
    constraints = [
        {"operator": "or", "conditions": [{"operator": "ne", "left": name, "value": value} for name, value in pair]}
        for pair in INCOMPATIBLE
    ]
    for row in make(axes, strength=2, salt=str(seed), constraints=constraints):
        yield Case(**row)
    for pair in INCOMPATIBLE:
        # Few other pairs that are refused too; some pairs cannot be without one.
        drawn = [Case(**{**Case.drawn(chance).values(), **dict(pair)}) for _ in range(100)]
        yield min(drawn, key=lambda case: sum(other <= {*case.values().items()} for other in map(set, INCOMPATIBLE)))


def pairs_of(case: Case) -> Iterator[Pair]:
    """All pairs of its features."""
    return (frozenset(pair) for pair in itertools.combinations(case.values().items(), 2))


EXACT: Final = "exact"
REFUSED: Final = "refused"
WRONG: Final = "wrong"

_LONGEST_S: Final = 180.0
_ASKED: Final = "the user's request was refused: "


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """How a case ended.

    Attributes:
        state: `EXACT`, `REFUSED` or `WRONG`.
        text: the refusal, or what is wrong.
    """

    state: str
    text: str = ""


def play_simulated(case: Case, seed: int) -> Verdict:
    """Plays a case on the simulator; the seed decides when it fails, and all other chance."""
    try:
        feature_job.job(case, "checked", (case.width,) * 3).stream_graph()
    except ConfigError as error:
        return _refused(case, str(error))
    scenario = featured(case, seed)
    outcome = simulate(scenario)
    if outcome.failure.startswith("ConfigError: "):
        return _refused(case, outcome.failure)
    if outcome.failure:
        return Verdict(WRONG, "\n".join((outcome.failure, *outcome.events)))
    refusals = [event.partition(_ASKED)[2] for event in outcome.events if _ASKED in event]
    if scenario.acts and not case.is_possible:
        return _refused(case, refusals[0]) if refusals else Verdict(WRONG, "nothing was refused")
    return Verdict(EXACT)


def play_real(case: Case, folder: Path) -> Verdict:
    """Plays a case on two TaskManager processes, in an empty folder.

    The failure of a JobManager takes more processes than there are here: a TaskManager is killed in its place.
    """
    world = folder / "world"
    world.mkdir()
    try:
        return trio.run(_played, case, str(world), str(folder / "jobs"))
    except (ConfigError, RequestRefused) as error:
        return _refused(case, str(error))
    except JobFailed as error:
        return Verdict(WRONG, f"{error}\n{error.traceback}")
    except trio.TooSlowError:
        return Verdict(WRONG, f"the job has not ended after {_LONGEST_S:g} s")


async def _played(case: Case, world: str, jobs: str) -> Verdict:
    def job(width: int) -> StreamEnvironment:
        return feature_job.job(case, "real", (width,) * 3, world, pace_s=0.05)

    job(case.width).stream_graph()
    with trio.fail_after(_LONGEST_S):
        async with open_local_cluster(
            taskmanagers=2,
            slots=2,
            slots_in=case.slots,
            load_balance=LoadBalanceMode(case.balance),
            folder=jobs,
        ) as cluster:
            job_id = await cluster.client.submit(job(case.width))
            if case.failure != "user code":
                await _until_half(cluster, job_id, Path(world))
                cluster.taskmanagers.kill("1")
                (Path(world) / KILLED).touch()
            if case.rescale == "yes":
                savepoint = await _stopped(cluster, job_id, case)
                if savepoint:
                    job_id = await cluster.client.submit(job(case.width % 3 + 1), from_savepoint=savepoint)
            result = await cluster.wait(job_id)
    wrong = feature_job.problems(case, result.results, committed(world))
    return Verdict(WRONG, wrong) if wrong else Verdict(EXACT)


async def _stopped(cluster: LocalCluster, job_id: str, case: Case) -> str:
    """Stops the job with a savepoint and returns its folder; empty if the job has ended without one."""
    while True:
        try:
            return str((await cluster.client.savepoint(job_id, stop=True))["path"])
        except RequestRefused:  # its tasks do not run now, or a failure kept it from stopping
            if not case.is_possible:
                raise
        if (await cluster.client.job(job_id))["state"] in ("finished", "failed"):
            return ""
        await trio.sleep(0.1)


async def _until_half(cluster: LocalCluster, job_id: str, world: Path) -> None:
    """Waits until half of the records have come, or the job has ended."""
    while not (world / MISTAKE).exists():  # another process makes it
        if (await cluster.client.job(job_id))["state"] in ("finished", "failed"):
            return
        await trio.sleep(0.05)


def _refused(case: Case, refusal: str) -> Verdict:
    if case.names_two(refusal):
        return Verdict(REFUSED, refusal)
    return Verdict(WRONG, f"refused without naming two features: {refusal}")


def play(work: tuple[str, int, Case]) -> tuple[str, int, Case, Verdict]:
    """Plays one case in a process of its own."""
    where, seed, case = work
    if where == "simulated":
        return where, seed, case, judged(case, play_simulated(case, seed))
    with tempfile.TemporaryDirectory(prefix="netstack-pairs-") as folder:
        return where, seed, case, judged(case, play_real(case, Path(folder)))


def judged(case: Case, verdict: Verdict) -> Verdict:
    """The verdict, unless it is refused where it must not be, or the other way round."""
    if verdict.state == REFUSED and case.is_possible:
        return Verdict(WRONG, f"refused, although a job can have each of its pairs: {verdict.text}")
    if verdict.state == EXACT and case.is_refused:
        return Verdict(WRONG, "exact, although one of its pairs is among those that are refused")
    return verdict


def page(counts: dict[Pair, Counter[str]], totals: Counter[str]) -> str:
    """The page of the documents: what came of each pair."""
    lines = [
        "# Features in pairs",
        "",
        "A job combines features: a record format, an edge, an exchange, checkpoints, a dialect, ... `tools/pairs.py`",
        "plays jobs with every pair of them and a failure in the middle, on a simulated cluster and on real processes.",
        "Each job ends in one of two ways. Its counts, values and commits are exact; or it is refused when it is",
        "submitted (or when its parallelism is to change), and the refusal names both features.",
        "",
        f"The last run had {totals['simulated']:,} simulated jobs and {totals['real']:,} on real processes:"
        f" {totals[EXACT]:,} exact, {totals[REFUSED]:,} refused, {totals[WRONG]:,} wrong.",
        "",
        "## Pairs that are refused",
        "",
        "| feature | with | jobs |",
        "|---|---|---|",
    ]
    for first, second in INCOMPATIBLE:
        seen = counts.get(frozenset((first, second)), Counter())
        lines.append(f"| {': '.join(first)} | {': '.join(second)} | {seen[REFUSED]} |")
    lines += [
        "",
        "## All other pairs",
        "",
        "How many jobs with an exact result had a pair: the fewest and the most among the values of two features.",
        "",
        f"| | {' | '.join(AXES)} |",
        f"|---|{'---|' * len(AXES)}",
    ]
    refused = {frozenset(pair) for pair in INCOMPATIBLE}
    for one in AXES:
        cells = []
        for other in AXES:
            if [*AXES].index(other) <= [*AXES].index(one):
                cells.append("")
                continue
            pairs = [frozenset(((one, a), (other, b))) for a in AXES[one] for b in AXES[other]]
            exact = [counts.get(pair, Counter())[EXACT] for pair in pairs if pair not in refused]
            cells.append(f"{min(exact)} to {max(exact)}")
        lines.append(f"| {one} | {' | '.join(cells)} |")
    values = [f"| {name} | {', '.join(each)} |" for name, each in AXES.items()]
    return "\n".join([*lines, "", "## The features", "", "| feature | values |", "|---|---|", *values, ""])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arrays", type=int, default=1, help="covering arrays on the simulator; default 1")
    parser.add_argument("--real", type=int, default=0, help="cases on real processes; default 0")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED", help="seed of the first array")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--page", type=Path, help="writes the table of pairs")
    chosen = parser.parse_args()
    simulated = [
        ("simulated", 1000 * seed + number, case)
        for seed in range(chosen.first, chosen.first + chosen.arrays)
        for number, case in enumerate(covering_array(seed))
    ]
    cases = itertools.chain.from_iterable(covering_array(seed) for seed in itertools.count(chosen.first))
    real = [("real", number, case) for number, case in zip(range(chosen.real), cases, strict=False)]
    counts: dict[Pair, Counter[str]] = {}
    totals: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(chosen.processes, maxtasksperchild=50) as pool:
        for where, seed, case, verdict in pool.imap_unordered(play, [*simulated, *real]):
            totals.update((where, verdict.state))
            if verdict.state == WRONG:
                print(f"WRONG: {where}, seed {seed}: {case}\n    {verdict.text[:2000]}", flush=True)
            for pair in pairs_of(case):
                if not any(name in NOT_PLAYED[where] for name, _ in pair):
                    counts.setdefault(pair, Counter())[verdict.state] += 1
    print(", ".join(f"{totals[name]} {name}" for name in ("simulated", "real", EXACT, REFUSED, WRONG)))
    if chosen.page is not None:
        chosen.page.write_text(page(counts, totals), encoding="utf-8")
    return 1 if totals[WRONG] else 0


if __name__ == "__main__":
    sys.exit(main())
