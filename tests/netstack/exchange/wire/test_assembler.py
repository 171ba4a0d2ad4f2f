"""The assembler: the same frames come out however the bytes come in, and no segment is lost or written to twice."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest
from exchange.landed_runs import TakesEach
from hypothesis import given, strategies as st
from segments import allocate_segments

from netstack.base.errors import ErrorCode, RemoteProtocolError
from netstack.base.events import DataType
from netstack.exchange.buffer.segment import Segment
from netstack.exchange.wire.assembler import SMALL_BYTES, STAGING_BYTES, FrameAssembler
from netstack.exchange.wire.codec_native import NOT_SENT, NativeCodec
from netstack.exchange.wire.frames import AddCredit, Frame, Goodbye, Ping

CODEC = NativeCodec()
HEADER = CODEC.header_bytes
FULL = 64  # bytes of a segment: small, so that every cut can be tried
UNKNOWN = 3  # a channel whose buffers are dropped


class Data(NamedTuple):
    channel: int
    sequence: int
    backlog: int
    checksum: int
    payload: bytes

    @property
    def encoded(self) -> bytes:
        header = CODEC.encode_buffer_header(
            self.channel, DataType.DATA, self.sequence, self.backlog, len(self.payload), self.checksum
        )
        return header + self.payload


class InBand(NamedTuple):
    channel: int
    sequence: int
    backlog: int
    data_type: DataType
    payload: bytes

    @property
    def encoded(self) -> bytes:
        header = CODEC.encode_buffer_header(
            self.channel, self.data_type, self.sequence, self.backlog, len(self.payload), 0
        )
        return header + self.payload


class Control(NamedTuple):
    frame: Frame

    @property
    def encoded(self) -> bytes:
        return CODEC.encode_control(self.frame)


Item = Data | InBand | Control


class Consumer(TakesEach):
    """A sink that keeps what lands, and counts segments."""

    def __init__(self, landing: int = 4, full: int = FULL, keep_at_most: int = 5) -> None:
        self.got: list[Item] = []
        self.kept: list[tuple[Segment, bytes]] = []
        self._keep_at_most = keep_at_most
        segments = allocate_segments(landing + keep_at_most + 1, full)
        self.all = {id(segment) for segment in segments}
        self._alive = segments  # so that no id is used twice
        self._free = segments[landing:]
        self.assembler = FrameAssembler(CODEC, self, segments[:landing], full)

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        payload = bytes(segment.memory[:length])
        self.got.append(Data(channel, sequence, backlog, checksum, payload))
        if channel == UNKNOWN:
            return segment
        self.kept.append((segment, payload))
        free = self._free.pop()
        if len(self.kept) > self._keep_at_most:
            self.recycle()
        return free

    def recycle(self) -> None:
        """Whoever reads the oldest buffer finds what landed in it."""
        segment, payload = self.kept.pop(0)
        assert bytes(segment.memory[: len(payload)]) == payload, "memory of a kept buffer was written to"
        self._free.append(segment)

    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None:
        self.got.append(Data(channel, sequence, backlog, checksum, bytes(payload)))

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        self.got.append(InBand(channel, sequence, backlog, data_type, payload))

    def on_frame(self, frame: Frame) -> None:
        self.got.append(Control(frame))

    def feed(self, stream: bytes, reads: Iterable[int], *, rests: bool = False) -> None:
        """Reads of so many bytes (0: all that the windows hold); the last size repeats to the end of the stream."""
        rest = memoryview(stream)
        wanted = 0
        sizes = iter(reads)
        while rest:
            wanted = next(sizes, wanted)
            count = 0
            if rests:
                self.assembler.rest()
            for window in self.assembler.windows():
                assert window, "a window without room reads as the end of the stream"
                part = rest[: min(len(window), wanted - count) if wanted else len(window)]
                window[: len(part)] = part
                rest = rest[len(part) :]
                count += len(part)
                if len(part) < len(window):
                    break
            assert count
            self.assembler.advance(count)

    def check_segments(self) -> None:
        """Every segment is in exactly one place."""
        while self.kept:
            self.recycle()
        there = [id(segment) for segment in (*self._free, *self.assembler.take_landing())]
        assert len(there) == len(self.all)
        assert set(there) == self.all


def encoded(items: Iterable[Item]) -> bytes:
    return b"".join(item.encoded for item in items)


def check(items: list[Item], reads: Iterable[int], **sizes: int) -> None:
    consumer = Consumer(**sizes)
    consumer.feed(encoded(items), reads)
    assert consumer.got == items
    assert not consumer.assembler.mid_frame
    consumer.check_segments()


# Sequences of frames.

payloads = st.one_of(
    st.sampled_from([b"", b"\x01", b"x" * (FULL - 1)]),
    st.integers(0, 255).map(lambda value: bytes([value]) * FULL),
    st.binary(max_size=FULL),
)
u32 = st.integers(0, 2**32 - 1)
data_items = st.builds(Data, st.integers(0, UNKNOWN), u32, u32, u32, payloads)
full_items = data_items.map(lambda item: item._replace(payload=bytes([item.sequence % 251]) * FULL))
event_types = st.sampled_from([kind for kind in DataType if kind not in (DataType.DATA, *NOT_SENT)])
event_items = st.builds(InBand, st.integers(0, 2), u32, u32, event_types, st.binary(max_size=2 * FULL))
control_items = st.one_of(
    st.builds(Ping, st.integers(0, 2**64 - 1)),
    st.just(Goodbye()),
    st.lists(st.tuples(u32, u32), min_size=1, max_size=20).map(lambda pairs: AddCredit(tuple(pairs))),
).map(Control)
# Runs of full buffers are what switches to bulk.
runs = st.one_of(
    st.lists(full_items, min_size=1, max_size=12),
    data_items.map(lambda item: [item]),
    event_items.map(lambda item: [item]),
)
sequences = st.lists(st.one_of(runs, control_items.map(lambda item: [item])), max_size=12).map(
    lambda parts: list(itertools.chain.from_iterable(parts))
)
reads_of = st.lists(st.one_of(st.just(0), st.integers(1, 2 * (FULL + HEADER)), st.integers(1, 2000)), max_size=40)


@given(sequences, reads_of)
def test_how_the_bytes_come_in_is_invisible(items: list[Item], reads: list[int]) -> None:
    check(items, reads)


@given(sequences, reads_of, st.integers(1, 3))
def test_with_few_landing_segments(items: list[Item], reads: list[int], landing: int) -> None:
    check(items, reads, landing=landing)


@given(sequences, reads_of)
def test_giving_memory_back_between_reads_is_invisible(items: list[Item], reads: list[int]) -> None:
    consumer = Consumer()
    consumer.feed(encoded(items), reads, rests=True)
    assert consumer.got == items
    consumer.check_segments()


def test_a_silent_connection_keeps_no_staging_memory() -> None:
    consumer = Consumer()
    consumer.feed(encoded([Control(Ping(number)) for number in range(1, 2000)]), [0])
    staged = consumer.assembler.windows()[0]
    assert any(staged)
    consumer.assembler.rest()
    assert not any(staged), "pages that were given back read as zeros"


@given(sequences)
def test_byte_by_byte(items: list[Item]) -> None:
    check(items, [1])


def full(sequence: int) -> Data:
    return Data(1, sequence, 7, 9, bytes([sequence]) * FULL)


MIXED: list[Item] = [
    full(1),
    full(2),
    Data(1, 3, 0, 0, b"small"),
    full(4),
    InBand(1, 5, 0, DataType.EVENT, b"an event"),
    full(6),
    full(7),
    Control(Ping(1)),
    full(8),
    Data(1, 9, 0, 0, b""),
    full(10),
    Data(UNKNOWN, 11, 0, 0, b"u" * FULL),
    Data(UNKNOWN, 12, 0, 0, b"u"),
    full(13),
    Control(Goodbye()),
]


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 1], ids=["in one read", "byte by byte"])
def test_mispredictions_at_every_cut(before: int) -> None:
    """Full buffers are expected and something else comes, with the reads cut at every byte."""
    for cut in range(1, len(encoded(MIXED))):
        check(MIXED, [*([1] * cut if before else [cut]), 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [MIXED[2], MIXED[4], MIXED[7], MIXED[9], MIXED[11]],
    ids=["small", "event", "control", "empty", "full of nobody"],
)
def test_every_pair_of_cuts_around_a_misprediction(other: Item) -> None:
    items = [full(1), full(2), other, full(3), Data(1, 4, 0, 0, b"end")]
    start = 2 * (HEADER + FULL) - 3
    stop = start + len(other.encoded) + HEADER + 9
    for first in range(start, stop):
        for second in range(1, stop - first):
            check(items, [first, second, 0])


def test_a_small_buffer_that_begins_in_staging_after_a_full_one() -> None:
    """The rest of the small one, and a part of the next header, come in one read."""
    items: list[Item] = [full(1), Data(1, 2, 0, 0, b"s" * 50), full(3)]
    check(items, [HEADER + FULL + HEADER + 25, 25 + 10, 0])


# The two ways of receiving.


def test_staging_parses_many_small_frames_of_one_read() -> None:
    consumer = Consumer()
    items: list[Item] = [Data(0, number, 0, 0, b"12345678") for number in range(1000)]
    assert [len(window) for window in consumer.assembler.windows()] == [STAGING_BYTES]
    consumer.feed(encoded(items), [0])
    assert consumer.got == items
    assert len(consumer.assembler.windows()) == 1


def test_after_a_full_buffer_the_windows_are_headers_and_segments() -> None:
    consumer = Consumer(landing=4)
    consumer.feed(full(1).encoded, [0])
    assert [len(window) for window in consumer.assembler.windows()] == [HEADER, FULL] * 4
    consumer.feed(full(2).encoded[:40], [0])
    assert [len(window) for window in consumer.assembler.windows()] == [FULL + HEADER - 40, *[HEADER, FULL] * 3]


def test_bulk_payloads_land_in_place() -> None:
    consumer = Consumer(landing=4)
    consumer.feed(full(1).encoded, [0])
    landing = [window.obj for window in consumer.assembler.windows()[1::2]]
    stream = encoded([full(2), full(3), full(4)])
    consumer.feed(stream, [len(stream)])
    assert [segment.memory.obj for segment, _ in consumer.kept[1:]] == landing[:3]


def test_the_tail_of_a_payload_lands_in_place() -> None:
    consumer = Consumer()
    consumer.feed(full(1).encoded[:30], [0])
    window = consumer.assembler.windows()[0]
    assert len(window) == HEADER + FULL - 30
    target = window.obj
    consumer.feed(full(1).encoded[30:], [0])
    assert consumer.kept[0][0].memory.obj is target


def test_a_small_frame_ends_bulk() -> None:
    consumer = Consumer()
    consumer.feed(encoded([full(1), full(2), Data(0, 3, 0, 0, b"small")]), [0])
    assert len(consumer.assembler.windows()) == 1


def test_segments_larger_than_staging() -> None:
    size = 3 * STAGING_BYTES
    items: list[Item] = [
        Data(0, 1, 0, 0, b"a" * size),
        Data(0, 2, 0, 0, b"b" * size),
        Data(0, 3, 0, 0, b"c" * (STAGING_BYTES + 1)),
        InBand(0, 4, 0, DataType.EVENT, b"e" * CODEC.max_event_bytes),
        Data(0, 5, 0, 0, b"d" * size),
    ]
    for reads in ([0], [STAGING_BYTES], [size + HEADER + 5], [2 * size + 3 * HEADER + 7]):
        check(items, reads, full=size)


def test_a_segment_of_the_largest_allowed_length_is_full_for_every_segment_size() -> None:
    for size in (1, HEADER - 1, HEADER, HEADER + 1, 256):
        items: list[Item] = [Data(0, number, 0, 0, bytes([number]) * size) for number in range(20)]
        check(items, [0], full=size)
        check(items, [7], full=size)


# What the connection asks.


def prefixes(items: list[Item]) -> Iterator[tuple[bytes, bool]]:
    stream = encoded(items)
    ends = set(itertools.accumulate((len(item.encoded) for item in items), initial=0))
    for length in range(len(stream) + 1):
        yield stream[:length], length in ends


@pytest.mark.slow
@pytest.mark.parametrize("reads", [[0], [1]], ids=["at once", "byte by byte"])
def test_mid_frame_is_known_at_every_byte(reads: list[int]) -> None:
    for prefix, is_whole in prefixes(MIXED[:8]):
        consumer = Consumer()
        consumer.feed(prefix, reads)
        assert consumer.assembler.mid_frame is not is_whole, len(prefix)
        consumer.check_segments()


def test_unparsed_bytes_are_shown() -> None:
    consumer = Consumer()
    consumer.feed(b"\x00\x00", [0])
    assert consumer.assembler.unparsed == b"\x00\x00"


# Limits.


def header(length: int, data_type: DataType | None) -> bytes:
    if data_type is None:
        return length.to_bytes(4, "big") + CODEC.encode_control(Ping(1))[4:HEADER]
    return CODEC.encode_buffer_header(5, data_type, 0, 0, length, 0)


TOO_LONG = [
    pytest.param(
        header(FULL + 1, DataType.DATA),
        "data buffer of 65 bytes for channel 5; at most 64 bytes are allowed here",
        id="data",
    ),
    pytest.param(header(CODEC.max_event_bytes + 1, DataType.EVENT), "event of 16385 bytes", id="event"),
    pytest.param(header(CODEC.max_control_bytes + 1, None), "control frame of 16385 bytes", id="control"),
    pytest.param(header(2**32 - 1, DataType.DATA), "data buffer of 4294967295 bytes", id="the longest"),
]


@pytest.mark.parametrize("before", [[], [full(1)], [full(1), full(2)], [Control(Ping(1))]], ids=len)
@pytest.mark.parametrize(("bad", "text"), TOO_LONG)
def test_too_long_is_refused_from_the_header_alone(bad: bytes, text: str, before: list[Item]) -> None:
    for reads in ([0], [1], [HEADER + FULL]):
        consumer = Consumer()
        consumer.feed(encoded(before), reads)
        with pytest.raises(RemoteProtocolError, match=text) as caught:
            consumer.feed(bad, reads)
        assert caught.value.code is ErrorCode.FRAME_TOO_LARGE
        assert consumer.got == before
        consumer.check_segments()


@pytest.mark.parametrize("data_type", [DataType.EVENT, None])
def test_the_longest_allowed_is_accepted(data_type: DataType | None) -> None:
    consumer = Consumer()
    if data_type is None:
        frame = AddCredit(((1, 1),) * CODEC.max_credit_pairs)
        assert len(CODEC.encode_control(frame)) == HEADER + CODEC.max_control_bytes
        items: list[Item] = [Control(frame)]
    else:
        items = [InBand(0, 0, 0, data_type, bytes(CODEC.max_event_bytes))]
    consumer.feed(encoded(items), [1000])
    assert consumer.got == items


def test_a_side_without_landing_segments_takes_no_data() -> None:
    consumer = Consumer(landing=0)
    consumer.feed(encoded([Control(Ping(1))]), [0])
    with pytest.raises(RemoteProtocolError, match="0 bytes") as caught:
        consumer.feed(header(0, DataType.DATA), [0])
    assert caught.value.code is ErrorCode.UNEXPECTED_FRAME
    consumer.check_segments()


def test_what_is_small_is_on_the_heap_and_what_is_larger_in_a_segment() -> None:
    size = 2 * SMALL_BYTES
    consumer = Consumer(full=size)
    lengths = (1, SMALL_BYTES, SMALL_BYTES + 1, 0, size, SMALL_BYTES - 1, size - 1, size)
    frames: list[Item] = [Data(1, number, 0, 0, bytes([number]) * length) for number, length in enumerate(lengths)]
    consumer.feed(encoded(frames), [0])
    assert [len(payload) for _, payload in consumer.kept] == [SMALL_BYTES + 1, size, size - 1, size]
    consumer.feed(encoded(frames), [100, 5000, 300])
    assert consumer.got == 2 * frames
    consumer.check_segments()


def test_a_sink_that_refuses_leaves_every_segment_in_its_place() -> None:
    for reads in ([0], [1], [HEADER + FULL + 30]):
        consumer = Consumer()

        def refuse(*args: object) -> Segment:
            raise RemoteProtocolError(ErrorCode.UNKNOWN_CHANNEL, "never opened")

        consumer.feed(encoded([full(1), full(2)]), reads)
        consumer.on_buffer = refuse  # type: ignore[method-assign]
        consumer.assembler.deliver_to(consumer)
        with pytest.raises(RemoteProtocolError, match="never opened"):
            consumer.feed(encoded([full(3), full(4)]), reads)
        consumer.check_segments()


def placed(consumer: Consumer, memory: bytearray, frames: list[Item], reads: Iterable[int]) -> list[bool]:
    """Lends memory after a full buffer; returns where it equals the payloads of the frames, one after the other."""
    consumer.feed(encoded([full(1)]), [0])
    consumer.assembler.place(1, memoryview(memory))
    consumer.feed(encoded(frames), reads)
    assert consumer.got[1:] == frames
    payloads = [item.payload for item in frames if isinstance(item, Data)]
    return [memory[FULL * at : FULL * (at + 1)] == payload for at, payload in enumerate(payloads)]


READS = [[0], [1], [HEADER], [HEADER + 1], [FULL + HEADER], [7, 200]]


def test_full_buffers_are_received_in_lent_memory() -> None:
    for reads in READS:
        consumer = Consumer()
        assert placed(consumer, bytearray(3 * FULL + 1), [full(k) for k in range(2, 7)], reads) == 3 * [True] + 2 * [
            False
        ]
        assert len(consumer.kept) == 3, "the others are in segments"
        consumer.check_segments()


class RunConsumer(Consumer):
    """Records the runs too: sequence number of the first, and how many."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        super().__init__(landing=6, keep_at_most=9)

    def on_landed(
        self, channel: int, sequence: int, backlogs: list[int], memory: memoryview, checksums: list[int]
    ) -> None:
        self.runs.append((sequence, len(backlogs)))
        super().on_landed(channel, sequence, backlogs, memory, checksums)


