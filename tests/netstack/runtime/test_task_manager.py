"""TaskManagers end to end in one process: what is written arrives, whoever leaves first, and nothing is left behind."""

from __future__ import annotations

import functools
import gc
import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from netstack.config import NetworkConfig
from netstack.errors import (
    ChannelFailed,
    ConfigError,
    ConnectionLost,
    InsufficientBuffers,
    LocalProtocolError,
    NetstackError,
    PartitionNotFound,
    PoolDestroyed,
    ProducerFailed,
    RemoteProtocolError,
)
from netstack.events import Alignment, CheckpointBarrier, UserEvent
from netstack.ids import ChannelDescriptor, ResultPartitionType
from netstack.inbound.gate import SingleInputGate
from netstack.inbound.union import UnionInputGate
from netstack.outbound.partition import ResultPartition
from netstack.outbound.selector import BroadcastSelector, CustomSelector
from netstack.runtime.record_reader import ArrayReader, RecordReader
from netstack.runtime.record_writer import RecordWriter
from netstack.runtime.task_manager import GOODBYE_GRACE_S, TaskManager, open_task_manager
from netstack.transport import transport_for
from netstack.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.wire.frames import Hello

CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=64 * 1024, heartbeat_interval_s=None)
SCHEMES = ["memory", "tcp", "unix"]

