"""Every byte two Flink 2.3.0 processes exchanged is understood, and written again as it was, however it is cut."""

from __future__ import annotations

import functools
import struct
import zlib
from typing import Any

import pytest
from exchange.landed_runs import TakesEach
from hypothesis import given, strategies as st
from laws.flink_frames import composite
from laws.flink_vectors import CASES, WRONG_ON_PURPOSE, Vector, channel_ids, frames_in, load, partition_requests
from segments import allocate_segments

from netstack.base.errors import ErrorCode, RemoteProtocolError
from netstack.base.events import DataType, decode_event, encode_event
from netstack.exchange.buffer.segment import Segment
from netstack.exchange.record.flink import ByteArrayFormat, LongFormat, StreamElementFormat, StreamRecord
from netstack.exchange.wire import flink_events
from netstack.exchange.wire.assembler import FrameAssembler
from netstack.exchange.wire.codec import Inflate
from netstack.exchange.wire.flink_consumer import FlinkConsumerCodec
from netstack.exchange.wire.flink_producer import FlinkProducerCodec
from netstack.exchange.wire.frames import (
    BacklogAnnouncement,
    ChannelError,
    ConnectionFailure,
    Frame,
    OpenChannel,
    UnknownChannel,
)

vector_of = functools.lru_cache(load)
REGULAR = [case for case in CASES if case not in WRONG_ON_PURPOSE]

Item = tuple[Any, ...]


class Sink(TakesEach):
    """Keeps what comes."""

    def __init__(self, codec: FlinkConsumerCodec | FlinkProducerCodec, segment_size: int, landing: int) -> None:
        self.items: list[Item] = []
        self.assembler = FrameAssembler(codec, self, allocate_segments(landing, segment_size), segment_size)

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        self.items.append(("buffer", channel, sequence, backlog, bytes(segment.memory[:length])))
        return segment

    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None:
        self.items.append(("buffer", channel, sequence, backlog, bytes(payload)))

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        self.items.append(("event", channel, sequence, backlog, data_type, payload))

    def on_parts(
        self,
        channel: int,
        sequence: int,
        backlog: int,
        body: memoryview,
        sizes: tuple[int, ...],
        inflate: Inflate | None,
    ) -> None:
        self.items.append(("parts", channel, sequence, backlog, bytes(body), sizes, inflate))

    def on_frame(self, frame: Frame) -> None:
        self.items.append(("frame", frame))

    def feed(self, stream: bytes, reads: list[int]) -> list[Item]:
        """Reads of so many bytes (0: all the windows hold); the last repeats. Returns what came since the last time."""
        known = len(self.items)
        rest = memoryview(stream)
        wanted = 0
        sizes = iter(reads)
        while rest:
            wanted = next(sizes, wanted)
            count = 0
            for window in self.assembler.windows():
                part = rest[: min(len(window), wanted - count) if wanted else len(window)]
                window[: len(part)] = part
                rest = rest[len(part) :]
                count += len(part)
                if len(part) < len(window):
                    break
            self.assembler.advance(count)
        return self.items[known:]


def producer_of(vector: Vector) -> FlinkProducerCodec:
    """A producer's codec that has read the requests."""
    codec = FlinkProducerCodec(vector.segment_size)
    reader = Sink(codec, vector.segment_size, 0)
    for frame in partition_requests(vector.requests):
        reader.feed(frame, [0])
    return codec


def consumer_of(vector: Vector) -> FlinkConsumerCodec:
    """A consumer's codec that has sent the requests."""
    ids = channel_ids(vector.requests)
    codec = FlinkConsumerCodec(iter(ids).__next__, vector.segment_size)
    reader = Sink(FlinkProducerCodec(32 * 1024), vector.segment_size, 0)
    opened = [item[1] for frame in partition_requests(vector.requests) for item in reader.feed(frame, [0])]
    for request in opened[: len(ids)]:
        assert isinstance(request, OpenChannel)
        codec.encode_control(request)
    if vector.case == "raw-task-event-for-nobody":  # the channel is named in the event only
        codec.ids.bind(0, bytes(range(16)))
    return codec


# Requests: what a consumer says.


