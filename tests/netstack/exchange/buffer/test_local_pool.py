"""A local pool: when it is available, who is served first, and how segments return."""

from __future__ import annotations

import pytest

from netstack.base.errors import LocalProtocolError, PoolDestroyed
from netstack.exchange.buffer.pools import LocalBufferPool, NetworkBufferPool
from netstack.exchange.buffer.segment import Segment

SIZE = 32


class Listener:
    """Wants `wanted` more segments, one at a time."""

    def __init__(self, name: str, log: list[str], *, wanted: int = 1, pool: LocalBufferPool | None = None) -> None:
        self.name = name
        self.log = log
        self.wanted = wanted
        self.pool = pool
        self.got: list[Segment] = []

    def on_buffer_available(self, segment: Segment) -> bool:
        if not self.wanted:
            self.log.append(f"{self.name} refuses")
            return False
        self.wanted -= 1
        self.got.append(segment)
        self.log.append(self.name)
        if self.wanted and self.pool is not None:
            self.pool.add_listener(self)
        return True

    def on_pool_destroyed(self) -> None:
        self.log.append(f"{self.name} destroyed")


def take(pool: LocalBufferPool, count: int, subpartition: int = -1) -> list[Segment]:
    taken = []
    for _ in range(count):
        segment = pool.try_acquire(subpartition)
        assert segment is not None
        taken.append(segment)
    return taken


# Availability.


def test_a_segment_is_at_hand_before_it_is_asked_for() -> None:
    pool = NetworkBufferPool(3, SIZE).create_pool(1, 3)
    assert pool.is_available
    assert pool.statistics().available == 1
    take(pool, 2)
    assert pool.is_available
    take(pool, 1)
    assert not pool.is_available
    assert pool.try_acquire() is None


@pytest.mark.parametrize("bounds", [(2, 2), (2, 4)])
def test_a_new_pool_is_available_at_once(bounds: tuple[int, int]) -> None:
    assert NetworkBufferPool(4, SIZE).create_pool(*bounds).is_available


@pytest.mark.parametrize("bounds", [(2, 2), (2, 3)])
def test_a_pool_that_found_the_memory_empty_is_told_when_some_returns(bounds: tuple[int, int]) -> None:
    network = NetworkBufferPool(4, SIZE)
    greedy = network.create_pool(1, 4)
    held = take(greedy, 4)
    late = network.create_pool(*bounds)
    reported: list[str] = []
    late.on_available = lambda: reported.append("available")
    assert late.try_acquire() is None
    greedy.recycle(held[0])
    assert reported == ["available"]
    assert late.is_available
    assert late.try_acquire() is not None


def test_available_is_told_on_the_edge_only() -> None:
    pool = NetworkBufferPool(2, SIZE).create_pool(1, 2)
    reported: list[str] = []
    pool.on_available = lambda: reported.append("available")
    first, second = take(pool, 2)
    pool.recycle(first)
    assert reported == ["available"]
    pool.recycle(second)
    assert reported == ["available"]
    take(pool, 2)
    pool.recycle(first)
    assert reported == ["available"] * 2


def test_the_quota_gates_availability_and_nothing_else() -> None:
    pool = NetworkBufferPool(8, SIZE).create_pool(2, 8, subpartitions=2, max_buffers_per_channel=2)
    reported: list[str] = []
    pool.on_available = lambda: reported.append("available")
    zero = take(pool, 1, 0)
    assert pool.is_available
    zero += take(pool, 1, 0)
    assert not pool.is_available
    zero += take(pool, 1, 0)  # a request beyond it succeeds
    one = take(pool, 2, 1)
    pool.recycle(one[0], 1)
    assert not pool.is_available  # 0 is still over
    pool.recycle(zero[0], 0)
    assert not pool.is_available
    assert reported == []
    pool.recycle(zero[1], 0)
    assert pool.is_available
    assert reported == ["available"]


def test_overdraft_is_granted_but_never_makes_available() -> None:
    network = NetworkBufferPool(10, SIZE)
    pool = network.create_pool(1, 2, max_overdraft=2)
    reported: list[str] = []
    pool.on_available = lambda: reported.append("available")
    held = take(pool, 2)
    assert not pool.is_available
    assert pool.try_acquire() is None, "it is for those who ask for it"
    for _ in range(2):
        segment = pool.try_acquire(overdraft=True)
        assert segment is not None
        held.append(segment)
    assert not pool.is_available
    assert pool.statistics().overdraft == 2
    assert pool.statistics().usage == 4 / 2
    assert pool.try_acquire(overdraft=True) is None
    for expected_overdraft in (1, 0):
        pool.recycle(held.pop())
        assert pool.statistics().overdraft == expected_overdraft
        assert pool.statistics().available == 0  # it went to the network pool
        assert not pool.is_available
    assert reported == []
    pool.recycle(held.pop())
    assert pool.is_available
    assert reported == ["available"]


@pytest.mark.parametrize("count", range(8))
def test_can_acquire_says_what_try_acquire_will_do(count: int) -> None:
    network = NetworkBufferPool(6, SIZE)
    network.take_unpooled(1)
    pool = network.create_pool(1, 3, max_overdraft=5)
    promised = pool.can_acquire(count)
    assert promised == (count <= 5)
    taken = [pool.try_acquire(overdraft=True) for _ in range(count)]
    assert (None not in taken) == promised


