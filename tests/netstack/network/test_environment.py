"""TaskManagers end to end in one process: what is written arrives, whoever reads it and however."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from network.network_environments import CONFIG, SCHEMES, assert_nothing_left, channels, read_all, settle, url
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import (
    ConfigError,
    InsufficientBuffers,
    LocalProtocolError,
)
from netstack.base.events import UserEvent
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.outbound.selector import BroadcastSelector, CustomSelector
from netstack.network.environment import open_network
from netstack.network.handles import UnionInputGate
from netstack.network.writer import RecordWriter

# The whole way.


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_records_and_arrays_arrive_in_order(scheme: str, tmp_path: Path) -> None:
    received: list[list[Any]] = [[], []]
    async with (
        open_network(url(scheme, tmp_path), CONFIG) as producer,
        open_network(url(scheme, tmp_path), CONFIG) as consumer,
    ):
        partition = producer.create_partition("p", subpartitions=2)
        writer = RecordWriter(partition, buffer_timeout_s=0.01)
        gate = await consumer.open_gate(channels(producer, count=2))
        array = np.random.default_rng(1).integers(0, 256, (2000, 8), np.uint8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, gate, received)
            for number in range(500):
                await writer.emit(b"%d" % number)
            await writer.emit(b"large" * 2000)
            await writer.emit_batch(array[1:])
            await writer.finish()
            await writer.wait_consumed()
        gate.close()
        await settle()
        assert partition.is_released
    expected = [b"%d" % number for number in range(500)] + [b"large" * 2000] + [row.tobytes() for row in array[1:]]
    assert received == [expected[0::2], expected[1::2]]
    assert_nothing_left(producer, consumer)


@pytest.mark.parametrize(("scheme", "in_loop", "in_thread"), [("tcp", True, True), ("shm", True, False)])
async def test_who_may_look_at_what_consumers_say(scheme: str, in_loop: bool, in_thread: bool, tmp_path: Path) -> None:
    if scheme not in SCHEMES:
        pytest.skip("no shared memory here")
    async with (
        open_network(url(scheme, tmp_path), CONFIG) as producer,
        open_network(url(scheme, tmp_path), CONFIG) as consumer,
    ):
        producer.create_partition("p", subpartitions=1)
        gate = await consumer.open_gate(channels(producer, count=1))
        assert (gate._engine.spin_s > 0) is in_loop
        assert (producer._endpoint.listen() > 0) is in_loop
        producer.loop_lock.is_inside = True
        assert (producer._endpoint.listen() > 0) is in_thread
        producer.loop_lock.is_inside = False
        gate.close()


async def test_a_local_channel_gives_the_same_and_touches_no_stream(autojump_clock: MockClock) -> None:
    outcomes = []
    for local in (True, False):
        received: list[list[Any]] = [[], [], []]
        async with open_network(url(), CONFIG) as producer, open_network(url(), CONFIG) as consumer:
            at = producer if local else consumer
            writer = RecordWriter(producer.create_partition("p", subpartitions=3), buffer_timeout_s=0.1)
            gate = await at.open_gate(channels(producer, count=3))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_all, gate, received)
                for number in range(300):
                    await writer.emit(b"%d" % number * (number % 40))
                    if number % 50 == 0:
                        await writer.broadcast_event(UserEvent(str(number)))
                await writer.emit_batch(np.full((30, 9000), 7, np.uint8))
                await writer.finish()
            statistics = at.statistics()
            assert (statistics.bytes_received == 0) == local
            gate.close()
        assert_nothing_left(producer, consumer)
        outcomes.append(received)
    assert outcomes[0] == outcomes[1]


async def test_one_gate_over_local_and_remote_channels(autojump_clock: MockClock) -> None:
    received: list[list[Any]] = [[], []]
    async with open_network(url(), CONFIG) as there, open_network(url(), CONFIG) as here:
        writers = [RecordWriter(manager.create_partition("p", subpartitions=1)) for manager in (here, there)]
        gate = await here.open_gate([*channels(here), *channels(there)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, gate, received)
            for number in range(100):
                for index, writer in enumerate(writers):
                    await writer.emit(b"%d %d" % (index, number))
            for writer in writers:
                await writer.finish()
        assert received == [[b"%d %d" % (index, number) for number in range(100)] for index in (0, 1)]
        assert [channel.is_local for channel in gate.statistics().channels] == [True, False]
        gate.close()
    assert_nothing_left(here, there)


async def test_a_union_of_two_gates_on_one_connection(autojump_clock: MockClock) -> None:
    received: list[list[Any]] = [[], [], []]
    async with open_network(url(), CONFIG) as producer, open_network(url(), CONFIG) as consumer:
        one = RecordWriter(producer.create_partition("one", subpartitions=1))
        two = RecordWriter(producer.create_partition("two", subpartitions=2))
        union = UnionInputGate(
            [
                await consumer.open_gate(channels(producer, "one")),
                await consumer.open_gate(channels(producer, "two", 2)),
            ]
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, union, received)
            for number in range(200):
                await one.emit(b"%d" % number)
                await two.emit(b"%d" % number)
            for writer in (one, two):
                await writer.finish()
                await writer.wait_consumed()
        assert union.ended_with_drain is True
        union.close()
    everything = [b"%d" % number for number in range(200)]
    assert received == [everything, everything[0::2], everything[1::2]]
    assert_nothing_left(producer, consumer)


@pytest.mark.parametrize("local", [True, False])
async def test_channels_with_data_take_turns(autojump_clock: MockClock, local: bool) -> None:
    """Ten full buffers wait on each of four channels: no channel ever gets two ahead of another."""
    config = replace(CONFIG, exclusive_buffers_per_channel=10, memory_bytes=128 * 1024)
    async with open_network(url(), config) as producer, open_network(url(), config) as consumer:
        partition = producer.create_partition("p", subpartitions=4)
        writer = RecordWriter(partition, buffer_timeout_s=None)
        gate = await (producer if local else consumer).open_gate(channels(producer, count=4))
        for _ in range(10 * 4):
            await writer.emit(bytes(1020))
        await settle()
        counts = [0] * 4
        for _ in range(40):
            buffer = gate._engine.poll()
            assert buffer is not None
            counts[buffer.channel_index] += 1
            buffer.recycle()
            assert max(counts) - min(counts) <= 1
        assert gate._engine.poll() is None
        gate.close()


async def test_broadcast_shares_its_buffers_among_remote_and_local_consumers(autojump_clock: MockClock) -> None:
    received: list[list[Any]] = [[], []]
    async with open_network(url(), CONFIG) as producer, open_network(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=2)
        writer = RecordWriter(partition, selector=BroadcastSelector(), buffer_timeout_s=None)
        for number in range(20):
            await writer.emit(b"%d" % number)
        assert partition.statistics().pool.used == 1
        gates = [
            await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)]),
            await producer.open_gate([ChannelDescriptor(producer.address, "p", 1)]),
        ]
        await writer.finish()
        for index, gate in enumerate(gates):
            await read_all(gate, received[index : index + 1])
            gate.close()
        await writer.wait_consumed()
    assert received[0] == received[1] == [b"%d" % number for number in range(20)]
    assert_nothing_left(producer, consumer)


# Wrong arguments, and too little memory.


async def test_a_number_of_numpy_is_a_number(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as manager:
        partition = manager.create_partition("p", subpartitions=np.int64(2))  # type: ignore[arg-type]
        assert partition.subpartition_count == 2
        assert type(manager.pool_statistics().required_segments) is int, "compiled code takes no other"


async def test_wrong_arguments_name_what_is_wrong(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as manager:
        manager.create_partition("p", subpartitions=1)
        with pytest.raises(LocalProtocolError, match="partition 'p' already exists"):
            manager.create_partition("p", subpartitions=1)
        with pytest.raises(ConfigError, match="subpartitions=0"):
            manager.create_partition("q", subpartitions=0)
        with pytest.raises(ConfigError, match=r"subpartitions=1\.5 is not an integer"):
            manager.create_partition("q", subpartitions=1.5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="partition id"):
            manager.create_partition("", subpartitions=1)
        with pytest.raises(ConfigError, match="at least one ChannelDescriptor"):
            await manager.open_gate([])
        with pytest.raises(ConfigError, match="no scheme"):
            await manager.open_gate([ChannelDescriptor("nowhere", "p")])
        assert manager.statistics().gates == ()
        assert len(manager.statistics().partitions) == 1
        manager.release_partition("never was")


async def test_too_little_memory_says_what_to_raise_and_takes_nothing(autojump_clock: MockClock) -> None:
    small = NetworkConfig(segment_size_bytes=1024, memory_bytes=6 * 1024, heartbeat_interval_s=None)
    async with open_network(url(), small) as manager, open_network(url(), small) as other:
        with pytest.raises(InsufficientBuffers, match=r"'p' with 9 subpartitions requires 10 .* raise memory_bytes"):
            manager.create_partition("p", subpartitions=9)
        with pytest.raises(InsufficientBuffers, match=r"a gate of 3 channels \(3 remote\) requires 6"):
            await manager.open_gate(channels(other, count=3))
        assert_nothing_left(manager, other)
        manager.create_partition("p", subpartitions=5)


async def test_an_address_in_use_is_named(autojump_clock: MockClock) -> None:
    address = url()
    async with open_network(address, CONFIG):
        with pytest.raises(OSError, match=address):
            async with open_network(address, CONFIG):
                raise AssertionError("two at one address")


# Many small things at once.


async def test_a_shuffle_of_three_by_three(autojump_clock: MockClock) -> None:
    """Three producers with three subpartitions each, three consumers that read one of each: every record once."""
    async with (
        open_network(url(), CONFIG) as one,
        open_network(url(), CONFIG) as two,
        open_network(url(), CONFIG) as three,
    ):
        managers = [one, two, three]
        writers = [
            RecordWriter(
                manager.create_partition("p", subpartitions=3),
                selector=CustomSelector(lambda record, count: record[-1] % count),
                buffer_timeout_s=0.05,
            )
            for manager in managers
        ]
        received: list[list[list[Any]]] = [[[] for _ in managers] for _ in managers]

        async def consume(index: int) -> None:
            gate = await managers[index].open_gate(
                [ChannelDescriptor(manager.address, "p", index) for manager in managers]
            )
            await read_all(gate, received[index])
            gate.close()

        async def produce(index: int) -> None:
            for number in range(200):
                await writers[index].emit(b"%d:%d" % (index, number))
                if number % 20 == 0:
                    await trio.sleep(0.03)
            await writers[index].finish()
            await writers[index].wait_consumed()

        async with trio.open_nursery() as nursery:
            for index in range(3):
                nursery.start_soon(consume, index)
                nursery.start_soon(produce, index)
    for consumer in range(3):
        for producer in range(3):
            records = [b"%d:%d" % (producer, number) for number in range(200)]
            assert received[consumer][producer] == [record for record in records if record[-1] % 3 == consumer]
    assert_nothing_left(one, two, three)


# What statistics and the log say.


async def test_gates_are_named_by_what_they_read_each_once(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as manager:
        assert manager.metrics_address is None
        for name, count in (("p", 3), ("q", 1), ("r", 1), ("s", 1), ("t", 1)):
            manager.create_partition(name, subpartitions=count)
        first = await manager.open_gate([ChannelDescriptor(manager.address, "p", 0)])
        await manager.open_gate([ChannelDescriptor(manager.address, "p", 1)])
        await manager.open_gate([ChannelDescriptor(manager.address, name) for name in "qrst"])
        assert [gate.name for gate in manager.statistics().gates] == ["p", "p#2", "q,r,s+1"]
        first.close()
        await manager.open_gate([ChannelDescriptor(manager.address, "p", 2)])
        assert [gate.name for gate in manager.statistics().gates] == ["p#2", "q,r,s+1", "p"]


async def test_a_shortage_of_memory_is_logged_once(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="netstack")
    async with open_network(url(), CONFIG) as producer, open_network(url(), CONFIG) as consumer:
        for number in range(6):
            producer.create_partition(f"p{number}", subpartitions=1)  # up to 10 of 64 buffers each
        assert caplog.messages == []
        last = producer.create_partition("last", subpartitions=1)
        assert len(caplog.messages) == 1
        assert "70 of 64 segments, 6 " in caplog.messages[0]
        last.release()
        producer.release_partition("p0")
        producer.create_partition("one more", subpartitions=1)
        assert "again: 94 %" in caplog.messages[1]
        caplog.clear()
        gates = [await consumer.open_gate(channels(producer, f"p{number}")) for number in range(1, 6)]
        assert "requested" in caplog.messages[0]
        assert consumer.statistics().connections == 1
        assert len(gates) == len(consumer.statistics().gates) == 5
