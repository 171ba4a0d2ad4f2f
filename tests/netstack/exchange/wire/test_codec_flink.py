"""Flink's dialect: what one side writes the other reads, in Flink's bytes; what a hostile peer sends is refused."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable

import pytest
from exchange.landed_runs import TakesEach
from hypothesis import given, strategies as st
from laws.flink_frames import composite, deflate
from segments import allocate_segments

from netstack.base.errors import ConfigError, ErrorCode, LocalProtocolError, RemoteProtocolError
from netstack.base.events import (
    Alignment,
    CheckpointBarrier,
    DataType,
    EndOfData,
    EndOfPartition,
    Event,
    UserEvent,
    decode_event,
    encode_event,
)
from netstack.exchange.buffer.segment import Segment
from netstack.exchange.wire import flink_channels, flink_events
from netstack.exchange.wire.assembler import FrameAssembler
from netstack.exchange.wire.codec import FrameKind, Inflate
from netstack.exchange.wire.flink_consumer import _MAX_KNOWN, FlinkConsumerCodec
from netstack.exchange.wire.flink_errors import read_error, write_error
from netstack.exchange.wire.flink_layout import MAX_INT, MAX_PARTS, Kind
from netstack.exchange.wire.flink_producer import FlinkProducerCodec
from netstack.exchange.wire.frames import (
    Acknowledge,
    AddCredit,
    BacklogAnnouncement,
    CancelChannel,
    ChannelError,
    ConnectionFailure,
    Frame,
    Goodbye,
    Hello,
    NewBufferSize,
    OpenChannel,
    Ping,
    Pong,
    Resume,
    SegmentRequest,
    TaskEvent,
    UnknownChannel,
)

FULL = 256
PARTITION = (
    "d0d1d2d3d4d5d6d7d8d9dadbdcdddedf 00000000 e0e1e2e3e4e5e6e7e8e9eaebecedeeef f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    " 00000000 00000000"
).replace(" ", "")
ID = bytes.fromhex("2fe713441e51a19eb8a5b367cbc862db")
OPEN = OpenChannel(0, PARTITION, 0, 2)


class Pair(TakesEach):
    """A consumer's codec and a producer's, and what an assembler makes of bytes for the consumer."""

    def __init__(self, *opens: OpenChannel, landing: int = 4) -> None:
        numbers = iter(range(1000))
        self.consumer = FlinkConsumerCodec(lambda: ID[:-1] + bytes((0xDB + next(numbers) & 0xFF,)), FULL)
        self.producer = FlinkProducerCodec(FULL)
        self.got: list[object] = []
        self.assembler = FrameAssembler(self.consumer, self, allocate_segments(landing, FULL), FULL)
        for request in opens or (OPEN,):
            assert self.ask(request) == request

    def ask(self, frame: Frame) -> Frame | None:
        """The frame as the producer reads what the consumer writes."""
        return self.read(self.consumer.encode_control(frame))

    def read(self, data: bytes) -> Frame | None:
        """A frame of a consumer."""
        kind, length, control_type, channel, *_ = self.producer.parse_header(memoryview(data), 0)
        assert (kind, length) == (FrameKind.CONTROL, len(data) - 9)
        return self.producer.decode_control(control_type, channel, data[9:])

    def answer(self, frame: Frame) -> Frame | None:
        """The frame as the consumer reads what the producer writes."""
        data = self.producer.encode_control(frame)
        kind, length, control_type, channel, *_ = self.consumer.parse_header(memoryview(data), 0)
        assert (kind, length) == (FrameKind.CONTROL, len(data) - 9)
        return self.consumer.decode_control(control_type, channel, data[9:])

    def feed(self, stream: bytes, reads: Iterable[int] = (0,)) -> list[object]:
        """Bytes for the consumer, in reads of so many (0: all the windows hold; the last repeats)."""
        known = len(self.got)
        rest = memoryview(stream)
        sizes = iter(reads)
        wanted = 0
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
        return self.got[known:]

    def data(self, sequence: int, payload: bytes, backlog: int = 0, channel: int = 0) -> bytes:
        """A data buffer, in bytes."""
        header = self.producer.encode_buffer_header(channel, DataType.DATA, sequence, backlog, len(payload), 0)
        return header + payload

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        self.got.append((channel, sequence, backlog, bytes(segment.memory[:length])))
        return segment

    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None:
        self.got.append((channel, sequence, backlog, bytes(payload)))

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        handled_as, native = self.consumer.decode_event(data_type, payload)
        self.got.append((channel, sequence, backlog, handled_as, decode_event(native)))

    def on_parts(
        self,
        channel: int,
        sequence: int,
        backlog: int,
        body: memoryview,
        sizes: tuple[int, ...],
        inflate: Inflate | None,
    ) -> None:
        parts = []
        for size in sizes:
            parts.append(bytes(body[:size]) if inflate is None else inflate(body[:size]))
            body = body[size:]
        self.got.append((channel, sequence, backlog, parts))

    def on_frame(self, frame: Frame) -> None:
        self.got.append(frame)


# The bytes of a short exchange.


def test_a_request_in_flinks_bytes() -> None:
    pair = Pair()
    assert pair.consumer.encode_control(OPEN) == bytes.fromhex(
        "00000061 badc0ffe 02 d0d1d2d3d4d5d6d7d8d9dadbdcdddedf 00000000 e0e1e2e3e4e5e6e7e8e9eaebecedeeef"
        "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff 00000000 00000000 00000000 00000000 2fe713441e51a19eb8a5b367cbc862db 00000002"
    )


def test_buffers_and_events_in_flinks_bytes() -> None:
    pair = Pair()
    assert pair.data(0, b"x" * 120)[:47] == bytes.fromhex(
        "000000a7 badc0ffe 00 2fe713441e51a19eb8a5b367cbc862db 00000000 00000000 00000000 00000000 01 00 00000078"
    )
    for event, data_type, expected in (
        (EndOfData(), DataType.END_OF_DATA, "00000034 {} 00000001 00000000 09 00 00000005 00000008 00"),
        (EndOfPartition(), DataType.END_OF_PARTITION, "00000033 {} 00000001 00000000 0a 00 00000004 00000000"),
    ):
        frame = b"".join(pair.producer.encode_event(0, data_type, 1, 0, encode_event(event)))
        assert frame == bytes.fromhex(expected.format("badc0ffe 00" + ID.hex() + "00000000 00000000"))


def test_small_messages_in_flinks_bytes() -> None:
    encode = Pair().consumer.encode_control
    assert encode(AddCredit(((0, 1),))) == bytes.fromhex("0000001d badc0ffe 06 00000001") + ID
    assert encode(Acknowledge(0)) == bytes.fromhex("00000019 badc0ffe 08") + ID
    assert encode(CancelChannel(0)) == bytes.fromhex("00000019 badc0ffe 04") + ID
    assert encode(Goodbye()) == bytes.fromhex("00000009 badc0ffe 05")


# Everything either side says.

positive = st.integers(1, MAX_INT)
names = st.text(st.characters(min_codepoint=1, max_codepoint=0xD7FF), min_size=1, max_size=60)
requests: st.SearchStrategy[Frame] = st.one_of(
    st.builds(AddCredit, positive.map(lambda credit: ((0, credit),))),
    st.just(Resume(0)),
    st.just(Acknowledge(0)),
    st.just(CancelChannel(0)),
    st.builds(NewBufferSize, st.just(0), positive),
    st.builds(SegmentRequest, st.just(0), st.integers(0, MAX_INT), positive),
    st.builds(TaskEvent, st.just(0), st.just(PARTITION), st.builds(UserEvent, names, st.binary(max_size=200))),
    st.just(Goodbye()),
)


@given(requests)
def test_requests_come_back(frame: Frame) -> None:
    assert Pair().ask(frame) == frame


@given(st.integers(0, MAX_INT), st.integers(1, 100), st.integers(0, MAX_INT))
def test_ranges_of_subpartitions_come_back(first: int, count: int, credit: int) -> None:
    first = min(first, MAX_INT - count + 1)
    request = OpenChannel(0, PARTITION, first, credit, count)
    assert Pair(request).ask(request) == request


def test_credit_for_several_channels_is_a_message_for_each() -> None:
    pair = Pair(OPEN, OpenChannel(1, PARTITION, 1, 2))
    data = pair.consumer.encode_control(AddCredit(((0, 3), (1, 4))))
    assert [pair.read(data[:29]), pair.read(data[29:])] == [AddCredit(((0, 3),)), AddCredit(((1, 4),))]


@given(positive)
def test_backlogs_come_back(backlog: int) -> None:
    assert Pair().answer(BacklogAnnouncement(0, backlog)) == BacklogAnnouncement(0, backlog)


def test_what_is_not_said_has_no_bytes() -> None:
    pair = Pair()
    for frame in (Hello(1, 1, 0, "x"), Ping(1), Pong(1)):
        assert pair.consumer.encode_control(frame) == pair.producer.encode_control(frame) == b""
    assert pair.producer.encode_control(Goodbye()) == b""
    assert pair.consumer.encode_control(ConnectionFailure(ErrorCode.INTERNAL, "x")) == b""


def test_each_side_sends_only_its_own() -> None:
    pair = Pair()
    with pytest.raises(LocalProtocolError, match="no buffers"):
        pair.consumer.encode_buffer_header(0, DataType.DATA, 0, 0, 1, 0)
    with pytest.raises(LocalProtocolError, match="no in-band events"):
        pair.consumer.encode_event(0, DataType.EVENT, 0, 0, b"")
    with pytest.raises(RemoteProtocolError, match="does not send buffers"):
        pair.producer.split(0, memoryview(b""))


@pytest.mark.parametrize("partition_id", ["words", PARTITION[:-1], PARTITION + "00", PARTITION[:-1] + "x", ""])
def test_a_partition_is_named_by_sixty_bytes(partition_id: str) -> None:
    consumer = Pair().consumer
    with pytest.raises(ConfigError, match="120 hex digits"):
        consumer.encode_control(OpenChannel(1, partition_id, 0, 2))


# Errors.


def test_a_missing_partition_is_flinks_own_exception() -> None:
    pair = Pair()
    data = pair.producer.encode_control(ChannelError(0, ErrorCode.PARTITION_NOT_FOUND, "words"))
    assert len(data) == 9 + 315 + 17
    assert data.endswith(b"\1" + ID)
    answered = pair.answer(ChannelError(0, ErrorCode.PARTITION_NOT_FOUND, "words"))
    assert isinstance(answered, ChannelError)
    assert (answered.channel, answered.code) == (0, ErrorCode.PARTITION_NOT_FOUND)
    assert "PartitionNotFoundException" in answered.text


ANSWERED = "the producer answered with java.io.IOException"


def test_other_errors_are_io_exceptions_with_the_text() -> None:
    pair = Pair()
    data = pair.producer.encode_control(ChannelError(0, ErrorCode.PRODUCER_FAILED, "grün \0"))
    assert b"PRODUCER_FAILED: gr?n ?" in data
    answered = pair.answer(ChannelError(0, ErrorCode.PRODUCER_FAILED, "x" * 5000))
    cut = "x" * (1000 - len("PRODUCER_FAILED: "))
    assert answered == ChannelError(0, ErrorCode.PRODUCER_FAILED, f"{ANSWERED} ({cut}) for this channel")
    fatal = pair.answer(ConnectionFailure(ErrorCode.MALFORMED_FRAME, "bad"))
    assert fatal == ConnectionFailure(ErrorCode.MALFORMED_FRAME, f"{ANSWERED} (bad) for the whole connection")


@pytest.mark.parametrize(
    "change", [(b"PRODUCER_FAILED", b"PRODUCTION_FAIL"), (b"out", b"o\nt"), (b"Throwable", b"Throwablf"), (b"", b"")]
)
def test_a_message_is_read_only_if_it_is_one_of_ours(change: tuple[bytes, bytes]) -> None:
    body = write_error(ErrorCode.PRODUCER_FAILED, "out of luck", ID)
    number, code, name = read_error(body.replace(*change), lambda channel_id: 7)
    assert number == 7
    if change[0]:
        assert (code, name) == (ErrorCode.INTERNAL, "java.io.IOException")
    else:
        assert (code, name) == (ErrorCode.PRODUCER_FAILED, "java.io.IOException (out of luck)")


def test_an_error_for_a_channel_that_was_cancelled_is_not_said() -> None:
    pair = Pair()
    pair.ask(CancelChannel(0))
    assert pair.producer.encode_control(ChannelError(0, ErrorCode.PRODUCER_FAILED, "late")) == b""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\1",
        b"\1" + bytes(15) + b"\1",
        b"\xac\xed\x00\x05sr\xff\xff" + b"a" * 30,
        b"\xac\xed\x00\x05sr\0\2\x01\x02\1",
    ],
    ids=len,
)
def test_an_error_that_concerns_nobody_is_malformed(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="concerns neither a channel that was opened nor the connection"):
        Pair().consumer.decode_control(Kind.ERROR_RESPONSE, 0, body)


@given(st.binary(max_size=400), st.sampled_from([b"\0", b"\1" + ID, b"\1" + bytes(16)]))
def test_any_error_body_is_read_or_malformed(body: bytes, scope: bytes) -> None:
    codec = Pair().consumer
    for start in (b"", bytes.fromhex("aced00057372")):
        frame: Frame | RemoteProtocolError | None
        try:
            frame = codec.decode_control(Kind.ERROR_RESPONSE, 0, start + body + scope)
        except RemoteProtocolError as error:
            frame = error
        if isinstance(frame, RemoteProtocolError):
            assert frame.code is ErrorCode.MALFORMED_FRAME
        else:
            assert isinstance(frame, ChannelError if scope[-16:] == ID else ConnectionFailure)


# Names of channels.


def test_credit_for_nobody_is_told_and_a_cancel_of_nobody_is_nothing() -> None:
    pair = Pair()
    pair.ask(CancelChannel(0))
    for frame in (CancelChannel(0), NewBufferSize(0, 5), SegmentRequest(0, 0, 1)):
        assert pair.ask(frame) is None
    for frame, name in (
        (AddCredit(((0, 1),)), "ADD_CREDIT"),
        (Resume(0), "RESUME_CONSUMPTION"),
        (Acknowledge(0), "ACK_ALL_USER_RECORDS_PROCESSED"),
    ):
        assert pair.ask(frame) == UnknownChannel(f"{name} for channel {ID.hex()}, which is not open here")


def test_the_same_request_again_is_the_same_channel_until_it_is_cancelled() -> None:
    pair = Pair()
    assert pair.ask(OPEN) == OPEN
    pair.ask(CancelChannel(0))
    again = pair.ask(OPEN)
    assert isinstance(again, OpenChannel)
    assert again.channel == 1


def test_channels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flink_channels, "MAX_CHANNEL_IDS", 2)
    pair = Pair(OPEN, OpenChannel(1, PARTITION, 0, 2))
    with pytest.raises(RemoteProtocolError, match="more than 2 channels"):
        pair.ask(OpenChannel(2, PARTITION, 0, 2))


def test_buffers_of_a_channel_that_was_never_asked_for() -> None:
    other = Pair(OPEN, OpenChannel(1, PARTITION, 0, 2))
    with pytest.raises(RemoteProtocolError, match="never opened") as caught:
        Pair().feed(other.data(0, b"x", channel=1))
    assert caught.value.code is ErrorCode.UNKNOWN_CHANNEL


# Buffers and events through the assembler.


def test_a_barrier_that_timed_out_has_no_timeout_any_more() -> None:
    timed_out = CheckpointBarrier(8, 0, Alignment.UNALIGNED, aligned_timeout_ns=5_000_000_000)
    reported = flink_events.from_native(timed_out)
    assert isinstance(reported, flink_events.Barrier)
    assert (reported.alignment, reported.timeout_ms) == (Alignment.UNALIGNED, flink_events.NO_TIMEOUT_MS), (
        "Flink refuses any other"
    )


payloads = st.one_of(
    st.just(b""), st.binary(max_size=30), st.integers(0, 255).map(lambda value: bytes((value,)) * FULL)
)
EVENTS: list[tuple[DataType, Event]] = [
    (DataType.EVENT, UserEvent("de.example.Ping", b"\0\0\0\5".ljust(107, b"\0"))),
    (DataType.EVENT, UserEvent("EndOfSuperstepEvent")),
    (DataType.EVENT, UserEvent("WatermarkEvent", b"\0\2wm\0\0\0\0\0" + bytes(8))),
    (DataType.BLOCKING_EVENT, UserEvent("WatermarkEvent", b"\0\2wm\1\0\0\0\1\1")),
    (DataType.BLOCKING_EVENT, UserEvent("EndOfOutputChannelStateEvent")),
    (DataType.ALIGNED_BARRIER, CheckpointBarrier(7, 1_700_000_000_000_000_000)),
    (DataType.TIMEOUTABLE_ALIGNED_BARRIER, CheckpointBarrier(8, 0, aligned_timeout_ns=5_000_000_000)),
    (DataType.END_OF_DATA, EndOfData(drain=False)),
    (DataType.END_OF_PARTITION, EndOfPartition()),
]
items = st.lists(st.one_of(payloads, st.sampled_from(EVENTS), st.just(5), st.lists(payloads, max_size=3)), max_size=25)


@given(items, st.lists(st.one_of(st.just(0), st.integers(1, 900)), max_size=30), st.integers(1, 4))
def test_how_the_bytes_come_in_is_invisible(
    sent: list[bytes | tuple[DataType, Event] | int | list[bytes]], reads: list[int], landing: int
) -> None:
    pair = Pair(OPEN, landing=landing)
    stream = b""
    expected: list[object] = []
    for sequence, item in enumerate(sent):
        if isinstance(item, bytes):
            stream += pair.data(sequence, item, sequence)
            expected.append((0, sequence, sequence, item))
        elif isinstance(item, tuple):
            stream += b"".join(pair.producer.encode_event(0, item[0], sequence, 0, encode_event(item[1])))
            expected.append((0, sequence, 0, *item))
        elif isinstance(item, int):
            stream += pair.producer.encode_control(BacklogAnnouncement(0, item))
            expected.append(BacklogAnnouncement(0, item))
        elif item and sum(map(len, item)) <= FULL:
            stream += composite(pair.producer, 0, DataType.DATA, sequence, 1, item)
            expected.append((0, sequence, 1, item))
    assert pair.feed(stream, reads) == expected
    assert not pair.assembler.mid_frame


def test_a_short_frame_where_a_full_buffer_was_expected_is_not_kept_waiting() -> None:
    for reads in ([0], [1], [20], [29]):
        pair = Pair()
        pair.feed(pair.data(0, b"a" * FULL) + pair.data(1, b"b" * FULL), [0])
        assert len(pair.assembler.windows()) > 1
        announcement = BacklogAnnouncement(0, 3)
        assert pair.feed(pair.producer.encode_control(announcement), reads) == [announcement]
        assert pair.feed(pair.data(2, b"c" * FULL), [0])


def test_the_ends_are_told_by_their_bytes() -> None:
    pair = Pair()
    for event, data_type in ((EndOfData(), DataType.END_OF_DATA), (EndOfPartition(), DataType.END_OF_PARTITION)):
        stream = b"".join(pair.producer.encode_event(0, DataType.EVENT, 0, 0, encode_event(event)))
        assert pair.feed(stream) == [(0, 0, 0, data_type, event)]


def test_all_data_types() -> None:
    pair = Pair()
    frame = bytearray(pair.data(0, b"x"))
    event = flink_events.encode(EndOfPartition())
    for code in (1, 8):
        frame[41] = code
        assert pair.feed(bytes(frame)) == [(0, 0, 0, b"x")]
    frame = bytearray(pair.data(0, event))
    kinds = []
    for code in (2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13):
        frame[41] = code
        ((_, _, _, data_type, _),) = pair.feed(bytes(frame))  # type: ignore[misc]
        kinds.append(data_type)
    assert [kind.blocks_upstream for kind in kinds] == [
        code in (4, 5, 6, 12) for code in (2, 3, 4, 5, 6, 7, *range(9, 14))
    ]
    assert [kind.has_priority for kind in kinds].count(True) == 1


def test_a_range_may_bring_two_ends_in_one_frame() -> None:
    pair = Pair()
    end = flink_events.encode(EndOfData())
    frame = composite(pair.producer, 0, DataType.END_OF_DATA, 4, 0, [end, end])
    assert pair.feed(frame, [1]) == [(0, number, 0, DataType.END_OF_DATA, EndOfData()) for number in (4, 5)]


@pytest.mark.parametrize("has_sizes", [True, False])
def test_compressed_buffers(has_sizes: bool) -> None:
    pair = Pair()
    parts = [bytes((value,)) * FULL for value in range(5 if has_sizes else 1)]
    packed = [deflate(part) for part in parts]
    frame = composite(pair.producer, 0, DataType.DATA, 9, 2, packed, is_compressed=True, has_sizes=has_sizes)
    for reads in ([0], [1], [47], [60]):
        assert pair.feed(frame, reads) == [(0, 9, 2, parts)]


def test_headers_that_are_known_are_bounded() -> None:
    pair = Pair()
    for length in range(_MAX_KNOWN + 10):
        header = pair.producer.encode_buffer_header(0, DataType.DATA, 0, 0, length, 0)
        assert pair.consumer.parse_header(memoryview(header), 0)[1] == length
    assert len(pair.consumer._known) <= _MAX_KNOWN


# What a hostile producer may try.


def patched(frame: bytes, offset: int, form: str, value: int) -> bytes:
    data = bytearray(frame)
    struct.pack_into(form, data, offset, value)
    return bytes(data)


PLAIN = Pair().data(0, b"x" * 10)
GLUED = composite(Pair().producer, 0, DataType.DATA, 0, 0, [b"abc", b"de"])
HOSTILE = [
    pytest.param(patched(PLAIN, 4, ">I", 0xDEADBEEF), "magic deadbeef", id="magic"),
    pytest.param(patched(PLAIN, 8, ">B", 99), "kind 99", id="unknown kind"),
    pytest.param(patched(PLAIN, 8, ">B", 2), "kind 2", id="kind of a consumer"),
    pytest.param(patched(PLAIN, 0, ">I", 8), "of 8 bytes; 9 to", id="too short"),
    pytest.param(patched(PLAIN, 0, ">I", 2**32 - 1), "of 4294967295 bytes", id="negative length"),
    pytest.param(patched(PLAIN, 0, ">I", 58), "the length is 47", id="length and size differ"),
    pytest.param(patched(PLAIN, 43, ">I", 2**32 - 1), "the length is 47", id="negative size"),
    pytest.param(patched(PLAIN, 43, ">I", 9), "the length is 47", id="size and length differ"),
    pytest.param(patched(PLAIN, 41, ">B", 0), "data type 0", id="no data type"),
    pytest.param(patched(PLAIN, 41, ">B", 14), "data type 14", id="unknown data type"),
    pytest.param(patched(PLAIN, 37, ">i", -1), "backlog -1", id="negative backlog"),
    pytest.param(patched(PLAIN, 42, ">B", 2), "compressed 2", id="flag"),
    pytest.param(patched(patched(PLAIN, 41, ">B", 2), 42, ">B", 1), "only data is compressed", id="compressed event"),
    pytest.param(patched(PLAIN, 29, ">i", -1), "-1 parts", id="negative parts"),
    pytest.param(patched(PLAIN, 29, ">i", 1), "the length is 47", id="parts without sizes"),
    pytest.param(
        patched(patched(PLAIN, 29, ">i", MAX_PARTS + 1), 0, ">I", 57 + 4 * MAX_PARTS + 4),
        f"{MAX_PARTS + 1} parts",
        id="too many parts",
    ),
    pytest.param(patched(GLUED, 47, ">i", 4), "2 parts with 6 bytes in total", id="sizes above the body"),
    pytest.param(patched(GLUED, 47, ">i", 2), "2 parts with 4 bytes in total", id="sizes below the body"),
    pytest.param(patched(patched(GLUED, 47, ">i", 7), 51, ">i", -2), "smallest with -2", id="negative part"),
]


@pytest.mark.parametrize(("frame", "text"), HOSTILE)
@pytest.mark.parametrize("reads", [[0], [1]], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("is_bulk", [False, True], ids=["staging", "bulk"])
def test_malformed_frames_are_refused(frame: bytes, text: str, reads: list[int], is_bulk: bool) -> None:
    pair = Pair()
    if is_bulk:
        pair.feed(pair.data(0, b"x" * FULL))
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        pair.feed(frame, reads)
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


def header_of(length: int, data_type: DataType, parts: int = 0) -> bytes:
    """A header that announces so many bytes of body."""
    header = Pair().producer.encode_buffer_header(0, DataType.DATA, 0, 0, length, 0)
    return patched(patched(patched(header, 0, ">I", 47 + length + 4 * parts), 29, ">i", parts), 41, ">B", data_type)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (
            header_of(FULL + 1, DataType.DATA),
            "data buffer of 257 bytes for channel 0; at most 256 bytes are allowed here",
        ),
        (header_of(16 * 1024 + 1, DataType.EVENT), "event of 16385 bytes"),
        (header_of(FULL + 4 * MAX_PARTS, DataType.DATA, 1), "data buffer of 16644 bytes"),
        (header_of(16 * 1024 + 4 * MAX_PARTS, DataType.EVENT, 1), "event of 32772 bytes"),
        (struct.pack(">IIB", MAX_INT, 0xBADC0FFE, 1), "control frame of 2147483638 bytes"),
        (struct.pack(">IIB", 256 * 1024 + 10, 0xBADC0FFE, 1), "control frame of 262145 bytes"),
    ],
)
@pytest.mark.parametrize("reads", [[0], [1]], ids=["whole", "byte by byte"])
def test_too_long_is_refused_from_the_header_alone(header: bytes, text: str, reads: list[int]) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        Pair().feed(header, reads)
    assert caught.value.code is ErrorCode.FRAME_TOO_LARGE


def test_a_body_longer_than_a_segment_in_parts() -> None:
    pair = Pair()
    with pytest.raises(RemoteProtocolError, match="data buffer of 260 bytes") as caught:
        pair.feed(composite(pair.producer, 0, DataType.DATA, 0, 0, [b"x" * 130] * 2))
    assert caught.value.code is ErrorCode.FRAME_TOO_LARGE


def test_a_long_stack_trace_is_read_whatever_the_cuts() -> None:
    body = bytes.fromhex("aced00057372") + struct.pack(">H", 5) + b"a.b.C" + bytes(200_000) + b"\0"
    frame = struct.pack(">IIB", 9 + len(body), 0xBADC0FFE, 1) + body
    for reads in ([0], [5000], [65_530, 20, 0]):
        pair = Pair()
        pair.feed(pair.data(0, b"x" * FULL))
        assert (
            pair.feed(frame + frame, reads)
            == [ConnectionFailure(ErrorCode.INTERNAL, "the producer answered with a.b.C for the whole connection")] * 2
        )


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.PARTITION_REQUEST, bytes(87)),
        (Kind.PARTITION_REQUEST, bytes(60) + struct.pack(">ii16si", 1, 0, ID, 2)),
        (Kind.PARTITION_REQUEST, bytes(60) + struct.pack(">ii16si", -1, 0, ID, 2)),
        (Kind.PARTITION_REQUEST, bytes(60) + struct.pack(">ii16si", 0, 0, ID, -1)),
        (Kind.ADD_CREDIT, struct.pack(">i", 0) + ID),
        (Kind.ADD_CREDIT, struct.pack(">i", -1) + ID),
        (Kind.ADD_CREDIT, ID),
        (Kind.NEW_BUFFER_SIZE, struct.pack(">i", 0) + ID),
        (Kind.SEGMENT_ID, struct.pack(">ii", 0, 0) + ID),
        (Kind.RESUME_CONSUMPTION, ID[:15]),
        (Kind.ACK_ALL_USER_RECORDS_PROCESSED, ID + b"x"),
        (Kind.CANCEL_PARTITION_REQUEST, b""),
        (Kind.CLOSE_REQUEST, b"x"),
        (Kind.TASK_EVENT_REQUEST, b""),
        (Kind.TASK_EVENT_REQUEST, struct.pack(">i", -1) + bytes(76)),
        (Kind.TASK_EVENT_REQUEST, struct.pack(">i", MAX_INT) + bytes(80)),
        (Kind.TASK_EVENT_REQUEST, struct.pack(">ii", 4, 99) + bytes(76)),
    ],
)
def test_malformed_requests_are_refused(kind: Kind, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Pair().producer.decode_control(kind, 0, body)
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


def test_a_backlog_of_nothing_is_refused() -> None:
    for body in (struct.pack(">i", 0) + ID, struct.pack(">i", -4) + ID, ID):
        with pytest.raises(RemoteProtocolError, match="BACKLOG_ANNOUNCEMENT"):
            Pair().consumer.decode_control(Kind.BACKLOG_ANNOUNCEMENT, 0, body)
    assert Pair().consumer.decode_control(Kind.BACKLOG_ANNOUNCEMENT, 0, struct.pack(">i", 4) + bytes(16)) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\x0d",
        b"\0\0\0\1" + bytes(10),
        b"\0\0\0\3\1\0" + b"a" * 256,
        b"\0\0\0\3\0\1\xff",
        b"\0\0\0\6\0\0\0\1" * 2 + b"\0\0\0\0",
        b"\0\0\0\x08\2",
    ],
)
def test_an_event_that_is_none_is_the_channels_mistake(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Pair().consumer.decode_event(DataType.EVENT, payload)
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


def test_an_event_of_ours_that_flink_does_not_have() -> None:
    with pytest.raises(LocalProtocolError, match="WatermarkEvent with the payload"):
        Pair().producer.encode_event(0, DataType.EVENT, 0, 0, encode_event(UserEvent("WatermarkEvent", b"\0")))


# Anything at all.

STREAM = b"".join(
    (
        PLAIN,
        GLUED,
        Pair().data(1, b"y" * FULL),
        Pair().data(2, b"z" * FULL),
        Pair().producer.encode_control(BacklogAnnouncement(0, 3)),
        *Pair().producer.encode_event(0, DataType.ALIGNED_BARRIER, 3, 0, encode_event(CheckpointBarrier(1))),
        composite(Pair().producer, 0, DataType.DATA, 4, 0, [deflate(bytes(FULL))] * 3, is_compressed=True),
        Pair().producer.encode_control(ChannelError(0, ErrorCode.PARTITION_NOT_FOUND, "")),
    )
)
changes = st.lists(st.tuples(st.integers(0, len(STREAM) - 1), st.integers(0, 255)), max_size=6)


@given(changes, st.lists(st.integers(0, 400), max_size=10))
def test_a_damaged_stream_is_read_or_refused(damage: list[tuple[int, int]], reads: list[int]) -> None:
    stream = bytearray(STREAM)
    for position, value in damage:
        stream[position] = value
    pair = Pair()
    with contextlib.suppress(RemoteProtocolError):
        pair.feed(bytes(stream), reads)
    assert len(pair.assembler.take_landing()) == 4


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_or_refused(data: bytes, has_magic: bool) -> None:
    stream = struct.pack(">II", len(data) + 8, 0xBADC0FFE) + data if has_magic else data
    for codec, landing in ((Pair().consumer, 2), (Pair().producer, 0)):
        pair = Pair()
        pair.assembler = FrameAssembler(codec, pair, allocate_segments(landing, FULL), FULL)
        with contextlib.suppress(RemoteProtocolError):
            pair.feed(stream)
        assert len(pair.assembler.take_landing()) == landing
