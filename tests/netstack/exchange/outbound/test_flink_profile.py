"""What `NetworkConfig.flink` changes, between two TaskManagers: framing, overdraft, backlog, spare buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
from exchange.writer_stage import Stage
from trio.testing import MockClock

from netstack import ArrayReader, ChannelDescriptor, NetworkConfig, RecordReader, RecordWriter, open_network
from netstack.base.errors import ConfigError
from netstack.exchange.outbound.selector import CustomSelector

FLINK = NetworkConfig.flink(memory_bytes=100 * 32 * 1024)
RECORDS_IN_A_BUFFER = 32 * 1024 // (4 + 1 + 8 + 8)


LIKE_FLINKS_BUFFERS = NetworkConfig(spare_floating_buffers_per_gate=0)


@pytest.mark.parametrize("config", [FLINK, NetworkConfig.flink("1.x"), LIKE_FLINKS_BUFFERS])
async def test_a_slow_consumer_fills_both_sides_and_no_more(config: NetworkConfig, autojump_clock: MockClock) -> None:
    async with (
        open_network("memory://profile-producer", config) as producer,
        open_network("memory://profile-consumer", config) as consumer,
        trio.open_nursery() as nursery,
    ):
        partition = producer.create_partition("p", subpartitions=1)
        writer = RecordWriter[bytes](partition, buffer_timeout_s=None)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)])

        async def write() -> None:
            while True:
                await writer.emit(b"12345678")

        nursery.start_soon(write)
        for _ in range(60):
            await trio.sleep(0.01)
            if (buffer := gate._engine.poll()) is not None:
                buffer.recycle()
        await trio.sleep(0.1)
        queued, received = partition.statistics(), gate.statistics()
        assert queued.out_pool_usage == 1.0, "no overdraft in ordinary back-pressure"
        assert queued.queued_buffers == 10
        assert received.queued_buffers in (9, 10), "two of its own and eight that float"
        assert received.sender_backlog in (8, 9, 10), "what queues, as it was told last"
        assert received.sender_expected == 0 or config is LIKE_FLINKS_BUFFERS, "Flink has no such announcements"
        nursery.cancel_scope.cancel()


def test_as_many_records_fit_a_buffer_as_of_flinks() -> None:
    stage = Stage(segment_bytes=32 * 1024, as_flink=True)
    for _ in range(4 * RECORDS_IN_A_BUFFER):
        stage.emit(b"12345678")
    assert stage.partition.statistics().buffers == 4 * RECORDS_IN_A_BUFFER * 21 // (32 * 1024)
    assert RECORDS_IN_A_BUFFER == 1560


@pytest.mark.parametrize("how", ["records", "arrays", "numbers"])
async def test_records_have_a_tag_and_a_timestamp(how: str) -> None:
    async with (
        open_network("tcp://127.0.0.1:0", FLINK) as producer,
        open_network("tcp://127.0.0.1:0", FLINK) as consumer,
        trio.open_nursery() as nursery,
    ):
        partition = producer.create_partition("p", subpartitions=2)
        numbers = np.arange(5 * RECORDS_IN_A_BUFFER, dtype="<i8")

        async def write() -> None:
            form = "int64" if how == "numbers" else "bytes"
            async with RecordWriter[Any](partition, format=form, buffer_timeout_s=None) as writer:
                if how == "records":
                    for number in numbers:
                        await writer.emit(number.tobytes())
                else:
                    await writer.emit_batch(numbers if how == "numbers" else numbers.view(np.uint8).reshape(-1, 8))

        nursery.start_soon(write)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", index) for index in range(2)])
        actual: list[int] = []
        if how == "arrays":
            async for array in ArrayReader(gate, "<i8"):
                actual += array.tolist()
        else:
            with RecordReader[Any](gate, format="int64") as reader:
                async for record in reader:
                    actual.append(record)
        assert sorted(actual) == numbers.tolist()
        received = gate.statistics()
        assert sum(channel.bytes for channel in received.channels) == 21 * len(numbers)


def test_its_constants_are_constants() -> None:
    assert (FLINK.max_overdraft_buffers_per_partition, FLINK.debloat_start_buffer_bytes) == (20, 1024)
    with pytest.raises(ConfigError, match="floating_buffers_per_gate=9: it is always 8"):
        NetworkConfig.flink(floating_buffers_per_gate=9)
    with pytest.raises(ConfigError, match=r"give one of 2\.3, 1\.x"):
        NetworkConfig.flink("3")
    older = NetworkConfig.flink("1.x", exclusive_buffers_per_channel=1, max_overdraft_buffers_per_partition=7)
    assert (older.exclusive_buffers_per_channel, older.max_overdraft_buffers_per_partition) == (1, 7)
    assert older.debloat_start_buffer_bytes is None, "Flink 1 began with whole segments"
    assert (
        older.max_buffers_per_channel,
        NetworkConfig.flink("1.x", max_buffers_per_channel=5).max_buffers_per_channel,
    ) == (10, 5)
    assert NetworkConfig.flink(segment_size_bytes=512).debloat_start_buffer_bytes == 512


@pytest.mark.parametrize(("as_flink", "expected"), [(True, -(-2 * 1024 // 21)), (False, 3 * 1024 // 12)])
def test_a_writer_waits_when_its_pool_is_empty_whatever_room_the_open_buffer_has(as_flink: bool, expected: int) -> None:
    """As Flink's, which asks for room before every record; ours fills the buffer first."""
    stage = Stage(buffers=(3, 3), segment_bytes=1024, as_flink=as_flink)
    assert stage.emit_until_full(b"12345678") == expected
    assert stage.pool.statistics().requested == 3
    stage.read()
    assert stage.writer.try_emit(b"12345678")


def test_it_waits_with_every_channel() -> None:
    stage = Stage(
        subpartitions=2,
        selector=CustomSelector(lambda record, count: record[0] % count),
        buffers=(3, 3),
        segment_bytes=1024,
        as_flink=True,
    )
    stage.emit(b"\0 first")
    stage.emit_until_full(b"\1" * 100)
    assert stage.partition.subpartitions[0].has_open_buffer
    assert not stage.writer.try_emit(b"\0 second")
    stage.read(1)
    stage.emit(b"\0 second")
