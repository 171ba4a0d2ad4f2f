"""The end of data and barriers between two TaskManagers: what they wait for, and who hears of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from network.network_environments import channels, settle
from trio.testing import MockClock

from netstack.base.errors import (
    ChannelFailed,
)
from netstack.base.events import Alignment, CheckpointBarrier, UserEvent
from netstack.network.environment import NetworkEnvironment
from netstack.network.reader import ArrayReader, RecordReader
from netstack.network.writer import RecordWriter

# The end of data.


@pytest.mark.parametrize("local", [True, False])
async def test_consumed_means_that_the_consumer_has_processed_every_record(
    autojump_clock: MockClock,
    local: bool,
    producer: NetworkEnvironment,
    consumer: NetworkEnvironment,
) -> None:
    writer = RecordWriter(producer.create_partition("p", subpartitions=1))
    gate = await (producer if local else consumer).open_gate(channels(producer))
    await writer.emit(b"a")
    await writer.finish()
    consumed = trio.Event()

    async def wait() -> None:
        await writer.wait_consumed()
        consumed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        reader = RecordReader(gate)
        assert await reader.__anext__() == b"a"
        await settle()
        assert not consumed.is_set()  # it works on the record
        with pytest.raises(StopAsyncIteration):
            await reader.__anext__()
        await consumed.wait()
    assert gate.ended_with_drain is True
    gate.close()


async def test_a_stop_without_drain_is_told(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    writer = RecordWriter(producer.create_partition("p", subpartitions=1))
    gate = await consumer.open_gate(channels(producer))
    await writer.finish(drain=False)
    assert [record async for record in RecordReader(gate)] == []
    assert gate.ended_with_drain is False
    gate.close()


# Barriers.


@pytest.mark.parametrize("local", [True, False])
async def test_an_aligned_barrier_blocks_its_channel_until_the_next_element_is_asked_for(
    autojump_clock: MockClock,
    local: bool,
    producer: NetworkEnvironment,
    consumer: NetworkEnvironment,
) -> None:
    partition = producer.create_partition("p", subpartitions=1)
    writer = RecordWriter(partition, buffer_timeout_s=0)
    gate = await (producer if local else consumer).open_gate(channels(producer))
    reader = RecordReader(gate)
    await writer.emit(b"before")
    await writer.broadcast_event(CheckpointBarrier(7, alignment=Alignment.ALIGNED))
    await writer.emit(b"after")
    assert await reader.__anext__() == b"before"
    assert await reader.__anext__() == CheckpointBarrier(7, alignment=Alignment.ALIGNED)
    await settle()
    gate._engine.read_connections()
    assert partition.statistics().subpartitions[0].is_blocked
    assert gate._engine.poll() is None
    assert await reader.__anext__() == b"after"
    assert not partition.statistics().subpartitions[0].is_blocked
    gate.close()


async def test_an_unaligned_barrier_overtakes_what_waits_at_the_producer(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    writer = RecordWriter(producer.create_partition("p", subpartitions=1), buffer_timeout_s=None)
    gate = await consumer.open_gate(channels(producer))
    for _ in range(8):
        await writer.emit(bytes(1020))
    barrier = CheckpointBarrier(7, alignment=Alignment.UNALIGNED)
    await writer.broadcast_event(barrier)
    await writer.finish()
    elements = [element async for element in RecordReader(gate)]
    assert elements.count(bytes(1020)) == 8
    assert elements.index(barrier) < 8
    gate.close()


async def test_a_resume_out_of_turn_fails_that_channel_and_no_other(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    partition = producer.create_partition("p", subpartitions=2)
    writer = RecordWriter(partition, buffer_timeout_s=0)
    gate = await consumer.open_gate(channels(producer, count=2))
    await settle()
    gate._engine.resume(0)
    reader = RecordReader(gate)
    with pytest.raises(ChannelFailed, match="not blocked"):
        await reader.__anext__()
    await writer.emit(b"to nobody")
    await writer.emit(b"to the other")
    assert await reader.__anext__() == b"to the other"
    gate.close()


async def test_arrays_and_their_events(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    writer = RecordWriter(producer.create_partition("p", subpartitions=2), format="int64")
    gate = await consumer.open_gate(channels(producer, count=2))
    values = np.arange(5000, dtype="<i8")
    parts: list[list[Any]] = [[], []]

    async def read() -> None:
        reader = ArrayReader(gate, "<i8")
        async for array in reader:
            parts[reader.channel_index].append(array)
        assert sorted(channel for channel, _ in reader.events) == [0, 1]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await writer.emit_batch(values[:3000])
        await writer.broadcast_event(UserEvent("half"))
        await writer.emit_batch(values[3000:])
        await writer.finish()
    for index in (0, 1):
        assert np.concatenate(parts[index]).tolist() == values[index::2].tolist()
    gate.close()