def test_what_one_read_brings_to_lent_memory_is_one_run() -> None:
    consumer = RunConsumer()
    assert all(placed(consumer, bytearray(4 * FULL), [full(k) for k in range(2, 6)], [0]))
    assert consumer.runs == [(2, 4)]
    consumer = RunConsumer()
    assert all(placed(consumer, bytearray(4 * FULL), [full(k) for k in range(2, 6)], [HEADER + FULL + 3, 0]))
    assert consumer.runs == [(3, 3)], "the first was alone in its read"


def test_a_gap_in_the_sequence_numbers_ends_a_run() -> None:
    consumer = RunConsumer()
    assert all(placed(consumer, bytearray(4 * FULL), [full(k) for k in (2, 3, 7, 8)], [0]))
    assert consumer.runs == [(2, 2), (7, 2)]


def test_what_landed_in_front_of_a_broken_header_is_delivered_first() -> None:
    for broken in (b"\xff" * HEADER, CODEC.encode_buffer_header(1, DataType.DATA, 4, 0, FULL, 0)[:-1] + b"\xff"):
        consumer = RunConsumer()
        consumer.feed(encoded([full(1)]), [0])
        consumer.assembler.place(1, memoryview(bytearray(5 * FULL)))
        with contextlib.suppress(RemoteProtocolError):
            consumer.feed(encoded([full(2), full(3)]) + broken, [0])
        assert consumer.got == [full(1), full(2), full(3)]


