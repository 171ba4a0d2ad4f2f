"""Starts jobs on local clusters and times them.

Takes: a `JobsSpec`. Gives: one document.

Rules: every process is real, and so is every connection. Jobs whose start is timed have tasks without records, so that
what is timed is scheduling, descriptors, messages, and tasks that begin. The ways of the chain take turns, so a
disturbance meets all of them.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from netstack.config import MIB
from netstack.jobmanager.client import Document
from netstack.jobmanager.local import LocalCluster, open_local_cluster

from ..host import host_facts, version
from ..processes import MeasurementFailed
from .operators import PIPELINES, RESULT, chain, in_one_process, two_pipelines, wide
from .spec import JobsSpec

PATIENCE_S: Final = 300.0
_LOOK_S: Final = 0.01
_BYTES_PER_TASK: Final = 256 << 10  # a partition of one subpartition, or a gate of one channel, and some room
_CHECKPOINT_S: Final = 0.5
_QUIET_S: Final = 1.0

Told = Callable[[str], None]


async def measure(spec: JobsSpec, on_step: Told) -> dict[str, Any]:
    """Measures everything.

    Args:
        spec: the settings.
        on_step: told what comes next.

    Raises:
        MeasurementFailed: a job failed, or something stood still.
        NetstackError: a process could not be started.
    """
    warnings: list[str] = []
    deploy = await _deploy(spec, on_step) if spec.tasks else []
    recover = await _recover(spec, on_step, warnings) if spec.kills else None
    return {
        "deploy": deploy,
        "recover": recover,
        "chain": await _chain(spec, on_step, warnings),
        "delivered": not warnings,
        "settings": dataclasses.asdict(spec),
        "host": host_facts(),
        "version": version(),
        "warnings": warnings,
    }


# ----------------------------------------------------------------------------------------------------- until all run


async def _deploy(spec: JobsSpec, on_step: Told) -> list[dict[str, Any]]:
    slots = -(-max(spec.tasks) // 2 // spec.taskmanagers) + 1
    found: list[dict[str, Any]] = []
    async with open_local_cluster(
        taskmanagers=spec.taskmanagers,
        slots=slots,
        memory_bytes=64 * MIB + 2 * slots * _BYTES_PER_TASK,
        is_restarting=False,
    ) as cluster:
        await _timed_start(cluster, 2 * spec.taskmanagers)  # what is imported, and said, once
        for tasks in sorted(spec.tasks):
            on_step(f"{tasks} tasks")
            running_s, cancel_s = await _timed_start(cluster, tasks)
            before = found[-1] if found else None
            growth = None if before is None else running_s / before["running_s"]
            found.append({"tasks": tasks, "running_s": running_s, "cancel_s": cancel_s, "growth": growth})
    return found


async def _timed_start(cluster: LocalCluster, tasks: int) -> tuple[float, float]:
    """From the submission until all tasks run; then how long cancelling takes."""
    client = cluster.client
    began_s = time.monotonic()
    job_id = await client.submit(wide(tasks))

    async def all_run() -> bool:
        summary = next(each for each in await client.jobs() if each["job_id"] == job_id)
        _check(summary)
        return bool(summary["tasks"] == {"running": tasks})

    await _until(all_run, f"not all of {tasks} tasks run")
    running_s = time.monotonic() - began_s
    began_s = time.monotonic()
    await client.cancel(job_id)
    return running_s, time.monotonic() - began_s


# -------------------------------------------------------------------------------------------------- until it runs again


async def _recover(spec: JobsSpec, on_step: Told, warnings: list[str]) -> dict[str, Any]:
    recovered_s: list[float] = []
    async with open_local_cluster(taskmanagers=len(PIPELINES) + 1, slots=1, memory_bytes=32 * MIB) as cluster:
        client = cluster.client
        job_id = await client.submit(two_pipelines(_CHECKPOINT_S))
        await _until(lambda: _runs(cluster, job_id), "the pipelines do not run")
        for number in range(spec.kills):
            on_step(f"kill {number + 1} of {spec.kills}")
            await trio.sleep(_QUIET_S)  # some checkpoints later
            victim, other = PIPELINES if number % 2 else reversed(PIPELINES)
            job = await client.job(job_id)
            before = {name: _attempts(job, name) for name in PIPELINES}
            name = await _name_of(cluster, _place(job, victim))
            killed_s = time.monotonic()
            cluster.taskmanagers.kill(name)

            async def runs_again(victim: str = victim, before: dict[str, list[int]] = before) -> bool:
                job = await client.job(job_id)
                _check(job)
                again = all(now > then for now, then in zip(_attempts(job, victim), before[victim], strict=True))
                return again and _all_run(job)

            await _until(runs_again, f"pipeline {victim} does not run again")
            recovered_s.append(time.monotonic() - killed_s)
            job = await client.job(job_id)
            if _attempts(job, other) != before[other]:
                warnings.append(f"kill {number + 1}: pipeline {other} was restarted, too")
            await _until(lambda: _is_complete(cluster), "the killed TaskManager does not come back")
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
    _check(job)
    return _all_run(job)


async def _is_complete(cluster: LocalCluster) -> bool:
    return len(await cluster.client.taskmanagers()) == len(PIPELINES) + 1


async def _name_of(cluster: LocalCluster, taskmanager: str) -> str:
    """What the process is called that a job knows as this TaskManager."""
    found = next(each for each in await cluster.client.taskmanagers() if each["name"] == taskmanager)
    return next(name for name, pid in cluster.taskmanagers.pids.items() if pid == found["pid"])


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


# ------------------------------------------------------------------------------------------------------ for each record


async def _chain(spec: JobsSpec, on_step: Told, warnings: list[str]) -> dict[str, Any]:
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
    found = result.results[RESULT][0]
    if found["records"] != spec.records:
        warnings.append(f"{way}: {found['records']} of {spec.records} records came")
    return float(found["records"] / found["seconds"])


# --------------------------------------------------------------------------------------------------------------- both


def _check(job: Document) -> None:
    if job["state"] in ("failed", "canceled", "finished"):
        raise MeasurementFailed(f"job {job['name']!r} is {job['state']}: {job['reason']}")


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline_s = trio.current_time() + PATIENCE_S
    while not await condition():
        if trio.current_time() > deadline_s:
            raise MeasurementFailed(f"after {PATIENCE_S:g} s {what}")
        await trio.sleep(_LOOK_S)
