"""Spare floating buffers: taken while nobody else needs them, given back when somebody does."""

from __future__ import annotations

from hypothesis import given, strategies as st

from netstack.base.config import NetworkConfig
from netstack.base.ids import ResultPartitionType
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.buffer.requirements import gate_buffers, partition_buffers
from netstack.exchange.buffer.segment import Segment

SIZE = 256


@given(channels=st.integers(1, 50), spare=st.integers(0, 100))
def test_nobody_is_promised_more(channels: int, spare: int) -> None:
    plain = NetworkConfig(spare_floating_buffers_per_gate=0)
    more = NetworkConfig(spare_floating_buffers_per_gate=spare)
    assert gate_buffers(channels, more) == gate_buffers(channels, plain)
    kind = ResultPartitionType.PIPELINED_BOUNDED
    assert partition_buffers(kind, channels, more) == partition_buffers(kind, channels, plain), "only who reads"


@given(total=st.integers(20, 80), spare=st.integers(1, 60), others=st.lists(st.integers(1, 6), max_size=4))
def test_spare_buffers_go_back_when_others_need_them(total: int, spare: int, others: list[int]) -> None:
    buffers = gate_buffers(1, NetworkConfig())
    network = NetworkBufferPool(total, SIZE)
    gate = network.create_pool(buffers.pool_required, buffers.pool_maximum)
    gate.set_maximum(buffers.pool_maximum + spare)
    held: list[Segment] = []
    while (segment := gate.try_acquire()) is not None:
        held.append(segment)
    assert len(held) == min(buffers.pool_maximum + spare, total), "all that was idle"
    pools = [network.create_pool(required, required) for required in others]
    taken: list[list[Segment]] = [[] for _ in pools]
    for _ in range(total):  # the gate's consumer recycles one, and sends for another
        if held:
            gate.recycle(held.pop(0))
        for pool, mine in zip(pools, taken, strict=True):
            while len(mine) < pool.required and (segment := pool.try_acquire()) is not None:
                mine.append(segment)
        if (segment := gate.try_acquire()) is not None:
            held.append(segment)
    assert [len(mine) for mine in taken] == others, "what was promised is there"
    for pool, mine in zip(pools, taken, strict=True):
        for segment in mine:
            pool.recycle(segment)
    for segment in held:
        gate.recycle(segment)
    for pool in (*pools, gate):
        pool.destroy()
    assert network.free_segments == total
    network.destroy()