@pytest.mark.parametrize("offset", [0, 1])
def test_the_same_rest_lent_again_continues_the_run_and_other_memory_does_not(offset: int) -> None:
    consumer = RunConsumer()
    consumer.feed(encoded([full(1)]), [0])
    memory = memoryview(bytearray(5 * FULL + offset))
    consumer.assembler.place(1, memory[offset:])
    stream = encoded([full(k) for k in range(2, 7)])
    consumer.feed(stream[: HEADER + FULL + HEADER + 3], [0])
    assert consumer.got == [full(1), full(2)]
    rest = memory[offset + FULL :] if not offset else memoryview(bytearray(memory[offset + FULL :]))
    consumer.assembler.place(1, rest)
    consumer.feed(stream[HEADER + FULL + HEADER + 3 :], [0])
    assert consumer.got == [full(k) for k in range(1, 7)]
    assert consumer.runs == ([(4, 3)] if offset else [(3, 4)])


def test_no_read_goes_past_the_buffer_behind_lent_memory_which_then_waits_for_more() -> None:
    for part in (1, HEADER, FULL, FULL + HEADER, FULL + HEADER + 1, FULL + 2 * HEADER):
        consumer = Consumer()
        consumer.feed(encoded([full(1)]), [0])
        assembler = consumer.assembler
        for first, lent in ((2, 1), (4, 2), (7, 0)):
            memory = bytearray(lent * FULL + 5)
            assembler.place(1, memoryview(memory))
            stream = encoded([full(k) for k in range(first, first + lent + 2)])
            missing = (lent + 1) * (HEADER + FULL)
            if not lent:
                assert sum(map(len, assembler.windows())) > missing, "nothing fits, so nothing was lent"
                continue
            assert sum(map(len, assembler.windows())) == missing
            consumer.feed(stream[:part], [0])
            assert sum(map(len, assembler.windows())) == missing - part
            assert not assembler.awaits_place
            consumer.feed(stream[part:missing], [0])
            assert consumer.got[-1] == full(first + lent)
            assert assembler.awaits_place
            assert sum(map(len, assembler.windows())) > HEADER + FULL, "a reader that lends nothing is not waited for"
        for after in ([full(7)], [Data(1, 7, 0, 0, b"short")], [Control(Ping(7)), Control(Ping(8))]):
            assembler.awaits_place = True
            consumer.feed(encoded(after), [0])
            assert not assembler.awaits_place
            if after[0] != full(7):
                consumer.feed(encoded([full(8)]), [0])  # in bulk again
        consumer.check_segments()


