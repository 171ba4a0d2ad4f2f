"""ChannelReceiver: frames find their channel, credits coalesce, and a fault costs no more than it must."""

from __future__ import annotations

import zlib

import pytest

from netstack.base.errors import (
    ChannelFailed,
    ConnectionLost,
    ErrorCode,
    PartitionNotFound,
    ProducerFailed,
    RemoteProtocolError,
)
from netstack.base.events import DataType, EndOfPartition, UserEvent, encode_event
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.receiver import CREDIT_PAIRS_A_FRAME, ChannelReceiver
from netstack.exchange.wire.codec import Codec
from netstack.exchange.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.flink_consumer import FlinkConsumerCodec
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
)
from netstack.exchange.wire.greeting import FEATURE_CHECKSUM
from netstack.exchange.wire.outgoing_batch import OutgoingBatch

SIZE = 16


def nothing() -> None:
    pass


class Stage:
    def __init__(self, channels: int = 3, *, exclusive: int = 2, codec: Codec | None = None) -> None:
        self.network = NetworkBufferPool(channels * exclusive + 9, SIZE)
        self.pool = self.network.create_pool(1, 8)
        self.landing = self.network.take_unpooled(1)[0]
        self.codec = NativeCodec() if codec is None else codec
        self.sent: list[Frame] = []
        self.wanted = 0
        self.emptied = 0
        self.receiver = ChannelReceiver(
            self.codec,
            peer="memory://producer",
            on_write_wanted=self.on_write_wanted,
            send=self.sent.append,
            on_empty=self.on_empty,
            write_now=nothing,
        )
        self.gate = SingleInputGate(self.pool, read_connections=nothing, on_closed=nothing)
        self.channels = [self.open(index, exclusive) for index in range(channels)]

    def open(self, index: int, exclusive: int) -> RemoteInputChannel:
        channel = RemoteInputChannel(
            self.gate,
            index,
            ChannelDescriptor("memory://producer", "p", index),
            exclusive=self.network.take_unpooled(exclusive),
            pool=self.pool,
            network=self.network,
        )
        self.gate.add_channel(channel)
        self.receiver.open(channel)
        return channel

    def on_write_wanted(self) -> None:
        self.wanted += 1

    def on_empty(self) -> None:
        self.emptied += 1

    def arrive(
        self, number: int, sequence: int = 0, data: bytes = b"x", backlog: int = 0, checksum: int | None = None
    ) -> None:
        checksum = zlib.crc32(data) if checksum is None else checksum
        if sequence % 2:
            self.receiver.on_small_buffer(number, sequence, backlog, data, checksum)
        else:
            self.landing.memory[: len(data)] = data
            self.landing = self.receiver.on_buffer(number, sequence, backlog, self.landing, len(data), checksum)

    def collect(self) -> list[AddCredit]:
        batch = OutgoingBatch()
        self.receiver.collect(batch)
        actual = []
        for piece in batch.pieces:
            _, _, kind, channel, *_ = self.codec.parse_header(memoryview(piece), 0)
            frame = self.codec.decode_control(kind, channel, bytes(piece[self.codec.header_bytes :]))
            assert isinstance(frame, AddCredit)
            actual.append(frame)
        return actual

    def poll(self) -> tuple[int, bytes] | None:
        buffer = self.gate.poll()
        if buffer is None:
            return None
        result = buffer.channel_index, bytes(buffer.memory)
        buffer.recycle()
        return result

    def assert_all_home(self) -> None:
        self.gate.close()
        self.network.recycle_unpooled([self.landing])
        assert self.network.statistics().lent_segments == 0


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.sent.clear()
    return stage


def test_channels_get_numbers_and_ask_for_their_subpartition() -> None:
    stage = Stage(2)
    assert stage.sent == [OpenChannel(0, "p", 0, 2), OpenChannel(1, "p", 1, 2)]
    assert stage.receiver.channel_count == 2
    stage.channels[1].release()
    stage.open(2, 2)
    assert stage.sent[-1] == OpenChannel(2, "p", 2, 2)  # numbers are not used again


