"""A producer with several connections: a TaskManager for each, all in one process and one event loop.

Record `i` goes to channel `i % channels`; channel `c` is subpartition `c // connections` of connection `c %
connections`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import numpy as np
import trio

from netstack import RecordWriter, open_network

from .endpoints import PARTITION, address_of, config_of
from .source import Source
from .spec import RunSpec
from .worker_io import Facts, ProducerIo


async def produce_spread(spec: RunSpec, io: ProducerIo) -> Facts:
    """Writes until the run ends, then waits until the consumer has read everything."""
    count = spec.connections
    async with AsyncExitStack() as stack:
        managers = [
            await stack.enter_async_context(
                open_network(address_of(spec, io.scratch / f"netstack-{number}.sock"), config_of(spec))
            )
            for number in range(count)
        ]
        partitions = [manager.create_partition(PARTITION, subpartitions=spec.channels // count) for manager in managers]
        writers = [
            RecordWriter(partition, format="bytes", buffer_timeout_s=spec.buffer_timeout_s) for partition in partitions
        ]
        io.publish(" ".join(manager.address for manager in managers))
        await io.ready_async()
        await _emit(spec, io, writers)
        for writer in writers:
            await writer.finish()
        for writer in writers:
            await writer.wait_consumed()
        return Facts(
            buffers=sum(partition.statistics().buffers for partition in partitions),
            wire_bytes=sum(manager.statistics().bytes_sent for manager in managers),
        )


async def _emit(spec: RunSpec, io: ProducerIo, writers: list[RecordWriter]) -> None:
    source = io.source
    assert isinstance(source, Source)
    count = len(writers)
    while (span := await io.next_span_async()) is not None:
        first = span[0]
        if spec.emit == "batch":
            array = source.array(*span)
            for number, writer in enumerate(writers):
                mine = array[(number - first) % count :: count]
                if len(mine):
                    await writer.emit_batch(np.ascontiguousarray(mine))
            continue
        for index, record in enumerate(source.records(*span), first):
            writer = writers[index % count]
            try:
                writer.emit_nowait(record)
            except trio.WouldBlock:
                await writer.emit(record)
        await trio.lowlevel.checkpoint()
