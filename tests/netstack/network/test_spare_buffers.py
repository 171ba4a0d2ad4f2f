"""A gate has spare floating buffers while its reader waits for data, and only then."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import trio
import trio.testing

from netstack import ArrayReader, ChannelDescriptor, NetworkConfig, NetworkEnvironment, RecordWriter, open_network
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.credit.spare import FAST, FAST_S, FEWEST, REVIEW_BUFFERS, SpareBuffers
from netstack.exchange.inbound.gate import SingleInputGate

SEGMENT = 256
USUAL, SPARE = 3, 9
CONFIG = NetworkConfig(
    segment_size_bytes=SEGMENT,
    memory_bytes=200 * SEGMENT,
    exclusive_buffers_per_channel=1,
    floating_buffers_per_gate=USUAL,
    spare_floating_buffers_per_gate=SPARE,
    heartbeat_interval_s=None,
)


def test_a_reader_that_waits_gets_more_and_one_that_does_not_gives_them_back() -> None:
    network = NetworkBufferPool(20, SEGMENT)
    pool = network.create_pool(1, USUAL)
    spare = SpareBuffers(pool, SPARE, now=lambda: 0.0, round_trip_s=lambda: 0.0)
    spare.review(0)
    assert pool.size == USUAL, "it has not waited"
    spare.review(1)
    assert pool.size == USUAL + SPARE
    held = [pool.try_acquire() for _ in range(USUAL + SPARE)]
    assert None not in held
    spare.review(1)
    assert pool.size == USUAL
    assert pool.statistics().requested == USUAL + SPARE, "what is in use comes back when it was consumed"
    for segment in held:
        assert segment is not None
        pool.recycle(segment)
    assert pool.statistics().requested == USUAL
    pool.destroy()
    assert network.free_segments == 20
    network.destroy()


def test_a_fast_reader_gets_what_it_reads_in_a_moment_and_a_slow_one_the_fewest() -> None:
    network = NetworkBufferPool(1000, SEGMENT)
    pool = network.create_pool(1, USUAL)
    now = 0.0
    spare = SpareBuffers(pool, 500, now=lambda: now, round_trip_s=lambda: 0.0)
    spare.review(0)
    half = FAST // 2  # it shrinks by half at most
    read = [(1000.0, FAST), (FAST, FAST), (40.5, half), (40.5, 40), (FEWEST - 2, FEWEST)]
    for waits, (buffers, expected) in enumerate(read, 1):
        now += REVIEW_BUFFERS * FAST_S / buffers
        spare.review(waits)
        assert spare.spare == pytest.approx(expected, abs=1)
    pool.destroy()
    network.destroy()


def test_a_quarter_of_the_memory_is_left_to_others() -> None:
    network = NetworkBufferPool(20, SEGMENT)
    pool = network.create_pool(1, USUAL)
    spare = SpareBuffers(pool, SPARE, now=lambda: 0.0, round_trip_s=lambda: 0.0)
    taken = network.take_unpooled(14)
    spare.review(1)
    assert pool.size == 6, "all that others have not"
    taken += network.take_unpooled(1)
    spare.review(2)
    assert pool.size == USUAL
    pool.destroy()
    network.recycle_unpooled(taken)
    network.destroy()


def maximum_of(gate: SingleInputGate) -> int | None:
    assert gate._engine.pool is not None
    return gate._engine.pool.statistics().maximum


@pytest.mark.parametrize("spare", [0, SPARE])
async def test_they_follow_who_holds_the_stream_up(spare: int) -> None:
    async def produce(manager: NetworkEnvironment) -> None:
        partition = manager.create_partition("numbers", subpartitions=1)
        writer = RecordWriter(partition, format="int64")
        for first in range(0, 40_000, 100):
            await writer.emit_batch(np.arange(first, first + 100))
            await trio.lowlevel.checkpoint()
        await writer.finish()
        await writer.wait_consumed()

    config = dataclasses.replace(CONFIG, spare_floating_buffers_per_gate=spare)
    async with (
        open_network("memory://spare-producer", config) as producer,
        open_network("memory://spare-consumer", config) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(produce, producer)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "numbers")])
        assert maximum_of(gate) == USUAL
        reader = ArrayReader(gate, "<i8")
        seen = 0

        def buffers() -> int:
            return gate.statistics().channels[0].polled_buffers

        while buffers() < 4 * REVIEW_BUFFERS:  # as fast as it goes: the reader waits again and again
            array = await anext(reader)
            assert array[0] == seen
            seen += len(array)
        assert maximum_of(gate) == USUAL + spare
        until = buffers() + 3 * REVIEW_BUFFERS
        while buffers() < until:  # there is always something: the reader holds the stream up
            await trio.testing.wait_all_tasks_blocked()
            array = await anext(reader)
            seen += len(array)
        assert maximum_of(gate) == USUAL
        async for array in reader:
            seen += len(array)
        assert seen == 40_000
