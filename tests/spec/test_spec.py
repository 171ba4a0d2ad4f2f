"""The specification and the implementation say the same: every block of SPEC.md runs, in both directions.

Nothing of the page is repeated here: a change of the page is a change of the test.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from exchange.landed_runs import TakesEach
from hypothesis import given, strategies as st
from partition_builders import open_builder
from segments import allocate_segments

from netstack.base import events as in_band
from netstack.base.errors import ChannelFailed, ErrorCode, RemoteProtocolError
from netstack.base.events import Alignment, DataType, data_type_of, decode_event, encode_event
from netstack.base.ids import ChannelDescriptor, PartitionId, ResultPartitionType
from netstack.exchange.buffer.buffer import BufferSource, Notify
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.buffer.segment import Segment
from netstack.exchange.buffer.stored import PART_HEADER, Packaging, StoredBuffer, compress, part_crc32
from netstack.exchange.inbound.channel import EVENT_OVERHEAD_BYTES, MAX_WAITING_EVENT_BYTES, RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.receiver import ChannelReceiver
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.outbound.sender import ChannelSender
from netstack.exchange.record.deserializer import RecordDeserializer
from netstack.exchange.record.formats import BytesFormat, format_named
from netstack.exchange.record.framing import frame as framed
from netstack.exchange.record.runs import FramedRuns
from netstack.exchange.record.spill import SpillDirectory
from netstack.exchange.wire import frames
from netstack.exchange.wire.assembler import FrameAssembler
from netstack.exchange.wire.codec import Inflate
from netstack.exchange.wire.codec_native import MAX_TEXT_BYTES, NOT_SENT, PROTOCOL_VERSION, Kind, NativeCodec
from netstack.exchange.wire.connection import Connection
from netstack.exchange.wire.frames import Frame, Goodbye, Hello
from netstack.exchange.wire.greeting import FEATURE_CHECKSUM, FEATURE_EXPECTED, FEATURE_PROMPT, FEATURE_SESSION

SPEC = (Path(__file__).resolve().parents[2] / "netstack/exchange/wire/SPEC.md").read_text(encoding="utf-8")
SEGMENT_BYTES = 32 * 1024  # of the vectors
CODEC = NativeCodec()

# Reading the page.


def blocks(language: str) -> Iterator[list[str]]:
    """The lines of every fenced block of this language, without those that are only a comment."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```$", SPEC, re.MULTILINE | re.DOTALL):
        yield [line for line in found[1].splitlines() if not line.startswith(";")]


def section(number: int) -> str:
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", SPEC, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0]


def prose(number: int) -> str:
    return " ".join(section(number).split())


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row that starts with a number."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        if line.startswith("|") and re.fullmatch(r"(0x)?[0-9A-F]+", cells[0]):
            yield cells


def unhex(lines: Iterable[str]) -> bytes:
    return b"".join(bytes.fromhex(line.partition(";")[0]) for line in lines)


class Buffer(NamedTuple):
    """A BUFFER frame, as a sink sees it."""

    channel: int
    data_type: DataType
    sequence: int
    backlog: int
    checksum: int
    payload: bytes


class Compressed(NamedTuple):
    """A COMPRESSED frame, as a sink sees it."""

    channel: int
    sequence: int
    backlog: int
    parts: tuple[bytes, ...]


class Vector(NamedTuple):
    kind: str
    name: str
    meaning: Any
    data: bytes


def vector(lines: list[str]) -> Vector:
    fields: dict[str, Any] = json.loads(lines[0])
    data = unhex(lines[1:])
    kind, name = next(iter(fields.items()))
    del fields[kind]
    if kind == "compressed":
        return Vector(kind, "COMPRESSED", Compressed(parts=tuple(map(bytes.fromhex, name)), **fields), data)
    if "payload" in fields:
        fields["payload"] = bytes.fromhex(fields["payload"])
    if "session" in fields:
        fields["session"] = bytes.fromhex(fields["session"])
    if "alignment" in fields:
        fields["alignment"] = Alignment[fields["alignment"]]
    if "code" in fields:
        fields["code"] = ErrorCode[fields["code"]]
    if "pairs" in fields:
        fields["pairs"] = tuple(tuple(pair) for pair in fields["pairs"])
    if kind == "buffer":
        fields["checksum"] = zlib.crc32(fields["payload"]) if fields["checksum"] else 0
        return Vector(kind, name, Buffer(data_type=DataType[name], **fields), data)
    return Vector(kind, name, getattr(in_band if kind == "event" else frames, name)(**fields), data)


