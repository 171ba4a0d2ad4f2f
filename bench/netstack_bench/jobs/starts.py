"""Starts wide jobs on local clusters: time until all tasks run, CPU time, memory, lost TaskManagers.

Tasks of pointwise jobs have no records, so that scheduling, descriptors, messages and task starts are timed. All-to-all
jobs send one record through every channel when all tasks run. CPU time is that of all processes together, so it is
independent of other load.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from netstack.base.config import MIB, NetworkConfig
from netstack.cluster.jobmanager.client import Document
from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.slots.slots import LoadBalanceMode

from ..experiment import with_facts
from ..host import Usage, cpu_seconds, usage_of
from ..places.conversation import MeasurementFailed
from .operators import PIPELINES, RESULT, all_to_all, chain, in_one_process, two_pipelines, wide
from .spec import JobsSpec

PATIENCE_S: Final = 300.0

_LOOK_S: Final = 0.01
_LOOKS_COST: Final = 0.05  # part of the time
_BYTES_PER_TASK: Final = 256 << 10  # a partition of one subpartition, or a gate of one channel, and some room
_SEGMENT_BYTES: Final = 1024
"""Of all-to-all jobs: each channel holds one record, and a segment for it at either end."""

OnStep = Callable[[str], None]


async def pointwise(spec: JobsSpec, on_step: OnStep) -> list[dict[str, Any]]:
    """Jobs of two vertices, each source the only input of one sink.

    Returns:
        For each size `tasks`, `running_s`, `cancel_s`, `cpu_s`, `memory_mib`, `lost` (TaskManagers), `spread` (the
        least and the most tasks of a TaskManager), `growth` and `cpu_growth` over the row before.

    Raises:
        MeasurementFailed: a job failed, or made no progress.
    """
    slots = -(-max(spec.tasks) // 2 // spec.taskmanagers) + 1
    rows: list[dict[str, Any]] = []
    async with open_local_cluster(
        taskmanagers=spec.taskmanagers,
        slots=slots,
        memory_bytes=64 * MIB + 2 * slots * _BYTES_PER_TASK,
        load_balance=LoadBalanceMode.SLOTS,
        is_restarting=False,
        slots_in="loop",
    ) as cluster:
        await _start(cluster, wide(2 * spec.taskmanagers), 2 * spec.taskmanagers)  # warms up imports and connections
        for tasks in sorted(spec.tasks):
            on_step(f"{tasks} tasks")
            row = await _start(cluster, wide(tasks), tasks)
            if rows:
                row["growth"] = row["running_s"] / rows[-1]["running_s"]
                row["cpu_growth"] = row["cpu_s"] / rows[-1]["cpu_s"]
            rows.append(row)
    return rows


async def exchanges(spec: JobsSpec, on_step: OnStep) -> list[dict[str, Any]]:
    """Jobs of two vertices, each source an input of every sink; a cluster for each size.

    Returns:
        As `pointwise`, and `parallelism`, `channels`, `records` that arrived, `records_s` after all tasks ran.

    Raises:
        MeasurementFailed: a job failed, a record was lost, or there was no progress.
    """
    rows: list[dict[str, Any]] = []
    for parallelism in sorted(spec.all_to_all):
        on_step(f"{parallelism} x {parallelism} tasks")
        slots = -(-parallelism // spec.taskmanagers)
        async with open_local_cluster(
            taskmanagers=spec.taskmanagers,
            slots=slots,
            memory_bytes=16 * MIB + slots * _segments(parallelism) * _SEGMENT_BYTES,
            load_balance=LoadBalanceMode.SLOTS,
            is_restarting=False,
            slots_in="loop",
            flags=("--segment-size", str(_SEGMENT_BYTES)),
        ) as cluster:
            job = all_to_all(parallelism)
            row = await _start(cluster, job, 2 * parallelism, records=parallelism**2)
        rows.append({"parallelism": parallelism, "channels": parallelism**2, **row})
    return rows


def _segments(parallelism: int) -> int:
    config = NetworkConfig()
    return parallelism * (2 + config.exclusive_buffers_per_channel) + config.floating_buffers_per_gate + 16


async def _start(cluster: LocalCluster, job: StreamEnvironment, tasks: int, *, records: int = 0) -> dict[str, Any]:
    client = cluster.client
    before = _used(cluster)
    began_s = time.monotonic()
    job_id = await client.submit(job)

    async def all_run() -> bool:
        summary = next(each for each in await client.jobs() if each["job_id"] == job_id)
        check_alive(summary)
        return bool(summary["tasks"] == {"running": tasks})

    await until(all_run, f"not all of {tasks} tasks run")
    running_s, after = time.monotonic() - began_s, _used(cluster)
    row: dict[str, Any] = {
        "tasks": tasks,
        "running_s": running_s,
        "cpu_s": after.cpu_s - before.cpu_s,
        "memory_mib": after.memory_bytes / MIB,
        "growth": None,
        "cpu_growth": None,
    }
    if records:
        began_s = time.monotonic()

        async def all_came() -> bool:
            result = await client.job(job_id)
            check_alive(result)
            row["records"] = result["vertices"][-1]["records_in"]
            return bool(row["records"] == records)

        await until(all_came, f"{tasks} tasks: not all of {records} records arrived")
        row["records_s"] = time.monotonic() - began_s
    details = await client.job(job_id)
    homes = [subtask["taskmanager"] for vertex in details["vertices"] for subtask in vertex["subtasks"]]
    counts = [homes.count(name) for name in set(homes)]
    row["spread"] = [min(counts), max(counts)]
    row["lost"] = sum(entry["what"] == "taskmanager" for entry in details["log"])
    if details["restarts"]:
        raise MeasurementFailed(f"{tasks} tasks were restarted {details['restarts']} times: {details['log'][-1]}")
    began_s = time.monotonic()
    await client.cancel(job_id)
    row["cancel_s"] = time.monotonic() - began_s
    return row


def _used(cluster: LocalCluster) -> Usage:
    each = [usage_of(pid) for pid in cluster.taskmanagers.pids.values()]
    return Usage(cpu_seconds() + sum(used.cpu_s for used in each), sum(used.memory_bytes for used in each))


def check_alive(job: Document) -> None:
    """Raises MeasurementFailed if a job has ended."""
    if job["state"] in ("failed", "canceled", "finished"):
        raise MeasurementFailed(f"job {job['name']!r} is {job['state']}: {job['reason']}")


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Polls until a condition holds, rarely enough to be cheap; raises MeasurementFailed after `PATIENCE_S`."""
    deadline_s = trio.current_time() + PATIENCE_S
    while True:
        began_s = trio.current_time()
        if await condition():
            return
        now_s = trio.current_time()
        if now_s > deadline_s:
            raise MeasurementFailed(f"after {PATIENCE_S:g} s {what}")
        await trio.sleep(max(_LOOK_S, (now_s - began_s) / _LOOKS_COST))


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