def test_buffers_and_events_find_their_channel(stage: Stage) -> None:
    stage.arrive(1, data=b"a")
    stage.receiver.on_event(0, 0, 0, DataType.EVENT, encode_event(UserEvent("x")))
    assert [stage.poll(), stage.poll()] == [(1, b"a"), (0, encode_event(UserEvent("x")))]
    stage.assert_all_home()


# Credit announcements.


def test_credits_of_all_channels_go_in_one_frame_when_the_socket_has_room(stage: Stage) -> None:
    stage.channels[2].manager.on_backlog(3)
    stage.channels[0].manager.on_backlog(1)
    stage.channels[0].manager.on_backlog(4)
    stage.channels[1].manager.on_backlog(1)  # its producer has more left than that
    assert stage.wanted == 1
    assert stage.collect() == [AddCredit(((2, 3), (0, 4)))]
    assert stage.collect() == []
    assert [channel.manager.announcements for channel in stage.channels] == [1, 0, 1]


def test_a_released_channel_announces_nothing(stage: Stage) -> None:
    stage.channels[0].manager.on_backlog(3)
    stage.channels[1].manager.on_backlog(3)
    stage.channels[0].release()
    assert stage.collect() == [AddCredit(((1, 3),))]
    stage.channels[2].manager.on_backlog(3)
    stage.channels[2].release()
    assert stage.collect() == []


def test_more_channels_than_a_frame_holds() -> None:
    count = CREDIT_PAIRS_A_FRAME + 1
    stage = Stage(count, exclusive=1)
    for number in range(count):
        stage.arrive(number, data=b"")
    first, second = stage.collect()
    assert (len(first.pairs), len(second.pairs)) == (CREDIT_PAIRS_A_FRAME, 1)
    assert dict(first.pairs + second.pairs) == dict.fromkeys(range(count), 1)


# What channels say.


def test_orders_of_channels_become_frames(stage: Stage) -> None:
    stage.channels[1].resume()
    stage.channels[2].acknowledge_end_of_data()
    stage.channels[1].release()
    assert stage.sent == [Resume(1), Acknowledge(2), CancelChannel(1)]
    assert stage.receiver.channel_count == 2


def test_the_last_channel_to_leave_is_told(stage: Stage) -> None:
    for channel in stage.channels:
        assert stage.emptied == 0
        channel.release()
    assert stage.emptied == 1


# Frames that came too late, or never should have come.


def test_frames_that_crossed_a_cancel_are_dropped(stage: Stage) -> None:
    stage.channels[1].release()
    landing = stage.landing
    stage.arrive(1)
    assert stage.landing is landing
    stage.receiver.on_event(1, 0, 0, DataType.EVENT, b"")
    stage.receiver.on_frame(ChannelError(1, ErrorCode.PRODUCER_FAILED, "late"))
    stage.receiver.on_frame(BacklogAnnouncement(1, 5))
    assert stage.poll() is None
    stage.assert_all_home()


def test_a_number_that_was_never_opened_breaks_the_connection(stage: Stage) -> None:
    with pytest.raises(RemoteProtocolError, match="channel 3, which was never opened"):
        stage.arrive(3)
    with pytest.raises(RemoteProtocolError, match=r"memory://producer .* channel 4"):
        stage.receiver.on_event(4, 0, 0, DataType.EVENT, b"")


def test_a_producer_sends_no_consumers_frames(stage: Stage) -> None:
    for frame in (AddCredit(((0, 1),)), OpenChannel(9, "p", 0, 1), CancelChannel(0)):
        with pytest.raises(RemoteProtocolError, match="a producer does not send"):
            stage.receiver.on_frame(frame)


def test_an_announced_backlog_reserves_buffers(stage: Stage) -> None:
    stage.receiver.on_frame(BacklogAnnouncement(0, 3))
    assert stage.collect() == [AddCredit(((0, 3),))]
    assert stage.channels[0].statistics().backlog_announcements == 1


# Faults of one channel.


