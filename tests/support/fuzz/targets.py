"""Everything that reads bytes of strangers, each as one function: it takes them, or raises what it promises.

A target that raises anything else, loses a segment or takes minutes has failed. What is behind a checksum is given its
checksum first: a fuzzer that has to guess one finds nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import zlib
from collections.abc import Callable

import lz4.frame

from fuzz import documents
from netstack.base.config import NetworkConfig
from netstack.base.errors import ConnectionLost, NetstackError, RemoteProtocolError
from netstack.base.events import decode_event
from netstack.base.ids import ChannelDescriptor
from netstack.cluster.control.frames import unpack
from netstack.cluster.control.messages import CODEC as MESSAGES
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.receiver import ChannelReceiver
from netstack.exchange.outbound.sender import ChannelSender
from netstack.exchange.record.deserializer import RecordDeserializer
from netstack.exchange.record.flink_rows import FlinkRows
from netstack.exchange.record.flink_types import schema_of
from netstack.exchange.record.formats import format_named
from netstack.exchange.record.spill import SpillDirectory
from netstack.exchange.stored.index import HEAD, MAGIC, decode_head, decode_rows, head_bytes, row_bytes
from netstack.exchange.stored.pages import Page, split_pages
from netstack.exchange.wire.codec import Codec
from netstack.exchange.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.connection import Connection, Endpoint
from netstack.exchange.wire.flink_consumer import FlinkConsumerCodec
from netstack.exchange.wire.flink_producer import FlinkProducerCodec
from netstack.exchange.wire.frames import Hello
from netstack.exchange.wire.greeting import FEATURE_CHECKSUM
from netstack.network.partitions import PartitionRegistry
from netstack.schedule.checkpoint.snapshot import VERSION, decode_manifest, decode_snapshot
from netstack.schedule.descriptors.descriptors import TaskDeploymentDescriptor
from netstack.schedule.descriptors.information import JobInformation, TaskInformation
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, compress
from netstack.schedule.graph.job_file import read_job
from netstack.schedule.graph.job_generator import generate_job

SEGMENT_BYTES = 1024
CHANNELS = 3
HELLO = Hello(PROTOCOL_VERSION, SEGMENT_BYTES, FEATURE_CHECKSUM, "fuzz")
FLINK_IDS = [bytes([number]) * 16 for number in range(1, CHANNELS + 1)]

Target = Callable[[bytes], None]


def nothing() -> None:
    """What need not be told."""


# ------------------------------------------------------------------------------------------------------------ the wire


def connection_of(codec: Codec, endpoint: Endpoint, network: NetworkBufferPool, landing: int) -> Connection:
    return Connection(
        codec,
        endpoint,
        hello=HELLO,
        landing=network.take_unpooled(landing) if landing else [],
        peer="peer",
        on_write_wanted=nothing,
        now=0.0,
        sink=endpoint if isinstance(endpoint, ChannelReceiver) else None,
    )


def feed(connection: Connection, stream: bytes) -> None:
    """In pieces whose lengths follow from the bytes."""
    rest = memoryview(stream)
    sizes = itertools.cycle(1 + 7 * each for each in stream[:32])
    while rest:
        left = min(next(sizes), len(rest))
        count = 0
        for window in connection.windows():
            part = rest[: min(len(window), left)]
            window[: len(part)] = part
            rest, left, count = rest[len(part) :], left - len(part), count + len(part)
            if len(part) < len(window):
                break
        connection.advance(count, 0.0)


def as_consumer(codec: Codec, stream: bytes) -> None:
    """What a producer says to three open channels."""
    network = NetworkBufferPool(60, SEGMENT_BYTES)
    pool = network.create_pool(1, 8)
    gate = SingleInputGate(pool, read_connections=nothing, on_closed=nothing)
    receiver = ChannelReceiver(
        codec,
        peer="peer",
        on_write_wanted=nothing,
        send=lambda frame: connection.send(frame),
        on_empty=nothing,
        write_now=nothing,
    )
    connection = connection_of(codec, receiver, network, 4)
    for index in range(CHANNELS):
        channel = RemoteInputChannel(
            gate,
            index,
            ChannelDescriptor("peer", "ab" * 60, index),
            exclusive=network.take_unpooled(2),
            pool=pool,
            network=network,
        )
        gate.add_channel(channel)
        receiver.open(channel)
    try:
        for start in range(0, len(stream), 500):
            feed(connection, stream[start : start + 500])
            for _ in range(100):
                with contextlib.suppress(NetstackError):
                    buffer = gate.poll()
                    if buffer is None:
                        break
                    buffer.recycle()
            while (batch := connection.collect()) is not None:
                batch.release()
    finally:
        network.recycle_unpooled(connection.close(ConnectionLost("over")))
        gate.close()
        lent = network.statistics().lent_segments
        assert lent == 0, f"{lent} segments were lost"


def as_producer(codec: Codec, stream: bytes) -> None:
    """What a consumer says to who has no partition."""
    network = NetworkBufferPool(20, SEGMENT_BYTES)
    registry = PartitionRegistry(timeout_s=1, now=lambda: 0.0, call_at=lambda _deadline, _callback: None)
    sender = ChannelSender(
        codec,
        registry,
        max_channels=NetworkConfig().max_channels_per_connection,
        on_write_wanted=nothing,
        send=lambda frame: connection.send(frame),
    )
    connection = connection_of(codec, sender, network, 2)
    try:
        feed(connection, stream)
        while (batch := connection.collect()) is not None:
            batch.release()
    finally:
        network.recycle_unpooled(connection.close(None))
        assert network.statistics().lent_segments == 0


# ------------------------------------------------------------------------------------------- documents and descriptors


def control(data: bytes) -> None:
    """A control frame; what is a message can be sent on as one."""
    message = MESSAGES.decode(unpack(data))
    repr(message)
    MESSAGES.encode(message)


def descriptor(data: bytes) -> None:
    """What a task is deployed with."""
    actual = TaskDeploymentDescriptor.parse(data)
    for gate in actual.gates:
        gate.gate()


def shuffle_descriptors(data: bytes) -> None:
    """The places of a gate's partitions, under their compression."""
    actual = ShuffleDescriptors.decompress(compress(data))
    actual.index.tolist()


