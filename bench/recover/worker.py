"""A process of `recover`: the JobManager, or a TaskManager.

Takes: `--name`, messages of the runner (`bench.worker_io`). Gives: what happens, as messages.

    runner -> JobManager    start (listen, folder) · job (job, settings, folder, sinks: run it; one of the same name
                            that runs is stopped first, and the new one goes on from its newest checkpoint)
    JobManager -> runner    address (where it listens, and the names of its jobs) · running (restored_from: all tasks
                            run) · checkpoint (is_complete, channel_state_bytes) · ended (job, counts) · failed (reason)
    runner -> TaskManager   start (jobmanager: its address)
    TaskManager -> runner   counting (at_ns, opened_ns: a sink counted its first record since it was opened)

Rules: no process outlives the runner. Nobody helps a job: the JobManager finds its jobs in its folder, TaskManagers
find the JobManager, and regions restart by themselves.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any, Final

import trio

from netstack.jobmanager.config import JobManagerConfig
from netstack.jobmanager.job_master import JobMaster
from netstack.jobmanager.jobs import JobRecord
from netstack.jobmanager.service import JobManager, open_jobmanager
from netstack.schedule.execution.execution_states import ExecutionState, JobState
from netstack.schedule.graph.job_file import write_job
from netstack.schedule.slots.slots import LoadBalanceMode
from netstack.taskmanager.service import TaskManagerConfig, open_taskmanager

from ..pacing import clock_ns
from ..worker import reporting
from ..worker_io import Link
from .operators import SINK, Hooks, job
from .spec import MASTER, MOST_SINKS, RecoverSpec

_ADDRESS: Final = "tcp://127.0.0.1:0"
_LOOK_S: Final = 0.01
_MEMORY_BYTES: Final = 64 << 20


def main(arguments: list[str] | None = None) -> int:
    """Runs one process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    name = parser.parse_args(arguments).name
    return reporting(_lead if name == MASTER else functools.partial(_work, name))


def _work(name: str, link: Link) -> None:
    jobmanager = str(link.wait("start")["jobmanager"])
    Hooks.on_first_record = lambda opened_ns: link.send("counting", at_ns=clock_ns(), opened_ns=opened_ns)
    trio.run(_serve_tasks, name, jobmanager)


async def _serve_tasks(name: str, jobmanager: str) -> None:
    config = TaskManagerConfig(
        listen=_ADDRESS,
        jobmanager=jobmanager,
        name=name,
        slots=MOST_SINKS,
        memory_bytes=_MEMORY_BYTES,
        allow=("bench.recover.",),
    )
    async with open_taskmanager(config):
        await trio.sleep_forever()


def _lead(link: Link) -> None:
    trio.run(_lead_jobs, link)


async def _lead_jobs(link: Link) -> None:
    start = await trio.to_thread.run_sync(link.wait, "start", abandon_on_cancel=True)
    config = JobManagerConfig(
        listen=start["listen"] or _ADDRESS, folder=start["folder"], load_balance=LoadBalanceMode.SLOTS
    )
    async with open_jobmanager(config) as manager, trio.open_nursery() as nursery:
        link.send("address", address=manager.address, jobs=[record.name for record in manager.jobs.records.values()])
        for record in [*manager.jobs.records.values()]:
            nursery.start_soon(_follow, record, link)
        while True:
            asked = await trio.to_thread.run_sync(link.wait, "job", abandon_on_cancel=True)
            nursery.start_soon(_follow, await _run(manager, asked), link)


async def _run(manager: JobManager, asked: dict[str, Any]) -> JobRecord:
    """Submits a job, in the place of one of this name that runs."""
    savepoint: str | None = None
    for record in [*manager.jobs.records.values()]:
        if record.name == asked["job"] and record.master is not None:
            record.master.cancel()
            await record.ended.wait()
            if record.storage is not None and await trio.to_thread.run_sync(record.storage.newest) is not None:
                savepoint = asked["folder"]
    spec = RecoverSpec.from_dict(asked["settings"])
    environment = job(spec, asked["job"], sinks=asked["sinks"], folder=Path(asked["folder"]))
    job_id = await manager.jobs.submit(write_job(environment.stream_graph()), from_savepoint=savepoint)
    return manager.jobs.records[job_id]


async def _follow(record: JobRecord, link: Link) -> None:
    """Tells what happens to a job, until it has ended."""
    told_checkpoints = 0
    told_starts = -1
    while True:
        master = record.master
        if master is not None:
            told_checkpoints = _tell_checkpoints(master, told_checkpoints, link)
            starts = master.scheduler.statistics().deployed
            if starts != told_starts and _runs(master):
                told_starts = starts
                stored = master.last_checkpoint
                link.send("running", restored_from=master.restored_from if stored is None else stored[0])
        if record.ended.is_set():
            break
        with trio.move_on_after(_LOOK_S):
            await record.ended.wait()
    assert record.end is not None
    if record.end["state"] == JobState.FINISHED.value:
        counts = [_by_key(each) for each in record.end["results"][SINK].values()]
        link.send("ended", job=record.name, counts=[[*each.items()] for each in counts])
    elif record.end["state"] == JobState.FAILED.value:
        link.send("failed", reason=record.end["reason"])


def _runs(master: JobMaster) -> bool:
    """Whether all tasks run, or have ended."""
    scheduler = master.scheduler
    there = scheduler.count(ExecutionState.RUNNING, ExecutionState.FINISHED)
    return scheduler.state is JobState.RUNNING and there == scheduler.topology.subtask_count


def _tell_checkpoints(master: JobMaster, told: int, link: Link) -> int:
    for report in master.history[told:]:
        in_flight = sum(each.get("input_bytes", 0) + each.get("output_bytes", 0) for each in report.subtasks)
        link.send("checkpoint", is_complete=report.is_complete, channel_state_bytes=in_flight)
    return len(master.history)


def _by_key(counts: dict[Any, list[int]]) -> dict[int, list[int]]:
    """Counts as they were: a file of JSON has texts as keys."""
    return {int(key): state for key, state in counts.items()}


if __name__ == "__main__":
    sys.exit(main())
