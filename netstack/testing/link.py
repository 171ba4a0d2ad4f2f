"""Link: a producing and a consuming half joined by a scripted byte pipe, without sockets, tasks or a clock.

Takes: partitions and gates; steps, each of which moves some bytes in one direction. Gives: buffers at the gate; after
every step it checks that no segment, credit or byte was lost.

    link = Link()
    partition = link.create_partition("p", subpartitions=2)
    gate = link.open_gate([("p", 0), ("p", 1)])
    ...                       # write to the partition, `link.step(...)` in any order, `link.take(gate)`
    link.close()              # checks that every segment was returned

Everything except the pipe is the real implementation: pools, subpartitions, sender, wire, receiver, channels, gates.
The caller's steps decide the schedule, how many bytes a "system call" moves, how much the pipe holds and where it
breaks, so a property test can explore schedules that are rare in a network. A failed check is an `AssertionError`;
`ledger` documents the checks.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from ..base.config import NetworkConfig
from ..base.errors import ConnectionLost, InsufficientBuffers, RemoteProtocolError
from ..base.events import DataType
from ..base.ids import ChannelDescriptor, ResultPartitionType, partition_id
from ..exchange.buffer.buffer import Buffer
from ..exchange.buffer.pools import NetworkBufferPool
from ..exchange.buffer.requirements import LANDING_SEGMENTS, partition_buffers
from ..exchange.buffer.segment import Segment
from ..exchange.inbound.channel import RemoteInputChannel
from ..exchange.inbound.gate import SingleInputGate
from ..exchange.inbound.receiver import ChannelReceiver
from ..exchange.outbound.partition import ResultPartition
from ..exchange.outbound.sender import ChannelSender
from ..exchange.wire.assembler import DataSink
from ..exchange.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from ..exchange.wire.connection import Connection, Endpoint
from ..exchange.wire.frames import Hello
from ..exchange.wire.greeting import FEATURE_CHECKSUM, FEATURE_EXPECTED
from ..network.partitions import PartitionRegistry
from .ledger import Ledger
from .scripted import Chunk, Half, Pipe, VirtualHost, everything


class Step(enum.Enum):
    """The kinds of steps."""

    PRODUCER_WRITES = "producer writes"
    CONSUMER_READS = "consumer reads"
    CONSUMER_WRITES = "consumer writes"
    PRODUCER_READS = "producer reads"


@dataclass(frozen=True, slots=True)
class Taken:
    """A buffer that `Link.drain` took from a gate.

    Attributes:
        data_type: data, or the kind of event.
        sequence: number of the event on its channel; not kept for data.
    """

    channel_index: int
    data_type: DataType
    sequence: int
    payload: bytes


@final
class Link:
    """Both halves and the pipe; see the module."""

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
        as_flink: bool = False,
        partition_request_timeout_s: float = 10.0,
        is_prompt: bool = False,
        audit_every: int = 1,
    ) -> None:
        """Joins two new halves; nothing has been sent yet.

        Args:
            segment_size_bytes: of both sides; tiny by default, so that a record spans several.
            producer_segments: network buffers of the producer.
            consumer_segments: network buffers of the consumer.
            exclusive_buffers: for each channel, unless given for its gate.
            floating_buffers: for each gate, unless given for it.
            capacity_bytes: the capacity of the pipe in each direction.
            chunk: returns how many bytes a call moves.
            cut_at_byte: the stream to the consumer breaks after this many bytes.
            max_overdraft: of each partition.
            max_buffers_per_channel: quota of each subpartition.
            checksum: whether buffers have a checksum.
            as_flink: whether producers announce only their backlog.
            partition_request_timeout_s: how long a request waits for its partition, in virtual time.
            is_prompt: whether both halves write as soon as a writer or a channel asks, like pumps; otherwise only in
                steps.
            audit_every: `Ledger.audit` follows every n-th step.
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
        self._is_prompt = is_prompt
        self._audit_every = audit_every
        self._steps = 0
        self._has_written = False  # in the middle of something else
        codec = NativeCodec()
        known = FEATURE_CHECKSUM | (0 if as_flink else FEATURE_EXPECTED)
        asked = known if checksum else known & ~FEATURE_CHECKSUM
        hello = Hello(PROTOCOL_VERSION, segment_size_bytes, known | asked << 16, "netstack link")
        self._to_consumer = Pipe(codec, capacity_bytes)
        self._to_producer = Pipe(codec, capacity_bytes)
        self._to_consumer.cut_at = cut_at_byte
        producer = self._producer = Half(self._to_consumer, self._to_producer)
        consumer = self._consumer = Half(self._to_producer, self._to_consumer)
        self.host = VirtualHost(producer.settle)
        self.host.on_kick = lambda: self._write_now(producer)
        self.registry = PartitionRegistry(
            timeout_s=partition_request_timeout_s, now=self.host.now, call_at=self.host.call_at
        )
        self.sender = ChannelSender(
            codec,
            self.registry,
            max_channels=65_536,
            on_write_wanted=producer.want_write,
            send=lambda frame: producer.connection.send(frame),
            call_later=lambda delay_s, callback: self.host.call_at(self.host.now() + delay_s, callback),
        )
        self.receiver = ChannelReceiver(
            codec,
            peer="link://producer",
            on_write_wanted=consumer.want_write,
            send=lambda frame: consumer.connection.send(frame),
            on_empty=_nothing,
            write_now=lambda: self._write_now(consumer),
        )
        landing = self.consumer_pool.take_unpooled(LANDING_SEGMENTS, "the link")

        def connect(
            half: Half, endpoint: Endpoint, peer: str, landing: list[Segment], sink: DataSink | None = None
        ) -> None:
            wanted = half.want_write
            half.connection = Connection(
                codec, endpoint, hello=hello, landing=landing, peer=peer, on_write_wanted=wanted, now=0.0, sink=sink
            )

        connect(producer, self.sender, "link://consumer", [])
        connect(consumer, self.receiver, "link://producer", landing, self.receiver)
        consumer.on_closed = self._take_landing_back
        self._ledger = Ledger(
            producer_pool=self.producer_pool,
            consumer_pool=self.consumer_pool,
            to_consumer=self._to_consumer,
            to_producer=self._to_producer,
            sender=self.sender,
            is_connected=lambda: not (producer.is_closed or consumer.is_closed),
        )
        self._ledger.landing = len(landing)

    # Both ends.

    def create_partition(
        self,
        name: str,
        *,
        subpartitions: int = 1,
        kind: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        buffers: tuple[int, int | None] | None = None,
    ) -> ResultPartition:
        """Creates a partition at the producer.

        Args:
            name: its id.
            subpartitions: their number.
            kind: determines the size of its pool.
            buffers: guaranteed and largest size of its pool, instead of those of `kind`.
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
        self._ledger.add_partition(partition)
        return partition

    def open_gate(
        self, channels: Sequence[tuple[str, int]], *, buffers: tuple[int, int] | None = None
    ) -> SingleInputGate:
        """Opens a gate at the consumer.

        Args:
            channels: (partition id, subpartition) of each channel.
            buffers: exclusive buffers of each channel and floating buffers of the gate, instead of the link's.

        Raises:
            InsufficientBuffers: the buffers are not available; nothing was taken.
        """
        each, floating = buffers or (self.exclusive_buffers, self.floating_buffers)
        pool = self.consumer_pool.create_pool(1, floating)
        try:
            exclusive = self.consumer_pool.take_unpooled(each * len(channels))
        except InsufficientBuffers:
            pool.destroy()
            raise
        gate = SingleInputGate(pool, read_connections=_nothing, on_closed=_nothing)
        made = []
        for index, (name, subpartition) in enumerate(channels):
            channel = RemoteInputChannel(
                gate,
                index,
                ChannelDescriptor("link://producer", name, subpartition),
                exclusive=[exclusive.pop() for _ in range(each)],
                pool=pool,
                network=self.consumer_pool,
            )
            gate.add_channel(channel)
            made.append(channel)
            self.receiver.open(channel)
        self._ledger.add_gate(gate, made)
        self.gates.append(gate)
        return gate

    # Steps.

    def step(self, step: Step) -> int:
        """One write or read of one half, then all checks. Returns the bytes moved; 0 if there was nothing to do."""
        half = self._producer if step in (Step.PRODUCER_WRITES, Step.PRODUCER_READS) else self._consumer
        is_write = step in (Step.PRODUCER_WRITES, Step.CONSUMER_WRITES)
        count = half.write(self.chunk) if is_write else half.read(self.chunk, self.host.now())
        if self._to_consumer.is_cut:
            self.cut()
        if count:
            self._check_step()
        return count

    def run(self) -> int:
        """Steps in turn until nothing moves. Returns the bytes moved."""
        moved = 0
        while now := sum(self.step(step) for step in Step):
            moved += now
        return moved

    def advance_time(self, seconds: float) -> None:
        """Advances virtual time, then checks."""
        self.host.advance(seconds)
        self.check()

    def cut(self) -> None:
        """Breaks the stream in both directions; bytes in flight are lost. Idempotent."""
        if not self._consumer.is_closed:
            lost = None
            try:
                self._consumer.connection.end_of_stream()
            except RemoteProtocolError as error:
                lost = ConnectionLost(str(error))
            self._consumer.close(lost)
        self._producer.close(ConnectionLost("the link was cut"))
        self.check()

    def widen(self, capacity_bytes: int) -> None:
        """Sets the capacity of the pipe in both directions."""
        self._to_consumer.capacity_bytes = self._to_producer.capacity_bytes = capacity_bytes

    @property
    def is_quiet(self) -> bool:
        """Whether no bytes are in flight and no write is incomplete."""
        return not any(half.batch or half.outgoing.under_way for half in (self._producer, self._consumer))

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
        """Bytes written to the consumer so far."""
        return self._to_consumer.written_bytes

    # The application at the consuming side.

    def take(self, gate: SingleInputGate) -> Buffer | None:
        """The next buffer of a gate; return it with `give_back`. Raises as `SingleInputGate.poll`."""
        try:
            buffer = gate.poll()
            if buffer is not None and buffer.segment is not None:
                channel = gate.channels[buffer.channel_index]
                assert isinstance(channel, RemoteInputChannel)
                self._ledger.held[buffer] = channel
        finally:
            self.check_turn(gate)
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Recycles a buffer that was taken, then checks."""
        channel = self._ledger.held.pop(buffer, None)
        buffer.recycle()
        if channel is not None:
            self.check_turn(channel._gate)

    def drain(self, gate: SingleInputGate) -> Iterator[Taken]:
        """Takes all ready buffers of a gate, and returns each one at once."""
        while (buffer := self.take(gate)) is not None:
            taken = Taken(buffer.channel_index, buffer.data_type, buffer.sequence, bytes(buffer.contiguous()))
            self.give_back(buffer)
            yield taken

    def close(self) -> None:
        """Closes everything and checks that every segment was returned."""
        for buffer in list(self._ledger.held):
            self.give_back(buffer)
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
        """Checks all laws of `Ledger` now.

        Raises:
            AssertionError: a law is violated; the message has the law and the numbers.
        """
        self._ledger.check()
        self._ledger.audit()

    def check_turn(self, whose: ResultPartition | SingleInputGate) -> None:
        """Checks what a turn of a partition's writer, or of a gate's reader, can have changed."""
        if self._has_written:
            self._check_step()
        elif isinstance(whose, ResultPartition):
            self._ledger.check_partition(whose)
        else:
            self._ledger.check_gate(whose)

    def _check_step(self) -> None:
        self._has_written = False
        self._ledger.check()
        self._steps += 1
        if self._steps % self._audit_every == 0:
            self._ledger.audit()

    def _write_now(self, half: Half) -> None:
        """Writes like a pump; the checks follow later, because the caller is in the middle of a change."""
        if self._is_prompt and half.is_write_wanted and half.batch is None:
            half.write(self.chunk)
            self._has_written = True

    def _take_landing_back(self, segments: list[Segment]) -> None:
        lent, self._ledger.landing = self._ledger.landing, 0
        assert len(segments) == lent, f"{len(segments)} landing segments came back, {lent} were lent"
        self.consumer_pool.recycle_unpooled(segments)


def _nothing() -> None:
    """A callback without effect: steps move the data."""
