"""Whatever a producer or a consumer of Flink's dialect sends: a typed error at worst, every segment comes home."""

from __future__ import annotations

import contextlib
import functools
import struct

from hypothesis import example, given, strategies as st
from laws.flink_vectors import CASES, channel_ids, frames_in, load

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConnectionLost, NetstackError, RemoteProtocolError
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.buffer.segment import Segment
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.receiver import ChannelReceiver
from netstack.exchange.outbound.sender import ChannelSender
from netstack.exchange.wire.connection import Connection, Endpoint
from netstack.exchange.wire.flink_consumer import FlinkConsumerCodec
from netstack.exchange.wire.flink_producer import FlinkProducerCodec
from netstack.exchange.wire.frames import Hello
from netstack.network.partitions import PartitionRegistry

SIZE = 1024
HELLO = Hello(0, SIZE, 0, "")
vector_of = functools.lru_cache(load)
damage = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=8)
cuts = st.lists(st.integers(1, 3000), max_size=12)


def nothing() -> None:
    pass


def feed(connection: Connection, stream: bytes, reads: list[int]) -> None:
    rest = memoryview(stream)
    sizes = iter(reads)
    while rest:
        left = next(sizes, len(rest))
        count = 0
        for window in connection.windows():
            part = rest[: min(len(window), left)]
            window[: len(part)] = part
            rest, left, count = rest[len(part) :], left - len(part), count + len(part)
            if len(part) < len(window):
                break
        connection.advance(count, 0.0)


class Consumer:
    """A gate and its connection to whoever sends the responses of a vector."""

    def __init__(self, ids: list[bytes]) -> None:
        self.network = NetworkBufferPool(60, SIZE)
        self.pool = self.network.create_pool(1, 8)
        self.gate = SingleInputGate(self.pool, read_connections=nothing, on_closed=nothing)
        codec = FlinkConsumerCodec(iter(ids).__next__, SIZE)
        self.receiver = ChannelReceiver(
            codec,
            peer="peer",
            on_write_wanted=nothing,
            send=lambda frame: self.connection.send(frame),
            on_empty=nothing,
            write_now=nothing,
        )
        self.connection = open_connection(codec, self.receiver, self.network.take_unpooled(4))
        for index in range(len(ids)):
            exclusive = self.network.take_unpooled(2)
            channel = RemoteInputChannel(
                self.gate,
                index,
                ChannelDescriptor("peer", "ab" * 60, index),
                exclusive=exclusive,
                pool=self.pool,
                network=self.network,
            )
            self.gate.add_channel(channel)
            self.receiver.open(channel)

    def read(self) -> None:
        """Reads what there is, as an application that goes on after a channel failed."""
        for _ in range(200):
            with contextlib.suppress(NetstackError):
                buffer = self.gate.poll()
                if buffer is None:
                    return
                buffer.recycle()

    def close(self) -> None:
        self.network.recycle_unpooled(self.connection.close(ConnectionLost("over")))
        self.gate.close()
        assert self.network.statistics().lent_segments == 0


def open_connection(
    codec: FlinkConsumerCodec | FlinkProducerCodec, endpoint: Endpoint, landing: list[Segment]
) -> Connection:
    sink = endpoint if isinstance(endpoint, ChannelReceiver) else None
    return Connection(
        codec, endpoint, hello=HELLO, landing=landing, peer="peer", on_write_wanted=nothing, now=0.0, sink=sink
    )


def damaged(stream: bytes, changes: list[tuple[int, int]]) -> bytes:
    data = bytearray(stream)
    for position, value in changes:
        if data:
            data[position % len(data)] = value
    return bytes(data)


@given(st.sampled_from(CASES), damage, cuts)
@example("blocking-sort-lz4", [(60, 0)], [])
@example("every-event", [], [])
def test_no_segment_is_lost_whatever_a_producer_sends(
    case: str, changes: list[tuple[int, int]], reads: list[int]
) -> None:
    vector = vector_of(case)
    ids = channel_ids(vector.requests)
    consumer = Consumer(ids)
    stream = damaged(vector.responses, changes)
    with contextlib.suppress(RemoteProtocolError):
        for start in range(0, len(stream), 700):
            feed(consumer.connection, stream[start : start + 700], reads)
            consumer.read()
    consumer.close()


@given(st.sampled_from(CASES), st.permutations(range(20)), cuts)
def test_no_segment_is_lost_in_whatever_order_frames_come(case: str, order: list[int], reads: list[int]) -> None:
    vector = vector_of(case)
    frames = frames_in(vector.responses)[:20]
    consumer = Consumer(channel_ids(vector.requests))
    with contextlib.suppress(RemoteProtocolError):
        for index in order:
            if index < len(frames):
                feed(consumer.connection, frames[index], reads)
    consumer.read()
    consumer.close()


@given(st.sampled_from(CASES), damage, cuts)
def test_whatever_a_consumer_sends_is_taken_or_refused(
    case: str, changes: list[tuple[int, int]], reads: list[int]
) -> None:
    vector = vector_of(case)
    calls: list[float] = []
    registry = PartitionRegistry(
        timeout_s=1, now=lambda: 0.0, call_at=lambda deadline, callback: calls.append(deadline)
    )
    codec = FlinkProducerCodec(SIZE)
    sender = ChannelSender(
        codec,
        registry,
        max_channels=NetworkConfig().max_channels_per_connection,
        on_write_wanted=nothing,
        send=lambda frame: connection.send(frame),
    )
    connection = open_connection(codec, sender, [])
    message = b""
    with contextlib.suppress(RemoteProtocolError):
        feed(connection, damaged(vector.requests, changes), reads)
    while (batch := connection.collect()) is not None:
        message += b"".join(batch.pieces)
        batch.release()
    for frame in frames_in(message):
        assert struct.unpack_from(">IB", frame, 4) == (0xBADC0FFE, 1)  # nothing but errors: there are no partitions
    connection.close(None)
