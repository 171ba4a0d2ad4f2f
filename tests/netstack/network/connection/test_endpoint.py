"""Connections of a TaskManager: dialled once, shared, and given up when a peer does not behave."""

from __future__ import annotations

import contextlib
from contextlib import suppress
from dataclasses import replace

import pytest
import trio
import trio.lowlevel
import trio.testing
from network.endpoint_peers import CONFIG, assert_nothing_left, is_closed, peer, settle, url
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import (
    ConfigError,
    ConnectionLost,
    InsufficientBuffers,
    ProducerUnreachable,
    RemoteProtocolError,
)
from netstack.base.ids import ChannelDescriptor
from netstack.base.transport import ByteStream, transport_for
from netstack.exchange.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.frames import Frame, Goodbye, Hello
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.handles import InputGate
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

CODEC = NativeCodec()
HELLO = Hello(PROTOCOL_VERSION, CONFIG.segment_size_bytes, 0, "a peer made of bytes")


def frames(*said: Frame) -> bytes:
    return b"".join(map(CODEC.encode_control, said))


# Shared connections.


async def test_all_channels_to_one_address_share_a_connection(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    for name in ("a", "b"):
        producer.create_partition(name, subpartitions=2)
    gates: list[InputGate] = []

    async def open_one(name: str) -> None:
        gates.append(await consumer.open_gate([ChannelDescriptor(producer.address, name, index) for index in (0, 1)]))

    async with trio.open_nursery() as nursery:  # at the same time: they share the attempt too
        nursery.start_soon(open_one, "a")
        nursery.start_soon(open_one, "b")
    (dialled,) = consumer.statistics().dialled
    assert (dialled.address, dialled.channels) == (producer.address, 4)
    await settle()
    (accepted,) = producer.statistics().accepted
    assert len(accepted.channels) == 4
    gates[0].close()
    await settle()
    assert consumer.statistics().dialled[0].channels == 2
    gates[1].close()
    await settle()
    assert_nothing_left(consumer)
    assert producer.statistics().accepted == ()


async def test_an_address_is_dialled_again_after_the_last_channel_left(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    for name in ("a", "b"):
        partition = producer.create_partition(name, subpartitions=1)
        writer = RecordWriter(partition)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, name)])
        await writer.emit(b"x")
        await writer.finish()
        assert [record async for record in RecordReader(gate)] == [b"x"]
        gate.close()
        await settle()
        assert_nothing_left(consumer)
    assert consumer.statistics().bytes_received > 0  # those of connections that are gone


