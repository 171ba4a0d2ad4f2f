"""Who takes part in the soak of two TaskManagers: producers, consumers, and the regions they are restarted in."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from netstack.base.errors import (
    ChannelFailed,
    ConsumerLost,
    LocalProtocolError,
    PoolDestroyed,
    ProducerFailed,
    RecordError,
)
from netstack.base.events import CheckpointBarrier, UserEvent
from netstack.base.ids import ChannelDescriptor, ResultPartitionType
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.outbound.selector import BroadcastSelector, CustomSelector
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

if TYPE_CHECKING:
    from test_soak_tasks import Soak

GIVE_UP_S = 1e5
"""What a region without one of its consumers is given, in virtual time: by then all others have done what they can."""
HEADER = struct.Struct(">BII")
FILLER = bytes(range(251)) * 40


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

    @property
    def has_all(self) -> bool:
        """Whether nothing is missing that a completed call wrote."""
        return not any(call.is_complete for call in (*self.passed, *(call for _, call in self.due[self.place :])))


class Stream:
    """One subpartition: records and events in order, and the events that may overtake them."""

    def __init__(self) -> None:
        self.ordinary = Sequence()
        self.urgent = Sequence()
        self.is_cancelled = False
        self.error: Exception | None = None

    @property
    def has_all(self) -> bool:
        """Whether nothing is missing that a completed call wrote."""
        return self.ordinary.has_all and self.urgent.has_all

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
        timeout_s = rng.choice([None, 0, 0.05, 2.0])
        self.has_timeout = timeout_s is not None
        kind = rng.choice([ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED])
        self.partition = soak.producing.create_partition(name, subpartitions=subpartitions, kind=kind)
        self.is_broadcast = rng.random() < 0.1
        self.writer = RecordWriter(
            self.partition,
            selector=BroadcastSelector() if self.is_broadcast else CustomSelector(lambda record, channels: record[0]),
            buffer_timeout_s=timeout_s,
        )
        soak.partitions.append(self.partition._engine)

    @property
    def is_crippled(self) -> bool:
        """Whether a consumer is gone: its queue may hold all buffers for good."""
        return any(stream.is_cancelled for stream in self.streams)

    async def run(self) -> None:
        try:
            for _ in range(self.rng.randrange(20)):
                if self.rng.random() < 0.3:
                    await self.soak.pause()
                await self.call()
            if self.rng.random() < 0.5:
                await self.arrive()
            while not self.is_finished:
                with self.soak.impatience(self):
                    await self.writer.finish()
                    self.is_finished = True
            await self.writer.wait_consumed()
        except ConsumerLost:
            assert self.is_crippled
        except (PoolDestroyed, LocalProtocolError):
            assert self.partition.is_released

    async def arrive(self) -> None:
        """Nothing more comes for now: everything is read all the same, when its time is up or after a flush."""
        if not self.has_timeout:
            await self.writer.flush()
        for turn in itertools.count():
            if self.is_crippled or self.partition.is_released or all(stream.has_all for stream in self.streams):
                return
            await trio.sleep(2**turn)

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
            assert not self.partition._engine.pool.is_available, (
                f"the writer of {self.partition.partition_id!r} was not woken"
            )


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
        (index,) = {i for i, one in enumerate(self.gate._engine.channels) if str(one) == error.channel}
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
            assert not self.gate._engine.is_available, f"the reader of {self.gate._engine.name!r} was not woken"


class Region:
    """Producers and consumers that are restarted together; every consumer reads from every producer."""

    def __init__(self, soak: Soak, producers: int, consumers: int) -> None:
        self.soak = soak
        self.shape = (producers, consumers)
        self.restarts = soak.rng.choice([0, 1, 2, 4])
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []

    async def run(self) -> None:
        for _ in range(self.restarts):
            with trio.move_on_after(10 ** self.soak.rng.uniform(-2, 3)):
                await self.live()
        while not await self.live():
            pass

    async def live(self) -> bool:
        """With fresh partitions, which may come before or after those who ask for them. False: a gate was not opened,
        so that its subpartitions may be consumed without having been read.
        """
        soak = self.soak
        self.producers, self.consumers = [], []
        names = [f"p{next(soak.names)}" for _ in range(self.shape[0])]
        steps = [self.create, self.open]
        soak.rng.shuffle(steps)
        try:
            for step in steps:
                await soak.pause()
                if not await step(names):
                    return False
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
            return True
        finally:
            for consumer in self.consumers:
                consumer.leave()
            for producer in self.producers:
                producer.partition.release()

    async def create(self, names: list[str]) -> bool:
        for name in names:
            self.producers.append(Producer(self.soak, name, self.shape[1]))
        return True

    async def open(self, names: list[str]) -> bool:
        soak = self.soak
        for index in range(self.shape[1]):
            descriptors = [ChannelDescriptor(soak.producing.address, name, index) for name in names]
            soak.opening += 1
            try:
                with soak.impatience() as scope:
                    self.consumers.append(Consumer(soak, await soak.consuming.open_gate(descriptors)))
            finally:
                soak.opening -= 1
            if scope.cancelled_caught:
                return False
        return True

    async def fail_one(self) -> None:
        rng = self.soak.rng
        if rng.random() < 0.3:
            await trio.sleep(10 ** rng.uniform(-2, 4))
            waiting = [producer for producer in self.producers if producer.is_calling]
            rng.choice(waiting or self.producers).partition.fail("on purpose")

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
                    assert stream.has_all, f"something is missing from {producer.partition.partition_id!r}"
                else:
                    assert isinstance(stream.error, ProducerFailed)
                    assert producer.partition._engine.failure == "on purpose"
