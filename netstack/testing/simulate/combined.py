"""Plays a `Case`: on the simulator, or on real processes of which one is killed.

Takes: a case, a seed or a folder. Gives: a `Verdict`: exact, refused in words that name two of its features, or wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import trio

from ...base.errors import ConfigError, JobFailed, RequestRefused
from ...cluster.jobmanager.local import LocalCluster, open_local_cluster
from ...schedule.graph.stream_builder import StreamEnvironment
from ...schedule.slots.slots import LoadBalanceMode
from . import feature_job
from .cluster import simulate
from .feature_operators import KILLED, MISTAKE, committed
from .features import Case
from .scenario import featured

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
