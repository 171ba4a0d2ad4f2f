"""A task beside others: it leaves them turns, waits between records, and awaits what wants to be awaited."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
from task import task_functions
from task.task_functions import Bursts, BusySink, Collect, Everything, Polled, SlowNumbers, SlowSink, numbers
from task.tasks import running
from trio.testing import MockClock

from netstack.cluster.task.chain_loop import EMPTY_READ_S, TURN_S
from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.graph.stream_graph import ChainingStrategy, OperatorKind, StreamNode


def unchained() -> StreamEnvironment:
    return StreamEnvironment("job", settings=StreamSettings(is_chaining_enabled=False))


@pytest.mark.parametrize("is_chained", [True, False])
@pytest.mark.parametrize("record_s", [1e-5, 2e-4, 3e-3, 1.0])
async def test_an_operator_that_never_waits_leaves_turns_to_others(
    autojump_clock: MockClock, is_chained: bool, record_s: float
) -> None:
    clock = task_functions.CLOCK
    clock[0] = 0.0
    turns: list[float] = []
    job = StreamEnvironment("job", settings=StreamSettings(is_chaining_enabled=is_chained))
    job.source(numbers, parameters={"count": 3000}).sink(BusySink, record_s=record_s)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def others() -> None:
            while True:
                turns.append(clock[0])
                await trio.lowlevel.checkpoint()

        async with running(job, ticks=lambda: clock[0]) as run:
            await run.wait()
        nursery.cancel_scope.cancel()
    assert clock[0] == pytest.approx(3000 * record_s)
    longest_s = max(late - early for early, late in itertools.pairwise(turns))
    # In a round of the scheduler the others may come last, then first.
    assert longest_s <= 2 * max(TURN_S + 0.002, record_s)


async def test_waits_between_records_are_soft_and_within_one_hard(autojump_clock: MockClock) -> None:
    job = unchained()
    job.source(numbers, name="source").with_format("int64").process(Bursts, name="burst").with_format("int64").sink(
        SlowSink
    )
    async with running(job, environments=1) as run:
        waits: dict[str, Any] = {}
        for moment_s in (2.0, 12.0):
            await trio.sleep(moment_s - trio.current_time())
            for partition in run.environments[0].statistics().partitions:
                name = partition.partition_id.split("/")[1]
                soft, hard = partition.soft_backpressured.total_s, partition.hard_backpressured.total_s
                waits[name, moment_s] = (soft, hard)
        times = run.task("burst").statistics()
        assert times.backpressured_s == pytest.approx(sum(waits["burst.0", 12.0]), rel=0.1)
        assert times.busy_s < 1
        assert run.task("sink").statistics().busy_s == pytest.approx(12.0, rel=0.1)
    assert waits["source.0", 2.0][1] == waits["burst.0", 2.0][1] == 0
    assert waits["source.0", 2.0][0] > 0
    assert waits["burst.0", 2.0][0] > 1
    assert waits["burst.0", 12.0][1] > 2


async def test_whatever_a_method_returns_is_awaited_if_it_wants_that(autojump_clock: MockClock) -> None:
    task_functions.LOG.clear()
    job = unchained()
    job.source(numbers).sink(Everything, name="sink")
    async with running(job) as run:
        await run.wait()
    assert task_functions.LOG == ["open sink-0", "process", "finish", "close"]


async def test_a_source_without_records_is_read_again_after_a_pause(autojump_clock: MockClock) -> None:
    Polled.reads.clear()
    job = StreamEnvironment("job")
    job.source(Polled, name="source", parameters={"count": 100}).sink(Collect, name="sink")
    async with running(job) as run:
        await run.wait()
        idle_s = run.task("source").statistics().idle_s
    assert run.result("sink") == [[*range(1, 101)]]
    assert Polled.reads["polled"] == 303
    assert trio.current_time() == pytest.approx(202 * EMPTY_READ_S, abs=0.1)
    assert idle_s == pytest.approx(202 * EMPTY_READ_S, abs=0.1)


@pytest.mark.parametrize("is_chained", [True, False])
async def test_a_source_without_records_leaves_turns_to_other_inputs(
    autojump_clock: MockClock, is_chained: bool
) -> None:
    Polled.reads.clear()
    job = StreamEnvironment("job")
    polled = job.source(Polled, name="polled", parameters={"count": 100})
    other = job.source(numbers) if is_chained else job.source(SlowNumbers, parameters={"count": 1000}).rebalance()
    join = StreamNode(
        name="join",
        kind=OperatorKind.CONNECT,
        function="task.task_functions:Join",
        strategy=ChainingStrategy.HEAD_WITH_SOURCES,
    )
    job.add(join, polled, other).sink(Collect, name="sink")
    async with running(job) as run:
        await run.wait()
        idle_s = run.task("join").statistics().idle_s
    (records,) = run.result("sink")
    assert [number for side, number in records if side == "left"] == [*range(1, 101)]
    others = [index for index, (side, number) in enumerate(records) if side == "right"]
    assert len(others) == 1000
    assert others[-1] < 1000 + 60, "the other input waited for the source"
    assert Polled.reads["polled"] == 303
    assert trio.current_time() <= 2.1
    assert idle_s == pytest.approx(trio.current_time(), abs=0.1)
