"""Streams of so many buffers that their numbers begin anew at 2^32: exact, in each dialect and within a process."""

from __future__ import annotations

import itertools

import pytest

from netstack.base.config import NetworkConfig
from netstack.base.ids import ChannelDescriptor
from netstack.network.environment import open_network
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

numbers = itertools.count()
RECORDS = [b"%06d" % number * 30 for number in range(400)]


@pytest.mark.parametrize("before", [1 << 31, 1 << 32])
@pytest.mark.parametrize("kind", ["native", "flink", "local"])
async def test_numbers_of_buffers_begin_anew(kind: str, before: int) -> None:
    dialect = "flink-2.3.0" if kind == "flink" else "netstack"
    config = NetworkConfig(segment_size_bytes=256, memory_bytes=1 << 18, dialect=dialect)
    number = next(numbers)
    name = f"{number:032x}00000000{'e0' * 16}{'f0' * 16}0000000000000000"
    async with (
        open_network(f"memory://long-{number}", config) as producer,
        open_network(f"memory://reads-{number}", config) as other,
    ):
        consumer = producer if kind == "local" else other
        partition = producer.create_partition(name, subpartitions=1)
        writer = RecordWriter(partition, buffer_timeout_s=0)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, name)])
        start = before - len(RECORDS) // 2
        partition._engine.subpartitions[0]._sequence = start
        for channel in gate._engine.channels:
            if hasattr(channel, "_expected_sequence"):
                channel._expected_sequence = start
        reader = RecordReader(gate)
        received = []
        for record in RECORDS:
            await writer.emit(record)
            received.append(await anext(reader))
        await writer.finish()
        received += [record async for record in reader]
        assert received == RECORDS
        assert partition._engine.subpartitions[0].statistics().buffers_sent > before, "they have begun anew"
        reader.close()