@pytest.mark.parametrize("count", range(1, 8))
def test_what_is_at_hand_is_not_promised_when_the_pool_has_to_shrink_first(count: int) -> None:
    network = NetworkBufferPool(23, SIZE)
    pool = network.create_pool(1, 8, max_overdraft=2)
    take(pool, 6)
    network.create_pool(8, 20)  # from now on the first one's share is smaller, and nobody has looked
    promised = pool.can_acquire(count)
    taken = [pool.try_acquire(overdraft=True) for _ in range(count)]
    assert (None not in taken) == promised


# Shrinking and growing.


def test_a_surplus_in_use_is_overdraft_and_returns_when_recycled() -> None:
    network = NetworkBufferPool(6, SIZE)
    pool = network.create_pool(1, 6)
    held = take(pool, 5)
    pool.set_size(2)
    statistics = pool.statistics()
    assert (statistics.requested, statistics.available, statistics.overdraft) == (5, 0, 3)
    for segment in held[:3]:
        pool.recycle(segment)
        assert not pool.is_available
    assert network.statistics().free_segments == 4
    pool.recycle(held[3])
    assert pool.is_available
    pool.set_size(4)
    assert pool.size == 4
    pool.set_size(100)
    assert pool.size == 6
    with pytest.raises(LocalProtocolError, match="1 guaranteed segments cannot shrink to 0"):
        pool.set_size(0)


def test_growing_tells_whoever_waits() -> None:
    network = NetworkBufferPool(6, SIZE)
    pool = network.create_pool(1, 6)
    network.settle()
    pool.set_size(2)
    take(pool, 2)
    log: list[str] = []
    pool.on_available = lambda: log.append("available")
    listener = Listener("a", log, wanted=1)
    assert pool.add_listener(listener)
    pool.set_size(4)
    assert "a" in log
    assert "available" in log
    assert len(listener.got) == 1
    assert pool.is_available


# Listeners.


def test_listeners_are_served_in_order_and_may_refuse() -> None:
    pool = NetworkBufferPool(3, SIZE).create_pool(3, 3)
    held = take(pool, 3)
    log: list[str] = []
    for listener in (Listener("a", log), Listener("b", log, wanted=0), Listener("c", log)):
        assert pool.add_listener(listener)
    for segment in held:
        pool.recycle(segment)
    assert log == ["a", "b refuses", "c"]
    assert pool.statistics().available == 1
    assert not pool.add_listener(Listener("d", log))  # one is at hand: take it


def test_a_listener_that_wants_more_goes_to_the_back() -> None:
    pool = NetworkBufferPool(3, SIZE).create_pool(3, 3)
    held = take(pool, 3)
    log: list[str] = []
    listeners = [Listener(name, log, wanted=2, pool=pool) for name in "abc"]
    for listener in listeners:
        pool.add_listener(listener)
    for segment in held:
        pool.recycle(segment)
    assert log == ["a", "b", "c"]
    assert [len(listener.got) for listener in listeners] == [1, 1, 1]
    assert pool.statistics().waiting_listeners == 3


def test_a_listener_is_served_when_another_pool_gives_back() -> None:
    network = NetworkBufferPool(4, SIZE)
    greedy = network.create_pool(1, 4)
    held = take(greedy, 4)
    gate = network.create_pool(1, 2)
    log: list[str] = []
    listener = Listener("a", log)
    assert gate.try_acquire() is None
    assert gate.add_listener(listener)
    greedy.recycle(held[0])
    assert log == ["a"]
    assert len(listener.got) == 1


def test_what_a_listener_refuses_stays_at_hand() -> None:
    network = NetworkBufferPool(2, SIZE)
    greedy = network.create_pool(1, 2)
    held = take(greedy, 2)
    gate = network.create_pool(1, 1)
    log: list[str] = []
    assert gate.add_listener(Listener("a", log, wanted=0))
    greedy.recycle(held[0])
    assert log == ["a refuses"]
    assert gate.statistics().available == 1
    assert gate.try_acquire() is not None


# The end.


def test_destroy_wakes_everybody_and_segments_return_one_by_one() -> None:
    network = NetworkBufferPool(4, SIZE)
    pool = network.create_pool(2, 3, subpartitions=1, max_buffers_per_channel=5)
    held = take(pool, 3, 0)
    log: list[str] = []
    pool.add_listener(Listener("a", log))
    pool.on_available = lambda: log.append("available")
    pool.destroy()
    pool.destroy()
    assert log == ["a destroyed", "available"]
    assert pool.is_available  # so that waiters look
    assert not pool.can_acquire(1)
    with pytest.raises(PoolDestroyed, match="its partition or gate is closed"):
        pool.try_acquire(0)
    assert not pool.add_listener(Listener("b", log))
    assert network.statistics().required_segments == 0
    for count, segment in enumerate(held, 1):
        pool.recycle(segment, 0)
        assert network.statistics().free_segments == 1 + count
    assert pool.statistics().requested == 0
