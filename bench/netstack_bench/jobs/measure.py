"""Measures jobs on local clusters with real processes and connections.

The variants of the chain take turns, so that disturbances affect all of them.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import trio

from netstack.base.config import MIB
from netstack.cluster.jobmanager.client import Document
from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster

from ..experiment import with_facts
from .operators import PIPELINES, RESULT, chain, in_one_process, two_pipelines
from .spec import JobsSpec
from .starts import OnStep, check_alive, exchanges, pointwise, until

_CHECKPOINT_S: Final = 0.5
_QUIET_S: Final = 1.0


async def measure(spec: JobsSpec, on_step: OnStep) -> dict[str, Any]:
    """Measures everything and returns the document.

    Raises:
        MeasurementFailed: a job failed, or made no progress.
        NetstackError: a process could not be started.
    """
    warnings: list[str] = []
    deploy = await pointwise(spec, on_step) if spec.tasks else []
    exchange = await exchanges(spec, on_step) if spec.all_to_all else []
    for row in (*deploy, *exchange):
        if row["lost"]:
            warnings.append(f"{row['tasks']} tasks: {row['lost']} TaskManagers were lost during the start")
    recover = await _recover(spec, on_step, warnings) if spec.kills else None
    figures = {
        "deploy": deploy,
        "all_to_all": exchange,
        "recover": recover,
        "chain": await _chain(spec, on_step, warnings) if spec.rounds else None,
        "delivered": not warnings,
        "warnings": warnings,
    }
    return with_facts(spec, figures)


async def _recover(spec: JobsSpec, on_step: OnStep, warnings: list[str]) -> dict[str, Any]:
    recovered_s: list[float] = []
    async with open_local_cluster(taskmanagers=len(PIPELINES) + 1, slots=1, memory_bytes=32 * MIB) as cluster:
        client = cluster.client

        async def is_complete() -> bool:
            return len(await client.taskmanagers()) == len(PIPELINES) + 1

        job_id = await client.submit(two_pipelines(_CHECKPOINT_S))
        await until(lambda: _runs(cluster, job_id), "the pipelines are not running")
        for number in range(spec.kills):
            on_step(f"kill {number + 1} of {spec.kills}")
            await trio.sleep(_QUIET_S)  # for some checkpoints
            victim, other = PIPELINES if number % 2 else reversed(PIPELINES)
            job = await client.job(job_id)
            before = {name: _attempts(job, name) for name in PIPELINES}
            name = await _name_of(cluster, _place(job, victim))
            killed_s = time.monotonic()
            cluster.taskmanagers.kill(name)

            async def runs_again(victim: str = victim, before: dict[str, list[int]] = before) -> bool:
                job = await client.job(job_id)
                check_alive(job)
                again = all(now > then for now, then in zip(_attempts(job, victim), before[victim], strict=True))
                return again and _all_run(job)

            await until(runs_again, f"pipeline {victim} is not running again")
            recovered_s.append(time.monotonic() - killed_s)
            job = await client.job(job_id)
            if _attempts(job, other) != before[other]:
                warnings.append(f"kill {number + 1}: pipeline {other} was restarted, too")
            await until(is_complete, "the killed TaskManager did not restart")
        job = await client.job(job_id)
        if job["restarts"] != spec.kills:
            warnings.append(f"{spec.kills} kills, and {job['restarts']} failures: {job['log'][-1]['text']}")
        await client.cancel(job_id)
    return {
        "kills": spec.kills,
        "checkpoints_completed": job["checkpoints_completed"],
        "recovery_ms": {"p50": 1e3 * statistics.median(recovered_s), "max": 1e3 * max(recovered_s)},
    }


async def _runs(cluster: LocalCluster, job_id: str) -> bool:
    job = await cluster.client.job(job_id)
    check_alive(job)
    return _all_run(job)


async def _name_of(cluster: LocalCluster, taskmanager: str) -> str:
    document = next(each for each in await cluster.client.taskmanagers() if each["name"] == taskmanager)
    return next(name for name, pid in cluster.taskmanagers.pids.items() if pid == document["pid"])


def _subtasks(job: Document, pipeline: str) -> list[Document]:
    vertices = [vertex for vertex in job["vertices"] if vertex["name"].startswith(pipeline)]
    return [subtask for vertex in vertices for subtask in vertex["subtasks"]]


def _attempts(job: Document, pipeline: str) -> list[int]:
    return [subtask["attempt"] for subtask in _subtasks(job, pipeline)]


def _place(job: Document, pipeline: str) -> str:
    (place,) = {subtask["taskmanager"] for subtask in _subtasks(job, pipeline)}
    return str(place)


def _all_run(job: Document) -> bool:
    return all(subtask["state"] == "running" for vertex in job["vertices"] for subtask in vertex["subtasks"])


async def _chain(spec: JobsSpec, on_step: OnStep, warnings: list[str]) -> dict[str, Any]:
    ways: dict[str, list[float]] = {"one_process": [], "chained": [], "unchained": [], "unchained_tcp": []}
    async with open_local_cluster(taskmanagers=2, slots=1, is_restarting=False) as cluster:
        for number in range(spec.rounds):
            for way in ways:
                on_step(f"{way.replace('_', ' ')}, round {number + 1} of {spec.rounds}")
                if way == "one_process":
                    rate = await trio.to_thread.run_sync(in_one_process, spec.records, spec.operators)
                else:
                    rate = await _chain_rate(cluster, spec, way, warnings)
                ways[way].append(rate)
    rates = {way: statistics.median(rates) for way, rates in ways.items()}
    return {
        "operators": spec.operators + 2,
        "records": spec.records,
        "records_per_s": rates,
        "of_one_process": {way: rate / rates["one_process"] for way, rate in rates.items() if way != "one_process"},
        "chained_to_unchained": rates["chained"] / rates["unchained"],
    }


async def _chain_rate(cluster: LocalCluster, spec: JobsSpec, way: str, warnings: list[str]) -> float:
    job = chain(spec.records, spec.operators, is_chained=way == "chained", is_spread=way == "unchained_tcp")
    result = await cluster.wait(await cluster.client.submit(job))
    outcome = result.results[RESULT][0]
    if outcome["records"] != spec.records:
        warnings.append(f"{way}: {outcome['records']} of {spec.records} records arrived")
    return float(outcome["records"] / outcome["seconds"])
