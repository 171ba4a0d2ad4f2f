"""A law of data that is received in memory of its reader: nobody can tell it from data received in segments.

What one read brings there is one run; its credit, backlog, statistics and captures are those of its buffers.

Two consumers get the same bytes in the same reads; only one of them lends its memory. Both also have a second channel,
barriers and closed channels, because these end the lending.
"""

from __future__ import annotations

import zlib
from typing import Any

from hypothesis import example, given, settings, strategies as st

from netstack.base.events import CheckpointBarrier, DataType, EndOfData, data_type_of, encode_event
from netstack.base.ids import ChannelDescriptor, PartitionId
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.receiver import ChannelReceiver
from netstack.exchange.record.deserializer import RecordDeserializer
from netstack.exchange.record.formats import format_named
from netstack.exchange.record.framing import frame
from netstack.exchange.record.rows import RowDeserializer
from netstack.exchange.record.spill import SpillDirectory
from netstack.exchange.wire.assembler import FrameAssembler
from netstack.exchange.wire.codec_native import NativeCodec

FULL = 16
LANDING = 4
EXCLUSIVE = 7
FLOATING = 3
WIDTH = 10 * FULL + 5

many = [
    st.tuples(st.just("full"), st.integers(1, 6), st.integers(0, 3)),
    st.tuples(st.just("read"), st.sampled_from([1, 7, 23, 24, 25, 40, 57, 80, 130, 1000])),
    st.tuples(st.just("consume"), st.sampled_from([1, 3, 9])),
]
few = [
    st.tuples(st.just("short"), st.integers(1, FULL - 1)),
    st.tuples(st.just("event"), st.booleans()),
    st.tuples(st.just("other"), st.integers(1, FULL)),
    st.tuples(st.just("capture")),
    st.tuples(st.just("close other")),
]
steps = st.one_of(*many, *many, *many, *few)
in_bulk = [("full", 3, 0), ("read", 1000), ("consume", 9)]
"""Begins a record: what follows is probably received where it belongs."""