@pytest.mark.parametrize("case", REGULAR)
def test_requests_are_read_and_written_again(case: str) -> None:
    vector = vector_of(case)
    ids = channel_ids(vector.requests) or [bytes(range(16))]
    writer = FlinkConsumerCodec(iter(ids).__next__, vector.segment_size)
    if case in ("raw-task-event-for-nobody", "raw-cancel-for-nobody"):
        writer.ids.bind(0, ids[0])
    reader = Sink(FlinkProducerCodec(32 * 1024), vector.segment_size, 0)
    written = [b"".join(writer.encode_control(item[1]) for item in reader.feed(vector.requests, [0]))]
    if case == "raw-cancel-for-nobody":
        assert written == [b""]  # nobody is cancelled
    else:
        assert written == [vector.requests]
    assert not reader.assembler.mid_frame


@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("raw-bad-magic", ErrorCode.MALFORMED_FRAME, "magic deadbeef instead of badc0ffe"),
        ("raw-unknown-kind", ErrorCode.MALFORMED_FRAME, "kind 99"),
    ],
)
@pytest.mark.parametrize("reads", [[0], [1]], ids=["whole", "byte by byte"])
def test_requests_that_are_wrong_on_purpose(case: str, code: ErrorCode, text: str, reads: list[int]) -> None:
    vector = vector_of(case)
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        Sink(FlinkProducerCodec(32 * 1024), 256, 0).feed(vector.requests, reads)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("case", "name"),
    [("raw-ack-for-nobody", "ACK_ALL_USER_RECORDS_PROCESSED"), ("raw-credit-for-nobody", "ADD_CREDIT")],
)
@pytest.mark.parametrize("reads", [[0], [1]], ids=["whole", "byte by byte"])
def test_requests_for_nobody(case: str, name: str, reads: list[int]) -> None:
    items = Sink(FlinkProducerCodec(32 * 1024), 256, 0).feed(vector_of(case).requests, reads)
    text = f"{name} for channel {bytes(range(16)).hex()}, which is not open here"
    assert items == [("frame", UnknownChannel(text))]


# Responses: what a producer says.


