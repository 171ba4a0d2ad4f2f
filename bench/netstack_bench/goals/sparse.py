"""A sparse edge beside a bulk edge, from one process to another over a line that the bulk edge fills.

Takes: whether the sparse edge is prompt. Gives: percentiles of its records' latency, and the rate of the bulk edge.

A record's latency lasts from when it is due until it is read. Each connection has a whole line for itself
(`netstack_transports.impaired`), as in a network that shares its links fairly among connections: the prompt connection
moves some kilobytes a second, and takes next to nothing from the other.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import trio

from netstack import ChannelDescriptor, NetworkConfig, RecordReader, RecordWriter, open_network

from ..histogram import Histogram
from ..pacing import clock_ns
from ..places.local.pair_io import PairIo, serve
from ..places.local.runner import PhaseLimits, run_pair

LINE: Final = "delay=5ms&rate=12.5MB"
"""100 Mbit/s and 5 ms to the consumer, no delay for credit. Two busy processes fill it on any machine."""

RATE_PER_S: Final = 200
_WARM_UP: Final = 100
"""Records that do not count, because the line is not full yet."""

_BULK: Final = bytes(32 * 1024)
_BULK_RECORDS: Final = 32


def measure_sparse(is_prompt: bool, environment: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """Measures once.

    Raises:
        MeasurementFailed: a process died, fell silent or stalled.
    """
    summaries = run_pair(
        __name__,
        "a sparse edge",
        {"is_prompt": is_prompt, "records": _WARM_UP + max(1, round(RATE_PER_S * seconds))},
        deadlines=PhaseLimits(),
        expected_s=seconds,
        environment=environment,
    )
    return summaries.consumer


async def produce(io: PairIo) -> dict[str, Any]:
    """Emits the sparse records when they are due, and bulk records all the time, until the last sparse one is sent."""
    async with open_network(f"impaired+tcp://127.0.0.1:0?{LINE}", NetworkConfig()) as manager:
        bulk = RecordWriter(manager.create_partition("bulk", subpartitions=1), format="bytes")
        sparse = RecordWriter(manager.create_partition("sparse", subpartitions=1), format="int64", buffer_timeout_s=0.0)
        io.publish(manager.address)
        start_ns = await io.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write_bulk, bulk)
            for number in range(io.settings["records"]):
                due_ns = start_ns + number * 1_000_000_000 // RATE_PER_S
                await trio.sleep(max(0, due_ns - clock_ns()) / 1e9)
                await sparse.emit(due_ns)
            nursery.cancel_scope.cancel()
        for writer in (sparse, bulk):
            await writer.finish()
            await writer.wait_consumed()
    return {}


async def consume(io: PairIo) -> dict[str, Any]:
    """Reads both edges, each through a gate of its own."""
    histogram, taken = Histogram(), [0]
    async with open_network("tcp://127.0.0.1:0", NetworkConfig()) as manager:
        address = await io.peer_address()
        bulk = RecordReader(await manager.open_gate([ChannelDescriptor(address, "bulk")]), format="bytes")
        wanted = ChannelDescriptor(address, "sparse", is_prompt=io.settings["is_prompt"])
        sparse = RecordReader(await manager.open_gate([wanted]), format="int64")
        io.watch(lambda: taken[0])
        start_ns = await io.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_bulk, bulk, taken)
            count = 0
            async for due_ns in sparse:
                if count >= _WARM_UP:
                    histogram.record(clock_ns() - due_ns)
                count += 1
            seconds = (clock_ns() - start_ns) / 1e9
            moved = taken[0] * len(_BULK)
    return {
        "latency_us": histogram.summary_us(),
        "records_per_s": taken[0] / seconds,
        "payload_mb_per_s": moved / seconds / 1e6,
        "delivered": count == io.settings["records"],
        "warnings": [],
    }


async def _write_bulk(writer: RecordWriter) -> None:
    while True:
        for _ in range(_BULK_RECORDS):
            await writer.emit(_BULK)
        await trio.lowlevel.checkpoint()


async def _read_bulk(reader: RecordReader, taken: list[int]) -> None:
    async for _ in reader:
        taken[0] += 1


if __name__ == "__main__":
    sys.exit(serve(produce, consume))
