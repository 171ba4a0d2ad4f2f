"""A process of `checkpoints`: the master of the job, or the worker that the sources or the sinks run in.

Takes: `--name`, messages of the runner (`bench.worker_io`). Gives: what happens, as messages.

    runner -> worker   address (of the master; it joins)
    worker -> runner   taken (at_ns, records: so many since it started; told every 20 ms)
    runner -> master   job (settings, mode, rate_per_s, folder: run it, and measure it)
    master -> runner   address (where workers join) · measured (stretches, reports) · failed (reason)

Rules: no process outlives the runner.
"""

from __future__ import annotations

import argparse
import functools
import io
import sys
import time
from pathlib import Path
from typing import Any, Final

import trio

from netstack.checkpoint.files import CheckpointFiles
from netstack.checkpoint.storage import CheckpointStorage
from netstack.job.master import CheckpointReport, JobFailed, JobMaster, JobRun, open_job_master
from netstack.job.worker import run_worker

from ..pacing import clock_ns
from ..worker import reporting
from ..worker_io import Link
from .operators import SINK, Taken, job
from .spec import MASTER, WARM_UP_S, WORKERS, CheckpointsSpec

Span = tuple[bool, int, int]
"""With checkpoints or without, from when to when, in nanoseconds."""

_ADDRESS: Final = "tcp://127.0.0.1:0"
_TELL_S: Final = 0.02


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
    address = str(link.wait("address")["address"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_taken, link)
        await run_worker(address, name)
        nursery.cancel_scope.cancel()


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
    async with open_job_master(_ADDRESS) as master:
        link.send("address", address=master.address)
        while True:
            asked = await trio.to_thread.run_sync(link.wait, "job", abandon_on_cancel=True)
            try:
                link.send("measured", **await _measure(master, asked))
            except JobFailed as error:
                link.send("failed", reason=str(error))


async def _measure(master: JobMaster, asked: dict[str, Any]) -> dict[str, Any]:
    """One job: warm-up, then stretches without and with checkpoints in turn, as long as asked with them."""
    spec, mode = CheckpointsSpec.from_dict(asked["settings"]), asked["mode"]
    await master.wait_workers(len(WORKERS))
    stretches: list[Span] = []
    reports: list[dict[str, Any]] = []
    files = TimedFiles()
    plan = job(spec, mode, rate_per_s=asked["rate_per_s"], folder=Path(asked["folder"]))
    storage = None if plan.folder is None else CheckpointStorage(plan.folder, files=files)
    async with master.open_job(plan, restore=False, storage=storage) as run:
        await trio.sleep(WARM_UP_S)
        for _ in range(spec.stretches):
            stretches.append(await _without(spec))
            if mode is not None:
                stretches.append(await _with(spec, run, files, reports))
        stretches.append(await _without(spec))
    return {"stretches": stretches, "reports": reports}


class TimedFiles(CheckpointFiles):
    """Knows how long the master has written: nothing but manifests.

    Attributes:
        written_s: in all.
    """

    def __init__(self) -> None:
        self.written_s = 0.0
        self._began_s: float | None = None

    def create(self, path: str) -> io.RawIOBase:
        """See `CheckpointFiles`."""
        self._began_s = time.monotonic()
        return super().create(path)

    def sync_folder(self, path: str) -> None:
        """The last step of writing a file."""
        super().sync_folder(path)
        if self._began_s is not None:
            self.written_s += time.monotonic() - self._began_s
            self._began_s = None


async def _without(spec: CheckpointsSpec) -> Span:
    began_ns = clock_ns()
    await trio.sleep(spec.stretch_s)
    return False, began_ns, clock_ns()


async def _with(spec: CheckpointsSpec, run: JobRun, files: TimedFiles, reports: list[dict[str, Any]]) -> Span:
    """A barrier every interval, or when the checkpoint before it has ended; whole checkpoints only."""
    began = trio.current_time()
    began_ns = clock_ns()
    due = began
    while due < began + spec.stretch_s:
        await trio.sleep_until(due)
        written_s = files.written_s
        report = await run.checkpoint()
        reports.append(_plain(report, files.written_s - written_s))
        due = max(due + spec.interval_s, trio.current_time())
    await trio.sleep_until(began + spec.stretch_s)
    return True, began_ns, clock_ns()


def _plain(report: CheckpointReport, manifest_s: float) -> dict[str, Any]:
    sinks = [each for each in report.subtasks if each.task == SINK]
    return {
        "is_complete": report.is_complete,
        "reason": report.reason,
        "duration_s": report.duration_s,
        "start_delay_s": max((each.start_delay_s for each in sinks), default=0.0),
        "alignment_s": max((each.alignment_s for each in sinks), default=0.0),
        "write_s": max((each.write_s for each in report.subtasks), default=0.0) + manifest_s,
        "channel_state_bytes": sum(each.input_bytes + each.output_bytes for each in report.subtasks),
    }


if __name__ == "__main__":
    sys.exit(main())