def written_again(codec: FlinkProducerCodec, frame: bytes, items: list[Item]) -> bytes:
    """The frame as our producer would write it."""
    if frame[8] != 0:
        (item,) = items
        return codec.encode_control(item[1])
    parts, sequence, backlog = struct.unpack_from(">iII", frame, 29)
    code, compressed = frame[41:43]
    kind, channel = items[0][:2]
    if kind == "parts":
        body, sizes = items[0][4:6]
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        pieces = [body[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        return composite(
            codec,
            channel,
            DataType.DATA,
            sequence,
            backlog,
            pieces,
            is_compressed=bool(compressed),
            has_sizes=bool(parts),
        )
    if kind == "buffer":
        payload: bytes = items[0][4]
        return codec.encode_buffer_header(channel, DataType.DATA, sequence, backlog, len(payload), 0) + payload
    data_type, payload = items[0][4:]
    event = flink_events.decode(payload)
    assert flink_events.encode(event) == payload
    if parts:
        return composite(codec, channel, data_type, sequence, backlog, [item[5] for item in items])
    if isinstance(event, flink_events.Barrier) and event.kind != flink_events.CHECKPOINT:
        return frame  # a savepoint is a checkpoint above the codec
    header, body = codec.encode_event(
        channel, data_type, sequence, backlog, encode_event(flink_events.to_native(event))
    )
    assert code == header[41]
    return header + body


@pytest.mark.parametrize("case", CASES)
def test_responses_are_read_and_written_again(case: str) -> None:
    vector = vector_of(case)
    reader = Sink(consumer_of(vector), vector.segment_size, 4)
    writer = producer_of(vector)
    for frame in frames_in(vector.responses):
        items = reader.feed(frame, [0])
        if frame[8] == 1:
            check_error(case, items)
        else:
            assert written_again(writer, frame, items) == frame
    assert not reader.assembler.mid_frame


def check_error(case: str, items: list[Item]) -> None:
    """Nobody writes another's stack trace again; what it means is known."""
    ((_, frame),) = items
    if case == "partition-not-found":
        assert isinstance(frame, ChannelError)
        assert (frame.channel, frame.code) == (0, ErrorCode.PARTITION_NOT_FOUND)
    elif case == "raw-task-event-for-nobody":
        assert isinstance(frame, ChannelError)
        assert "java.lang.IllegalArgumentException" in frame.text
    else:
        assert isinstance(frame, ConnectionFailure)
        assert "IllegalStateException" in frame.text or "DecoderException" in frame.text


def told(items: list[Item]) -> list[Item]:
    """Items that can be compared: a buffer is the same however it landed."""
    return [item[:-1] if item[0] == "parts" else item for item in items]


@pytest.mark.parametrize("case", CASES)
def test_responses_byte_by_byte(case: str) -> None:
    vector = vector_of(case)
    whole = Sink(consumer_of(vector), vector.segment_size, 4).feed(vector.responses, [0])
    assert told(Sink(consumer_of(vector), vector.segment_size, 4).feed(vector.responses, [1])) == told(whole)


@given(st.sampled_from(CASES), st.lists(st.one_of(st.just(0), st.integers(1, 800)), max_size=30), st.integers(1, 6))
def test_responses_cut_anywhere(case: str, reads: list[int], landing: int) -> None:
    vector = vector_of(case)
    whole = Sink(consumer_of(vector), vector.segment_size, 4).feed(vector.responses, [0])
    reader = Sink(consumer_of(vector), vector.segment_size, landing)
    assert told(reader.feed(vector.responses, reads)) == told(whole)
    assert not reader.assembler.mid_frame


@given(st.sampled_from(REGULAR), st.lists(st.integers(1, 200), max_size=30))
def test_requests_cut_anywhere(case: str, reads: list[int]) -> None:
    vector = vector_of(case)
    whole = Sink(FlinkProducerCodec(32 * 1024), vector.segment_size, 0).feed(vector.requests, [0])
    assert Sink(FlinkProducerCodec(32 * 1024), vector.segment_size, 0).feed(vector.requests, reads) == whole
    assert Sink(FlinkProducerCodec(32 * 1024), vector.segment_size, 0).feed(vector.requests, [1]) == whole


# What it all means.


def records_of(stream: bytes) -> list[bytes]:
    records = []
    while stream:
        (length,) = struct.unpack_from(">i", stream)
        assert 0 <= length <= len(stream) - 4
        records.append(stream[4 : 4 + length])
        stream = stream[4 + length :]
    return records


def payload_of(vector: Vector, record: bytes) -> bytes | None:
    """The bytes the consumer counted: a long as eight bytes, bytes as they are; None for what is no record."""
    if "--stream-elements" in vector.settings["consume"]:
        element = StreamElementFormat(LongFormat()).decode(memoryview(record))
        assert StreamElementFormat(LongFormat()).encode(element) == record
        return LongFormat().encode(element.value) if isinstance(element, StreamRecord) else None
    if "--payload bytes" in vector.settings["consume"]:
        payload = ByteArrayFormat().decode(memoryview(record))
        assert ByteArrayFormat().encode(payload) == record
        return payload
    assert LongFormat().encode(LongFormat().decode(memoryview(record))) == record
    return record


FINISHED = [case for case in CASES if (vector_of(case).outcome or {}).get("outcome") == "finished"]


@pytest.mark.parametrize("case", FINISHED)
def test_the_records_and_events_are_those_the_consumer_counted(case: str) -> None:
    if case.endswith("zstd"):
        pytest.importorskip("pyarrow", reason="reads ZSTD")
    vector = vector_of(case)
    codec = consumer_of(vector)
    expected = vector.outcome
    assert expected is not None
    data = [bytearray() for _ in expected["channels"]]
    events: list[list[str]] = [[] for _ in expected["channels"]]
    sequences = [0] * len(data)
    for item in Sink(codec, vector.segment_size, 4).feed(vector.responses, [0]):
        if item[0] == "frame":
            assert isinstance(item[1], BacklogAnnouncement)
            continue
        channel, sequence = item[1:3]
        assert sequence == sequences[channel]
        sequences[channel] += 1
        match item[0]:
            case "buffer":
                data[channel] += item[4]
            case "parts":
                body, sizes, inflate = item[4:]
                sequences[channel] += len(sizes) - 1
                for size in sizes:
                    data[channel] += body[:size] if inflate is None else inflate(memoryview(body[:size]))
                    body = body[size:]
            case _:
                _, native = codec.decode_event(item[4], item[5])
                event = decode_event(native)
                events[channel].append(flink_events.flink_name(event))
                if item[4] is DataType.TIMEOUTABLE_ALIGNED_BARRIER:  # the consumer announces it to itself
                    events[channel].insert(0, "EventAnnouncement")
    for index, channel in enumerate(expected["channels"]):
        payloads = [payload for record in records_of(bytes(data[index])) if (payload := payload_of(vector, record))]
        assert len(payloads) == channel["records"]
        assert f"{zlib.crc32(b''.join(payloads)):08x}" == channel["crc32"]
        assert events[index] == channel["events"]
