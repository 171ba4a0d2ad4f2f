"""Of a channel that credit holds up more is announced than waits; silent, it leaves its buffers to others again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from netstack.base.events import CheckpointBarrier, DataType
from netstack.exchange.credit.boost import BUSY_SHARES, CHECK_S, EXPECTED_BUFFERS, PATIENCE
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.outbound.selector import CustomSelector
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.formats import format_named
from netstack.exchange.record.framing import frame
from netstack.testing.link import Link, Step

SEGMENT = 64
RECORD = bytes(SEGMENT - 4)  # framed it fills a buffer
LONG = bytes(range(250))


class Stage:
    """A partition of one channel or more, its writer, and a gate over them."""

    def __init__(
        self, channels: int = 1, *, exclusive: int = 2, floating: int = 8, written: int = 40, link: Link | None = None
    ) -> None:
        self.link = link or Link(
            segment_size_bytes=SEGMENT, exclusive_buffers=exclusive, floating_buffers=floating, producer_segments=200
        )
        self.partition = self.link.create_partition("p", subpartitions=channels, buffers=(written, written))
        self.writer = PartitionWriter(
            self.partition,
            selector=CustomSelector(lambda record, count: record[0] % count),
            format=format_named("bytes"),
            buffer_timeout_s=None,
            refuse=BlockingIOError,
        )
        self.gate: SingleInputGate = self.link.open_gate([("p", index) for index in range(channels)])
        self.received: list[bytearray] = [bytearray() for _ in range(channels)]
        self.link.run()

    def channel(self, index: int = 0) -> RemoteInputChannel:
        channel = self.gate.channels[index]
        assert isinstance(channel, RemoteInputChannel)
        return channel

    def credit(self, index: int = 0) -> int:
        return next(each.credit for each in self.link.sender.statistics() if each.channel == index)

    def write(self, count: int, record: bytes = RECORD) -> int:
        return sum(self.writer.try_emit(record) for _ in range(count))

    def drain(self) -> None:
        for taken in self.link.drain(self.gate):
            if taken.data_type is DataType.DATA:
                self.received[taken.channel_index] += taken.payload

    def drain_all(self) -> None:
        while self.link.run() or self.gate.has_data:
            self.drain()

    def fall_silent(self) -> None:
        """Two looks, and as long again for what is still on its way."""
        for _ in range(4):
            self.drain_all()
            self.link.advance_time(CHECK_S)
        self.drain_all()

    def close(self) -> None:
        self.partition.release()
        self.writer.abandon()
        self.link.close()

    def assert_silent(self) -> None:
        """Nothing is reserved but what each channel owns, and all of it is the sender's to use."""
        for index in range(self.gate.channel_count):
            channel = self.channel(index)
            assert channel.statistics().free_floating == 0
            assert self.credit(index) + channel.manager.credit.unannounced == channel.manager.initial_credit
        assert self.link.host.pending_calls == 0


