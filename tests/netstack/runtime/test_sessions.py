"""A connection that is cut goes on over another line: nothing lost, nothing repeated; or it fails as it did before."""

from __future__ import annotations

import itertools

import trio
from cutting import cut_lines
from network_environments import assert_nothing_left
from trio.testing import MockClock

from netstack.config import NetworkConfig
from netstack.ids import ChannelDescriptor
from netstack.runtime.network_environment import NetworkEnvironment, open_task_manager
from netstack.runtime.record_reader import RecordReader
from netstack.runtime.record_writer import RecordWriter

CONFIG = NetworkConfig(segment_size_bytes=256, memory_bytes=64 * 256, resume_grace_s=5.0)
numbers = itertools.count()


def url() -> str:
    return f"cut+memory://sessions-{next(numbers)}"


async def write(manager: NetworkEnvironment, count: int, *, name: str = "p") -> None:
    writer = RecordWriter(manager.create_partition(name, subpartitions=1), format="int64", buffer_timeout_s=0.01)
    for value in range(count):
        await writer.emit(value)
    await writer.finish()
    await writer.wait_consumed()


async def test_one_channel_goes_on_after_a_cut(autojump_clock: MockClock) -> None:
    received: list[int] = []
    with cut_lines() as lines:
        async with (
            open_task_manager(url(), CONFIG) as producer,
            open_task_manager(url(), CONFIG) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(write, producer, 5000)
            gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)])
            async for record in RecordReader(gate, format="int64"):
                received.append(record)
                if len(received) == 2000:
                    lines.cut()
                if len(received) == 4000:
                    for connections in (consumer.connections(), producer.connections()):
                        session = connections[0].connection.session
                        assert session is not None
                        assert (session.cuts, session.resumed) == (1, 1)
                        assert session.suspended_s < 1
    assert received == list(range(5000))
    assert_nothing_left(producer, consumer)
