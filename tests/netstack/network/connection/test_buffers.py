"""Waiting for promised buffers: served in order, refused when hopeless, given back on every other way out."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from netstack.base.errors import InsufficientBuffers, PoolDestroyed
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.buffer.segment import Segment
from netstack.network.connection.buffers import wait_unpooled

SIZE = 32


async def test_what_is_free_is_had_at_once(autojump_clock: MockClock) -> None:
    pool = NetworkBufferPool(4, SIZE)
    assert len(await wait_unpooled(pool, 3, "a gate", timeout_s=1)) == 3
    assert pool.free_segments == 1


async def test_a_hopeless_wish_is_refused_at_once(autojump_clock: MockClock) -> None:
    pool = NetworkBufferPool(4, SIZE)
    with pytest.raises(InsufficientBuffers, match=r"requires 5 .* 4 of 4"):
        await wait_unpooled(pool, 5, "a gate", timeout_s=1)
    assert pool.statistics().required_segments == 0


async def test_waits_for_a_pool_that_has_to_shrink(autojump_clock: MockClock) -> None:
    pool = NetworkBufferPool(6, SIZE)
    local = pool.create_pool(1, 6)
    held = [local.try_acquire() for _ in range(6)]
    got: list[Segment] = []

    async def wait() -> None:
        got.extend(await wait_unpooled(pool, 3, "a gate", timeout_s=30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for segment in held[:3]:
            await trio.testing.wait_all_tasks_blocked()
            assert not got
            assert segment is not None
            local.recycle(segment)
    assert len(got) == 3
    assert local.statistics().requested == 3
    assert trio.current_time() < 1  # nobody polled a clock


async def test_requests_are_served_in_order_and_before_local_pools(autojump_clock: MockClock) -> None:
    pool = NetworkBufferPool(6, SIZE)
    local = pool.create_pool(1, 6)
    held = [local.try_acquire() for _ in range(6)]
    order: list[str] = []

    async def wait(name: str, count: int) -> None:
        await wait_unpooled(pool, count, name, timeout_s=30)
        order.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "first", 2)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(wait, "second", 1)
        await trio.testing.wait_all_tasks_blocked()
        for count, segment in enumerate(held[:3], start=1):
            assert segment is not None
            local.recycle(segment)
            await trio.testing.wait_all_tasks_blocked()
            assert order == {1: [], 2: ["first"], 3: ["first", "second"]}[count]


async def test_gives_up_after_the_timeout_and_says_what_to_raise(autojump_clock: MockClock) -> None:
    pool = NetworkBufferPool(4, SIZE)
    local = pool.create_pool(1, 4)
    held = [local.try_acquire() for _ in range(4)]
    with pytest.raises(InsufficientBuffers, match=r"2 of 2 .* buffers_request_timeout_s=30; .* memory_bytes by 64"):
        await wait_unpooled(pool, 2, "a gate", timeout_s=30)
    assert trio.current_time() == pytest.approx(30)
    assert pool.statistics().required_segments == 1
    for segment in held:
        assert segment is not None
        local.recycle(segment)
    assert local.statistics().size == 4


async def test_cancellation_gives_back_what_had_come(autojump_clock: MockClock) -> None:
    pool = NetworkBufferPool(4, SIZE)
    local = pool.create_pool(1, 4)
    held = [local.try_acquire() for _ in range(3)]
    with trio.move_on_after(5) as scope:
        await wait_unpooled(pool, 3, "a gate", timeout_s=30)
    assert scope.cancelled_caught
    for segment in held:
        assert segment is not None
        local.recycle(segment)
    local.destroy()
    assert pool.free_segments == 4
    assert pool.statistics().required_segments == 0


async def test_a_closed_task_manager_ends_the_wait(autojump_clock: MockClock) -> None:
    pool = NetworkBufferPool(4, SIZE)
    local = pool.create_pool(1, 4)
    held = [local.try_acquire() for _ in range(4)]

    async def wait() -> None:
        with pytest.raises(PoolDestroyed, match="a gate: the TaskManager was closed"):
            await wait_unpooled(pool, 2, "a gate", timeout_s=30)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        pool.destroy()
    for segment in held:
        assert segment is not None
        local.recycle(segment)
    assert pool.free_segments == 4
    with pytest.raises(PoolDestroyed):
        await wait_unpooled(pool, 1, "a gate", timeout_s=1)
