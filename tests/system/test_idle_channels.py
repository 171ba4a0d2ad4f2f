"""An idle channel is small: what both ends keep of it, on one connection."""

from __future__ import annotations

import gc
import sys
import tracemalloc

from netstack import ChannelDescriptor, NetworkConfig, RecordWriter, build, open_network

CHANNELS = 2000
CONFIG = NetworkConfig(segment_size_bytes=4096, memory_bytes=64 * 1024 * 1024, heartbeat_interval_s=None)


async def test_an_idle_channel_takes_two_and_a_half_kilobytes_of_both_ends_together() -> None:
    """Its empty receive buffers, 2 segments of memory that is not touched, do not count."""
    async with (
        open_network("tcp://127.0.0.1:0", CONFIG) as producer,
        open_network("tcp://127.0.0.1:0", CONFIG) as consumer,
    ):
        kept = []

        async def opened(name: str, count: int) -> None:
            partition = producer.create_partition(name, subpartitions=count)
            channels = [ChannelDescriptor(producer.address, name, subpartition=index) for index in range(count)]
            kept.append((RecordWriter(partition), await consumer.open_gate(channels)))

        await opened("first", 100)  # the connection, and what is made once
        tracemalloc.start()
        try:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            await opened("idle", CHANNELS)
            gc.collect()
            each = (tracemalloc.get_traced_memory()[0] - before) / CHANNELS
        finally:
            tracemalloc.stop()
        is_tight = build.kind == "compiled" and sys.version_info[:2] == (3, 11)  # objects of other builds differ
        assert each < (2_500 if is_tight else 2_900), f"{each:.0f} bytes a channel"
