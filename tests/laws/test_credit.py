"""Laws of flow control: on any schedule no credit, no buffer and no byte goes astray.

`Link` checks after every step that segments are conserved on both sides and that, for each channel, sender's credit +
announcements in flight + unannounced + data in flight = free buffers of the receiver. Here are the schedules.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from netstack.base.errors import (
    ChannelFailed,
    ConnectionLost,
    LocalProtocolError,
    PartitionNotFound,
    PoolDestroyed,
    ProducerFailed,
)
from netstack.base.events import CheckpointBarrier, DataType, UserEvent
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.outbound.selector import CustomSelector
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.formats import format_named
from netstack.exchange.record.framing import frame
from netstack.testing.link import Link, Step, Taken

SEGMENT = 32
SUBPARTITIONS = 2

few = st.integers(0, 9)
steps = st.tuples(st.just("step"), st.sampled_from(Step), st.integers(1, 200))
writes = st.tuples(st.just("write"), few, st.integers(0, 3 * SEGMENT))
common = st.one_of(
    steps,
    steps,
    writes,
    writes,
    st.tuples(st.just("flush"), few),
    st.tuples(st.just("event"), few, st.booleans()),
    st.tuples(st.just("barrier"), few),
    st.tuples(st.just("resume"), few),
    st.tuples(st.just("take"), few),
    st.tuples(st.just("give back"), few),
    st.tuples(st.just("drain"), few),
    st.tuples(st.just("size"), few, st.integers(1, 2 * SEGMENT)),
    st.tuples(st.just("settle")),
)
rough = st.one_of(
    common,
    common,
    common,
    st.tuples(st.just("close gate"), few),
    st.tuples(st.just("fail"), few),
    st.tuples(st.just("late"), few),
    st.tuples(st.just("time"), st.integers(1, 6)),
)
settings_of_links = st.fixed_dictionaries(
    {
        "exclusive_buffers": st.integers(0, 3),
        "floating_buffers": st.integers(1, 5),
        "capacity_bytes": st.integers(30, 400),
        "max_overdraft": st.integers(0, 3),
        "max_buffers_per_channel": st.none() | st.integers(2, 4),
        "checksum": st.booleans(),
        "producer_segments": st.integers(8, 40),
    }
)


def first_byte(record: bytes, channels: int) -> int:
    return record[0] % channels


class Stream:
    """One subpartition: what was written, and what came out."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.received = bytearray()
        self.events_sent: list[bytes] = []
        self.events: list[bytes] = []


