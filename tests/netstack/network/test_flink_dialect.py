"""TaskManagers that speak Flink's dialect: the data path is the same, and peers made of bytes get Flink's answers."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import ChannelFailed, ConfigError, ConnectionLost, ErrorCode, PartitionNotFound
from netstack.base.events import CheckpointBarrier, Event, UserEvent
from netstack.base.ids import ChannelDescriptor
from netstack.base.transport import ByteStream, transport_for
from netstack.exchange.record.flink import LongFormat, StreamElementFormat, StreamRecord, StringFormat, Watermark
from netstack.network.connection.authentication import Secret
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

PARTITION = "d0" * 16 + "00000000" + "e0" * 16 + "f0" * 16 + "0000000000000000"
CONFIG = NetworkConfig(
    segment_size_bytes=256, memory_bytes=256 * 256, dialect="flink-2.3.0", partition_request_timeout_s=0.5
)
REQUEST = bytes.fromhex("00000061badc0ffe02" + PARTITION + "0000000000000000" + "11" * 16 + "00000002")

numbers = itertools.count()


def url() -> str:
    return f"memory://flink-{next(numbers)}"


def assert_nothing_left(manager: NetworkEnvironment) -> None:
    statistics = manager.statistics()
    assert (statistics.accepted, statistics.dialled) == ((), ())
    assert statistics.pool.lent_segments == 0


async def heard(stream: ByteStream, count: int) -> bytes:
    """So many bytes from the peer, or all there are until it ends the stream."""
    data = b""
    window = memoryview(bytearray(4096))
    while len(data) < count:
        received = stream.try_receive_into([window[: count - len(data)]])
        if received is None:
            await stream.wait_readable()
        elif not received:
            break
        else:
            data += window[:received]
    return data


async def answer(stream: ByteStream) -> bytes:
    """The next frame, without its length."""
    return await heard(stream, int.from_bytes(await heard(stream, 4), "big") - 4)


@pytest.mark.parametrize("exclusive", [0, 2])
async def test_records_and_events_arrive_in_order(autojump_clock: MockClock, exclusive: int) -> None:
    config = NetworkConfig(
        segment_size_bytes=256, memory_bytes=256 * 256, dialect="flink-2.3.0", exclusive_buffers_per_channel=exclusive
    )
    async with open_network(url(), config) as producer, open_network(url(), config) as consumer:

        async def produce() -> None:
            partition = producer.create_partition(PARTITION, subpartitions=1)
            writer = RecordWriter(partition, format=StreamElementFormat(StringFormat()))
            for number in range(300):
                await writer.emit(StreamRecord(f"wört {number}", number))
                if number % 100 == 50:
                    await writer.broadcast_event(CheckpointBarrier(number, 5_000_000))
            await writer.emit(Watermark(300))
            await writer.broadcast_event(UserEvent("de.example.Ping", b"1"))
            await writer.finish()
            await writer.wait_consumed()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            gate = await consumer.open_gate([ChannelDescriptor(producer.address, PARTITION)])
            got = [item async for item in RecordReader(gate, format=StreamElementFormat(StringFormat()))]
        expected: list[object] = []
        for number in range(300):
            expected.append(StreamRecord(f"wört {number}", number))
            if number % 100 == 50:
                expected.append(CheckpointBarrier(number, 5_000_000))
        padded = b"1".ljust(128 - 4 - 2 - len("de.example.Ping"), b"\0")
        assert got == [*expected, Watermark(300), UserEvent("de.example.Ping", padded)]
        gate.close()
        await trio.testing.wait_all_tasks_blocked()
        assert_nothing_left(consumer)
    assert producer.statistics().accepted == ()


async def test_a_missing_partition_is_named_so(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, PARTITION)])
    with pytest.raises(PartitionNotFound, match="PartitionNotFoundException"):
        await anext(RecordReader(gate))
    gate.close()


async def test_a_producer_that_fails_is_an_io_exception(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    partition = producer.create_partition(PARTITION, subpartitions=1)
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, PARTITION)])
    await trio.testing.wait_all_tasks_blocked()
    partition.fail("out of luck")
    with pytest.raises(ChannelFailed, match=r"java\.io\.IOException") as caught:
        await anext(RecordReader(gate))
    assert caught.value.code is ErrorCode.PRODUCER_FAILED
    gate.close()


async def test_a_hand_made_consumer_gets_flinks_bytes(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer:
        writer = RecordWriter(producer.create_partition(PARTITION, subpartitions=1), format=LongFormat())
        await writer.emit(5)
        await writer.finish()
        stream = await transport_for(producer.address).connect(producer.address)
        assert stream.try_send([REQUEST]) == len(REQUEST)
        data = await heard(stream, 47 + 12 + 47 + 5 + 47 + 4)
        header = "badc0ffe00" + "11" * 16 + "0000000000000000"
        assert data == bytes.fromhex(
            f"0000003b {header} 00000000 00000000 01 00 0000000c 00000008 0000000000000005"
            f"00000034 {header} 00000001 00000000 09 00 00000005 00000008 00"
            f"00000033 {header} 00000002 00000000 0a 00 00000004 00000000"
        )
        stream.try_send([bytes.fromhex("00000019badc0ffe04" + "11" * 16)])
        await trio.testing.wait_all_tasks_blocked()
        (accepted,) = producer.statistics().accepted
        assert accepted.channels == ()  # and the connection stays, for others
        stream.try_send([bytes.fromhex("00000009badc0ffe05")])
        assert await heard(stream, 1) == b""
        stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert_nothing_left(producer)


async def test_a_hand_made_consumer_that_is_wrong_is_told_with_flags(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer:
        stream = await transport_for(producer.address).connect(producer.address)
        stream.try_send([bytes.fromhex("0000001dbadc0ffe0600000001" + "22" * 16)])
        message = await answer(stream)
        assert message[:5] == bytes.fromhex("badc0ffe01")
        assert b"java.io.IOException" in message
        assert b"ADD_CREDIT for channel 2222" in message
        assert message.endswith(b"\0")
        stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert_nothing_left(producer)


async def test_mistakes_are_told_once_each_and_the_connection_goes_on(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer:
        writer = RecordWriter(producer.create_partition(PARTITION, subpartitions=2), format=LongFormat())
        stream = await transport_for(producer.address).connect(producer.address)
        stream.try_send([REQUEST])
        await trio.testing.wait_all_tasks_blocked()
        other = REQUEST[:77] + b"\x22" * 16 + REQUEST[93:]
        beyond = other[:69] + bytes.fromhex("0000000700000007") + other[77:]
        resume = bytes.fromhex("00000019badc0ffe07" + "11" * 16)
        for mistake, text in (
            (resume, b"is not blocked"),
            (REQUEST, b"was opened twice"),
            (other, b"is consumed already"),
            (beyond, b"has subpartitions 0 to 1"),
            (resume * 1000, b"is not blocked"),
        ):
            stream.try_send([mistake])
            message = await answer(stream)
            assert text in message
            assert message.endswith(b"\0")
        await writer.emit(7)
        await writer.flush()
        assert (await heard(stream, 59))[47:] == bytes.fromhex("00000008 0000000000000007")
        stream.close()
        await trio.testing.wait_all_tasks_blocked()


def error_for(channel: bytes) -> bytes:
    """What a producer answers that does not find a partition."""
    text = b"org.apache.flink.runtime.io.network.partition.PartitionNotFoundException"
    body = bytes.fromhex("aced00057372") + len(text).to_bytes(2, "big") + text + b"\1" + channel
    return (9 + len(body)).to_bytes(4, "big") + bytes.fromhex("badc0ffe01") + body


async def test_a_partition_that_is_not_found_is_asked_for_again(autojump_clock: MockClock) -> None:
    address = url()
    listener = await transport_for(address).listen(address)
    async with open_network(url(), CONFIG) as consumer:
        gate = await consumer.open_gate([ChannelDescriptor(address, PARTITION)])
        stream = await listener.accept()
        first = await heard(stream, 97)
        waits = []
        for _ in range(8):
            asked = trio.current_time()
            stream.try_send([error_for(first[77:93])])
            assert await heard(stream, 97) == first
            waits.append(round(trio.current_time() - asked, 3))
        assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10]
        stream.try_send([error_for(first[77:93])])
        with pytest.raises(PartitionNotFound, match="PartitionNotFoundException"):
            await anext(RecordReader(gate))
        gate.close()
        stream.close()
        await trio.testing.wait_all_tasks_blocked()
        assert_nothing_left(consumer)
    listener.close()


async def test_an_answer_given_twice_is_one_request_and_two_tries(autojump_clock: MockClock) -> None:
    address = url()
    listener = await transport_for(address).listen(address)
    config = dataclasses.replace(CONFIG, partition_request_retries=2)
    async with open_network(url(), config) as consumer:
        gate = await consumer.open_gate([ChannelDescriptor(address, PARTITION)])
        stream = await listener.accept()
        first = await heard(stream, 97)
        stream.try_send([error_for(first[77:93]) * 2])
        assert await heard(stream, 97) == first
        stream.try_send([error_for(first[77:93])])
        with pytest.raises(PartitionNotFound):
            await anext(RecordReader(gate))
        gate.close()
        assert await heard(stream, 1000) == bytes.fromhex("00000009badc0ffe05")
        stream.close()
    listener.close()


async def test_a_partition_that_comes_late_is_found_by_who_asks_again(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, PARTITION)])
    await trio.sleep(5 * CONFIG.partition_request_timeout_s)
    writer = RecordWriter(producer.create_partition(PARTITION, subpartitions=1), format=LongFormat())
    await writer.emit(7)
    await writer.finish()
    assert [record async for record in RecordReader(gate, format=LongFormat())] == [7]


async def test_a_partition_that_is_gone_is_not_asked_for_again(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, PARTITION)])
    reader = RecordReader(gate, format=LongFormat())
    writer = RecordWriter(producer.create_partition(PARTITION, subpartitions=1), format=LongFormat())
    await writer.emit(7)
    await writer.flush()
    assert await anext(reader) == 7
    producer.release_partition(PARTITION)
    began = trio.current_time()
    with pytest.raises(PartitionNotFound, match="PartitionNotFoundException"):
        await anext(reader)
    assert trio.current_time() == began
    gate.close()


async def test_a_producer_that_ends_in_the_middle_is_lost(autojump_clock: MockClock) -> None:
    address = url()
    listener = await transport_for(address).listen(address)
    async with open_network(url(), CONFIG) as consumer:
        gate = await consumer.open_gate([ChannelDescriptor(address, PARTITION)])
        stream = await listener.accept()
        assert len(await heard(stream, 97)) == 97
        stream.close()
        with pytest.raises(ConnectionLost, match="channels were open"):
            await anext(RecordReader(gate))
        gate.close()
        assert_nothing_left(consumer)
    listener.close()


async def test_a_secret_cannot_be_proven(autojump_clock: MockClock) -> None:
    with pytest.raises(ConfigError, match="its peers cannot prove one"):
        await open_network(url(), CONFIG, secret=Secret(b"x" * 16)).__aenter__()


async def test_a_task_event_reaches_whoever_listens_and_is_refused_otherwise(autojump_clock: MockClock) -> None:
    event = bytes.fromhex("00000003 0004") + b"Ping" + b"\7"
    body = len(event).to_bytes(4, "big") + event + bytes.fromhex(PARTITION + "11" * 16)
    frame = (9 + len(body)).to_bytes(4, "big") + bytes.fromhex("badc0ffe03") + body
    async with open_network(url(), CONFIG) as producer:
        partition = producer.create_partition(PARTITION, subpartitions=1)
        heard_of: list[Event] = []
        partition._engine.on_task_event = heard_of.append
        stream = await transport_for(producer.address).connect(producer.address)
        stream.try_send([frame])
        await trio.testing.wait_all_tasks_blocked()
        assert heard_of == [UserEvent("Ping", b"\7")]
        partition._engine.on_task_event = None
        stream.try_send([frame])
        assert (await answer(stream)).endswith(b"\1" + b"\x11" * 16)
        stream.close()