VECTORS = [vector(lines) for lines in blocks("vector")]
ON_THE_WIRE = [found for found in VECTORS if found.kind != "event"]
EVENTS = [found for found in VECTORS if found.kind == "event"]
INVALID = [tuple(line.split(":", 1)) for lines in blocks("invalid") for line in lines]


def named(found: Vector) -> str:
    return f"{found.kind}-{found.name}"


# Running it.


class Recorder(TakesEach):
    """A sink that keeps every segment it is given and hands out a free one, as channels do."""

    def __init__(self) -> None:
        self.got: list[Frame | Buffer | Compressed] = []

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        payload = bytes(segment.memory[:length])
        self.got.append(Buffer(channel, DataType.DATA, sequence, backlog, checksum, payload))
        return allocate_segments(1, SEGMENT_BYTES)[0]

    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None:
        self.got.append(Buffer(channel, DataType.DATA, sequence, backlog, checksum, bytes(payload)))

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        self.got.append(Buffer(channel, data_type, sequence, backlog, 0, payload))

    def on_parts(
        self,
        channel: int,
        sequence: int,
        backlog: int,
        body: memoryview,
        sizes: tuple[int, ...],
        inflate: Inflate | None,
    ) -> None:
        assert inflate is not None
        ends = list(itertools.accumulate(sizes, initial=0))
        parts = tuple(inflate(body[start:stop]) for start, stop in itertools.pairwise(ends))
        self.got.append(Compressed(channel, sequence, backlog, parts))

    def on_frame(self, frame: Frame) -> None:
        self.got.append(frame)


def assembled(pieces: Iterable[bytes]) -> list[Frame | Buffer | Compressed]:
    """What an assembler makes of these reads."""
    recorder = Recorder()
    assembler = FrameAssembler(CODEC, recorder, allocate_segments(4, SEGMENT_BYTES), SEGMENT_BYTES)
    for piece in pieces:
        feed(assembler.windows, assembler.advance, piece)
    assert not assembler.mid_frame
    return recorder.got


def feed(windows: Callable[[], list[memoryview]], advance: Callable[[int], None], data: bytes) -> None:
    """Stores `data` as a scattering read would, in as many reads as the windows make necessary."""
    rest = memoryview(data)
    while rest:
        count = 0
        for window in windows():
            part = rest[: len(window)]
            window[: len(part)] = part
            rest = rest[len(part) :]
            count += len(part)
        advance(count)


def encoded(meaning: Any) -> bytes:
    if isinstance(meaning, Compressed):
        parts = []
        for data in meaning.parts:
            block = compress(data)
            assert block is not None
            parts.append(memoryview(PART_HEADER.pack(len(data), part_crc32(block, len(data))) + block))
        stored = StoredBuffer(
            tuple(parts), DataType.STORED_DATA, None, is_compressed=True, is_glued=True, is_range=False
        )
        return b"".join(CODEC.encode_stored(meaning.channel, meaning.sequence, meaning.backlog, stored))
    if not isinstance(meaning, Buffer):
        return CODEC.encode_control(meaning)
    header = CODEC.encode_buffer_header(
        meaning.channel, meaning.data_type, meaning.sequence, meaning.backlog, len(meaning.payload), meaning.checksum
    )
    return header + meaning.payload


# The vectors.


def test_every_frame_and_event_has_a_vector() -> None:
    seen = {type(found.meaning).__name__ for found in VECTORS if found.kind == "frame"}
    other_dialects = {"TaskEvent", "SegmentRequest", "UnknownChannel"}
    assert seen == {name.strip() for name in str(Frame).split("|")} - other_dialects
    assert {found.name for found in EVENTS} == {kind.__name__ for kind in get_args(in_band.Event)}
    assert {found.name for found in VECTORS if found.kind == "buffer"} == {"DATA", "ALIGNED_BARRIER"}