numbers = itertools.count()


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time; what would hang fails after a virtual hour."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            with trio.fail_after(3600):
                await test(*arguments, **keywords)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def real(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in real time; what would hang fails after ten seconds."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            with trio.fail_after(10):
                await test(*arguments, **keywords)

        trio.run(main)

    return run


def url(scheme: str = "memory", folder: Path | None = None) -> str:
    match scheme:
        case "tcp":
            return "tcp://127.0.0.1:0"
        case "unix":
            return f"unix://{folder}/{next(numbers)}.sock"
        case _:
            return f"memory://task-manager-{next(numbers)}"


def channels(manager: TaskManager, name: str = "p", count: int = 1) -> list[ChannelDescriptor]:
    return [ChannelDescriptor(manager.address, name, index) for index in range(count)]


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def read_all(gate: SingleInputGate | UnionInputGate, into: list[list[Any]]) -> None:
    reader = RecordReader(gate)
    while (records := await reader.next_records()) is not None:
        into[reader.channel_index] += records


def assert_nothing_left(*managers: TaskManager) -> None:
    for manager in managers:
        statistics = manager.statistics()
        assert statistics.pool.lent_segments == 0
        assert (statistics.partitions, statistics.accepted, statistics.dialled, statistics.gates) == ((), (), (), ())


# The whole way.


@pytest.mark.parametrize("scheme", SCHEMES)
@real
async def test_records_and_arrays_arrive_in_order(scheme: str, tmp_path: Path) -> None:
    received: list[list[Any]] = [[], []]
    async with (
        open_task_manager(url(scheme, tmp_path), CONFIG) as producer,
        open_task_manager(url(scheme, tmp_path), CONFIG) as consumer,
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


@virtual
async def test_a_local_channel_gives_the_same_and_touches_no_stream() -> None:
    outcomes = []
    for local in (True, False):
        received: list[list[Any]] = [[], [], []]
        async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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


@virtual
async def test_one_gate_over_local_and_remote_channels() -> None:
    received: list[list[Any]] = [[], []]
    async with open_task_manager(url(), CONFIG) as there, open_task_manager(url(), CONFIG) as here:
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


@virtual
async def test_a_union_of_two_gates_on_one_connection() -> None:
    received: list[list[Any]] = [[], [], []]
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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
@virtual
async def test_channels_with_data_take_turns(local: bool) -> None:
    """Ten full buffers wait on each of four channels: no channel ever gets two ahead of another."""
    config = replace(CONFIG, exclusive_buffers_per_channel=10, memory_bytes=128 * 1024)
    async with open_task_manager(url(), config) as producer, open_task_manager(url(), config) as consumer:
        partition = producer.create_partition("p", subpartitions=4)
        writer = RecordWriter(partition, buffer_timeout_s=None)
        gate = await (producer if local else consumer).open_gate(channels(producer, count=4))
        for _ in range(10 * 4):
            await writer.emit(bytes(1020))
        await settle()
        counts = [0] * 4
        for _ in range(40):
            buffer = gate.poll()
            assert buffer is not None
            counts[buffer.channel_index] += 1
            buffer.recycle()
            assert max(counts) - min(counts) <= 1
        assert gate.poll() is None
        gate.close()


@virtual
async def test_broadcast_shares_its_buffers_among_remote_and_local_consumers() -> None:
    received: list[list[Any]] = [[], []]
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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


# The end of data.


@pytest.mark.parametrize("local", [True, False])
@virtual
async def test_consumed_means_that_the_consumer_has_processed_every_record(local: bool) -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        writer = RecordWriter(producer.create_partition("p", subpartitions=1))
        gate = await (producer if local else consumer).open_gate(channels(producer))
        await writer.emit(b"a")
        await writer.finish()
        consumed = trio.Event()

        async def wait() -> None:
            await writer.wait_consumed()
            consumed.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            reader = RecordReader(gate)
            assert await reader.__anext__() == b"a"
            await settle()
            assert not consumed.is_set()  # it works on the record
            with pytest.raises(StopAsyncIteration):
                await reader.__anext__()
            await consumed.wait()
        assert gate.ended_with_drain is True
        gate.close()


@virtual
async def test_a_stop_without_drain_is_told() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        writer = RecordWriter(producer.create_partition("p", subpartitions=1))
        gate = await consumer.open_gate(channels(producer))
        await writer.finish(drain=False)
        assert [record async for record in RecordReader(gate)] == []
        assert gate.ended_with_drain is False
        gate.close()


# Barriers.


@pytest.mark.parametrize("local", [True, False])
@virtual
async def test_an_aligned_barrier_blocks_its_channel_until_the_next_element_is_asked_for(local: bool) -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition, buffer_timeout_s=0)
        gate = await (producer if local else consumer).open_gate(channels(producer))
        reader = RecordReader(gate)
        await writer.emit(b"before")
        await writer.broadcast_event(CheckpointBarrier(7, alignment=Alignment.ALIGNED))
        await writer.emit(b"after")
        assert await reader.__anext__() == b"before"
        assert await reader.__anext__() == CheckpointBarrier(7, alignment=Alignment.ALIGNED)
        await settle()
        gate.poke()
        assert partition.statistics().subpartitions[0].is_blocked
        assert gate.poll() is None
        assert await reader.__anext__() == b"after"
        assert not partition.statistics().subpartitions[0].is_blocked
        gate.close()


@virtual
async def test_an_unaligned_barrier_overtakes_what_waits_at_the_producer() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        writer = RecordWriter(producer.create_partition("p", subpartitions=1), buffer_timeout_s=None)
        gate = await consumer.open_gate(channels(producer))
        for _ in range(8):
            await writer.emit(bytes(1020))
        barrier = CheckpointBarrier(7, alignment=Alignment.UNALIGNED)
        await writer.broadcast_event(barrier)
        await writer.finish()
        elements = [element async for element in RecordReader(gate)]
        assert elements.count(bytes(1020)) == 8
        assert elements.index(barrier) < 8
        gate.close()


@virtual
async def test_a_resume_out_of_turn_fails_that_channel_and_no_other() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=2)
        writer = RecordWriter(partition, buffer_timeout_s=0)
        gate = await consumer.open_gate(channels(producer, count=2))
        await settle()
        gate.resume(0)
        reader = RecordReader(gate)
        with pytest.raises(ChannelFailed, match="not blocked"):
            await reader.__anext__()
        await writer.emit(b"to nobody")
        await writer.emit(b"to the other")
        assert await reader.__anext__() == b"to the other"
        gate.close()


# Failures of a producer.


