"""The soak: 200 channels over one link, with whatever consumers, producers and the wire may do, for hundreds of seeds.

Regions of producers and consumers, every consumer reading one subpartition of every producer of its region, share one
connection and two pools that are too small for all. Writes, flushes, events, barriers, partial reads and writes of the
socket, takes, stalls, cancels, failures and restarts come in random order, at rates that differ by channel. Readers
look only when they were woken, so do writers that wait for a buffer, and the wire only writes when it was told to.

After every step: segments and credit are conserved (`netstack.testing.ledger`). With every buffer: its bytes follow the
last ones of its channel. At the end: everything has arrived that nobody cancelled, and every segment is home.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from netstack.buffer.buffer import Buffer
from netstack.buffer.requirements import LANDING_SEGMENTS
from netstack.errors import ChannelFailed, ConnectionLost, InsufficientBuffers, ProducerFailed
from netstack.events import CheckpointBarrier, DataType, EndOfData, EndOfPartition, Event, UserEvent, decode_event
from netstack.ids import ResultPartitionType
from netstack.inbound.gate import SingleInputGate
from netstack.outbound.emission import Emission
from netstack.outbound.selector import BroadcastSelector, CustomSelector
from netstack.outbound.writer import PartitionWriter
from netstack.record.formats import format_named
from netstack.record.framing import frame
from netstack.testing.link import Link, Step

EVERYDAY_SEEDS = 200
CHANNELS = 200
STEPS = 800

Actor = TypeVar("Actor")

FILLER = bytes(range(251)) * 3


def known(event: Event) -> Any:
    """What is the same of an event at both ends: a barrier has aged on the way."""
    return event.checkpoint_id if isinstance(event, CheckpointBarrier) else event


class Stream:
    """One subpartition: what is due to its consumer."""

    def __init__(self) -> None:
        self.due = bytearray()
        self.events: deque[tuple[int, Any]] = deque()  # after how many bytes
        self.priority_events: deque[tuple[int, Any]] = deque()  # after how many bytes at the latest
        self.written = 0
        self.received = 0
        self.is_ended = False
        self.is_cancelled = False
        self.error: Exception | None = None

    def write(self, record: bytes) -> None:
        framed = frame(record)
        self.due += framed
        self.written += len(framed)

    def unwrite(self, record: bytes) -> None:
        framed = frame(record)
        assert self.due.endswith(framed), "a record that was not begun has left"
        del self.due[-len(framed) :]
        self.written -= len(framed)

    def receive(self, buffer: Buffer) -> None:
        payload = bytes(buffer.contiguous())
        match buffer.data_type:
            case DataType.DATA:
                assert self.due.startswith(payload), "bytes were lost, repeated or swapped"
                del self.due[: len(payload)]
                self.received += len(payload)
            case DataType.PRIORITY_EVENT:
                latest, event = self.priority_events.popleft()
                assert known(decode_event(payload)) == event
                assert self.received <= latest, "a priority event came behind data that was written after it"
            case _:
                event = known(decode_event(payload))
                assert self.events.popleft() == (self.received, event), "an event is out of its place"
                self.is_ended = buffer.data_type is DataType.END_OF_PARTITION

    def cancel(self) -> None:
        """What was not received may be missing."""
        self.is_cancelled = not self.is_ended

    @property
    def is_complete(self) -> bool:
        return self.is_ended and not (self.due or self.events or self.priority_events)


class Producer:
    """One partition and its writer, as `RecordWriter` drives it: a record that does not fit waits to be woken."""

    def __init__(self, soak: Soak, name: str, subpartitions: int) -> None:
        rng = self.rng = soak.rng
        self.soak = soak
        self.streams = [Stream() for _ in range(subpartitions)]
        self.weights = list(itertools.accumulate(10 ** rng.uniform(-2, 0) for _ in range(subpartitions)))
        self.is_broadcast = subpartitions > 1 and rng.random() < 0.15
        self.is_failed = False
        self.is_asleep = False
        self.stalled_until = 0
        self.rate = 10 ** rng.uniform(0, 1.5)
        self.records = 0
        self.in_hand: tuple[int, Emission, bytes] | None = None
        kind = rng.choice([ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED])
        partition = self.partition = soak.link.create_partition(name, subpartitions=subpartitions, kind=kind)
        self.writer = PartitionWriter(
            partition,
            selector=BroadcastSelector() if self.is_broadcast else CustomSelector(lambda record, channels: record[0]),
            format=format_named("bytes"),
            buffer_timeout_s=rng.choice([None, 0, 0.01, 0.1, 1.0]),
            refuse=BlockingIOError,
        )
        partition.pool.on_available = self.wake
        partition.on_release = self.writer.abandon

    @property
    def is_writable(self) -> bool:
        return not (self.partition.is_finished or self.partition.is_released)

    @property
    def is_crippled(self) -> bool:
        """Whether a consumer is gone: its queue may hold all buffers for good."""
        return any(stream.is_cancelled for stream in self.streams)

    def wake(self) -> None:
        self.is_asleep = False

    def turn(self) -> None:
        for _ in range(self.rng.randint(1, int(2 * self.rate))):
            if self.is_asleep or not self.is_writable or not self.emit():
                break
        self.soak.link.check_writer(self.partition)

    def emit(self) -> bool:
        if self.in_hand is not None or not self.writer.complete_torn():
            return self.drive()
        slot = self.rng.choices(range(len(self.streams)), cum_weights=self.weights)[0]
        if self.is_crippled if self.is_broadcast else self.streams[slot].is_cancelled:
            return False  # nobody would read it, and a queue that is full of it would stop the others
        self.records += 1
        start = self.records % 251
        size = self.rng.choice(self.soak.record_sizes)
        record = bytes((slot, self.records & 0xFF)) + FILLER[start : start + size]
        if self.writer.try_emit(record):
            self.note(slot, record)
            return True
        if self.rng.random() < 0.2:
            return True  # whoever asked without waiting does something else
        slot, emission = self.writer.plan_record(record)
        self.in_hand = (slot, emission, record)
        self.writer.is_emitting = True
        self.note(slot, record)
        return self.drive()

    @property
    def is_whole(self) -> bool:
        """Whether no record waits to be completed."""
        return self.in_hand is None and self.writer._torn is None

    def drive(self) -> bool:
        """Goes on with the record in hand, or completes a torn one."""
        if self.in_hand is None:
            is_done = self.writer.complete_torn()
        else:
            slot, emission, _ = self.in_hand
            is_done = emission.advance()
            if is_done:
                self.in_hand = None
                self.writer.is_emitting = False
                self.partition.counters.records += 1
                self.writer.after_write(slot)
        self.is_asleep = not is_done
        return is_done

    def cancel(self) -> None:
        """The call that writes the record in hand is cancelled: it is not written at all, or completed later."""
        if self.in_hand is not None:
            slot, emission, record = self.in_hand
            self.in_hand = None
            self.writer.is_emitting = False
            before = self.partition.counters.records
            self.writer.tear(slot, emission)
            if self.partition.counters.records == before:
                for stream in self.targets(slot):
                    stream.unwrite(record)

    def note(self, slot: int, record: bytes) -> None:
        for stream in self.targets(slot):
            stream.write(record)

    def targets(self, slot: int) -> list[Stream]:
        return self.streams if self.is_broadcast else [self.streams[slot]]

    def event(self, event: Event, *, priority: bool = False) -> None:
        if self.in_hand is None and self.is_writable and self.writer.complete_torn():
            self.writer.broadcast_event(event, priority=priority)
            for stream in self.streams:
                (stream.priority_events if priority else stream.events).append((stream.written, known(event)))
            self.soak.link.check_writer(self.partition)

    def finish(self) -> bool:
        """Ends the partition, if no record has to be completed before. Returns whether it has ended."""
        if self.is_writable and self.in_hand is None and self.writer.complete_torn():
            self.writer.end(drain=True)
            for stream in self.streams:
                stream.events += (
                    (stream.written, EndOfData()),
                    (stream.written, EndOfPartition()),
                )
            self.partition.close()
        return not self.is_writable

    def fail(self) -> None:
        if self.is_writable:
            self.is_failed = True
            self.partition.fail("on purpose")
            self.give_up()

    def give_up(self) -> None:
        """The partition is gone, or will be: what is under way to its consumers does not all arrive."""
        self.partition.release()
        for stream in self.streams:
            stream.cancel()


class Consumer:
    """One gate, as a reader drives it: it looks when it was woken, until there is nothing more."""

    def __init__(self, soak: Soak, gate: SingleInputGate) -> None:
        self.soak = soak
        self.gate = gate
        self.streams: list[Stream] = []
        self.is_asleep = False
        self.is_closed = False
        self.stalled_until = 0
        self.rate = 10 ** soak.rng.uniform(0.2, 1.3)
        self.ended: set[int] = set()
        self.patience = soak.rng.choice([0.0, 0.0, 0.2, 0.6])  # how often a buffer is held for a while
        gate.on_available = self.wake

    def wake(self) -> None:
        self.is_asleep = False

    def turn(self) -> None:
        for _ in range(self.soak.rng.randint(1, int(2 * self.rate))):
            if self.is_asleep or self.is_closed or not self.take():
                return

    def take(self) -> bool:
        link = self.soak.link
        try:
            buffer = link.take(self.gate)
        except (ChannelFailed, ConnectionLost) as error:
            (index,) = (i for i, one in enumerate(self.gate.channels) if one.is_finished and i not in self.ended)
            self.ended.add(index)
            self.streams[index].error = error
            return True
        if buffer is None:
            if self.gate.is_finished:
                self.is_asleep = True
            else:
                link.run_dry()
                self.is_asleep = not self.gate.is_available
            return False
        self.soak.taken += 1
        index = buffer.channel_index
        self.streams[index].receive(buffer)
        if buffer.data_type is DataType.DATA and self.soak.rng.random() < self.patience:
            self.soak.held.append(buffer)
            return True
        link.give_back(buffer)
        match buffer.data_type:
            case DataType.ALIGNED_BARRIER:
                self.soak.blocked.append((self, index))
            case DataType.END_OF_DATA:
                self.gate.acknowledge_end_of_data(index)
            case DataType.END_OF_PARTITION:
                self.ended.add(index)
        return True

    def resume(self, index: int) -> None:
        if not self.is_closed and index not in self.ended and not self.gate.channels[index].is_finished:
            self.gate.resume(index)

    def close(self) -> None:
        """Cancelled: its channels are nobody's any more."""
        self.is_closed = True
        self.gate.close()
        for stream in self.streams:
            stream.cancel()
        self.soak.link.check()


