"""TaskManagers are left in any order, and nothing stays behind."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from network.network_environments import CONFIG, SCHEMES, assert_nothing_left, channels, settle, url
from trio.testing import MockClock

from netstack.base.errors import (
    ConnectionLost,
    ConsumerLost,
    InsufficientBuffers,
    LocalProtocolError,
    NetstackError,
    PartitionNotFound,
    PoolDestroyed,
    RemoteProtocolError,
)
from netstack.base.ids import ChannelDescriptor
from netstack.base.transport import transport_for
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.frames import Hello
from netstack.network.environment import GOODBYE_GRACE_S, NetworkEnvironment, open_network
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

# Closing in any order. A program holds a producer and a consumer; who leaves its block first?


async def hold(address: str, leave: trio.Event, *, task_status: trio.TaskStatus[NetworkEnvironment]) -> None:
    async with open_network(address, CONFIG) as manager:
        task_status.started(manager)
        await leave.wait()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("order", ["producer", "consumer", "both"])
async def test_task_managers_close_in_any_order_while_records_flow(scheme: str, order: str, tmp_path: Path) -> None:
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    opened: list[NetworkEnvironment] = []
    leave = [trio.Event(), trio.Event()]
    ends: dict[str, Exception] = {}

    async def write(partition: ResultPartition) -> None:
        writer = RecordWriter(partition, buffer_timeout_s=0)
        try:
            while True:
                await writer.emit(bytes(700))
                await trio.lowlevel.checkpoint()
        except NetstackError as error:
            ends["writer"] = error

    async def read(gate: SingleInputGate) -> None:
        reader = RecordReader(gate)
        try:
            while await reader.next_records():
                await trio.lowlevel.checkpoint()
        except NetstackError as error:
            ends["reader"] = error

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            opened += [await nursery.start(hold, url(scheme, tmp_path), event) for event in leave]
            producer, consumer = opened
            gate = await consumer.open_gate(channels(producer))
            nursery.start_soon(write, producer.create_partition("p", subpartitions=1))
            nursery.start_soon(read, gate)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            if order in ("producer", "both"):
                leave[0].set()
            if order in ("consumer", "both"):
                leave[1].set()
            await settle()
            if order == "producer":
                assert isinstance(ends["reader"], (ConnectionLost, PartitionNotFound))
            if order == "consumer":
                while "writer" not in ends:  # it fills its buffers before
                    await trio.lowlevel.checkpoint()
                assert isinstance(ends["writer"], ConsumerLost)
            for event in leave:
                event.set()
    assert isinstance(ends["writer"], (ConsumerLost, PoolDestroyed, LocalProtocolError))
    assert isinstance(ends["reader"], (ConnectionLost, PartitionNotFound, LocalProtocolError))
    assert not isinstance(ends["reader"], RemoteProtocolError)
    assert_nothing_left(*opened)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_leaving_waits_no_longer_than_the_grace_for_a_peer_that_hangs(autojump_clock: MockClock) -> None:
    """The producer here is a hello, and nothing else ever."""
    address = url()
    listener = await transport_for(address).listen(address)

    async def greet() -> None:
        stream = await listener.accept()
        hello = Hello(PROTOCOL_VERSION, CONFIG.segment_size_bytes, 0, "a peer that hangs")
        stream.try_send([NativeCodec().encode_control(hello)])
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet)
        async with open_network(url(), CONFIG) as consumer:
            await consumer.open_gate([ChannelDescriptor(address, "p")])
            start = trio.current_time()
        assert trio.current_time() - start == pytest.approx(GOODBYE_GRACE_S)
        assert_nothing_left(consumer)
        nursery.cancel_scope.cancel()
    listener.close()


async def test_leaving_does_not_wait_for_a_peer_that_answers(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer:
        producer.create_partition("p", subpartitions=1)
        async with open_network(url(), CONFIG) as consumer:
            await consumer.open_gate(channels(producer))
            start = trio.current_time()
        assert trio.current_time() == start
        assert_nothing_left(consumer)


async def test_the_callers_own_error_leaves_as_it_is(autojump_clock: MockClock) -> None:
    managers: list[NetworkEnvironment] = []

    async def program() -> None:
        async with open_network(url(), CONFIG) as manager:
            managers.append(manager)
            manager.create_partition("p", subpartitions=1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await program()
    assert_nothing_left(*managers)


async def test_a_closed_manager_says_so(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as manager:
        pass
    with pytest.raises(LocalProtocolError, match="the TaskManager is closed"):
        manager.create_partition("p", subpartitions=1)
    with pytest.raises(LocalProtocolError, match="TaskManager is closed"):
        await manager.open_gate([ChannelDescriptor("memory://nowhere", "p")])


async def test_failed_dials_leave_no_descriptor_behind() -> None:
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    tiny = replace(CONFIG, memory_bytes=10 * 1024)
    other_size = replace(CONFIG, segment_size_bytes=2048)
    async with (
        open_network(url("tcp"), CONFIG) as producer,
        open_network(url("tcp"), tiny) as poor,
        open_network(url("tcp"), other_size) as different,
    ):
        producer.create_partition("p", subpartitions=1)
        await trio.testing.wait_all_tasks_blocked()  # each has its timer
        before = len(os.listdir("/proc/self/fd"))
        async with open_network(url("tcp"), CONFIG) as lost:
            nowhere = lost.address
        for _ in range(5):
            with pytest.raises(ConnectionLost, match="cannot reach"):
                await producer.open_gate([ChannelDescriptor(nowhere, "p")])
            with pytest.raises(InsufficientBuffers):
                await poor.open_gate(channels(producer))
            with pytest.raises(RemoteProtocolError, match="SEGMENT_SIZE_MISMATCH"):
                await different.open_gate(channels(producer))
        for manager in (poor, different):
            assert manager.statistics().pool.lent_segments == 0
        while producer.statistics().accepted:  # until it has heard that they are gone
            await trio.lowlevel.checkpoint()
        assert len(os.listdir("/proc/self/fd")) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_more_channels_than_may_be_queued_close_all_the_same(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever closes thousands of channels at once ends the connection at most, and every segment is back."""
    async with (
        open_network("memory://wide", replace(CONFIG, memory_bytes=1 << 20)) as producer,
        open_network("memory://narrow", replace(CONFIG, memory_bytes=1 << 20)) as consumer,
    ):
        producer.create_partition("p", subpartitions=60)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", index) for index in range(60)])
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr("netstack.exchange.wire.connection.MAX_PENDING_CONTROL", 10)  # of 60 to be cancelled
        gate.close()
        await trio.testing.wait_all_tasks_blocked()
        assert consumer.statistics().pool.required_segments == 0
        assert consumer.statistics().gates == ()
