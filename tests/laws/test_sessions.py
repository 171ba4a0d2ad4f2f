"""Lines that are cut at any byte, in both directions, what was under way lost: each record and event once, in order.

Whole TaskManagers over memory in virtual time. Credit and segments are counted when nothing moves any more, and at the
end everything is home.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import random
from contextlib import suppress
from typing import TypeAlias

import trio
from cutting import CutLines, cut_lines
from hypothesis import given, strategies as st
from trio_runs import run_virtual

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConnectionLost, RemoteProtocolError
from netstack.base.events import Alignment, CheckpointBarrier, Event, UserEvent
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.outbound.partition import ResultPartition
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.handles import InputGate, UnionInputGate
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

Item: TypeAlias = "bytes | Event"
CHANNELS = 2
numbers = itertools.count()


def is_priority(item: Item) -> bool:
    return isinstance(item, CheckpointBarrier) and item.alignment is Alignment.UNALIGNED


def script(rng: random.Random, count: int) -> list[Item]:
    """What a producer says: records up to three buffers long, and events of each kind."""
    made: list[Item] = []
    for index in range(count):
        match rng.randrange(40):
            case 0:
                made.append(UserEvent("mark", b"%d" % index))
            case 1:
                made.append(CheckpointBarrier(index))  # blocks until it was read
            case 2:
                made.append(CheckpointBarrier(index, alignment=Alignment.UNALIGNED))  # overtakes
            case _:
                made.append(b"%d:" % index + rng.randbytes(rng.choice((0, 5, 60, 200, 700))))
    return made


async def produce(partition: ResultPartition, items: list[Item], rng: random.Random, may_end: trio.Event) -> None:
    writer = RecordWriter(partition, format="bytes", buffer_timeout_s=rng.choice((0.0, 0.01)))
    for item in items:
        if isinstance(item, bytes):
            await writer.emit(item)
        else:
            await writer.broadcast_event(item, priority=is_priority(item))
        if rng.random() < 0.02:
            await trio.sleep(rng.random())
    await may_end.wait()
    await writer.finish()
    await writer.wait_consumed()


async def open_patiently(consumer: NetworkEnvironment, wanted: list[ChannelDescriptor]) -> InputGate:
    """A line that is cut before both ends know the session answers nobody, as ever. All go over one connection, else
    what was asked for over the first would be consumed when the second is cut."""
    while True:
        with suppress(ConnectionLost, RemoteProtocolError):
            return await consumer.open_gate(wanted)


async def consume(gate: InputGate, into: list[list[Item]], rng: random.Random) -> None:
    reader = RecordReader(gate, format="bytes")
    async for item in reader:
        if isinstance(item, CheckpointBarrier):
            item = dataclasses.replace(item, elapsed_ns=0)  # its age grows on the way
        into[reader.channel_index].append(item)
        if rng.random() < 0.02:
            await trio.sleep(rng.random())


def check_credit(producer: NetworkEnvironment, gates: list[InputGate]) -> None:
    """Nothing is under way: what the producer may send, and what it was not told yet, is what is free for it."""
    accepted = producer.statistics().accepted
    granted = {channel.partition_id: channel.credit for each in accepted for channel in each.channels}
    for channel in (channel for gate in gates for channel in gate._engine.channels):
        assert isinstance(channel, RemoteInputChannel)
        assert granted[channel.partition_id] + channel.manager.credit.unannounced == channel.manager.free_buffers, (
            channel
        )


async def run(lines: CutLines, seed: int, plan: list[tuple[int, int, bool]]) -> None:
    rng = random.Random(seed)
    config = NetworkConfig(
        segment_size_bytes=256,
        memory_bytes=96 * 256,
        exclusive_buffers_per_channel=rng.choice((0, 1, 2)),
        floating_buffers_per_gate=rng.choice((1, 8)),
        checksum=rng.random() < 0.2,
        resume_grace_s=20.0,
        heartbeat_interval_s=rng.choice((None, 1.0)),
        heartbeat_timeout_s=2.0,
    )
    cuts = iter(plan)
    lines.plan = lambda: next(cuts, (None, 0, False))
    name = next(numbers)
    message = [script(rng, rng.randrange(120)) for _ in range(CHANNELS)]
    received: list[list[Item]] = [[] for _ in range(CHANNELS)]
    may_end = trio.Event()
    async with (
        open_network(f"cut+memory://law-{name}-a", config) as producer,
        open_network(f"cut+memory://law-{name}-b", config) as consumer,
        trio.open_nursery() as nursery,
    ):
        for index, items in enumerate(message):
            partition = producer.create_partition(f"p{index}", subpartitions=1)
            nursery.start_soon(produce, partition, items, random.Random(rng.random()), may_end)
        wanted = [
            ChannelDescriptor(producer.address, f"p{index}", is_prompt=rng.random() < 0.5) for index in range(CHANNELS)
        ]
        of_class = itertools.groupby(wanted, key=operator.attrgetter("is_prompt"))
        gates = [await open_patiently(consumer, list(each)) for _, each in of_class]
        gate = UnionInputGate(gates) if len(gates) > 1 else gates[0]
        nursery.start_soon(consume, gate, received, random.Random(rng.random()))
        await trio.sleep(100)
        check_credit(producer, gates)
        sessions = [each.connection.session for each in consumer.connections()]
        assert sessions
        assert all(each is None or each.cuts == each.resumed for each in sessions)
        may_end.set()
    for items, got in zip(message, received, strict=True):
        assert [item for item in got if not is_priority(item)] == [item for item in items if not is_priority(item)]
        assert [item for item in got if is_priority(item)] == [item for item in items if is_priority(item)]
    for manager in (producer, consumer):
        assert manager.pool_statistics().lent_segments == 0


@given(
    seed=st.integers(0, 2**32),
    plan=st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 600), st.booleans()), max_size=12),
)
def test_nothing_is_lost_and_nothing_repeated(seed: int, plan: list[tuple[int, int, bool]]) -> None:
    async def within() -> None:
        with trio.fail_after(1000):
            await run(lines, seed, plan)

    with cut_lines() as lines:
        run_virtual(within)