@pytest.mark.parametrize("local", [True, False])
@virtual
async def test_a_producers_failure_reaches_its_consumers_with_the_cause(local: bool) -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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


@virtual
async def test_a_writer_that_waits_for_a_buffer_is_woken_by_the_failure() -> None:
    async with open_task_manager(url(), CONFIG) as producer:
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


@virtual
async def test_one_channels_failure_leaves_the_others_on_the_connection_going() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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


@virtual
async def test_in_one_gate_too_the_other_channels_go_on() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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


@virtual
async def test_a_reader_that_goes_on_after_a_failure_still_comes_to_an_end() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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
@virtual
async def test_the_smallest_quota_that_is_accepted_does_not_stop_a_writer(buffer_timeout_s: float | None) -> None:
    """Every subpartition may hold an open buffer for good: that alone must not keep the others from theirs."""
    quota = 1
    try:
        config = replace(CONFIG, max_buffers_per_channel=quota)
    except ConfigError:
        quota = 2
        config = replace(CONFIG, max_buffers_per_channel=quota)
    received: list[list[Any]] = [[], [], []]
    async with open_task_manager(url(), config) as producer, open_task_manager(url(), config) as consumer:
        writer = RecordWriter(producer.create_partition("p", subpartitions=3), buffer_timeout_s=buffer_timeout_s)
        gate = await consumer.open_gate(channels(producer, count=3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, gate, received)
            for number in range(60):
                await writer.emit(b"%d" % number * 100)
            await writer.finish()
        gate.close()
    assert received == [[b"%d" % number * 100 for number in range(index, 60, 3)] for index in range(3)]


@virtual
async def test_a_record_larger_than_the_quota_goes_through_whole() -> None:
    """The quota is asked between records: one that was begun is written to its end."""
    config = replace(CONFIG, max_buffers_per_channel=2, memory_bytes=256 * 1024)
    received: list[list[Any]] = [[], []]
    records = [bytes([number]) * 5000 for number in range(6)] + [b"small"] * 6
    async with open_task_manager(url(), config) as producer, open_task_manager(url(), config) as consumer:
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


@virtual
async def test_an_idle_channel_hears_of_a_release() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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
@virtual
async def test_a_partition_created_late_is_served(local: bool) -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        gate = await (producer if local else consumer).open_gate(channels(producer))
        await trio.sleep(9)
        writer = RecordWriter(producer.create_partition("p", subpartitions=1))
        await writer.emit(b"x")
        await writer.finish()
        assert [record async for record in RecordReader(gate)] == [b"x"]
        gate.close()


@pytest.mark.parametrize("local", [True, False])
@virtual
async def test_a_partition_that_never_comes_fails_its_channel_after_the_timeout(local: bool) -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        producer.create_partition("q", subpartitions=1)
        gate = await (producer if local else consumer).open_gate(channels(producer))
        start = trio.current_time()
        with pytest.raises(PartitionNotFound, match=r"no partition 'p' was created within 10 s \(known: q\)"):
            await RecordReader(gate).__anext__()
        assert trio.current_time() - start == pytest.approx(10)
        gate.close()
        producer.release_partition("q")
        await settle()
        assert_nothing_left(producer, consumer)


@pytest.mark.parametrize("local", [True, False])
@virtual
async def test_a_gate_closed_while_it_waits_does_not_take_the_partition_from_the_next(local: bool) -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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
@virtual
async def test_a_subpartition_is_consumed_once(local: bool) -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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
@virtual
async def test_a_subpartition_out_of_range(local: bool) -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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
@virtual
async def test_a_consumer_that_leaves_does_not_let_the_producer_run_away(local: bool) -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition, buffer_timeout_s=None)
        gate = await (producer if local else consumer).open_gate(channels(producer))
        await writer.emit(bytes(1020))
        gate.close()
        await settle()
        written = 0
        with trio.move_on_after(5):
            while True:
                await writer.emit(bytes(1020))
                written += 1
        assert written < 20  # its buffers, and no more
        assert partition.statistics().subpartitions[0].is_consumed
        partition.release()
        await settle()
        assert_nothing_left(producer, consumer)