def test_another_frame_ends_the_lending() -> None:
    other = Data(2, 0, 0, 0, bytes(FULL))
    for between in (
        InBand(1, 3, 0, DataType.ALIGNED_BARRIER, b"abc"),
        Control(Ping(7)),
        other,
        Data(1, 3, 0, 0, b"ab"),
    ):
        for reads in READS:
            consumer = Consumer()
            after = [full(k) for k in range(4, 9)]
            memory = bytearray(10 * FULL)
            placed(consumer, memory, [full(2), between, *after], reads)
            assert memory[:FULL] == full(2).payload
            assert [payload for _, payload in consumer.kept[-5:]] == [item.payload for item in after], "in segments"
            consumer.check_segments()


def test_a_payload_that_has_begun_has_its_place_in_front_of_the_next() -> None:
    for begun, first in ((full(2), FULL), (Data(2, 0, 0, 0, bytes(range(1, FULL + 1))), 0)):
        consumer = Consumer()
        consumer.feed(encoded([full(1)]), [0])
        stream = encoded([begun, full(3), full(4)])
        consumer.feed(stream[: HEADER + 5], [0])
        memory = bytearray(4 * FULL)
        consumer.assembler.place(1, memoryview(memory))
        consumer.feed(stream[HEADER + 5 :], [0])
        assert consumer.got[1:] == [begun, full(3), full(4)]
        assert memory[first : first + 2 * FULL] == full(3).payload + full(4).payload
        consumer.check_segments()