class Stage:
    """Two partitions of two subpartitions each, and a gate for each partition."""

    def __init__(self, **options: Any) -> None:
        self.link = Link(segment_size_bytes=SEGMENT, partition_request_timeout_s=10.0, **options)
        self.names = ["a", "b"]
        self.partitions: dict[str, ResultPartition] = {}
        self.writers: dict[str, PartitionWriter] = {}
        self.gates: dict[str, SingleInputGate] = {}
        self.streams: dict[str, list[Stream]] = {}
        self.errors: dict[str, list[Exception]] = {}
        self.failed: set[str] = set()
        self.closed: set[str] = set()
        self.held: list[tuple[str, Buffer]] = []
        self.blocked: list[tuple[str, int]] = []
        self.counter = 0
        for name in self.names:
            self.create(name)
            self.open(name)

    def create(self, name: str) -> None:
        partition = self.link.create_partition(name, subpartitions=SUBPARTITIONS)
        self.partitions[name] = partition
        self.writers[name] = PartitionWriter(
            partition,
            selector=CustomSelector(first_byte),
            format=format_named("bytes"),
            buffer_timeout_s=1.0,
            refuse=BlockingIOError,
        )
        self.streams[name] = [Stream() for _ in range(SUBPARTITIONS)]

    def open(self, name: str) -> None:
        self.errors[name] = []
        self.gates[name] = self.link.open_gate([(name, index) for index in range(SUBPARTITIONS)])

    def write(self, name: str, size: int) -> None:
        self.counter += 1
        subpartition = self.counter % 3 % SUBPARTITIONS
        record = bytes([subpartition]) + bytes((self.counter + index) % 251 for index in range(size))
        if name not in self.failed and self.writers[name].try_emit(record):
            self.streams[name][subpartition].written += frame(record)

    def write_much(self, name: str) -> None:
        for _ in range(100):
            self.write(name, SEGMENT)

    def event(self, name: str, priority: bool) -> None:
        if name not in self.failed:
            self.counter += 1
            event = UserEvent(f"{self.counter}")
            self.writers[name].broadcast_event(event, priority=priority)
            for stream in self.streams[name]:
                stream.events_sent.append(event.name.encode())

    def barrier(self, name: str) -> None:
        """Blocks each of its subpartitions when it is taken, until its channel is resumed."""
        if name not in self.failed:
            self.counter += 1
            self.writers[name].broadcast_event(CheckpointBarrier(self.counter))

    def resume(self, which: int) -> None:
        if self.blocked:
            name, channel = self.blocked.pop(which % len(self.blocked))
            gate = self.gates[name]
            if name not in self.closed and not gate.channels[channel].is_finished:
                gate.resume(channel)
                self.link.check()

    def receive(self, name: str, channel: int, data_type: DataType, payload: bytes) -> None:
        stream = self.streams[name][channel]
        if data_type is DataType.DATA:
            stream.received += payload
            assert stream.written.startswith(stream.received), "bytes were lost, repeated or swapped"
        elif data_type in (DataType.EVENT, DataType.PRIORITY_EVENT):
            stream.events.append(payload[2:])
        elif data_type is DataType.ALIGNED_BARRIER:
            self.blocked.append((name, channel))

    def take(self, name: str) -> None:
        try:
            buffer = self.link.take(self.gates[name])
        except (ChannelFailed, ConnectionLost) as error:
            self.errors[name].append(error)
        except LocalProtocolError:
            assert name in self.closed
        else:
            if buffer is not None:
                self.receive(name, buffer.channel_index, buffer.data_type, bytes(buffer.contiguous()))
                self.held.append((name, buffer))

    def drain(self, name: str) -> None:
        for _ in range(1000):
            held = len(self.held)
            errors = len(self.errors[name])
            self.take(name)
            if len(self.held) > held:
                self.link.give_back(self.held.pop()[1])
            elif len(self.errors[name]) == errors:
                return
        raise AssertionError("a gate does not run dry")

    def do(self, name: str, arguments: list[Any]) -> None:
        which = self.names[arguments[0] % len(self.names)] if arguments and isinstance(arguments[0], int) else ""
        match name:
            case "step":
                step, count = arguments
                self.link.chunk = lambda available: count
                self.link.step(step)
            case "write":
                self.write(which, arguments[1])
            case "flush":
                self.writers[which].flush()
            case "event":
                self.event(which, arguments[1])
            case "barrier":
                self.barrier(which)
            case "resume":
                self.resume(arguments[0])
            case "take":
                self.take(which)
            case "give back" if self.held:
                self.link.give_back(self.held.pop(arguments[0] % len(self.held))[1])
            case "drain":
                self.drain(which)
            case "size":
                self.gates[which].announce_buffer_size(arguments[1])
                self.link.check()
            case "settle":
                self.link.host.settle()
                self.link.check()
            case "close gate" if which not in self.closed:
                self.closed.add(which)
                self.gates[which].close()
                self.link.check()
            case "fail" if which not in self.failed:
                self.failed.add(which)
                self.partitions[which].fail("on purpose")
                self.writers[which].abandon()
                self.link.check()
            case "late" if len(self.names) < 4:
                late = f"late {len(self.names)}"
                self.names.append(late)
                self.streams[late] = [Stream() for _ in range(SUBPARTITIONS)]
                self.open(late)
                self.link.check()
                self.create(late)
                self.link.check()
            case "time":
                self.link.advance_time(arguments[0] / 4)

    def finish(self) -> None:
        """Ends every partition, lets everything arrive, and compares."""
        for _, buffer in self.held:
            self.link.give_back(buffer)
        self.held = []
        for name, writer in self.writers.items():
            if name not in self.failed:
                while not writer.complete_torn():
                    self.link.run()
                    self.drain(name)
                    self.resume(0)
                writer.end(drain=True)
                self.partitions[name].close()
        self.link.chunk = lambda available: available
        for _ in range(100):
            moved = self.link.run()
            for name in self.names:
                self.drain(name)
            if not moved and not self.blocked:
                break
            while self.blocked:
                self.resume(0)
        assert self.link.is_quiet
        for name in self.names:
            if name in self.closed:
                continue
            if name in self.failed:
                # A request that came after the failure finds no partition any more, and is told so when its time is up.
                self.link.advance_time(10)
                self.link.run()
                self.drain(name)
                for error in self.errors[name]:
                    assert isinstance(error, ProducerFailed | PartitionNotFound)
                    assert ("on purpose" if isinstance(error, ProducerFailed) else "no partition") in str(error)
                assert len(self.errors[name]) == SUBPARTITIONS
                continue
            assert self.errors[name] == []
            assert self.gates[name].is_finished
            for stream in self.streams[name]:
                assert stream.received == stream.written
                assert sorted(stream.events) == sorted(stream.events_sent)
            assert self.partitions[name].is_released  # consumed, and closed
        self.link.close()


