"""Memory: never more lent than there is, in order, and nothing lost whoever gives up."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st
from trio.testing import MockClock
from trio_runs import run_virtual

from netstack.base.errors import ConfigError, RequestRefused
from netstack.cluster.taskmanager.memory import TaskMemory

MEMORY = 100

WANTS = st.tuples(
    st.integers(0, MEMORY),
    st.integers(0, 20),  # arrives at
    st.integers(0, 20),  # holds for
    st.integers(0, 20),  # waits at most
    st.none() | st.integers(0, 20),  # is cancelled after
)


@given(st.lists(WANTS, max_size=12))
def test_never_more_lent_than_there_is_in_order_and_all_back_at_the_end(wants: list[Any]) -> None:
    async def main() -> None:
        pool = TaskMemory(MEMORY)
        held: dict[int, int] = {}
        asked: list[int] = []
        served: dict[int, float] = {}

        async def use(number: int, want: Any) -> None:
            memory, arrival, length, patience, end = want
            await trio.sleep(arrival + number / 100)  # no two at one moment
            with trio.move_on_after(1000 if end is None else end + 0.003):
                asked.append(number)
                try:
                    await pool.acquire(memory, timeout_s=patience + 0.001)
                except (RequestRefused, trio.Cancelled):
                    asked.remove(number)
                    raise
                served[number] = trio.current_time()
                held[number] = memory
                try:
                    await trio.sleep(length + 0.005)
                finally:
                    del held[number]
                    pool.release(memory)

        async def tolerant(number: int, want: Any) -> None:
            with contextlib.suppress(RequestRefused):
                await use(number, want)

        async def watch() -> None:
            while True:
                await trio.sleep(0.25)
                assert 0 <= pool.free_memory_bytes <= MEMORY - sum(held.values())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            async with trio.open_nursery() as users:
                for number, want in enumerate(wants):
                    users.start_soon(tolerant, number, want)
            nursery.cancel_scope.cancel()
        assert pool.free_memory_bytes == MEMORY
        moments = [served[number] for number in asked if number in served]
        assert moments == sorted(moments), "first come, first served"

    run_virtual(main)


async def test_a_large_request_is_not_overtaken_by_small_ones(autojump_clock: MockClock) -> None:
    pool = TaskMemory(2)
    await pool.acquire(1, timeout_s=0)
    order: list[int] = []

    async def want(memory: int) -> None:
        await pool.acquire(memory, timeout_s=100)
        order.append(memory)
        pool.release(memory)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(want, 2)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(want, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert order == []
        pool.release(1)
    assert order == [2, 1]


async def test_one_that_gives_up_lets_the_next_one_in(autojump_clock: MockClock) -> None:
    pool = TaskMemory(2 << 20)
    await pool.acquire(1 << 20, timeout_s=0)
    async with trio.open_nursery() as nursery:

        async def impatient() -> None:
            with pytest.raises(RequestRefused, match=r"2MiB .* within 5 s: 1MiB of 2MiB"):
                await pool.acquire(2 << 20, timeout_s=5)

        nursery.start_soon(impatient)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await pool.acquire(1 << 20, timeout_s=100)
        assert trio.current_time() - began == 5


async def test_what_can_never_be_is_refused_at_once(autojump_clock: MockClock) -> None:
    pool = TaskMemory(1 << 20)
    with pytest.raises(RequestRefused, match=r"2MiB .* this TaskManager has 1MiB"):
        await pool.acquire(2 << 20, timeout_s=0)
    with pytest.raises(ConfigError, match="timeout of -1"):
        await pool.acquire(0, timeout_s=-1)
    assert pool.free_memory_bytes == 1 << 20


async def test_cancelled_at_the_very_moment_it_is_served(autojump_clock: MockClock) -> None:
    for order in itertools.permutations(["cancel", "release"]):
        pool = TaskMemory(10)
        await pool.acquire(5, timeout_s=0)
        scope = trio.CancelScope()

        async def want(pool: TaskMemory = pool, scope: trio.CancelScope = scope) -> None:
            with scope:
                await pool.acquire(10, timeout_s=100)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(want)
            await trio.testing.wait_all_tasks_blocked()
            for step in order:
                if step == "cancel":
                    scope.cancel()
                else:
                    pool.release(5)
        if not scope.cancelled_caught:
            pool.release(10)
        assert pool.free_memory_bytes == 10


async def test_the_rest_is_all_that_is_free_when_there_is_enough(autojump_clock: MockClock) -> None:
    pool = TaskMemory(1 << 20)
    await pool.acquire(1 << 19, timeout_s=0)
    assert await pool.acquire_rest(1 << 18) == 1 << 19
    assert pool.free_memory_bytes == 0
    actual: list[int] = []

    async def wait() -> None:
        actual.append(await pool.acquire_rest(1 << 30))  # as much as there is in all

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not actual
        pool.release(1 << 19)
        await trio.testing.wait_all_tasks_blocked()
        assert not actual
        pool.release(1 << 19)
    assert actual == [1 << 20]