@virtual
async def test_a_gate_closed_while_its_reader_waits_ends_the_reader() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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
        assert "the input gate is closed" in str(ended[0])
        await settle()
        assert consumer.statistics().pool.lent_segments == 0


@virtual
async def test_a_slow_channel_does_not_slow_another_on_its_connection() -> None:
    """The consumer of one channel never reads; the other gets thousands of buffers through."""
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
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


# Closing in any order. A program holds a producer and a consumer; who leaves its block first?


async def hold(address: str, leave: trio.Event, *, task_status: trio.TaskStatus[TaskManager]) -> None:
    async with open_task_manager(address, CONFIG) as manager:
        task_status.started(manager)
        await leave.wait()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("order", ["producer", "consumer", "both"])
@real
async def test_task_managers_close_in_any_order_while_records_flow(scheme: str, order: str, tmp_path: Path) -> None:
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    opened: list[TaskManager] = []
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

    with trio.fail_after(5):
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
                assert "writer" not in ends  # back-pressured, until its own manager is closed
            for event in leave:
                event.set()
    assert isinstance(ends["writer"], (PoolDestroyed, LocalProtocolError))
    assert isinstance(ends["reader"], (ConnectionLost, PartitionNotFound, LocalProtocolError))
    assert not isinstance(ends["reader"], RemoteProtocolError)
    assert_nothing_left(*opened)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors


@virtual
async def test_leaving_waits_no_longer_than_the_grace_for_a_peer_that_hangs() -> None:
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
        async with open_task_manager(url(), CONFIG) as consumer:
            await consumer.open_gate([ChannelDescriptor(address, "p")])
            start = trio.current_time()
        assert trio.current_time() - start == pytest.approx(GOODBYE_GRACE_S)
        assert_nothing_left(consumer)
        nursery.cancel_scope.cancel()
    listener.close()


@virtual
async def test_leaving_does_not_wait_for_a_peer_that_answers() -> None:
    async with open_task_manager(url(), CONFIG) as producer:
        producer.create_partition("p", subpartitions=1)
        async with open_task_manager(url(), CONFIG) as consumer:
            await consumer.open_gate(channels(producer))
            start = trio.current_time()
        assert trio.current_time() == start
        assert_nothing_left(consumer)