class Region:
    """Producers and consumers that are restarted together; every consumer reads from every producer."""

    def __init__(self, soak: Soak, producers: int, consumers: int) -> None:
        rng = soak.rng
        self.soak = soak
        self.shape = (producers, consumers)
        self.buffers = [(rng.choice([0, 1, 1, 2]), rng.choice([1, 1, 2, 4, 8])) for _ in range(consumers)]
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.is_running = False

    @property
    def required(self) -> tuple[int, int]:
        """Segments without which it does not start: of the producing, of the consuming side."""
        producers, consumers = self.shape
        return producers * (consumers + 1), sum(exclusive * producers + 1 for exclusive, _ in self.buffers)

    def start(self) -> None:
        """With fresh partitions, which may come before or after those who ask for them; perhaps later, if buffers of
        its predecessor are still out.
        """
        producers, consumers = self.shape
        link, rng = self.soak.link, self.soak.rng
        names = [f"p{next(self.soak.names)}" for _ in range(producers)]

        def create() -> None:
            for name in names:
                self.producers.append(Producer(self.soak, name, consumers))

        def open_gates() -> None:
            for index, (exclusive, floating) in enumerate(self.buffers):
                channels = [(name, index) for name in names]
                gate = link.open_gate(channels, exclusive_buffers=exclusive, floating_buffers=floating)
                self.consumers.append(Consumer(self.soak, gate))

        self.is_running = True
        steps: list[Callable[[], None]] = [create, open_gates]
        rng.shuffle(steps)
        try:
            for step in steps:
                step()
                self.soak.wire()
        except InsufficientBuffers:
            self.stop()
            return
        for index, consumer in enumerate(self.consumers):
            consumer.streams = [producer.streams[index] for producer in self.producers]

    def stop(self) -> None:
        self.is_running = False
        for consumer in self.consumers:
            consumer.close()
        for producer in self.producers:
            producer.give_up()
        self.producers, self.consumers = [], []
        self.soak.link.check()


