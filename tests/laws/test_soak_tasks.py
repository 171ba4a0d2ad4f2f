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
from contextlib import asynccontextmanager, contextmanager
from collections.abc import AsyncIterator, Awaitable, Callable
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
from netstack.events import CheckpointBarrier, Event, UserEvent
from netstack.ids import ChannelDescriptor, ResultPartitionType
from netstack.inbound.channel import RemoteInputChannel
from netstack.inbound.gate import SingleInputGate
from netstack.outbound.partition import ResultPartition
from netstack.outbound.selector import BroadcastSelector, CustomSelector
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
PATIENCE_S = 1000 * 3600.0  # in virtual time: what takes longer hangs
HEADER = struct.Struct(">BII")
FILLER = bytes(range(251)) * 40

runs = itertools.count()


@dataclass
class Call:
    """One call of a writer: only what it wrote is certain to arrive that was not cancelled."""

    is_complete: bool = False


class Sequence:
    """Elements in the order in which they were written, as far as they have not come out."""

    def __init__(self) -> None:
        self.due: list[tuple[Any, Call]] = []
        self.passed: list[Call] = []
        self.place = 0

    def receive(self, element: Any) -> None:
        while self.place < len(self.due):
            expected, call = self.due[self.place]
            self.place += 1
            if element == expected:
                return
            self.passed.append(call)
        raise AssertionError(f"{element!r} was not written, or it came before")

    def check(self) -> None:
        """Everything has come that a call completed."""
        missing = self.passed + [call for _, call in self.due[self.place :]]
        assert not any(call.is_complete for call in missing), "records were lost"


class Stream:
    """One subpartition: records and events in order, and those that may overtake them."""

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
        self.calls = itertools.count()
        self.is_calling = False
        self.is_failed = False
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
        call = Call()
        kind = rng.choice(["emit", "emit", "emit", "nowait", "batch", "event", "barrier", "flush"])
        number = next(self.calls)
        slots = [slot for slot, stream in enumerate(self.streams) if not stream.is_cancelled]
        if len(slots) < len(self.streams) and (self.is_broadcast or not slots):
            return
        with self.soak.impatience(self):
            match kind:
                case "emit":
                    record = self.record(call, rng.choice(slots), number, 0, rng.choice([0, 8, 8, 100, 300, 1500]))
                    await writer.emit(record)
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
        record = HEADER.pack(slot, number, index) + FILLER[(number + index) % 251 :][:size]
        self.note(call, self.streams if self.is_broadcast else [self.streams[slot]], record)
        return record

    def note(self, call: Call, streams: list[Stream], element: Any) -> None:
        for stream in streams:
            stream.of(element).due.append((element, call))


class Consumer:
    """One gate and the task that reads from it."""

    def __init__(self, soak: Soak, gate: SingleInputGate, streams: list[Stream]) -> None:
        self.soak = soak
        self.gate = gate
        self.streams = streams
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
                except RecordError:
                    assert self.failed, "only the stream of a failed producer may end inside a record"
                    return
                else:
                    if elements is None:
                        return
                    for element in elements:
                        self.streams[reader.channel_index].of(element).receive(element)

    def fail(self, error: ChannelFailed) -> None:
        (index,) = {i for i, one in enumerate(self.gate.channels) if str(one) == error.channel}
        assert index not in self.failed
        self.failed.add(index)
        self.streams[index].error = error

    def leave(self) -> None:
        for stream in self.streams:
            stream.is_cancelled = True
        self.gate.close()


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
            async with trio.open_nursery() as nursery:
                for actor in (*self.producers, *self.consumers):
                    nursery.start_soon(actor.run)
                if soak.rng.random() < 0.3:
                    nursery.start_soon(self.fail_one)
                if any(consumer.leaves_after is not None for consumer in self.consumers):
                    nursery.start_soon(self.give_up_later)
                await self.all_ended()
                nursery.cancel_scope.cancel()
            self.check()
        finally:
            for consumer in self.consumers:
                consumer.leave()
            for producer in self.producers:
                producer.partition.release()
            await trio.lowlevel.checkpoint()

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
