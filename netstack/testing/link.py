"""Link: a producing and a consuming half joined by a scripted byte pipe, without a socket, a task or a clock.

Takes: partitions and gates; steps, each of which moves some bytes one way. Gives: buffers at the gate, and the proof,
after every step, that no segment, credit or byte went astray.

    link = Link()
    partition = link.create_partition("p", subpartitions=2)
    gate = link.open_gate([("p", 0), ("p", 1)])
    ...                       # write to the partition, `link.step(...)` in any order, `link.take(gate)`
    link.close()              # every segment is home

Everything but the pipe is the real thing: pools, subpartitions, sender, wire, receiver, channels, gates. Whoever drives
the steps decides what is scheduled when, how many bytes a "system call" moves, how much the pipe holds and where it
breaks, so a property test can go through schedules that a network shows once a year. A failed check is an
`AssertionError`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

from ..buffer.buffer import Buffer
from ..buffer.pool import LocalBufferPool, NetworkBufferPool
from ..buffer.requirements import LANDING_SEGMENTS, partition_buffers
from ..buffer.segment import Segment
from ..config import NetworkConfig
from ..errors import ConnectionLost, RemoteProtocolError
from ..events import DataType
from ..ids import ResultPartitionType, partition_id
from ..inbound.channel import RemoteInputChannel
from ..inbound.gate import SingleInputGate
from ..inbound.receiver import ChannelReceiver
from ..outbound.partition import ResultPartition
from ..outbound.sender import ChannelSender, SendingChannelStatistics
from ..runtime.partitions import PartitionRegistry
from ..wire.codec_native import PROTOCOL_VERSION, NativeCodec
from ..wire.connection import FEATURE_CHECKSUM, Connection
from ..wire.frames import Hello
from .scripted import Chunk, Half, Pipe, VirtualHost, everything


class Step(enum.Enum):
    """What one step does."""

    PRODUCER_WRITES = "producer writes"
    CONSUMER_READS = "consumer reads"
    CONSUMER_WRITES = "consumer writes"
    PRODUCER_READS = "producer reads"


@dataclass(frozen=True, slots=True)
class Taken:
    """What `Link.drain` took from a gate.

    Attributes:
        channel_index: where it came from.
        data_type: data, or which event.
        sequence: number of the event on its channel; of data it is not kept.
        payload: its bytes.
    """

    channel_index: int
    data_type: DataType
    sequence: int
    payload: bytes


@final
class Link:
    """Both halves. See the module."""

    def __init__(
        self,
        *,
        segment_size_bytes: int = 64,
        producer_segments: int = 64,
        consumer_segments: int = 64,
        exclusive_buffers: int = 2,
        floating_buffers: int = 8,
        capacity_bytes: int = 1 << 20,
        chunk: Chunk = everything,
        cut_at_byte: int | None = None,
        max_overdraft: int = 0,
        max_buffers_per_channel: int | None = None,
        checksum: bool = False,
        partition_request_timeout_s: float = 10.0,
    ) -> None:
        """Joins two new halves; nothing is said yet.

        Args:
            segment_size_bytes: of both sides; tiny by default, so that a record spans several.
            producer_segments: all network buffers of the producing side.
            consumer_segments: all network buffers of the consuming side.
            exclusive_buffers: for each channel.
            floating_buffers: for each gate.
            capacity_bytes: what the pipe holds in each direction.
            chunk: how many bytes a call moves.
            cut_at_byte: the stream towards the consumer breaks after this many bytes.
            max_overdraft: of each partition.
            max_buffers_per_channel: quota of each subpartition.
            checksum: whether buffers carry one.
            partition_request_timeout_s: how long a request waits for its partition, in virtual time.
        """
        self.chunk = chunk
        self.exclusive_buffers = exclusive_buffers
        self.floating_buffers = floating_buffers
        self.producer_pool = NetworkBufferPool(producer_segments, segment_size_bytes)
        self.consumer_pool = NetworkBufferPool(consumer_segments, segment_size_bytes)
        self.partitions: list[ResultPartition] = []
        self.gates: list[SingleInputGate] = []
        self._max_overdraft = max_overdraft
        self._quota = max_buffers_per_channel
        self._channels: list[RemoteInputChannel] = []
        self._held: list[tuple[RemoteInputChannel, Buffer]] = []
        self._known: set[int] = set()
        self._landing = LANDING_SEGMENTS
        codec = NativeCodec()
        asked = FEATURE_CHECKSUM << 16 if checksum else 0
        hello = Hello(PROTOCOL_VERSION, segment_size_bytes, FEATURE_CHECKSUM | asked, "netstack link")
        self._to_consumer = Pipe(codec, capacity_bytes)
        self._to_producer = Pipe(codec, capacity_bytes)
        self._to_consumer.cut_at = cut_at_byte
        producer = self._producer = Half(self._to_consumer, self._to_producer)
        consumer = self._consumer = Half(self._to_producer, self._to_consumer)
        self.host = VirtualHost(producer.settle)
        self.registry = PartitionRegistry(
            timeout_s=partition_request_timeout_s, now=self.host.now, call_at=self.host.call_at
        )
        self.sender = ChannelSender(
            codec,
            self.registry,
            max_channels=65_536,
            on_write_wanted=_nothing,
            send=lambda frame: producer.connection.send(frame),
        )
        self.receiver = ChannelReceiver(
            codec,
            peer="link://producer",
            on_write_wanted=_nothing,
            send=lambda frame: consumer.connection.send(frame),
            on_empty=_nothing,
        )
        producer.connection = Connection(
            codec, self.sender, hello=hello, landing=[], peer="link://consumer", on_write_wanted=_nothing, now=0.0
        )
        landing = self.consumer_pool.take_unpooled(LANDING_SEGMENTS, "the link")
        consumer.connection = Connection(
            codec,
            self.receiver,
            hello=hello,
            landing=landing,
            peer="link://producer",
            on_write_wanted=_nothing,
            now=0.0,
        )
        consumer.on_closed = self._take_landing_back

    # Both ends.

    def create_partition(
        self,
        name: str,
        *,
        subpartitions: int = 1,
        kind: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        buffers: tuple[int, int | None] | None = None,
    ) -> ResultPartition:
        """A partition at the producing side.

        Args:
            name: its id.
            subpartitions: how many it has.
            kind: how large its pool may grow.
            buffers: guaranteed and largest size of its pool, instead of what `kind` says.
        """
        required, maximum = buffers or partition_buffers(
            kind,
            subpartitions,
            NetworkConfig(
                exclusive_buffers_per_channel=self.exclusive_buffers, floating_buffers_per_gate=self.floating_buffers
            ),
        )
        pool = self.producer_pool.create_pool(
            required,
            maximum,
            subpartitions=subpartitions,
            max_buffers_per_channel=self._quota,
            max_overdraft=self._max_overdraft,
        )
        partition = ResultPartition(
            partition_id(name), kind, subpartitions, pool, on_released=self.registry.remove, host=self.host
        )
        self.registry.add(partition)
        self.partitions.append(partition)
        return partition

    def open_gate(self, channels: Iterable[tuple[str, int]]) -> SingleInputGate:
        """A gate at the consuming side; each channel is (partition id, subpartition)."""
        pool = self.consumer_pool.create_pool(1, self.floating_buffers)
        gate = SingleInputGate(pool, poke=_nothing, on_closed=_nothing)
        for index, (name, subpartition) in enumerate(channels):
            channel = RemoteInputChannel(
                gate,
                index,
                peer="link://producer",
                partition_id=name,
                subpartition=subpartition,
                exclusive=self.consumer_pool.take_unpooled(self.exclusive_buffers),
                pool=pool,
                network=self.consumer_pool,
            )
            gate.add_channel(channel)
            self._channels.append(channel)
            self.receiver.open(channel)
        self.gates.append(gate)
        return gate

    # Steps.

    def step(self, step: Step) -> int:
        """One write or one read of one half, then all checks. Returns the bytes moved; 0: there was nothing to do."""
        match step:
            case Step.PRODUCER_WRITES:
                count = self._producer.write(self.chunk)
            case Step.CONSUMER_READS:
                count = self._consumer.read(self.chunk, self.host.now())
            case Step.CONSUMER_WRITES:
                count = self._consumer.write(self.chunk)
            case Step.PRODUCER_READS:
                count = self._producer.read(self.chunk, self.host.now())
        if self._to_consumer.is_cut:
            self.cut()
        self.check()
        return count

    def run(self) -> int:
        """Steps in turn until nothing moves any more. Returns the bytes moved."""
        moved = 0
        while True:
            now = sum(self.step(step) for step in Step)
            if not now:
                return moved
            moved += now

    def advance_time(self, seconds: float) -> None:
        """Lets virtual time pass, then checks."""
        self.host.advance(seconds)
        self.check()

    def cut(self) -> None:
        """Breaks the stream in both directions; what is under way is lost. Idempotent."""
        if not self._consumer.is_closed:
            try:
                self._consumer.connection.end_of_stream()
            except RemoteProtocolError as error:
                self._consumer.close(ConnectionLost(str(error)))
            else:
                self._consumer.close(None)
        self._producer.close(ConnectionLost("the link was cut"))
        self.check()

    @property
    def is_quiet(self) -> bool:
        """Whether no byte is under way and no write is half done."""
        pipes = (self._to_consumer, self._to_producer)
        return (
            not any(pipe.under_way for pipe in pipes) and self._producer.batch is None and self._consumer.batch is None
        )

    @property
    def is_closed(self) -> bool:
        """Whether the connection is over at both ends."""
        return self._producer.is_closed and self._consumer.is_closed

    @property
    def producer_error(self) -> Exception | None:
        """Why the producing half closed."""
        return self._producer.error

    @property
    def consumer_error(self) -> Exception | None:
        """Why the consuming half closed."""
        return self._consumer.error

    @property
    def bytes_to_consumer(self) -> int:
        """Ever written in that direction."""
        return self._to_consumer.written_bytes

    # The application at the consuming side.

    def take(self, gate: SingleInputGate) -> Buffer | None:
        """The next buffer of a gate; give it back with `give_back`. Raises what `SingleInputGate.poll` raises."""
        buffer = gate.poll()
        if buffer is not None and buffer.segment is not None:
            channel = gate.channels[buffer.channel_index]
            assert isinstance(channel, RemoteInputChannel)
            self._held.append((channel, buffer))
        self.check()
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Recycles a buffer that was taken, then checks."""
        self._held = [(channel, held) for channel, held in self._held if held is not buffer]
        buffer.recycle()
        self.check()

    def drain(self, gate: SingleInputGate) -> Iterator[Taken]:
        """Takes what a gate has, one buffer after the other, and gives each back at once."""
        while (buffer := self.take(gate)) is not None:
            taken = Taken(buffer.channel_index, buffer.data_type, buffer.sequence, bytes(buffer.contiguous()))
            self.give_back(buffer)
            yield taken

    def close(self) -> None:
        """Closes everything and proves that every segment is home."""
        for _, buffer in self._held:
            buffer.recycle()
        self._held = []
        for gate in self.gates:
            gate.close()
        for partition in self.partitions:
            partition.release()
        self.cut()
        for side, pool in (("producer", self.producer_pool), ("consumer", self.consumer_pool)):
            lent = pool.statistics().lent_segments
            assert lent == 0, f"{lent} segments of the {side} did not come back"

    # Checks.

    def check(self) -> None:
        """Every invariant, at this instant.

        Raises:
            AssertionError: one is broken; the message says which, and with which numbers.
        """
        self._check_segments()
        if not self.is_closed:
            self._check_credit()

    def _check_segments(self) -> None:
        lent = self.producer_pool.statistics().lent_segments
        requested = sum(_check_pool(partition.pool) for partition in self.partitions)
        assert lent == requested, f"producer: {lent} segments lent, {requested} known to its partitions"
        statistics = self.consumer_pool.statistics()
        lent = statistics.lent_segments
        floating = sum(_check_pool(gate.pool) for gate in self.gates if gate.pool is not None)
        exclusive = sum(channel.initial_credit for channel in self._channels if not channel.is_released)
        orphans = sum(channel.is_released and not buffer.is_floating for channel, buffer in self._held)
        known = floating + exclusive + orphans + self._landing
        assert lent == known, (
            f"consumer: {lent} segments lent, but {floating} requested by gates, {exclusive} exclusive, {orphans} held"
            f" of released channels, {self._landing} landing"
        )
        unpooled = statistics.required_segments - sum(
            gate.pool.required for gate in self.gates if gate.pool is not None and not gate.pool.is_destroyed
        )
        assert unpooled == exclusive + orphans + self._landing, f"consumer: {unpooled} unpooled segments are promised"

    def _check_credit(self) -> None:
        sending = {statistics.channel: statistics for statistics in self.sender.statistics()}
        for channel in self._channels:
            number = channel.number
            sender = sending.get(number)
            if sender is not None:
                self._known.add(number)
            elif number in self._known:
                continue  # the producer has dropped it: failed, or cancelled
            if channel.is_released or channel.is_finished:
                continue
            if not channel.initial_credit and sender is not None and self._is_blocked(sender):
                continue  # the receiver has given its buffers away, the sender will forget its credit when it resumes
            receiver = channel.statistics()
            credit, granted, sent = (
                (0, 0, 0) if sender is None else (sender.credit, sender.credits_granted, sender.buffers)
            )
            assert credit >= 0, f"{channel}: credit {credit}"
            announced = receiver.announced_credit - granted
            data = sent - receiver.buffers
            free = receiver.free_exclusive + receiver.free_floating
            assert credit + announced + receiver.unannounced_credit + data == free, (
                f"{channel}: credit {credit} + announcements in flight {announced} + unannounced"
                f" {receiver.unannounced_credit} + data in flight {data} is not the {free} free buffers"
            )
            if sender is None:
                continue
            # The same two numbers, counted in the bytes under way (a write that is half done is on neither side).
            data_seen = self._to_consumer.count(number, credits=False)
            credit_seen = self._to_producer.count(number, credits=True)
            assert data_seen <= data, f"{channel}: {data_seen} data buffers under way, {data} unaccounted for"
            assert credit_seen <= announced, f"{channel}: {credit_seen} credits under way, {announced} unaccounted for"
            if self._producer.batch is None:
                assert data_seen == data, f"{channel}: {data - data_seen} data buffers were lost on the way"
            if self._consumer.batch is None:
                assert credit_seen == announced, f"{channel}: {announced - credit_seen} credits were lost on the way"

    def _is_blocked(self, sender: SendingChannelStatistics) -> bool:
        partition = self.registry.find(sender.partition_id)
        return partition is not None and partition.subpartitions[sender.subpartition].is_blocked

    def _take_landing_back(self, segments: list[Segment]) -> None:
        assert len(segments) == self._landing, f"{len(segments)} landing segments came back, {self._landing} were lent"
        self._landing = 0
        self.consumer_pool.recycle_unpooled(segments)


def _check_pool(pool: LocalBufferPool) -> int:
    """Checks what holds for every pool; returns the segments it has from the network pool."""
    statistics = pool.statistics()
    assert 0 <= statistics.available <= statistics.requested, f"a pool has {statistics}"
    assert statistics.required <= statistics.size, f"a pool shrank below its guarantee: {statistics}"
    assert statistics.maximum is None or statistics.size <= statistics.maximum, f"a pool grew too large: {statistics}"
    if not pool.is_destroyed:
        assert not statistics.available or not statistics.waiting_listeners, (
            f"a channel waits beside a segment: {statistics}"
        )
        assert not pool.is_available or statistics.available, f"available without a segment at hand: {statistics}"
    return statistics.requested


def _nothing() -> None:
    """Who drives the steps looks for himself."""
