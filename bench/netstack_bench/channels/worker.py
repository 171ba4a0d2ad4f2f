"""The two TaskManagers of `channels`: one partition, one gate, a channel from each subpartition.

Frames are handled in order, so a record that waited in the last subpartition reaches the consumer only when every
earlier channel is open at the producer. Both sides are idle over the same stretch of time.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from typing import Any, Final

import trio

from netstack import ChannelDescriptor, CustomSelector, InputGate, RecordReader, RecordWriter, open_network

from ..pacing import clock_ns
from ..places.local.pair_io import PairIo, serve
from .spec import ChannelsSpec

_PARTITION: Final = "idle"
_ADDRESS: Final = "tcp://127.0.0.1:0"
_PROBLEMS_IN_WORDS: Final = 5


class Memory:
    """Growth of the memory of Python objects since creation; network buffers exist before."""

    def __init__(self, *, traced: bool) -> None:
        self._traced = traced
        if traced:
            tracemalloc.start()
        self._before = self._held()

    def grown_bytes(self) -> int | None:
        """The growth; None if memory is not traced."""
        return self._held() - self._before if self._traced else None

    def _held(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] if self._traced else 0


class Roll:
    """Counts the records of each channel; each record is its channel's number.

    The last channel gets two records: the first showed that all channels were open.
    """

    def __init__(self, channels: int) -> None:
        self._counts = [0] * channels
        self._strays: list[str] = []
        self.records = 0

    def take(self, channel: int, number: int) -> None:
        """Counts a record."""
        self.records += 1
        self._counts[channel] += 1
        if number != channel and len(self._strays) < _PROBLEMS_IN_WORDS:
            self._strays.append(f"the record of channel {number} arrived on channel {channel}")

    def problems(self) -> list[str]:
        """Channels with a wrong number of records, or with foreign records."""
        last = len(self._counts) - 1
        wrong = [
            f"{count} records arrived on channel {channel}, {1 + (channel == last)} were sent"
            for channel, count in enumerate(self._counts)
            if count != 1 + (channel == last)
        ]
        more = len(wrong) - _PROBLEMS_IN_WORDS
        return [*self._strays, *wrong[:_PROBLEMS_IN_WORDS], *([f"and {more} more channels"] if more > 0 else [])]


async def produce(io: PairIo) -> dict[str, Any]:
    """Waits until the channels are open and idle, then sends a record through each."""
    spec, traced = _job(io)
    async with open_network(_ADDRESS, spec.network()) as manager:
        memory = Memory(traced=traced)
        partition = manager.create_partition(_PARTITION, subpartitions=spec.channels)
        writer = RecordWriter(partition, selector=CustomSelector(_own_channel), format="int64", buffer_timeout_s=0)
        await writer.emit(spec.channels - 1)
        io.publish(manager.address)
        await io.ready()
        start_ns = await io.ready()
        grown_bytes = memory.grown_bytes()
        idle_cpu_ms_per_s = await _idle(spec, start_ns)
        accepted = manager.statistics().accepted
        for channel in range(spec.channels):
            await writer.emit(channel)
        await writer.finish()
        await writer.wait_consumed()
    return {
        "connections": len(accepted),
        "open_channels": sum(len(each.channels) for each in accepted),
        "grown_bytes": grown_bytes,
        "idle_cpu_ms_per_s": idle_cpu_ms_per_s,
    }


async def consume(io: PairIo) -> dict[str, Any]:
    """Opens the channels, stays idle, then reads a record from each."""
    spec, traced = _job(io)
    roll = Roll(spec.channels)
    async with open_network(_ADDRESS, spec.network()) as manager:
        address = await io.peer_address()
        io.watch(lambda: roll.records)
        await io.ready()
        descriptors = [ChannelDescriptor(address, _PARTITION, number) for number in range(spec.channels)]
        memory = Memory(traced=traced)
        began_ns = clock_ns()
        gate = await manager.open_gate(descriptors)
        await _first_arrival(gate)
        open_s = (clock_ns() - began_ns) / 1e9
        reader = RecordReader(gate, format="int64")
        number = await anext(reader)
        roll.take(reader.channel_index, number)
        start_ns = await io.ready()
        grown_bytes = memory.grown_bytes()
        idle_cpu_ms_per_s = await _idle(spec, start_ns)
        async for number in reader:
            roll.take(reader.channel_index, number)
        gate.close()
    return {
        "open_s": open_s,
        "grown_bytes": grown_bytes,
        "idle_cpu_ms_per_s": idle_cpu_ms_per_s,
        "problems": roll.problems(),
    }


async def _first_arrival(gate: InputGate) -> None:
    arrived = trio.Event()
    gate._engine.on_available = arrived.set
    if not gate._engine.is_available:
        await arrived.wait()
    gate._engine.on_available = None  # the reader sets its own


async def _idle(spec: ChannelsSpec, start_ns: int) -> float:
    """Sleeps, and returns the CPU time that this thread used meanwhile, in ms per second.

    It is the only thread that netstack uses; the process's other thread sends heartbeats to the runner.
    """
    await trio.sleep(max(0, start_ns - clock_ns()) / 1e9)
    cpu_s, began_ns = time.thread_time(), clock_ns()
    await trio.sleep(spec.idle_seconds)
    return (time.thread_time() - cpu_s) * 1000 / ((clock_ns() - began_ns) / 1e9)


def _own_channel(record: Any, channels: int) -> int:
    return int(record)


def _job(io: PairIo) -> tuple[ChannelsSpec, bool]:
    return ChannelsSpec.from_dict(io.settings["spec"]), bool(io.settings["traced"])


if __name__ == "__main__":
    sys.exit(serve(produce, consume))
