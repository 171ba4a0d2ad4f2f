"""The master's side of a run, against scripted workers: who is blamed, who is cut off, what is not believed."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.errors import LocalProtocolError
from netstack.job.control import (
    AbortCheckpoint,
    Acknowledged,
    Cancel,
    Connect,
    Deploy,
    Deployed,
    Ended,
    Failed,
    LocalLink,
    Message,
    Running,
    Stopped,
    StoreFinals,
    local_links,
)
from netstack.job.master import JobFailed, JobMaster, JobRun
from netstack.job.run import STOP_GRACE_S
from netstack.job.spec import Job, TaskSpec
from netstack.job.task_checkpoints import SubtaskReport

JOB = Job(tasks=(TaskSpec("task", "a:b", parallelism=2),))


async def at_once(function: Callable[[], Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return function()


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        async def main() -> None:
            with trio.fail_after(3600):
                await test(**arguments)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


class Worker:
    """The other end of a link, by hand."""

    def __init__(self, link: LocalLink) -> None:
        self.link = link

    async def expect(self, kind: type[Message]) -> Any:
        message = await self.link.receive()
        assert isinstance(message, kind)
        return message

    async def stop(self, attempt: int = 1) -> None:
        await self.expect(Cancel)
        self.link.send(Stopped(attempt))


async def start(*workers: Worker) -> int:
    """The first part of a run; returns its number."""
    attempts = set()
    for worker in workers:
        deploy = await worker.expect(Deploy)
        attempts.add(deploy.attempt)
        worker.link.send(Deployed(deploy.attempt, f"memory://{deploy.worker}"))
    (attempt,) = attempts
    for worker in workers:
        connect = await worker.expect(Connect)
        assert connect.addresses == ("memory://0", "memory://1")
        worker.link.send(Running(attempt))
    return attempt


@asynccontextmanager
async def master_of_two() -> AsyncIterator[tuple[JobMaster, Worker, Worker, trio.Nursery]]:
    async with trio.open_nursery() as nursery:
        master = JobMaster("", nursery, at_once)
        workers = []
        for name in ("a", "b"):
            ours, theirs = local_links(name)
            nursery.start_soon(master.attach, name, ours)
            workers.append(Worker(theirs))
        await master.wait_workers(2)
        yield master, workers[0], workers[1], nursery
        nursery.cancel_scope.cancel()


async def outcome(master: JobMaster, started: list[JobRun], job: Job = JOB) -> str:
    """Runs the job; how it ended."""
    try:
        async with master.open_job(job) as run:
            started.append(run)
            await run.wait()
    except JobFailed as error:
        return str(error)
    return "ended"


@asynccontextmanager
async def running(job: Job = JOB) -> AsyncIterator[tuple[JobMaster, Worker, Worker, list[str]]]:
    """A job that runs on both workers; the list gets its outcome."""
    found: list[str] = []
    async with master_of_two() as (master, a, b, nursery):

        @nursery.start_soon
        async def run() -> None:
            found.append(await outcome(master, [], job))

        await start(a, b)
        await trio.testing.wait_all_tasks_blocked()
        yield master, a, b, found
        await trio.testing.wait_all_tasks_blocked()
        assert len(found) == 1


@virtual
async def test_a_job_ends_when_all_subtasks_have() -> None:
    async with running() as (_, a, b, found):
        a.link.send(Ended(1, "task", 0))
        await trio.testing.wait_all_tasks_blocked()
        assert found == []
        b.link.send(Ended(1, "task", 1))
        await a.stop()
        await b.stop()
    assert found == ["ended"]


@virtual
async def test_who_noticed_first_is_not_to_blame() -> None:
    async with running() as (_, a, b, found):
        b.link.send(Failed(1, "task", 1, "ConnectionLost: gone", is_secondary=True))
        await b.stop()
        await a.expect(Cancel)
        a.link.send(Failed(1, "task", 0, "ValueError: mine", is_secondary=False))
        a.link.send(Stopped(1))
    assert found == ["job 'job': task-0 failed: ValueError: mine"]


@virtual
async def test_a_worker_that_vanishes_is_to_blame_whoever_notices_first() -> None:
    async with running() as (master, a, b, found):
        b.link.send(Failed(1, "task", 1, "ConnectionLost: gone", is_secondary=True))
        await b.stop()
        a.link.close()
        await trio.testing.wait_all_tasks_blocked()
        assert master.workers == ("b",)
    assert found == ["job 'job': a is gone"]


@virtual
async def test_a_worker_that_does_not_stop_is_cut_off() -> None:
    async with running() as (master, a, b, found):
        a.link.send(Failed(1, "", 0, "OSError: no port", is_secondary=False))
        await b.stop()
        await trio.sleep(STOP_GRACE_S - 1)
        assert found == []
        await trio.sleep(2)
        assert master.workers == ("b",)
    assert found == ["job 'job': a failed: OSError: no port"]


@virtual
async def test_another_run_is_nobodys_business() -> None:
    async with running() as (_, a, b, found):
        for late in (
            Failed(0, "task", 0, "late", is_secondary=False),
            Ended(0, "task", 0),
            Stopped(0),
            Ended(7, "x", 1),
        ):
            a.link.send(late)
        a.link.send(Ended(1, "task", 0))
        b.link.send(Ended(1, "task", 1))
        await a.stop()
        await b.stop()
    assert found == ["ended"]


@pytest.mark.parametrize(
    "message",
    [
        Ended(1, "task", 1),
        Ended(1, "nobody", 0),
        Acknowledged(1, 1, 0, SubtaskReport("task", 1)),
    ],
)
@virtual
async def test_a_worker_reports_of_its_own_subtasks_only(message: Message) -> None:
    async with running() as (master, a, b, found):
        a.link.send(message)
        await b.stop()
        await trio.testing.wait_all_tasks_blocked()
        assert master.workers == ("b",)
    assert "UNEXPECTED_FRAME: a reports of subtask" in found[0]


@virtual
async def test_a_start_that_fails_ends_everywhere() -> None:
    found: list[str] = []
    started: list[JobRun] = []
    async with master_of_two() as (master, a, b, nursery):

        @nursery.start_soon
        async def run() -> None:
            found.append(await outcome(master, started))

        await a.expect(Deploy)
        await b.expect(Deploy)
        a.link.send(Deployed(1, "memory://0"))
        b.link.send(Failed(1, "", 0, "ConfigError: no such module", is_secondary=False))
        b.link.send(Stopped(1))
        await a.stop()
        await b.expect(Cancel)
        await trio.testing.wait_all_tasks_blocked()
        assert found == ["job 'job': b failed: ConfigError: no such module"]
        assert started == []

        # And the next run begins from scratch.
        @nursery.start_soon
        async def run_again() -> None:
            found.append(await outcome(master, started))

        assert await start(a, b) == 2
        with pytest.raises(LocalProtocolError, match="one job at a time"):
            async with master.open_job(JOB):
                raise AssertionError("never entered")
        a.link.send(Ended(2, "task", 0))
        b.link.send(Ended(2, "task", 1))
        await a.stop(2)
        await b.stop(2)
        await trio.testing.wait_all_tasks_blocked()
        assert found[1:] == ["ended"]
        assert [run.attempt for run in started] == [2]


@virtual
async def test_a_task_may_end_before_checkpoints_begin(tmp_path: Path) -> None:
    job = Job(tasks=JOB.tasks, checkpoints=CheckpointSettings(), folder=str(tmp_path))
    found: list[str] = []
    started: list[JobRun] = []
    async with master_of_two() as (master, a, b, nursery):

        @nursery.start_soon
        async def run() -> None:
            found.append(await outcome(master, started, job))

        await trio.testing.wait_all_tasks_blocked()
        a.link.send(Ended(1, "task", 0))
        await start(a, b)
        b.link.send(Ended(1, "task", 1))
        # The last checkpoint: final states, which nobody stores here.
        for worker in (a, b):
            await worker.expect(StoreFinals)
        a.link.close()
        await b.expect(AbortCheckpoint)
        await b.stop()
        await trio.testing.wait_all_tasks_blocked()
    assert found == ["job 'job': a is gone"]
    assert [report.is_complete for report in started[0].history] == [False]


@virtual
async def test_without_workers_there_is_no_job() -> None:
    async with trio.open_nursery() as nursery:
        master = JobMaster("", nursery, at_once)
        with pytest.raises(LocalProtocolError, match="found 0 workers"):
            async with master.open_job(JOB):
                raise AssertionError("never entered")
