"""The soak: 200 channels over one link, with whatever consumers, producers and the wire may do.

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
from typing import TypeVar

import pytest
from laws.soak_link import Consumer, Producer, Region

from netstack.base.errors import ConnectionLost, ProducerFailed
from netstack.base.events import CheckpointBarrier, DataType, UserEvent
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.buffer.requirements import LANDING_SEGMENTS
from netstack.exchange.outbound.selector import CustomSelector
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.formats import format_named
from netstack.testing.link import Link, Step

EVERYDAY_SEEDS = 60
CHANNELS = 200
STEPS = 700
LONG_S = 10.0  # longer than any buffer timeout

Actor = TypeVar("Actor")


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
            self.link.check_turn(consumer.gate)

    def pass_time(self) -> None:
        self.link.advance_time(self.rng.expovariate(5))

    def flush(self) -> None:
        producer = self.any_producer()
        if producer is not None:
            producer.writer.flush()
            self.link.check_turn(producer.partition)

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
            self.link.check_turn(producer.partition)

    def fail_producer(self) -> None:
        producer = self.any_producer()
        if producer is not None:
            producer.fail()
            self.link.check()

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
        """Nobody stalls any more: everything arrives, by a deadline, by a flush, at the latest by the end."""
        self.settle()
        self.link.advance_time(LONG_S)
        self.settle()
        self.check_arrived(flushed_by="deadline")
        for producer in self.producers():
            producer.writer.flush()
        self.settle()
        self.check_arrived(flushed_by="flush")
        for producer in self.producers():
            if not producer.finish():
                assert producer.is_crippled, f"the writer of {producer.partition.partition_id!r} was never woken"
                producer.cancel()
                producer.give_up()
        self.settle()
        assert self.link.is_quiet
        for producer in self.producers():
            assert producer.partition.is_released or producer.is_crippled, "all is consumed, and it was not told"
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

    def check_arrived(self, *, flushed_by: str) -> None:
        for producer in self.producers():
            if producer.is_whole and not producer.is_failed and (flushed_by == "flush" or producer.has_timeout):
                for stream in producer.streams:
                    assert stream.is_cancelled or not stream.due, (
                        f"{len(stream.due)} bytes of {producer.partition.partition_id!r} did not leave by {flushed_by}"
                    )

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


# What the soak has found, as short as it gets.


def writer_of(link: Link, *, subpartitions: int, timeout_s: float | None) -> PartitionWriter:
    return PartitionWriter(
        link.create_partition("p", subpartitions=subpartitions, buffers=(6, 6)),
        selector=CustomSelector(lambda record, channels: record[0]),
        format=format_named("bytes"),
        buffer_timeout_s=timeout_s,
        refuse=BlockingIOError,
    )


def test_a_priority_event_overtakes_flushed_data_that_waits_for_credit() -> None:
    link = Link(exclusive_buffers=1, floating_buffers=1)
    writer = writer_of(link, subpartitions=1, timeout_s=None)
    gate = link.open_gate([("p", 0)])
    held = []
    for _ in range(3):
        assert writer.try_emit(bytes(8))
        writer.flush()
        link.run()
        held.append(link.take(gate))
    assert held[-1] is None, "there is no credit left"
    writer.broadcast_event(UserEvent("urgent"), priority=True)
    link.run()
    urgent = link.take(gate)
    assert urgent is not None
    assert urgent.data_type is DataType.PRIORITY_EVENT
    link.close()


def test_a_record_behind_a_torn_one_is_flushed_when_its_time_is_up() -> None:
    """Completing the torn record of one subpartition must not pass for a write to another."""
    link = Link(segment_size_bytes=64)
    writer = writer_of(link, subpartitions=2, timeout_s=1.0)
    gate = link.open_gate([("p", 0), ("p", 1)])
    link.run()
    assert writer.try_emit(b"\0first")
    writer.flush()
    link.run()
    slot, write = writer.plan_record(b"\1" + bytes(500))
    assert not write.advance()
    writer.tear(slot, write)
    while not writer.complete_torn():
        link.run()
        assert [*link.drain(gate)]
    link.advance_time(2.0)
    assert writer.try_emit(b"\0second")
    link.advance_time(2.0)
    link.run()
    taken = b"".join(taken.payload for taken in link.drain(gate) if taken.channel_index == 0)
    assert taken.endswith(b"second")
    writer.abandon()
    link.close()
