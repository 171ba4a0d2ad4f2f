"""A process of `checkpoints`: the JobManager, or the TaskManager that the sources or the sinks run in.

Takes: `--name`, messages of the runner (`bench.worker_io`). Gives: what happens, as messages.

    runner -> TaskManager   address (of the JobManager; slots: how many it has)
    TaskManager -> runner   taken (at_ns, records: so many since it started; told every 20 ms)
    runner -> JobManager    job (settings, mode, rate_per_s, folder: run it, and measure it)
    JobManager -> runner    address (where it listens) · registered (count: so many TaskManagers are there)
                            measured (stretches, reports) · failed (reason)

Rules: no process outlives the runner.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any, Final

import trio

from netstack.jobmanager.checkpoints import CheckpointReport
from netstack.jobmanager.config import JobManagerConfig
from netstack.jobmanager.job_master import JobMaster
from netstack.jobmanager.jobs import JobRecord
from netstack.jobmanager.service import JobManager, open_jobmanager
from netstack.schedule.execution.execution_states import ExecutionState
from netstack.schedule.graph.job_file import write_job
from netstack.taskmanager.service import TaskManagerConfig, open_taskmanager

from ..pacing import clock_ns
from ..processes import MeasurementFailed
from ..worker import reporting
from ..worker_io import Link
from .operators import SINK, Taken, job
from .spec import MASTER, WARM_UP_S, CheckpointsSpec

Span = tuple[bool, int, int]
"""With checkpoints or without, from when to when, in nanoseconds."""

_ADDRESS: Final = "tcp://127.0.0.1:0"
_TELL_S: Final = 0.02
_LOOK_S: Final = 0.01


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
    trio.run(_run_worker, name, link)


async def _run_worker(name: str, link: Link) -> None:
    asked = link.wait("address")
    config = TaskManagerConfig(
        listen=_ADDRESS,
        jobmanager=asked["address"],
        name=name,
        slots=asked["slots"],
        memory_bytes=asked["memory_bytes"],
        allow=("netstack.bench.checkpoints.",),
    )
    async with open_taskmanager(config):
        await _tell_taken(link)


async def _tell_taken(link: Link) -> None:
    told = -1
    while True:
        if told != Taken.records:
            told = Taken.records
            link.send("taken", at_ns=clock_ns(), records=told)
        await trio.sleep(_TELL_S)


def _lead(link: Link) -> None:
    trio.run(_lead_jobs, link)


async def _lead_jobs(link: Link) -> None:
    async with open_jobmanager(JobManagerConfig(listen=_ADDRESS)) as manager, trio.open_nursery() as nursery:
        link.send("address", address=manager.address)
        nursery.start_soon(_tell_registered, manager, link)
        while True:
            asked = await trio.to_thread.run_sync(link.wait, "job", abandon_on_cancel=True)
            try:
                link.send("measured", **await _measure(manager, asked))
            except MeasurementFailed as error:
                link.send("failed", reason=str(error))


async def _tell_registered(manager: JobManager, link: Link) -> None:
    told = 0
    while True:
        count = len([*manager.taskmanagers.all()])
        if count != told:
            told = count
            link.send("registered", count=count)
        await trio.sleep(_LOOK_S)


async def _measure(manager: JobManager, asked: dict[str, Any]) -> dict[str, Any]:
    """One job: warm-up, then stretches without and with checkpoints in turn, as long as asked with them."""
    spec, mode = CheckpointsSpec.from_dict(asked["settings"]), asked["mode"]
    environment = job(spec, mode, rate_per_s=asked["rate_per_s"], folder=Path(asked["folder"]))
    job_id = await manager.jobs.submit(write_job(environment.stream_graph()))
    record = manager.jobs.records[job_id]
    stretches: list[Span] = []
    reports: list[dict[str, Any]] = []
    try:
        master = await _running(record)
        await trio.sleep(WARM_UP_S)
        for _ in range(spec.stretches):
            stretches.append(await _without(spec))
            if mode is not None:
                stretches.append(await _with(spec, master, reports))
        stretches.append(await _without(spec))
        _check(record)
    finally:
        if record.master is not None:
            record.master.cancel()
        with trio.CancelScope(shield=True):
            await record.ended.wait()
    return {"stretches": stretches, "reports": reports}


async def _running(record: JobRecord) -> JobMaster:
    """Waits until all tasks run."""
    while True:
        _check(record)
        master = record.master
        if master is not None:
            scheduler = master.scheduler
            if scheduler.count(ExecutionState.RUNNING) == scheduler.topology.subtask_count:
                return master
        await trio.sleep(_LOOK_S)


def _check(record: JobRecord) -> None:
    if record.end is not None:
        raise MeasurementFailed(record.end["reason"] or record.end["state"])


async def _without(spec: CheckpointsSpec) -> Span:
    began_ns = clock_ns()
    await trio.sleep(spec.stretch_s)
    return False, began_ns, clock_ns()


async def _with(spec: CheckpointsSpec, master: JobMaster, reports: list[dict[str, Any]]) -> Span:
    """A barrier every interval, or when the checkpoint before it has ended; whole checkpoints only."""
    began = trio.current_time()
    began_ns = clock_ns()
    due = began
    while due < began + spec.stretch_s:
        await trio.sleep_until(due)
        reports.append(_plain(await master.checkpoint()))
        due = max(due + spec.interval_s, trio.current_time())
    await trio.sleep_until(began + spec.stretch_s)
    return True, began_ns, clock_ns()


def _plain(report: CheckpointReport) -> dict[str, Any]:
    sinks = [each for each in report.subtasks if each["task"] == SINK]
    written_s = max((each["write_s"] for each in report.subtasks), default=0.0)
    return {
        "is_complete": report.is_complete,
        "reason": report.reason,
        "duration_s": report.duration_s,
        "start_delay_s": max((each["start_delay_s"] for each in sinks), default=0.0),
        "alignment_s": max((each["alignment_s"] for each in sinks), default=0.0),
        "write_s": written_s + report.store_s,
        "channel_state_bytes": sum(each["input_bytes"] + each["output_bytes"] for each in report.subtasks),
    }


if __name__ == "__main__":
    sys.exit(main())
