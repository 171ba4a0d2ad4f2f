"""Long records are received in the memory that their reader returns, from the wire to the reader's hands."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest
import trio
from network.network_environments import channels, url

from netstack import ArrayReader, NetworkConfig, RecordReader, RecordWriter, open_network
from netstack.exchange.inbound.channel import RemoteInputChannel

PARTITION = "d0" * 16 + "00000000" + "e0" * 16 + "f0" * 16 + "0000000000000000"  # a name of Flink's
SEGMENT = 1024
WIDTH = 40 * SEGMENT + 3
RECORDS = 30
CONFIG = NetworkConfig(segment_size_bytes=SEGMENT, memory_bytes=200 * SEGMENT, heartbeat_interval_s=None)


class Lender:
    """The channel of a reader, which counts what is lent."""

    def __init__(self, channel: RemoteInputChannel) -> None:
        self.channel = channel
        self.lent = 0

    def place_next(self, memory: memoryview) -> None:
        self.lent += len(memory)
        self.channel.place_next(memory)


@pytest.mark.parametrize("dialect", ["netstack", "flink-2.3.0"])
@pytest.mark.parametrize("as_arrays", [False, True])
@pytest.mark.parametrize("count", [1, 2])
async def test_long_records_arrive_unchanged(dialect: str, as_arrays: bool, count: int) -> None:
    config = dataclasses.replace(CONFIG, dialect=dialect)
    rows = np.random.default_rng(7).integers(0, 256, (RECORDS, WIDTH), np.uint8)
    got: list[Any] = []
    async with open_network(url(), config) as producer, open_network(url(), config) as consumer:
        partition = producer.create_partition(PARTITION, subpartitions=count)

        async def write() -> None:
            async with RecordWriter(partition, format="bytes") as writer:
                for row in rows:
                    await writer.emit(row.tobytes())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            gate = await consumer.open_gate(channels(producer, PARTITION, count))
            reader: Any = ArrayReader(gate, record_bytes=WIDTH) if as_arrays else RecordReader(gate)
            lender = None
            if count == 1:
                assert reader._only_channel._link.place is not None
                lender = reader._only_channel = Lender(reader._only_channel)
            with contextlib.closing(reader):
                async for each in reader:
                    got += [bytes(row) for row in each] if as_arrays else [each]
        assert lender is None or lender.lent > RECORDS * WIDTH // 4
    assert sorted(got) == sorted(row.tobytes() for row in rows)
    if count == 1:
        assert got == [row.tobytes() for row in rows]