@st.composite
def interrupted(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """One of the few frames among full buffers, in few reads."""
    before, after = draw(st.integers(0, 2)), draw(st.integers(1, 6))
    reads = draw(st.lists(st.sampled_from([24, 30, 40, 64, 100]), max_size=4))
    return [
        *in_bulk,
        ("full", before, 0),
        *draw(st.lists(st.one_of(*few), min_size=1, max_size=2)),
        ("full", after, 0),
        *(("read", size) for size in reads),
        *draw(st.lists(st.just(("consume", 1)), max_size=1)),
        ("read", 1000),
        ("consume", 9),
    ]


def nothing() -> None:
    pass


class Consumer:
    """The receiving side of one connection, with a reader of the first channel's gate."""

    def __init__(self, *, lends: bool, by_record: bool, checksum: bool) -> None:
        self.lends = lends
        self.network = NetworkBufferPool(LANDING + 2 * EXCLUSIVE + 2 * FLOATING, FULL)
        self.sent: list[object] = []
        codec = NativeCodec(FULL)
        self.receiver = ChannelReceiver(
            codec, peer="p", on_write_wanted=nothing, send=self.sent.append, on_empty=nothing, write_now=nothing
        )
        self.receiver._checksum = checksum
        self.landing = self.network.take_unpooled(LANDING, "the test")
        self.assembler = FrameAssembler(codec, self.receiver, self.landing, FULL)
        self.receiver.place = self.assembler.place
        self.gates = []
        self.channels = []
        self.open()
        self.rows: RowDeserializer | RecordDeserializer = RowDeserializer(WIDTH, block_bytes=2 * WIDTH)
        if by_record:
            self.rows = RecordDeserializer(
                format_named("bytes"), spill=SpillDirectory(None), spill_threshold_bytes=1 << 20
            )
        self.read_records = 0
        self.kept: list[tuple[Any, bytes]] = []
        self.log: list[object] = []
        self.longest = 0

    def open(self) -> None:
        pool = self.network.create_pool(FLOATING, FLOATING)
        gate = SingleInputGate(pool, read_connections=nothing, on_closed=nothing)
        channel = RemoteInputChannel(
            gate,
            0,
            ChannelDescriptor("memory://p", PartitionId("p"), len(self.gates)),
            exclusive=self.network.take_unpooled(EXCLUSIVE, "the test"),
            pool=pool,
            network=self.network,
        )
        gate.add_channel(channel)
        self.receiver.open(channel)
        self.gates.append(gate)
        self.channels.append(channel)

    def lend(self) -> None:
        room = self.rows.room(FULL)
        if room is not None and self.lends:
            self.channels[0].place_next(room)

    def receive(self, stream: memoryview) -> int:
        count = 0
        for window in self.assembler.windows():
            part = stream[count : count + len(window)]
            window[: len(part)] = part
            count += len(part)
            if len(part) < len(window):
                break
        self.assembler.advance(count)
        return count

    def consume(self, most: list[int]) -> list[int]:
        """Reads so many buffers of each gate, or a few more: the last may be a run. Returns how many."""
        done = [0 for _ in most]
        for index, gate in enumerate(self.gates):
            is_first = not index
            while done[index] < most[index]:
                if gate.is_closed or (buffer := gate.poll()) is None:
                    break
                done[index] += buffer.buffers
                self.longest = max(self.longest, buffer.buffers)
                if buffer.data_type is not DataType.DATA:
                    self.log.append((buffer.data_type, bytes(buffer.memory)))
                elif is_first:
                    self.keep(buffer.memory)
                else:
                    self.log.append(bytes(buffer.memory))
                buffer.recycle()
        self.lend()
        return done

    def keep(self, memory: memoryview) -> None:
        fed: Any = self.rows.feed(memory)
        for array in self.rows.take() if isinstance(self.rows, RowDeserializer) else fed:
            self.kept.append((array, bytes(memoryview(array).cast("B")) if not isinstance(array, bytes) else array))

    def state(self) -> list[object]:
        for array, content in self.kept:
            assert bytes(array if isinstance(array, bytes) else memoryview(array).cast("B")) == content
        return [
            *([gate.pool.statistics(), *map(RemoteInputChannel.statistics, gate.channels)] for gate in self.gates),  # type: ignore[arg-type, union-attr]
            [content for _, content in self.kept],
            self.log,
            self.sent,
            self.rows.unconsumed(),
        ]


class Producer:
    """The bytes that both consumers get: records of the first channel, cut anywhere, and whatever else a step adds."""

    def __init__(self, codec: NativeCodec, *, checksum: bool) -> None:
        self._codec = codec
        self._checksum = checksum
        self._records = b"".join(frame(bytes((n + k) % 251 for k in range(WIDTH))) for n in range(60))
        self._position = 0
        self._sequence = [0, 0]
        self.stream = bytearray()

    def data(self, channel: int, payload: bytes, backlog: int = 0) -> None:
        checksum = zlib.crc32(payload) if self._checksum else 0
        sequence = self._next(channel)
        header = self._codec.encode_buffer_header(channel, DataType.DATA, sequence, backlog, len(payload), checksum)
        self.stream += header + payload

    def records(self, size: int, backlog: int) -> None:
        payload = self._records[self._position : self._position + size]
        self._position += size
        if len(payload) == size:
            self.data(0, payload, backlog)

    def event(self, is_barrier: bool) -> None:
        event = CheckpointBarrier(1, 0) if is_barrier else EndOfData(True)
        payload = encode_event(event)
        self.stream += b"".join(self._codec.encode_event(0, data_type_of(event), self._next(0), 0, payload))

    def _next(self, channel: int) -> int:
        self._sequence[channel] += 1
        return self._sequence[channel] - 1


@example(
    # A run whose first buffer is exclusive and whose others are floating, with a waiting channel.
    [[("full", 4, 3), *in_bulk, ("short", 1), ("full", 1, 0), ("read", 1000), ("consume", 9)]],
    False,
    False,
    False,
)
@settings(max_examples=5 * settings.default.max_examples)
@given(
    st.lists(st.one_of(steps.map(lambda step: [step]), interrupted()), min_size=2, max_size=15),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_data_in_memory_of_its_reader_is_like_other_data(
    script: list[list[tuple[Any, ...]]], by_record: bool, checksum: bool, has_other: bool
) -> None:
    both = [Consumer(lends=lends, by_record=by_record, checksum=checksum) for lends in (False, True)]
    producer = Producer(NativeCodec(FULL), checksum=checksum)
    pending = [0, 0]  # data buffers of each channel in the stream
    ends: list[tuple[int, int]] = []
    done = 0
    if has_other:
        for consumer in both:
            consumer.open()

    def credit(channel: int) -> int:
        manager = both[0].channels[channel].manager
        return manager.free_buffers - manager.credit.unannounced - pending[channel]

    for name, *arguments in [*in_bulk, *(step for part in script for step in part)]:
        match name:
            case "full":
                count, backlog = arguments
                for _ in range(min(count, credit(0))):
                    producer.records(FULL, backlog)
                    pending[0] += 1
                    ends.append((len(producer.stream), 0))
            case "short" if credit(0) > 0:
                producer.records(arguments[0], 0)
                pending[0] += 1
                ends.append((len(producer.stream), 0))
            case "event":
                producer.event(arguments[0])
            case "other":
                if len(both[0].channels) == 1:
                    for consumer in both:
                        consumer.open()
                if not both[0].gates[1].is_closed and credit(1) > 0:
                    producer.data(1, bytes(range(100, 100 + arguments[0])))
                    pending[1] += 1
                    ends.append((len(producer.stream), 1))
            case "read":
                stream = memoryview(bytes(producer.stream[done : done + arguments[0]]))
                if stream:
                    size = both[0].receive(stream)
                    received = 0  # it reads less at once in front of memory that a reader may lend
                    while received < size:
                        received += both[1].receive(stream[received:size])
                    done += size
                    while ends and ends[0][0] <= done:
                        pending[ends.pop(0)[1]] -= 1
            case "consume":
                taken = both[1].consume([arguments[0] for _ in both[1].gates])
                assert both[0].consume(taken) == taken
                for consumer in both:
                    for channel in consumer.channels:
                        channel.manager.credit.take()
            case "capture":
                for consumer in both:
                    started = consumer.channels[0].start_capture(1, consumer.rows.unconsumed())
                    consumer.log.append(started)
            case "close other" if len(both[0].gates) > 1:
                for consumer in both:
                    consumer.gates[1].abandon()
        assert both[0].state() == both[1].state()
    for consumer in both:
        consumer.log.append(consumer.channels[0].take_capture(1))
        for gate in consumer.gates:
            gate.abandon()
    assert both[0].state()[:-1] == both[1].state()[:-1]
    assert both[0].longest <= 1
    for consumer in both:
        consumer.network.recycle_unpooled(consumer.assembler.take_landing())
        assert consumer.network.statistics().free_segments == LANDING + 2 * EXCLUSIVE + 2 * FLOATING
