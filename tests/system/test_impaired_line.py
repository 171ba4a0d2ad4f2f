"""TaskManagers over an impaired line: late and slow but complete, and a cut is an error that leaves nothing behind."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from netstack import (
    ChannelDescriptor,
    ConnectionLost,
    LocalProtocolError,
    NetworkConfig,
    NetworkEnvironment,
    RecordReader,
    RecordWriter,
    open_network,
)
from netstack.network.handles import InputGate
from netstack_transports.impaired import Impairment, impairment

CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=64 * 1024, heartbeat_interval_s=None)

numbers = itertools.count()


def url(query: str = "") -> str:
    return f"impaired+memory://impaired-{next(numbers)}{query and '?'}{query}"


def assert_nothing_left(*managers: NetworkEnvironment) -> None:
    for manager in managers:
        statistics = manager.statistics()
        assert statistics.pool.lent_segments == 0
        assert not any((statistics.partitions, statistics.accepted, statistics.dialled, statistics.gates))


async def test_records_arrive_and_the_heartbeat_measures_the_round_trip(autojump_clock: MockClock) -> None:
    async with (
        open_network(url("delay=50ms&name=heart"), replace(CONFIG, heartbeat_interval_s=2.0)) as producer,
        open_network(url(), replace(CONFIG, heartbeat_interval_s=2.0)) as consumer,
    ):
        partition = producer.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition, format="int64", buffer_timeout_s=0)
        began = trio.current_time()
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        assert trio.current_time() - began == pytest.approx(0.05)  # hellos cross
        reader = RecordReader(gate, format="int64")
        for record, takes_s in enumerate((0.1, 0.05)):  # the first one waits for the request to come
            began = trio.current_time()
            await writer.emit(record)
            assert await anext(reader) == record
            assert trio.current_time() - began == pytest.approx(takes_s)
        await trio.sleep(10)
        for connection in (*producer.statistics().accepted, *consumer.statistics().dialled):
            assert connection.connection.round_trip_s == pytest.approx(0.1)
        await writer.finish()
        assert [record async for record in reader] == []
        gate.close()
        partition.release()
    assert_nothing_left(producer, consumer)


@pytest.mark.whole
async def test_a_long_slow_line_delivers_every_record(autojump_clock: MockClock) -> None:
    received: list[bytes] = []
    sent = [bytes([index % 251]) * (index * 7 % 3000) for index in range(300)]
    async with (
        open_network(url("delay=50ms&rate=100KiB&queue=4KiB"), CONFIG) as producer,
        open_network(url(), CONFIG) as consumer,
        trio.open_nursery() as nursery,
    ):
        partition = producer.create_partition("p", subpartitions=1)

        async def produce() -> None:
            writer = RecordWriter(partition)
            for record in sent:
                await writer.emit(record)
            await writer.finish()

        nursery.start_soon(produce)
        began = trio.current_time()
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        received = [record async for record in RecordReader(gate)]
        # Credit for 10 buffers of 1 KiB goes around in about 200 ms: the line could do more.
        assert trio.current_time() - began > len(b"".join(sent)) / (100 * 1024)
    assert received == sent
    assert_nothing_left(producer, consumer)


@pytest.mark.parametrize("by", ["hand", "bytes"])
async def test_a_cut_in_the_middle_is_a_lost_connection_and_leaves_nothing(autojump_clock: MockClock, by: str) -> None:
    query = "delay=5ms&name=middle" + ("&cut=20kB" if by == "bytes" else "")
    async with open_network(url(query), CONFIG) as producer, open_network(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=1)
        count = 0

        async def produce() -> None:
            writer = RecordWriter(partition)
            while True:
                await writer.emit(bytes(100))
                await trio.lowlevel.checkpoint()

        async def consume(gate: InputGate, lab: Impairment) -> None:
            nonlocal count
            async for record in RecordReader(gate):
                assert record == bytes(100)
                count += 1
                if by == "hand" and count == 100:
                    lab.cut()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
            lab = impairment("middle")
            with pytest.raises(ConnectionLost, match="it was cut"):
                await consume(gate, lab)
            gate.close()
            nursery.cancel_scope.cancel()
        assert count >= 100
        partition.release()
        await trio.testing.wait_all_tasks_blocked()
        assert lab.statistics().streams == 0
        assert lab.statistics().bytes_held == 0
        assert_nothing_left(producer, consumer)
    with pytest.raises(LocalProtocolError):
        impairment("middle")
