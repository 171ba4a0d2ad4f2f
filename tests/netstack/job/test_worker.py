"""A worker, its master played by hand: what goes wrong is reported, and nothing is left."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.checkpoint.storage import CheckpointStorage
from netstack.errors import ConnectionLost, LocalProtocolError
from netstack.events import CheckpointBarrier, encode_event
from netstack.job.control import (
    AbortCheckpoint,
    Acknowledged,
    Cancel,
    Connect,
    Declined,
    Deploy,
    Deployed,
    Ended,
    Failed,
    LocalLink,
    Running,
    Stopped,
    StoreFinals,
    TriggerCheckpoint,
    local_links,
)
from netstack.job.spec import InputSpec, Job, TaskSpec
from netstack.job.worker import run_worker, serve
from netstack.runtime.network_environment import open_task_manager

_NAMES = itertools.count()


class Nothing:
    """A source of no records."""

    def __init__(self) -> None:
        self.ends_s = trio.current_time() + 1

    async def read(self) -> None:
        await trio.sleep_until(self.ends_s)

    def snapshot(self, unsent: int) -> int:
        return unsent


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


@asynccontextmanager
async def worker(storage: CheckpointStorage | None = None) -> AsyncIterator[LocalLink]:
    ours, theirs = local_links("the worker")
    async with trio.open_nursery() as nursery:
        address = f"memory://worker-{next(_NAMES)}"
        nursery.start_soon(functools.partial(serve, theirs, address, storage=storage, in_thread=at_once))
        yield ours
        ours.close()  # which ends it


async def start(link: LocalLink, job: Job, attempt: int = 1, restore: int = -1) -> str:
    link.send(Deploy(attempt, job, 0, 1, restore))
    deployed = await link.receive()
    assert isinstance(deployed, Deployed)
    link.send(Connect(attempt, (deployed.address,)))
    return deployed.address


SOURCE = Job(tasks=(TaskSpec("source", Nothing),))


@virtual
async def test_a_run_from_its_first_to_its_last_word() -> None:
    async with worker() as link:
        for attempt in (1, 2):
            await start(link, SOURCE, attempt)
            assert await link.receive() == Running(attempt)
            assert await link.receive() == Ended(attempt, "source", 0)
            link.send(Cancel(attempt - 1))  # of another run
            link.send(TriggerCheckpoint(attempt, encode_event(CheckpointBarrier(1)), (("source", 0),)))  # too late
            with trio.move_on_after(5):
                pytest.fail(f"nothing was to be said, and {await link.receive()} was")
            link.send(Cancel(attempt))
            assert await link.receive() == Stopped(attempt)


@pytest.mark.parametrize(
    ("job", "restore", "cause"),
    [
        (Job(tasks=(TaskSpec("source", "no.such:thing"),)), -1, "ConfigError: 'no.such:thing' is not there"),
        (Job(tasks=(TaskSpec("source", Nothing, {"x": 1}),)), -1, "ConfigError: task 'source'"),
        (SOURCE, 3, "CheckpointError: checkpoint 3 cannot be read: the job has no folder"),
    ],
)
@virtual
async def test_what_cannot_start_is_reported(job: Job, restore: int, cause: str) -> None:
    async with worker() as link:
        link.send(Deploy(1, job, 0, 1, restore))
        message = await link.receive()
        if isinstance(message, Deployed):
            link.send(Connect(1, (message.address,)))
            message = await link.receive()
        assert isinstance(message, Failed)
        assert message.cause.startswith(cause)
        assert (message.task, message.is_secondary) == ("", False)
        assert await link.receive() == Stopped(1)
        await start(link, SOURCE, 2)  # and the next one can
        assert await link.receive() == Running(2)


@virtual
async def test_who_lost_a_producer_is_not_to_blame() -> None:
    class Sink:
        def process(self, record: Any, out: Any) -> None:
            """Nothing."""

    job = Job(
        tasks=(
            TaskSpec("source", Nothing, workers=(1,)),
            TaskSpec("sink", Sink, inputs=(InputSpec("source"),), workers=(0,)),
        )
    )
    async with worker() as link:
        async with open_task_manager("memory://elsewhere") as manager:
            manager.create_partition("source-0>sink.0", subpartitions=1)
            link.send(Deploy(1, job, 0, 2, -1))
            assert isinstance(await link.receive(), Deployed)
            link.send(Connect(1, ("memory://nobody", manager.address)))
            assert await link.receive() == Running(1)
        message = await link.receive()
        assert isinstance(message, Failed)
        assert (message.task, message.is_secondary) == ("sink", True)
        assert await link.receive() == Stopped(1)


@virtual
async def test_final_states_are_kept_for_later_checkpoints(tmp_path: Path) -> None:
    job = Job(tasks=SOURCE.tasks, checkpoints=CheckpointSettings(), folder=str(tmp_path))
    async with worker() as link:
        await start(link, job)
        assert await link.receive() == Running(1)
        link.send(TriggerCheckpoint(1, encode_event(CheckpointBarrier(1)), (("source", 0),)))
        first = await link.receive()
        assert isinstance(first, Acknowledged)
        assert (first.checkpoint_id, first.report.task, first.report.subtask) == (1, "source", 0)
        link.send(AbortCheckpoint(1, 1))
        assert await link.receive() == Ended(1, "source", 0)
        link.send(StoreFinals(1, 2, (("source", 0),)))
        second = await link.receive()
        assert isinstance(second, Acknowledged)
        (file,) = (tmp_path / "chk-00000002").glob("source-0.*.state")
        assert file.stat().st_size == second.report.size_bytes
        (tmp_path / "chk-00000003").write_text("in the way")
        link.send(StoreFinals(1, 3, (("source", 0),)))
        third = await link.receive()
        assert isinstance(third, Declined)
        assert "chk-00000003" in third.reason


@virtual
async def test_what_a_master_never_says_ends_the_worker() -> None:
    async def play() -> None:
        async with worker() as link:
            await start(link, SOURCE)
            link.send(Running(1))
            await trio.testing.wait_all_tasks_blocked()

    with pytest.raises(ExceptionGroup) as caught:
        await play()
    assert caught.group_contains(LocalProtocolError, match="sent Running to a worker")


@virtual
async def test_without_a_master_there_is_no_worker() -> None:
    with pytest.raises(ConnectionLost, match="nobody listens"):
        await run_worker("memory://no-master", "a", "memory://a")
