"""What is not done: no look at a socket that has nothing, no credit frame for every record of a slow stream."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from netstack import ChannelDescriptor, NetworkConfig, RecordReader, RecordWriter, open_network
from netstack.network.connection.readiness import FEW
from netstack_transports._sockets import SocketStream

CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=1024 * 1024, heartbeat_interval_s=None)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each stream was read from, by its peer."""
    receive = SocketStream.try_receive_into
    counted: Counter[str] = Counter()

    def counting(self: object, windows: Sequence[memoryview]) -> int | None:
        counted[getattr(self, "peer")] += 1  # noqa: B009 - a stream of whatever class
        actual: int | None = receive(self, windows)
        return actual

    monkeypatch.setattr(SocketStream, "try_receive_into", counting)
    return counted


async def test_a_gate_looks_only_at_connections_that_have_something(reads: Counter[str]) -> None:
    count = FEW + 4
    async with contextlib.AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(open_network("tcp://127.0.0.1:0", CONFIG)) for _ in range(count)]
        consumer = await stack.enter_async_context(open_network("tcp://127.0.0.1:0", CONFIG))
        writers = [
            RecordWriter(producer.create_partition("numbers", subpartitions=1), format="int64", buffer_timeout_s=0)
            for producer in producers
        ]
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "numbers") for producer in producers])
        reader = RecordReader[int](gate, format="int64")
        for number, writer in enumerate(writers):  # everybody is heard once
            await writer.emit(number)
        assert sorted([await anext(reader) for _ in writers]) == list(range(count))
        await trio.testing.wait_all_tasks_blocked(0.01)

        reads.clear()
        gate._engine.read_connections()
        assert not reads, "nothing has come"

        for each in (1, 4):
            writers[each].emit_nowait(100 + each)
            producers[each].flush_connections()
        addresses = {producers[each].address for each in (1, 4)}
        reads.clear()
        for _ in range(100_000):  # what was sent may still be on its way through the kernel
            if len(reads) == len(addresses):
                break
            gate._engine.read_connections()
        assert set(reads) == addresses
        assert {await anext(reader), await anext(reader)} == {101, 104}
        gate.close()


async def test_a_slow_stream_is_not_told_of_credit_after_every_record(autojump_clock: trio.testing.MockClock) -> None:
    records = 400
    async with (
        open_network("memory://slow-producer", CONFIG) as producer,
        open_network("memory://slow-consumer", CONFIG) as consumer,
        trio.open_nursery() as nursery,
    ):
        partition = producer.create_partition("numbers", subpartitions=1)
        writer = RecordWriter(partition, format="int64", buffer_timeout_s=0)

        async def produce() -> None:
            for number in range(records):
                await writer.emit(number)
                await trio.sleep(0.001)
            await writer.finish()

        nursery.start_soon(produce)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "numbers")])
        reader = RecordReader[int](gate, format="int64")
        assert [await anext(reader) for _ in range(records)] == list(range(records))
        connection = consumer.statistics().dialled[0].connection
        assert [number async for number in reader] == []
        channel = gate.statistics().channels[0]
        assert channel.buffers >= records, "a buffer for each"
        exclusive = CONFIG.exclusive_buffers_per_channel
        assert channel.announcements <= records // exclusive + 2, "when half of its credit would be news, not before"
        assert connection.sends <= channel.announcements + 6, "and nothing else wakes the producer"
