"""Receiving without credits: whatever comes is taken while there are buffers, then the whole connection stops."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from trio_runs import run_virtual

from netstack import (
    ChannelDescriptor,
    CheckpointBarrier,
    EndOfData,
    NetworkConfig,
    NetworkEnvironment,
    RecordReader,
    RecordWriter,
    open_network,
)
from netstack.base.errors import ConnectionLost
from netstack.base.events import DataType, encode_event
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.credit.sending import MAX_CREDIT
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.uncredited import UncreditedReceiver
from netstack.exchange.wire.codec_native import NativeCodec
from netstack.exchange.wire.frames import CancelChannel, Frame, OpenChannel
from netstack.exchange.wire.outgoing_batch import OutgoingBatch

SIZE = 16


def nothing() -> None:
    pass


class Stage:
    """Two gates of one channel each on one connection, the first with few buffers."""

    def __init__(self, *floating: int) -> None:
        self.network = NetworkBufferPool(64, SIZE)
        self.pauses: list[bool] = []
        self.sent: list[Frame] = []
        self.receiver = UncreditedReceiver(
            NativeCodec(),
            peer="memory://producer",
            on_write_wanted=nothing,
            send=self.sent.append,
            on_empty=nothing,
            write_now=nothing,
            on_pause=self.pauses.append,
        )
        self.landing = self.network.take_unpooled(1)[0]
        self.gates = []
        for number, count in enumerate(floating):
            pool = self.network.create_pool(count, count)
            gate = SingleInputGate(pool, read_connections=nothing, on_closed=nothing)
            channel = RemoteInputChannel(
                gate,
                0,
                ChannelDescriptor("memory://producer", "p", number),
                exclusive=[],
                pool=pool,
                network=self.network,
                credit_based=False,
            )
            gate.add_channel(channel)
            self.gates.append(gate)
            self.receiver.open(channel)
        self.sequence = [0] * len(floating)

    def arrive(self, number: int, data: bytes) -> None:
        if self.sequence[number] % 3 == 2:
            self.receiver.on_parts(number, self.sequence[number], 0, memoryview(data), (len(data),), None)
        elif self.sequence[number] % 3:
            self.receiver.on_small_buffer(number, self.sequence[number], 0, data, 0)
        else:
            self.landing.memory[: len(data)] = data
            self.landing = self.receiver.on_buffer(number, self.sequence[number], 0, self.landing, len(data), 0)
        self.sequence[number] += 1

    def event(self, number: int) -> None:
        payload = encode_event(EndOfData(True))
        self.receiver.on_event(number, self.sequence[number], 0, DataType.END_OF_DATA, payload)
        self.sequence[number] += 1

    def read(self, number: int) -> list[bytes]:
        actual = []
        while (buffer := self.gates[number].poll()) is not None:
            actual.append(bytes(buffer.memory))
            buffer.recycle()
        return actual

    def assert_all_home(self) -> None:
        for gate in self.gates:
            gate.close()
        self.network.recycle_unpooled([self.landing])
        assert self.network.statistics().lent_segments == 0


def test_the_producer_may_send_without_end() -> None:
    stage = Stage(2, 2)
    assert stage.sent == [OpenChannel(0, "p", 0, MAX_CREDIT), OpenChannel(1, "p", 1, MAX_CREDIT)]
    for index in range(10):
        stage.arrive(0, b"%d" % index)
        stage.read(0)
    batch = OutgoingBatch()
    stage.receiver.collect(batch)
    assert batch.pieces == []  # nothing is ever announced
    stage.assert_all_home()


def test_one_channel_without_a_buffer_stops_all_and_nothing_is_lost() -> None:
    stage = Stage(2, 5)
    for data in (b"0", b"1", b"2", b"3"):
        stage.arrive(0, data)
    assert stage.pauses == [True]
    stage.arrive(1, b"x")
    stage.event(1)
    stage.arrive(1, b"y")
    assert stage.read(1) == []  # head-of-line blocking, although its gate has buffers
    buffer = stage.gates[0].poll()
    assert buffer is not None
    buffer.recycle()
    assert stage.pauses == [True]  # the place was taken by the next in line, and the one behind it waits now
    assert stage.read(1) == []
    assert stage.read(0) == [b"1", b"2", b"3"]
    assert stage.pauses == [True, False]
    assert stage.read(1) == [b"x", encode_event(EndOfData(True)), b"y"]
    assert stage.receiver.stalls == 1
    stage.assert_all_home()


def test_a_stopped_connection_goes_on_when_the_channel_leaves() -> None:
    stage = Stage(1, 3)
    stage.arrive(0, b"0")
    stage.arrive(0, b"1")
    stage.arrive(1, b"x")
    stage.gates[0].close()
    assert CancelChannel(0) in stage.sent
    assert stage.pauses == [True, False]
    assert stage.read(1) == [b"x"]
    stage.assert_all_home()


def test_a_lost_connection_drops_what_was_kept_aside() -> None:
    stage = Stage(1, 3)
    stage.arrive(0, b"0")
    stage.arrive(0, b"1")
    stage.receiver.on_closed(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        stage.read(1)
    buffer = stage.gates[0].poll()
    assert buffer is not None
    buffer.recycle()
    with pytest.raises(ConnectionLost):
        stage.read(0)
    stage.assert_all_home()


# End to end.

Scene = Callable[[NetworkEnvironment, NetworkEnvironment], Awaitable[None]]
OFF = NetworkConfig(segment_size_bytes=256, memory_bytes=256 * 400, credit_based=False, heartbeat_interval_s=None)
ON = NetworkConfig(segment_size_bytes=256, memory_bytes=256 * 400)


def between(config: NetworkConfig) -> Callable[[Scene], Callable[[], None]]:
    """Runs a test with two TaskManagers in virtual time."""

    def decorate(scene: Scene) -> Callable[[], None]:
        @functools.wraps(scene)
        def run() -> None:
            async def main() -> None:
                async with (
                    open_network("memory://p", config) as producer,
                    open_network("memory://c", config) as consumer,
                ):
                    await scene(producer, consumer)

            run_virtual(main)

        del run.__wrapped__  # type: ignore[attr-defined]  # its arguments are no fixtures
        return run

    return decorate


async def _write(manager: NetworkEnvironment, name: str, records: int, *, barrier_at: int = -1) -> None:
    partition = manager.create_partition(name, subpartitions=1)
    writer = RecordWriter(partition, format="int64", buffer_timeout_s=0)
    for index in range(records):
        if index == barrier_at:
            await writer.broadcast_event(CheckpointBarrier(1))
        await writer.emit(index)
    await writer.finish()
    await writer.wait_consumed()


async def _siblings(producer: NetworkEnvironment, consumer: NetworkEnvironment) -> tuple[int, int]:
    """Records of B.3 that come while B.4's consumer does not read, of 50,000; and of both in the end."""
    got = {"b3": 0, "b4": 0}

    async def read(gate: SingleInputGate, name: str) -> None:
        async for record in RecordReader(gate, format="int64"):
            assert record == got[name]
            got[name] += 1

    async with trio.open_nursery() as nursery:
        for name in got:
            nursery.start_soon(_write, producer, name, 50_000)
        stalled = await consumer.open_gate([ChannelDescriptor(producer.address, "b4")])
        free = await consumer.open_gate([ChannelDescriptor(producer.address, "b3")])
        nursery.start_soon(read, free, "b3")
        await trio.sleep(60)
        meanwhile = got["b3"]
        nursery.start_soon(read, stalled, "b4")
    return meanwhile, got["b3"] + got["b4"]


@between(OFF)
async def test_without_credits_a_stalled_sibling_stops_a_channel(
    producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    meanwhile, total = await _siblings(producer, consumer)
    assert meanwhile < 50_000
    assert total == 100_000


@between(ON)
async def test_with_credits_a_stalled_sibling_disturbs_nobody(
    producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    assert await _siblings(producer, consumer) == (50_000, 100_000)


@between(OFF)
async def test_barriers_block_and_resume_without_credits(
    producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(_write, producer, "p", 5000, barrier_at=2500))
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        records = [record async for record in RecordReader(gate, format="int64")]
    assert records == [*range(2500), CheckpointBarrier(1), *range(2500, 5000)]