def test_a_reset_channel_raises_once_read_and_the_others_go_on(stage: Stage) -> None:
    stage.arrive(0, data=b"good")
    landing = stage.landing
    stage.arrive(0, sequence=7)
    assert stage.landing is landing
    assert stage.sent == [CancelChannel(0)]
    stage.arrive(0, sequence=8)  # crossed the cancel
    stage.arrive(1, data=b"other")
    assert stage.poll() == (0, b"good")
    assert stage.poll() == (1, b"other")
    with pytest.raises(ChannelFailed, match="expected buffer 1, got 7"):
        stage.poll()
    stage.arrive(1, sequence=1, data=b"more")
    assert stage.poll() == (1, b"more")
    stage.assert_all_home()


def test_a_bad_event_resets_its_channel(stage: Stage) -> None:
    stage.receiver.on_event(2, 5, 0, DataType.END_OF_PARTITION, encode_event(EndOfPartition()))
    assert stage.sent == [CancelChannel(2)]
    with pytest.raises(ChannelFailed, match="SEQUENCE_GAP"):
        stage.poll()


def test_a_wrong_checksum_resets_its_channel(stage: Stage) -> None:
    stage.receiver.on_open(Hello(PROTOCOL_VERSION, SIZE, 1, "test"), FEATURE_CHECKSUM)
    stage.arrive(0, data=b"fine")
    assert stage.poll() == (0, b"fine")
    stage.arrive(0, sequence=1, data=b"damaged", checksum=1)
    assert stage.sent[-1] == CancelChannel(0)
    with pytest.raises(ChannelFailed, match=r"CHECKSUM_MISMATCH: buffer 1 of 7 bytes: CRC-32 .* announced 00000001"):
        stage.poll()
    stage.assert_all_home()


def test_without_the_feature_checksums_are_not_looked_at(stage: Stage) -> None:
    stage.arrive(0, data=b"fine", checksum=1)
    assert stage.poll() == (0, b"fine")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PARTITION_NOT_FOUND, PartitionNotFound),
        (ErrorCode.SUBPARTITION_OUT_OF_RANGE, PartitionNotFound),
        (ErrorCode.PRODUCER_FAILED, ProducerFailed),
        (ErrorCode.SUBPARTITION_CONSUMED, ChannelFailed),
    ],
)
def test_a_producers_error_gets_its_class_and_names_the_channel(
    stage: Stage, code: ErrorCode, kind: type[ChannelFailed]
) -> None:
    stage.receiver.on_frame(ChannelError(1, code, "the reason"))
    with pytest.raises(kind, match=rf"'p' subpartition 1 .*{code.name}: the reason") as caught:
        stage.poll()
    assert type(caught.value) is kind
    assert stage.sent == []  # it is closed over there already
    stage.assert_all_home()


# The connection.


def test_a_lost_connection_fails_every_channel_that_has_not_ended(stage: Stage) -> None:
    stage.receiver.on_event(0, 0, 0, DataType.END_OF_PARTITION, encode_event(EndOfPartition()))
    stage.poll()
    stage.arrive(1, data=b"last")
    stage.channels[2].manager.on_backlog(1)
    stage.receiver.on_closed(ConnectionLost("reset by peer"))
    assert stage.collect() == []
    assert stage.poll() == (1, b"last")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match=r"memory://producer.: reset by peer") as caught:
            stage.poll()
        assert isinstance(caught.value.__cause__, ConnectionLost)
    assert stage.poll() is None
    stage.assert_all_home()


def test_a_goodbye_with_channels_open_is_a_loss_too(stage: Stage) -> None:
    stage.receiver.on_closed(None)
    with pytest.raises(ConnectionLost, match="the connection to memory://producer was closed"):
        stage.poll()


def test_nothing_is_opened_on_a_connection_that_is_gone(stage: Stage) -> None:
    stage.receiver.on_closed(ConnectionLost("reset by peer"))
    with pytest.raises(ConnectionLost, match="memory://producer is gone: reset by peer"):
        stage.open(3, 2)


# Sizes of buffers.


