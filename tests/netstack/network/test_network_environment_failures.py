"""What fails, comes late or leaves is told to those concerned, and to nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing
from network.network_environments import CONFIG, assert_nothing_left, channels, read_all, settle, url
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import (
    ChannelFailed,
    ConfigError,
    ConsumerLost,
    LocalProtocolError,
    NetstackError,
    PartitionNotFound,
    PoolDestroyed,
    ProducerFailed,
)
from netstack.base.ids import ChannelDescriptor, ResultPartitionType
from netstack.exchange.outbound.selector import BroadcastSelector, ChannelSelector, CustomSelector, RoundRobinSelector
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

# Failures of a producer.


@pytest.mark.parametrize("local", [True, False])
async def test_a_producers_failure_reaches_its_consumers_with_the_cause(
    autojump_clock: MockClock, local: bool, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    partition = producer.create_partition("p", subpartitions=1)
    writer = RecordWriter(partition, buffer_timeout_s=None)
    gate = await (producer if local else consumer).open_gate(channels(producer))
    await settle()
    await writer.emit(b"never seen")
    partition.fail("division by zero in operator map-3")
    with pytest.raises(ProducerFailed, match="PRODUCER_FAILED: division by zero in operator map-3") as caught:
        await RecordReader(gate).__anext__()
    assert "'p' subpartition 0" in caught.value.channel
    with pytest.raises((LocalProtocolError, PoolDestroyed)):
        await writer.emit(bytes(2000))
    gate.close()
    await settle()
    assert_nothing_left(producer, consumer)


async def test_a_writer_that_waits_for_a_buffer_is_woken_by_the_failure(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer:
        partition = producer.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition)
        ended: list[Exception] = []

        async def write() -> None:
            try:
                while True:
                    await writer.emit(bytes(500))
            except NetstackError as error:
                ended.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await settle()
            assert ended == []
            partition.fail("on purpose")
        assert isinstance(ended[0], PoolDestroyed)
        assert "'p'" in str(ended[0])
        assert_nothing_left(producer)


async def test_one_channels_failure_leaves_the_others_on_the_connection_going(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    bad = producer.create_partition("bad", subpartitions=1)
    good = RecordWriter(producer.create_partition("good", subpartitions=1), buffer_timeout_s=0)
    gates = {name: await consumer.open_gate(channels(producer, name)) for name in ("bad", "good")}
    await settle()
    bad.fail("on purpose")
    with pytest.raises(ProducerFailed):
        await RecordReader(gates["bad"]).__anext__()
    gates["bad"].close()
    reader = RecordReader(gates["good"])
    for number in range(50):
        await good.emit(b"%d" % number)
        assert await reader.__anext__() == b"%d" % number
    (dialled,) = consumer.statistics().dialled
    assert dialled.channels == 1
    gates["good"].close()


async def test_in_one_gate_too_the_other_channels_go_on(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    bad = producer.create_partition("bad", subpartitions=1)
    good = RecordWriter(producer.create_partition("good", subpartitions=1), buffer_timeout_s=0)
    gate = await consumer.open_gate([*channels(producer, "bad"), *channels(producer, "good")])
    await settle()
    bad.fail("on purpose")
    reader = RecordReader(gate)
    with pytest.raises(ProducerFailed):
        await reader.__anext__()
    await good.emit(b"x")
    assert await reader.__anext__() == b"x"
    gate.close()


async def test_a_reader_that_goes_on_after_a_failure_still_comes_to_an_end(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    bad = producer.create_partition("bad", subpartitions=1)
    good = RecordWriter(producer.create_partition("good", subpartitions=1))
    gate = await consumer.open_gate([*channels(producer, "bad"), *channels(producer, "good")])
    await settle()
    bad.fail("on purpose")
    reader = RecordReader(gate)
    with pytest.raises(ProducerFailed):
        await reader.__anext__()
    await good.emit(b"x")
    await good.finish()
    assert [record async for record in reader] == [b"x"]
    assert gate.ended_with_drain is None
    gate.close()


@pytest.mark.parametrize("buffer_timeout_s", [None, 0.1, 0.0])
async def test_the_smallest_quota_that_is_accepted_does_not_stop_a_writer(
    autojump_clock: MockClock, buffer_timeout_s: float | None
) -> None:
    """Every subpartition may hold an open buffer for good: that alone must not keep the others from theirs."""
    quota = 1
    try:
        config = replace(CONFIG, max_buffers_per_channel=quota)
    except ConfigError:
        quota = 2
        config = replace(CONFIG, max_buffers_per_channel=quota)
    received: list[list[Any]] = [[], [], []]
    async with open_network(url(), config) as producer, open_network(url(), config) as consumer:
        writer = RecordWriter(producer.create_partition("p", subpartitions=3), buffer_timeout_s=buffer_timeout_s)
        gate = await consumer.open_gate(channels(producer, count=3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, gate, received)
            for number in range(60):
                await writer.emit(b"%d" % number * 100)
            await writer.finish()
        gate.close()
    assert received == [[b"%d" % number * 100 for number in range(index, 60, 3)] for index in range(3)]


async def test_a_record_larger_than_the_quota_goes_through_whole(autojump_clock: MockClock) -> None:
    """The quota is asked between records: one that was begun is written to its end."""
    config = replace(CONFIG, max_buffers_per_channel=2, memory_bytes=256 * 1024)
    received: list[list[Any]] = [[], []]
    records = [bytes([number]) * 5000 for number in range(6)] + [b"small"] * 6
    async with open_network(url(), config) as producer, open_network(url(), config) as consumer:
        partition = producer.create_partition("p", subpartitions=2, kind=ResultPartitionType.PIPELINED)
        writer = RecordWriter(partition, buffer_timeout_s=None)
        gate = await consumer.open_gate(channels(producer, count=2))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, gate, received)
            for record in records:
                await writer.emit(record)
            await writer.finish()
        gate.close()
    assert received == [records[0::2], records[1::2]]


async def test_an_idle_channel_hears_of_a_release(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    producer.create_partition("p", subpartitions=2)
    gates = [
        await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)]),
        await producer.open_gate([ChannelDescriptor(producer.address, "p", 1)]),
    ]
    await settle()
    producer.release_partition("p")
    producer.release_partition("p")
    for gate in gates:
        with pytest.raises(PartitionNotFound, match="released"):
            await RecordReader(gate).__anext__()
        gate.close()
    await settle()
    assert_nothing_left(producer, consumer)


# Partitions that are late, missing, or taken.


@pytest.mark.parametrize("local", [True, False])
async def test_a_partition_created_late_is_served(
    autojump_clock: MockClock, local: bool, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    gate = await (producer if local else consumer).open_gate(channels(producer))
    await trio.sleep(9)
    writer = RecordWriter(producer.create_partition("p", subpartitions=1))
    await writer.emit(b"x")
    await writer.finish()
    assert [record async for record in RecordReader(gate)] == [b"x"]
    gate.close()


@pytest.mark.parametrize("local", [True, False])
async def test_a_partition_that_never_comes_fails_its_channel_after_the_timeout(
    autojump_clock: MockClock,
    local: bool,
    producer: NetworkEnvironment,
    consumer: NetworkEnvironment,
) -> None:
    producer.create_partition("q", subpartitions=1)
    gate = await (producer if local else consumer).open_gate(channels(producer))
    start = trio.current_time()
    with pytest.raises(PartitionNotFound, match=r"'p' .* 10 s \(known: q\)"):
        await RecordReader(gate).__anext__()
    assert trio.current_time() - start == pytest.approx(10)
    gate.close()
    producer.release_partition("q")
    await settle()
    assert_nothing_left(producer, consumer)


@pytest.mark.parametrize("local", [True, False])
async def test_a_gate_closed_while_it_waits_does_not_take_the_partition_from_the_next(
    autojump_clock: MockClock,
    local: bool,
    producer: NetworkEnvironment,
    consumer: NetworkEnvironment,
) -> None:
    at = producer if local else consumer
    (await at.open_gate(channels(producer))).close()
    await settle()
    writer = RecordWriter(producer.create_partition("p", subpartitions=1))
    await writer.emit(b"x")
    await writer.finish()
    gate = await at.open_gate(channels(producer))
    assert [record async for record in RecordReader(gate)] == [b"x"]
    gate.close()


@pytest.mark.parametrize("local", [True, False])
async def test_a_subpartition_is_consumed_once(
    autojump_clock: MockClock, local: bool, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    producer.create_partition("p", subpartitions=1)
    at = producer if local else consumer
    gate = await at.open_gate(channels(producer))
    await settle()

    async def open_and_read() -> None:
        await RecordReader(await at.open_gate(channels(producer))).__anext__()

    with pytest.raises(ChannelFailed, match="SUBPARTITION_CONSUMED"):
        await open_and_read()
    gate.close()


@pytest.mark.parametrize("local", [True, False])
async def test_a_subpartition_out_of_range(
    autojump_clock: MockClock, local: bool, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    producer.create_partition("p", subpartitions=2)
    at = producer if local else consumer

    async def open_and_read() -> None:
        await RecordReader(await at.open_gate([ChannelDescriptor(producer.address, "p", 2)])).__anext__()

    with pytest.raises(PartitionNotFound, match="subpartitions 0 to 1"):
        await open_and_read()
    if local:
        assert producer.statistics().gates == ()


# Consumers that leave.


@pytest.mark.parametrize("local", [True, False])
async def test_a_consumer_that_leaves_does_not_let_the_producer_run_away(
    autojump_clock: MockClock,
    local: bool,
    producer: NetworkEnvironment,
    consumer: NetworkEnvironment,
) -> None:
    partition = producer.create_partition("p", subpartitions=1)
    writer = RecordWriter(partition, buffer_timeout_s=None)
    gate = await (producer if local else consumer).open_gate(channels(producer))
    await writer.emit(bytes(1020))
    gate.close()
    await settle()
    with pytest.raises(ConsumerLost, match=r"nobody reads .* subpartition 0"):
        await writer.emit(bytes(1020))
    assert partition.statistics().subpartitions[0].is_consumed
    partition.release()
    await settle()
    assert_nothing_left(producer, consumer)


@pytest.mark.parametrize("outwaits", [False, True])
async def test_a_consumer_that_leaves_ends_the_wait_of_its_writer(
    autojump_clock: MockClock, outwaits: bool, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    partition = producer.create_partition("p", subpartitions=1)
    writer = RecordWriter(partition, buffer_timeout_s=None)
    if outwaits:  # as a task's, which its scheduler ends
        writer.outwait_consumers()
    gate = await consumer.open_gate(channels(producer))
    await settle()
    ended: list[Exception] = []

    async def write() -> None:
        try:
            while True:
                await writer.emit(bytes(1020))
        except NetstackError as error:
            ended.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await settle()
        assert not ended
        gate.close()
        await settle()
        assert [type(error) for error in ended] == ([] if outwaits else [ConsumerLost])
        partition.release()
    assert outwaits or "subpartition 0 closed" in str(ended[0])


async def test_a_consumer_that_has_left_does_not_end_the_writing_to_another(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    writer = RecordWriter(
        producer.create_partition("p", subpartitions=2),
        selector=CustomSelector(lambda record, channels: record[0]),
        buffer_timeout_s=None,
    )
    both = channels(producer, count=2)
    leaving, staying = await consumer.open_gate(both[1:]), await consumer.open_gate(both[:1])
    await settle()
    leaving.close()
    await settle()
    received: list[list[Any]] = [[]]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_all, staying, received)
        for _ in range(200):  # waits for buffers many times
            await writer.emit(bytes(1020))
        await writer.finish()
    assert len(received[0]) == 200


async def test_a_pool_that_grows_as_its_writer_looks_for_lost_consumers_is_used(autojump_clock: MockClock) -> None:
    """With many pools growth waits until a size is read: after the writer found no buffer, and before it waits."""
    async with open_network(url(), replace(CONFIG, memory_bytes=264 * 1024)) as manager:
        for number in range(80):
            manager.create_partition(f"other{number}", subpartitions=1)
        large = manager.create_partition("large", subpartitions=100)
        partition = manager.create_partition("p", subpartitions=2)
        (await manager.open_gate(channels(manager)[:1])).close()
        assert partition.statistics().pool.size == 3
        large.release()
        writer = RecordWriter(partition, selector=CustomSelector(lambda record, count: 1), buffer_timeout_s=None)
        for _ in range(4):
            with trio.fail_after(1):
                await writer.emit(bytes(1020))
        assert partition._engine.pool.present_size > 3


async def test_a_writer_acting_as_flink_sleeps_on_when_one_of_its_consumers_leaves(autojump_clock: MockClock) -> None:
    """Its wait ends, and there is no buffer: the next one must not end at once, for ever."""
    config = NetworkConfig.flink(segment_size_bytes=1024, memory_bytes=64 * 1024, heartbeat_interval_s=None)
    async with open_network(url(), config) as manager, trio.open_nursery() as nursery:
        partition = manager.create_partition("p", subpartitions=2)
        leaving = await manager.open_gate(channels(manager, count=2)[1:])
        writer = RecordWriter(partition, selector=CustomSelector(lambda record, count: 0), buffer_timeout_s=None)
        looks = 0

        def listen() -> float:
            nonlocal looks
            looks += 1
            assert looks < 10, "it never sleeps, and nothing else runs"
            return 0.0

        async def write() -> None:
            while True:
                await writer.emit(bytes(1020))

        partition._engine.listen = listen
        nursery.start_soon(write)
        await settle()
        assert looks == 1
        leaving.close()
        await settle()
        assert looks == 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("selector", [RoundRobinSelector, BroadcastSelector])
@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, max_buffers_per_channel=3)])
async def test_one_of_two_consumers_that_leaves_ends_the_writing_when_its_part_is_full(
    autojump_clock: MockClock,
    selector: type[ChannelSelector],
    producer: NetworkEnvironment,
    consumer: NetworkEnvironment,
) -> None:
    writer = RecordWriter(producer.create_partition("p", subpartitions=2), selector=selector(), buffer_timeout_s=None)
    both = channels(producer, count=2)
    leaving, staying = await consumer.open_gate(both[1:]), await consumer.open_gate(both[:1])
    received: list[list[Any]] = [[]]

    async def write() -> None:
        while True:
            await writer.emit(bytes(1020))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_all, staying, received)
        await settle()
        leaving.close()
        await settle()
        with pytest.raises(ConsumerLost, match=r"no buffer .* subpartition 1"):
            await write()
        await settle()
        assert len(received[0]) > 2
        nursery.cancel_scope.cancel()


async def test_a_gate_closed_while_its_reader_waits_ends_the_reader(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    producer.create_partition("p", subpartitions=1)
    gate = await consumer.open_gate(channels(producer))
    ended: list[Exception] = []

    async def read() -> None:
        try:
            await RecordReader(gate).__anext__()
        except LocalProtocolError as error:
            ended.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await settle()
        gate.close()
    assert "input gate is closed" in str(ended[0])
    await settle()
    assert consumer.statistics().pool.lent_segments == 0


async def test_a_slow_channel_does_not_slow_another_on_its_connection(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    """The consumer of one channel never reads; the other gets thousands of buffers through."""
    slow = RecordWriter(producer.create_partition("slow", subpartitions=1), buffer_timeout_s=None)
    fast = RecordWriter(producer.create_partition("fast", subpartitions=1), buffer_timeout_s=None)
    gates = {name: await consumer.open_gate(channels(producer, name)) for name in ("slow", "fast")}
    received: list[list[Any]] = [[]]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_all, gates["fast"], received)
        with trio.move_on_after(1):
            while True:
                await slow.emit(bytes(1020))
        for _ in range(500):
            await fast.emit(bytes(1020))
        await fast.finish()
    assert len(received[0]) == 500
    for gate in gates.values():
        gate.close()
    producer.release_partition("slow")


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("p", "a gate takes a sequence of ChannelDescriptors"),
        (ChannelDescriptor(None, "p"), "the address has to be text"),  # type: ignore[arg-type]
        (ChannelDescriptor("memory://nowhere", 5), "5 of type int"),  # type: ignore[arg-type]
        (ChannelDescriptor("memory://nowhere", "p", "0"), "have to be whole numbers"),  # type: ignore[arg-type]
        (ChannelDescriptor("memory://nowhere", "p", -1), "cannot have 1 subpartitions from -1 on"),
    ],
)
async def test_an_impossible_descriptor_is_refused_and_leaves_the_network_open(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment, wanted: Any, text: str
) -> None:
    writer = RecordWriter(producer.create_partition("p", subpartitions=1))
    with pytest.raises(ConfigError, match=text):
        await consumer.open_gate([wanted])
    gate = await consumer.open_gate(channel for channel in channels(producer))  # type: ignore[arg-type]
    await writer.emit(b"still works")
    await writer.finish()
    actual: list[list[bytes]] = [[]]
    await read_all(gate, actual)
    assert actual == [[b"still works"]]


@pytest.mark.parametrize("wanted", [ChannelDescriptor("memory://nowhere", "p"), None, 5])
async def test_a_gate_takes_a_sequence_not_a_descriptor_alone(consumer: NetworkEnvironment, wanted: Any) -> None:
    with pytest.raises(ConfigError, match=r"sequence of ChannelDescriptors; .* is none"):
        await consumer.open_gate(wanted)


async def test_partitions_of_impossible_names_and_kinds(producer: NetworkEnvironment) -> None:
    wrong: Any = 5
    with pytest.raises(ConfigError, match="5 of type int; give"):
        producer.create_partition(wrong, subpartitions=1)
    with pytest.raises(ConfigError, match="partition 'p': kind=5; give a ResultPartitionType"):
        producer.create_partition("p", subpartitions=1, kind=wrong)


async def test_a_configuration_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="config is a dict; give a NetworkConfig"):
        async with open_network(url(), {}):  # type: ignore[arg-type]
            pass