async def test_a_gate_opened_while_the_last_channel_leaves_gets_a_connection(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    for name in ("a", "b"):
        producer.create_partition(name, subpartitions=1)
    first = await consumer.open_gate([ChannelDescriptor(producer.address, "a")])
    second: list[InputGate] = []

    async def open_second() -> None:
        second.append(await consumer.open_gate([ChannelDescriptor(producer.address, "b")]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_second)
        first.close()
    await settle()
    (dialled,) = consumer.statistics().dialled
    assert dialled.channels == 1
    second[0].close()
    await settle()
    assert_nothing_left(consumer)


async def test_a_manager_that_only_consumes_remembers_a_connection_once_however_much_it_says(
    autojump_clock: MockClock,
    producer: NetworkEnvironment,
    consumer: NetworkEnvironment,
) -> None:
    partition = producer.create_partition("p", subpartitions=1)
    writer = RecordWriter(partition, buffer_timeout_s=0)
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
    reader = RecordReader(gate)
    for number in range(100):
        await writer.emit(b"%d" % number)
        assert await reader.__anext__() == b"%d" % number
        await settle()
    (dialled,) = consumer.statistics().dialled
    assert dialled.connection.sends > 20
    assert len(consumer.unsent) <= 1


# Peers that do not behave.


async def test_a_failed_attempt_is_not_remembered(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as consumer:
        address = url()
        for _ in range(2):
            with pytest.raises(ProducerUnreachable, match=address) as caught:
                await consumer.open_gate([ChannelDescriptor(address, "p")])
            assert caught.value.partition == "p"
            assert_nothing_left(consumer)
        async with open_network(address, CONFIG) as producer:
            producer.create_partition("p", subpartitions=1)
            gate = await consumer.open_gate([ChannelDescriptor(address, "p")])
            gate.close()


async def test_who_is_being_replaced_is_dialled_again(autojump_clock: MockClock) -> None:
    """First nobody listens, then who answers ends before a hello, then the next one is there."""
    address = url()
    config = replace(CONFIG, connect_retry_s=2.0)

    async def be_replaced() -> None:
        await trio.sleep(0.1)
        listener = await transport_for(address).listen(address)
        (await listener.accept()).close()
        listener.close()
        async with open_network(address, CONFIG) as producer:
            producer.create_partition("p", subpartitions=1)
            await trio.sleep_forever()

    async with open_network(url(), config) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(be_replaced)
        gate = await consumer.open_gate([ChannelDescriptor(address, "p")])
        assert trio.current_time() < 2
        gate.close()
        nursery.cancel_scope.cancel()


async def test_who_does_not_come_back_is_lost_after_the_time_to_try_again(autojump_clock: MockClock) -> None:
    async with open_network(url(), replace(CONFIG, connect_retry_s=2.0)) as consumer:
        address = url()
        with pytest.raises(ConnectionLost, match=address):
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        assert 1 < trio.current_time() <= 2
        assert_nothing_left(consumer)


async def test_a_bad_partition_name_leaves_no_connection_behind(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    with pytest.raises(ConfigError, match="partition id"):
        await consumer.open_gate([ChannelDescriptor(producer.address, "")])
    await settle()
    assert_nothing_left(consumer)


async def test_everybody_who_waits_for_an_attempt_hears_of_its_failure(autojump_clock: MockClock) -> None:
    address = url()
    received: list[str] = []
    async with open_network(url(), CONFIG) as consumer:

        async def open_one() -> None:
            try:
                await consumer.open_gate([ChannelDescriptor(address, "p")])
            except ConnectionLost as error:
                received.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(open_one)
        assert len(received) == 3
        assert_nothing_left(consumer)


async def test_a_peer_that_says_nothing_is_given_up_in_time(autojump_clock: MockClock) -> None:
    async def silent(stream: ByteStream) -> None:
        await trio.sleep_forever()

    async with peer(silent) as (address, streams), open_network(url(), CONFIG) as consumer:
        start = trio.current_time()
        with pytest.raises(ConnectionLost, match=r"did not answer within 5 s"):
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        assert trio.current_time() - start == pytest.approx(5)
        await settle()
        assert_nothing_left(consumer)
        assert await is_closed(streams[0])


async def test_a_hello_that_comes_after_the_timeout_finds_nobody(autojump_clock: MockClock) -> None:
    async def late(stream: ByteStream) -> None:
        await trio.sleep(6)
        with suppress(ConnectionLost):
            stream.try_send([frames(HELLO)])

    async with peer(late) as (address, _), open_network(url(), CONFIG) as consumer:
        with pytest.raises(ConnectionLost):
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        await trio.sleep(10)
        assert_nothing_left(consumer)


async def test_a_peer_that_leaves_at_once_is_a_lost_connection_and_no_endless_search(autojump_clock: MockClock) -> None:
    """A producer that is closing says hello and goodbye in one breath."""

    async def leave(stream: ByteStream) -> None:
        stream.try_send([frames(HELLO, Goodbye())])
        stream.send_eof()
        await trio.sleep_forever()

    async with peer(leave) as (address, streams), open_network(url(), CONFIG) as consumer:

        async def open_and_read() -> None:
            gate = await consumer.open_gate([ChannelDescriptor(address, "p")])
            # A turn that took its time ended between hello and goodbye: then whoever reads is told.
            with contextlib.closing(RecordReader(gate, format="bytes")) as reader:
                await reader.__anext__()

        with trio.CancelScope() as scope:

            async def lose_patience() -> None:
                for _ in range(1000):  # turns of the scheduler: a search without a wait does not let time pass
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose_patience)
                with pytest.raises((ConnectionLost, trio.Cancelled)) as caught:
                    await open_and_read()
                nursery.cancel_scope.cancel()
        assert isinstance(caught.value, ConnectionLost), "it goes on looking for a connection"
        assert address in str(caught.value)
        await settle()
        assert len(streams) == 1
        assert_nothing_left(consumer)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (frames(Hello(PROTOCOL_VERSION + 1, 256, 0, "newer")), "VERSION_MISMATCH"),
        (frames(Hello(PROTOCOL_VERSION, 512, 0, "larger")), "SEGMENT_SIZE_MISMATCH"),
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "NOT_NETSTACK"),
        (frames(Goodbye()), "NOT_NETSTACK|UNEXPECTED_FRAME"),
    ],
)
async def test_a_peer_of_another_kind_is_refused_with_the_reason(
    autojump_clock: MockClock, message: bytes, reason: str
) -> None:
    async def say(stream: ByteStream) -> None:
        stream.try_send([message])
        await trio.sleep_forever()

    async with peer(say) as (address, streams), open_network(url(), CONFIG) as consumer:
        with pytest.raises(RemoteProtocolError, match=reason) as caught:
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        assert address in str(caught.value)
        await settle()
        assert_nothing_left(consumer)
        assert await is_closed(streams[0])


async def test_a_stream_that_ends_in_the_middle_of_the_hello_is_a_typed_error(autojump_clock: MockClock) -> None:
    async def stop_short(stream: ByteStream) -> None:
        stream.try_send([frames(HELLO)[:20]])
        stream.send_eof()
        await trio.sleep_forever()

    async with peer(stop_short) as (address, _), open_network(url(), CONFIG) as consumer:
        with pytest.raises(ProducerUnreachable, match=f"TRUNCATED_STREAM: {address}"):
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        await settle()
        assert_nothing_left(consumer)


async def test_an_accepted_stream_that_says_nothing_is_closed_in_time(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer:
        stream = await transport_for(producer.address).connect(producer.address)
        await settle()
        assert len(producer.statistics().accepted) == 1
        await trio.sleep(21)
        assert producer.statistics().accepted == ()
        assert await is_closed(stream)
        stream.close()


async def test_a_bad_peer_does_not_disturb_a_good_one(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    partition = producer.create_partition("p", subpartitions=1)
    writer = RecordWriter(partition, buffer_timeout_s=0)
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
    bad = await transport_for(producer.address).connect(producer.address)
    bad.try_send([b"\xff" * 500])
    await settle()
    assert len(producer.statistics().accepted) == 1
    assert await is_closed(bad)
    bad.close()
    await writer.emit(b"x")
    await writer.finish()
    assert [record async for record in RecordReader(gate)] == [b"x"]


# Memory.


async def test_without_buffers_for_a_connection_nothing_stays_open(autojump_clock: MockClock) -> None:
    small = NetworkConfig(segment_size_bytes=256, memory_bytes=10 * 256, heartbeat_interval_s=None)
    async with open_network(url(), small) as producer, open_network(url(), small) as consumer:
        producer.create_partition("p", subpartitions=1)
        with pytest.raises(InsufficientBuffers, match="the connection to memory://"):
            await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        await settle()
        assert_nothing_left(consumer)
        assert producer.statistics().accepted == ()
