"""The soak with tasks: two TaskManagers in virtual time, 200 channels in about 20 gates on one connection.

Readers and writers sleep, stall, are cancelled at any wait and go on; regions of them are cancelled and restarted;
consumers leave for good, producers fail, the connection is slow or stalls. Some seeds have no exclusive buffers, some
no credit. Time only passes while everybody waits, so whoever is not woken waits for ever, which takes no time at all.

At random moments at which everybody waits: segments and credit are conserved, and nobody waits who has something to do.
At the end: every channel that nobody cancelled has delivered every record once, in order; every segment is home.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis.internal.entropy import deterministic_PRNG

from netstack.buffer.requirements import LANDING_SEGMENTS, GatePlan, PartitionPlan, required_buffers
from netstack.config import NetworkConfig
from netstack.errors import ChannelFailed, LocalProtocolError, PoolDestroyed, ProducerFailed, RecordError
from netstack.events import CheckpointBarrier, UserEvent
from netstack.ids import ChannelDescriptor, ResultPartitionType
from netstack.inbound.gate import SingleInputGate
from netstack.outbound.partition import ResultPartition
from netstack.outbound.selector import BroadcastSelector, CustomSelector
from netstack.outbound.sender import ChannelSender
from netstack.runtime.pump import Pump
from netstack.runtime.record_reader import RecordReader
from netstack.runtime.record_writer import RecordWriter
from netstack.runtime.task_manager import TaskManager, open_task_manager
from netstack.testing.ledger import Ledger
from netstack.testing.scripted import Pipe
from netstack.wire.codec_native import NativeCodec
from transports.impaired import impairment
from transports.memory import CAPACITY_BYTES, MemoryStream

EVERYDAY_SEEDS = 20
CHANNELS = 200
SEGMENT = 256
PAUSES_S = [0.0, 0.0, 0.0, 0.001, 0.1, 3.0, 500.0]
GIVE_UP_S = 1e5
"""What a region without one of its consumers is given: by then all others have done what they can."""
PATIENCE_S = 1e9
"""Virtual time, of course: what takes longer hangs."""
HEADER = struct.Struct(">BII")
FILLER = bytes(range(251)) * 40

runs = itertools.count()


@dataclass
class Call:
    """One call of a writer: only what a completed call wrote is certain to arrive."""

    is_complete: bool = False


def known(element: Any) -> Any:
    """What is the same of an element at both ends: a barrier has aged on the way."""
    return element.checkpoint_id if isinstance(element, CheckpointBarrier) else element


class Sequence:
    """Elements in the order in which they were written, as far as they have not come out."""

    def __init__(self) -> None:
        self.due: list[tuple[Any, Call]] = []
        self.passed: list[Call] = []
        self.place = 0

    def write(self, element: Any, call: Call) -> None:
        self.due.append((known(element), call))

    def receive(self, element: Any) -> None:
        while self.place < len(self.due):
            expected, call = self.due[self.place]
            self.place += 1
            if known(element) == expected:
                return
            self.passed.append(call)
        raise AssertionError(f"{element!r} was not written, or it came before")

    def check(self) -> None:
        missing = self.passed + [call for _, call in self.due[self.place :]]
        assert not any(call.is_complete for call in missing), "records were lost"


class Stream:
    """One subpartition: records and events in order, and the events that may overtake them."""

    def __init__(self) -> None:
        self.ordinary = Sequence()
        self.urgent = Sequence()
        self.is_cancelled = False
        self.error: Exception | None = None

    def of(self, element: Any) -> Sequence:
        return self.urgent if isinstance(element, UserEvent) and element.name.endswith("!") else self.ordinary


class Producer:
    """One partition and the task that writes to it."""

    def __init__(self, soak: Soak, name: str, subpartitions: int) -> None:
        rng = self.rng = soak.rng
        self.soak = soak
        self.streams = [Stream() for _ in range(subpartitions)]
        self.numbers = itertools.count()
        self.is_calling = False
        self.is_finished = False
        kind = rng.choice([ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED])
        self.partition = soak.producing.create_partition(name, subpartitions=subpartitions, kind=kind)
        self.is_broadcast = rng.random() < 0.1
        self.writer = RecordWriter(
            self.partition,
            selector=BroadcastSelector() if self.is_broadcast else CustomSelector(lambda record, channels: record[0]),
            buffer_timeout_s=rng.choice([None, 0, 0.05, 2.0]),
        )
        soak.partitions.append(self.partition)

    @property
    def is_crippled(self) -> bool:
        """Whether a consumer is gone: its queue may hold all buffers for good."""
        return any(stream.is_cancelled for stream in self.streams)

    async def run(self) -> None:
        try:
            for _ in range(self.rng.randrange(30)):
                if self.rng.random() < 0.3:
                    await self.soak.pause()
                await self.call()
            while not self.is_finished:
                with self.soak.impatience(self):
                    await self.writer.finish()
                    self.is_finished = True
            await self.writer.wait_consumed()
        except (PoolDestroyed, LocalProtocolError):
            assert self.partition.is_released

    async def call(self) -> None:
        rng, writer = self.rng, self.writer
        kind = rng.choice(["emit", "emit", "emit", "nowait", "batch", "event", "barrier", "flush"])
        number = next(self.numbers)
        slots = [slot for slot, stream in enumerate(self.streams) if not stream.is_cancelled]
        if self.is_crippled and (self.is_broadcast or not slots):
            return  # nobody would read it, and a queue that is full of it would stop the others
        call = Call()
        with self.soak.impatience(self):
            match kind:
                case "emit":
                    size = rng.choice([0, 8, 8, 100, 300, 1500])
                    await writer.emit(self.record(call, rng.choice(slots), number, 0, size))
                case "nowait":
                    try:
                        writer.emit_nowait(self.record(call, rng.choice(slots), number, 0, 50))
                    except trio.WouldBlock:
                        return
                case "batch":
                    size, most = rng.choice([(0, 60), (8, 60), (100, 20), (9000, 2)])
                    count = rng.randint(1, most)
                    records = [self.record(call, rng.choice(slots), number, index, size) for index in range(count)]
                    array = np.frombuffer(b"".join(records), np.uint8).reshape(count, HEADER.size + size).copy()
                    try:
                        await writer.emit_batch(array)
                    finally:
                        array[:] = 0xEE
                case "event":
                    priority = rng.random() < 0.3
                    event = UserEvent(f"{number}{'!' * priority}")
                    self.note(call, self.streams, event)
                    await writer.broadcast_event(event, priority=priority)
                case "barrier":
                    barrier = CheckpointBarrier(number)
                    self.note(call, self.streams, barrier)
                    await writer.broadcast_event(barrier)
                case "flush":
                    await writer.flush()
            call.is_complete = True

    def record(self, call: Call, slot: int, number: int, index: int, size: int) -> bytes:
        start = (number + index) % 251
        record = HEADER.pack(slot, number, index) + FILLER[start : start + size]
        self.note(call, self.streams if self.is_broadcast else [self.streams[slot]], record)
        return record

    def note(self, call: Call, streams: list[Stream], element: Any) -> None:
        for stream in streams:
            stream.of(element).write(element, call)

    def check_wait(self) -> None:
        """Everybody waits: whether this writer does so beside a free buffer."""
        if self.is_calling and self.writer._core.is_emitting:
            assert not self.partition.pool.is_available, f"the writer of {self.partition.partition_id!r} was not woken"


class Consumer:
    """One gate and the task that reads from it."""

    def __init__(self, soak: Soak, gate: SingleInputGate) -> None:
        self.soak = soak
        self.gate = gate
        self.streams: list[Stream] = []
        self.is_calling = False
        self.failed: set[int] = set()
        self.leaves_after = soak.rng.randrange(100) if soak.rng.random() < 0.1 else None

    async def run(self) -> None:
        reader = RecordReader(self.gate)
        for turn in itertools.count():
            if turn == self.leaves_after:
                self.leave()
                return
            if self.soak.rng.random() < 0.3:
                await self.soak.pause()
            with self.soak.impatience(self):
                try:
                    elements = await reader.next_records()
                except ChannelFailed as error:
                    self.fail(error)
                    continue
                except RecordError:
                    assert self.failed, "a stream ended inside a record, and its producer did not fail"
                    return
                if elements is None:
                    return
                stream = self.streams[reader.channel_index]
                for element in elements:
                    stream.of(element).receive(element)

    def fail(self, error: ChannelFailed) -> None:
        (index,) = {i for i, one in enumerate(self.gate.channels) if str(one) == error.channel}
        assert index not in self.failed
        self.failed.add(index)
        self.streams[index].error = error

    def leave(self) -> None:
        for stream in self.streams:
            stream.is_cancelled = True
        self.gate.close()

    def check_wait(self) -> None:
        """Everybody waits: whether this reader does so beside something to read."""
        if self.is_calling:
            assert not self.gate.is_available, f"the reader of {self.gate.name!r} was not woken"


class Region:
    """Producers and consumers that are restarted together; every consumer reads from every producer."""

    def __init__(self, soak: Soak, producers: int, consumers: int) -> None:
        self.soak = soak
        self.shape = (producers, consumers)
        self.restarts = soak.rng.choice([0, 0, 1, 2])
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []

    async def run(self) -> None:
        for _ in range(self.restarts):
            with trio.move_on_after(10 ** self.soak.rng.uniform(-2, 4)):
                await self.live()
        await self.live()

    async def live(self) -> None:
        """With fresh partitions, which may come before or after those who ask for them."""
        soak = self.soak
        self.producers, self.consumers = [], []
        names = [f"p{next(soak.names)}" for _ in range(self.shape[0])]
        steps = [self.create, self.open]
        soak.rng.shuffle(steps)
        try:
            for step in steps:
                await soak.pause()
                await step(names)
            for index, consumer in enumerate(self.consumers):
                consumer.streams = [producer.streams[index] for producer in self.producers]
            async with trio.open_nursery() as others:
                others.start_soon(self.fail_one)
                others.start_soon(self.give_up)
                async with trio.open_nursery() as nursery:
                    for actor in (*self.producers, *self.consumers):
                        nursery.start_soon(actor.run)
                others.cancel_scope.cancel()
            self.check()
        finally:
            for consumer in self.consumers:
                consumer.leave()
            for producer in self.producers:
                producer.partition.release()

    async def create(self, names: list[str]) -> None:
        for name in names:
            self.producers.append(Producer(self.soak, name, self.shape[1]))

    async def open(self, names: list[str]) -> None:
        soak = self.soak
        for index in range(self.shape[1]):
            descriptors = [ChannelDescriptor(soak.producing.address, name, index) for name in names]
            soak.opening += 1
            try:
                gate = await soak.consuming.open_gate(descriptors)
            finally:
                soak.opening -= 1
            self.consumers.append(Consumer(soak, gate))

    async def fail_one(self) -> None:
        if self.soak.rng.random() < 0.3:
            await trio.sleep(10 ** self.soak.rng.uniform(-2, 4))
            self.soak.rng.choice(self.producers).partition.fail("on purpose")

    async def give_up(self) -> None:
        await trio.sleep(GIVE_UP_S)
        for producer in self.producers:
            if not producer.is_finished:
                assert producer.is_crippled, f"the writer of {producer.partition.partition_id!r} hangs"
                producer.partition.release()
                for stream in producer.streams:
                    stream.is_cancelled = True

    def check(self) -> None:
        for producer in self.producers:
            for stream in producer.streams:
                if stream.is_cancelled:
                    continue
                if stream.error is None:
                    stream.ordinary.check()
                    stream.urgent.check()
                else:
                    assert isinstance(stream.error, ProducerFailed)
                    assert producer.partition.failure == "on purpose"


class Soak:
    """One seed."""

    producing: TaskManager
    consuming: TaskManager
    others: trio.Nursery

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.names = itertools.count()
        self.partitions: list[ResultPartition] = []
        self.opening = 0
        self.looks = 0
        self.regions: list[Region] = []
        left = CHANNELS
        while left:
            producers, consumers = rng.randint(4, 16), rng.randint(1, 8)
            if producers * consumers > left:
                producers, consumers = left, 1
            self.regions.append(Region(self, producers, consumers))
            left -= producers * consumers
        config = NetworkConfig(
            segment_size_bytes=SEGMENT,
            exclusive_buffers_per_channel=rng.choice([0, 0, 1, 2]),
            floating_buffers_per_gate=rng.choice([1, 2, 8]),
            credit_based=rng.random() < 0.8,
            max_buffers_per_channel=rng.choice([None, None, 2, 10]),
            max_overdraft_buffers_per_partition=rng.choice([0, 5]),
            checksum=rng.random() < 0.2,
            heartbeat_interval_s=None,
            partition_request_timeout_s=PATIENCE_S,
            buffers_request_timeout_s=PATIENCE_S,
        )
        shapes = [region.shape for region in self.regions]
        gates = {f"{i} {j}": GatePlan(shape[0]) for i, shape in enumerate(shapes) for j in range(shape[1])}
        partitions = {f"{i} {j}": PartitionPlan(shape[1]) for i, shape in enumerate(shapes) for j in range(shape[0])}
        here = required_buffers(partitions=partitions, config=config).required
        there = required_buffers(gates=gates, connections=1, config=config).required
        self.configs = [
            replace(config, memory_bytes=(required + rng.choice([0, 20, 300])) * SEGMENT) for required in (here, there)
        ]
        self.is_impaired = rng.random() < 0.4

    async def run(self) -> None:
        number = next(runs)
        url = f"memory://p{number}"
        if self.is_impaired:
            url = f"impaired+{url}?delay={self.rng.choice([0, 1, 50])}ms&name=soak{number}"
        with trio.fail_after(PATIENCE_S):
            async with (
                open_task_manager(url, self.configs[0]) as self.producing,
                open_task_manager(f"memory://c{number}", self.configs[1]) as self.consuming,
                trio.open_nursery() as self.others,
            ):
                self.producing.ticks = self.producing.now
                self.others.start_soon(self.look)
                if self.is_impaired:
                    self.others.start_soon(self.disturb, f"soak{number}")
                async with trio.open_nursery() as nursery:
                    for region in self.regions:
                        nursery.start_soon(region.run)
                await trio.sleep(1000)  # goodbyes may have a long way
                self.others.cancel_scope.cancel()
                for manager in (self.producing, self.consuming):
                    statistics = manager.statistics()
                    assert statistics.pool.lent_segments == 0
                    assert (statistics.connections, statistics.gates, statistics.partitions) == (0, (), ())
        for manager in (self.producing, self.consuming):
            pool = manager.statistics().pool
            assert pool.free_segments == pool.total_segments
        assert self.looks > 0

    async def pause(self) -> None:
        await trio.sleep(self.rng.choice(PAUSES_S))

    @contextmanager
    def impatience(self, actor: Producer | Consumer) -> Iterator[None]:
        """Cancels what is done inside, now and then: when its time is up, or at any checkpoint."""
        with trio.CancelScope() as scope:
            match self.rng.randrange(4):
                case 0:
                    scope.deadline = trio.current_time() + 10 ** self.rng.uniform(-3, 3)
                case 1:
                    self.others.start_soon(self.cancel_at, scope, self.rng.randrange(20))
            actor.is_calling = True
            try:
                yield
            finally:
                actor.is_calling = False

    async def cancel_at(self, scope: trio.CancelScope, checkpoints: int) -> None:
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    async def disturb(self, name: str) -> None:
        """The connection gets longer, shorter, and stalls."""
        lab = impairment(name)
        while True:
            await self.pause()
            if self.rng.random() < 0.5:
                lab.delay_s = self.rng.choice([0.0, 0.001, 0.2])
            else:
                lab.stall()
                with trio.CancelScope(shield=True):
                    await trio.sleep(self.rng.expovariate(1))
                lab.heal()

    async def look(self) -> None:
        """At moments at which everybody waits."""
        while True:
            await trio.sleep(10 ** self.rng.uniform(-4, 3) * (1 + trio.current_time() / 1e4))
            await trio.testing.wait_all_tasks_blocked()
            if not self.opening:
                self.looks += 1
                self.check()

    def check(self) -> None:
        for region in self.regions:
            for actor in (*region.producers, *region.consumers):
                actor.check_wait()
        for pump in (*self.producing._endpoint.pumps(), *self.consuming._endpoint.pumps()):
            check_pump(pump)
        senders = tuple(self.producing._endpoint._accepted.values())
        if len(senders) == 1 == len(self.consuming._endpoint.pumps()):  # a second one may be on its way out, or in
            self.check_ledger(senders[0])

    def check_ledger(self, sender: ChannelSender) -> None:
        codec = NativeCodec()
        ledger = Ledger(
            producer_pool=self.producing._pool,
            consumer_pool=self.consuming._pool,
            to_consumer=Pipe(codec, 0),  # nothing is under way now
            to_producer=Pipe(codec, 0),
            sender=sender,
        )
        ledger.landing = LANDING_SEGMENTS
        self.partitions = [one for one in self.partitions if not one.is_released or one.pool.statistics().requested]
        for partition in self.partitions:
            ledger.add_partition(partition)
        for gate in self.consuming._gates:
            ledger.add_gate(gate, [channel for channel in gate.channels if not channel.is_released])
        if self.configs[1].credit_based:
            ledger.check(is_connected=not self.is_impaired)
            ledger.audit()
        else:
            ledger.check_sums()


def check_pump(pump: Pump) -> None:
    """Everybody waits: whether this connection does so beside bytes, or beside room for what it has to write."""
    stream = pump.stream
    if isinstance(stream, MemoryStream):
        assert not pump._is_full or stream._out.size >= CAPACITY_BYTES, "a pump waits beside room"
        assert pump._is_paused or not stream._in.size, "a pump waits beside bytes"
    assert pump._is_full or not pump.is_dirty, "there is something to write, and the pump sleeps"


@pytest.mark.slow
def test_200_channels_of_two_task_managers(seed: int) -> None:
    with deterministic_PRNG(seed):
        trio.run(Soak(seed).run, clock=trio.testing.MockClock(autojump_threshold=0))
