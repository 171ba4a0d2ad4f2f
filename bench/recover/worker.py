"""A process of `recover`: the master of the job, or a worker that its tasks run in.

Takes: `--name`, messages of the runner (`bench.worker_io`). Gives: what happens, as messages.

    runner -> worker   address (of the master; it joins)
    worker -> runner   counting (at_ns: a sink counted its first record after a start)
    runner -> master   job (settings, folder, sinks: run it to its end, from the newest checkpoint if there is one)
    master -> runner   address (where workers join) · opening (at_ns: all workers are there, and get the job)
                       running (restored_from) · checkpoint (is_complete, channel_state_bytes) · ended · failed (reason)

Rules: no process outlives the runner. A worker outlives a job that failed, but not the master.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any, Final

import trio

from netstack.job.master import JobFailed, JobMaster, JobRun, open_job_master
from netstack.job.worker import run_worker

from ..pacing import clock_ns
from ..worker import reporting
from ..worker_io import Link
from .operators import Hooks, job
from .spec import MASTER, RecoverSpec

_ADDRESS: Final = "tcp://127.0.0.1:0"
_LOOK_S: Final = 0.02


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
    address = str(link.wait("address")["address"])
    Hooks.on_first_record = lambda: link.send("counting", at_ns=clock_ns())
    trio.run(run_worker, address, name)


def _lead(link: Link) -> None:
    trio.run(_lead_jobs, link)


async def _lead_jobs(link: Link) -> None:
    async with open_job_master(_ADDRESS) as master:
        link.send("address", address=master.address)
        while True:
            asked = await trio.to_thread.run_sync(link.wait, "job", abandon_on_cancel=True)
            try:
                await _run(master, link, asked)
            except JobFailed as error:
                link.send("failed", reason=str(error))
            else:
                link.send("ended")


async def _run(master: JobMaster, link: Link, asked: dict[str, Any]) -> None:
    spec = RecoverSpec.from_dict(asked["settings"])
    await master.wait_workers(spec.sources + spec.sinks)
    link.send("opening", at_ns=clock_ns())
    async with master.open_job(job(spec, sinks=asked["sinks"], folder=asked["folder"]), restore=True) as run:
        link.send("running", restored_from=run.restored_from)
        failure: JobFailed | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell_checkpoints, run, link)
            try:
                await run.wait()
            except JobFailed as error:
                failure = error  # which would leave the nursery in a group
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


async def _tell_checkpoints(run: JobRun, link: Link) -> None:
    """Tells of every checkpoint that has ended."""
    told = 0
    while True:
        try:
            await trio.sleep(_LOOK_S)
        finally:
            for report in run.history[told:]:
                in_flight = sum(each.input_bytes + each.output_bytes for each in report.subtasks)
                link.send("checkpoint", is_complete=report.is_complete, channel_state_bytes=in_flight)
            told = len(run.history)


if __name__ == "__main__":
    sys.exit(main())
