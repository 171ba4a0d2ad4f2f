"""netstack under asyncio: the same records, waits that are awaits, and cancellations that tear nothing."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

import netstack
from netstack import ChannelDescriptor, CheckpointBarrier, NetworkConfig, UserEvent, aio
from netstack.base.errors import ChannelFailed, LocalProtocolError, PoolDestroyed, RecordError
from netstack.exchange.inbound.closing import UnreadRecordsWarning

SMALL = NetworkConfig(memory_bytes=1 << 20, segment_size_bytes=4096)


def in_asyncio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), 30))

    return run


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[aio.NetworkEnvironment, aio.NetworkEnvironment]]:
    here = "tcp://127.0.0.1:0"
    async with aio.open_network(here, SMALL) as producer, aio.open_network(here, SMALL) as consumer:
        yield producer, consumer


async def open_words(
    producer: aio.NetworkEnvironment, consumer: aio.NetworkEnvironment, **settings: Any
) -> tuple[aio.RecordWriter[str], Any]:
    partition = producer.create_partition("words", subpartitions=1)
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, "words")])
    return aio.RecordWriter[str](partition, format="str", **settings), gate


@in_asyncio
async def test_records_events_and_the_end_arrive_in_order() -> None:
    async with pair() as (producer, consumer):
        writer, gate = await open_words(producer, consumer)

        async def produce() -> None:
            async with writer:
                for number in range(5000):
                    await writer.emit(f"word {number}")
                await writer.broadcast_event(UserEvent("half"))
                await writer.flush()
                for number in range(5000, 10_000):
                    await writer.emit(f"word {number}")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            actual = [element async for element in aio.RecordReader[Any](gate, format="str")]
        words = [f"word {number}" for number in range(10_000)]
        assert actual == [*words[:5000], UserEvent("half"), *words[5000:]]
        await writer.wait_consumed()
        assert producer.statistics().partitions == ()


@in_asyncio
async def test_barriers_are_aligned() -> None:
    async with pair() as (producer, consumer):
        parts = [producer.create_partition(name, subpartitions=1) for name in ("one", "other")]
        writers = [aio.RecordWriter(each, format="str", buffer_timeout_s=0) for each in parts]
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, name) for name in ("one", "other")])
        await writers[0].broadcast_event(CheckpointBarrier(1))
        await writers[0].emit("after")
        await writers[1].emit("before")
        reader = aio.RecordReader[Any](gate, format="str", aligns_barriers=True)
        assert await anext(reader) == "before"
        await writers[1].broadcast_event(CheckpointBarrier(1))
        assert (await anext(reader)).checkpoint_id == 1
        assert await anext(reader) == "after"


@in_asyncio
async def test_arrays() -> None:
    async with pair() as (producer, consumer):
        partition = producer.create_partition("numbers", subpartitions=1)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "numbers")])
        numbers = np.arange(400_000, dtype="<i8")

        async def produce() -> None:
            async with aio.RecordWriter(partition, format="int64") as writer:
                for part in np.split(numbers, 40):
                    await writer.emit_batch(part)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            actual = [array async for array in aio.ArrayReader(gate, "<i8")]
        assert np.array_equal(np.concatenate(actual), numbers)


@in_asyncio
async def test_back_pressure_is_an_await_and_a_cancelled_emit_took_nothing() -> None:
    async with pair() as (producer, consumer):
        writer, gate = await open_words(producer, consumer)
        taken = 0

        async def fill() -> None:
            nonlocal taken
            while True:
                await writer.emit(f"{taken:06}" + "x" * 1000)
                taken += 1

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fill(), 0.3)
        buffers = 2 * (SMALL.exclusive_buffers_per_channel + SMALL.floating_buffers_per_gate)
        assert taken <= (buffers + 1) * 4, "at most what the buffers of both ends hold, four records each, as in trio"
        reader = aio.RecordReader[str](gate, format="str")

        async def read() -> list[int]:
            return [int(word[:6]) async for word in reader]

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            await writer.emit(f"{taken:06}")
            await writer.finish()
        assert reading.result() == list(range(taken + 1))


@in_asyncio
async def test_nothing_overtakes_a_batch_whose_call_was_cancelled() -> None:
    async with pair() as (producer, consumer):
        partition = producer.create_partition("rows", subpartitions=2)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "rows", index) for index in range(2)])
        writer = aio.RecordWriter(partition, buffer_timeout_s=None)
        await writer.emit(b"\0")
        await writer.emit(b"\0")  # the second channel has an open buffer with room, in which the batch has no part yet
        batch = np.ones((401, 4000), np.uint8)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.emit_batch(batch), 0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.flush(), 0.01)
        with pytest.raises(trio.WouldBlock):
            writer.emit_nowait(b"\2")

        async def read() -> list[bytes]:
            with aio.RecordReader[bytes](gate) as reader:
                return [record async for record in reader]

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            await writer.finish()
        assert len(reading.result()) == 2 + len(batch)


@in_asyncio
async def test_a_gate_that_opens_while_its_call_is_cancelled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as (producer, consumer):
        producer.create_partition("words", subpartitions=1)
        manager = consumer._inner.portal.inside
        open_gate, is_open = manager.open_gate, threading.Event()

        async def open_and_tell(descriptors: Any) -> Any:
            gate = await open_gate(descriptors)
            is_open.set()
            return gate

        monkeypatch.setattr(manager, "open_gate", open_and_tell)
        opening = asyncio.create_task(consumer.open_gate([ChannelDescriptor(producer.address, "words")]))
        await asyncio.sleep(0)
        assert is_open.wait(120.0)  # asyncio does not hear of it before the cancellation
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert consumer.statistics().gates == ()


@in_asyncio
async def test_a_with_block_closes_readers() -> None:
    async with pair() as (producer, consumer):
        writer, gate = await open_words(producer, consumer, buffer_timeout_s=None)
        await writer.emit("one")
        await writer.emit("two")
        await writer.finish()
        reader = aio.RecordReader[str](gate, format="str")
        with pytest.warns(UnreadRecordsWarning, match="left 1 records"), reader:
            assert await anext(aiter(reader)) == "one"
        assert await reader.next_records() == ["two"]
        with pytest.raises(LocalProtocolError):
            await reader.next_records()


@in_asyncio
async def test_a_cancelled_read_loses_nothing() -> None:
    async with pair() as (producer, consumer):
        writer, gate = await open_words(producer, consumer, buffer_timeout_s=0)
        reader = aio.RecordReader[str](gate, format="str")
        actual = []
        for number in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.next_records(), 0.001)
            await writer.emit(f"{number}")
            actual.append(await anext(reader))
        assert actual == [str(number) for number in range(20)]
        reader.close()


@in_asyncio
async def test_a_block_that_raises_fails_its_consumers() -> None:
    async with pair() as (producer, consumer):
        writer, gate = await open_words(producer, consumer)
        with pytest.raises(ValueError, match="no more paper"):
            async with writer:
                raise ValueError("no more paper")
        with pytest.raises(ChannelFailed, match="no more paper"):
            await anext(aio.RecordReader(gate, format="str"))
        with pytest.raises((PoolDestroyed, LocalProtocolError)):
            await writer.finish()


@in_asyncio
async def test_errors_are_those_of_the_call() -> None:
    async with pair() as (producer, consumer):
        writer, gate = await open_words(producer, consumer)
        with pytest.raises(RecordError):
            await writer.emit(7)  # type: ignore[arg-type]
        with pytest.raises(RecordError):
            writer.emit_nowait(7)  # type: ignore[arg-type]
        reader = aio.RecordReader[str](gate, format="str")
        waiting = asyncio.ensure_future(reader.next_records())
        await asyncio.sleep(0)  # it begins
        with pytest.raises(LocalProtocolError, match="another call"):
            await reader.next_records()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@in_asyncio
async def test_closing_wakes_who_waits() -> None:
    async with pair() as (producer, consumer):
        _, gate = await open_words(producer, consumer)
        waiting = asyncio.ensure_future(aio.RecordReader[str](gate, format="str").next_records())
        await asyncio.sleep(0)  # it begins
    with pytest.raises(LocalProtocolError):
        await waiting


@in_asyncio
async def test_without_trio_the_call_says_what_to_do() -> None:
    with pytest.raises(LocalProtocolError, match=r"called outside trio.*trio\.run.*netstack\.aio.*netstack\.blocking"):
        async with netstack.open_network("tcp://127.0.0.1:0"):
            pass


@in_asyncio
async def test_an_address_that_cannot_be_had_is_told() -> None:
    with pytest.raises(OSError, match="cannot listen at tcp"):
        async with aio.open_network("tcp://192.0.2.1:1"):
            pass


@in_asyncio
async def test_a_record_that_is_too_long_is_not_taken() -> None:
    config = NetworkConfig(memory_bytes=1 << 20, segment_size_bytes=4096, max_record_bytes=5000)
    async with aio.open_network("tcp://127.0.0.1:0", config) as manager:
        partition = manager.create_partition("p", subpartitions=1)
        async with aio.RecordWriter[bytes](partition) as writer:
            with pytest.raises(RecordError, match=r"\b5001\b.*=5000"):
                await writer.emit(bytes(5001))
            await writer.emit(bytes(5000))
            gate = await manager.open_gate([ChannelDescriptor(manager.address, "p")])
            await writer.finish()
            assert [record async for record in aio.RecordReader[bytes](gate)] == [bytes(5000)]


def test_without_asyncio_the_call_says_what_to_do() -> None:
    async def use() -> None:
        async with aio.open_network("tcp://127.0.0.1:0"):
            pass

    with pytest.raises(LocalProtocolError, match=r"outside asyncio: call it inside asyncio.run"):
        trio.run(use)
