"""A consumer that went before the end of a partition: its producer learns it, and whether that was on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
from network.network_environments import CONFIG, settle, url
from trio.testing import MockClock

from netstack import ChannelDescriptor, NetworkConfig, NetworkEnvironment, open_network
from netstack.base.errors import ConsumerLost, LocalProtocolError, PoolDestroyed
from netstack.exchange.outbound.selector import CustomSelector
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

FLINK = replace(CONFIG, dialect="flink-2.3.0")
NAME = "0" * 120  # a name that Flink's dialect has too
Leave = Callable[[NetworkEnvironment, "RecordReader[int]"], Awaitable[None]]


async def killed(network: NetworkEnvironment, reader: RecordReader[int]) -> None:
    await network.shut_down(graceful=False)


async def ended_with_an_open_gate(network: NetworkEnvironment, reader: RecordReader[int]) -> None:
    await network.shut_down(graceful=True)


async def failed(network: NetworkEnvironment, reader: RecordReader[int]) -> None:
    with pytest.raises(ZeroDivisionError), reader:
        raise ZeroDivisionError


async def broke_off(network: NetworkEnvironment, reader: RecordReader[int]) -> None:
    with pytest.warns(UserWarning, match="call close"), reader:
        pass


async def closed_the_reader(network: NetworkEnvironment, reader: RecordReader[int]) -> None:
    with warnings.catch_warnings(action="error"), reader:
        reader.close()


LOST: list[Leave] = [killed, ended_with_an_open_gate, failed, broke_off]
ALL: list[tuple[Leave, bool]] = [*((leave, True) for leave in LOST), (closed_the_reader, False)]
local_or_config = pytest.mark.parametrize(("local", "config"), [(True, CONFIG), (False, CONFIG), (False, FLINK)])


class Pair:
    """A writer whose only consumer has read one of its records."""

    def __init__(self, writer: RecordWriter[int], network: NetworkEnvironment, reader: RecordReader[int]) -> None:
        self.writer = writer
        self.network = network
        self.reader = reader


async def read_one(
    producer: NetworkEnvironment, consumer: NetworkEnvironment, written: int = 1, **options: Any
) -> Pair:
    partition = producer.create_partition(NAME, subpartitions=1)
    writer = RecordWriter[int](partition, format="int64", **{"buffer_timeout_s": 0, **options})
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, NAME)])
    for number in range(written):
        await writer.emit(number)
    await writer.flush()
    reader = RecordReader[int](gate, format="int64")
    assert await anext(reader) == 0
    return Pair(writer, consumer, reader)


@pytest.mark.parametrize(("leave", "is_lost"), ALL)
@pytest.mark.parametrize("late", [False, True])
@local_or_config
async def test_waiting_for_a_consumer_that_left_before_the_end(
    autojump_clock: MockClock, local: bool, config: NetworkConfig, late: bool, leave: Leave, is_lost: bool
) -> None:
    async with open_network(url(), config) as producer, open_network(url(), config) as other:
        pair = await read_one(producer, producer if local else other)
        if local and leave in (killed, ended_with_an_open_gate):
            return  # the producer's network ends with it
        ended: list[ConsumerLost | None] = []

        async def wait() -> None:
            try:
                await pair.writer.finish()
                await pair.writer.wait_consumed()
                ended.append(None)
            except ConsumerLost as error:
                ended.append(error)

        async with trio.open_nursery() as nursery:
            if late:  # it leaves while the producer waits
                nursery.start_soon(wait)
                await settle()
                assert not ended
            await leave(pair.network, pair.reader)
            await settle()
            if not late:
                nursery.start_soon(wait)
        (error,) = ended
        assert bool(error) == is_lost
        if error is not None:
            assert (error.lost, error.acknowledged) == ((0,), ())
            assert "subpartition 0 was lost" in str(error)
            assert "0 of 1 consumer acknowledged" in str(error)


@pytest.mark.parametrize("leave", [*LOST, closed_the_reader])
@pytest.mark.parametrize("options", [{"buffer_timeout_s": 0}, {"buffer_timeout_s": 0.1}, {"buffer_timeout_s": None}])
async def test_not_one_more_record_is_taken_when_nobody_reads(
    autojump_clock: MockClock, options: dict[str, Any], leave: Leave
) -> None:
    """Also while there are free buffers, and room in the open one."""
    async with open_network(url(), CONFIG) as producer, open_network(url(), CONFIG) as consumer:
        pair = await read_one(producer, consumer, 3, **options)
        await pair.writer.emit(3)
        await leave(pair.network, pair.reader)
        await settle()
        records = pair.writer.partition.statistics().records
        with pytest.raises(trio.WouldBlock):
            pair.writer.emit_nowait(4)
        for _ in range(2):
            with pytest.raises(ConsumerLost, match="nobody reads"):
                await pair.writer.emit(4)
        assert pair.writer.partition.statistics().records == records
        pair.writer.partition.release()


@local_or_config
async def test_a_consumer_that_read_everything_is_not_lost_however_it_leaves(
    autojump_clock: MockClock, local: bool, config: NetworkConfig
) -> None:
    async with open_network(url(), config) as producer, open_network(url(), config) as other:
        pair = await read_one(producer, producer if local else other, 5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.writer.finish)
            with pair.reader:
                assert [number async for number in pair.reader] == [1, 2, 3, 4]
        await settle()  # its last words are sent
        if not local:
            await pair.network.shut_down(graceful=False)
        await pair.writer.wait_consumed()


async def test_the_block_of_a_writer_ends_with_the_loss(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer, open_network(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=2)
        staying = await producer.open_gate([ChannelDescriptor(producer.address, "p", 1)])
        leaving = await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)])

        async def write() -> None:
            selector = CustomSelector(lambda record, channels: record % channels)
            async with RecordWriter[int](partition, format="int64", selector=selector) as writer:
                await writer.emit(0)
                await writer.emit(1)
                leaving.abandon()
                await settle()
                await writer.emit(2)  # another one still reads
                await writer.emit(3)

        with pytest.raises(ConsumerLost, match=r"subpartition 0 .* 0 of 2 ") as caught:
            await write()
        assert (caught.value.lost, caught.value.acknowledged) == ((0,), ())
        assert [number async for number in RecordReader(staying, format="int64")] == [1, 3]


async def test_acknowledged_are_those_that_processed_everything(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer, open_network(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=3)
        writer = RecordWriter[int](partition, format="int64")
        for number in range(6):
            await writer.emit(number)
        await writer.finish()
        gates = [await consumer.open_gate([ChannelDescriptor(producer.address, "p", index)]) for index in range(3)]
        assert [number async for number in RecordReader(gates[1], format="int64")] == [1, 4]
        await settle()
        gates[0].abandon()
        gates[2].abandon()
        with pytest.raises(ConsumerLost, match=r"subpartition 0 \(and 1 more\) was lost") as caught:
            await writer.wait_consumed()
        assert (caught.value.lost, caught.value.acknowledged) == ((0, 2), (1,))


async def test_waiting_before_the_end_was_sent_is_refused(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer:
        writer = RecordWriter[int](producer.create_partition("p", subpartitions=1), format="int64")
        with pytest.raises(LocalProtocolError, match="'p' has no end yet; await `finish"):
            await writer.wait_consumed()


async def test_waiting_for_a_partition_that_was_released_or_failed(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG) as producer:
        for end in ("release", "fail"):
            writer = RecordWriter[int](producer.create_partition("p", subpartitions=1), format="int64")
            await writer.emit(1)
            await writer.finish()
            if end == "fail":
                writer.partition.fail("its disk burnt")
            else:
                producer.release_partition("p")
            with pytest.raises(PoolDestroyed, match="'p' was released before its consumers") as caught:
                await writer.wait_consumed()
            assert ("its disk burnt" in str(caught.value)) == (end == "fail")
