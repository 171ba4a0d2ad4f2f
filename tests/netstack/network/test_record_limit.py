"""The longest record: a longer one is refused where it is emitted and where it is read, and nothing else is harmed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trio
from network.network_environments import CONFIG, channels, read_all, url
from trio.testing import MockClock

from netstack import NetworkEnvironment, RecordError, RecordReader, RecordWriter, open_network
from netstack.base.ids import ResultPartitionType

MOST = 5000
CONFIG = dataclasses.replace(CONFIG, max_record_bytes=MOST)
REFUSED = rf"a record of {MOST + 1} bytes is longer than max_record_bytes={MOST}: split it, or raise"


async def emit(writer: RecordWriter[Any], record: bytes, how: str) -> None:
    match how:
        case "emit":
            await writer.emit(record)
        case "emit_nowait":
            while True:
                try:
                    writer.emit_nowait(record)
                    return
                except trio.WouldBlock:
                    await trio.sleep(1)
        case "emit_batch":
            await writer.emit_batch(np.frombuffer(record, np.uint8).reshape(1, -1))


@pytest.mark.parametrize("subpartitions", [1, 3])
@pytest.mark.parametrize("how", ["emit", "emit_nowait", "emit_batch"])
async def test_a_longer_record_is_refused_and_the_others_arrive(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment, how: str, subpartitions: int
) -> None:
    partition = producer.create_partition("p", subpartitions=subpartitions)
    gate = await consumer.open_gate(channels(producer, count=subpartitions))
    into: list[list[Any]] = [[] for _ in range(subpartitions)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_all, gate, into)
        async with RecordWriter[Any](partition) as writer:
            await emit(writer, b"before", how)
            with pytest.raises(RecordError, match=REFUSED):
                await emit(writer, bytes(MOST + 1), how)
            await emit(writer, bytes(MOST), how)
    assert sorted(record for channel in into for record in channel) == [bytes(MOST), b"before"]


async def test_an_arrow_batch_is_one_record(autojump_clock: MockClock, producer: NetworkEnvironment) -> None:
    writer = RecordWriter[Any](producer.create_partition("p", subpartitions=1), format="arrow")
    with pytest.raises(RecordError, match=f"max_record_bytes={MOST}"):
        await writer.emit_batch(pa.record_batch({"x": np.zeros(MOST)}))
    await writer.emit_batch(pa.record_batch({"x": np.zeros(10)}))


async def test_of_a_kept_partition_too(autojump_clock: MockClock, producer: NetworkEnvironment) -> None:
    writer = RecordWriter[Any](producer.create_partition("p", subpartitions=1, kind=ResultPartitionType.BLOCKING))
    with pytest.raises(RecordError, match=REFUSED):
        await writer.emit(bytes(MOST + 1))
    writer.partition.release()


@pytest.mark.parametrize("reported", ["by its environment", "itself"])
async def test_a_reader_refuses_what_a_writer_was_allowed(
    autojump_clock: MockClock, producer: NetworkEnvironment, reported: str
) -> None:
    less = dataclasses.replace(CONFIG, max_record_bytes=1024)
    partition = producer.create_partition("p", subpartitions=1)
    writer = RecordWriter[Any](partition)
    async with open_network(url(), less if reported == "by its environment" else CONFIG) as consumer:
        gate = await consumer.open_gate(channels(producer))
        reader = RecordReader[Any](gate, config=less if reported == "itself" else None)
        await writer.emit(bytes(1024))
        await writer.flush()
        assert await reader.__anext__() == bytes(1024)
        await writer.emit(bytes(1025))
        await writer.flush()
        with pytest.raises(RecordError, match=r"record 1 .* 1025 .*=1024"):
            await reader.__anext__()
        gate.close()
    partition.release()
