"""How a reader fetches buffers: other tasks have their turn, also when one read brings a run."""

from __future__ import annotations

import pytest
import trio

from netstack.base.ids import ChannelDescriptor
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.network.waiting.gate_waiter import TURN_BUFFERS, GateWaiter
from netstack.network.waiting.parking import TaskParking

SIZE = 16


@pytest.mark.parametrize("run", [1, 2, 16])
async def test_a_reader_that_never_waits_gives_turns_by_buffers_not_by_runs(run: int) -> None:
    network = NetworkBufferPool(40, SIZE)
    pool = network.create_pool(1, 20)
    came = 0

    def read() -> None:
        nonlocal came
        channel.on_landed(came, [0] * run, memoryview(bytes(run * SIZE)))
        came += run

    gate = SingleInputGate(pool, read_connections=read, on_closed=lambda: None)
    channel = RemoteInputChannel(
        gate,
        0,
        ChannelDescriptor("memory://p", "p", 0),
        exclusive=network.take_unpooled(18, "the test"),
        pool=pool,
        network=network,
    )
    gate.add_channel(channel)
    parking = TaskParking()
    turns = 0

    async def checkpoint() -> None:
        nonlocal turns
        turns += 1
        await trio.lowlevel.checkpoint()

    parking.checkpoint = checkpoint
    waiter = GateWaiter(gate, parking)
    while came < 8 * TURN_BUFFERS:
        buffer = waiter.at_hand() or await waiter.next_buffer()
        assert buffer is not None
        assert buffer.buffers == run
        buffer.recycle()
    assert 6 <= turns <= 9
    gate.abandon()
