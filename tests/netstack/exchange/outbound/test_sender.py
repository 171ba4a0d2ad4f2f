"""ChannelSender: credit, turns, and what a consumer may say, right or wrong."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from netstack.base.errors import ChannelFailed, ErrorCode, PartitionNotFound, RemoteProtocolError
from netstack.base.events import CheckpointBarrier, DataType, EndOfData, Event, UserEvent, data_type_of, encode_event
from netstack.exchange.buffer.buffer import BufferSource, Notify
from netstack.exchange.buffer.builder import BufferBuilder
from netstack.exchange.buffer.elements import EventBuffer
from netstack.exchange.buffer.lent import LentBuffers
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.buffer.stored import Packaging
from netstack.exchange.credit.sending import MAX_CREDIT
from netstack.exchange.outbound.sender import ChannelSender
from netstack.exchange.outbound.subpartition import ResultSubpartition
from netstack.exchange.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.frames import (
    Acknowledge,
    AddCredit,
    BacklogAnnouncement,
    CancelChannel,
    ChannelError,
    Frame,
    Hello,
    NewBufferSize,
    OpenChannel,
    Resume,
    SegmentRequest,
    TaskEvent,
)
from netstack.exchange.wire.greeting import FEATURE_CHECKSUM
from netstack.exchange.wire.outgoing_batch import GATHER_FRAMES, OutgoingBatch


class Provider:
    """Partitions by name; a missing one waits until `create`."""

    def __init__(self) -> None:
        self.subpartitions: dict[str, ResultSubpartition] = {}
        self.waiting: dict[str, tuple[Notify, Callable[[BufferSource], None], Callable[[ChannelFailed], None]]] = {}
        self.withdrawn: list[str] = []
        self.log: list[str] = []
        self.ranges: list[tuple[str, int, int, Packaging]] = []

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
        self.ranges.append((partition_id, subpartition, subpartitions, packaging))
        actual = self.subpartitions.get(partition_id)
        if actual is None:
            self.waiting[partition_id] = (notify, on_view, on_failed)
        elif actual.is_released:
            on_failed(PartitionNotFound(ErrorCode.PARTITION_NOT_FOUND, "the partition was released"))
        else:
            on_view(actual.create_view(notify))
        return lambda: self.withdrawn.append(partition_id)

    def take_task_event(self, partition_id: str, event: Event) -> bool:
        self.log.append(f"{partition_id} told {event}")
        return partition_id == "b"

    def create(self, name: str) -> ResultSubpartition:
        actual = self.subpartitions[name] = ResultSubpartition(
            0, lambda index: self.log.append(f"{name} consumed"), lambda index: self.log.append(f"{name} acknowledged")
        )
        waiting = self.waiting.pop(name, None)
        if waiting is not None:
            notify, on_view, _ = waiting
            on_view(actual.create_view(notify))
        return actual


class Stage:
    def __init__(self, *, max_channels: int = 100, blames_connection: bool = False) -> None:
        self.provider = Provider()
        self.pool = NetworkBufferPool(128, 16).create_pool(100, 100)
        self.sent: list[Frame] = []
        self.wanted = 0
        self.codec = NativeCodec()
        if blames_connection:
            self.codec.blames_connection = True  # type: ignore[misc]
        self.sender = ChannelSender(
            self.codec,
            self.provider,
            max_channels=max_channels,
            on_write_wanted=self.on_write_wanted,
            send=self.sent.append,
        )

    def on_write_wanted(self) -> None:
        self.wanted += 1

    def open(self, number: int, name: str, credit: int = 2) -> None:
        self.sender.on_frame(OpenChannel(number, name, 0, credit))

    def add(self, name: str, *payloads: bytes) -> None:
        for payload in payloads:
            segment = self.pool.try_acquire()
            assert segment is not None
            element = LentBuffers((memoryview(payload),), len(payload), [segment], self.pool, 0)
            self.provider.subpartitions[name].add(element)

    def add_event(self, name: str, event: Event, *, priority: bool = False) -> None:
        element = EventBuffer(encode_event(event), data_type_of(event, priority=priority))
        self.provider.subpartitions[name].add(element)

    def collect(self) -> list[tuple[int, DataType, bytes]]:
        """(channel, type, payload) of every frame that may go now."""
        batch = OutgoingBatch()
        self.sender.collect(batch)
        pieces = [bytes(piece) for piece in batch.pieces]
        batch.release()
        frames = []
        for header, payload in zip(pieces[::2], pieces[1::2], strict=True):
            _, length, data_type, channel, *_ = self.codec.parse_header(memoryview(header), 0)
            assert length == len(payload)
            frames.append((channel, DataType(data_type), payload))
        return frames

    def collect_controls(self) -> list[Frame]:
        """The control frames that may go now; no buffer may."""
        batch = OutgoingBatch()
        self.sender.collect(batch)
        frames = []
        for piece in batch.pieces:
            _, length, kind, channel, *_ = self.codec.parse_header(memoryview(piece), 0)
            assert length == len(piece) - self.codec.header_bytes
            frames.append(self.codec.decode_control(kind, channel, bytes(piece[self.codec.header_bytes :])))
        return frames

    def credit(self, number: int) -> int:
        return next(part.credit for part in self.sender.statistics() if part.channel == number)


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    for number, name in enumerate("abc"):
        stage.provider.create(name)
        stage.open(number, name)
    return stage


# Credit.


def test_a_buffer_costs_a_credit_and_waits_for_one(stage: Stage) -> None:
    stage.add("a", b"0", b"1", b"2")
    assert stage.collect() == [(0, DataType.DATA, b"0"), (0, DataType.DATA, b"1")]
    assert stage.credit(0) == 0
    assert stage.collect() == []
    wanted = stage.wanted
    stage.sender.on_frame(AddCredit(((0, 5),)))
    assert stage.wanted == wanted + 1
    assert stage.collect() == [(0, DataType.DATA, b"2")]
    assert stage.credit(0) == 4


def test_a_channel_without_buffers_of_its_own_has_its_backlog_announced(stage: Stage) -> None:
    stage.provider.create("d")
    stage.open(9, "d", credit=0)
    assert stage.collect_controls() == []
    stage.add("d", b"0")
    stage.add("d", b"1", b"2")
    assert stage.collect_controls() == [BacklogAnnouncement(9, 3)]  # as it is when it is told
    assert stage.collect_controls() == []  # once
    stage.sender.on_frame(AddCredit(((9, 2),)))
    assert stage.collect() == [(9, DataType.DATA, b"0"), (9, DataType.DATA, b"1")]
    assert stage.collect_controls() == []  # the last buffer has told the rest
    stage.add("d", b"3")
    stage.sender.on_frame(AddCredit(((9, 1),)))  # credit came first: nothing to announce
    assert stage.collect() == [(9, DataType.DATA, b"2")]
    (reported,) = [part for part in stage.sender.statistics() if part.channel == 9]
    assert reported.backlog_announcements == 1


def test_a_backlog_whose_channel_left_is_not_announced(stage: Stage) -> None:
    stage.provider.create("d")
    stage.open(9, "d", credit=0)
    stage.add("d", b"0")
    stage.sender.on_frame(CancelChannel(9))
    assert stage.collect_controls() == []


def test_credit_on_demand_is_void_after_a_barrier(stage: Stage) -> None:
    stage.provider.create("d")
    stage.open(9, "d", credit=0)
    stage.add("d", b"0")
    stage.sender.on_frame(AddCredit(((9, 4),)))
    stage.add_event("d", CheckpointBarrier(1))
    stage.add("d", b"1")
    assert [payload for _, _, payload in stage.collect()] == [b"0", encode_event(CheckpointBarrier(1))]
    assert stage.credit(9) == 3
    assert stage.collect_controls() == []
    stage.sender.on_frame(Resume(9))
    assert stage.credit(9) == 0
    assert stage.collect_controls() == [BacklogAnnouncement(9, 1)]


def test_an_empty_buffer_sets_a_reserved_one_free(stage: Stage) -> None:
    stage.provider.create("d")
    stage.open(9, "d", credit=0)
    for name in "ad":
        segment = stage.pool.try_acquire()
        assert segment is not None
        builder = BufferBuilder(segment, stage.pool, 0)
        stage.provider.subpartitions[name].add(builder.create_consumer())
        builder.finish()
        builder.close()
        stage.provider.subpartitions[name].on_buffer_finished()
    assert stage.collect_controls() == [BacklogAnnouncement(9, 1)]  # and nothing on the other channel
    stage.sender.on_frame(AddCredit(((9, 1),)))
    assert stage.collect() == [(9, DataType.DATA, b"")]


def test_a_channel_with_a_priority_event_goes_first(stage: Stage) -> None:
    stage.add("a", b"0", b"1")
    stage.add("b", b"2", b"3")
    stage.add("c", b"4")
    for name in "cb":
        stage.add_event(name, UserEvent("x"), priority=True)
    event = encode_event(UserEvent("x"))
    assert [(channel, payload) for channel, _, payload in stage.collect()] == [
        (2, event),
        (1, event),
        (0, b"0"),
        (2, b"4"),
        (1, b"2"),
        (0, b"1"),
        (1, b"3"),
    ]


def test_a_priority_event_needs_no_credit(stage: Stage) -> None:
    stage.add("a", b"0", b"1", b"2")
    stage.collect()
    stage.add_event("a", UserEvent("x"), priority=True)
    assert [payload for _, _, payload in stage.collect()] == [encode_event(UserEvent("x"))]


def test_events_cost_nothing_but_keep_their_place(stage: Stage) -> None:
    stage.add("a", b"0", b"1")
    stage.add_event("a", UserEvent("x"))
    stage.add("a", b"2")
    stage.add_event("a", UserEvent("y"))
    event_x, event_y = encode_event(UserEvent("x")), encode_event(UserEvent("y"))
    assert [payload for _, _, payload in stage.collect()] == [b"0", b"1", event_x]
    assert stage.collect() == []
    stage.sender.on_frame(AddCredit(((0, 1),)))
    assert [payload for _, _, payload in stage.collect()] == [b"2", event_y]


def test_a_priority_event_needs_neither_credit_nor_a_turn_behind_data(stage: Stage) -> None:
    stage.add("a", b"0", b"1", b"2")
    stage.collect()
    stage.add_event("a", UserEvent("x"), priority=True)
    assert stage.collect() == [(0, DataType.PRIORITY_EVENT, encode_event(UserEvent("x")))]


def test_credits_for_many_channels_in_one_frame(stage: Stage) -> None:
    for name in "abc":
        stage.add(name, b"0", b"1", b"2")
    stage.collect()
    stage.sender.on_frame(AddCredit(((0, 1), (2, 1))))
    assert [channel for channel, _, _ in stage.collect()] == [0, 2]


@pytest.mark.parametrize("count", [0, -1, MAX_CREDIT])
def test_credit_that_no_receiver_can_have_fails_that_channel_alone(stage: Stage, count: int) -> None:
    stage.sender.on_frame(AddCredit(((0, count), (1, 1))))
    (error,) = stage.sent
    assert isinstance(error, ChannelError)
    assert (error.channel, error.code) == (0, ErrorCode.CREDIT_VIOLATION)
    assert stage.provider.log == ["a consumed"]
    assert stage.credit(1) == 3


# Turns.


def test_one_buffer_a_turn(stage: Stage) -> None:
    for name, count in (("a", 2), ("b", 1), ("c", 2)):
        stage.add(name, *[b"x"] * count)
    assert [channel for channel, _, _ in stage.collect()] == [0, 1, 2, 0, 2]


def test_a_batch_takes_what_it_has_room_for(stage: Stage) -> None:
    stage.sender.on_frame(AddCredit(((0, 98),)))
    stage.add("a", *[b"x"] * (GATHER_FRAMES + 6))
    assert len(stage.collect()) == GATHER_FRAMES
    assert len(stage.collect()) == 6


def test_a_notification_puts_a_channel_in_line_once(stage: Stage) -> None:
    stage.add("a", b"0")
    stage.add("a", b"1")
    stage.sender.on_frame(AddCredit(((0, 1),)))
    assert stage.wanted == 1
    assert len(stage.collect()) == 2
    assert stage.collect() == []


def test_a_checksum_when_both_sides_want_one(stage: Stage) -> None:
    hello = Hello(PROTOCOL_VERSION, 16, FEATURE_CHECKSUM, "test")
    stage.sender.on_open(hello, FEATURE_CHECKSUM)
    stage.add("a", b"abc")
    stage.add_event("a", UserEvent("x"))
    segment = stage.pool.try_acquire()
    assert segment is not None
    pieces = (memoryview(b"de"), memoryview(b"fg"))
    stage.provider.subpartitions["a"].add(LentBuffers(pieces, 4, [segment], stage.pool, 0))
    batch = OutgoingBatch()
    stage.sender.collect(batch)
    headers = [piece for piece in batch.pieces if len(piece) == stage.codec.header_bytes]
    checksums = [stage.codec.parse_header(memoryview(header), 0)[6] for header in headers]
    assert checksums == [zlib.crc32(b"abc"), 0, zlib.crc32(b"defg")]
    batch.release()


# Opening and closing.


def test_a_channel_waits_for_its_partition() -> None:
    stage = Stage()
    stage.open(0, "late")
    assert stage.collect() == []
    stage.sender.on_frame(AddCredit(((0, 1),)))
    stage.provider.create("late")
    stage.add("late", b"0")
    assert stage.collect() == [(0, DataType.DATA, b"0")]


def test_what_was_there_before_the_consumer_is_sent_at_once() -> None:
    stage = Stage()
    stage.provider.create("a")
    stage.add("a", b"0")
    stage.open(0, "a")
    assert stage.wanted == 1
    assert stage.collect() == [(0, DataType.DATA, b"0")]


def test_a_partition_that_does_not_come_fails_the_channel_alone(stage: Stage) -> None:
    stage.open(7, "never")
    _, _, on_failed = stage.provider.waiting["never"]
    on_failed(PartitionNotFound(ErrorCode.PARTITION_NOT_FOUND, "not within 10 s"))
    assert stage.sent == [ChannelError(7, ErrorCode.PARTITION_NOT_FOUND, "not within 10 s")]
    stage.add("a", b"0")
    assert stage.collect() == [(0, DataType.DATA, b"0")]


def test_an_immediate_failure_is_told_and_forgotten(stage: Stage) -> None:
    stage.provider.create("gone").release()
    stage.open(7, "gone")
    assert stage.sent == [ChannelError(7, ErrorCode.PARTITION_NOT_FOUND, "the partition was released")]
    assert [part.channel for part in stage.sender.statistics()] == [0, 1, 2]
    stage.sender.on_frame(AddCredit(((7, 1),)))  # crossed the error on its way
    assert len(stage.sent) == 1


def test_a_cancel_releases_the_view_in_any_state(stage: Stage) -> None:
    stage.add("a", b"0")
    stage.sender.on_frame(CancelChannel(0))  # in line
    stage.sender.on_frame(CancelChannel(0))  # twice is harmless
    stage.sender.on_frame(CancelChannel(1))  # idle
    stage.open(8, "never")
    stage.sender.on_frame(CancelChannel(8))  # waiting for its partition
    assert stage.provider.log == ["a consumed", "b consumed"]
    assert stage.provider.withdrawn == ["never"]
    stage.add("c", b"2")
    assert stage.collect() == [(2, DataType.DATA, b"2")]
    assert stage.sent == []


def test_frames_that_crossed_a_cancel_are_ignored(stage: Stage) -> None:
    stage.sender.on_frame(CancelChannel(0))
    for frame in (AddCredit(((0, 1),)), Resume(0), Acknowledge(0)):
        stage.sender.on_frame(frame)
    assert stage.sent == []


def test_a_number_that_was_never_opened_costs_that_channel_only(stage: Stage) -> None:
    stage.sender.on_frame(AddCredit(((9, 1), (0, 1))))
    assert stage.sent == [ChannelError(9, ErrorCode.UNKNOWN_CHANNEL, "channel 9 was never opened on this connection")]
    assert stage.credit(0) == 3


def test_of_one_frame_of_credit_one_answer_tells_what_was_never_opened(stage: Stage) -> None:
    stage.sender.on_frame(AddCredit(((9, 1), (0, 1), *((number, 1) for number in range(9, 2000)))))
    assert [frame.channel for frame in stage.sent] == [9]
    assert stage.credit(0) == 3


def test_more_initial_credit_than_anybody_has_fails_that_channel_alone(stage: Stage) -> None:
    stage.provider.create("d")
    stage.open(7, "d", MAX_CREDIT + 1)
    (error,) = stage.sent
    assert isinstance(error, ChannelError)
    assert (error.channel, error.code) == (7, ErrorCode.CREDIT_VIOLATION)
    stage.open(8, "d", MAX_CREDIT)
    assert stage.credit(8) == MAX_CREDIT


def test_a_number_opened_twice_fails_that_channel_alone(stage: Stage) -> None:
    stage.open(0, "a")
    (error,) = stage.sent
    assert isinstance(error, ChannelError)
    assert (error.channel, error.code) == (0, ErrorCode.CHANNEL_IN_USE)
    assert [part.channel for part in stage.sender.statistics()] == [1, 2]


def test_too_many_channels_are_refused_one_by_one() -> None:
    stage = Stage(max_channels=2)
    for number, name in enumerate("abc"):
        stage.provider.create(name)
        stage.open(number, name)
    assert stage.sent == [ChannelError(2, ErrorCode.CHANNEL_IN_USE, "more than 2 channels")]
    stage.sender.on_frame(CancelChannel(2))  # the consumer gives it up
    stage.sender.on_frame(AddCredit(((2, 1),)))
    stage.add("a", b"0")
    assert stage.collect() == [(0, DataType.DATA, b"0")]
    assert len(stage.sent) == 1


def test_a_failed_producer_is_reported_with_its_cause(stage: Stage) -> None:
    stage.add("a", b"0")
    stage.provider.subpartitions["a"].fail("disk full")
    stage.provider.subpartitions["b"].discard()
    assert stage.collect() == []
    assert stage.sent == [
        ChannelError(0, ErrorCode.PRODUCER_FAILED, "disk full"),
        ChannelError(1, ErrorCode.PARTITION_NOT_FOUND, "partition 'b' was released"),
    ]
    assert [part.channel for part in stage.sender.statistics()] == [2]


def test_a_closed_connection_counts_as_consumed(stage: Stage) -> None:
    stage.add("a", b"0")
    stage.open(8, "never")
    stage.sender.on_closed(None)
    assert stage.provider.log == ["a consumed", "b consumed", "c consumed"]
    assert stage.provider.withdrawn == ["never"]
    assert stage.sender.statistics() == ()
    stage.add("b", b"1")
    assert stage.collect() == []


# Barriers, acknowledgements.


def test_a_barrier_stops_its_channel_until_the_resume(stage: Stage) -> None:
    barrier = CheckpointBarrier(1)
    stage.add_event("a", barrier)
    stage.add("a", b"0")
    stage.add("b", b"1")
    assert [payload for _, _, payload in stage.collect()] == [encode_event(barrier), b"1"]
    stage.sender.on_frame(AddCredit(((0, 1),)))
    assert stage.collect() == []
    stage.sender.on_frame(Resume(0))
    assert stage.collect() == [(0, DataType.DATA, b"0")]


def test_a_resume_out_of_turn_fails_that_channel_alone(stage: Stage) -> None:
    stage.sender.on_frame(Resume(0))
    (error,) = stage.sent
    assert isinstance(error, ChannelError)
    assert (error.channel, error.code) == (0, ErrorCode.UNEXPECTED_FRAME)
    assert "not blocked" in error.text
    assert stage.provider.log == ["a consumed"]


@pytest.mark.parametrize("credit", [0, 2])
def test_a_resume_out_of_turn_voids_no_credit_where_it_blames_the_connection(credit: int) -> None:
    stage = Stage(blames_connection=True)
    stage.provider.create("d")
    stage.open(9, "d", credit=credit)
    stage.sender.on_frame(AddCredit(((9, 3),)))
    stage.add("d", b"0", b"1", b"2")  # in line, with credit
    stage.sender.on_frame(Resume(9))
    assert stage.credit(9) == credit + 3
    batch = OutgoingBatch()
    stage.sender.collect(batch)
    batch.release()
    assert stage.credit(9) == credit


def test_acknowledgements_reach_the_partition(stage: Stage) -> None:
    stage.add_event("b", EndOfData())
    stage.collect()
    stage.sender.on_frame(Acknowledge(1))
    assert stage.provider.log == ["b acknowledged"]


def test_an_acknowledgement_before_the_end_says_that_no_more_is_needed(stage: Stage) -> None:
    stage.add_event("b", EndOfData())
    stage.sender.on_frame(Acknowledge(1))
    assert stage.provider.log == []
    stage.sender.on_frame(CancelChannel(1))
    assert stage.provider.log == ["b consumed"]
    assert stage.sent == []


# What only a producer says.


def test_a_consumer_sends_no_frames_of_a_producer(stage: Stage) -> None:
    for frame in (ChannelError(0, ErrorCode.INTERNAL, ""), BacklogAnnouncement(0, 1)):
        with pytest.raises(RemoteProtocolError, match="a consumer does not send"):
            stage.sender.on_frame(frame)


def test_statistics_of_every_channel(stage: Stage) -> None:
    stage.sender.on_frame(AddCredit(((1, 3),)))
    stage.add("b", b"0")
    stage.collect()
    statistics = stage.sender.statistics()[1]
    assert (statistics.channel, statistics.partition_id, statistics.subpartition) == (1, "b", 0)
    assert (statistics.credit, statistics.credits_granted, statistics.buffers) == (4, 5, 1)


def test_sent_buffers_return_when_the_batch_is_through(stage: Stage) -> None:
    stage.add("a", b"0", b"1")
    batch = OutgoingBatch()
    stage.sender.collect(batch)
    assert stage.pool.statistics().used == 2
    assert batch.take(batch.total_bytes - 1) is False
    assert stage.pool.statistics().used == 1
    assert batch.take(1) is True
    assert stage.pool.statistics().used == 0


# Sizes of buffers.


def test_a_size_that_is_asked_for_reaches_its_subpartition(stage: Stage) -> None:
    unasked = stage.provider.subpartitions["a"].buffer_size
    stage.sender.on_frame(NewBufferSize(1, 300))
    stage.sender.on_frame(NewBufferSize(1, 200))
    assert [stage.provider.subpartitions[name].buffer_size for name in "abc"] == [unasked, 200, unasked]
    assert stage.sent == []


def test_a_size_that_comes_before_its_partition_waits_for_it() -> None:
    stage = Stage()
    stage.open(0, "late")
    stage.sender.on_frame(NewBufferSize(0, 300))
    stage.sender.on_frame(NewBufferSize(0, 200))
    assert stage.provider.create("late").buffer_size == 200


def test_a_size_of_nothing_fails_that_channel_alone(stage: Stage) -> None:
    stage.sender.on_frame(NewBufferSize(1, 0))
    assert stage.sent == [
        ChannelError(1, ErrorCode.MALFORMED_FRAME, "a buffer size of 0 bytes was requested; request 1 or more")
    ]
    assert stage.provider.log == ["b consumed"]
    stage.add("a", b"0")
    assert stage.collect() == [(0, DataType.DATA, b"0")]


def test_a_size_for_a_channel_that_left_is_ignored_and_for_one_that_never_was_is_not(stage: Stage) -> None:
    stage.sender.on_frame(CancelChannel(1))
    stage.sender.on_frame(NewBufferSize(1, 0))
    assert stage.sent == []
    stage.sender.on_frame(NewBufferSize(7, 100))
    assert [type(frame) for frame in stage.sent] == [ChannelError]


# What another dialect brings.


def test_several_subpartitions_in_one_channel_are_asked_for(stage: Stage) -> None:
    stage.sender.on_frame(OpenChannel(7, "late", 1, 2, 3))
    assert stage.provider.ranges[-1] == ("late", 1, 3, Packaging.COMPRESSED)


def test_a_task_event_nobody_takes_is_the_channels_error(stage: Stage) -> None:
    stage.sender.on_frame(TaskEvent(0, "a", UserEvent("ping")))
    stage.sender.on_frame(TaskEvent(9, "x", UserEvent("ping")))
    assert [(error.channel, error.text) for error in stage.sent if isinstance(error, ChannelError)] == [
        (0, "no task of 'a' takes events"),
        (9, "no task of 'x' takes events"),
    ]
    assert [part.channel for part in stage.sender.statistics()] == [1, 2]


def test_a_task_event_somebody_takes(stage: Stage) -> None:
    stage.sender.on_frame(TaskEvent(1, "b", UserEvent("ping")))
    assert stage.provider.log == ["b told UserEvent(name='ping', payload=b'')"]
    assert stage.sent == []


def test_segments_are_not_asked_of_pipelined_data(stage: Stage) -> None:
    stage.sender.on_frame(SegmentRequest(0, 0, 1))
    assert stage.sent == []


def test_idle_is_without_channels(stage: Stage) -> None:
    assert not stage.sender.is_idle
    for number in range(3):
        stage.sender.on_frame(CancelChannel(number))
    assert stage.sender.is_idle