def test_its_window_stays_open_while_it_goes_on() -> None:
    stage = Stage()
    assert stage.write(20) == 20
    stage.drain_all()
    assert stage.received[0] == frame(RECORD) * 20
    assert stage.channel().manager.free_buffers == 10  # two of its own, and all floating ones
    assert stage.credit() + stage.channel().manager.credit.unannounced == 10
    for _ in range(5):  # and none of them is missed as long as it writes enough between two looks
        assert stage.write(BUSY_SHARES * EXPECTED_BUFFERS // 4) == BUSY_SHARES * EXPECTED_BUFFERS // 4
        stage.drain_all()
        stage.link.advance_time(CHECK_S / 5)
    assert stage.channel().manager.free_buffers == 10
    for _ in range(PATIENCE // 2):  # little is not enough
        stage.write(1)
        stage.drain_all()
        stage.link.advance_time(CHECK_S)
    stage.drain_all()
    stage.assert_silent()
    stage.close()


def test_who_waits_for_a_long_line_keeps_its_window() -> None:
    """It sends little between two checks, but what it has is more than its credit."""
    stage = Stage()
    assert stage.write(20) == 20
    stage.drain_all()
    for _ in range(3 * PATIENCE):
        stage.write(16)
        stage.link.run()  # what credit allows; the rest is its backlog
        stage.link.advance_time(CHECK_S)
        (channel,) = stage.link.sender._channels.values()
        assert channel.credit.expected == EXPECTED_BUFFERS
        stage.drain_all()
    stage.fall_silent()
    stage.assert_silent()
    stage.close()


def test_the_backlog_is_what_waits_and_what_is_hoped_for_is_told_apart() -> None:
    stage = Stage()
    stage.write(20)
    stage.link.run()  # nobody reads
    stage.drain()
    stage.link.run()
    queued = stage.partition.statistics().queued_buffers
    actual = stage.gate.statistics()
    assert actual.sender_expected == EXPECTED_BUFFERS
    assert actual.sender_backlog <= 20
    assert abs(actual.sender_backlog - queued) <= stage.credit() + 1, (actual.sender_backlog, queued)
    stage.drain_all()
    actual = stage.gate.statistics()
    assert (actual.sender_backlog, actual.sender_expected) == (0, EXPECTED_BUFFERS)
    stage.fall_silent()
    stage.close()


def test_without_the_feature_nothing_is_hoped_for() -> None:
    """As Flink: what a producer tells is what waits, and a round trip later its credit is what its channel owns."""
    link = Link(segment_size_bytes=SEGMENT, producer_segments=200, as_flink=True)
    stage = Stage(link=link)
    stage.write(20)
    stage.drain_all()
    assert stage.gate.statistics().sender_expected == 0
    assert stage.channel().manager.free_buffers == 2
    assert stage.link.host.pending_calls == 0
    stage.close()


def test_who_never_lacked_credit_is_announced_what_waits() -> None:
    stage = Stage()
    stage.write(2)
    stage.drain_all()
    assert stage.channel().manager.free_buffers == 2
    assert stage.link.host.pending_calls == 0
    stage.close()


def test_a_silent_channel_gives_back_what_others_may_need() -> None:
    stage = Stage()
    stage.write(20)
    stage.drain_all()
    stage.fall_silent()
    stage.assert_silent()
    assert stage.channel().statistics().sender_expected == 0
    assert stage.write(20) == 20
    stage.fall_silent()
    assert stage.received[0] == frame(RECORD) * 40
    stage.assert_silent()
    stage.close()


def test_credit_that_comes_when_it_has_fallen_silent_goes_back_too() -> None:
    stage = Stage()
    stage.write(12)
    stage.link.run()  # all it may send is there, and nobody reads
    for _ in range(PATIENCE + 2):
        stage.link.advance_time(CHECK_S)
    stage.drain_all()
    stage.assert_silent()
    assert stage.received[0] == frame(RECORD) * 12
    stage.close()


def test_nothing_is_expected_of_a_channel_without_buffers_of_its_own() -> None:
    stage = Stage(exclusive=0)
    stage.write(20)
    stage.drain_all()
    assert stage.received[0] == frame(RECORD) * 20
    assert stage.link.host.pending_calls == 0
    stage.close()


def test_nothing_is_expected_when_less_is_wanted() -> None:
    stage = Stage()
    stage.gate.announce_buffer_size(SEGMENT // 2)
    stage.link.run()
    stage.write(10, b"x" * 20)
    stage.drain_all()
    assert stage.link.host.pending_calls == 0
    stage.close()


def test_a_wish_for_less_ends_what_was_expected() -> None:
    stage = Stage()
    stage.write(20)
    stage.drain_all()
    stage.gate.announce_buffer_size(SEGMENT // 2)
    stage.link.run()
    stage.fall_silent()
    assert stage.channel().statistics().sender_expected == 0
    stage.assert_silent()
    stage.close()


def test_of_many_channels_nothing_is_expected() -> None:
    channels = EXPECTED_BUFFERS + 1
    stage = Stage(channels, exclusive=1, written=100)
    for index in range(channels):
        stage.write(3, bytes([index]) + RECORD[1:])
    stage.drain_all()
    assert stage.link.host.pending_calls == 0
    stage.close()


def test_behind_a_barrier_that_blocks_nothing_is_sent() -> None:
    stage = Stage()
    stage.write(20)
    stage.drain_all()
    stage.writer.broadcast_event(CheckpointBarrier(1))
    stage.link.run()
    for _ in range(3):
        stage.link.advance_time(CHECK_S)
        stage.link.run()
    held = stage.credit()
    assert held > 2  # whatever is not its own has to wait, too
    taken = [each.data_type for each in stage.link.drain(stage.gate)]
    assert taken == [DataType.ALIGNED_BARRIER]
    stage.gate.resume(0)
    stage.write(2)
    stage.drain_all()
    assert stage.received[0] == frame(RECORD) * 22
    stage.close()


def test_an_ended_channel_is_not_looked_at_for_ever() -> None:
    stage = Stage()
    stage.write(20)
    stage.writer.end(drain=True)
    stage.partition.close()
    stage.fall_silent()
    assert stage.gate.is_finished
    assert stage.received[0] == frame(RECORD) * 20
    assert stage.link.host.pending_calls == 0
    stage.close()


@pytest.mark.parametrize("close", ["gate", "cut"])
def test_one_that_is_gone_is_forgotten(close: str) -> None:
    stage = Stage()
    stage.write(20)
    stage.drain_all()
    if close == "gate":
        stage.gate.close()
        stage.link.run()
    else:
        stage.link.cut()
    stage.link.advance_time(10 * CHECK_S)
    assert stage.link.host.pending_calls == 0
    stage.close()


actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 30), st.integers(0, 2), st.sampled_from([b"", RECORD, LONG])),
        st.tuples(st.just("step"), st.sampled_from(Step), st.integers(1, 500)),
        st.tuples(st.just("drain")),
        st.tuples(st.just("time"), st.sampled_from([CHECK_S / 3, CHECK_S, 2.5 * CHECK_S])),
    ),
    max_size=80,
)


@given(actions, st.integers(1, 3), st.integers(1, 3), st.integers(1, 9))
def test_whatever_happens_all_of_it_arrives_and_then_nothing_is_held(
    script: list[tuple[Any, ...]], channels: int, exclusive: int, floating: int
) -> None:
    stage = Stage(channels, exclusive=exclusive, floating=floating)
    written = [bytearray() for _ in range(channels)]
    for name, *arguments in script:
        match name:
            case "write":
                count, index, rest = arguments
                index %= channels
                record = bytes([index]) + rest
                written[index] += frame(record) * stage.write(count, record)
            case "step":
                step, size = arguments
                stage.link.chunk = lambda available, size=size: min(available, size)
                stage.link.step(step)
            case "drain":
                stage.drain()
            case _:
                stage.link.advance_time(*arguments)
    stage.link.chunk = lambda available: available
    stage.partition.flush_all()
    stage.fall_silent()
    assert stage.received == written
    stage.assert_silent()
    stage.close()