class Soak:
    """One seed."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.names = itertools.count()
        self.held: list[Buffer] = []
        self.blocked: list[tuple[Consumer, int]] = []
        self.regions: list[Region] = []
        left = CHANNELS
        while left:
            producers, consumers = rng.randint(1, 10), rng.randint(1, 10)
            if producers * consumers > left:
                producers, consumers = left, 1
            self.regions.append(Region(self, producers, consumers))
            left -= producers * consumers
        segment = rng.choice([24, 32, 64, 200])
        self.record_sizes = [0, 1, 8, 8, 8, segment // 2, segment, 3 * segment]
        self.haste = rng.choice([0.1, 0.5, 0.9])
        self.link = Link(
            segment_size_bytes=segment,
            producer_segments=sum(region.required[0] for region in self.regions) + rng.choice([0, 10, 200]),
            consumer_segments=sum(region.required[1] for region in self.regions)
            + LANDING_SEGMENTS
            + rng.choice([0, 10, 100]),
            capacity_bytes=rng.choice([500, 5000, 100_000]),
            chunk=self.chunk,
            max_overdraft=rng.choice([0, 0, 5]),
            max_buffers_per_channel=rng.choice([None, None, 2, 10]),
            checksum=rng.random() < 0.2,
            partition_request_timeout_s=1e9,
            is_prompt=rng.random() < 0.5,
            audit_every=20,
        )
        self.number = 0  # of the step
        self.taken = 0

    # What may happen.

    def chunk(self, available: int) -> int:
        return available if self.rng.random() < self.haste else self.rng.randrange(1, 1 << self.rng.randrange(1, 12))

    def wire(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.link.step(self.rng.choice(WIRE))

    def produce(self) -> None:
        producers = self.rng.choice(self.regions).producers
        producer = self.any_of([one for one in producers if not one.is_asleep and one.stalled_until <= self.number])
        if producer is not None:
            producer.turn()

    def consume(self) -> None:
        consumers = self.rng.choice(self.regions).consumers
        consumer = self.any_of([one for one in consumers if not one.is_asleep and one.stalled_until <= self.number])
        if consumer is not None:
            consumer.turn()

    def give_back(self) -> None:
        if self.held:
            self.link.give_back(self.held.pop(self.rng.randrange(len(self.held))))

    def resume(self) -> None:
        if self.blocked:
            consumer, index = self.blocked.pop(self.rng.randrange(len(self.blocked)))
            consumer.resume(index)

    def pass_time(self) -> None:
        self.link.advance_time(self.rng.expovariate(5))

    def flush(self) -> None:
        producer = self.any_producer()
        if producer is not None:
            producer.writer.flush()

    def send_event(self) -> None:
        producer = self.any_producer()
        if producer is not None:
            number = next(self.names)
            match self.rng.randrange(3):
                case 0:
                    producer.event(CheckpointBarrier(number))
                case 1:
                    producer.event(UserEvent(str(number)))
                case _:
                    producer.event(UserEvent(str(number)), priority=True)

    def ask_for_size(self) -> None:
        consumer = self.any_consumer()
        if consumer is not None and not consumer.is_closed:
            consumer.gate.announce_buffer_size(self.rng.randint(1, 100))

    def stall(self) -> None:
        actor = self.rng.choice([self.any_producer, self.any_consumer])()
        if actor is not None:
            actor.stalled_until = self.number + int(self.rng.expovariate(1 / 200))

    def cancel_write(self) -> None:
        producer = self.any_producer()
        if producer is not None:
            producer.cancel()

    def finish_producer(self) -> None:
        producer = self.any_producer()
        if producer is not None:
            producer.finish()

    def fail_producer(self) -> None:
        producer = self.any_producer()
        if producer is not None:
            producer.fail()

    def cancel_consumer(self) -> None:
        consumer = self.any_consumer()
        if consumer is not None:
            consumer.close()

    def restart(self) -> None:
        stopped = [region for region in self.regions if not region.is_running]
        region = self.rng.choice(stopped or self.regions)
        if region.is_running:
            region.stop()
        region.start()

    def any_producer(self) -> Producer | None:
        return self.any_of(self.rng.choice(self.regions).producers)

    def any_consumer(self) -> Consumer | None:
        return self.any_of(self.rng.choice(self.regions).consumers)

    def any_of(self, actors: list[Actor]) -> Actor | None:
        return self.rng.choice(actors) if actors else None

    # All of it.

    def run(self) -> None:
        for region in self.regions:
            region.start()
        assert all(region.is_running for region in self.regions)
        if self.rng.random() < 0.8:
            self.link.run()
        actions = [getattr(self, name) for name in WEIGHTS]
        weights = list(itertools.accumulate(weight * 10 ** self.rng.uniform(-0.5, 0.5) for weight in WEIGHTS.values()))
        for self.number in range(STEPS):
            self.rng.choices(actions, cum_weights=weights)[0]()
        if self.rng.random() < 0.1:
            self.end_by_a_cut()
        else:
            self.end()
        self.link.close()

    def end(self) -> None:
        """Nobody stalls any more: everything arrives."""
        self.settle()
        for producer in self.producers():
            if not producer.finish():
                assert producer.is_crippled, f"the writer of {producer.partition.partition_id!r} was never woken"
                producer.cancel()
                producer.give_up()
        self.settle()
        assert self.link.is_quiet
        for producer in self.producers():
            assert producer.partition.is_released or producer.is_crippled
        for region in self.regions:
            for consumer in region.consumers:
                if consumer.is_closed:
                    continue
                assert consumer.gate.is_finished
                for producer, stream in zip(region.producers, consumer.streams, strict=True):
                    if producer.is_failed and not stream.is_ended:
                        assert isinstance(stream.error, ProducerFailed)
                    elif not stream.is_cancelled:
                        assert stream.is_complete
                        assert stream.error is None

    def end_by_a_cut(self) -> None:
        """The connection breaks: every channel that has not ended says so, once."""
        self.link.cut()
        self.settle()
        for region in self.regions:
            for consumer in region.consumers:
                if not consumer.is_closed:
                    assert consumer.gate.is_finished
                    for stream in consumer.streams:
                        assert stream.is_ended or isinstance(stream.error, ProducerFailed | ConnectionLost)

    def settle(self) -> None:
        """Until nobody moves by himself; the wire is no hindrance any more."""
        self.link.widen(1 << 20)
        self.link.chunk = lambda available: available
        while self.held:
            self.give_back()
        before = -1
        while before != (before := self.taken + self.link.bytes_to_consumer):
            for producer in self.producers():
                while not producer.is_asleep and producer.is_writable and not producer.is_whole:
                    producer.drive()
            while self.blocked:
                self.resume()
            self.link.run()
            for region in self.regions:
                for consumer in region.consumers:
                    while not (consumer.is_asleep or consumer.is_closed) and consumer.take():
                        pass
            while self.held:
                self.give_back()

    def producers(self) -> list[Producer]:
        return [producer for region in self.regions for producer in region.producers]


WIRE = tuple(Step)
WEIGHTS = {
    "wire": 30,
    "produce": 30,
    "consume": 45,
    "give_back": 10,
    "resume": 5,
    "pass_time": 3,
    "flush": 2,
    "send_event": 3,
    "ask_for_size": 1,
    "stall": 1,
    "cancel_write": 1,
    "finish_producer": 0.3,
    "fail_producer": 0.2,
    "cancel_consumer": 0.3,
    "restart": 0.5,
}


@pytest.mark.slow
def test_200_channels_on_one_link(seed: int) -> None:
    Soak(seed).run()
