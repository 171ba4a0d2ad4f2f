"""A task's output: never waits inside `collect`, keeps order, waits between records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import LocalProtocolError
from netstack.base.ids import ChannelDescriptor
from netstack.cluster.task.chain_loop import MAX_SLICE, next_part
from netstack.cluster.task.mailbox import Mailbox
from netstack.cluster.task.output import TaskOutput
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter
from netstack.schedule.descriptors.information import EdgeId, OutputInformation

CONFIG = NetworkConfig(segment_size_bytes=256, memory_bytes=256 * 100, max_overdraft_buffers_per_partition=1)
FITS = 20
"""Records of 12 framed bytes a buffer holds whole, at least."""


@asynccontextmanager
async def outputs(count: int) -> AsyncIterator[tuple[NetworkEnvironment, TaskOutput, Mailbox]]:
    async with open_network("memory://output", CONFIG) as manager:
        mailbox = Mailbox()
        writers = [
            RecordWriter(manager.create_partition(f"p{index}", subpartitions=1), format="int64", buffer_timeout_s=0)
            for index in range(count)
        ]
        reported = [OutputInformation(EdgeId("source", f"p{index}"), format="int64") for index in range(count)]
        yield manager, TaskOutput(writers, reported, mailbox, manager.now), mailbox
    assert manager.statistics().pool.lent_segments == 0


async def read(manager: NetworkEnvironment, name: str) -> list[int]:
    gate = await manager.open_gate([ChannelDescriptor(manager.address, name)])
    actual = [record async for record in RecordReader(gate, format="int64")]
    gate.close()
    return actual


def push(output: TaskOutput, record: int) -> bool:
    for edge in output.edges:
        edge.target.push(record)
    return output.flush()


def fill(output: TaskOutput) -> int:
    """Collects until something stays staged; returns how many records."""
    number = 1
    while push(output, number - 1):
        number += 1
    return number


def test_the_next_part_has_about_as_much_output_as_is_to_be_staged() -> None:
    assert next_part(1, 1, 0, 1000) == 2
    assert next_part(8, 8, 400, 1000) == 16
    assert next_part(8, 8, 800, 1000) == 8
    assert next_part(8, 8, 4000, 1000) == 2
    assert next_part(8, 8, 10**6, 1000) == 1
    assert next_part(8, 3, 0, 1000) == 8, "the end of a read says nothing"
    assert next_part(8, 8, 0, 0) == 16, "a sink"
    assert next_part(MAX_SLICE, MAX_SLICE, 0, 1000) == MAX_SLICE


async def test_what_finds_no_buffer_is_kept_and_written_in_order(autojump_clock: MockClock) -> None:
    async with outputs(1) as (manager, output, mailbox):
        number = fill(output)
        assert number > 10 * FITS  # with the overdraft
        assert not output.is_available
        for late in range(number, number + 5):
            push(output, late)
        assert not output.edges[0].slices.is_empty
        actual: list[list[int]] = []
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def consume() -> None:
                actual.append(await read(manager, "p0"))

            output.edges[0].target.push_batch(np.arange(number + 5, number + 500))
            await output.drain()
            assert output.is_flushed
            await output.end_of_data(drain=True)
            while not output.is_consumed:
                await mailbox.wait()
            output.finish()
        assert actual == [[*range(number + 500)]]


async def test_every_consumer_gets_every_record_and_the_slowest_holds_back(autojump_clock: MockClock) -> None:
    async with outputs(2) as (manager, output, mailbox):
        actual: dict[str, list[int]] = {}

        async def consume(name: str) -> None:
            actual[name] = await read(manager, name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, "p0")
            await trio.testing.wait_all_tasks_blocked()
            number = 0
            while output.is_available and number < 10_000:
                push(output, number)
                number += 1
                await trio.lowlevel.checkpoint()
            assert number < 10_000  # nobody reads the second
            began = trio.current_time()
            async with trio.open_nursery() as waiting:
                waiting.start_soon(output.wait)
                await trio.sleep(2)
                mailbox.alert()  # a barrier came
            assert trio.current_time() - began == 2
            mailbox.open()
            first, second = output.partitions
            assert first.statistics().soft_backpressured.total_s == 0
            assert second.statistics().soft_backpressured.total_s == pytest.approx(2)
            nursery.start_soon(consume, "p1")
            while not output.is_available:
                await output.wait()
            assert output.is_flushed
            await output.end_of_data(drain=True)
            while not output.is_consumed:
                await mailbox.wait()
            output.finish()
        assert actual == {"p0": [*range(number)], "p1": [*range(number)]}


async def test_a_sink_has_always_room(autojump_clock: MockClock) -> None:
    async with outputs(0) as (_, output, _mailbox):
        assert output.is_available
        assert output.is_consumed
        await output.end_of_data(drain=True)
        output.finish()


async def test_consumers_hear_why_a_task_failed(autojump_clock: MockClock) -> None:
    async with outputs(1) as (manager, output, _):
        gate = await manager.open_gate([ChannelDescriptor(manager.address, "p0")])
        output.fail("ValueError: no")
        with pytest.raises(Exception, match="PRODUCER_FAILED: ValueError: no"):
            await RecordReader(gate, format="int64").next_records()
        gate.close()
        assert output.is_consumed  # nobody will ever read more
        with pytest.raises(LocalProtocolError, match="is released"):
            output.finish()