@pytest.mark.parametrize("found", ON_THE_WIRE, ids=named)
def test_encode(found: Vector) -> None:
    assert encoded(found.meaning).hex() == found.data.hex()


@pytest.mark.parametrize("found", ON_THE_WIRE, ids=named)
def test_decode(found: Vector) -> None:
    assert assembled([found.data]) == [found.meaning]


@pytest.mark.parametrize("found", ON_THE_WIRE, ids=named)
def test_decode_byte_by_byte(found: Vector) -> None:
    assert assembled(found.data[i : i + 1] for i in range(len(found.data))) == [found.meaning]


@given(st.lists(st.sampled_from(ON_THE_WIRE), max_size=20), st.data())
def test_decode_at_random_cuts(chosen: list[Vector], data: st.DataObject) -> None:
    stream = b"".join(found.data for found in chosen)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    pieces = [stream[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(stream)])]
    assert assembled(pieces) == [found.meaning for found in chosen]


@pytest.mark.parametrize("found", EVENTS, ids=named)
def test_events(found: Vector) -> None:
    assert encode_event(found.meaning).hex() == found.data.hex()
    assert decode_event(found.data) == found.meaning


def test_the_barrier_travels_under_the_type_of_its_vector() -> None:
    (frame,) = [found for found in ON_THE_WIRE if found.name == "ALIGNED_BARRIER"]
    assert data_type_of(decode_event(frame.meaning.payload)) is frame.meaning.data_type


@pytest.mark.parametrize(("code", "text"), INVALID, ids=[text.partition(";")[2].strip() for _, text in INVALID])
def test_invalid(code: str, text: str) -> None:
    data = unhex([text])
    with pytest.raises(RemoteProtocolError) as caught:
        decode_event(data) if code == "event" else assembled([data])
    assert caught.value.code is (ErrorCode.MALFORMED_FRAME if code == "event" else ErrorCode[code])


@pytest.mark.parametrize("text", [text for code, text in INVALID if code == "FRAME_TOO_LARGE"])
def test_a_frame_too_long_is_refused_from_its_header(text: str) -> None:
    assert len(unhex([text])) == CODEC.header_bytes


# The tables and numbers of the page.


def test_numbers_of_kinds() -> None:
    assert {int(cells[0], 0): cells[1] for cells in rows(section(4)) if len(cells) == 5} == {
        kind.value: kind.name for kind in Kind
    }


def test_numbers_of_data_types() -> None:
    table = {int(cells[0]): cells for cells in rows(section(5)) if len(cells) == 5}
    on_the_wire = [kind for kind in DataType if kind not in NOT_SENT]
    assert {number: cells[1] for number, cells in table.items()} == {kind.value: kind.name for kind in on_the_wire}
    for data_type in on_the_wire:
        cells = table[data_type.value]
        assert (cells[2] == "records", cells[3] == "yes", cells[4] == "yes") == (
            data_type.is_data,
            data_type.blocks_upstream,
            data_type.has_priority,
        )


def test_numbers_of_events() -> None:
    table = {cells[1]: int(cells[0]) for cells in rows(section(5)) if len(cells) == 3}
    assert table == {found.name: found.data[0] for found in EVENTS}


def test_numbers_of_errors() -> None:
    assert {int(cells[0]): cells[1] for cells in rows(section(6))} == {code.value: code.name for code in ErrorCode}


def test_limits() -> None:
    limits = dict(re.findall(r"^\| (BUFFER of any other type|every other kind) \| ([\d,]+) \|$", SPEC, re.MULTILINE))
    assert {name: int(number.replace(",", "")) for name, number in limits.items()} == {
        "BUFFER of any other type": CODEC.max_event_bytes,
        "every other kind": CODEC.max_control_bytes,
    }
    assert CODEC.max_event_bytes == in_band.MAX_EVENT_BYTES
    assert f"one to {CODEC.max_credit_pairs:,} times" in section(4)
    assert f"{MAX_TEXT_BYTES:,} bytes" in prose(4)
    assert CODEC.header_bytes == sum(
        int(size) for size in re.findall(r"^\| \d+ \| (\d+) \| \w", section(2), re.MULTILINE)
    )


def test_bound_of_events() -> None:
    assert f"{MAX_WAITING_EVENT_BYTES // 2**20} MiB of events" in prose(5)
    assert f"each counts {EVENT_OVERHEAD_BYTES} bytes more" in prose(5)


