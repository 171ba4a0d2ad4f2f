"""One task: every kind of operator and source, turns for others, waits that are told apart."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import netstack.job.worker
from netstack.config import NetworkConfig
from netstack.job.master import JobRun, open_job
from netstack.job.operators import Output
from netstack.job.spec import InputSpec, Job, TaskSpec
from netstack.job.task import MAX_SLICE, TURN_S
from netstack.runtime.network_environment import NetworkEnvironment

SMALL = NetworkConfig(segment_size_bytes=256, memory_bytes=256 * 200)


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


class Lists:
    """A source of numbers in lists, without a wait."""

    def __init__(self, count: int = 1000) -> None:
        self.next, self.count = 0, count

    def read(self) -> Any:
        if self.next == self.count:
            return None
        first, self.next = self.next, min(self.next + 64, self.count)
        return [*range(first, self.next)]

    def snapshot(self, unsent: int) -> int:
        return self.next - unsent


class Arrays(Lists):
    def read(self) -> Any:
        found = super().read()
        return None if found is None else np.array(found)


class AsyncLists(Lists):
    async def read(self) -> Any:
        await trio.sleep(0.001)
        return super().read()


class Double:
    def process(self, record: int, out: Output) -> None:
        out.collect(2 * record)
        out.collect(2 * record + 1)


class AsyncDouble:
    async def process(self, record: int, out: Output) -> None:
        await trio.sleep(0.0001)
        await out.emit(2 * record)
        await out.emit(2 * record + 1)


class DoubleBatch:
    def process_batch(self, records: list[int], out: Output) -> None:
        assert 0 < len(records) <= MAX_SLICE
        for record in records:
            out.collect(2 * record)
            out.collect(2 * record + 1)


class AsyncDoubleBatch:
    async def process_batch(self, records: list[int], out: Output) -> None:
        array = np.array(records)
        await out.emit_batch(np.stack([2 * array, 2 * array + 1], axis=1).reshape(-1))


def start(*tasks: TaskSpec, workers: int = 1) -> AbstractAsyncContextManager[JobRun]:
    return open_job(Job(tasks=tasks, network=SMALL), workers=workers, in_thread=at_once)


def collector(found: list[int]) -> Any:
    class Sink:
        def process(self, record: int, out: Output) -> None:
            found.append(record)

    return Sink


NUMBERS = InputSpec("source", format="int64", buffer_timeout_s=0.01)


@pytest.mark.parametrize("source", [Lists, Arrays, AsyncLists])
@pytest.mark.parametrize("operator", [Double, AsyncDouble, DoubleBatch, AsyncDoubleBatch])
@virtual
async def test_every_kind_of_source_and_operator(source: Any, operator: Any) -> None:
    found: list[int] = []
    async with start(
        TaskSpec("source", source),
        TaskSpec("double", operator, inputs=(NUMBERS,)),
        TaskSpec("sink", collector(found), inputs=(InputSpec("double", format="int64"),)),
        workers=3,
    ) as run:
        await run.wait()
    assert found == [*range(2000)]


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the tasks of a test take for the processor's clock."""
    clock = [0.0]
    original = netstack.job.worker.open_task_manager

    @asynccontextmanager
    async def opened(*arguments: Any) -> AsyncIterator[NetworkEnvironment]:
        async with original(*arguments) as manager:
            monkeypatch.setattr(manager, "ticks", lambda: clock[0])
            yield manager

    monkeypatch.setattr(netstack.job.worker, "open_task_manager", opened)
    return clock


@pytest.mark.parametrize("record_s", [1e-5, 2e-4, 3e-3, 1.0])
@virtual
async def test_an_operator_that_never_waits_leaves_turns_to_others(fake_clock: list[float], record_s: float) -> None:
    class Busy:
        def process(self, record: int, out: Output) -> None:
            fake_clock[0] += record_s

    turns: list[float] = []
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def others() -> None:
            while True:
                turns.append(fake_clock[0])
                await trio.lowlevel.checkpoint()

        async with start(
            TaskSpec("source", functools.partial(Lists, 3000)), TaskSpec("sink", Busy, inputs=(NUMBERS,))
        ) as run:
            await run.wait()
        nursery.cancel_scope.cancel()
    assert fake_clock[0] == pytest.approx(3000 * record_s)
    longest_s = max(late - early for early, late in itertools.pairwise(turns))
    assert longest_s <= 2 * max(
        TURN_S + 0.002, record_s
    )  # in a round of the scheduler the others may come last, then first


@virtual
async def test_waits_between_records_are_soft_and_within_one_hard() -> None:
    class Slow:
        async def process(self, record: int, out: Output) -> None:
            await trio.sleep(0.01)

    class Burst:
        """One record becomes more than all buffers hold."""

        def process(self, record: int, out: Output) -> None:
            if record == 500:
                for number in range(1000):
                    out.collect(number)
            else:
                out.collect(record)

    waits: dict[str, tuple[float, float]] = {}
    managers: list[NetworkEnvironment] = []
    with pytest.MonkeyPatch.context() as patch:
        original = netstack.job.worker.open_task_manager

        @asynccontextmanager
        async def opened(*arguments: Any) -> AsyncIterator[NetworkEnvironment]:
            async with original(*arguments) as manager:
                managers.append(manager)
                yield manager

        patch.setattr(netstack.job.worker, "open_task_manager", opened)
        async with start(
            TaskSpec("source", Lists),
            TaskSpec("burst", Burst, inputs=(NUMBERS,)),
            TaskSpec("sink", Slow, inputs=(InputSpec("burst", format="int64"),)),
        ) as run:
            for moment_s in (2.0, 12.0):
                await trio.sleep(moment_s - trio.current_time())
                for partition in managers[0].statistics().partitions:
                    soft, hard = partition.soft_backpressured.total_s, partition.hard_backpressured.total_s
                    waits[f"{partition.partition_id} at {moment_s:g}"] = (soft, hard)
            await run.wait()
    source_soft, source_hard = waits["source-0>burst.0 at 2"]
    burst_soft, burst_hard = waits["burst-0>sink.0 at 2"]
    assert source_hard == burst_hard == 0
    assert source_soft > 0
    assert burst_soft > 1
    assert waits["burst-0>sink.0 at 12"][1] > 2


@virtual
async def test_whatever_a_method_returns_is_awaited_if_it_wants_that() -> None:
    log: list[str] = []

    class Everything:
        async def open(self, context: Any) -> None:
            await trio.sleep(0.1)
            log.append(f"open {context}")

        def process(self, record: int, out: Output) -> None:
            if record == 0:
                log.append("process")

        async def finish(self, out: Output) -> None:
            await trio.sleep(0.1)
            log.append("finish")

        async def snapshot(self) -> None:
            await trio.sleep(0.1)
            log.append("snapshot")

        async def close(self) -> None:
            await trio.sleep(0.1)
            log.append("close")

    async with start(TaskSpec("source", Lists), TaskSpec("sink", Everything, inputs=(NUMBERS,))) as run:
        await run.wait()
    assert log == ["open sink-0", "process", "finish", "snapshot", "close"]