# -------------------------------------------------------------------------------------------------------------- records


def records(name: str) -> Target:
    """One channel of a format, cut in buffers."""

    def run(data: bytes) -> None:
        deserializer = RecordDeserializer(
            format_named(name), spill=SpillDirectory(), spill_threshold_bytes=1 << 20, max_record_bytes=1 << 21
        )
        size = 1 + (data[0] if data else 0)
        try:
            for start in range(0, len(data), size):
                deserializer.feed(memoryview(data)[start : start + size])
        finally:
            deserializer.clear()

    return run


FLINK_COLUMNS = (
    "a BOOLEAN, b SMALLINT, c STRING, d DECIMAL(38, 10), e TIMESTAMP(9), f TIME(0)",
    "a ARRAY<STRING>, b ARRAY<ARRAY<TINYINT>>, c ARRAY<BOOLEAN NOT NULL>",
    "a MAP<STRING NOT NULL, DECIMAL(20, 2)>, b ROW<x BYTES, y MAP<INT NOT NULL, ROW<z STRING>>>",
)


def flink_rows(data: bytes) -> None:
    """A row of Flink's SQL whose tag and length are right."""
    columns = FLINK_COLUMNS[data[0] % len(FLINK_COLUMNS)] if data else FLINK_COLUMNS[0]
    record = struct.pack(">bi", 1, len(data[1:])) + data[1:]
    FlinkRows(schema_of(columns), kind="kind").batch([record, record])


# ---------------------------------------------------------------------------------------------------------------- files


def snapshot(data: bytes) -> None:
    """A state file whose frame and checksum are right."""
    body = lz4.frame.compress(data)
    head = struct.pack(">6sHQ", b"NSCKPT", VERSION, len(body))
    whole = head + body
    decode_snapshot(whole + struct.pack(">I", zlib.crc32(whole)), 7)


def manifest(data: bytes) -> None:
    """A manifest whose checksum is right."""
    head = data + b',\n  "crc32": "'
    decode_manifest(head + b'%08x"\n}\n' % zlib.crc32(head), 7)


def index(data: bytes) -> None:
    """An index file: the numbers of its head, its flags and rows; the checksums are right."""
    subpartitions, regions = (data[0] % 4 + 1, data[1] % 8) if len(data) > 1 else (1, 1)
    flags = data[2 : 2 + regions].ljust(regions, b"\0")
    start = MAGIC + struct.pack(">II", subpartitions, regions)
    head = start + struct.pack(">I", zlib.crc32(flags, zlib.crc32(start))) + flags
    assert len(head) == head_bytes(regions)
    assert decode_head(head[: HEAD.size], "index") == (subpartitions, regions)
    step = row_bytes(regions) - 4
    rest = data[2 + regions :].ljust(step * subpartitions, b"\1")
    rows = b""
    for number in range(subpartitions):
        row = rest[number * step : (number + 1) * step]
        rows += row + struct.pack(">I", zlib.crc32(row))
    decode_rows(head, rows, 0, subpartitions, "index", own_files=bool(data[:1] > b"\x80"))


def pages(data: bytes) -> None:
    """A block of a data file."""
    actual: list[Page] = []
    taken = split_pages(memoryview(data), actual, max_bytes=SEGMENT_BYTES, name="data", file=0, offset=0)
    assert 0 <= taken <= len(data)


def job(data: bytes) -> None:
    """A job file: it is refused, or it becomes a job."""
    generate_job(read_job(data.decode("utf-8", "surrogateescape")))


TARGETS: dict[str, Target] = {
    "native-consumer": lambda data: as_consumer(NativeCodec(SEGMENT_BYTES), data),
    "native-producer": lambda data: as_producer(NativeCodec(SEGMENT_BYTES), data),
    "flink-consumer": lambda data: as_consumer(FlinkConsumerCodec(iter(FLINK_IDS).__next__, SEGMENT_BYTES), data),
    "flink-producer": lambda data: as_producer(FlinkProducerCodec(SEGMENT_BYTES), data),
    "control": control,
    "descriptor": descriptor,
    "shuffle-descriptors": shuffle_descriptors,
    "job-information": lambda data: JobInformation.parse(data) and None,
    "task-information": lambda data: TaskInformation.parse(data) and None,
    "event": lambda data: decode_event(data) and None,
    "records-bytes": records("bytes"),
    "records-int64": records("int64"),
    "records-msgpack": records("msgpack"),
    "records-str": records("str"),
    "records-arrow": records("arrow"),
    "flink-rows": flink_rows,
    "snapshot": snapshot,
    "manifest": manifest,
    "index": index,
    "pages": pages,
    "job": job,
    **documents.TARGETS,
}


def run(name: str, data: bytes) -> None:
    """One input; raises what is no promised error."""
    with contextlib.suppress(NetstackError, RemoteProtocolError):
        TARGETS[name](data)
