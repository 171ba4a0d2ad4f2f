"""The memory of a TaskManager: what is promised, how the rest is shared, and what is told to those who get none."""

from __future__ import annotations

import pytest

from netstack.base.errors import ConfigError, InsufficientBuffers, LocalProtocolError, PoolDestroyed
from netstack.exchange.buffer.pools import LocalBufferPool, NetworkBufferPool
from netstack.exchange.buffer.segment import Segment

SIZE = 32


def take(pool: LocalBufferPool, count: int, subpartition: int = -1) -> list[Segment]:
    taken = []
    for _ in range(count):
        segment = pool.try_acquire(subpartition)
        assert segment is not None
        taken.append(segment)
    return taken


def sizes(*pools: LocalBufferPool) -> list[int]:
    return [pool.size for pool in pools]


# The table of 2.2, in order of creation, so exact.


def test_one_pool_gets_all_and_unpooled_segments_shrink_it() -> None:
    network = NetworkBufferPool(10, SIZE)
    first = network.create_pool(1, 10)
    assert sizes(first) == [10]
    two = network.take_unpooled(2)
    assert sizes(first) == [8]
    second = network.create_pool(1, 10)
    assert sizes(first, second) == [4, 4]
    more = network.take_unpooled(2)
    assert sizes(first, second) == [3, 3]
    most = network.take_unpooled(2)
    assert sizes(first, second) == [2, 2]
    network.recycle_unpooled(most)
    assert sizes(first, second) == [3, 3]
    network.recycle_unpooled(more)
    assert sizes(first, second) == [4, 4]
    network.recycle_unpooled(two)
    assert sizes(first, second) == [5, 5]
    first.destroy()
    assert sizes(second) == [10]


def test_three_pools_of_three_segments() -> None:
    network = NetworkBufferPool(3, SIZE)
    first = network.create_pool(1, 10)
    assert sizes(first) == [3]
    second = network.create_pool(1, 10)
    assert sizes(first, second) == [1, 2]
    third = network.create_pool(1, 10)
    assert sizes(first, second, third) == [1, 1, 1]


def test_a_fixed_pool_is_never_resized_and_takes_no_share() -> None:
    network = NetworkBufferPool(10, SIZE)
    fixed = network.create_pool(3, 3)
    flexible = network.create_pool(1, None)
    assert sizes(fixed, flexible) == [3, 7]


def test_the_share_is_in_proportion_to_the_capped_excess() -> None:
    network = NetworkBufferPool(10, SIZE)
    small = network.create_pool(1, 3)
    large = network.create_pool(1, 7)
    # 8 to share, excesses 2 and 6: everybody gets all of it.
    assert sizes(small, large) == [3, 7]
    network.create_pool(4, 4)
    assert sizes(small, large) == [1 + 4 * 2 // 6, 1 + 4 - 4 * 2 // 6]  # 4 to share, excesses 2 and min(4, 6)


# Creation and its limits.


def test_more_than_is_left_is_refused_with_what_to_raise() -> None:
    network = NetworkBufferPool(10, SIZE)
    network.create_pool(4, 4)
    network.take_unpooled(3)
    with pytest.raises(InsufficientBuffers, match=r"partition 'p' requires 4 .* only 3 of 10 .* 32 bytes") as caught:
        network.create_pool(4, 8, purpose="partition 'p'")
    assert "raise memory_bytes by 32 to at least 352" in str(caught.value)
    assert network.statistics().local_pools == 1
    assert network.statistics().required_segments == 7
    with pytest.raises(InsufficientBuffers, match="a gate requires 4"):
        network.take_unpooled(4, "a gate")
    assert network.create_pool(3, 3).size == 3


def test_a_maximum_below_the_guarantee_and_an_empty_pool_are_refused() -> None:
    with pytest.raises(ConfigError, match="maximum 1 is below required 2"):
        NetworkBufferPool(4, SIZE).create_pool(2, 1)
    with pytest.raises(ConfigError, match="at least 1 segment"):
        NetworkBufferPool(0, SIZE)


def test_memory_that_the_system_does_not_give_is_named() -> None:
    with pytest.raises(InsufficientBuffers, match=r"33,554,432 MiB .* lower memory_bytes"):
        NetworkBufferPool(1 << 30, 32 * 1024)


def test_nothing_comes_from_a_destroyed_network_pool() -> None:
    network = NetworkBufferPool(4, SIZE)
    pool = network.create_pool(1, 4)
    held = take(pool, 2)
    network.destroy()
    network.destroy()
    assert pool.is_destroyed
    with pytest.raises(LocalProtocolError, match="is destroyed"):
        network.create_pool(1, 1)
    with pytest.raises(PoolDestroyed, match="is destroyed"):
        network.take_unpooled(1)
    for segment in held:
        pool.recycle(segment)
    assert network.statistics().lent_segments == 0


def test_unpooled_segments_are_all_or_none() -> None:
    network = NetworkBufferPool(4, SIZE)
    pool = network.create_pool(1, 4)
    held = take(pool, 4)
    with pytest.raises(InsufficientBuffers, match=r"2 network buffers .* shrink still hold 2"):
        network.take_unpooled(2, "a gate")
    statistics = network.statistics()
    assert (statistics.required_segments, statistics.free_segments, pool.size) == (1, 0, 4)
    for segment in held[:2]:
        pool.recycle(segment)
    with pytest.raises(InsufficientBuffers, match="1 of them"):
        network.take_unpooled(3)
    taken = network.take_unpooled(2)
    assert pool.size == 2
    network.recycle_unpooled(taken)
    for segment in held[2:]:
        pool.recycle(segment)
    pool.destroy()
    assert network.statistics().lent_segments == 0


def test_statistics_say_what_everybody_would_like() -> None:
    network = NetworkBufferPool(10, SIZE)
    network.create_pool(2, 5)
    network.create_pool(2, None)
    network.take_unpooled(1)
    statistics = network.statistics()
    assert statistics.requested_segments == 10  # 5, twice 2, and 1
    assert statistics.requested_percent == 100.0
    assert statistics.total_bytes == statistics.free_bytes + statistics.lent_bytes == 10 * SIZE
    assert statistics.total_segments == statistics.free_segments + statistics.lent_segments == 10
    assert statistics.segment_size_bytes == SIZE
    assert statistics.local_pools == 2


def test_destroying_one_pool_serves_another_that_waits() -> None:
    network = NetworkBufferPool(4, SIZE)
    first = network.create_pool(1, 4)
    held = take(first, 4)
    second = network.create_pool(2, 4)
    reported: list[str] = []
    second.on_available = lambda: reported.append("available")
    assert second.try_acquire() is None
    first.destroy()
    assert reported == []
    assert second.size == 4
    first.recycle(held.pop())
    assert reported == ["available"]
    assert second.try_acquire() is not None


def test_create_and_destroy_in_a_loop_leaves_nothing_behind() -> None:
    network = NetworkBufferPool(8, SIZE)
    for round_number in range(50):
        pools = [network.create_pool(1 + round_number % 2, 4 + index) for index in range(3)]
        for pool in pools:
            for segment in take(pool, pool.size):
                pool.recycle(segment)
        assert sum(sizes(*pools)) <= 8
        for pool in pools:
            pool.destroy()
    statistics = network.statistics()
    assert (statistics.lent_segments, statistics.required_segments, statistics.local_pools) == (0, 0, 0)
