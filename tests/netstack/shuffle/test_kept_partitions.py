"""Partitions kept in files, from a writer to gates, over real sockets and files."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from trio.testing import trio_test

from netstack import ChannelDescriptor, NetworkConfig, RecordReader, RecordWriter, open_task_manager
from netstack.ids import ResultPartitionType

BLOCKING = ResultPartitionType.BLOCKING


def settings(folder: Path, **more: Any) -> NetworkConfig:
    return NetworkConfig(**({"shuffle_directory": str(folder), "segment_size_bytes": 4096} | more))


async def read_all(manager: Any, channels: list[ChannelDescriptor]) -> dict[int, list[bytes]]:
    gate = await manager.open_gate(channels)
    reader = RecordReader(gate)
    found: dict[int, list[bytes]] = defaultdict(list)
    try:
        async for record in reader:
            found[reader.channel_index].append(record)
    finally:
        reader.close()
    return found


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("subpartitions", [1, 3, 4, 300])
@trio_test
async def test_is_written_sealed_and_read_by_any_number(tmp_path: Path, subpartitions: int, is_local: bool) -> None:
    config = settings(tmp_path, sort_buffer_bytes=256 * 1024)
    async with (
        open_task_manager("tcp://127.0.0.1:0", config) as producer,
        open_task_manager("tcp://127.0.0.1:0", config) as other,
    ):
        partition = producer.create_partition("p", subpartitions=subpartitions, kind=BLOCKING)
        writer = RecordWriter(partition, selector=None)
        records = [b"%06d" % index * (1 + index % 7) for index in range(6_000)]
        for record in records:
            await writer.emit(record)
        await writer.finish()
        assert partition.statistics().is_sealed
        consumer = producer if is_local else other
        channels = [ChannelDescriptor(producer.address, "p", index) for index in range(subpartitions)]
        for _ in range(2):
            found = await read_all(consumer, channels)
            for index in range(subpartitions):
                assert found[index] == records[index::subpartitions]
        assert sum(partition.bytes_per_subpartition) == sum(map(len, records)) + 4 * len(records)
        producer.release_partition("p")
    assert os.listdir(tmp_path) == []
