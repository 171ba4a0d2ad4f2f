"""Prompt channels: a connection of their own, which bulk does not hold up, and whose end is its own."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import trio
from cutting import cut_lines
from network.network_environments import assert_nothing_left, settle, url
from trio.testing import MockClock

from netstack.base.config import KIB, NetworkConfig
from netstack.base.errors import ConnectionLost
from netstack.base.ids import ChannelDescriptor
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

CONFIG = NetworkConfig(segment_size_bytes=KIB, memory_bytes=256 * KIB, heartbeat_interval_s=None)
DELAY_S = 0.005
RATE_BYTES_PER_S = 256 * KIB
SPARSE = 60
numbers = itertools.count()


def channels_by_class(manager: NetworkEnvironment) -> dict[bool, int]:
    return {each.connection.is_prompt: each.channels for each in manager.connections()}


async def test_the_prompt_channels_of_all_gates_share_a_connection_beside_that_of_all_others(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    gates = []
    for name in ("a", "b"):
        producer.create_partition(name, subpartitions=3)
        wanted = [ChannelDescriptor(producer.address, name, index, is_prompt=index == 1) for index in range(3)]
        gates.append(await consumer.open_gate(wanted))
    await settle()
    for manager in (producer, consumer):
        assert channels_by_class(manager) == {False: 4, True: 2}
        assert (manager.statistics().connections, manager.statistics().prompt_connections) == (2, 1)
    for gate in gates:
        gate.close()
    await settle()
    assert_nothing_left(consumer)
    assert producer.connections() == ()


async def test_acting_as_flink_there_is_one_connection(autojump_clock: MockClock, producer: NetworkEnvironment) -> None:
    config = NetworkConfig.flink(segment_size_bytes=KIB, memory_bytes=256 * KIB)
    async with open_network(url(), config) as consumer:
        producer.create_partition("p", subpartitions=2)
        wanted = [ChannelDescriptor(producer.address, "p", index, is_prompt=index == 1) for index in range(2)]
        gate = await consumer.open_gate(wanted)
        assert channels_by_class(consumer) == {False: 2}
        gate.close()


async def test_a_connection_leaves_with_the_last_channel_of_its_class(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    """And the next channel of the class dials it again, while the other one goes on."""
    producer.create_partition("bulk", subpartitions=1)
    bulk = await consumer.open_gate([ChannelDescriptor(producer.address, "bulk")])
    for name in ("first", "second"):
        writer = RecordWriter(producer.create_partition(name, subpartitions=1))
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, name, is_prompt=True)])
        assert channels_by_class(consumer) == {False: 1, True: 1}
        await writer.emit(b"x")
        await writer.finish()
        assert [record async for record in RecordReader(gate)] == [b"x"]
        gate.close()
        await settle()
        assert channels_by_class(consumer) == channels_by_class(producer) == {False: 1}
    bulk.close()


async def ages(is_prompt: bool) -> list[float]:
    """How long the records of a sparse edge take beside one that always has more, over a slow line."""
    line = f"delay={DELAY_S:g}s&rate={RATE_BYTES_PER_S}"
    actual: list[float] = []
    async with (
        open_network(f"impaired+memory://prompt-{next(numbers)}?{line}", CONFIG) as producer,
        open_network(url(), CONFIG) as consumer,
        trio.open_nursery() as nursery,
    ):
        bulk = RecordWriter(producer.create_partition("bulk", subpartitions=1), buffer_timeout_s=None)
        few = RecordWriter(producer.create_partition("few", subpartitions=1), format="float64", buffer_timeout_s=0)
        bulk_gate = await consumer.open_gate([ChannelDescriptor(producer.address, "bulk")])
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "few", is_prompt=is_prompt)])

        async def write_without_end() -> None:
            while True:
                await bulk.emit(b"." * 400)

        async def read_without_end() -> None:
            async for _ in RecordReader(bulk_gate):
                pass

        async def write_few() -> None:
            for _ in range(SPARSE):
                await trio.sleep(0.1)
                await few.emit(trio.current_time())
            await few.finish()

        nursery.start_soon(write_without_end)
        nursery.start_soon(read_without_end)
        nursery.start_soon(write_few)
        reader = RecordReader(gate, format="float64")
        async for made_at in reader:
            actual.append(trio.current_time() - made_at)
        nursery.cancel_scope.cancel()
    assert len(actual) == SPARSE
    return actual[SPARSE // 3 :]  # until what may be under way is under way


async def test_a_sparse_edge_waits_for_bulk_on_one_connection_and_not_on_its_own(autojump_clock: MockClock) -> None:
    shared, own = await ages(is_prompt=False), await ages(is_prompt=True)
    assert min(shared) > 4 * DELAY_S  # buffers of the other channel are before it on the line
    assert max(own) < DELAY_S + 0.002  # the line looks at its bytes every millisecond
    assert max(own) >= DELAY_S


@pytest.mark.parametrize("lost_is_prompt", [False, True])
async def test_what_breaks_one_of_them_leaves_the_other(autojump_clock: MockClock, lost_is_prompt: bool) -> None:
    config = replace(CONFIG, connect_retry_s=0.0)
    with cut_lines() as lines:
        async with (
            open_network(f"cut+memory://prompt-{next(numbers)}", config) as producer,
            open_network(url(), config) as consumer,
        ):
            readers, writers = {}, {}
            for is_prompt in (False, True):  # the order in which lines are dialled
                name = f"prompt-{is_prompt}"
                writers[is_prompt] = RecordWriter(producer.create_partition(name, subpartitions=1))
                wanted = ChannelDescriptor(producer.address, name, is_prompt=is_prompt)
                readers[is_prompt] = RecordReader(await consumer.open_gate([wanted]))
            lines.streams[lost_is_prompt].cut()
            with pytest.raises(ConnectionLost):
                await readers[lost_is_prompt].__anext__()
            await writers[not lost_is_prompt].emit(b"still there")
            assert await readers[not lost_is_prompt].__anext__() == b"still there"
            assert channels_by_class(consumer) == {not lost_is_prompt: 1}