def controls(stage: Stage) -> list[Frame]:
    batch = OutgoingBatch()
    stage.receiver.collect(batch)
    frames = []
    for piece in batch.pieces:
        _, _, kind, channel, *_ = stage.codec.parse_header(memoryview(piece), 0)
        frames.append(stage.codec.decode_control(kind, channel, bytes(piece[stage.codec.header_bytes :])))
    return frames


def test_of_the_sizes_for_a_channel_the_newest_is_told_once(stage: Stage) -> None:
    stage.channels[0].announce_buffer_size(8)
    stage.channels[2].announce_buffer_size(9)
    stage.channels[0].announce_buffer_size(10)
    stage.channels[1].manager.on_backlog(3)
    assert stage.wanted == 2  # once for the sizes, once for the credit
    credit, *sizes = controls(stage)
    assert credit == AddCredit(((1, 3),))
    assert sorted(sizes, key=str) == [NewBufferSize(0, 10), NewBufferSize(2, 9)]
    assert controls(stage) == []
    stage.channels[0].announce_buffer_size(11)
    assert stage.wanted == 3
    assert controls(stage) == [NewBufferSize(0, 11)]


def test_a_channel_that_left_has_no_size(stage: Stage) -> None:
    stage.channels[0].announce_buffer_size(8)
    stage.channels[0].release()
    stage.channels[0].announce_buffer_size(9)
    stage.channels[1].announce_buffer_size(8)
    stage.receiver.on_frame(ChannelError(1, ErrorCode.PRODUCER_FAILED, "gone"))
    stage.channels[1].announce_buffer_size(9)
    assert controls(stage) == []
    stage.channels[2].announce_buffer_size(8)
    stage.receiver.on_closed(None)
    assert controls(stage) == []


# What another dialect brings.


def test_parts_find_their_channel_and_its_faults_reset_it_alone(stage: Stage) -> None:
    stage.receiver.on_parts(1, 0, 0, memoryview(b"abc"), (1, 2), None)
    assert [stage.poll(), stage.poll()] == [(1, b"a"), (1, b"bc")]
    stage.receiver.on_parts(1, 7, 0, memoryview(b"abc"), (1, 2), None)
    assert stage.sent == [CancelChannel(1)]
    with pytest.raises(ChannelFailed, match="expected buffer 2, got 7"):
        stage.poll()
    stage.receiver.on_parts(1, 8, 0, memoryview(b"abc"), (1, 2), None)  # crossed the cancel
    assert stage.poll() is None
    with pytest.raises(RemoteProtocolError, match="never opened"):
        stage.receiver.on_parts(4, 0, 0, memoryview(b"abc"), (1, 2), None)
    stage.assert_all_home()


def test_a_producer_that_overlooks_cancels_is_told_again(stage: Stage) -> None:
    stage.channels[0].release()
    stage.sent.clear()
    stage.arrive(0)
    assert stage.sent == []
    stage.codec.repeats_cancel = True
    stage.arrive(0)
    stage.receiver.on_event(0, 1, 0, DataType.EVENT, b"")
    stage.receiver.on_parts(0, 2, 0, memoryview(b"abc"), (1, 2), None)
    assert stage.sent == [CancelChannel(0)] * 3
    stage.assert_all_home()


def test_an_event_the_codec_cannot_read_resets_its_channel() -> None:
    stage = Stage(codec=FlinkConsumerCodec(lambda: bytes(16), SIZE))
    stage.sent.clear()
    stage.receiver.on_event(1, 0, 0, DataType.EVENT, b"?")
    assert stage.sent == [CancelChannel(1)]
    with pytest.raises(ChannelFailed, match="MALFORMED_FRAME"):
        stage.poll()
    stage.assert_all_home()


def test_no_credit_is_announced_for_a_channel_whose_producer_gave_it_up(stage: Stage) -> None:
    stage.arrive(0, backlog=4)
    stage.receiver.on_frame(ChannelError(0, ErrorCode.PRODUCER_FAILED, "gone"))
    assert stage.collect() == []
    stage.assert_all_home()


def test_idle_is_without_channels(stage: Stage) -> None:
    assert not stage.receiver.is_idle
    for channel in stage.channels:
        channel.release()
    assert stage.receiver.is_idle
    stage.assert_all_home()