@given(settings_of_links, st.lists(common, min_size=20, max_size=80))
def test_any_schedule_delivers_everything(options: dict[str, Any], script: list[tuple[Any, ...]]) -> None:
    stage = Stage(**options)
    for name, *arguments in script:
        stage.do(name, arguments)
    stage.finish()


@given(settings_of_links, st.lists(rough, min_size=20, max_size=80))
def test_cancels_failures_and_late_partitions_disturb_nobody_else(
    options: dict[str, Any], script: list[tuple[Any, ...]]
) -> None:
    stage = Stage(**options | {"producer_segments": 40})
    for name, *arguments in script:
        stage.do(name, arguments)
    stage.finish()


@settings(max_examples=settings.default.max_examples // 2)
@given(settings_of_links, st.lists(rough, min_size=10, max_size=50))
def test_a_cut_at_any_moment_returns_every_segment(options: dict[str, Any], script: list[tuple[Any, ...]]) -> None:
    stage = Stage(**options | {"producer_segments": 40})
    for name, *arguments in script:
        stage.do(name, arguments)
    stage.link.cut()
    for name in stage.names:
        stage.drain(name)
        if name not in stage.closed | stage.failed:
            assert len(stage.errors[name]) == SUBPARTITIONS
            assert all(isinstance(error, ConnectionLost) for error in stage.errors[name])
            # Whoever goes on writing fills his buffers, waits, and is woken by the release.
            stage.write_much(name)
    for name, partition in stage.partitions.items():
        partition.release()
        if name not in stage.failed:
            with pytest.raises((LocalProtocolError, PoolDestroyed)):
                stage.write_much(name)
        stage.writers[name].abandon()
    for _, buffer in stage.held:
        stage.link.give_back(buffer)
    stage.link.close()


def test_a_channel_without_floating_buffers_goes_on_with_its_exclusive_ones() -> None:
    """Two channels, one floating buffer that the slow one holds: the fast one is not slowed below its own credit."""
    link = Link(segment_size_bytes=SEGMENT, exclusive_buffers=1, floating_buffers=1, producer_segments=40)
    partition = link.create_partition("p", subpartitions=2, buffers=(20, 20))
    writer = PartitionWriter(
        partition,
        selector=CustomSelector(first_byte),
        format=format_named("bytes"),
        buffer_timeout_s=None,
        refuse=BlockingIOError,
    )
    gate = link.open_gate([("p", 0), ("p", 1)])
    for _ in range(6):
        assert writer.try_emit(b"\0" + bytes(27))
        assert writer.try_emit(b"\1" + bytes(27))
    held = []
    received: list[Taken] = []
    for _ in range(12):
        link.run()
        buffer = link.take(gate)
        if buffer is None:
            break
        if buffer.channel_index == 0:
            held.append(buffer)
        else:
            received.append(Taken(1, buffer.data_type, buffer.sequence, bytes(buffer.memory)))
            link.give_back(buffer)
    assert len(received) == 6
    assert len(held) <= 2  # its exclusive one and at most the floating one: the rest waits at the producer
    link.close()


def test_a_link_notices_what_goes_astray() -> None:
    """The checks themselves: a stolen segment, an invented credit, a buffer that comes back twice."""

    def fresh() -> tuple[Link, SingleInputGate]:
        link = Link(segment_size_bytes=SEGMENT)
        link.create_partition("p")
        gate = link.open_gate([("p", 0)])
        link.run()
        return link, gate

    link, _ = fresh()
    link.consumer_pool.try_take()
    with pytest.raises(AssertionError, match=r"consumer: .* segments lent"):
        link.check()
    link, _ = fresh()
    link.producer_pool.try_take()
    with pytest.raises(AssertionError, match=r"producer: .* segments lent"):
        link.check()
    link, gate = fresh()
    channel = gate.channels[0]
    assert isinstance(channel, RemoteInputChannel)
    channel.manager.credit.unannounced += 1
    with pytest.raises(AssertionError, match="is not the 2 free buffers"):
        link.check()
    link, gate = fresh()
    channel = gate.channels[0]
    assert isinstance(channel, RemoteInputChannel)
    channel.manager.credit.announced += 1  # said to be on its way, and nowhere to be seen
    channel.manager.credit.unannounced -= 1
    with pytest.raises(AssertionError, match="1 credits were lost on the way"):
        link.check()