def test_version_and_features() -> None:
    assert f"wire protocol, version {PROTOCOL_VERSION}" in SPEC.partition("\n")[0]
    assert [(int(cells[0]), cells[1].partition(":")[0]) for cells in rows(section(4)) if len(cells) == 2] == [
        (FEATURE_CHECKSUM.bit_length() - 1, "CHECKSUM"),
        (FEATURE_SESSION.bit_length() - 1, "SESSION"),
        (FEATURE_EXPECTED.bit_length() - 1, "EXPECTED"),
        (FEATURE_PROMPT.bit_length() - 1, "PROMPT"),
    ]


def test_records() -> None:
    text = prose(12)
    two = re.search(r'Two records, "hello" and an empty one: `([0-9a-f ]+)`', text)
    assert two is not None
    assert bytes.fromhex(two[1]) == framed(b"hello") + framed(b"")
    several = re.search(r'The records "ab", "cd" and "ef": `([0-9a-f ]+)`', text)
    assert several is not None
    run = FramedRuns(np.frombuffer(b"abcdef", np.uint8).reshape(3, 2))
    written = bytearray(run.begin(1000))
    run.write(memoryview(written))
    assert bytes.fromhex(several[1]) == written
    deserializer = RecordDeserializer(BytesFormat(), spill=SpillDirectory(), spill_threshold_bytes=1 << 20)
    assert deserializer.feed(memoryview(written)) == [b"ab", b"cd", b"ef"]
    for name, value in (("int64", -2), ("float64", 1.0)):
        displayed = re.search(rf"\| {name} \|.*: {value} is `([0-9a-f]+)`", section(12))
        assert displayed is not None
        assert bytes(format_named(name).encode(value)).hex() == displayed[1]
        assert format_named(name).decode(memoryview(bytes.fromhex(displayed[1]))) == value
    assert set(re.findall(r"^\| (\w+) \|", section(12), re.MULTILINE)) == {
        "format",
        "bytes",
        "str",
        "int64",
        "float64",
        "msgpack",
        "arrow",
    }


def test_checksum_of_the_page() -> None:
    assert f"`{zlib.crc32(b'123456789'):08x}`" in section(10)


# The exchange.

EXCHANGE = [
    (side, unhex(text for _, text in lines))
    for side, lines in itertools.groupby(
        ((line[0], line[3:]) for line in next(blocks("exchange"))), key=lambda line: line[0]
    )
]


class Host:
    """What a partition wants of its TaskManager; here nothing happens by itself."""

    def now(self) -> float:
        return 0.0

    ticks = now

    def flush_connections(self) -> None: ...

    settle = hold = flush_held = flush_connections

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None: ...


class OnePartition:
    """A `ViewProvider`."""

    def __init__(self, partition: ResultPartition) -> None:
        self.partition = partition

    def open_view(
        self,
        partition_id: str,
        subpartition: int,
        notify: Notify,
        on_view: Callable[[BufferSource], None],
        on_failed: Callable[[ChannelFailed], None],
        subpartitions: int = 1,
        packaging: Packaging = Packaging.PLAIN,
    ) -> Callable[[], None]:
        assert partition_id == self.partition.partition_id
        on_view(self.partition.create_view(subpartition, notify))
        return lambda: None


HELLO = Hello(PROTOCOL_VERSION, 256, FEATURE_CHECKSUM, "example")


class Producer:
    """The producer of the exchange, without a socket."""

    def __init__(self) -> None:
        self.pool = NetworkBufferPool(4, 256)
        local = self.pool.create_pool(4, 4, subpartitions=1)
        self.partition = ResultPartition(
            PartitionId("p"),
            ResultPartitionType.PIPELINED_BOUNDED,
            1,
            local,
            on_released=lambda partition: None,
            host=Host(),
        )
        (subpartition,) = self.partition.subpartitions
        stream = framed(b"hello") + framed(b"")
        for part in (stream[:6], stream[6:9], stream[9:]):
            builder = open_builder(self.partition, 0)
            builder.append(part)
            subpartition.add(builder.create_consumer())
            builder.finish()
            subpartition.on_buffer_finished()
            builder.close()
        self.partition.end_of_data()
        self.partition.finish()
        self.partition.close()
        sender = ChannelSender(
            CODEC,
            OnePartition(self.partition),
            max_channels=1,
            on_write_wanted=lambda: None,
            send=lambda frame: self.connection.send(frame),
        )
        self.connection = Connection(
            CODEC, sender, hello=HELLO, landing=[], peer="consumer", on_write_wanted=lambda: None, now=0.0
        )


