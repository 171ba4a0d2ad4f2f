"""A master and workers over control streams: who may join, who is turned away, and a job by names."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from netstack.errors import ConfigError, ConnectionLost
from netstack.job.master import GREETING_TIMEOUT_S, JobMaster, open_job_master
from netstack.job.spec import InputSpec, Job, TaskSpec
from netstack.job.worker import run_worker
from netstack.transport import ByteStream, transport_for

_NAMES = itertools.count()
_SEEN: list[Any] = []


class Numbers:
    def __init__(self, count: int) -> None:
        self.left = count

    def read(self) -> list[int] | None:
        self.left -= 1
        return [self.left] if self.left >= 0 else None

    def snapshot(self, unsent: int) -> int:
        return self.left + unsent


class Note:
    def process(self, record: int, out: Any) -> None:
        _SEEN.append(record)


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        async def main() -> None:
            with trio.fail_after(3600):
                await test(**arguments)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def address() -> str:
    return f"memory://master-{next(_NAMES)}"


def named(count: int, **more: Any) -> Job:
    return Job(
        tasks=(
            TaskSpec("source", f"{__name__}:Numbers", {"count": count}, workers=(0,)),
            TaskSpec("sink", f"{__name__}:Note", inputs=(InputSpec("source", format="int64"),), workers=(1,)),
        ),
        **more,
    )


@virtual
async def test_a_job_by_names_on_workers_that_join() -> None:
    async with trio.open_nursery() as nursery:
        ended: list[str] = []

        async def work(master: JobMaster, name: str) -> None:
            await run_worker(master.address, name, address())
            ended.append(name)

        async with open_job_master(address()) as master:
            for name in ("b", "a"):
                nursery.start_soon(work, master, name)
            await master.wait_workers(2)
            assert master.workers == ("a", "b")
            for count in (10, 20):
                _SEEN.clear()
                async with master.open_job(named(count)) as run:
                    await run.wait()
                assert [*reversed(range(count))] == _SEEN
            with pytest.raises(ConfigError, match="give its name"):
                async with master.open_job(Job(tasks=(TaskSpec("source", Numbers, {"count": 1}),))):
                    raise AssertionError("never entered")
            assert master.workers == ("a", "b")
        with trio.fail_after(1):
            while len(ended) < 2:
                await trio.testing.wait_all_tasks_blocked()


async def dial(master: JobMaster, said: bytes) -> ByteStream:
    stream = await transport_for(master.address).connect(master.address)
    await stream.wait_writable()
    stream.try_send((said,))
    return stream


@virtual
async def test_strangers_and_namesakes_do_not_join() -> None:
    with pytest.MonkeyPatch.context() as patch:
        warnings: list[str] = []
        patch.setattr(logging.getLogger("netstack"), "warning", lambda text, *values: warnings.append(text % values))
        async with open_job_master(address()) as master, trio.open_nursery() as nursery:
            strange = await dial(master, b"GET / HTTP/1.1\r\n\r\n")
            silent = await dial(master, b"")
            nursery.start_soon(run_worker, master.address, "a", address())
            await master.wait_workers(1)
            with trio.fail_after(1):
                await run_worker(master.address, "a", address())
            await trio.sleep(GREETING_TIMEOUT_S + 1)
            assert master.workers == ("a",)
            for stream in (strange, silent):
                stream.close()
            nursery.cancel_scope.cancel()
    assert len(warnings) == 3
    assert "FRAME_TOO_LARGE" in warnings[0]
    assert "give each a name of its own" in warnings[1]
    assert "did not join" in warnings[2]


@virtual
async def test_a_worker_without_a_master_says_so() -> None:
    with pytest.raises(ConnectionLost):
        await run_worker(address(), "a", address())
