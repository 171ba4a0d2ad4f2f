"""Who takes part in the soak of one link: producers, consumers, and the regions they are restarted in.

Each does what `RecordWriter`, `RecordReader` and a failover region do, one turn at a time, and checks what it gets.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netstack.base.errors import ChannelFailed, ConnectionLost, InsufficientBuffers
from netstack.base.events import CheckpointBarrier, DataType, EndOfData, EndOfPartition, Event, decode_event
from netstack.base.ids import ResultPartitionType
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.outbound.selector import BroadcastSelector, CustomSelector
from netstack.exchange.outbound.spanning_write import SpanningWrite
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.formats import format_named
from netstack.exchange.record.framing import frame

if TYPE_CHECKING:
    from test_soak import Soak

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
        self.in_hand: tuple[int, SpanningWrite, bytes] | None = None
        timeout_s = rng.choice([None, 0, 0.01, 0.1, 1.0])
        self.has_timeout = timeout_s is not None
        kind = rng.choice([ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED])
        partition = self.partition = soak.link.create_partition(name, subpartitions=subpartitions, kind=kind)
        self.writer = PartitionWriter(
            partition,
            selector=BroadcastSelector() if self.is_broadcast else CustomSelector(lambda record, channels: record[0]),
            format=format_named("bytes"),
            buffer_timeout_s=timeout_s,
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
        self.soak.link.check_turn(self.partition)

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
        slot, write = self.writer.plan_record(record)
        self.in_hand = (slot, write, record)
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
            slot, write, _ = self.in_hand
            is_done = write.advance()
            if is_done:
                self.in_hand = None
                self.writer.is_emitting = False
                self.partition.counters.counted += 1
                self.writer.buffers.after_write(slot)
        self.is_asleep = not is_done
        return is_done

    def cancel(self) -> None:
        """The call that writes the record in hand is cancelled: it is not written at all, or completed later."""
        if self.in_hand is not None:
            slot, write, record = self.in_hand
            self.in_hand = None
            self.writer.is_emitting = False
            before = self.partition.counters.records
            self.writer.tear(slot, write)
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
            self.soak.link.check_turn(self.partition)

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
            assert not self.is_asleep, "the writer of a failed partition was not woken"
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
                link.receiver.announce_deferred()  # as the reader's `read_connections` does
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
            for index, buffers in enumerate(self.buffers):
                gate = link.open_gate([(name, index) for name in names], buffers=buffers)
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