@virtual
async def test_the_callers_own_error_leaves_as_it_is() -> None:
    managers: list[TaskManager] = []

    async def program() -> None:
        async with open_task_manager(url(), CONFIG) as manager:
            managers.append(manager)
            manager.create_partition("p", subpartitions=1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await program()
    assert_nothing_left(*managers)


@virtual
async def test_a_closed_manager_says_so() -> None:
    async with open_task_manager(url(), CONFIG) as manager:
        pass
    with pytest.raises(LocalProtocolError, match="the TaskManager is closed"):
        manager.create_partition("p", subpartitions=1)
    with pytest.raises(LocalProtocolError, match="the TaskManager is closed"):
        await manager.open_gate([ChannelDescriptor("memory://nowhere", "p")])


@real
async def test_failed_dials_leave_no_descriptor_behind() -> None:
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    tiny = replace(CONFIG, memory_bytes=10 * 1024)
    other_size = replace(CONFIG, segment_size_bytes=2048)
    async with (
        open_task_manager(url("tcp"), CONFIG) as producer,
        open_task_manager(url("tcp"), tiny) as poor,
        open_task_manager(url("tcp"), other_size) as different,
    ):
        producer.create_partition("p", subpartitions=1)
        before = len(os.listdir("/proc/self/fd"))
        async with open_task_manager(url("tcp"), CONFIG) as gone:
            nowhere = gone.address
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


# Wrong arguments, and too little memory.


@virtual
async def test_wrong_arguments_name_what_is_wrong() -> None:
    async with open_task_manager(url(), CONFIG) as manager:
        manager.create_partition("p", subpartitions=1)
        with pytest.raises(LocalProtocolError, match="partition 'p' exists already"):
            manager.create_partition("p", subpartitions=1)
        with pytest.raises(ConfigError, match="subpartitions=0"):
            manager.create_partition("q", subpartitions=0)
        with pytest.raises(ConfigError, match="partition id"):
            manager.create_partition("", subpartitions=1)
        with pytest.raises(ConfigError, match="at least one ChannelDescriptor"):
            await manager.open_gate([])
        with pytest.raises(ConfigError, match="no scheme"):
            await manager.open_gate([ChannelDescriptor("nowhere", "p")])
        assert manager.statistics().gates == ()
        assert len(manager.statistics().partitions) == 1
        manager.release_partition("never was")


@virtual
async def test_too_little_memory_says_what_to_raise_and_takes_nothing() -> None:
    small = NetworkConfig(segment_size_bytes=1024, memory_bytes=6 * 1024, heartbeat_interval_s=None)
    async with open_task_manager(url(), small) as manager, open_task_manager(url(), small) as other:
        with pytest.raises(InsufficientBuffers, match=r"'p' with 9 subpartitions requires 10 .* raise memory_bytes"):
            manager.create_partition("p", subpartitions=9)
        with pytest.raises(InsufficientBuffers, match=r"a gate of 3 channels \(3 remote\) requires 6"):
            await manager.open_gate(channels(other, count=3))
        assert_nothing_left(manager, other)
        manager.create_partition("p", subpartitions=5)


@virtual
async def test_an_address_in_use_is_named() -> None:
    address = url()
    async with open_task_manager(address, CONFIG):
        with pytest.raises(OSError, match=address):
            async with open_task_manager(address, CONFIG):
                raise AssertionError("two at one address")


# Many small things at once.


@virtual
async def test_a_shuffle_of_three_by_three() -> None:
    """Three producers with three subpartitions each, three consumers that read one of each: every record once."""
    async with (
        open_task_manager(url(), CONFIG) as one,
        open_task_manager(url(), CONFIG) as two,
        open_task_manager(url(), CONFIG) as three,
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


@virtual
async def test_arrays_and_their_events() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        writer = RecordWriter(producer.create_partition("p", subpartitions=2), format="int64")
        gate = await consumer.open_gate(channels(producer, count=2))
        values = np.arange(5000, dtype="<i8")
        parts: list[list[Any]] = [[], []]

        async def read() -> None:
            reader = ArrayReader(gate, "<i8")
            async for array in reader:
                parts[reader.channel_index].append(array)
            assert sorted(channel for channel, _ in reader.events) == [0, 1]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await writer.emit_batch(values[:3000])
            await writer.broadcast_event(UserEvent("half"))
            await writer.emit_batch(values[3000:])
            await writer.finish()
        for index in (0, 1):
            assert np.concatenate(parts[index]).tolist() == values[index::2].tolist()
        gate.close()


# What statistics and the log say.


@virtual
async def test_gates_are_named_by_what_they_read_each_once() -> None:
    async with open_task_manager(url(), CONFIG) as manager:
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


@virtual
async def test_a_shortage_of_memory_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="netstack")
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        for number in range(6):
            producer.create_partition(f"p{number}", subpartitions=1)  # up to 10 of 64 buffers each
        assert caplog.messages == []
        last = producer.create_partition("last", subpartitions=1)
        assert len(caplog.messages) == 1
        assert "109 % of it is requested (70 of 64 segments, 6 are missing)" in caplog.messages[0]
        last.release()
        producer.release_partition("p0")
        producer.create_partition("one more", subpartitions=1)
        assert caplog.messages[1:] == ["network memory suffices again: 94 % of it is requested"]
        caplog.clear()
        gates = [await consumer.open_gate(channels(producer, f"p{number}")) for number in range(1, 6)]
        assert "requested" in caplog.messages[0]
        assert consumer.statistics().connections == 1
        assert len(gates) == len(consumer.statistics().gates) == 5