class Consumer:
    """The consumer of the exchange, without a socket."""

    def __init__(self) -> None:
        self.pool = NetworkBufferPool(8, 256)
        self.landing = self.pool.take_unpooled(4)
        self.receiver = ChannelReceiver(
            CODEC,
            peer="producer",
            on_write_wanted=lambda: None,
            send=lambda frame: self.connection.send(frame),
            on_empty=lambda: self.connection.send(Goodbye()),
            write_now=lambda: None,
        )
        self.connection = Connection(
            CODEC,
            self.receiver,
            hello=HELLO,
            landing=self.landing,
            peer="producer",
            on_write_wanted=lambda: None,
            now=0.0,
            sink=self.receiver,
        )
        floating = self.pool.create_pool(1, 1)
        self.gate = SingleInputGate(floating, read_connections=lambda: None, on_closed=lambda: None)
        self.channel = RemoteInputChannel(
            self.gate,
            0,
            ChannelDescriptor("producer", "p", 0),
            exclusive=self.pool.take_unpooled(2),
            pool=floating,
            network=self.pool,
        )
        self.gate.add_channel(self.channel)

    def read_all(self) -> bytes:
        data = bytearray()
        while (buffer := self.gate.poll()) is not None:
            if buffer.data_type is DataType.DATA:
                data += buffer.memory
            elif buffer.data_type is DataType.END_OF_DATA:
                self.gate.acknowledge_end_of_data(0)
            buffer.recycle()
        return bytes(data)


def collected(connection: Connection) -> bytes:
    data = bytearray()
    while (batch := connection.collect()) is not None:
        data += b"".join(batch.pieces)
        assert batch.take(batch.total_bytes)
    return bytes(data)


@pytest.mark.parametrize("read_bytes", [1, 7, 1 << 20])
def test_exchange(read_bytes: int) -> None:
    """Both cores say exactly what the page says they do, however their reads are cut."""
    producer, consumer = Producer(), Consumer()

    def arrive(connection: Connection, data: bytes) -> None:
        for start in range(0, len(data), read_bytes):
            feed(
                connection.windows,
                lambda count: connection.advance(count, 0.0),
                data[start : start + read_bytes],
            )

    records = b""
    for step, (side, expected) in enumerate(EXCHANGE):
        mine, other = producer.connection, consumer.connection
        if side == "C":
            mine, other = other, mine
            if step == 2:
                consumer.receiver.open(consumer.channel)
            elif step == 6:
                records = consumer.read_all()
        elif step == len(EXCHANGE) - 1:
            mine.send(Goodbye())
        assert collected(mine).hex(" ") == expected.hex(" "), f"step {step}"
        arrive(other, expected)
    for connection in (producer.connection, consumer.connection):
        assert collected(connection) == b""
        connection.end_of_stream()
    deserializer = RecordDeserializer(BytesFormat(), spill=SpillDirectory(), spill_threshold_bytes=1 << 20)
    assert deserializer.feed(memoryview(records)) == [b"hello", b""]
    assert producer.partition.is_released
    assert producer.pool.statistics().lent_segments == 0
    consumer.gate.close()
    consumer.pool.recycle_unpooled(consumer.connection.close(None))
    assert consumer.pool.statistics().lent_segments == 0


def test_exchange_is_made_of_valid_frames() -> None:
    """Told apart with nothing but the header of section 2."""
    for _, data in EXCHANGE:
        position = 0
        while position < len(data):
            (length,) = struct.unpack_from(">I", data, position)
            position += 24 + length
        assert position == len(data)


def sides(exchange: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
    return {side: b"".join(data for who, data in exchange if who == side) for side in "CP"}


def test_exchange_has_goodbyes_last() -> None:
    for data in sides(EXCHANGE).values():
        assert data.endswith(CODEC.encode_control(Goodbye()))
